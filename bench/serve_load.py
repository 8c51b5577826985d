#!/usr/bin/env python3
"""Ten minutes of the load of tests/http/load.py against a server with speculation and a pool that is too small: every answer equal
to the one the request gets alone, memory over time on standard output. Fails if an answer is wrong or memory grows: the heap of the
idle server between the first third of the time and the end, or the resident memory by the line through its samples after that third.

    bench/serve_load.py [SECONDS] [SEED] [CLIENTS]      needs `make build`, and `ctest --test-dir build/release -R make_api_model` once
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(HERE)
BUILD = os.path.join(SOURCE, "build", "release")
os.environ.setdefault("TEST_K3_PROGRAM", os.path.join(BUILD, "bin", "k3"))
os.environ.setdefault("TEST_K3_MODELS", os.path.join(BUILD, "models"))
os.environ.setdefault("TEST_K3_SOURCE", SOURCE)
sys.path.insert(0, os.path.join(SOURCE, "tests", "http"))

import load  # noqa: E402

# The prefix index and the table of pictures have not the same contents both times.
MOST_HEAP_KIB = 512
# Freed memory that the C library keeps in its arenas, and pages of the pool touched for the first time.
MOST_KIB_A_MINUTE = 1024


def main():
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 600
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    if len(sys.argv) > 3:
        load.CLIENTS = int(sys.argv[3])
    run = load.Load(seed, 64)
    run.learn()
    print("seconds  resident_KiB  answers")
    run.run(seconds, 1, lambda t, kib, n: print(f"{t:7.0f}  {kib:12d}  {n:7d}", flush=True))
    print(f"{run.n_answers} answers of {load.CLIENTS} clients, {len(run.wrong)} unlike the solo run, {run.n_left} clients hung up, "
          f"{run.preempted:.0f} preemptions, {run.drafted:.0f} draft tokens, {run.errors:.0f} errors; "
          f"after the first third: heap of the idle server {run.heap_growth_kib:+.0f} KiB (of {run.heap_kib:.0f}), resident memory "
          f"{run.growth_kib():+d} KiB, {run.slope():+.0f} KiB a minute")
    for i, got, want in run.wrong[:3]:
        print(f"request {i}\n  got  {got}\n  want {want}")
    grows = run.heap_growth_kib > MOST_HEAP_KIB or run.slope() > MOST_KIB_A_MINUTE
    if grows:
        print(f"memory grows: at most {MOST_HEAP_KIB} KiB of heap and {MOST_KIB_A_MINUTE} KiB a minute are expected")
    return 1 if run.wrong or run.errors or grows else 0


if __name__ == "__main__":
    sys.exit(main())
