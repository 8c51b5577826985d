"""K3Platform: tells vLLM how to run on libk3, and refuses what it cannot do.

vLLM asks the platform in every process. Nothing here computes; the class only sets defaults that a
CPU engine with its own KV memory needs (own worker, synchronous scheduling, no compilation) and
answers questions about the device.
"""

import os

import torch
from vllm.platforms.interface import Platform, PlatformEnum

from k3_vllm import compat, lib
from k3_vllm.memory import used_and_available
from k3_vllm.options import engine_options

# Runner V2 of vLLM needs Triton; the scheduler's V1 dialect does not. Both are understood by the
# runner. torch threads would only compete with the engine's own team.
os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
os.environ.setdefault("OMP_NUM_THREADS", "1")


class K3Platform(Platform):
    _enum = PlatformEnum.OOT
    device_name = "cpu"  # vLLM's process groups take it for the name of a torch device
    device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"
    device_control_env_var = "K3_VISIBLE_NODES"
    simple_compile_backend = "eager"

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float32]

    @classmethod
    def import_kernels(cls) -> None:
        """No compiled operation of vLLM is used."""

    @classmethod
    def import_ir_kernels(cls) -> None:
        """As above."""

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return "k3 (CPU)"

    @classmethod
    def get_device_uuid(cls, device_id: int = 0) -> str:
        return f"k3-cpu-{device_id}"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    @classmethod
    def get_current_memory_usage(cls, device=None) -> float:
        return float(used_and_available()[0])

    @classmethod
    def inference_mode(cls):
        return torch.no_grad()

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """There is one device."""

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        torch.manual_seed(seed)

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        return True

    @classmethod
    def update_block_size_for_backend(cls, vllm_config) -> None:
        """The worker decides the block size (see K3Worker.get_kv_cache_spec)."""

    @classmethod
    def check_and_update_config(cls, vllm_config) -> None:
        compat.patch()
        try:
            refuse_unsupported(vllm_config)
            try_to_open(vllm_config)
        except (ValueError, lib.K3Error) as err:
            compat.refuse(err)
        parallel = vllm_config.parallel_config
        if parallel.worker_cls == "auto":
            parallel.worker_cls = "k3_vllm.worker.K3Worker"
        parallel.distributed_executor_backend = _executor(parallel)
        # Snapshot blocks are written after the scheduler has handed them out; that is only safe
        # while it waits for each step (see runner.py).
        vllm_config.scheduler_config.async_scheduling = False
        compat.disable_compilation(vllm_config)

    @classmethod
    def validate_request(cls, processed_inputs, params) -> None:
        compat.validate_request(processed_inputs, params)


def _executor(parallel) -> str:
    """One process without tensor parallelism, else one for each rank."""
    return "mp" if parallel.tensor_parallel_size > 1 else "uni"


# Settings that libk3 has no use for; any value but none is refused. A version of vLLM without one of them is fine.
UNSUPPORTED = {
    "parallel_config.enable_expert_parallel": "--enable-expert-parallel",
    "parallel_config.enable_eplb": "--enable-eplb",
    "parallel_config.enable_dbo": "--enable-dbo",
    "kv_transfer_config": "--kv-transfer-config",
    "ec_transfer_config": "--ec-transfer-config",
    "weight_transfer_config": "--weight-transfer-config",
    "offload_config.uva.cpu_offload_gb": "--cpu-offload-gb",
    "offload_config.prefetch.offload_group_size": "--offload-group-size",
    "attention_config.backend": "--attention-backend",
    "aux_output_config.enable_return_routed_experts": "--enable-return-routed-experts",
    "model_config.hf_overrides": "--hf-overrides",
    "model_config.logits_processors": "--logits-processors",
    "model_config.enable_sleep_mode": "--enable-sleep-mode",
    "model_config.enable_prompt_embeds": "--enable-prompt-embeds",
    "model_config.enable_trace_replay": "--enable-trace-replay",
    "model_config.return_sampling_mask": "--return-sampling-mask",
    "model_config.use_fp64_gumbel": "--use-fp64-gumbel",
    "model_config.multimodal_config.enable_mm_embeds": "--enable-mm-embeds",
    "model_config.multimodal_config.mm_encoder_only": "--mm-encoder-only",
    "cache_config.prefix_match_unit": "--prefix-match-unit",
    "cache_config.use_replayssm": "--use-replayssm",
    "speculative_config.enable_adaptive_verification": "adaptive verification",
}

# Settings of which only these values are understood.
ALLOWED = {
    "model_config.runner_type": ("--runner", ("generate",)),
    "load_config.load_format": ("--load-format", ("auto", "safetensors")),
    "cache_config.cache_dtype": ("--kv-cache-dtype", ("auto", "bfloat16")),
    "cache_config.mamba_cache_dtype": ("--mamba-cache-dtype", ("auto", "float32")),
    "cache_config.mamba_ssm_cache_dtype": ("--mamba-ssm-cache-dtype", ("auto", "float32")),
    "cache_config.mamba_cache_mode": ("--mamba-cache-mode", ("none", "align")),
    "model_config.dtype": ("--dtype", (torch.bfloat16, torch.float32)),
    "parallel_config.nnodes": ("--nnodes", (1,)),
    "parallel_config.pipeline_parallel_size": ("--pipeline-parallel-size", (1,)),
    "parallel_config.data_parallel_size": ("--data-parallel-size", (1,)),
    "parallel_config.decode_context_parallel_size": ("--decode-context-parallel-size", (1,)),
    "parallel_config.prefill_context_parallel_size": ("--prefill-context-parallel-size", (1,)),
    "speculative_config.method": ("speculative method", ("dspark",)),
    "speculative_config.num_speculative_tokens": ("num_speculative_tokens", tuple(range(1, 17))),
    "speculative_config.draft_sample_method": ("draft_sample_method", ("greedy",)),
    "speculative_config.rejection_sample_method": ("rejection_sample_method", ("standard",)),
}


def refuse_unsupported(vllm_config) -> None:
    """Raises one clear sentence for the first option that the plugin cannot honour."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    if model is None:
        return
    arch = model.architectures[0] if model.architectures else "?"
    if arch not in compat.ARCHITECTURES:
        raise ValueError(f"k3-vllm does not support architecture {arch} (only {', '.join(compat.ARCHITECTURES)})")
    for path, name in UNSUPPORTED.items():
        if _setting(vllm_config, path):
            raise ValueError(f"k3-vllm does not support {name}")
    for path, (name, allowed) in ALLOWED.items():
        value = _setting(vllm_config, path)
        if value is not None and value not in allowed:
            values = f"{allowed[0]} to {allowed[-1]}" if len(allowed) > 2 else " or ".join(map(str, allowed))
            raise ValueError(f"k3-vllm does not support {name} {value} (only {values})")
    if parallel.distributed_executor_backend not in (None, _executor(parallel)):
        raise ValueError(
            f"k3-vllm does not support --distributed-executor-backend {parallel.distributed_executor_backend}"
            f" with --tensor-parallel-size {parallel.tensor_parallel_size} (only {_executor(parallel)})"
        )


def _setting(config, path: str):
    for name in path.split("."):
        config = getattr(config, name, None)
    return config


def try_to_open(vllm_config) -> None:
    """Opens the checkpoint once, before vLLM starts processes: it reads only headers, and a missing library or a
    damaged file is told in one sentence here instead of by every process that waits for the others."""
    if vllm_config.model_config is not None:
        lib.Engine(engine_options(vllm_config, 0)).close()
