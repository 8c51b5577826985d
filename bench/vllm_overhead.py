#!/usr/bin/env python3
"""A step under vLLM beside a step of `k3 serve`: same model, same requests, same batch, one run.

    build/venv-vllm/bin/python bench/vllm_overhead.py models/mini [models/mini-dspark] [--batch 8] [--rounds 15]

The environment is that of `make test-vllm`. Both take turns, round by round, with one request of `batch` prompts each; the
one that waits sleeps. A step of `k3 serve` is what its client sees, HTTP included; vLLM runs in this process
(`LLM.generate`), so everything it does for a step is in the figure. It is split into

    libk3      inside k3_forward, k3_commit and k3_draft (the library's own clocks)
    plugin     the rest of K3Worker's calls: this project's Python
    scheduler  the rest of vLLM's engine core: scheduling, KV accounting
    output     everything else: vLLM's detokenization and results (`vllm serve` does that in another process)

Ratios are medians over rounds of figures measured next to each other.
"""

import argparse
import json
import os
import pathlib
import re
import socket
import statistics
import subprocess
import time
import urllib.request

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
K3 = pathlib.Path(__file__).resolve().parent.parent / "build/release/bin/k3"
WORKER_CALLS = ("execute_model", "sample_tokens", "take_draft_token_ids")


class Own:
    """`k3 serve` and its one client."""

    def __init__(self, model: str, draft: dict | None, batch: int):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        command = [os.environ.get("K3", str(K3)), "serve", model, "--port", self.url.rsplit(":", 1)[1],
                   "--max-model-len", "1024", "--max-num-seqs", str(batch)]  # fmt: skip
        if draft:
            command += ["--speculative-config", json.dumps({**draft, "adaptive": False})]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(300):
            try:
                self.steps()
                return
            except OSError:
                time.sleep(0.1)
        raise SystemExit("k3 serve did not start")

    def steps(self) -> int:
        with urllib.request.urlopen(self.url + "/metrics") as answer:
            return int(float(re.search(r"^vllm:iteration_tokens_total_count.* (\S+)$", answer.read().decode(), re.M)[1]))

    def round(self, prompts, n: int) -> float:
        """Seconds per step."""
        body = {"model": self.model(), "prompt": prompts, "max_tokens": n, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(
            self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        before, start = self.steps(), time.perf_counter()
        with urllib.request.urlopen(request) as answer:
            self.texts = [choice["text"] for choice in json.load(answer)["choices"]]
        return (time.perf_counter() - start) / (self.steps() - before)

    def model(self) -> str:
        with urllib.request.urlopen(self.url + "/v1/models") as answer:
            return json.load(answer)["data"][0]["id"]


class Vllm:
    def __init__(self, model: str, draft: dict | None, batch: int):
        from vllm import LLM

        self.llm = LLM(
            model=model, max_model_len=1024, max_num_seqs=batch, kv_cache_memory_bytes=1 << 28,
            speculative_config=draft,
        )  # fmt: skip
        worker = self.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
        self.stats = worker.engine.stats
        self.in_worker = self.in_core = 0.0
        for name in WORKER_CALLS:
            self._time(worker, name, "in_worker")
        self._time(self.llm.llm_engine.engine_core, "get_output", "in_core")

    def _time(self, owner, name: str, sum_name: str) -> None:
        """From now on the time in owner.name() is added to the attribute `sum_name`."""
        call = getattr(owner, name)

        def timed(*args):
            start = time.perf_counter()
            try:
                return call(*args)
            finally:
                setattr(self, sum_name, getattr(self, sum_name) + time.perf_counter() - start)

        setattr(owner, name, timed)

    def round(self, prompts, n: int) -> tuple[float, ...]:
        """Seconds per step: in libk3, in the plugin, in the scheduler, in the rest."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=n, ignore_eos=True)
        self.in_worker = self.in_core = 0.0
        before, start = self.stats(), time.perf_counter()
        outputs = self.llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        wall, after = time.perf_counter() - start, self.stats()
        self.texts = [output.outputs[0].text for output in outputs]
        steps = after.steps - before.steps
        clocks = ("forward_ns", "commit_ns", "draft_ns")
        inside = sum(getattr(after, name) - getattr(before, name) for name in clocks) / 1e9
        parts = inside, self.in_worker - inside, self.in_core - self.in_worker, wall - self.in_core
        return tuple(part / steps for part in parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("draft", nargs="?")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=128)
    args = parser.parse_args()
    draft = {"method": "dspark", "model": args.draft, "num_speculative_tokens": 7} if args.draft else None
    prompts = [[10 + i, 20, 30] for i in range(args.batch)]
    vllm, own = Vllm(args.model, draft, args.batch), Own(args.model, draft, args.batch)
    rows = []
    try:
        for i in range(args.rounds + 2):  # two warm up
            first = own.round(prompts, args.tokens) if i % 2 else None
            parts = vllm.round(prompts, args.tokens)
            rows.append((first or own.round(prompts, args.tokens), *parts))
            assert own.texts == vllm.texts, "the two give different answers"
    finally:
        own.process.terminate()
        vllm.llm.llm_engine.engine_core.shutdown()
    del rows[:2]
    ms = [1e3 * statistics.median(column) for column in zip(*rows)]
    with_drafts = ", with drafts" if draft else ""
    print(f"batch {args.batch}, {len(rows)} rounds of {args.tokens} tokens{with_drafts}; ms per step, medians:")
    print("k3 serve {:.3f}; vLLM: libk3 {:.3f}, plugin {:.3f}, scheduler {:.3f}, output {:.3f}".format(*ms))
    for name, n_parts in (
        ("libk3", 1), ("libk3 + plugin", 2), ("libk3 + plugin + scheduler", 3), ("all of vLLM", 4),
    ):  # fmt: skip
        ratios = sorted(sum(row[1 : 1 + n_parts]) / row[0] for row in rows)
        print(f"{name} / k3 serve: {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})")


if __name__ == "__main__":
    main()
