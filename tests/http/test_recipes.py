#!/usr/bin/env python3
"""Runs those docs/recipes/*.md that begin with a server, as they stand: the `k3 serve` line on a free port, every other block in bash in the root of the
repository, and looks for what the page promises (<!-- expect: regular expression --> behind a block)."""
import glob
import os
import re
import shlex
import subprocess
import sys
import unittest

import api

if not os.path.exists(os.path.join(api.SOURCE, "models", "mini", "config.json")):
    print("NOT RUN: models/mini is not here")
    sys.exit(77)


def blocks(path):
    """(code, [expected patterns]) in order."""
    found = []
    for kind, code, expect in re.findall(r"^```(\w+)\n(.*?)^```$|^<!-- expect: ([^\n]*) -->$", open(path).read(), re.M | re.S):
        if kind == "sh":
            found.append((code, []))
        elif expect:
            found[-1][1].append(expect)
    return found


class Recipes(unittest.TestCase):
    def run_page(self, path):
        found = blocks(path)
        command = shlex.split(found[0][0])
        self.assertEqual(command[:2], ["k3", "serve"], "a recipe begins with its server")
        env = dict(os.environ, PATH=os.path.dirname(api.K3) + ":" + os.environ["PATH"])
        os.chdir(api.SOURCE)
        name = command[command.index("--served-model-name") + 1]
        rest = [w for w in command[3:] if w not in ("--served-model-name", name)]
        with api.serving(*rest, model=command[2], name=name) as s:
            for code, expected in found[1:]:
                code = code.replace("127.0.0.1:8000", f"127.0.0.1:{s.port}")
                p = subprocess.run(["bash", "-euo", "pipefail", "-c", code], capture_output=True, text=True, env=env, timeout=240)
                self.assertEqual(p.returncode, 0, f"{code}\n{p.stderr}")
                self.assertTrue(expected, f"nothing is expected of\n{code}")
                for e in expected:
                    self.assertTrue(re.search(e, p.stdout, re.M), f"{code}\nprinted\n{p.stdout}\nexpected {e}")


def add(path):
    setattr(Recipes, "test_" + os.path.basename(path)[:-3].replace("-", "_"), lambda self: self.run_page(path))


for page in sorted(glob.glob(os.path.join(api.SOURCE, "docs", "recipes", "*.md"))):
    if "```sh\nk3 serve " in open(page).read():  # the others are no server sessions
        add(page)

if __name__ == "__main__":
    api.main()
