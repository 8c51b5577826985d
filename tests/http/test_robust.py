#!/usr/bin/env python3
"""The server under people who are many, slow, rude or gone: disconnects, half requests, floods, a full queue, SIGTERM, a
poisoned model. test_load.py has the load."""
import concurrent.futures
import json
import os
import random
import resource
import signal
import socket
import threading
import time
import unittest

import api


def user(text):
    return [{"role": "user", "content": text}]


HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def raw(server, data, read=True, timeout=30):
    """Sends bytes, returns everything that comes back until the server closes."""
    s = socket.create_connection(("127.0.0.1", server.port), timeout=timeout)
    out = b""
    try:
        s.sendall(data)
        if read == "eof":
            s.shutdown(socket.SHUT_WR)
        while read:
            piece = s.recv(65536)
            if not piece:
                break
            out += piece
        return out
    except (ConnectionResetError, BrokenPipeError, OSError) as e:
        if isinstance(e, TimeoutError):
            raise  # the server neither answers nor closes
        return out
    finally:
        s.close()


def post_head(path, n, extra=""):
    return (f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {n}\r\n{extra}\r\n").encode()


class Rude(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = api.Server("--max-num-seqs", 2, "--max-waiting", 3, "--idle-timeout", 3)

    @classmethod
    def tearDownClass(cls):
        assert cls.s.stop() == 0

    def tearDown(self):
        self.s.wait_idle()
        self.assertEqual(self.s.ask("x", max_tokens=2, seed=1)["usage"]["completion_tokens"], 2)  # still well

    def test_disconnect_stops_generation(self):
        for stream in (True, False):
            body = json.dumps({"messages": user("x"), "stream": stream, "max_tokens": 20000}).encode()
            c = socket.create_connection(("127.0.0.1", self.s.port))
            c.sendall(post_head("/v1/chat/completions", len(body)) + body)
            while self.s.metric("num_requests_running") == 0:
                time.sleep(0.01)
            before = self.s.metric("request_success_total", finished_reason="abort")
            c.close()
            self.s.wait_idle(60)  # 20,000 tokens would take longer
            self.assertEqual(self.s.metric("request_success_total", finished_reason="abort"), before + 1)

    def test_slow_reader_holds_up_nobody(self):
        body = json.dumps({"messages": user("x"), "stream": True, "max_tokens": 3000, "logprobs": True, "top_logprobs": 20,
                           "temperature": 0}).encode()
        c = socket.socket()
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.connect(("127.0.0.1", self.s.port))
        c.sendall(post_head("/v1/chat/completions", len(body)) + body)
        c.recv(100)
        for i in range(5):
            self.assertEqual(self.s.ask("y", max_tokens=3)["usage"]["completion_tokens"], 3)
        c.close()

    def test_half_requests(self):
        for data in (b"", b"P", b"POST /v1/chat/completions HTTP/1.1\r\n", post_head("/v1/chat/completions", 100) + b"{",
                     post_head("/v1/chat/completions", 5)):
            self.assertNotIn(b" 200 ", raw(self.s, data, read="eof", timeout=15))
        quiet = [socket.create_connection(("127.0.0.1", self.s.port)) for _ in range(20)]
        time.sleep(4.5)  # longer than --idle-timeout
        for c in quiet:
            c.settimeout(5)
            self.assertEqual(c.recv(10), b"")
            c.close()

    def test_dripping_requests(self):
        """A byte now and then is never idle, and is closed all the same."""
        for data in (b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 1000,
                     post_head("/v1/chat/completions", 1000) + b" " * 999):
            c = socket.create_connection(("127.0.0.1", self.s.port), timeout=30)
            sent = 0
            try:
                for _ in range(200):  # twice the idle timeout is 6 s
                    sent += c.send(data[sent:sent + 1])
                    time.sleep(0.25)
                self.fail("the server waits for ever")
            except (ConnectionResetError, BrokenPipeError):
                self.assertGreater(sent, 13)  # longer than the idle timeout
            finally:
                c.close()
        c = self.s.connect()  # an answer may take longer than a request
        for tokens in (1, 50 if api.QUICK else 700):
            status, _, data = self.s.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": tokens, "ignore_eos": True}, connection=c)
            self.assertEqual((status, json.loads(data)["usage"]["completion_tokens"]), (200, tokens))
        c.close()

    def test_half_closed(self):
        """A request and the end of input in one packet: answered, and not kept as if more could come."""
        with api.serving("--idle-timeout", 3600) as s:
            for data, n in ((HEALTH, 1), (HEALTH * 3, 3), (HEALTH[:20], 0)):
                self.assertEqual(raw(s, data, read="eof").count(b" 200 OK"), n)

    def test_not_http(self):
        rng = random.Random(1)
        for _ in range(60):
            data = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 400)))
            raw(self.s, data + b"\r\n\r\n", read="eof", timeout=10)
        good = json.dumps({"messages": user("x"), "max_tokens": 1}).encode()
        message = post_head("/v1/chat/completions", len(good)) + good
        for _ in range(60):  # a valid request with a few bytes changed
            data = bytearray(message)
            for _ in range(rng.randrange(1, 6)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            raw(self.s, bytes(data), read="eof", timeout=10)

    def test_large_heads(self):
        out = raw(self.s, b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100000 + b"\r\n\r\n", read="eof")
        self.assertNotIn(b" 200 ", out)
        out = raw(self.s, b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", read="eof")
        self.assertNotIn(b" 200 ", out)

    def test_two_lengths(self):
        """A request whose end is uncertain is the last of its connection: what follows may be part of it."""
        for method in ("POST", "GET"):
            for extra, body in (("Transfer-Encoding: chunked\r\n", b"0\r\n\r\n"), ("Content-Length: 40\r\n", b"{}")):
                path = "/v1/chat/completions" if method == "POST" else "/health"
                out = raw(self.s, post_head(path, 2, extra).replace(b"POST", method.encode()) + body + HEALTH, read="eof")
                self.assertEqual((out.count(b"HTTP/1.1 "), out.count(b"HTTP/1.1 400 ")), (1, 1), out)
        same = post_head("/tokenize", 14, "Content-Length: 14\r\n") + b'{"prompt":"x"}'
        self.assertEqual(raw(self.s, same + HEALTH, read="eof").count(b"HTTP/1.1 200 "), 2)

    def test_full_queue(self):
        def one(i):
            status, headers, data = self.s.request("POST", "/v1/chat/completions",
                                                   {"messages": user(f"{i}"), "max_tokens": 300, "temperature": 0})
            return status, headers.get("Retry-After"), json.loads(data)
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            got = list(pool.map(one, range(24)))
        refused = [g for g in got if g[0] == 429]
        self.assertTrue(refused)
        self.assertEqual({g[0] for g in got}, {200, 429})
        self.assertEqual(refused[0][1], "1")
        self.assertEqual(refused[0][2]["error"]["type"], "rate_limit_reached_error")

    def test_pipelining(self):
        self.assertEqual(raw(self.s, HEALTH * 20, read="eof").count(b"HTTP/1.1 200"), 20)


class Crowd(unittest.TestCase):
    def test_10000_connections(self):
        """A third silent, a third in the middle of a request, a third kept alive; a real client is served among them."""
        n = 1000 if api.QUICK else 10000
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < n + 500:
            print(f"NOT RUN: {n} connections: {hard} open files are allowed here")
            self.skipTest("few open files")
        held = []
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            with api.serving("--idle-timeout", 3600, *api.SPECULATE) as s:
                stream = threading.Thread(target=lambda: s.stream(messages=user("long"), max_tokens=50 if api.QUICK else 1500, temperature=0))
                stream.start()
                for i in range(n):
                    c = socket.create_connection(("127.0.0.1", s.port), timeout=30)
                    held.append(c)
                    if i % 3 == 1:
                        c.sendall(post_head("/v1/chat/completions", 100)[:-9 - i % 40] if i % 2 else
                                  post_head("/v1/chat/completions", 100) + b'{"messages":')
                    elif i % 3 == 2:
                        c.sendall(HEALTH)
                        self.assertIn(b" 200 ", c.recv(1000))
                self.assertEqual(s.ask("x", max_tokens=2)["usage"]["completion_tokens"], 2)
                self.assertTrue(api.merge(s.stream(messages=user("x"), max_tokens=20, temperature=0))[0]["reasoning_content"])
                for c in held[2::300]:  # kept alive indeed
                    c.sendall(HEALTH)
                    self.assertIn(b" 200 ", c.recv(1000))
                stream.join()
                for c in held[::2]:
                    c.close()
                self.assertEqual(s.ask("x", max_tokens=2)["usage"]["completion_tokens"], 2)
                s.wait_idle()
        finally:
            for c in held:
                c.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def test_beyond_the_limit(self):
        """Who comes too many is told so, and has a place again when somebody leaves."""
        def head(c):
            c.settimeout(20)
            c.sendall(HEALTH)
            return c.recv(1000)

        with api.serving("--max-connections", 20) as s:
            held = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(20)]
            self.assertTrue(all(b" 200 " in head(c) for c in held))
            for _ in range(100):  # more than may be open at a time for this purpose
                with socket.create_connection(("127.0.0.1", s.port)) as c:
                    answer = head(c)
                    self.assertIn(b" 503 ", answer)
                    self.assertIn(b"Retry-After: 1", answer)
                    self.assertIn(b"Connection: close", answer)
            body = json.dumps({"messages": user("x")}).encode()
            self.assertIn(b"too many connections", raw(s, post_head("/v1/chat/completions", len(body)) + body))
            with socket.create_connection(("127.0.0.1", s.port)) as silent:
                silent.settimeout(20)
                self.assertEqual(silent.recv(10), b"")  # closed soon
            self.assertTrue(all(b" 200 " in head(c) for c in held))
            held.pop().close()
            last = HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
            while b" 200 " not in (answer := raw(s, last)):  # the server may not have seen it yet
                self.assertIn(b" 503 ", answer)
            for c in held:
                c.close()

    def test_few_open_files(self):
        """Where the system allows few descriptors the limit is lower, and still there is one."""
        def limit():
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

        with api.serving("--max-num-seqs", 2, preexec_fn=limit) as s:
            self.assertIn("256 open files are allowed here: 64 connections at most", s.text())
            held = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(64)]
            for c in held:
                c.sendall(HEALTH)
                self.assertIn(b" 200 ", c.recv(1000))
            self.assertIn(b" 503 ", raw(s, HEALTH))
            for c in held:
                c.close()


class Limits(unittest.TestCase):
    def test_time_limit_of_an_answer(self):
        with api.serving("--request-timeout", 1, "--max-num-seqs", 1) as s:
            with concurrent.futures.ThreadPoolExecutor(3) as pool:  # two of them never get to run
                jobs = [pool.submit(s.ask, f"{i}", max_tokens=30000, temperature=0) for i in range(3)]
                for j in jobs:
                    got = j.result()
                    self.assertEqual(got["choices"][0]["finish_reason"], "abort")
                    self.assertLess(got["usage"]["completion_tokens"], 30000)
            _, reason, _ = api.merge(s.stream(messages=user("x"), max_tokens=30000, temperature=0))
            self.assertEqual(reason, "abort")
            s.wait_idle()
            self.assertEqual(s.metric("request_success_total", finished_reason="abort"), 4)
            self.assertEqual(s.ask("x", max_tokens=2)["choices"][0]["finish_reason"], "length")

    def test_bytes_in_flight(self):
        """Eight of the largest bodies may be on their way; the next is answered 503, and taken when they have gone."""
        with api.serving("--max-body-bytes", 4096) as s:
            held = []
            for _ in range(8):
                c = socket.create_connection(("127.0.0.1", s.port))
                c.sendall(post_head("/v1/chat/completions", 4096) + b" " * 4090)
                held.append(c)
            body = json.dumps({"messages": user("x" * 200), "max_tokens": 1}).encode()
            whole = post_head("/v1/chat/completions", len(body), "Connection: close\r\n") + body
            while b" 503 " not in (answer := raw(s, whole)):  # what was sent may not have been read yet
                self.assertIn(b"HTTP/1.1", answer[:8] or b"HTTP/1.1")
            self.assertIn(b"in flight", answer)
            for c in held:
                c.close()
            while s.request("POST", "/v1/chat/completions", json.loads(body))[0] == 503:
                time.sleep(0.05)

    def test_no_cross_origin(self):
        """Nothing allows pages of other sites to read an answer."""
        with api.serving() as s:
            for method, path in (("GET", "/v1/models"), ("OPTIONS", "/v1/chat/completions"), ("POST", "/tokenize")):
                status, headers, _ = s.request(method, path, {"prompt": "x"} if method == "POST" else None, {"Origin": "http://elsewhere.example"})
                self.assertEqual(status, 405 if method == "OPTIONS" else 200)
                self.assertFalse([h for h in headers if h.lower().startswith("access-control")])


class Shutdown(unittest.TestCase):
    def test_sigterm_lets_answers_finish(self):
        s = api.Server("--max-num-seqs", 4, "--shutdown-timeout", 600)
        kept = s.connect()
        self.assertEqual(s.request("GET", "/health", connection=kept)[0], 200)
        n = 8 if api.QUICK else 64  # four run, the others wait
        with concurrent.futures.ThreadPoolExecutor(n) as pool:
            jobs = [pool.submit(s.stream, messages=user(f"{i}"), max_tokens=100, temperature=0) for i in range(n)]
            while s.metric("num_requests_running") + s.metric("num_requests_waiting") < n:
                time.sleep(0.01)
            s.process.send_signal(signal.SIGTERM)
            while True:  # nothing new is taken: no connection, and no request on an old one
                status, headers, _ = s.request("POST", "/tokenize", {"prompt": "x"}, connection=kept)  # needs no place in the queue
                if status == 503:
                    break
                self.assertEqual(status, 200)
            self.assertEqual(headers["Retry-After"], "1")
            with self.assertRaises(ConnectionRefusedError):  # at once, so that a balancer goes elsewhere
                s.request("GET", "/health", connection=s.connect(timeout=5))
            self.assertFalse(all(j.done() for j in jobs))
            for j in jobs:
                _, reason, usage = api.merge(j.result())
                self.assertEqual((reason, usage["completion_tokens"]), ("length", 100))
        kept.close()
        self.assertEqual(s.stop(how=0), 0)

    def test_sigterm_cuts_at_the_limit(self):
        s = api.Server("--shutdown-timeout", 1)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            job = pool.submit(s.stream, messages=user("long"), max_tokens=30000, temperature=0)
            while s.metric("num_requests_running") < 1:
                time.sleep(0.01)
            s.process.send_signal(signal.SIGTERM)
            _, reason, _ = api.merge(job.result())
            self.assertEqual(reason, "abort")
        self.assertEqual(s.stop(how=0), 0)

    def test_full_disk_of_the_log(self):
        import subprocess
        with open("/dev/full", "w") as full:
            p = subprocess.Popen([api.K3, "serve", api.API, "--port", "0"], stderr=full)
            time.sleep(2)
            self.assertIsNone(p.poll())
            p.send_signal(signal.SIGTERM)
            self.assertEqual(p.wait(60), 0)


class Poison(unittest.TestCase):
    def test_one_request_ends_the_others_do_not(self):
        """A NaN in the embedding of one token ends the requests that use it, and no other."""
        import shutil
        import struct
        import tempfile
        with tempfile.TemporaryDirectory() as d:
            for f in os.listdir(api.API):
                shutil.copy(os.path.join(api.API, f), d)
            index = json.load(open(os.path.join(d, "model.safetensors.index.json")))["weight_map"]
            name = next(n for n in index if n.endswith("embed_tokens.weight"))
            with open(os.path.join(d, index[name]), "r+b") as f:
                n = struct.unpack("<Q", f.read(8))[0]
                entry = json.loads(f.read(n))[name]
                width = entry["shape"][1]
                f.seek(8 + n + entry["data_offsets"][0] + 5000 * width * 2)
                f.write(struct.pack("<H", 0x7FC0) * width)
            with api.serving("--kimi-policy", "off", model=d) as s:
                bad = {"prompt": [100, 5000, 7], "max_tokens": 5}
                good = {"prompt": [100, 5001, 7], "max_tokens": 30, "seed": 1, "logit_bias": {"5000": -100}}
                want = s.post("/v1/completions", good)["choices"]
                with concurrent.futures.ThreadPoolExecutor(6) as pool:
                    jobs = [pool.submit(s.request, "POST", "/v1/completions", bad if i % 2 else good) for i in range(6)]
                    for i, j in enumerate(jobs):
                        status, _, data = j.result()
                        self.assertEqual(status, 500 if i % 2 else 200, data[:300])
                        if i % 2 == 0:
                            self.assertEqual(json.loads(data)["choices"], want)
                self.assertEqual(s.request("GET", "/health")[0], 200)


if __name__ == "__main__":
    api.main()
