"""Many clients for a while: mixed prompts, pictures, tools, speculation, people who leave in the middle, and a pool of pages so
small that requests are preempted. Every answer must be the one that the request gets alone, and memory must not grow."""
import concurrent.futures
import json
import random
import threading
import time

import api

# Sanitizers make everything ten times slower: fewer people and shorter answers there, lest they lose patience.
CLIENTS = 10 if api.QUICK else 64
LENGTHS = [1, 5, 20] if api.QUICK else [1, 5, 20, 60, 90]
# 40 pages of 16 tokens, and eight requests of 100 to 400 tokens: the pool is small enough to preempt.
LOADED = ["--max-num-seqs", 8, "--max-num-batched-tokens", 96, "--max-model-len", 600, "--kimi-policy", "off",
          "--num-gpu-blocks-override", 40]
# Drafts in every step, whatever they are worth.
SPECULATE = ["--speculative-config", json.dumps({"method": "dspark", "model": api.DRAFT, "num_speculative_tokens": 4, "adaptive": False})]
ALONE = ["--max-num-seqs", 1, "--no-enable-prefix-caching", "--max-model-len", 600, "--kimi-policy", "off"]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {
    "type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"], "additionalProperties": False}}}


def requests(rng, n):
    """Prompts that share beginnings, pictures, tools, all ways to sample."""
    pictures = [api.data_url(api.png(28 * rng.randint(1, 3), 28 * rng.randint(1, 3), (40 * i, 90, 10))) for i in range(4)]
    for i in range(n):
        shared = "You are one of several assistants. " * rng.choice([0, 3, 12])
        content = shared + f"Question {rng.randint(0, 9)}? " + "word " * rng.randint(0, 60)
        body = {"max_tokens": rng.choice(LENGTHS), "seed": i, "temperature": rng.choice([0, 0.7, 1.3])}
        if i % 4 == 0:
            content = [{"type": "image_url", "image_url": {"url": rng.choice(pictures)}}, {"type": "text", "text": content}]
        body["messages"] = [{"role": "user", "content": content}]
        if i % 5 == 0:
            body.update(tools=[TOOL], tool_choice="required", thinking={"type": "disabled"}, max_tokens=90)
        if i % 6 == 0:
            body.update(stop=["e", "的"], presence_penalty=0.5)
        if i % 7 == 0:
            body.update(logprobs=True, top_logprobs=1)
        yield body


def answer(server, body, stream):
    if stream:
        message, reason, usage = api.merge(server.stream(**body, stream_options={"include_usage": True}))
    else:
        got = server.chat(**body)
        message, reason, usage = api.plain(got["choices"][0]["message"]), got["choices"][0]["finish_reason"], got["usage"]
    return api.without_ids(message), reason, usage["completion_tokens"]


def leave(server, body, after):
    """Reads so many bytes of the answer and hangs up."""
    c = server.connect()
    try:
        c.request("POST", "/v1/chat/completions", json.dumps(dict(body, stream=True)), {"Content-Type": "application/json"})
        c.sock.recv(after) if after else None
    finally:
        c.close()


def resident_kib(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))


class Load:
    """Runs the load and keeps what happened: `wrong` answers, memory samples, counts."""

    def __init__(self, seed, n_bodies):
        self.rng = random.Random(seed)
        self.bodies = list(requests(self.rng, n_bodies))
        self.wrong, self.samples, self.n_answers, self.n_left = [], [], 0, 0
        self.lock = threading.Lock()

    def learn(self):
        """The answers that each request gets alone, by an undisturbed server."""
        with api.serving(*ALONE) as s:
            self.want = [answer(s, body, False) for body in self.bodies]

    def client(self, server, number, end):
        rng = random.Random(self.rng.random() + number)
        while time.monotonic() < end and not self.wrong:
            i = rng.randrange(len(self.bodies))
            # Half of the time a new salt, so that prefixes come and go.
            body = dict(self.bodies[i], cache_salt=rng.choice(["shared", f"{number}-{rng.random()}"]))
            if rng.random() < 0.1:
                leave(server, body, rng.choice([0, 100, 700]))
                self.n_left += 1
                continue
            try:
                got = answer(server, body, rng.random() < 0.5)
            except Exception as e:  # an error is a wrong answer, with its text
                got = repr(e)
            with self.lock:
                self.n_answers += 1
                if got != self.want[i]:
                    self.wrong.append((i, got, self.want[i]))

    def round(self, server, seconds, every, tell):
        """All clients until `seconds` after the start of the run."""
        end = self.start + seconds
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            jobs = [pool.submit(self.client, server, k, end) for k in range(CLIENTS)]
            while time.monotonic() < end and not self.wrong:
                time.sleep(max(0.0, min(self.start + (len(self.samples) + 1) * every, end) - time.monotonic()))
                self.samples.append((time.monotonic() - self.start, resident_kib(server.process.pid)))
                if tell:
                    tell(*self.samples[-1], self.n_answers)
            for j in jobs:
                j.result()
        server.wait_idle(60)
        return server.metric("heap_in_use_bytes") / 1024

    def run(self, seconds, every, tell=None):
        """`tell(seconds, KiB, answers)` at each sample. After a third of the time, when every size of request has been there, and at
        the end the clients rest, and what an idle server holds is compared."""
        with api.serving(*LOADED, *SPECULATE) as s:
            self.start = time.monotonic()
            early = self.round(s, seconds / 3, every, tell)
            self.heap_kib = self.round(s, seconds, every, tell)
            self.heap_growth_kib = self.heap_kib - early
            self.preempted = s.metric("num_preemptions_total")
            self.drafted = s.metric("spec_decode_num_draft_tokens_total")
            self.cached = s.metric("prompt_tokens_cached_total")
            self.errors = s.metric("request_success_total", finished_reason="error")
            self.aborted = s.metric("request_success_total", finished_reason="abort")

    def later(self):
        return [(t, kib) for t, kib in self.samples if t > self.samples[-1][0] / 3]

    def growth_kib(self):
        """What was added to the resident memory after the first third."""
        return self.samples[-1][1] - max(kib for t, kib in self.samples if t <= self.samples[-1][0] / 3)

    def slope(self):
        """KiB a minute of resident memory, by least squares over what comes after the first third."""
        points = self.later()
        t0, k0 = (sum(x) / len(points) for x in zip(*points))
        return 60 * sum((t - t0) * (kib - k0) for t, kib in points) / sum((t - t0) ** 2 for t, _ in points)
