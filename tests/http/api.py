"""What the server tests share: starting `k3 serve`, asking it over plain sockets, reading streams."""
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import unittest

K3 = os.environ.pop("TEST_K3_PROGRAM")
MODELS = os.environ.pop("TEST_K3_MODELS")
SOURCE = os.environ.pop("TEST_K3_SOURCE")
QUICK = bool(os.environ.get("TEST_K3_QUICK"))  # under sanitizers
DATA = os.path.join(SOURCE, "tests", "data")
API, DRAFT = os.path.join(MODELS, "api"), os.path.join(MODELS, "api-draft")
SPECULATE = ["--speculative-config", json.dumps({"method": "dspark", "model": DRAFT, "num_speculative_tokens": 4})]


class Server:
    """A running `k3 serve` on a free port."""

    def __init__(self, *options, model=API, name="kimi-k3", preexec_fn=None):
        self.log = tempfile.TemporaryFile(mode="w+")
        command = [K3, "serve", model, "--port", "0", "--served-model-name", name, *map(str, options)]
        env = {k: v for k, v in os.environ.items() if not k.startswith("K3_")}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env, preexec_fn=preexec_fn)
        self.port = None
        for line in self.process.stderr:
            self.log.write(line)
            found = re.search(r"ready at http://.*:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                break
        if self.port is None:
            raise AssertionError(f"the server did not start: {self.text()}")
        self.drain = threading.Thread(target=self._copy, daemon=True)
        self.drain.start()

    def _copy(self):
        for line in self.process.stderr:
            self.log.write(line)

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def connect(self, timeout=600):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None, connection=None):
        """(status, headers, bytes). A dict or list as body is sent as JSON."""
        headers = dict(headers or {})
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        own = connection is None
        connection = connection or self.connect()
        try:
            connection.request(method, path, body=body, headers=headers)
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            if own:
                connection.close()

    def post(self, path, body, status=200, headers=None):
        got, _, data = self.request("POST", path, body, headers)
        if got != status:
            raise AssertionError(f"{path}: HTTP {got}, expected {status}: {data[:600]!r}")
        return json.loads(data)

    def get(self, path, status=200, headers=None):
        got, _, data = self.request("GET", path, headers=headers)
        if got != status:
            raise AssertionError(f"{path}: HTTP {got}, expected {status}: {data[:600]!r}")
        return data

    def chat(self, status=200, **fields):
        return self.post("/v1/chat/completions", fields, status)

    def ask(self, text, status=200, **fields):
        return self.chat(status, messages=[{"role": "user", "content": text}], **fields)

    def stream(self, path="/v1/chat/completions", **fields):
        """All events of a stream; the last must be [DONE]."""
        fields["stream"] = True
        connection = self.connect()
        try:
            connection.request("POST", path, json.dumps(fields), {"Content-Type": "application/json"})
            response = connection.getresponse()
            data = response.read().decode()
            if response.status != 200:
                raise AssertionError(f"{path}: HTTP {response.status}: {data[:600]}")
            parts = data.split("\n\n")
            if parts[-2:] != ["data: [DONE]", ""]:
                raise AssertionError(f"the stream ends with {parts[-2:]}")
            return [json.loads(p.removeprefix("data: ")) for p in parts[:-2]]
        finally:
            connection.close()

    def metric(self, name, **labels):
        total = None
        for line in self.get("/metrics").decode().splitlines():
            if not line.startswith(f"vllm:{name}{{"):
                continue
            if all(f'{k}="{v}"' in line for k, v in labels.items()):
                total = (total or 0) + float(line.rsplit(" ", 1)[1])
        if total is None:
            raise AssertionError(f"no metric {name} {labels}")
        return total

    def wait_idle(self, seconds=20):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.metric("num_requests_running") == 0 and self.metric("num_requests_waiting") == 0:
                return
            time.sleep(0.02)
        raise AssertionError("requests are still running")

    def stop(self, how=signal.SIGTERM, timeout=60):
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(timeout)
        self.process.stderr.close()
        return code


@contextlib.contextmanager
def serving(*options, **kw):
    server = Server(*options, **kw)
    try:
        yield server
        if server.process.poll() is not None:
            raise AssertionError(f"the server has ended with {server.process.returncode}: {server.text()}")
    finally:
        code = server.stop()
    if code != 0:
        raise AssertionError(f"the server exits with {code}: {server.text()}")


def merge(events):
    """The message that the chunks of a chat stream make, its finish reason, and the last usage seen."""
    message, reason, usage = {"content": "", "reasoning_content": "", "tool_calls": []}, None, None
    for e in events:
        usage = e.get("usage") or usage
        for c in e.get("choices", []):
            usage = c.get("usage") or usage
            reason = c.get("finish_reason") or reason
            delta = c.get("delta", {})
            for key in ("content", "reasoning_content"):
                message[key] += delta.get(key) or ""
            assert delta.get("reasoning") == delta.get("reasoning_content"), "two names of one thing"
            for t in delta.get("tool_calls", []):
                if "id" in t:
                    message["tool_calls"].append({"id": t["id"], "name": t["function"]["name"], "arguments": ""})
                message["tool_calls"][t["index"]]["arguments"] += t["function"].get("arguments", "")
    return message, reason, usage


def plain(message):
    """A whole message in the form of merge()."""
    calls = [{"id": c["id"], "name": c["function"]["name"], "arguments": c["function"]["arguments"]}
             for c in message.get("tool_calls", [])]
    assert message.get("reasoning") == message.get("reasoning_content"), "two names of one thing"
    return {"content": message["content"] or "", "reasoning_content": message.get("reasoning_content") or "",
            "tool_calls": calls}


def without_ids(message):
    return {**message, "tool_calls": [{k: v for k, v in c.items() if k != "id"} for c in message["tool_calls"]]}


def png(width, height, color=(200, 30, 30)):
    """A PNG file of one colour."""
    import struct
    import zlib

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes(color) * width for _ in range(height))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def data_url(data, kind="image/png"):
    import base64
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def main():
    unittest.main()
