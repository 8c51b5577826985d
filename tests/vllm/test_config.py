"""From vLLM's arguments to its configuration and KV groups, in real vLLM: what the plugin sets, and what it refuses."""

import json
import os
import re
import subprocess
import sys

import pytest
from conftest import REPO
from test_package import old_library

vllm = pytest.importorskip("vllm", reason="NOT RUN: vLLM is not installed")

from vllm.engine.arg_utils import EngineArgs  # noqa: E402

BLOCK = 64


def dspark(draft, n=7) -> dict:
    return {"speculative_config": {"method": "dspark", "model": draft, "num_speculative_tokens": n}}


@pytest.mark.parametrize("what", ["plain", "prefix caching", "no prefix caching", "dspark", "images", "two ranks"])
def test_configurations(model, draft, what):
    options = {
        "plain": {},
        "prefix caching": {"enable_prefix_caching": True},
        "no prefix caching": {"enable_prefix_caching": False},
        "dspark": dspark(draft),
        "images": {"limit_mm_per_prompt": {"image": 3}},
        "two ranks": {"tensor_parallel_size": 2},
    }[what]
    config = EngineArgs(model=model, max_model_len=1024, block_size=BLOCK, **options).create_engine_config()
    caching = what != "no prefix caching"
    assert config.parallel_config.worker_cls == "k3_vllm.worker.K3Worker"
    assert config.parallel_config.distributed_executor_backend == ("mp" if what == "two ranks" else "uni")
    assert config.cache_config.enable_prefix_caching == caching
    assert config.cache_config.mamba_cache_mode == ("align" if caching else "none")
    assert config.cache_config.block_size == BLOCK
    assert config.scheduler_config.async_scheduling is False
    assert config.scheduler_config.enable_chunked_prefill
    assert config.compilation_config.mode.name == "NONE" and not config.compilation_config.cudagraph_capture_sizes
    assert not config.use_v2_model_runner
    assert config.model_config.is_multimodal_model and config.model_config.is_hybrid
    assert config.model_config.tokenizer_mode == "kimi_k3"
    if what == "dspark":
        assert config.speculative_config.method == "dspark"
        assert config.num_speculative_tokens == 7


@pytest.mark.parametrize("caching", [True, False])
def test_kv_groups_and_hits(model, monkeypatch, caching):
    """vLLM's own managers over the worker's layers: one page size, a group a layer, a hit that ends on a block."""
    from fake_engine import FakeEngine

    from k3_vllm import lib

    monkeypatch.setattr(lib, "Engine", FakeEngine)
    llm = vllm.LLM(
        model=model, max_model_len=1024, block_size=BLOCK, max_num_seqs=2, kv_cache_memory_bytes=1 << 26,
        enable_prefix_caching=caching, disable_log_stats=False,
    )  # fmt: skip
    try:
        core = llm.llm_engine.engine_core.engine_core
        groups = core.scheduler.kv_cache_config.kv_cache_groups
        worker = core.model_executor.driver_worker.worker
        assert [group.layer_names for group in groups][0] == ["k3.latents"]
        assert len(groups) == 1 + worker.n_parts and worker.n_parts == (4 if caching else 1)
        assert {group.kv_cache_spec.page_size_bytes for group in groups} == {worker.page_bytes}
        prompt, params = [5] * (3 * BLOCK + 7), vllm.SamplingParams(temperature=0, max_tokens=1)
        cached = [
            llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)[0].num_cached_tokens for _ in range(2)
        ]
        assert cached == ([0, 3 * BLOCK] if caching else [0, 0])
    finally:
        llm.llm_engine.engine_core.shutdown()


@pytest.mark.parametrize("wish, name", [("0", "other"), ("1", "k3_vllm.platform"), ("", "k3_vllm.platform")])
def test_the_platform_is_ours_or_not_in_every_process(wish, name):
    code = (
        "from vllm.plugins import load_general_plugins as load; load(); load()\n"
        "from vllm.platforms import current_platform\n"
        "from vllm.model_executor.models import ModelRegistry\n"
        "ours = getattr(ModelRegistry.models['KimiK3ForConditionalGeneration'], 'module_name', '')\n"
        "print(type(current_platform).__module__, ours)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "LIBK3_VLLM": wish}, capture_output=True, text=True, check=True
    ).stdout.split()  # fmt: skip
    assert (out[0] == "k3_vllm.platform") == (name == "k3_vllm.platform")
    assert (out[1:] == ["k3_vllm.model"]) == (name == "k3_vllm.platform")


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"tensor_parallel_size": 2, "distributed_executor_backend": "uni"}, "--distributed-executor-backend uni"),
        ({"pipeline_parallel_size": 2}, "(?i)pipeline.parallel"),
        ({"distributed_executor_backend": "mp"}, "--distributed-executor-backend mp"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "--kv-cache-dtype fp8_e4m3"),
        ({"enable_lora": True}, "LoRA is not supported"),
        ({"enable_prompt_embeds": True}, "--enable-prompt-embeds"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, "speculative method ngram"),
        ({"data_parallel_size": 2}, "--data-parallel-size 2"),
        ({"enable_expert_parallel": True}, "--enable-expert-parallel"),
        ({"cpu_offload_gb": 4}, "--cpu-offload-gb"),
        ({"attention_backend": "FLASH_ATTN"}, "--attention-backend"),
        ({"hf_overrides": {"rope_theta": 1}}, "--hf-overrides"),
        ({"load_format": "dummy"}, "--load-format dummy"),
        ({"dtype": "float16"}, "float16"),
        ({"mamba_ssm_cache_dtype": "float16"}, "--mamba-ssm-cache-dtype float16"),
        ({"logits_processors": ["a:B"]}, "--logits-processors"),
        ({"enable_sleep_mode": True}, "(?i)sleep.mode"),
        ({"runner": "pooling"}, "(?i)--runner pooling|pooling"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(model, options, sentence):
    from vllm.engine.arg_utils import EngineArgs

    with pytest.raises(Exception, match=sentence):
        EngineArgs(model=model, max_model_len=1024, **options).create_engine_config()


@pytest.mark.parametrize(
    "additional, sentence",
    [({"colour": 1}, "unknown key 'colour'"), ({"isa": "mmx"}, "isa")],
)
def test_engine_options_are_checked(model, additional, sentence):
    with pytest.raises(Exception, match=sentence):
        vllm.LLM(model=model, max_model_len=512, kv_cache_memory_bytes=1 << 26, additional_config=additional)


# what: (arguments of vllm serve, environment, the sentence), from the good checkpoints and an empty folder
WRONG = {
    "flag for GPUs": lambda model, draft, folder: (
        [model, "--kv-cache-dtype", "fp8_e4m3"], {}, "k3-vllm does not support --kv-cache-dtype fp8_e4m3",
    ),
    "missing library": lambda model, draft, folder: (
        [model], {"LIBK3_PATH": "/nonexistent/libk3.so"}, "libk3 cannot be loaded from /nonexistent/libk3.so",
    ),
    "other ABI": lambda model, draft, folder: (
        [model], {"LIBK3_PATH": old_library(folder)}, "has ABI version 99, this k3-vllm needs 1",
    ),
    "damaged weights": lambda model, draft, folder: ([damaged(model, folder, ".safetensors")], {}, r"\.safetensors: "),
    "no tokenizer": lambda model, draft, folder: ([damaged(model, folder, "tiktoken")], {}, r"tiktoken\.model"),
    "damaged draft": lambda model, draft, folder: (
        [model, "--speculative-config", json.dumps(dspark(damaged(draft, folder, ".safetensors"))["speculative_config"])],
        {}, r"\.safetensors: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_vllm_serve_says_in_one_line_what_is_wrong(model, draft, tmp_path, what):
    arguments, environment, sentence = WRONG[what](model, draft, tmp_path)
    done = subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), "vllm"), "serve", *arguments, "--max-model-len", "512"],
        cwd=REPO, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode != 0
    assert re.match(f"error: .*{sentence}", done.stderr.strip().splitlines()[-1]), done.stderr[-2000:]
    assert "Traceback" not in done.stdout + done.stderr


def damaged(checkpoint: str, folder, ending: str) -> str:
    """A copy of a checkpoint, its weights cut to 64 bytes of nothing or another file missing."""
    for name in os.listdir(checkpoint):
        if ending not in name or name.endswith(".json"):
            (folder / name).symlink_to(os.path.join(os.path.abspath(checkpoint), name))
        elif ending == ".safetensors":
            (folder / name).write_bytes(bytes(64))
    return str(folder)
