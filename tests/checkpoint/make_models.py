#!/usr/bin/env python3
"""Writes the synthetic checkpoints that C tests open, under the folder given: golden models A and B, `tiny` (two
shards, index, vision) with drafts `tiny-mla` and `tiny-gqa`, `one` (a single file), `words` (the genuine tokenizer). Runs
once per ctest, as the set-up of the fixture `models`."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import make_checkpoint  # noqa: E402

SMALL = ["--hidden", "32", "--layers", "3", "--mla-layers", "2", "--block", "2", "--experts", "3", "--top", "2", "--vocab",
         "64", "--inter", "32", "--heads", "2", "--kv-lora", "16", "--nope", "8", "--rope", "4", "--v-dim", "12",
         "--kda-heads", "2", "--kda-dim", "8", "--expert-inter", "32", "--latent", "32"]


def main(folder):
    at = lambda name: os.path.join(folder, name)
    for name in "AB":
        make_checkpoint.main(["golden", name, at(name)])
    make_checkpoint.main(["random", at("tiny"), "--shards", "2", "--vision", "--draft", at("tiny-mla"), *SMALL])
    make_checkpoint.main(["random", at("one"), "--shards", "1", "--draft", at("tiny-gqa"), "--draft-kind", "gqa",
                          "--draft-tap-norms", "--draft-causal", "--draft-stream", "prefix", *SMALL])
    vocab = SMALL.index("--vocab") + 1
    make_checkpoint.main(["random", at("words"), *SMALL[:vocab], "163840", *SMALL[vocab + 1:]])
    tokenizer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "tokenizer")
    make_checkpoint.copy_files(at("words"), *(os.path.join(tokenizer, name) for name in ("tiktoken.model", "tokenizer_config.json")))


if __name__ == "__main__":
    main(sys.argv[1])
