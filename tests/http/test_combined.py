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
TOOL = {"type": "function", "function": {"name": "f", "parameters": {
    "type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"], "additionalProperties": False}}}


def user(text):
    return [{"role": "user", "content": text}]


def streamed_ids(events, index=0):
    return [t for e in events for c in e["choices"] if c["index"] == index for t in c.get("token_ids") or []]


class Streams(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = api.Server(*SPECULATE, name="k3")

    @classmethod
    def tearDownClass(cls):
        assert cls.s.stop() == 0

    def test_token_ids(self):
        """A stream shows every token's id, also those of markers, which are no text, and of thoughts that are not shown."""
        body = dict(messages=user("Call."), max_tokens=60, seed=4, return_token_ids=True)
        for extra in (dict(tools=[TOOL], tool_choice="required", thinking={"type": "disabled"}), dict(thinking_token_budget=3),
                      dict(include_reasoning=False), dict(n=3, stop=["e", "的"], thinking_token_budget=0)):
            with self.subTest(extra=extra):
                whole, events = self.s.chat(**body, **extra), self.s.stream(**body, **extra)
                for c in whole["choices"]:
                    self.assertEqual(streamed_ids(events, c["index"]), c["token_ids"])
                    first = next(e for e in events if e["choices"][0]["index"] == c["index"])
                    self.assertEqual(first["prompt_token_ids"], whole["prompt_token_ids"])
                self.assertEqual(sum(len(c["token_ids"]) for c in whole["choices"]), whole["usage"]["completion_tokens"])
        body = dict(prompt=["a b", "c"], max_tokens=3, return_token_ids=True, echo=True)
        whole, events = self.s.post("/v1/completions", body), self.s.stream("/v1/completions", **body)
        for c in whole["choices"]:
            chunks = [e["choices"][0] for e in events if e["choices"][0]["index"] == c["index"]]
            self.assertEqual([k["prompt_token_ids"] for k in chunks if "prompt_token_ids" in k], [c["prompt_token_ids"]])
            self.assertIn("prompt_token_ids", chunks[0])

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


    def test_stop_token_is_no_text(self):
        """The token that ends one of several streamed choices is not shown, although its end is told after the others' news."""
        body = dict(prompt="Once", n=6, max_tokens=20, seed=1, return_token_ids=True)
        free = self.s.post("/v1/completions", body)["choices"]
        body["stop_token_ids"] = [c["token_ids"][3 + k] for k, c in enumerate(free)]
        want = {c["index"]: c["text"] for c in self.s.post("/v1/completions", body)["choices"]}
        for _ in range(3 if api.QUICK else 10):
            got = dict.fromkeys(want, "")
            for e in self.s.stream("/v1/completions", **body):
                for c in e["choices"]:
                    got[c["index"]] += c["text"]
            self.assertEqual(got, want)

    def test_seed_of_prompts(self):
        """Choice k of a prompt has the seed s + k, whether the prompt is alone or in a list."""
        body = dict(max_tokens=12, temperature=1)
        prompts = ["Once upon", "a time", "there was"]
        alone = {(p, s): self.s.post("/v1/completions", dict(body, prompt=p, seed=s))["choices"][0]["text"] for p in prompts for s in (7, 8)}
        many = self.s.post("/v1/completions", dict(body, prompt=prompts, n=2, seed=7))["choices"]
        self.assertEqual([c["text"] for c in many], [alone[p, s] for p in prompts for s in (7, 8)])
        free = self.s.post("/v1/completions", dict(body, prompt=["Once"] * 4))["choices"]
        self.assertEqual(len({c["text"] for c in free}), 4)  # without a seed all differ

    def test_text_offset(self):
        """Offsets count characters: between two of them stands the token's text, whatever its bytes are."""
        half = self.s.post("/tokenize", {"prompt": "a \U00013000"})["tokens"][:-1]  # ends within a character
        for prompt in ("naïve 東京 \U0001f600 a[EOS]b", half):
            for extra in ({}, {"skip_special_tokens": False}, {"echo": True}):
                body = dict(prompt=prompt, max_tokens=40, seed=3, temperature=1.5, logprobs=0, **extra)
                got = self.s.post("/v1/completions", body)["choices"][0]
                text, offsets, tokens = got["text"], got["logprobs"]["text_offset"], got["logprobs"]["tokens"]
                self.assertEqual(offsets, sorted(offsets))
                n_equal = 0
                for a, b, token in zip(offsets, offsets[1:] + [len(text)], tokens):
                    if "\ufffd" not in token and text[a:b]:
                        self.assertEqual(text[a:b].lstrip("\ufffd"), token)
                        n_equal += 1
                self.assertGreater(n_equal, 20)
                streamed = [o for e in self.s.stream("/v1/completions", **body) for o in (e["choices"][0]["logprobs"] or {"text_offset": []})["text_offset"]]
                self.assertEqual(streamed, offsets)


class Pictures(unittest.TestCase):
    def test_choices_share_pixels(self):
        """A picture of 1,600 patches has 3.8 MB of pixels; sixteen choices need them once."""
        content = [{"type": "image_url", "image_url": {"url": api.data_url(api.png(560, 560))}}, {"type": "text", "text": "What?"}]
        body = dict(messages=[{"role": "user", "content": content}], seed=1, max_tokens=3000, ignore_eos=True, stream=True)
        with api.serving("--max-num-seqs", 1, name="k3") as s:
            def heap(n):
                c = s.connect()
                c.request("POST", "/v1/chat/completions", json.dumps(dict(body, n=n)), {"Content-Type": "application/json"})
                c.getresponse().readline()
                while s.metric("num_requests_running") + s.metric("num_requests_waiting") < n:
                    pass
                used = s.metric("heap_in_use_bytes")
                c.close()
                s.wait_idle()
                return used

            heap(1)
            self.assertLess(heap(16) - heap(1), 4e6)
            body.update(max_tokens=6, stream=False)
            got = s.chat(**body, n=3)["choices"]
            for k in range(3):
                self.assertEqual(got[k]["message"], s.chat(**{**body, "seed": 1 + k})["choices"][0]["message"])


class Errors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = api.Server(name="k3")

    @classmethod
    def tearDownClass(cls):
        assert cls.s.stop() == 0

    def test_names_in_messages_are_cut_between_characters(self):
        for head in ("", "a", "ab"):
            for fields, status in (({"model": head + "東" * 300}, 404), ({"messages": [{"role": "user", "content": [{"type": head + "東" * 300}]}]}, 400),
                                   ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": head + "東" * 300}}}, 400),
                                   ({"logit_bias": {head + "é" * 300: 1}}, 400)):
                got, _, data = self.s.request("POST", "/v1/chat/completions", {"messages": user("x"), **fields})
                self.assertEqual(got, status)
                self.assertTrue(json.loads(data.decode("utf-8"))["error"]["message"])

    def test_nul_in_strings(self):
        """What a NUL would cut short is refused."""
        tools = dict(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f\0g"}})
        for field, fields in [("bad_words", {"bad_words": ["a\0b"]}), ("bad_words", {"bad_words": ["\0"]}), ("logit_bias", {"logit_bias": {"5\0": 1}}),
                              ("stop", {"stop": "a\0"}), ("cache_salt", {"cache_salt": "a\0"}), ("model", {"model": "k3\0"}), ("tool_choice", tools)]:
            with self.subTest(fields=fields):
                self.assertEqual(self.s.ask("x", 400, max_tokens=2, **fields)["error"]["param"], field)

    def test_partial_message_without_content(self):
        """However nothing is written, it is nothing: the channel is opened as for a new message."""
        def tokens(content, thinking):
            return self.s.post("/tokenize", {"messages": user("x") + [{"role": "assistant", "partial": True, "content": content}],
                                             "thinking": {"type": thinking}})["tokens"]
        for thinking in ("enabled", "disabled"):
            fresh = self.s.post("/tokenize", {"messages": user("x"), "thinking": {"type": thinking}})["tokens"]
            for content in (None, "", [], [{"type": "text", "text": ""}], [{"type": "text", "text": ""}] * 2):
                self.assertEqual(tokens(content, thinking), fresh, content)
            self.assertNotEqual(tokens([{"type": "text", "text": ""}, {"type": "text", "text": "a"}], thinking), fresh)
        for content in (5, {"a": 1}, [{"type": "text"}], [5]):
            self.s.chat(400, messages=user("x") + [{"role": "assistant", "partial": True, "content": content}])

    def test_partial_message_outside_the_format(self):
        begun = {"role": "assistant", "partial": True, "content": "["}
        error = self.s.chat(400, messages=user("x") + [begun], response_format={"type": "json_object"})["error"]
        self.assertEqual(error["param"], "messages")
        self.assertIn("does not fit", error["message"])

    def test_length_of_the_salt(self):
        """It is kept once a choice and hashed in every lookup: 128 times 100 MB would be the end."""
        self.s.ask("x", max_tokens=1, cache_salt="é" * 512)
        self.assertEqual(self.s.ask("x", 400, max_tokens=1, cache_salt="é" * 512 + "a")["error"]["param"], "cache_salt")

    def test_no_token_is_left(self):
        """What is forced is also banned: the request's own fault, whole or streamed."""
        body = dict(messages=user("x"), max_tokens=60, bad_words=["think"], thinking_token_budget=0)
        error = self.s.chat(400, **body)["error"]
        self.assertIn("no token is allowed here", error["message"])
        self.assertEqual([e["error"] for e in self.s.stream(**body) if "error" in e], [error])


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
