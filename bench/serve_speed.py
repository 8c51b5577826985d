#!/usr/bin/env python3
"""What the server costs and what it gains: its share of a step at one user, and tokens per second by the number of users.

    bench/serve_speed.py [MODEL [DRAFT]]      default models/mini, with and without models/mini-dspark; needs `make build`

Share: the answers to one prompt with 1 and with 1 + N tokens are streamed in turns. Their difference in time is N steps as a client
sees them, their difference in vllm:engine_seconds the same steps as the engine sees them, so both figures of a line come from the
same steps. The prompt is cached after the first round. Users: so many streams of N tokens at once, in turns as well.
"""
import concurrent.futures
import os
import sys
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
os.environ.setdefault("TEST_K3_PROGRAM", os.path.join(SOURCE, "build", "release", "bin", "k3"))
os.environ.setdefault("TEST_K3_MODELS", os.path.join(SOURCE, "build", "release", "models"))
os.environ.setdefault("TEST_K3_SOURCE", SOURCE)
sys.path.insert(0, os.path.join(SOURCE, "tests", "http"))

import api  # noqa: E402

N, ROUNDS = 256, 7
BODY = {"messages": [{"role": "user", "content": "Tell me a long story about a lighthouse."}], "temperature": 0, "ignore_eos": True}


def timed(server, n_tokens):
    """(seconds of the answer, seconds in the engine)"""
    server.wait_idle()
    before = server.metric("engine_seconds_total")
    start = time.perf_counter()
    server.stream(**BODY, max_tokens=n_tokens)
    wall = time.perf_counter() - start
    server.wait_idle()
    return wall, server.metric("engine_seconds_total") - before


def measure(model, draft):
    options = ["--kimi-policy", "off", "--max-num-seqs", 1]
    if draft:
        options += ["--speculative-config", f'{{"method":"dspark","model":"{draft}"}}']
    with api.serving(*options, model=model) as s:
        timed(s, N)
        for i in range(ROUNDS):
            short, long = timed(s, 1), timed(s, 1 + N)
            wall, engine = 1e3 * (long[0] - short[0]) / N, 1e3 * (long[1] - short[1]) / N
            print(f"{'dspark' if draft else 'plain':6}  {i + 1:5}  {wall:12.3f}  {engine:12.3f}  {100 * (wall / engine - 1):7.2f} %", flush=True)


def together(server, n_users):
    """Tokens per second of all users together."""
    with concurrent.futures.ThreadPoolExecutor(n_users) as pool:
        start = time.perf_counter()
        list(pool.map(lambda i: server.stream(**dict(BODY, messages=[{"role": "user", "content": f"Story {i}"}]), max_tokens=N),
                      range(n_users)))
        return n_users * N / (time.perf_counter() - start)


def measure_users(model):
    with api.serving("--kimi-policy", "off", "--max-num-seqs", 8, model=model) as s:
        together(s, 8)
        for i in range(ROUNDS):
            speed = [together(s, n) for n in (1, 2, 4, 8)]
            print(f"{i + 1:5}  " + "  ".join(f"{v:7.0f}" for v in speed) + f"  {speed[-1] / speed[0]:13.2f}", flush=True)


def main():
    model = sys.argv[1] if len(sys.argv) > 1 else os.path.join(SOURCE, "models", "mini")
    draft = sys.argv[2] if len(sys.argv) > 2 else os.path.join(SOURCE, "models", "mini-dspark")
    print("mode    round  ms per token  in the engine  server's share")
    measure(model, None)
    if len(sys.argv) != 2:
        measure(model, draft)
    print("\nround  1 user  2 users  4 users  8 users  8 users : 1")
    measure_users(model)


if __name__ == "__main__":
    main()
