"""vLLM's configuration -> the options of k3_open."""

import os

import torch

# Keys of --additional-config that go to k3_open as they are; the rest of its options follow from vLLM's.
ADDITIONAL = ("threads", "fixed_threads", "cpus", "split", "isa", "aux_hidden_stream", "latent_norm_eps", "image_cache_bytes")
MAX_IMAGE_ROWS = 16896  # the size rule gives 16,830 at most


def engine_options(vllm_config, rank: int) -> dict:
    spec, model, scheduler = vllm_config.speculative_config, vllm_config.model_config, vllm_config.scheduler_config
    n_ranks = vllm_config.parallel_config.tensor_parallel_size
    extra = dict(vllm_config.additional_config or {})
    unknown = [key for key in extra if key not in ADDITIONAL]
    if unknown:
        raise ValueError(f"--additional-config: unknown key {unknown[0]!r} (known: {', '.join(ADDITIONAL)})")
    if "image_cache_bytes" not in extra:
        # float32 rows for all of vLLM's own encoder cache, twice: what it drops is freed a step later.
        rows = max(scheduler.encoder_cache_size, MAX_IMAGE_ROWS)
        extra["image_cache_bytes"] = 2 * rows * model.get_hidden_size() * 4
    return {
        "model": _local_dir(model, vllm_config.load_config),
        "draft": _local_dir(spec.draft_model_config, vllm_config.load_config) if spec else None,
        "mode": "f32" if model.dtype == torch.float32 else "bf16",
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_model_len": model.max_model_len,
        "num_speculative_tokens": spec.num_speculative_tokens if spec else 0,
        "tp_rank": rank,
        "tp_size": n_ranks,
        **_own_share(extra, rank, n_ranks),
    }


def _own_share(extra: dict, rank: int, n_ranks: int) -> dict:
    """The options of one rank: the CPUs are divided among the ranks, all of which run on this machine."""
    if n_ranks == 1:
        return extra
    cpus = extra.get("cpus")
    if isinstance(cpus, list) and cpus:
        if len(cpus) < n_ranks:
            raise ValueError(f"--additional-config: {len(cpus)} cpus for {n_ranks} ranks")
        return {**extra, "cpus": cpus[rank * len(cpus) // n_ranks : (rank + 1) * len(cpus) // n_ranks]}
    threads = extra.get("threads") or max(1, len(os.sched_getaffinity(0)) // n_ranks)
    return {**extra, "threads": threads}


def _local_dir(model_config, load_config) -> str:
    if os.path.isdir(model_config.model):
        return os.path.abspath(model_config.model)
    from huggingface_hub import snapshot_download

    return snapshot_download(model_config.model, revision=model_config.revision, cache_dir=load_config.download_dir)
