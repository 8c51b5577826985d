"""K3Platform: tells vLLM how to run on libk3, and refuses what it cannot do.

vLLM asks the platform in every process. Nothing here computes; the class only sets defaults that a
CPU engine with its own KV memory needs (own worker, synchronous scheduling, no compilation) and
answers questions about the device.
"""

import os

import torch
from vllm.logger import init_logger
from vllm.platforms.interface import Platform, PlatformEnum

from k3_vllm import compat

logger = init_logger(__name__)

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
        return float(get_available_memory()[0])

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
        refuse_unsupported(vllm_config)
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


def get_available_memory() -> tuple[int, int]:
    """(used, available) bytes of this machine."""
    with open("/proc/meminfo") as meminfo:
        values = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in meminfo}
    return values["MemTotal"] - values["MemAvailable"], values["MemAvailable"]


def refuse_unsupported(vllm_config) -> None:
    """Raises one clear sentence for the first option that the plugin cannot honour."""
    model, parallel, cache = vllm_config.model_config, vllm_config.parallel_config, vllm_config.cache_config
    spec = vllm_config.speculative_config
    if model is None:
        return
    arch = model.architectures[0] if model.architectures else "?"
    reasons = [
        (arch not in compat.ARCHITECTURES, f"architecture {arch} (only {', '.join(compat.ARCHITECTURES)})"),
        (model.runner_type != "generate", f"--runner {model.runner_type}"),
        (parallel.pipeline_parallel_size > 1, "--pipeline-parallel-size above 1"),
        (getattr(parallel, "nnodes", 1) > 1, "--nnodes above 1"),
        (
            parallel.distributed_executor_backend not in (None, _executor(parallel)),
            f"--distributed-executor-backend {parallel.distributed_executor_backend}"
            f" with --tensor-parallel-size {parallel.tensor_parallel_size} (only {_executor(parallel)})",
        ),
        (parallel.data_parallel_size > 1, "--data-parallel-size above 1"),
        (getattr(parallel, "decode_context_parallel_size", 1) > 1, "--decode-context-parallel-size above 1"),
        (getattr(parallel, "prefill_context_parallel_size", 1) > 1, "--prefill-context-parallel-size above 1"),
        (getattr(parallel, "enable_expert_parallel", False), "--enable-expert-parallel"),
        (getattr(parallel, "enable_dbo", False), "--enable-dbo"),
        (vllm_config.kv_transfer_config is not None, "--kv-transfer-config"),
        (getattr(vllm_config, "ec_transfer_config", None) is not None, "--ec-transfer-config"),
        (bool(model.logits_processors), "--logits-processors"),
        (model.enable_sleep_mode, "--enable-sleep-mode"),
        (getattr(model, "enable_prompt_embeds", False), "--enable-prompt-embeds"),
        (getattr(cache, "prefix_match_unit", None) is not None, "--prefix-match-unit"),
        (cache.cache_dtype not in ("auto", "bfloat16"), f"--kv-cache-dtype {cache.cache_dtype}"),
        (cache.mamba_cache_mode not in ("none", "align"), f"--mamba-cache-mode {cache.mamba_cache_mode}"),
        (model.dtype not in (torch.bfloat16, torch.float32), f"--dtype {model.dtype}"),
        (spec is not None and spec.method != "dspark", f"speculative method {getattr(spec, 'method', None)!r} (only 'dspark')"),
        (
            spec is not None and not 1 <= spec.num_speculative_tokens <= 16,
            f"num_speculative_tokens {getattr(spec, 'num_speculative_tokens', None)} (1 to 16)",
        ),
        (spec is not None and bool(getattr(spec, "enable_adaptive_verification", False)), "adaptive verification"),
        (getattr(spec, "draft_sample_method", "greedy") != "greedy", "draft_sample_method other than 'greedy'"),
        (
            getattr(spec, "rejection_sample_method", "standard") != "standard",
            "rejection_sample_method other than 'standard'",
        ),
    ]
    for wrong, name in reasons:
        if wrong:
            raise ValueError(f"k3-vllm does not support {name}")
