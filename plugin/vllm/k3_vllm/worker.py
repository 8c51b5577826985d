"""K3Worker: opens the checkpoint in libk3, answers for its KV memory, runs steps."""

import logging

import torch
from vllm.logger import init_logger
from vllm.v1.worker.worker_base import CompilationTimes, WorkerBase

from k3_vllm import compat, lib
from k3_vllm.memory import used_and_available
from k3_vllm.options import engine_options
from k3_vllm.runner import K3Runner

logger = init_logger(__name__)

LOG_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
MAX_STATE_PARTS = 4  # pages that one KDA snapshot may be spread over
PAGE_ALIGN = 4096


class K3Worker(WorkerBase):
    engine: lib.Engine | None = None
    model_runner: K3Runner | None = None

    # ---- start

    def init_device(self) -> None:
        torch.set_num_threads(1)  # the engine has its own team; torch only samples
        self.device = torch.device("cpu")
        if self._n_ranks > 1:
            compat.init_ranks(self.parallel_config, self.rank, self.local_rank, self.distributed_init_method)

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        if load_dummy_weights:
            raise ValueError("k3-vllm reads the checkpoint in place, it has no dummy weights")
        self.engine = lib.Engine(engine_options(self.vllm_config, self.rank), log=_log)
        info = self.engine.info
        if self._n_ranks > 1:
            self.engine.set_collective(compat.gather_ranks)
        logger.info(
            "libk3: %.1f GB of weights mapped, kernels %s, mode %s, %d threads",
            info.weight_bytes / 1e9, info.isa.decode(), info.mode.decode(), info.threads,
        )

    @property
    def _n_ranks(self) -> int:
        return self.parallel_config.tensor_parallel_size

    # ---- KV memory

    def get_kv_cache_spec(self) -> dict:
        info, cache = self.engine.info, self.cache_config
        latent, state = info.latent_bytes_per_token, info.state_bytes
        if cache.user_specified_block_size:
            self.block_tokens = cache.block_size
        else:  # as many tokens as make a page of latents as large as a part of a snapshot
            self.block_tokens = _round_up(-(-state // (MAX_STATE_PARTS * latent)), 128)
        caching = cache.enable_prefix_caching
        self.n_parts = min(MAX_STATE_PARTS, -(-state // (self.block_tokens * latent))) if caching else 1
        part = -(-state // self.n_parts) if caching else 0  # without caching there are no snapshots
        self.page_bytes = _round_up(max(self.block_tokens * latent, part), PAGE_ALIGN)
        return compat.kv_cache_specs(
            block_tokens=self.block_tokens, page_bytes=self.page_bytes, n_state_parts=self.n_parts,
            latent_width=latent // 2, mode="align" if caching else "none",
            max_model_len=self.model_config.max_model_len,
        )

    def determine_available_memory(self) -> int:
        """Bytes of the pool: as asked for, else a share of the free memory beside the weights.

        The pool is mapped lazily: pages that no request ever uses cost nothing.
        """
        if self.cache_config.kv_cache_memory_bytes is not None:
            return self.cache_config.kv_cache_memory_bytes
        free = used_and_available()[1]
        beside_weights = max(free - self.engine.info.weight_bytes, free / 4)
        return int(beside_weights * self.cache_config.gpu_memory_utilization / self._n_ranks)

    def get_supported_kv_cache_layouts(self) -> list[str]:
        return ["LBNHC"]

    def set_kv_cache_layout(self, *_args, **_kwargs) -> None:
        """The engine lays out its own pages."""

    def initialize_from_config(self, kv_cache_config) -> None:
        config = kv_cache_config[0] if isinstance(kv_cache_config, list) else kv_cache_config
        names = [group.layer_names for group in config.kv_cache_groups]
        latent = names.index(["k3.latents"])
        parts = [names.index([f"k3.state.{i}"]) for i in range(self.n_parts)]
        if self.engine is None or len(names) != 1 + self.n_parts:
            raise RuntimeError(f"vLLM grouped the KV layers as {names}, expected one layer per group")
        caching = self.cache_config.enable_prefix_caching
        layout = self.engine.kv_init(
            lib.KvConfig(
                num_blocks=config.num_blocks, block_tokens=self.block_tokens,
                n_slots=self.scheduler_config.max_num_seqs, page_bytes=self.page_bytes,
            )
        )
        if caching and layout.snapshot_blocks != self.n_parts:
            raise RuntimeError(f"a snapshot takes {layout.snapshot_blocks} pages, planned {self.n_parts}")
        logger.info(
            "libk3: %d KV blocks of %d tokens, %d bytes each; %d slots of %d bytes",
            config.num_blocks, self.block_tokens, layout.page_bytes,
            self.scheduler_config.max_num_seqs, layout.slot_bytes // self.scheduler_config.max_num_seqs,
        )
        self.model_runner = K3Runner(
            self.engine, self.vllm_config, self.block_tokens, latent, parts if caching else []
        )

    def update_max_model_len(self, max_model_len: int) -> None:
        self.model_config.max_model_len = max_model_len

    def compile_or_warm_up_model(self) -> CompilationTimes:
        return CompilationTimes(language_model=0.0, encoder=0.0)

    # ---- steps

    def execute_model(self, scheduler_output):
        return self.model_runner.execute_model(scheduler_output)

    def sample_tokens(self, grammar_output):
        return self.model_runner.sample_tokens(grammar_output)

    def take_draft_token_ids(self):
        return self.model_runner.take_draft_token_ids()

    def execute_dummy_batch(self) -> None:
        """Only data parallel ranks need one, and those are refused."""

    # ---- questions and upkeep

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def get_model(self):
        raise NotImplementedError("the model lives in libk3; there is no torch module")

    def get_cache_block_size_bytes(self) -> int:
        return self.page_bytes

    def supports_draft_weight_updates(self) -> bool:
        return False

    def reset_mm_cache(self) -> None:
        """Processor outputs are not kept here."""

    def reset_encoder_cache(self) -> None:
        self.model_runner.reset_images()

    def synchronize_device(self) -> None:
        """Every call is synchronous."""

    def profile(self, is_start: bool = True, *_args, **_kwargs) -> None:
        """Logs the engine's own clocks; there is no trace file."""
        s = self.engine.stats()
        logger.info(
            "libk3: %d steps, %d rows, %d of %d drafts kept; forward %.3f s, commit %.3f s, draft %.3f s, images %.3f s",
            s.steps, s.rows, s.spec_accepted, s.spec_rows,
            s.forward_ns / 1e9, s.commit_ns / 1e9, s.draft_ns / 1e9, s.image_ns / 1e9,
        )

    def list_loras(self) -> set[int]:
        return set()

    def add_lora(self, lora_request) -> bool:
        raise ValueError("k3-vllm does not support LoRA")

    def remove_lora(self, lora_id: int) -> bool:
        return self.add_lora(lora_id)

    def pin_lora(self, lora_id: int) -> bool:
        return self.add_lora(lora_id)

    def shutdown(self) -> None:
        if self.engine is not None:
            self.engine.close()
            self.engine = None


def _log(level: int, text: str) -> None:
    logger.log(LOG_LEVELS[min(max(level, 0), 3)], "libk3: %s", text)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
