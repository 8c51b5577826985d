#!/usr/bin/env python3
"""Checkpoints whose data begin at any byte: a header's length is the writer's choice. Files beyond the first 64 MB are
mapped and used where they are, so every answer must come from there as it does from lines."""
import hashlib
import json
import os
import struct
import tempfile
import unittest

import cli
from cli import model, run

VOCAB = 600000  # rows of zeros, holes in the files, make each too large to be read into lines of our own
TALL = ("embed_tokens.weight", "lm_head.weight", "markov_w1.weight", "markov_w2.weight")
OFFSETS = (1, 2)  # from a line, in bytes: inside a bf16, inside a float; 0 is the yardstick


def tensors_of(folder):
    """[(name, entry, bytes)] of all files in `folder`."""
    found = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            with open(os.path.join(folder, name), "rb") as f:
                blob = f.read()
            start = 8 + struct.unpack("<Q", blob[:8])[0]
            for key, entry in json.loads(blob[8:start]).items():
                if key != "__metadata__":
                    begin, end = (start + x for x in entry["data_offsets"])
                    found.append((key, entry, blob[begin:end]))
    return found


def write_odd(source, folder, offset):
    """The checkpoint `source` with VOCAB tokens as one file, data `offset` bytes behind a line."""
    os.mkdir(folder)
    header, parts, at = {}, [], 0
    for key, entry, data in tensors_of(source):
        shape = list(entry["shape"])
        if key.endswith(TALL):
            shape[0] = VOCAB
        size = len(data) // entry["shape"][0] * shape[0] if shape else len(data)
        header[key] = {"dtype": entry["dtype"], "shape": shape, "data_offsets": [at, at + size]}
        parts.append((at, data))
        at += size
    if "context_proj.weight" in header:  # drafts may hold the target's embedding, which nothing reads
        header["embed_tokens.weight"] = {"dtype": "BF16", "shape": [VOCAB, 32], "data_offsets": [at, at + VOCAB * 64]}
        at += VOCAB * 64
    assert at > 64 << 20
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64 + offset)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)
        for begin, data in parts:
            f.seek(8 + len(text) + begin)
            f.write(data)
    for name in ("config.json", "preprocessor_config.json"):
        if os.path.exists(os.path.join(source, name)):
            with open(os.path.join(source, name)) as f, open(os.path.join(folder, name), "w") as g:
                config = json.load(f)
                for part in (config, config.get("text_config", {})):
                    part.update({k: VOCAB for k in ("vocab_size", "draft_vocab_size") if k in part})
                json.dump(config, g)


class Odd(unittest.TestCase):
    def answers(self, target, draft):
        """Command and options -> hash of what the program says, for everything that reads weights: text, drafts, pictures."""
        spec = json.dumps({"method": "dspark", "model": draft, "num_speculative_tokens": 3, "adaptive": False})
        picture = os.path.join(cli.DATA, "image", "rgb420.jpg")
        calls = (*(("logits", "--ids", "5,6,7", "-o", "-", "--mode", mode) for mode in ("bf16", "f32")),
                 ("run", "--ids", "5,6,7", "-n", 6, "--output-ids"), ("encode-image", picture, "-o", "-"))
        said = {}
        for isa in ((), ("--isa", "ref")):
            for call in calls:
                extra = ("--speculative-config", spec) if call[0] == "run" else ()
                out, _ = run(*call, *isa, *extra, "-m", target, "--threads", 2)
                said[call + isa] = hashlib.sha256(out).hexdigest()
        return said

    def test_same_answers(self):
        for draft in ("tiny-mla", "tiny-gqa"):
            with tempfile.TemporaryDirectory() as d:

                def at(offset):
                    folder = os.path.join(d, str(offset))
                    os.mkdir(folder)
                    paths = os.path.join(folder, "target"), os.path.join(folder, "draft")
                    for source, path in zip(("tiny", draft), paths):
                        write_odd(model(source), path, offset)
                    return self.answers(*paths)

                want = at(0)
                for offset in OFFSETS:
                    self.assertEqual(at(offset), want, (draft, offset))


if __name__ == "__main__":
    cli.main()
