#!/usr/bin/env python3
"""Accuracy on the Fashion-MNIST test set through `k3 run`, as a user would ask.

    bench/fashion_accuracy.py [-m models/mini] [--golden tests/data/mini/golden.json] [-n 1000] [--jobs 2]

The prompt is the golden one that asks what a single 56 x 56 picture shows; each test picture, doubled to that size, takes
the place of its picture. Needs the Debian package dataset-fashion-mnist (Expat licence). Prints the accuracy with its
95 % interval, and the pairs that were confused most. tools/mini/fashion.py asks PyTorch the same questions beside it."""
import argparse
import collections
import gzip
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
CLASSES = ["T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"]
SIDE = 28


def png(gray):
    """A 28 x 28 picture, doubled, as an RGB PNG file."""
    rows = b""
    for y in range(SIDE):
        line = bytes(v for x in range(SIDE) for v in [gray[y * SIDE + x]] * 6)
        rows += (b"\0" + line) * 2

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", 2 * SIDE, 2 * SIDE, 8, 2, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def template(path, pad):
    """The ids of the golden prompt with one placeholder for its picture."""
    with open(path) as f:
        golden = json.load(f)
    for p in golden if isinstance(golden, list) else golden["prompts"]:
        if p["name"] == "picture: clothing":
            im, = p["images"]
            ids = p["prompt_ids"][:im["first_pad"]] + [pad] + p["prompt_ids"][im["first_pad"] + im["tokens"]:]
            return ",".join(map(str, ids)), len(p["greedy_ids"]) + 12
    sys.exit(f"{path}: no prompt 'picture: clothing'")


def label_of(text):
    """The class that an answer names last, None if it names none. 'T-shirt' is not 'shirt'."""
    at = [(max(text.rfind(f" {name}."), text.rfind(f" {name}s.")), i) for i, name in enumerate(CLASSES)]
    best = max(at)
    return best[1] if best[0] >= 0 else None


def parser_of(doc):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default=os.path.join(ROOT, "models", "mini"))
    parser.add_argument("--golden", default=os.path.join(ROOT, "tests", "data", "mini", "golden.json"))
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--k3", default=os.path.join(ROOT, "build", "release", "bin", "k3"))
    parser.add_argument("--mode", default="bf16")
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    return parser


def read(args):
    """The first n test pictures, 784 gray bytes each, and their labels."""
    with gzip.open(os.path.join(args.data, "t10k-images-idx3-ubyte.gz")) as f:
        pixels = f.read()[16:]
    with gzip.open(os.path.join(args.data, "t10k-labels-idx1-ubyte.gz")) as f:
        labels = f.read()[8:8 + args.n]
    return [pixels[i * SIDE * SIDE:(i + 1) * SIDE * SIDE] for i in range(len(labels))], labels


def pad_of(args):
    with open(os.path.join(args.model, "config.json")) as f:
        return json.load(f)["media_placeholder_token_id"]


def prompt(args):
    """Ids with one placeholder for the picture, and the most tokens of an answer."""
    return template(args.golden, pad_of(args))


def ask_k3(args, pictures):
    """What `k3 run` says to each picture, as classes."""
    ids, most = prompt(args)

    def answer(i):
        path = os.path.join(folder, f"{i}.png")
        with open(path, "wb") as f:
            f.write(png(pictures[i]))
        command = [args.k3, "run", "-m", args.model, "--ids", ids, "-n", str(most), "--mode", args.mode, "--threads", "1",
                   "--image", path]
        out = subprocess.run(command, capture_output=True, check=True).stdout.decode()
        os.remove(path)
        return label_of(out)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:
        return list(pool.map(answer, range(len(pictures))))


def report(got, labels):
    right = sum(g == w for g, w in zip(got, labels))
    share = right / len(labels)
    print(f"{right} of {len(labels)} right: {100 * share:.1f} % "
          f"(+- {196 * math.sqrt(share * (1 - share) / len(labels)):.1f})")
    wrong = collections.Counter((CLASSES[w], "nothing" if g is None else CLASSES[g])
                                for g, w in zip(got, labels) if g != w)
    for (want, said), n in wrong.most_common(5):
        print(f"  {n} x {want} called {said}")


def main():
    args = parser_of(__doc__).parse_args()
    pictures, labels = read(args)
    report(ask_k3(args, pictures), labels)


if __name__ == "__main__":
    main()
