#!/usr/bin/env python3
"""`k3 chat`: one question, a session from a file, a session at a terminal. Its answers are the server's."""
import os
import pty
import select
import signal
import subprocess
import tempfile
import time
import unittest

import api

ENV = {k: v for k, v in os.environ.items() if not k.startswith("K3_")}
FIXED = ["-m", api.API, "--temperature", "0"]
GREEDY = {"temperature": 0}


def chat(*args, stdin=b"", code=0):
    p = subprocess.run([api.K3, "chat", *FIXED, *map(str, args)], input=stdin, capture_output=True, env=ENV, timeout=300)
    if p.returncode != code:
        raise AssertionError(f"exit {p.returncode}: {p.stderr.decode()}")
    return p.stdout.decode()


def user(text, url=None):
    return {"role": "user", "content": [{"type": "image_url", "image_url": url}, {"type": "text", "text": text}] if url else text}


def ended(pid, fd):
    """The exit code of a program at a terminal; what it still writes is read, so that it can end."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            if select.select([fd], [], [], 0.1)[0]:
                os.read(fd, 65536)
        except OSError:  # the program has closed the terminal
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError("the program does not end")


class Chat(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = api.Server()
        cls.folder = tempfile.TemporaryDirectory()
        cls.picture = os.path.join(cls.folder.name, "a picture.png")
        cls.url = api.data_url(api.png(56, 28))
        with open(cls.picture, "wb") as f:
            f.write(api.png(56, 28))

    @classmethod
    def tearDownClass(cls):
        assert cls.s.stop() == 0
        cls.folder.cleanup()

    def served(self, messages, n, thinking=None):
        message = self.s.chat(messages=messages, max_tokens=n, thinking=thinking or {"type": "disabled"}, **GREEDY)["choices"][0]["message"]
        return {k: message[k] for k in ("role", "content", "reasoning_content") if message.get(k) is not None}

    def test_once(self):
        want = self.served([user("What is it?")], 20)["content"]
        self.assertEqual(chat("--once", "What is it?", "-n", 20, "--think", "off"), want + "\n")
        seen = self.served([user("What is it?", self.url)], 20)["content"]
        self.assertNotEqual(seen, want)
        self.assertEqual(chat("--once", "What is it?", "--image", self.picture, "-n", 20, "--think", "off"), seen + "\n")
        told = self.served([{"role": "system", "content": "Be brief."}, user("What is it?")], 20)["content"]
        self.assertEqual(chat("--once", "What is it?", "--system", "Be brief.", "-n", 20, "--think", "off"), told + "\n")
        self.assertEqual(chat("--once", "What is it?", "-n", 5), "\n")  # thoughts are no answer, and not for a file
        self.assertEqual(chat("--once", "x", "--image", "/nowhere.png", code=1), "")

    def test_session(self):
        """History, levels of thinking, pictures, a new beginning, refusals: as the server answers the same conversations."""
        n, off, low = 12, {"type": "disabled"}, {"type": "enabled", "effort": "low"}
        first = self.served([user("Hello")], n, off)
        talk = [user("Hello"), first]
        second = self.served(talk + [user("And now?")], n, off)
        talk += [user("And now?"), second]
        third = self.served(talk + [user("Think")], n, low)
        pictured = self.served([user("Look", self.url)], n, low)
        later = self.served([user("Look", self.url), pictured, user("Hello")], n, off)
        said = chat("--think", "off", "-n", n, stdin=f"""Hello

And now?
/think low
Think
/reset
/think hard
/image
/image /nowhere.png
/image {self.picture}
Look
/think off
Hello
/reset
Hello
/what
/quit
never asked
""".encode())
        want = [first["content"], second["content"], "thinking: low", third["content"], "a new conversation", "/think takes off, low, high or max",
                "/image takes the name of a file", None, f"the next question carries {self.picture}", pictured["content"], "thinking: off", later["content"],
                "a new conversation", first["content"]]
        for text in want:
            if text is None:
                line, said = said.split("\n", 1)
                self.assertIn("/nowhere.png", line)
                continue
            self.assertTrue(said.startswith(text + "\n"), f"{said[:200]!r} does not begin with {text!r}")
            said = said[len(text) + 1:]
        self.assertTrue(said.startswith("/image FILE"))
        self.assertIn("Ctrl-C", said)

    def test_terminal(self):
        """Ctrl-C stops the answer, not the program; Ctrl-D ends it, at the prompt or typed ahead of it."""
        self.in_terminal(ahead=False)
        self.in_terminal(ahead=True)

    def in_terminal(self, ahead):
        pid, fd = pty.fork()
        if pid == 0:
            os.execve(api.K3, [api.K3, "chat", *FIXED, "--think", "high", *(["-n", "200"] if ahead else [])], {**ENV, "TERM": "dumb"})
        shown = b""

        def until(text, start=0):
            nonlocal shown
            end = time.monotonic() + 120
            while text not in shown[start:]:
                self.assertLess(time.monotonic(), end, shown[-400:])
                if select.select([fd], [], [], 1)[0]:
                    shown += os.read(fd, 65536)
            return len(shown)

        try:
            until(b"/help lists commands")
            os.write(fd, b"Talk for ever\r")
            begun = until(b"\x1b[2m")  # thoughts are dim
            if not ahead:
                os.write(fd, b"\x03")
                stopped = until(b"\x1b[0m", begun - 4)
                until(b"> ", stopped - 4)
                os.write(fd, b"/think off\r")
                told = until(b"thinking: off", stopped)
                until(b"> ", told - 4)
            os.write(fd, b"\x04")
            self.assertEqual(ended(pid, fd), 0)
        finally:
            os.close(fd)


if __name__ == "__main__":
    api.main()
