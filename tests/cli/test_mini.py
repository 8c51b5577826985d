#!/usr/bin/env python3
"""The bundled model through the program: golden prompts of text, whose ids and logits come from the trainer's own
token-by-token oracle in fp32 (tools/mini/golden.py). Pictures: test_images.py."""
import json
import math
import os
import tempfile
import unittest

import cli
from cli import floats, run

MINI = os.path.join(cli.SOURCE, "models", "mini")
DRAFT = os.path.join(cli.SOURCE, "models", "mini-dspark")
GOLDEN = os.path.join(cli.DATA, "mini")


def comma(ids):
    return ",".join(map(str, ids))


class Mini(unittest.TestCase):
    def setUp(self):
        with open(os.path.join(GOLDEN, "golden.json")) as f:
            self.prompts = [p for p in json.load(f) if not p["images"]]

    def test_there_are_prompts(self):
        self.assertGreaterEqual(len(self.prompts), 15)

    def test_logits_of_the_last_prompt_id(self):
        with tempfile.TemporaryDirectory() as d:
            out = os.path.join(d, "logits")
            for p in self.prompts:
                run("logits", "-m", MINI, "--ids", comma(p["prompt_ids"]), "--mode", "f32", "-o", out)
                with open(os.path.join(GOLDEN, p["last_logits"]), "rb") as f:
                    want = floats(f.read())
                with open(out, "rb") as f:
                    f.seek(-4 * len(want), os.SEEK_END)
                    got = floats(f.read())
                far = math.dist(got, want) / math.hypot(*want)
                self.assertLess(far, 1e-4, p["name"])

    def test_greedy_ids(self):
        for p in self.prompts:
            want = p["greedy_ids"]
            if p["min_margin"] < 1e-3:
                continue
            n = len(want)
            out, _ = run("run", "-m", MINI, "--ids", comma(p["prompt_ids"]), "--mode", "f32", "--output-ids", "-n", n)
            got = [int(x) for x in out.decode().replace(",", " ").split()]
            self.assertEqual(got, want[:len(got)], p["name"])
            self.assertGreaterEqual(len(got), n - 1, p["name"])     # the end of the message is not printed

    def test_the_draft_changes_nothing(self):
        spec = json.dumps({"method": "dspark", "model": DRAFT, "num_speculative_tokens": 7})
        for p in self.prompts[:4]:
            args = ["run", "-m", MINI, "--ids", comma(p["prompt_ids"]), "--output-ids", "-n", 64]
            self.assertEqual(run(*args)[0], run(*args, "--speculative-config", spec)[0], p["name"])


if __name__ == "__main__":
    cli.main()
