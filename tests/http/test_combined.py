#!/usr/bin/env python3
"""What each does what it should alone, asked for together: streams with echo, token ids, logprobs, several choices and prompts,
stop strings, tools, formats. Random weights."""
import concurrent.futures
import json
import random
import unittest

import api

# Drafts in every step, whatever they are worth.
SPECULATE = ["--speculative-config", json.dumps({"method": "dspark", "model": api.DRAFT, "num_speculative_tokens": 4, "adaptive": False})]


class Streams(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = api.Server(*SPECULATE, name="k3")

    @classmethod
    def tearDownClass(cls):
        assert cls.s.stop() == 0

    def test_echo_with_logprobs(self):
        """The echo of a stream waits for the logprobs of the prompt."""
        body = dict(prompt="A longer prompt, of which the model has computed nothing yet. " * 8, max_tokens=5, seed=1, echo=True, logprobs=2)
        whole = self.s.post("/v1/completions", dict(body, cache_salt="w"))["choices"][0]["logprobs"]
        merged = {key: [] for key in whole}
        for e in self.s.stream("/v1/completions", **body, cache_salt="s"):
            for key, values in (e["choices"][0]["logprobs"] or {}).items():
                merged[key] += values
        self.assertEqual(merged, whole)
        self.assertEqual(whole["token_logprobs"].count(None), 1)


class Busy(unittest.TestCase):
    def test_echo_while_the_engine_works(self):
        """The engine takes a long prompt over in the middle of its echo, and moves its own copy."""
        prompt = [random.Random(1).randrange(1000, 90000) for _ in range(30000)]
        body = json.dumps(dict(prompt=prompt, stream=True, echo=True, max_tokens=1))
        with api.serving("--max-num-batched-tokens", 64, "--no-enable-prefix-caching", name="k3") as s:
            want = s.post("/detokenize", {"tokens": prompt})["prompt"]

            def echo(_):
                c = s.connect()
                c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                first = c.getresponse().readline()
                c.close()  # of the answer itself nothing is wanted
                return json.loads(first.removeprefix(b"data: "))["choices"][0]["text"] == want if first else False

            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                self.assertEqual(set(pool.map(echo, range(60 if api.QUICK else 600))), {True})

    def test_time_limit_within_the_prompt(self):
        """Of a prompt that was not computed to its end, the rest has no logprobs."""
        prompt = [random.Random(2).randrange(1000, 90000) for _ in range(30000)]
        with api.serving("--request-timeout", 1, name="k3") as s:
            got = s.post("/v1/completions", dict(prompt=prompt, max_tokens=1, echo=True, logprobs=0, prompt_logprobs=0))["choices"][0]
        self.assertEqual(got["finish_reason"], "abort")
        known = got["logprobs"]["token_logprobs"]
        self.assertEqual(len(known), len(prompt))
        n = len(got["prompt_logprobs"])
        self.assertIn(n, range(2, 30000))
        self.assertEqual([x is None for x in known], [not 0 < i < n for i in range(len(prompt))])


if __name__ == "__main__":
    api.main()
