#!/usr/bin/env python3
"""What the server costs and what it gains: its share of a step at one user, and tokens per second by the number of users.

    bench/serve_speed.py [MODEL [DRAFT]]      default models/mini, with and without models/mini-dspark; needs `make build`

Three kinds of client take turns: streams read event by event, which takes processor time from a server on the same machine; streams
that wait in the socket, so that only the server pays for them; whole answers. Share: the answers to one prompt with 1 and with 1 + N
tokens. Their difference in time is N steps as a client sees them, their difference in vllm:engine_seconds the same steps as the engine
sees them, so both figures of a line come from the same steps. The prompt is cached after the first round. Users: so many answers of N
tokens at once.
"""
import concurrent.futures
import json
import os
import socket
import statistics
import sys
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
os.environ.setdefault("TEST_K3_PROGRAM", os.path.join(SOURCE, "build", "release", "bin", "k3"))
os.environ.setdefault("TEST_K3_MODELS", os.path.join(SOURCE, "build", "release", "models"))
os.environ.setdefault("TEST_K3_SOURCE", SOURCE)
sys.path.insert(0, os.path.join(SOURCE, "tests", "http"))

import api  # noqa: E402

N, ROUNDS = 256, 7
# A completion, because a chat ends with its message: what follows is computed, but not shown, and an event that nobody sees costs little.
PATH = "/v1/completions"
BODY = {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}


def read_events(server, body):
    """A client that reads every event when it comes."""
    server.stream(PATH, **body)


def read_late(server, body):
    """A client whose stream waits in its socket until all of it is there: what the server alone pays for streaming."""
    body = json.dumps(dict(body, stream=True)).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 << 20)
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: k3\r\nConnection: close\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        data = b""
        while part := s.recv(1 << 20):
            data += part
        assert b"data: [DONE]" in data


def read_whole(server, body):
    """A client that asks for the whole answer and sleeps until it is there."""
    server.post(PATH, body)


READERS = (read_events, read_late, read_whole)


def timed(server, read, n_tokens):
    """(seconds of the answer, seconds in the engine)"""
    server.wait_idle()
    before = server.metric("engine_seconds_total")
    start = time.perf_counter()
    read(server, dict(BODY, max_tokens=n_tokens))
    wall = time.perf_counter() - start
    server.wait_idle()
    return wall, server.metric("engine_seconds_total") - before


def measure(model, draft):
    name, options = "plain", ["--kimi-policy", "off", "--max-num-seqs", 1]
    if draft:
        name, options = "dspark", options + ["--speculative-config", f'{{"method":"dspark","model":"{draft}"}}']
    with api.serving(*options, model=model) as s:
        timed(s, read_whole, N)
        shares = {read: [] for read in READERS}
        for i in range(ROUNDS):
            for read in READERS:
                short, long = timed(s, read, 1), timed(s, read, 1 + N)
                wall, engine = 1e3 * (long[0] - short[0]) / N, 1e3 * (long[1] - short[1]) / N
                shares[read].append(100 * (wall / engine - 1))
                print(f"{name:6}  {i + 1:5}  {read.__name__:11}  {wall:12.3f}  {engine:12.3f}  {shares[read][-1]:7.2f} %", flush=True)
        for read in READERS:
            print(f"{name:6}  median {read.__name__:38}{statistics.median(shares[read]):7.2f} %")


def together(server, n_users, read):
    """Tokens per second of all users together: as seen by the clients, and by the engine of the time that it works."""
    server.wait_idle()
    before = server.metric("engine_seconds_total")
    with concurrent.futures.ThreadPoolExecutor(n_users) as pool:
        start = time.perf_counter()
        list(pool.map(lambda i: read(server, dict(BODY, prompt=f"Chapter {i}. Once upon a time", max_tokens=N)),
                      range(n_users)))
        seconds = time.perf_counter() - start
    server.wait_idle()
    return n_users * N / seconds, n_users * N / (server.metric("engine_seconds_total") - before)


def measure_users(model):
    with api.serving("--kimi-policy", "off", "--max-num-seqs", 8, model=model) as s:
        together(s, 8, read_whole)
        ratio = {read: [] for read in READERS}
        for i in range(ROUNDS):
            for read in ratio:
                speed = [together(s, n, read) for n in (1, 2, 4, 8)]
                ratio[read].append((speed[-1][0] / speed[0][0], speed[-1][1] / speed[0][1]))
                print(f"{i + 1:5}  {read.__name__:11}  " + "  ".join(f"{v:7.0f}" for v, _ in speed) +
                      "  {:13.2f}  {:13.2f}".format(*ratio[read][-1]), flush=True)
        for read, all_of in ratio.items():
            print(f"median {read.__name__:46}" + "  ".join(f"{statistics.median(r):13.2f}" for r in zip(*all_of)))


def main():
    model = sys.argv[1] if len(sys.argv) > 1 else os.path.join(SOURCE, "models", "mini")
    draft = sys.argv[2] if len(sys.argv) > 2 else os.path.join(SOURCE, "models", "mini-dspark")
    print("mode    round  clients      ms per token  in the engine  server's share")
    measure(model, None)
    if len(sys.argv) != 2:
        measure(model, draft)
    print("\nround  clients       1 user  2 users  4 users  8 users  8 users : 1  in the engine")
    measure_users(model)


if __name__ == "__main__":
    main()
