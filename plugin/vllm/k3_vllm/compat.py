"""Everything that depends on vLLM's version: what is registered, overridden or patched, and why.

Pinned and tested: vLLM 0.33.0. When a newer version is tried, tests/vllm/test_contract.py names what
moved; the answer belongs here.
"""

import os
import sys
from typing import NoReturn

from k3_vllm import lib

PINNED = "0.33.0"
ARCHITECTURES = ("KimiK3ForConditionalGeneration",)
DRAFT_ARCHITECTURE = "K3DSparkModel"

# Runner features that vLLM's V1 GPU runner lacks; ours has them.
_OURS = frozenset({"dspark speculative decoding"})


def patch() -> None:
    """Lets a V1-dialect runner that is not vLLM's own speculate with DSpark; idempotent.

    VllmConfig refuses DSpark for "runner V1" because vLLM implements it in runner V2 only, and V2
    needs Triton. There is no interface by which a platform could declare its runner's features.
    """
    from vllm.config import VllmConfig

    name = "_get_v1_model_runner_unsupported_features"
    listed = getattr(VllmConfig, name, None)
    if listed is None or getattr(listed, "k3_patched", False):
        return

    def without_ours(self) -> list[str]:
        return [feature for feature in listed(self) if feature not in _OURS]

    without_ours.k3_patched = True
    setattr(VllmConfig, name, without_ours)


def register() -> None:
    """The general plugin: models, tokenizer and renderer of K3; called in every process."""
    from vllm.model_executor.models import registry
    from vllm.renderers.registry import RENDERER_REGISTRY
    from vllm.tokenizers.registry import TokenizerRegistry

    patch()
    try:
        lib.load()
    except lib.K3Error as err:
        refuse(err)
    for arch in (*ARCHITECTURES, DRAFT_ARCHITECTURE):
        registry.ModelRegistry.models.pop(arch, None)  # vLLM's GPU classes of the same names
        registry.ModelRegistry.register_model(arch, f"k3_vllm.model:{arch}")
    for cache in ("_try_load_model_cls", "_try_inspect_model_cls"):
        getattr(getattr(registry, cache, None), "cache_clear", lambda: None)()
    # vLLM picks the mode "kimi_k3" by itself for this architecture.
    TokenizerRegistry.tokenizers["kimi_k3"] = ("k3_vllm.tokenizer", "K3Tokenizer")
    RENDERER_REGISTRY.renderers["kimi_k3"] = ("k3_vllm.renderer", "K3Renderer")


def disable_compilation(vllm_config) -> None:
    from vllm.config import CompilationMode, CUDAGraphMode

    compilation = vllm_config.compilation_config
    compilation.mode = CompilationMode.NONE
    compilation.cudagraph_mode = CUDAGraphMode.NONE
    compilation.cudagraph_capture_sizes = []
    compilation.max_cudagraph_capture_size = 0


def init_ranks(parallel, rank: int, local_rank: int, init_method: str) -> None:
    """Joins vLLM's process groups; every rank of tensor parallelism is a process on this machine."""
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
    from vllm.platforms import current_platform

    init_distributed_environment(parallel.world_size, rank, init_method, local_rank, current_platform.dist_backend)
    ensure_model_parallel_initialized(parallel.tensor_parallel_size, parallel.pipeline_parallel_size)


def gather_ranks(view: memoryview) -> None:
    """All ranks' parts of a buffer, in place: before the call only this rank's is set."""
    import torch
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    whole = torch.frombuffer(view, dtype=torch.uint8)
    own = whole.chunk(group.world_size)[group.rank_in_group]
    torch.distributed.all_gather_into_tensor(whole, own, group=group.cpu_group)


def kv_cache_specs(*, block_tokens: int, page_bytes: int, n_state_parts: int, latent_width: int, mode: str,
                   max_model_len: int) -> dict:
    """The synthetic layers that make vLLM's scheduler hand out block ids.

    One attention layer stands for all latents, `n_state_parts` recurrent layers for one KDA snapshot
    spread over as many pages. Without prefix caching no snapshot is kept, so one recurrent block of
    max_model_len tokens per request is enough.
    """
    import torch
    from vllm.v1.kv_cache_interface import MambaSpec, MLAAttentionSpec

    specs: dict = {
        "k3.latents": MLAAttentionSpec(
            block_size=block_tokens, num_kv_heads=1, head_size=latent_width, dtype=torch.bfloat16,
            page_size_padded=page_bytes,
        )
    }
    for part in range(n_state_parts):
        specs[f"k3.state.{part}"] = MambaSpec(
            block_size=block_tokens if mode == "align" else max_model_len,
            shapes=((page_bytes,),), dtypes=(torch.uint8,), page_size_padded=page_bytes, mamba_cache_mode=mode,
        )
    return specs


def refuse(err: Exception) -> NoReturn:
    """vLLM's programs would wrap the sentence into tracebacks of all their layers: there, it is the last word."""
    if os.path.basename(sys.argv[0]) == "vllm" or "/vllm/entrypoints/" in sys.argv[0]:
        raise SystemExit(f"error: {err}")
    raise err


def validate_request(processed_inputs, params) -> None:
    """Refuses what the runner does not implement; the server answers 400 with this sentence."""
    from vllm import SamplingParams

    if not isinstance(params, SamplingParams):
        raise ValueError("k3-vllm serves text generation only")
    for name in ("thinking_token_budget", "prompt_logprob_token_ids", "logprob_token_ids", "watermarking",
                 "trace_decode_token_ids"):
        if getattr(params, name, None):
            raise ValueError(f"k3-vllm does not support the sampling parameter {name!r}")
