"""`vllm serve` with the commands of docs/recipes/vllm.md, under the openai client and vLLM's own bench."""

import base64
import io
import json
import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import pytest
from conftest import DRAFT, MODEL, REPO, not_run

pytest.importorskip("vllm", reason="NOT RUN: vLLM is not installed")
openai = pytest.importorskip("openai")

BIN = os.path.dirname(sys.executable)
RECIPES = (REPO / "docs" / "recipes" / "vllm.md").read_text()
START_SECONDS = 600


def recipe(heading: str, program: str = "vllm serve") -> list[str]:
    """The command under a heading of the recipes, with the test's model in place of models/mini."""
    section = RECIPES.split(f"### {heading}\n")[1].split("\n### ")[0]
    block = next(b for b in re.findall(r"```sh\n(.*?)```", section, re.S) if b.startswith(program))
    words = [word.replace("models/mini-dspark", DRAFT) for word in shlex.split(block.replace("\\\n", " "))]
    words = [MODEL if word == "models/mini" else word for word in words]
    return [os.path.join(BIN, words[0]), *words[1:]] if words[0] == "vllm" else words


class Server:
    def __init__(self, command: list[str], log):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        environment = {k: v for k, v in os.environ.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"}
        self.log = log
        self.process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(self.port)], cwd=REPO, env=environment,
            stdout=log.open("w"), stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.client = openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", timeout=300)

    def wait(self) -> "Server":
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            try:
                self.model = self.client.models.list().data[0].id
                return self
            except openai.OpenAIError:
                time.sleep(1)
        raise AssertionError(f"the server did not start:\n{self.log.read_text()[-3000:]}")

    def chat(self, content, **options):
        options = {"temperature": 0, "max_tokens": 64, **options}
        return self.client.chat.completions.create(
            model=self.model, messages=[{"role": "user", "content": content}], **options
        )

    def stop(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


@pytest.fixture(scope="module")
def serve(model, draft, tmp_path_factory):
    """serve(heading) -> a running server of that recipe; the one before is stopped."""
    current: dict[str, Server] = {}

    def get(heading: str) -> Server:
        if heading not in current:
            for server in current.values():
                server.stop()
            current.clear()
            log = tmp_path_factory.mktemp("server") / "log"
            current[heading] = Server(recipe(heading), log)
            current[heading].wait()
        return current[heading]

    yield get
    for server in current.values():
        server.stop()


@pytest.fixture(scope="module")
def own(model):
    """`k3 serve` with the same model."""
    from test_engine import K3

    if not os.path.exists(K3):
        not_run(f"{K3} is not built")
    process = subprocess.Popen([K3, "serve", model, "--port", "0"], stderr=subprocess.PIPE, text=True)
    port = next(found[1] for line in process.stderr if (found := re.search(r"ready at http://.*:(\d+)", line)))
    threading.Thread(target=process.stderr.read, daemon=True).start()
    yield openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=300)
    process.terminate()
    process.wait()


QUESTION = "What is 17 + 25?"


def test_every_recipe_is_run_below():
    section = RECIPES.split("## Recipes\n")[1].split("\n## ")[0]
    headings = set(re.findall(r"^### (.+)$", section, re.M))
    source = pathlib.Path(__file__).read_text()
    used = set(re.findall(r'(?:serve|recipe)\("([^"]+)"', source))
    assert headings == used
    assert section.count("```sh") == len(headings) + 1  # one each, and curl


@pytest.fixture(scope="module")
def expected(model) -> list[int]:
    from test_engine import K3, k3_run

    from k3_vllm.tokenizer import K3Tokenizer

    if not os.path.exists(K3):
        not_run(f"{K3} is not built")
    ids = K3Tokenizer(model).apply_chat_template([{"role": "user", "content": QUESTION}])
    return k3_run(model, ids, 64)


def tokens_of(server: Server, content, **options) -> list[int]:
    answer = server.chat(content, extra_body={"return_token_ids": True}, **options)
    return list(answer.choices[0].token_ids)


def picture_url() -> str:
    from test_engine import pictures

    data = io.BytesIO()
    pictures()[0].save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def test_text(serve, expected):
    server = serve("Text")
    tokens = tokens_of(server, QUESTION)
    assert tokens[: len(expected)] == expected
    curl = [word.replace(":8000", f":{server.port}") for word in recipe("Text", "curl")]
    by_curl = json.loads(subprocess.run(curl, capture_output=True, text=True, check=True).stdout)
    assert by_curl["choices"][0]["message"]["content"] == server.chat(QUESTION, max_tokens=None).choices[0].message.content
    completion = server.client.completions.create(model=server.model, prompt="A package", max_tokens=8, temperature=0)
    assert completion.usage.completion_tokens == 8


def test_stop_strings_logprobs_and_several_answers(serve):
    server = serve("Text")
    answer = server.chat(QUESTION, logprobs=True, top_logprobs=3, n=2, stop=["="], temperature=0.5, seed=1).choices
    assert len(answer) == 2 and all("=" not in (choice.message.content or "") for choice in answer)
    assert all(len(entry.top_logprobs) == 3 for entry in answer[0].logprobs.content)


def test_json_schema(serve):
    def ask(schema) -> tuple[str, str]:
        answer = serve("Text").chat(
            QUESTION, extra_body={"chat_template_kwargs": {"thinking": False}},
            response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
        ).choices[0]  # fmt: skip
        return answer.message.content, answer.finish_reason

    content, finish = ask({"enum": ["yes", "no", "perhaps"]})
    assert json.loads(content) in ("yes", "no", "perhaps") and finish == "stop"
    content, finish = ask({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
                           "additionalProperties": False})  # fmt: skip
    if finish == "stop":
        assert json.loads(content).keys() == {"ok"}
    else:  # a small model may add blanks for ever, which the grammar allows
        assert re.fullmatch(r'\{\s*("ok"\s*(:\s*((true|false)\s*)?)?)?', content), content


def test_prompt_too_long_and_unsupported_parameters_are_400(serve):
    server = serve("Text")
    with pytest.raises(openai.BadRequestError, match="(?i)maximum context length|max_model_len"):
        server.chat("word " * 5000)
    with pytest.raises(openai.BadRequestError, match="thinking_token_budget"):
        server.chat(QUESTION, extra_body={"thinking_token_budget": 5})


def test_a_client_that_hangs_up_frees_its_slot(serve, expected):
    server = serve("Text")
    streams = [
        server.chat(QUESTION, stream=True, max_tokens=1900, extra_body={"ignore_eos": True}) for _ in range(8)
    ]  # all slots
    for stream in streams:
        next(stream)
        stream.close()
    assert tokens_of(server, QUESTION)[: len(expected)] == expected
    end = time.monotonic() + 60
    while running(server) and time.monotonic() < end:
        time.sleep(0.2)
    assert running(server) == 0


def running(server: Server) -> float:
    return float(re.search(r"^vllm:num_requests_running\{.*\} ([\d.]+)", metrics(server), re.M)[1])


def metrics(server: Server) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
        return answer.read().decode()


@pytest.mark.parametrize("which", ["vllm serve", "k3 serve"])
def test_bench_serve_completes(serve, own, which):
    port = serve("Text").port if which == "vllm serve" else own.base_url.port
    out = subprocess.run(
        [*recipe("Load", "vllm bench"), "--host", "127.0.0.1", "--port", str(port)],
        capture_output=True, text=True, timeout=900, cwd=REPO,
    )  # fmt: skip
    assert re.search(r"Successful requests:\s+8\b", out.stdout), out.stdout[-2000:] + out.stderr[-2000:]


def test_a_picture_gets_the_answer_of_k3_serve(serve, own):
    server = serve("Pictures, reasoning and tools")
    content = [
        {"type": "text", "text": "Look at this:"},
        {"type": "image_url", "image_url": {"url": picture_url()}},
        {"type": "text", "text": "What is shown?"},
    ]
    ours = own.chat.completions.create(
        model=own.models.list().data[0].id, messages=[{"role": "user", "content": content}], temperature=0, max_tokens=64,
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    want = list(ours.choices[0].token_ids)
    assert tokens_of(server, content)[: len(want)] == want and want


def test_picture_reasoning_and_stream(serve):
    server = serve("Pictures, reasoning and tools")
    content = [
        {"type": "image_url", "image_url": {"url": picture_url()}},
        {"type": "text", "text": "What is shown?"},
    ]
    whole = server.chat(content).choices[0].message
    assert whole.content or whole.reasoning
    pieces = list(server.chat(content, stream=True))
    text = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
    assert text == (whole.content or "")


def test_bad_picture_is_400(serve):
    server = serve("Pictures, reasoning and tools")
    with pytest.raises(openai.BadRequestError):
        server.chat([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}])


def test_tool_call(serve):
    server = serve("Pictures, reasoning and tools")
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city",
            "parameters": {
                "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"],
            },
        },
    }  # fmt: skip
    answer = server.chat("What is the weather in Paris?", tools=[tool], tool_choice="required", max_tokens=160)
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city"}


def test_dspark_and_prefix_caching(serve, expected):
    server = serve("DSpark and prefix caching")
    for _ in range(2):
        assert tokens_of(server, QUESTION)[: len(expected)] == expected
    accepted = re.search(r"^vllm:spec_decode_num_accepted_tokens_total\{.*\} ([\d.]+)", metrics(server), re.M)
    assert float(accepted[1]) > 0


def test_kvv_recipe_answers(serve, expected):
    server = serve("KVV (Kimi Vendor Verifier)")
    assert server.model == "kimi-k3"
    assert tokens_of(server, QUESTION)[: len(expected)] == expected


def test_tensor_parallelism(serve, expected):
    server = serve("Tensor parallelism")
    assert tokens_of(server, QUESTION)[: len(expected)] == expected
    first, again = (server.chat(QUESTION, temperature=1.0, seed=3).choices[0].message.content for _ in range(2))
    assert first == again


def test_overhead_bench_gives_its_ratios(model):
    from test_engine import K3

    if not os.path.exists(K3):
        not_run(f"{K3} is not built")
    command = [sys.executable, REPO / "bench" / "vllm_overhead.py", model, "--rounds", "1", "--tokens", "8", "--batch", "2"]
    out = subprocess.run(command, env={**os.environ, "K3": K3}, capture_output=True, text=True, check=True).stdout
    assert len(re.findall(r"/ k3 serve: \d+\.\d+ \(", out)) == 4, out
