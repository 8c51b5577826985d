#!/usr/bin/env python3
"""The official `openai` Python client, unchanged, against the server: sync, async, streams, tools, pictures, structured
output. The client is installed into a virtual environment under the build folder; without a package index: NOT RUN."""
import os
import subprocess
import sys

VENV = os.path.join(os.environ["TEST_K3_MODELS"], "..", "venv-openai")
PYTHON = os.path.join(VENV, "bin", "python")


def install():
    """True if the client can be imported afterwards."""
    if not os.path.exists(PYTHON):
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    check = [PYTHON, "-c", "import openai"]
    if subprocess.run(check, capture_output=True).returncode == 0:
        return True
    subprocess.run([PYTHON, "-m", "pip", "install", "-q", "openai>=1.50"], capture_output=True, timeout=300)
    return subprocess.run(check, capture_output=True).returncode == 0


if os.path.abspath(sys.executable) != os.path.abspath(PYTHON):
    if not install():
        print("NOT RUN: the openai client cannot be installed (no package index)")
        sys.exit(77)
    os.execv(PYTHON, [PYTHON, *sys.argv])

import asyncio  # noqa: E402
import json  # noqa: E402
import unittest  # noqa: E402

import api  # noqa: E402
import openai  # noqa: E402

CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"],
        "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": CITY}}


class Client(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = api.Server("--api-key", "k", *api.SPECULATE)
        cls.url = f"http://127.0.0.1:{cls.s.port}/v1"
        cls.client = openai.OpenAI(base_url=cls.url, api_key="k", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.s.stop() == 0

    def ask(self, **fields):
        fields.setdefault("messages", [{"role": "user", "content": "Hello"}])
        return self.client.chat.completions.create(model="kimi-k3", **fields)

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], ["kimi-k3"])

    def test_chat(self):
        answer = self.ask(max_tokens=8, seed=1)
        self.assertEqual(answer.usage.completion_tokens, 8)
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertIsInstance(answer.choices[0].message.reasoning_content, str)

    def test_stream(self):
        whole = self.ask(max_tokens=20, seed=1, extra_body={"thinking": {"type": "disabled"}})
        text, usage = "", None
        for chunk in self.ask(max_tokens=20, seed=1, stream=True, stream_options={"include_usage": True},
                              extra_body={"thinking": {"type": "disabled"}}):
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
            usage = chunk.usage or usage
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(usage.completion_tokens, 20)

    def test_tools(self):
        fields = dict(tools=[TOOL], tool_choice="required", max_tokens=150, seed=2)
        message = self.ask(**fields).choices[0].message
        call = message.tool_calls[0]
        self.assertEqual(call.function.name, "weather")
        self.assertIn("city", json.loads(call.function.arguments))
        follow = self.ask(messages=[{"role": "user", "content": "Hello"}, message.model_dump(exclude_none=True),
                                    {"role": "tool", "tool_call_id": call.id, "content": "sunny"}], tools=[TOOL], max_tokens=5)
        self.assertEqual(follow.usage.completion_tokens, 5)
        with self.client.chat.completions.stream(model="kimi-k3", messages=[{"role": "user", "content": "Hello"}], tools=[TOOL],
                                                 tool_choice="required", max_tokens=150, seed=2) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion()
        self.assertEqual(final.choices[0].message.tool_calls[0].function.arguments, call.function.arguments)

    def test_structured_output(self):
        answer = self.ask(max_tokens=150, response_format={"type": "json_schema", "json_schema": {
            "name": "city", "strict": True, "schema": CITY}})
        self.assertEqual(set(json.loads(answer.choices[0].message.content)), {"city"})

    def test_picture(self):
        content = [{"type": "text", "text": "What is it?"},
                   {"type": "image_url", "image_url": {"url": api.data_url(api.png(56, 56)), "detail": "low"}}]
        self.assertEqual(self.ask(messages=[{"role": "user", "content": content}], max_tokens=4).usage.completion_tokens, 4)

    def test_completion(self):
        answer = self.client.completions.create(model="kimi-k3", prompt="Once", max_tokens=5, logprobs=2)
        self.assertEqual(len(answer.choices[0].logprobs.tokens), 5)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError):
            self.ask(temperature=7)
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "x"}])
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=self.url, api_key="wrong", max_retries=0).models.list()

    def test_async(self):
        async def run():
            async with openai.AsyncOpenAI(base_url=self.url, api_key="k") as client:
                async def one(i):
                    stream = await client.chat.completions.create(
                        model="kimi-k3", messages=[{"role": "user", "content": str(i)}], max_tokens=10, stream=True, seed=i)
                    n = 0
                    async for _ in stream:
                        n += 1
                    return n
                return await asyncio.gather(*(one(i) for i in range(8)))
        self.assertTrue(all(n > 3 for n in asyncio.run(run())))


if __name__ == "__main__":
    api.main()
