#!/usr/bin/env python3
"""Writes the checkpoint of the server tests under the folder given: `api`, random weights with the genuine tokenizer
(vocabulary 163,840) and a small vision tower, and `api-draft`, a DSpark draft for it. Answers are noise, which is what the
tests want: nothing may depend on a model that behaves. Set-up of the fixture `api_model`: servers
started by hand may go on with the old files."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tools"))
import make_checkpoint  # noqa: E402

ARCH = ["--hidden", "32", "--layers", "3", "--mla-layers", "2", "--block", "2", "--experts", "3", "--top", "2",
        "--vocab", "163840", "--inter", "32", "--heads", "2", "--kv-lora", "16", "--nope", "8", "--rope", "4",
        "--v-dim", "12", "--kda-heads", "2", "--kda-dim", "8", "--expert-inter", "32", "--latent", "32"]


def main(folder):
    api = os.path.join(folder, "api")
    make_checkpoint.main(["random", api, "--vision", "--draft", os.path.join(folder, "api-draft"), *ARCH])
    tokenizer = os.path.join(HERE, "..", "data", "tokenizer")
    make_checkpoint.copy_files(api, *(os.path.join(tokenizer, name) for name in ("tiktoken.model", "tokenizer_config.json")))


if __name__ == "__main__":
    main(sys.argv[1])
