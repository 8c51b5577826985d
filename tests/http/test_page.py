#!/usr/bin/env python3
"""The chat page in headless Chromium: it loads without errors, sends, streams, keeps the conversation, fits a phone. A small
proxy puts a driver script behind the page, since nothing outside may be loaded into it. Without Chromium: NOT RUN.

  test_page.py --shot MODEL DRAFT OUT.png   takes the picture of the README with a trained model"""
import http.client
import http.server
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    print("NOT RUN: no Chromium")
    sys.exit(77)

import api  # noqa: E402

DRIVER = """<script>
window.onerror = (m) => { document.body.dataset.error = m; };
async function drive(questions) {
  for (const q of questions) {
    $("input").value = q; $("input").dispatchEvent(new Event("input"));
    send();
    while (running) await new Promise((r) => setTimeout(r, 20));
  }
  document.body.dataset.turns = JSON.stringify(turns);
  document.body.dataset.kept = localStorage.getItem("k3.turns");
  document.body.dataset.wide = document.documentElement.scrollWidth > innerWidth;
  await new Promise((r) => setTimeout(r, 400)); /* transitions */
  await fetch("done");
}
Object.assign(settings, SETTINGS);
BEFORE
drive(QUESTIONS);
</script><img src="wait" alt="" width="0">"""


class Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def forward(self, body=None):
        if self.path in ("/wait", "/done"):  # the document is not loaded before the driver has finished
            self.server.done.set() if self.path == "/done" else self.server.done.wait(120)
            self.send_response(204)
            self.end_headers()
            return
        c = http.client.HTTPConnection("127.0.0.1", self.server.target, timeout=120)
        c.request(self.command, self.path, body, {"Content-Type": self.headers.get("Content-Type", "")})
        r = c.getresponse()
        self.send_response(r.status)
        self.send_header("Content-Type", r.getheader("Content-Type"))
        self.end_headers()
        if self.path == "/":
            driver = DRIVER.replace("QUESTIONS", json.dumps(self.server.questions))
            driver = driver.replace("SETTINGS", json.dumps(self.server.settings)).replace("BEFORE", self.server.before)
            page = r.read().replace(b"img-src data: blob:", b"img-src data: blob: 'self'")
            self.wfile.write(page.replace(b"</body>", driver.encode() + b"</body>"))
        else:
            while piece := r.read1():
                self.wfile.write(piece)

    def do_GET(self):
        self.forward()

    def do_POST(self):
        self.forward(self.rfile.read(int(self.headers["Content-Length"])))

    def log_message(self, *_):
        pass


def browse(port, questions, *options, settings=None, before=""):
    """Runs the page to its end, `before` first; returns the document as it is then."""
    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    proxy.target, proxy.questions, proxy.before, proxy.done = port, questions, before, threading.Event()
    proxy.settings = {"max_tokens": "30", "seed": "1", "temperature": "1", **(settings or {})}
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        with tempfile.TemporaryDirectory() as profile:
            p = subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                                f"--user-data-dir={profile}", "--timeout=150000", *options, "--dump-dom",
                                f"http://127.0.0.1:{proxy.server_address[1]}/"], capture_output=True, text=True, timeout=240)
        return p.stdout
    finally:
        proxy.shutdown()


def data(document, name):
    import html
    found = re.search(rf'data-{name}="([^"]*)"', document)
    return html.unescape(found.group(1)) if found else None


class Page(unittest.TestCase):
    def test_conversation(self):
        with api.serving(*api.SPECULATE, name="a-model") as s:
            for size in ("1100,760", "390,844"):
                document = browse(s.port, ["Hello <b>you</b>", "And again"], f"--window-size={size}")
                self.assertIsNone(data(document, "error"))
                turns = json.loads(data(document, "turns"))
                self.assertEqual([t["role"] for t in turns], ["user", "assistant"] * 2)
                for t in turns[1::2]:
                    self.assertNotIn("error", t)
                    self.assertTrue(t.get("text") or t.get("think"))
                    self.assertIn("30 tokens", t["note"])
                self.assertEqual(data(document, "kept"), data(document, "turns"))
                self.assertEqual(data(document, "wide"), "false")  # nothing sticks out sideways
                self.assertIn("Hello &lt;b&gt;you&lt;/b&gt;", document)
                self.assertIn("a-model", document)
                self.assertGreater(turns[3]["note"].find("reused"), 0)

    def test_markdown(self):
        """What answers are made of; whatever they hold stays text."""
        cases = [("a\n- b\n- c\nd", "<p>a</p><ul><li>b</li><li>c</li></ul><p>d</p>"), ("3. x\n4. y", '<ol start="3"><li>x</li><li>y</li></ol>'),
                 ("# T\nx", "<h3>T</h3><p>x</p>"), ("|a|b|\n|-|:-:|\n|1|`2`|", "<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td><code>2</code></td></tr></table>"),
                 ("```c\na<b\n```", "<pre><code>a&lt;b</code></pre>"), ("**b** *i* `*c*`", "<p><strong>b</strong> <em>i</em> <code>*c*</code></p>"),
                 ("[x](https://a.b/c?d=1&e)", '<p><a href="https://a.b/c?d=1&amp;e" target="_blank" rel="noopener noreferrer">x</a></p>'),
                 ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>"), ('[x](https://a"onclick="b)', '<p><a href="https://a&quot;onclick=&quot;b" target="_blank" rel="noopener noreferrer">x</a></p>'),
                 ("<img src=x onerror=alert(1)>", "<p>&lt;img src=x onerror=alert(1)&gt;</p>"), ("<script>", "<p>&lt;script&gt;</p>")]
        with api.serving() as s:
            document = browse(s.port, [], before="document.body.dataset.got = JSON.stringify(CASES.map(markdown));".replace(
                "CASES", json.dumps([source for source, _ in cases]).replace("</", "<\\/").replace("<script", "<\\u0073cript")))
            for (source, want), got in zip(cases, json.loads(data(document, "got"))):
                self.assertEqual(got, want, source)

    def test_errors_are_shown(self):
        with api.serving("--api-key", "k") as s:
            document = browse(s.port, ["Hello"])
            self.assertIn("Unauthorized", data(document, "turns"))


def shot(model, draft, out):
    questions = ["Hello!", "What is 347 + 268?"]
    with api.serving("--speculative-config", json.dumps({"method": "dspark", "model": draft}), model=model, name="k3-mini") as s:
        for suffix, scheme in (("", 1), ("-dark", 0)):
            browse(s.port, questions, "--window-size=1100,760", f"--blink-settings=preferredColorScheme={scheme}",
                   f"--screenshot={out.removesuffix('.png')}{suffix}.png", settings={"max_tokens": "", "temperature": "0"})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--shot"]:
        shot(*sys.argv[2:])
    else:
        api.main()
