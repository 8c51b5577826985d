#!/usr/bin/env python3
"""The HTTP API as clients see it, on random weights: routes, errors, streams, sampling, stop strings, logprobs, prefix
reuse, pictures, keys. Answers are noise; what is checked holds for any model."""
import http.server
import json
import os
import random
import socket
import threading
import unittest

import api

MARKERS = ["<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "<|media_pad|>", "[EOS]"]


def user(text):
    return [{"role": "user", "content": text}]


class Routes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = api.Server(name="one,two")

    @classmethod
    def tearDownClass(cls):
        assert cls.s.stop() == 0

    def test_small_routes(self):
        models = json.loads(self.s.get("/v1/models"))["data"]
        self.assertEqual([m["id"] for m in models], ["one", "two"])
        self.assertEqual(models[0]["max_model_len"], 32768)
        self.assertEqual(self.s.get("/health"), b"")
        self.assertEqual(self.s.request("POST", "/ping")[0], 200)
        self.assertIn("version", json.loads(self.s.get("/version")))
        self.assertEqual(json.loads(self.s.get("/load")), {"server_load": 0})
        status, headers, page = self.s.request("GET", "/")
        self.assertEqual(status, 200)
        self.assertTrue(headers["Content-Type"].startswith("text/html"))
        self.assertIn(b"</html>", page)
        self.assertNotIn(b"http://", page.replace(b"http://www.w3.org/2000/svg", b""))  # nothing from outside
        self.assertEqual(self.s.request("HEAD", "/health")[0], 200)

    def test_errors(self):
        self.s.get("/nowhere", 404)
        self.s.post("/v1/nowhere", {}, 404)
        self.s.get("/v1/chat/completions", 405)
        self.s.post("/health", {}, 405)
        self.assertIn("`three` does not exist", self.s.ask("x", 404, model="three")["error"]["message"])
        self.assertEqual(self.s.request("POST", "/v1/chat/completions", b"{}", {"Content-Type": "text/plain"})[0], 400)
        self.assertEqual(self.s.request("POST", "/v1/chat/completions", b"{}")[0], 400)
        for body in (b"", b"{", b"[]", b"null", b"\xff", b'{"messages":', b"[" * 5000, b'{"a":' * 5000):
            status, _, data = self.s.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            self.assertEqual(status, 400, data[:200])
            self.assertEqual(json.loads(data)["error"]["code"], 400)
        deep = "[" * 100000 + "]" * 100000
        status, _, data = self.s.request("POST", "/v1/chat/completions", ('{"messages":%s}' % deep).encode(),
                                         {"Content-Type": "application/json"})
        self.assertEqual(status, 400)

    def test_ranges(self):
        for fields, word in [
                ({"temperature": -0.1}, "temperature must be non-negative, got -0.1"),
                ({"temperature": 3}, "temperature must be in [0, 2], got 3.0"),
                ({"temperature": "hot"}, "valid number"), ({"temperature": True}, "valid number"),
                ({"top_p": 0}, "top_p must be in (0, 1], got 0.0"), ({"top_k": -5}, "top_k must be 0"),
                ({"top_k": 1.5}, "valid integer"), ({"min_p": 2}, "min_p"), ({"presence_penalty": 3}, "presence_penalty must be in [-2, 2]"),
                ({"repetition_penalty": 0}, "repetition_penalty"), ({"n": 0}, "n must be at least 1, got 0"),
                ({"n": 1000}, "n must be at most"), ({"n": True}, "valid integer"),
                ({"max_tokens": 0}, "max_tokens must be at least 1"), ({"max_tokens": -5}, "got -5"),
                ({"max_tokens": 99999999}, "cannot be greater than max_model_len"),
                ({"max_completion_tokens": 0}, "max_completion_tokens"),
                ({"min_tokens": 9, "max_tokens": 4}, "min_tokens"), ({"stop": ""}, "empty string"),
                ({"stop": ["a"] * 6}, "at most 5"), ({"stop": [1]}, "valid string"),
                ({"stop_token_ids": [163840]}, "163840"), ({"stop_token_ids": ["a"]}, "integer"),
                ({"logit_bias": {"-1": 1}}, "token id"), ({"logit_bias": {"a": 1}}, "token id"),
                ({"bad_words": [""]}, "empty string"), ({"top_logprobs": 2}, "logprobs"),
                ({"logprobs": True, "top_logprobs": 21}, "max allowed: 20"),
                ({"stream_options": {"include_usage": True}}, "stream"),
                ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"), ({"stream": "yes"}, "boolean"),
                ({"thinking_token_budget": -2}, "thinking_token_budget"), ({"cache_salt": ""}, "cache_salt"), ({"messages": []}, "non-empty"),
                ({"messages": None}, "messages"), ({"messages": [{"role": "robot", "content": "x"}]}, "role"),
                ({"messages": [{"role": "user", "content": [{"type": "audio_url"}]}]}, "audio_url")]:
            with self.subTest(fields=fields):
                body = {"messages": user("x"), **fields}
                message = self.s.chat(400, **body)["error"]["message"]
                self.assertIn(word, message)

    def test_refused_fields_are_named(self):
        """What is not honoured is refused with its name; asking for nothing is not asking."""
        tool = {"type": "function", "function": {"name": "f"}}
        for field, value in [
                ("structured_outputs", {"json": {}}), ("guided_json", {"type": "object"}), ("guided_regex", "a+"),
                ("guided_choice", ["a"]), ("guided_grammar", "root"), ("functions", [{"name": "f"}]), ("function_call", "auto"),
                ("allowed_token_ids", [1]), ("logits_processors", ["x"]), ("use_beam_search", True), ("best_of", 3),
                ("truncate_prompt_tokens", 9), ("chat_template", "{{ x }}"), ("documents", [{"text": "a"}]), ("audio", {"voice": "x"}),
                ("temperature", 9), ("top_p", 2), ("top_k", -2), ("min_p", -1), ("presence_penalty", 3), ("frequency_penalty", -3),
                ("repetition_penalty", -1), ("n", 0), ("seed", 1.5), ("stop", ["a", ""]), ("stop_token_ids", [-1]),
                ("include_stop_str_in_output", 1), ("ignore_eos", "no"), ("min_tokens", -1), ("logprobs", 1), ("top_logprobs", 3),
                ("logit_bias", {"x": 1}), ("bad_words", "a"), ("stream", 1), ("stream_options", {}), ("tools", {}), ("tools", [{}]),
                ("tool_choice", "required"), ("tool_choice", "maybe"), ("parallel_tool_calls", "no"), ("response_format", {"type": "xml"}),
                ("response_format", "json"), ("reasoning_effort", "medium"), ("thinking", True), ("thinking", {"type": "x"}),
                ("chat_template_kwargs", []), ("chat_template_kwargs", {"thinking": 1}), ("include_reasoning", 0),
                ("thinking_token_budget", -5), ("add_generation_prompt", 1), ("continue_final_message", True), ("echo", "yes"),
                ("return_token_ids", 1), ("return_tokens_as_token_ids", "x"), ("prompt_logprobs", 99), ("cache_salt", 3),
                ("max_tokens", 0), ("max_completion_tokens", "many"), ("model", 5)]:
            with self.subTest(field=field, value=value):
                error = self.s.chat(400, **{"messages": user("x"), field: value})["error"]
                named = "messages" if field in ("add_generation_prompt", "continue_final_message") else field
                self.assertEqual(error["param"], named)
        for field, value in [("response_format", {"type": "json_object"}), ("guided_json", {"type": "object"}), ("best_of", 2),
                             ("thinking_token_budget", 5), ("prompt_embeds", "AAAA"), ("logprobs", -1)]:
            error = self.s.post("/v1/completions", {"prompt": "x", field: value}, 400)["error"]
            self.assertEqual(error["param"], field)
        empty = dict(structured_outputs=None, use_beam_search=False, best_of=1, functions=[], guided_json={}, chat_template="",
                     thinking_token_budget=-1, response_format={"type": "text"}, stream=False)
        self.s.ask("x", max_tokens=1, **empty)
        self.s.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "suffix": "y", **empty})
        accepted = dict(user="u", request_id="r", session_id="s", cache_salt="c", priority=3, metadata={"a": "b"}, service_tier="flex",
                        prompt_cache_key="k", safety_identifier="i", tools=[tool], tool_choice="none", parallel_tool_calls=False)
        self.s.ask("x", max_tokens=1, **accepted)

    def test_too_long(self):
        message = self.s.ask("word " * 40000, 400, max_tokens=5)["error"]["message"]
        self.assertIn("maximum context length is 32768 tokens", message)

    def test_null_and_unknown_fields(self):
        answer = self.s.ask("x", max_tokens=3, temperature=None, stop=None, tools=None, seed=None, unheard_of={"a": 1},
                            user="me", metadata={}, service_tier="auto", max_completion_tokens=None)
        self.assertEqual(answer["usage"]["completion_tokens"], 3)
        self.assertEqual(self.s.ask("x", max_tokens=9, max_completion_tokens=2)["usage"]["completion_tokens"], 2)

    def test_tokenize(self):
        for text in ("Hello, world", "naïve 東京 \U0001f600", "<|open|>think<|sep|>", ""):
            got = self.s.post("/tokenize", {"prompt": text, "return_token_strs": True})
            self.assertEqual(got["count"], len(got["tokens"]))
            self.assertEqual(len(got["token_strs"]), got["count"])
            self.assertEqual(self.s.post("/detokenize", {"tokens": got["tokens"]})["prompt"], text)
        self.assertIn(163587, self.s.post("/tokenize", {"prompt": "<|open|>"})["tokens"])
        for tokens in ([-1], [163840], ["a"], None):
            self.s.post("/detokenize", {"tokens": tokens}, 400)
        total = self.s.post("/v1/tokenizers/estimate-token-count", {"messages": user("Hi")})["data"]["total_tokens"]
        self.assertEqual(total + 3, self.s.post("/tokenize", {"messages": user("Hi")})["count"])

    def test_request_id(self):
        _, _, data = self.s.request("POST", "/v1/chat/completions", {"messages": user("x"), "max_tokens": 1},
                                    {"X-Request-Id": "abc-1"})
        self.assertEqual(json.loads(data)["id"], "chatcmpl-abc-1")

    def test_keep_alive(self):
        c = self.s.connect()
        for _ in range(5):
            status, _, _ = self.s.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 2}, connection=c)
            self.assertEqual(status, 200)
            self.assertEqual(self.s.request("GET", "/health", connection=c)[0], 200)
        body = b'{"prompt":"a","max_tokens":2}'
        c.request("POST", "/v1/completions", body=(body[i:i + 1] for i in range(len(body))), headers={"Content-Type": "application/json"},
                  encode_chunked=True)
        response = c.getresponse()
        self.assertEqual((response.status, json.loads(response.read())["usage"]["completion_tokens"]), (200, 2))
        c.close()


class Answers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = api.Server(*api.SPECULATE, name="k3")

    @classmethod
    def tearDownClass(cls):
        assert cls.s.stop() == 0

    def test_stream_equals_whole(self):
        for fields in ({"temperature": 0}, {"seed": 7}, {"seed": 8, "top_k": 5, "temperature": 1.5},
                       {"seed": 9, "thinking": {"type": "disabled"}, "presence_penalty": 1, "repetition_penalty": 1.2}):
            body = dict(messages=user("Tell me something."), max_tokens=40, **fields)
            whole = self.s.chat(**body)
            events = self.s.stream(**body, stream_options={"include_usage": True})
            message, reason, usage = api.merge(events)
            self.assertEqual(api.plain(whole["choices"][0]["message"]), message)
            self.assertEqual(whole["choices"][0]["finish_reason"], reason)
            self.assertEqual(whole["usage"]["completion_tokens"], usage["completion_tokens"])
            self.assertEqual(events[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
            self.assertEqual(events[-1]["choices"], [])
            self.assertEqual(len({e["created"] for e in events}), 1)
            self.assertTrue(all(e["object"] == "chat.completion.chunk" for e in events))

    def test_one_request_one_answer(self):
        """With and without speculation, alone or among others, cached or not: a seeded request has one answer."""
        body = dict(messages=user("One answer, please."), max_tokens=60, seed=5, temperature=0.8, top_p=0.9)
        first = self.s.chat(**body)["choices"][0]["message"]
        self.assertEqual(first, self.s.chat(**body)["choices"][0]["message"])
        self.assertEqual(first, self.s.chat(**body, disable_speculation=True)["choices"][0]["message"])
        self.assertEqual(first, self.s.chat(**body, cache_salt="other")["choices"][0]["message"])
        self.assertNotEqual(first, self.s.chat(**{**body, "seed": 6})["choices"][0]["message"])

    def test_thinking_budget(self):
        """A model that would think on closes its channel after so many tokens, and the rest is content."""
        body = dict(messages=user("Think."), max_tokens=40, seed=11, temperature=0.9)
        free = self.s.chat(**body)
        self.assertEqual(free["usage"]["completion_tokens_details"]["reasoning_tokens"], 40)
        for budget in (0, 1, 7, 36):
            got = self.s.chat(**body, thinking_token_budget=budget)
            self.assertEqual(got["usage"]["completion_tokens_details"]["reasoning_tokens"], budget)
            self.assertEqual(got["usage"]["completion_tokens"], 40)
            message = api.plain(got["choices"][0]["message"])
            self.assertTrue(free["choices"][0]["message"]["reasoning_content"].startswith(message["reasoning_content"].rstrip("\ufffd")))
            self.assertTrue(message["content"])
            self.assertEqual(api.merge(self.s.stream(**body, thinking_token_budget=budget))[0], message)
            self.assertEqual(api.plain(self.s.chat(**body, thinking_token_budget=budget, disable_speculation=True)["choices"][0]["message"]),
                             message)
        # Beside a grammar: the schema holds after the budget.
        schema = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": {
            "type": "object", "properties": {"k": {"enum": ["x", "y"]}}, "required": ["k"], "additionalProperties": False}}}
        got = self.s.chat(**{**body, "max_tokens": 60}, thinking_token_budget=5, response_format=schema)
        self.assertEqual(got["usage"]["completion_tokens_details"]["reasoning_tokens"], 5)
        self.assertIn(json.loads(got["choices"][0]["message"]["content"])["k"], ("x", "y"))
        off = dict(body, thinking={"type": "disabled"})
        self.assertEqual(self.s.chat(**off, thinking_token_budget=3)["choices"][0]["message"], self.s.chat(**off)["choices"][0]["message"])

    def test_echo(self):
        """The answer to a continued message begins with what was there, in whole and in streamed form."""
        begun = {"role": "assistant", "content": [{"type": "text", "text": "It is "}, {"type": "text", "text": "true"}]}
        body = dict(messages=user("Go on.") + [begun], max_tokens=12, seed=1, add_generation_prompt=False, continue_final_message=True,
                    thinking={"type": "disabled"})
        rest = self.s.chat(**body)["choices"][0]["message"]["content"]
        self.assertEqual(self.s.chat(**body, echo=True)["choices"][0]["message"]["content"], "It is true" + rest)
        self.assertEqual(api.merge(self.s.stream(**body, echo=True))[0]["content"], "It is true" + rest)
        plain = dict(messages=user("Go on."), max_tokens=12, seed=1)
        self.assertEqual(self.s.chat(**plain, echo=True)["choices"][0]["message"], self.s.chat(**plain)["choices"][0]["message"])

    def test_n(self):
        body = dict(messages=user("Several."), max_tokens=12, seed=3)
        many = self.s.chat(**body, n=3)
        self.assertEqual([c["index"] for c in many["choices"]], [0, 1, 2])
        self.assertEqual(many["usage"]["completion_tokens"], 36)
        texts = [c["message"]["reasoning_content"] for c in many["choices"]]
        self.assertEqual(len(set(texts)), 3)
        self.assertEqual(texts[0], self.s.chat(**body)["choices"][0]["message"]["reasoning_content"])
        parts = {}
        for e in self.s.stream(**body, n=3):
            for c in e["choices"]:
                parts[c["index"]] = parts.get(c["index"], "") + (c["delta"].get("reasoning_content") or "")
        self.assertEqual([parts[i] for i in range(3)], texts)

    def test_stop_strings(self):
        body = dict(prompt="Once upon a time", max_tokens=60, seed=2, temperature=1)
        whole = self.s.post("/v1/completions", body)["choices"][0]["text"]
        self.assertGreater(len(whole), 20)
        stop = whole[12:15]
        cut = whole[:whole.index(stop)]
        for extra in ({}, {"disable_speculation": True}):
            got = self.s.post("/v1/completions", {**body, "stop": [stop, "\u2603"], **extra})
            choice = got["choices"][0]
            self.assertEqual(choice["text"], cut)
            self.assertEqual((choice["finish_reason"], choice["stop_reason"]), ("stop", stop))
            self.assertLess(got["usage"]["completion_tokens"], 60)
        kept = self.s.post("/v1/completions", {**body, "stop": stop, "include_stop_str_in_output": True})
        self.assertEqual(kept["choices"][0]["text"], cut + stop)
        events = self.s.stream("/v1/completions", **{**body, "stop": stop})
        self.assertEqual("".join(e["choices"][0]["text"] for e in events), cut)
        self.assertEqual(events[-1]["choices"][0]["stop_reason"], stop)

    def test_stop_token_ids(self):
        body = dict(prompt="Once", max_tokens=30, temperature=0, return_token_ids=True)
        ids = self.s.post("/v1/completions", body)["choices"][0]["token_ids"]
        stop = ids[5]
        got = self.s.post("/v1/completions", {**body, "stop_token_ids": [stop]})["choices"][0]
        self.assertEqual(got["token_ids"], ids[:ids.index(stop) + 1])
        self.assertEqual((got["finish_reason"], got["stop_reason"]), ("stop", stop))

    def test_bias_and_bad_words(self):
        word = self.s.post("/tokenize", {"prompt": "yes"})["tokens"]
        self.assertEqual(len(word), 1)
        got = self.s.post("/v1/completions", dict(prompt="x", max_tokens=4, temperature=0, logit_bias={str(word[0]): 100}))
        self.assertEqual(got["choices"][0]["text"], "yes" * 4)
        got = self.s.post("/v1/completions", dict(prompt="x", max_tokens=4, temperature=0, logit_bias={str(word[0]): 100},
                                                  bad_words=["yes"]))
        self.assertNotIn("yes", got["choices"][0]["text"])

    def test_logprobs(self):
        body = dict(messages=user("Count."), max_tokens=10, temperature=0, logprobs=True, top_logprobs=3)
        whole = self.s.chat(**body)
        content = whole["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(content), 10)
        for t in content:
            self.assertEqual(len(t["top_logprobs"]), 3)
            self.assertEqual(t["token"], t["top_logprobs"][0]["token"])  # greedy
            self.assertLessEqual(t["logprob"], 0)
        streamed = [t for e in self.s.stream(**body) for c in e["choices"] for t in (c["logprobs"] or {"content": []})["content"]]
        self.assertEqual(streamed, content)
        got = self.s.post("/v1/completions", dict(prompt="a b c", max_tokens=3, temperature=0, logprobs=2, echo=True))["choices"][0]
        n = len(self.s.post("/tokenize", {"prompt": "a b c"})["tokens"]) + 3
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            self.assertEqual(len(got["logprobs"][key]), n)
        self.assertIsNone(got["logprobs"]["token_logprobs"][0])
        self.assertTrue(got["text"].startswith("a b c"))
        special = dict(prompt="a[EOS]b<|sep|>", max_tokens=0, echo=True)
        for skip, text in ((None, "ab<|sep|>"), (True, "ab<|sep|>"), (False, special["prompt"])):
            self.assertEqual(self.s.post("/v1/completions", dict(special, skip_special_tokens=skip))["choices"][0]["text"], text)
        only = self.s.post("/v1/completions", dict(prompt="a b c", max_tokens=0, logprobs=0, echo=True))["choices"][0]
        self.assertEqual(only["text"], "a b c")
        self.assertEqual(only["logprobs"]["token_logprobs"], got["logprobs"]["token_logprobs"][:n - 3])

    def test_prompt_logprobs(self):
        got = self.s.post("/v1/completions", dict(prompt="a b c d", max_tokens=1, prompt_logprobs=1))["choices"][0]
        self.assertEqual(len(got["prompt_logprobs"]), len(self.s.post("/tokenize", {"prompt": "a b c d"})["tokens"]))
        self.assertIsNone(got["prompt_logprobs"][0])

    def test_completion_prompts(self):
        ids = self.s.post("/tokenize", {"prompt": "hello there"})["tokens"]
        one = dict(max_tokens=5, temperature=0)
        text = self.s.post("/v1/completions", {"prompt": "hello there", **one})["choices"][0]["text"]
        self.assertEqual(self.s.post("/v1/completions", {"prompt": ids, **one})["choices"][0]["text"], text)
        many = self.s.post("/v1/completions", {"prompt": [ids, ids, ids], "n": 2, **one})["choices"]
        self.assertEqual([c["text"] for c in many], [text] * 6)
        self.assertEqual([c["index"] for c in many], list(range(6)))
        for prompt in ("", [], [[]], None, [163840], 5, {"a": 1}):
            self.s.post("/v1/completions", {"prompt": prompt, **one}, 400)

    def test_follow_up_is_cached(self):
        messages = user("Remember the number seven. " * 60)
        first = self.s.chat(messages=messages, max_tokens=50, seed=1)
        told = first["choices"][0]["message"]
        second = messages + [told] + user("And now?")
        cold = self.s.chat(messages=second, max_tokens=20, seed=2, cache_salt="cold")
        warm = self.s.chat(messages=second, max_tokens=20, seed=2)
        self.assertEqual(cold["usage"]["cached_tokens"], 0)
        self.assertEqual(cold["choices"][0]["message"], warm["choices"][0]["message"])
        self.assertGreater(warm["usage"]["prompt_tokens_details"]["cached_tokens"], first["usage"]["prompt_tokens"] * 0.95)
        again = self.s.chat(messages=messages, max_tokens=1, seed=1)
        self.assertGreaterEqual(again["usage"]["cached_tokens"], again["usage"]["prompt_tokens"] - 1)

    def test_long_conversation(self):
        """The second turn of 1,500 tokens computes what is new; an edited one what comes after the last place in common."""
        messages = user("Remember the number seven. " * 300)
        first = self.s.chat(messages=messages, max_tokens=60, seed=1)
        said = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
        self.assertGreater(said, 1500)
        turns = messages + [first["choices"][0]["message"]]
        ask = dict(max_tokens=20, seed=2)
        warm = self.s.chat(messages=turns + user("And now?"), **ask)
        cold = self.s.chat(messages=turns + user("And now?"), **ask, cache_salt="cold")
        self.assertEqual(cold["usage"]["cached_tokens"], 0)
        self.assertGreater(warm["usage"]["cached_tokens"], 0.95 * said)
        self.assertEqual(warm["choices"][0]["message"], cold["choices"][0]["message"])
        # The last question asked again in other words: all of the first turn is reused.
        edited = self.s.chat(messages=turns + user("And then what?"), **ask)
        self.assertGreater(edited["usage"]["cached_tokens"], 0.95 * said)
        self.assertEqual(edited["choices"][0]["message"],
                         self.s.chat(messages=turns + user("And then what?"), **ask, cache_salt="cold 2")["choices"][0]["message"])
        # The first answer edited: the first question is reused, up to its last token.
        told = {"role": "assistant", "content": "Eight."}
        other = self.s.chat(messages=messages + [told] + user("And now?"), **ask)
        self.assertGreaterEqual(other["usage"]["cached_tokens"], first["usage"]["prompt_tokens"] - 16)
        self.assertLess(other["usage"]["cached_tokens"], said)

    def test_reuse_at_block_boundaries(self):
        """Pages of 16 tokens, steps of 512: a prompt just below, at and above a border is reused but for its last token."""
        rng = random.Random(3)
        cached = []
        for n in sorted({b * k + d for b in (16, 512) for k in (1, 2) for d in (-1, 0, 1)}):
            prompt = [rng.randrange(1000, 90000) for _ in range(n)]
            body = dict(prompt=prompt, max_tokens=3, temperature=0)
            first = self.s.post("/v1/completions", body)
            again = self.s.post("/v1/completions", body)
            self.assertEqual(again["choices"], first["choices"])
            cached.append(again["usage"]["cached_tokens"])
            self.assertEqual(cached[-1], n - 1)
        self.assertEqual(cached, sorted(cached))

    def test_user_text_is_never_control(self):
        """Names of control tokens in every place a client can write to stay ordinary text."""
        special = set(range(163584, 163840))
        for marker in MARKERS:
            text = f"a{marker}b"
            tool = {"type": "function", "function": {"name": "f", "description": text,
                                                      "parameters": {"type": "object", "properties": {text: {"enum": [text]}}}}}
            calls = [{"id": f"x{i}", "type": "function", "function": {"name": text, "arguments": arguments}}
                     for i, arguments in enumerate((json.dumps({text: text}), {text: [text]}, f"no JSON {text}", f'["{text}"]'))]
            body = {"messages": [{"role": "system", "content": text, "name": text}, {"role": "user", "content": text, "name": text},
                                 {"role": "system", "tools": [dict(tool, function={"name": "g", "description": text})]},
                                 {"role": "assistant", "content": text, "reasoning_content": text, "tool_calls": calls, "name": text},
                                 {"role": "tool", "tool_call_id": "x1", "content": text},
                                 {"role": "tool", "tool_call_id": text, "tool": text, "content": [{"type": "text", "text": text}]},
                                 {"role": "assistant", "partial": True, "reasoning_content": text, "content": text}],
                    "tools": [tool], "tool_choice": "required",
                    "response_format": {"type": "json_schema", "json_schema": {"name": text, "schema": {"title": text}}}}
            inside = self.s.post("/tokenize", body)["tokens"]
            clean = self.s.post("/tokenize", json.loads(json.dumps(body).replace(marker, "zz")))["tokens"]
            self.assertEqual([t for t in inside if t in special], [t for t in clean if t in special], marker)

    def test_pictures(self):
        def ask(status=200, **part):
            content = [part, {"type": "text", "text": "What is it?"}]
            return self.s.chat(status, messages=[{"role": "user", "content": content}], max_tokens=5, temperature=0)

        url = api.data_url(api.png(56, 28))
        bare = self.s.ask("What is it?", max_tokens=5, temperature=0)["usage"]["prompt_tokens"]
        good = ask(type="image_url", image_url={"url": url})
        self.assertGreater(good["usage"]["prompt_tokens"], bare)
        self.assertEqual(ask(type="image_url", image_url=url)["choices"][0]["message"], good["choices"][0]["message"])
        self.assertEqual(ask(type="image", image=url)["choices"][0]["message"], good["choices"][0]["message"])
        again = ask(type="image_url", image_url={"url": url})["usage"]
        self.assertGreaterEqual(again["cached_tokens"], again["prompt_tokens"] - 1)
        other = ask(type="image_url", image_url={"url": api.data_url(api.png(56, 28, (0, 0, 200)))})["usage"]
        self.assertLess(other["cached_tokens"], bare)  # equal length, other picture
        for part, word in [
                (dict(type="image_url", image_url={"url": "data:image/png;base64,!!!!"}), "base64"),
                (dict(type="image_url", image_url={"url": "data:image/png;base64"}), "separator"),
                (dict(type="image_url", image_url={"url": "data:image/png,abc"}), "base64"),
                (dict(type="image_url", image_url={"url": api.data_url(b"not a picture")}), "Failed to load image"),
                (dict(type="image_url", image_url={"url": api.data_url(api.png(56, 28)[:-40])}), "Failed to load image"),
                (dict(type="image_url", image_url={"url": "http://127.0.0.1/a.png"}), "allowed-media-domains"),
                (dict(type="image_url", image_url={"url": "file:///etc/passwd"}), "URL must be"),
                (dict(type="image_url", image_url={"url": "/etc/passwd"}), "URL must be"),
                (dict(type="image_url", image_url={}), "url"), (dict(type="image_url"), "url"),
                (dict(type="video_url", video_url={"url": url}), "video_url")]:
            with self.subTest(part=str(part)[:80]):
                self.assertIn(word, ask(400, **part)["error"]["message"])
        many = [{"type": "image_url", "image_url": {"url": url}}] * 33
        message = self.s.chat(400, messages=[{"role": "user", "content": many}])["error"]["message"]
        self.assertIn("32", message)

    def test_picture_in_stream_and_tool_result(self):
        url = api.data_url(api.png(30, 30))
        messages = [{"role": "user", "content": "Draw."},
                    {"role": "assistant", "content": "", "tool_calls": [
                        {"id": "a", "type": "function", "function": {"name": "draw", "arguments": "{}"}}]},
                    {"role": "tool", "tool_call_id": "a", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
        message, _, _ = api.merge(self.s.stream(messages=messages, max_tokens=6, temperature=0))
        whole = self.s.chat(messages=messages, max_tokens=6, temperature=0)
        self.assertEqual(api.plain(whole["choices"][0]["message"]), message)

    def test_metrics(self):
        self.s.wait_idle()  # the counters of the test before are all there
        before = self.s.metric("generation_tokens_total")
        self.s.ask("x", max_tokens=7)
        self.s.wait_idle()
        self.assertEqual(self.s.metric("generation_tokens_total") - before, 7)
        self.assertEqual(self.s.metric("num_requests_running"), 0)
        for name in ("time_to_first_token_seconds_count", "e2e_request_latency_seconds_bucket", "request_success_total",
                     "spec_decode_num_drafts_total", "spec_decode_num_accepted_tokens_per_pos_total", "num_preemptions_total",
                     "prefix_cache_hits_total", "kv_cache_usage_perc", "iteration_tokens_total_sum", "mm_cache_queries_total",
                     "inter_token_latency_seconds_count", "request_time_per_output_token_seconds_count",
                     "request_queue_time_seconds_count", "request_inference_time_seconds_count", "request_prefill_time_seconds_count",
                     "request_decode_time_seconds_count", "request_prompt_tokens_count", "request_generation_tokens_count",
                     "request_params_max_tokens_count", "request_prefill_kv_computed_tokens_count", "num_requests_waiting",
                     "num_requests_waiting_by_reason", "engine_sleep_state", "engine_threads_active", "heap_in_use_bytes", "prompt_tokens_total", "prompt_tokens_cached_total",
                     "prefix_cache_queries_total", "mm_cache_hits_total", "external_prefix_cache_queries_total",
                     "external_prefix_cache_hits_total", "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total"):
            self.s.metric(name)
        self.assertEqual(self.s.metric("cache_config_info", block_size="16", enable_prefix_caching="True"), 1)

    def test_metrics_of_groups_sources_and_calls(self):
        names = [("request_params_n_count", {}), ("request_params_n_sum", {}), ("request_max_num_generation_tokens_sum", {}),
                 ("prompt_tokens_by_source_total", {"source": "local_compute"}),
                 ("prompt_tokens_by_source_total", {"source": "local_cache_hit"})]
        names += [("tool_call_parser_invocations_total", {"mode": m, "outcome": o})
                  for m in ("streaming", "non_streaming") for o in ("tool_call", "no_tool_call")]

        def delta(run):
            self.s.wait_idle()
            before = [self.s.metric(n, **labels) for n, labels in names]
            run()
            self.s.wait_idle()
            return [self.s.metric(n, **labels) - b for (n, labels), b in zip(names, before)]

        prompt = {"prompt": "a metric of its own " * 5, "max_tokens": 6, "temperature": 0}
        n = len(self.s.post("/tokenize", {"prompt": prompt["prompt"]})["tokens"])
        self.assertEqual(delta(lambda: self.s.post("/v1/completions", prompt)), [1, 1, 6, n, 0, 0, 0, 0, 0])
        self.assertEqual(delta(lambda: self.s.post("/v1/completions", dict(prompt, n=4, temperature=1))), [1, 4, 6, 4, 4 * (n - 1), 0, 0, 0, 0])
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}
        chat = dict(messages=user("x"), max_tokens=60, tools=[tool], thinking={"type": "disabled"}, temperature=0)
        self.assertEqual(delta(lambda: self.s.chat(**chat, tool_choice="required"))[5:], [0, 0, 1, 0])
        self.assertEqual(delta(lambda: self.s.chat(**chat, tool_choice="none"))[5:], [0, 0, 0, 1])
        self.assertEqual(delta(lambda: self.s.stream(**chat, tool_choice="required"))[5:], [1, 0, 0, 0])
        self.assertEqual(delta(lambda: self.s.stream(**chat, tool_choice="none"))[5:], [0, 1, 0, 0])

    def test_tool_stream_is_json(self):
        tool = {"type": "function", "function": {"name": "f", "parameters": {
            "type": "object", "properties": {"ключ": {"type": "string", "maxLength": 8}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["ключ", "n"], "additionalProperties": False}}}
        events = self.s.stream(messages=user("Call."), tools=[tool], tool_choice="required", max_tokens=120, seed=4,
                               parallel_tool_calls=False)
        message, reason, _ = api.merge(events)
        self.assertEqual(reason, "tool_calls")
        self.assertEqual(len(message["tool_calls"]), 1)
        value = json.loads(message["tool_calls"][0]["arguments"])
        self.assertEqual(set(value), {"ключ", "n"})
        self.assertIn(value["n"], range(10))

    def test_cut_tool_call(self):
        """A call that the token limit cuts stands in a whole answer as its stream adds up: as far as it was written."""
        tool = {"type": "function", "function": {"name": "f", "parameters": {
            "type": "object", "properties": {"text": {"type": "string", "minLength": 30, "maxLength": 40}},
            "required": ["text"], "additionalProperties": False}}}
        ask = dict(messages=user("Call."), tools=[tool], tool_choice="required", temperature=0, thinking={"type": "disabled"})
        seen = set()
        for n in range(1, 300):
            choice = self.s.chat(max_tokens=n, **ask)["choices"][0]
            streamed, reason, _ = api.merge(self.s.stream(max_tokens=n, **ask))
            self.assertEqual(api.without_ids(api.plain(choice["message"])), api.without_ids(streamed), n)
            self.assertEqual(choice["finish_reason"], reason)
            calls = streamed["tool_calls"]
            self.assertEqual(len(choice["message"].get("tool_calls", ["none"])), max(len(calls), 1))
            if reason == "tool_calls":
                break
            self.assertEqual(reason, "length")
            for call in calls:
                self.assertIsNone(choice["message"]["content"])
                self.assertEqual(call["name"], "f")
                seen.add(call["arguments"])
        self.assertEqual(reason, "tool_calls")
        self.assertIn("", seen)  # the name alone
        self.assertIn('{"text": "', {text[:10] for text in seen})


class PicturesFromTheNet(unittest.TestCase):
    """The server fetches what an address names, so what it may name is a table: who is asked, who redirects where, how much."""

    @classmethod
    def setUpClass(cls):
        cls.asked = asked = []
        picture = api.png(56, 28)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                port = self.server.server_port
                move = {"/moved.png": "/a.png", "/loop": "/loop", "/to-localhost": f"http://localhost:{port}/a.png",
                        "/to-metadata": "http://169.254.169.254/latest", "/to-file": "file:///etc/passwd",
                        "/to-credentials": f"http://user:pw@127.0.0.1:{port}/a.png"}.get(self.path)
                status = 302 if move else {"/a.png": 200, "/big": 200, "/noise": 200, "/broken": 500, "/busy": 429}.get(self.path, 404)
                body = {"/a.png": picture, "/big": b"x" * 200000, "/noise": b"no picture"}.get(self.path, b"")
                self.send_response(status)
                if move:
                    self.send_header("Location", move)
                if self.path != "/big":  # its length comes as a surprise
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                try:
                    self.wfile.write(body)
                except OSError:
                    pass

            def log_message(self, *args):
                pass

        cls.web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=cls.web.serve_forever, daemon=True).start()

    @classmethod
    def tearDownClass(cls):
        cls.web.shutdown()
        cls.web.server_close()

    def ask(self, server, url, status):
        self.asked.clear()
        content = [{"type": "image_url", "image_url": {"url": url}}]
        return server.chat(status, messages=[{"role": "user", "content": content}], max_tokens=2, temperature=0)

    def test_table(self):
        port = self.web.server_port
        with api.serving("--allowed-media-domains", "127.0.0.1", "--allow-private-media", "--max-image-bytes", 100000) as s:
            good = self.ask(s, f"http://127.0.0.1:{port}/a.png", 200)
            inline = self.ask(s, api.data_url(api.png(56, 28)), 200)
            self.assertEqual(good["choices"][0]["message"], inline["choices"][0]["message"])
            self.ask(s, f"http://127.0.0.1:{port}/moved.png", 200)
            self.assertEqual(self.asked, ["/moved.png", "/a.png"])
            for path, status, word, visited in [
                    ("/loop", 400, "redirected more than", 4), ("/to-localhost", 400, "'localhost' is not", 1),
                    ("/to-metadata", 400, "'169.254.169.254' is not", 1), ("/to-file", 422, "malformed", 1),
                    ("/to-credentials", 400, "credentials", 1), ("/none", 422, "HTTP 404", 1), ("/broken", 400, "HTTP 500", 1),
                    ("/busy", 400, "HTTP 429", 1), ("/big", 400, "larger than 100000 bytes", 1), ("/noise", 400, "Failed to load image", 1)]:
                with self.subTest(path=path):
                    self.assertIn(word, self.ask(s, f"http://127.0.0.1:{port}{path}", status)["error"]["message"])
                    self.assertEqual(len(self.asked), visited)
            for url, status in [(f"http://localhost:{port}/a.png", 400), (f"http://[::1]:{port}/a.png", 400),
                                (f"http://user:pw@127.0.0.1:{port}/a.png", 400), (f"ftp://127.0.0.1:{port}/a.png", 400),
                                (f"http://127.0.0.1.example.invalid:{port}/a.png", 400), ("http://", 422)]:
                with self.subTest(url=url):
                    self.ask(s, url, status)
                    self.assertEqual(self.asked, [])

    def test_private_addresses(self):
        """Every name is allowed, no private address is, however it is written."""
        port = self.web.server_port
        with api.serving("--allowed-media-domains", "*") as s:
            for host in ("127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0",
                         "127.0.0.1.", "LOCALHOST"):
                with self.subTest(host=host):
                    self.ask(s, f"http://{host}:{port}/a.png", 400)
                    self.assertEqual(self.asked, [])


class Options(unittest.TestCase):
    def test_start_lines(self):
        """The log says what runs before it says that it is ready."""
        with api.serving("--max-num-seqs", 3, "--block-size", 32, *api.SPECULATE, name="kimi-k3,other") as s:
            for line in (f"model {api.API}: 3 layers, vocabulary 163840, vision", "backend cpu, ", " pages of 32 tokens; 3 requests at a time",
                         "prefix caching on; dspark, up to 4 drafts, measured width", "Kimi policy on", "names: kimi-k3 other"):
                self.assertIn(line, s.text())
            self.assertTrue(s.text().rstrip().endswith(f"ready at http://127.0.0.1:{s.port}"))
        with api.serving("--no-enable-prefix-caching", name="x") as s:
            self.assertIn("prefix caching off; no speculation", s.text())
            self.assertNotIn("Kimi policy", s.text())

    def test_api_key(self):
        with api.serving("--api-key", "secret,other") as s:
            body = {"messages": user("x"), "max_tokens": 1}
            for headers, status in [({}, 401), ({"Authorization": "Bearer wrong"}, 401), ({"Authorization": "secret"}, 401),
                                    ({"Authorization": "Bearer "}, 401), ({"Authorization": "Bearer secre"}, 401),
                                    ({"Authorization": "Bearer secretsecret"}, 401), ({"Authorization": "Bearer  \t"}, 401),
                                    ({"Authorization": "Bearer secret"}, 200), ({"Authorization": "bearer other"}, 200),
                                    ({"Authorization": "Bearer secret \t"}, 200)]:
                got, _, data = s.request("POST", "/v1/chat/completions", body, headers)
                self.assertEqual(got, status, headers)
                self.assertEqual(s.request("GET", "/v1/models", headers=headers)[0], status)
                if status == 401:
                    self.assertEqual(json.loads(data), {"error": "Unauthorized"})
            self.assertEqual(s.request("GET", "/health")[0], 200)

    def test_body_limit(self):
        with api.serving("--max-body-bytes", 4096) as s:
            self.assertEqual(s.request("POST", "/v1/chat/completions", {"messages": user("x" * 5000)})[0], 413)
            c = s.connect()  # chunked: the length is not known before
            c.request("POST", "/v1/chat/completions", body=(b"x" * 1000 for _ in range(10)),
                      headers={"Content-Type": "application/json"}, encode_chunked=True)
            self.assertEqual(c.getresponse().status, 413)

    def test_no_prefix_caching(self):
        with api.serving("--no-enable-prefix-caching", name="x") as s:
            for _ in range(2):
                self.assertEqual(s.ask("Hello " * 50, max_tokens=2)["usage"]["cached_tokens"], 0)

    def test_text_model_refuses_pictures(self):
        import shutil
        import tempfile
        with tempfile.TemporaryDirectory() as d:
            for f in os.listdir(api.API):
                if f != "config.json":
                    os.symlink(os.path.join(api.API, f), os.path.join(d, f))
            shutil.copy(os.path.join(api.API, "config.json"), d)
            with api.serving("--max-images", 0, model=d) as s:
                content = [{"type": "image_url", "image_url": {"url": api.data_url(api.png(30, 30))}}]
                s.chat(400, messages=[{"role": "user", "content": content}])

    def test_small_context(self):
        with api.serving("--max-model-len", 200, "--kimi-policy", "off") as s:
            got = s.ask("x")
            self.assertEqual(got["choices"][0]["finish_reason"], "length")
            self.assertEqual(got["usage"]["total_tokens"] + 3, 200)
            self.assertIn("200", s.ask("x", 400, max_tokens=150)["error"]["message"])

    def test_bad_options(self):
        import subprocess
        for options, word in [(["--speculative-config", "{}"], "method"), (["--port", "99999"], "port"),
                              (["--max-num-seqs", "0"], "max-num-seqs"), (["--nonsense"], "nonsense"),
                              (["--enable-prefix-caching", "--no-enable-prefix-caching"], "prefix"),
                              (["--num-gpu-blocks-override", "10"], "max-model-len"), (["--host", "nowhere.invalid"], "nowhere")]:
            p = subprocess.run([api.K3, "serve", api.API, "--port", "0", *options], capture_output=True, text=True, timeout=60)
            self.assertIn(p.returncode, (1, 2), options)
            self.assertIn(word, p.stderr)
            self.assertEqual(p.stdout, "")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            p = subprocess.run([api.K3, "serve", api.API, "--port", port], capture_output=True, text=True, timeout=60)
            self.assertEqual((p.returncode, p.stderr.splitlines()[-1]),
                             (1, f"k3 serve: cannot listen on 127.0.0.1 port {port}: Address already in use"))
        # What the engine refuses is told with the options' names of the command line.
        for options, line in [(["serve", "--max-model-len", "2000000000"], "--max-model-len is 2000000000, the model takes at most 1048576\n"),
                              (["chat", "--once", "x", "--max-model-len", "2000000000"],
                               "--max-model-len is 2000000000, the model takes at most 1048576\n"),
                              (["serve", "--max-num-seqs", "9", "--max-num-batched-tokens", "5"],
                               "--max-num-batched-tokens 5 is below --max-num-seqs 9: each request of a step needs a token\n"),
                              (["serve", "--num-gpu-blocks-override", "2"], "lower --max-model-len or raise --num-gpu-blocks-override\n"),
                              (["serve", "--kv-cache-memory-bytes", "1"], "lower --max-model-len or raise --kv-cache-memory-bytes\n")]:
            p = subprocess.run([api.K3, options[0], api.API, *options[1:]], capture_output=True, text=True, timeout=60)
            self.assertEqual(p.returncode, 2, options)
            self.assertTrue(p.stderr.startswith(f"k3 {options[0]}: ") and p.stderr.endswith(line), p.stderr)


if __name__ == "__main__":
    api.main()
