"""What the plugin takes from vLLM, by name. When a newer vLLM is tried, a failure here says what moved
and where: the answer belongs into k3_vllm/compat.py."""

import dataclasses
import inspect
import pathlib
import re

import pytest

pytest.importorskip("vllm", reason="NOT RUN: vLLM is not installed")

import vllm  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402

from k3_vllm import compat  # noqa: E402

# Calls that vLLM makes only for features which K3Platform refuses.
REFUSED_CALLS = {
    "save_sharded_state", "sleep", "wake_up", "discard", "get_kv_connector_handshake_metadata",
    "get_simple_cpu_offload_num_cpu_blocks", "elastic_ep_execute",
}  # fmt: skip

# Every field of SamplingParams, by who takes care of it.
IN_VLLM = set(
    "n stop ignore_eos max_tokens flat_logprobs detokenize skip_special_tokens spaces_between_special_tokens"
    " include_stop_str_in_output output_kind stream_interval skip_clone output_text_buffer_length _eos_token_id"
    " _watermarking_skipped structured_outputs extra_args bad_words skip_reading_prefix_cache"
    " repetition_detection routed_experts_prompt_start prompt_logprob_start".split()
)
IN_RUNNER = set(
    "presence_penalty frequency_penalty repetition_penalty temperature top_p top_k min_p seed stop_token_ids"
    " min_tokens logprobs prompt_logprobs _all_stop_token_ids logit_bias allowed_token_ids _bad_words_token_ids".split()
)
REFUSED_PARAMS = set(
    "watermarking prompt_logprob_token_ids logprob_token_ids thinking_token_budget trace_decode_token_ids".split()
)


def test_version_is_the_pinned_one():
    assert vllm.__version__ == compat.PINNED


def test_platform_is_ours():
    assert type(current_platform).__module__ == "k3_vllm.platform"


def _fits(ours, theirs) -> bool:
    """Whether `ours` can be called wherever `theirs` can: same parameters, or more that are optional."""
    parameters = inspect.signature(ours).parameters
    kinds = {p.kind for p in parameters.values()}
    if inspect.Parameter.VAR_KEYWORD in kinds and inspect.Parameter.VAR_POSITIONAL in kinds:
        return True
    wanted = [name for name in inspect.signature(theirs).parameters if name not in ("self", "cls")]
    return all(name in parameters or inspect.Parameter.VAR_KEYWORD in kinds for name in wanted)


def test_worker_answers_every_call_of_the_executors():
    from k3_vllm.worker import K3Worker

    executors = pathlib.Path(vllm.__file__).parent / "v1" / "executor"
    calls = set()
    for file in ("abstract.py", "uniproc_executor.py", "multiproc_executor.py"):
        calls |= set(re.findall(r'collective_rpc\(\s*(?:#[^\n]*)?\s*"(\w+)"', (executors / file).read_text()))
    assert {"execute_model", "sample_tokens", "get_kv_cache_spec"} <= calls
    missing = [name for name in calls - REFUSED_CALLS if not callable(getattr(K3Worker, name, None))]
    assert not missing


@pytest.mark.parametrize("which", ["worker", "platform"])
def test_overridden_methods_keep_their_parameters(which):
    from vllm.platforms.interface import Platform
    from vllm.v1.worker.worker_base import WorkerBase

    from k3_vllm.platform import K3Platform
    from k3_vllm.worker import K3Worker

    ours, base = {"worker": (K3Worker, WorkerBase), "platform": (K3Platform, Platform)}[which]
    moved = [
        name
        for name, method in vars(base).items()
        if name in vars(ours) and callable(getattr(ours, name)) and not name.startswith("__")
        and not _fits(getattr(ours, name), getattr(base, name))
    ]  # fmt: skip
    assert not moved


def test_platform_overrides_still_exist():
    from vllm.platforms.interface import Platform

    from k3_vllm.platform import K3Platform

    own = {name for name in vars(K3Platform) if not name.startswith("_")}
    assert own - set(vars(Platform)) - set(Platform.__annotations__) == set()


@pytest.mark.parametrize(
    "path, fields",
    [
        ("vllm.v1.core.sched.output.SchedulerOutput",
         "scheduled_new_reqs scheduled_cached_reqs num_scheduled_tokens total_num_scheduled_tokens"
         " scheduled_spec_decode_tokens scheduled_encoder_inputs finished_req_ids free_encoder_mm_hashes"
         " encoder_input_updates preempted_req_ids kv_cache_block_copies num_spec_tokens_to_schedule skip_drafts"
         " num_invalid_spec_tokens"),
        ("vllm.v1.core.sched.output.NewRequestData",
         "req_id prompt_token_ids mm_features sampling_params block_ids num_computed_tokens prefill_token_ids"),
        ("vllm.v1.core.sched.output.CachedRequestData",
         "req_ids resumed_req_ids all_token_ids new_block_ids num_computed_tokens"),
        ("vllm.v1.core.sched.output.GrammarOutput",
         "structured_output_request_ids grammar_bitmask num_acceptable_drafts"),
        ("vllm.v1.outputs.ModelRunnerOutput",
         "req_ids req_id_to_index sampled_token_ids logprobs prompt_logprobs_dict"),
        ("vllm.v1.outputs.DraftTokenIds", "req_ids draft_token_ids"),
        ("vllm.multimodal.inputs.MultiModalFeatureSpec", "data identifier mm_position"),
        ("vllm.multimodal.inputs.PlaceholderRange", "offset length is_embed"),
    ],
)  # fmt: skip
def test_exchanged_structures_have_the_fields_we_use(path, fields):
    module, name = path.rsplit(".", 1)
    cls = getattr(__import__(module, fromlist=[name]), name)
    assert set(fields.split()) <= {field.name for field in dataclasses.fields(cls)}


def test_logprob_tuples_have_the_order_we_use():
    from vllm.v1.outputs import LogprobsLists, LogprobsTensors

    assert LogprobsTensors._fields[:3] == ("logprob_token_ids", "logprobs", "selected_token_ranks")
    assert LogprobsLists._fields == (
        "logprob_token_ids", "logprobs", "sampled_token_ranks", "cu_num_generated_tokens"
    )  # fmt: skip


def test_every_sampling_parameter_is_known():
    """A new parameter must be implemented or refused, never accepted and ignored."""
    from vllm import SamplingParams

    found = set(SamplingParams.__struct_fields__)
    assert found == IN_VLLM | IN_RUNNER | REFUSED_PARAMS, found ^ (IN_VLLM | IN_RUNNER | REFUSED_PARAMS)


def test_sampling_metadata_takes_what_we_give():
    from vllm.v1.sample.metadata import SamplingMetadata

    needed = {f.name for f in dataclasses.fields(SamplingMetadata) if f.default is dataclasses.MISSING}
    assert needed == set(
        "temperature all_greedy all_random top_p top_k generators max_num_logprobs no_penalties prompt_token_ids"
        " frequency_penalties presence_penalties repetition_penalties output_token_ids allowed_token_ids_mask"
        " bad_words_token_ids logitsprocs".split()
    )


def test_grammar_masks_have_a_fixed_number_of_rows_per_request():
    from vllm.v1.structured_output import StructuredOutputManager

    source = inspect.getsource(StructuredOutputManager.grammar_bitmask)
    assert "mask_stride = max_num_spec_tokens + (0 if is_diffusion else 1)" in source
    assert "cumulative_index = grammar_idx * mask_stride" in source


def test_kv_specs_take_our_keywords():
    specs = compat.kv_cache_specs(
        block_tokens=64, page_bytes=65536, n_state_parts=3, latent_width=480, mode="align", max_model_len=1024
    )
    assert [spec.page_size_bytes for spec in specs.values()] == [65536] * 4


def test_dspark_ban_is_lifted_once():
    from vllm.config import VllmConfig

    compat.patch()
    first = VllmConfig._get_v1_model_runner_unsupported_features
    compat.patch()
    assert VllmConfig._get_v1_model_runner_unsupported_features is first


def test_registries_point_to_us_and_registering_again_changes_nothing():
    from vllm.model_executor.models import ModelRegistry
    from vllm.renderers.registry import RENDERER_REGISTRY
    from vllm.tokenizers.registry import TokenizerRegistry

    for _ in range(2):
        compat.register()
        for arch in ("KimiK3ForConditionalGeneration", "K3DSparkModel"):
            assert ModelRegistry.models[arch].module_name == "k3_vllm.model"
        assert TokenizerRegistry.load_tokenizer_cls("kimi_k3").__module__ == "k3_vllm.tokenizer"
        assert RENDERER_REGISTRY.load_renderer_cls("kimi_k3").__module__ == "k3_vllm.renderer"


def test_opting_out_leaves_vllm_alone(monkeypatch):
    import k3_vllm

    monkeypatch.setenv("LIBK3_VLLM", "0")
    assert k3_vllm.activate() is None
    monkeypatch.setenv("LIBK3_VLLM", "1")
    assert k3_vllm.activate() == "k3_vllm.platform.K3Platform"
    monkeypatch.setenv("LIBK3_VLLM", "yes")
    with pytest.raises(ValueError, match="LIBK3_VLLM must be 0 or 1"):
        k3_vllm.activate()
