"""Mean accepted length of the C engine beside that of the PyTorch draft, over the same prompts.

    k3 serve models/mini --mode f32 --port 8123 \\
        --speculative-config '{"method":"dspark","model":"models/mini-dspark","num_speculative_tokens":7,
                               "adaptive":false}'
    python compare_draft.py DATA_DIR models/mini models/mini-dspark --url http://127.0.0.1:8123 [--n 24]

The server must have nothing else to do: the figure is read from its counters. Exits with 1 if a task's two
figures are further apart than 0.1.
"""
import argparse, sys
from concurrent.futures import ThreadPoolExecutor
import torch
import draft as draft_module
import evaluate, export
from data import Data
from engine import Engine
from evaluate_server import Server
from suite import Suite

TASKS = ["sum, 3 digits, thinking off", "counting", "sorting", "one tool call", "one of 1 to 6 planted keys, 100",
         "text continuation in chat", "plain text"]


@torch.no_grad()
def main():
    a = argparse.ArgumentParser()
    a.add_argument("data")
    a.add_argument("target")
    a.add_argument("draft")
    a.add_argument("--url", default="http://127.0.0.1:8123")
    a.add_argument("--n", type=int, default=24, help="prompts per task")
    args = a.parse_args()
    data, server, far = Data(args.data, 0), Server(args.url), 0
    w, d = export.load(args.target), export.load(args.draft)
    engine, suite, tables = Engine(w), Suite(data).all(), draft_module.rope_table(4096, "cpu")
    total = [[0, 0], [0, 0]]
    for name in TASKS:
        qs, judge, _ = suite[name]
        qs = qs[:args.n]
        new = 96 if judge is None else max(len(q.answer) for q in qs) + 8
        before = server.counters()
        with ThreadPoolExecutor(16) as pool:
            texts = list(pool.map(lambda q: server.answer(q, new), qs))
        c = [y - x for x, y in zip(before, server.counters())]
        got, taps = evaluate.answers(engine, qs, new, len(qs))
        s = evaluate.draft_stats(w, d, qs, got, taps, tables, [[0, 0] for _ in range(5)])
        plain = lambda t: t.replace("<|end_of_msg|>", "")
        same = sum(plain(data.tok.decode(g)) == plain(t) for (g, _), t in zip(got, texts))
        p = [s["cycles"], s["accepted"]]
        length = [1 + x[1] / x[0] for x in (c, p)]
        total = [[t[0] + x[0], t[1] + x[1]] for t, x in zip(total, (c, p))]
        far += abs(length[0] - length[1]) > 0.1
        print(f"{name:34s} n {len(qs)} same text {same} C {length[0]:.3f} ({c[0]:.0f} cycles) PyTorch {length[1]:.3f} "
              f"({p[0]} cycles)", flush=True)
    print("all", *(f"{who} {1 + t[1] / t[0]:.3f}" for who, t in zip(("C", "PyTorch"), total)))
    sys.exit(far > 0)


if __name__ == "__main__":
    main()
