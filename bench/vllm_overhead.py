#!/usr/bin/env python3
"""What a decode step costs under vLLM beyond libk3's own time, by batch size.

    python bench/vllm_overhead.py models/mini [models/mini-dspark]

Runs in the environment of `make test-vllm` (build/venv-vllm). The engine's clocks are inside the calls,
so both figures of a line come from the same steps; repeated three times, all shown.
"""

import os
import sys
import time

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def main() -> None:
    from vllm import LLM, SamplingParams

    model, draft = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    options = {"speculative_config": {"method": "dspark", "model": draft, "num_speculative_tokens": 7}} if draft else {}
    llm = LLM(model=model, max_model_len=1024, max_num_seqs=8, kv_cache_memory_bytes=1 << 28, **options)
    stats = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.engine.stats
    params = SamplingParams(temperature=0, max_tokens=128, ignore_eos=True)
    print("batch  run  steps  ms/step  of it libk3  ratio")
    for batch in (1, 8):
        prompts = [{"prompt_token_ids": [10 + i, 20, 30]} for i in range(batch)]
        for run in range(4):
            before, start = stats(), time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            wall, after = time.perf_counter() - start, stats()
            steps = after.steps - before.steps
            clocks = ("forward_ns", "commit_ns", "draft_ns")
            inside = sum(getattr(after, name) - getattr(before, name) for name in clocks) / 1e9
            if run:  # the first one warms up
                print(f"{batch:5}  {run:3}  {steps:5}  {1e3 * wall / steps:7.2f}  {1e3 * inside / steps:11.2f}  {wall / inside:5.2f}")
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
