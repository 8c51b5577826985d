#!/usr/bin/env python3
"""tools/make_checkpoint.py against the generator's published self-check (text model 7.2), and the promises of random
checkpoints: size, all MXFP4 codes, decays at both ends, near-tied router rows."""
import json
import mmap
import os
import struct
import sys
import tempfile
import unittest

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import make_checkpoint as mc  # noqa: E402

LAYER = "language_model.model.layers."


def load(path):
    """name -> (dtype, shape, bytes)."""
    with open(path, "rb") as f:
        blob = f.read()
    n = struct.unpack("<Q", blob[:8])[0]
    entries = json.loads(blob[8:8 + n])
    return {k: (v["dtype"], v["shape"], blob[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]])
            for k, v in entries.items()}


def load_all(folder):
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            tensors.update(load(os.path.join(folder, name)))
    return tensors


class Golden(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory()
        for name in "AB":
            mc.main(["golden", name, os.path.join(cls.dir.name, name)])
        cls.a = load(os.path.join(cls.dir.name, "A", "model.safetensors"))
        cls.b = load(os.path.join(cls.dir.name, "B", "model.safetensors"))

    @classmethod
    def tearDownClass(cls):
        cls.dir.cleanup()

    def hex(self, name, kind, part):
        return " ".join("%0*x" % (2 * np.dtype(kind).itemsize, x) for x in np.frombuffer(self.a[name][2], kind)[part])

    def test_counts(self):
        for tensors, count, elements in ((self.a, 1002, 3039200), (self.b, 2068, 14721440)):
            self.assertEqual(len(tensors), count)
            self.assertEqual(sum(int(np.prod(s)) for _, s, _ in tensors.values()), elements)

    def test_hash(self):
        name = "language_model.model.norm.weight"
        self.assertEqual("%016x" % mc.name_hash(name), "4ef4b031da406a34")
        self.assertEqual(["%016x" % x for x in mc.hash_stream(name, 2)], ["d20634d1cd29d00b", "d136728bde9d06fe"])

    def test_values(self):
        first = slice(0, 4)
        for name, want, last in (
                ("language_model.model.norm.weight", "3f95 3f94 3f75 3f5f", "3fa0"),
                ("language_model.model.embed_tokens.weight", "3eee 3f20 bf72 bef9", "bf50"),
                (LAYER + "0.self_attn.q_proj.weight", "3b43 bb0c bb30 3a2b", "3af1"),
                (LAYER + "3.self_attn.kv_a_proj_with_mqa.weight", "b9de 39c6 3a03 b9d4", "be32")):
            self.assertEqual(self.hex(name, "<u2", first), want, name)
            self.assertEqual(self.hex(name, "<u2", slice(-1, None)), last, name)
        self.assertEqual(self.hex(LAYER + "0.self_attn.A_log", "<u4", slice(0, 8)),
                         "3f0f561e 3f0b0068 bee0aa10" + " 00000000" * 5)
        self.assertEqual(self.hex(LAYER + "0.self_attn.dt_bias", "<u4", first), "c06bfa16 c096a99f bfb81194 c04e7e98")
        self.assertEqual(self.hex(LAYER + "0.self_attn.q_conv1d.weight", "<u4", first),
                         "3ed46d90 bdbb31a0 3e682378 3e233a78")
        expert = LAYER + "1.block_sparse_moe.experts.0.w1."
        self.assertEqual(list(self.a[expert + "weight_packed"][2][:8]), [147, 245, 251, 164, 80, 231, 159, 159])
        self.assertEqual(list(self.a[expert + "weight_scale"][2][:8]), [122, 124, 123, 124, 124, 121, 121, 124])


class Random(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory()
        cls.path = os.path.join(cls.dir.name, "m")
        mc.main(["random", cls.path, "--size", "20M", "--layers", "5", "--experts", "7", "--shards", "3", "--seed", "9"])
        cls.tensors = load_all(cls.path)

    @classmethod
    def tearDownClass(cls):
        cls.dir.cleanup()

    def test_size_and_index(self):
        total = sum(len(d) for _, _, d in self.tensors.values())
        self.assertLess(abs(total - 20e6), 5e6)
        with open(os.path.join(self.path, "model.safetensors.index.json")) as f:
            index = json.load(f)
        self.assertEqual(index["metadata"]["total_size"], total)
        self.assertEqual(index["weight_map"].keys(), self.tensors.keys())
        self.assertEqual(len(set(index["weight_map"].values())), 3)

    def test_all_codes_and_both_decays(self):
        packed = np.frombuffer(self.tensors[LAYER + "1.block_sparse_moe.experts.0.w1.weight_packed"][2], np.uint8)
        self.assertEqual(len(set((packed & 15).tolist()) & set((packed >> 4).tolist())), 16)
        bias = np.frombuffer(self.tensors[LAYER + "0.self_attn.dt_bias"][2], "<f4")
        self.assertLess(bias.min(), -7)
        self.assertGreater(bias.max(), 4)

    def test_router_rows_nearly_tie(self):
        dtype, shape, data = self.tensors[LAYER + "1.block_sparse_moe.gate.weight"]
        rows = np.frombuffer(data, "<u2").reshape(shape)
        self.assertEqual(int((rows[0] != rows[1]).sum()), 1)
        self.assertGreater(int((rows[1] != rows[2]).sum()), shape[1] // 2)

    def test_seed_decides(self):
        again = os.path.join(self.dir.name, "again")
        mc.main(["random", again, "--size", "20M", "--layers", "5", "--experts", "7", "--shards", "1", "--seed", "9"])
        self.assertEqual(load_all(again), self.tensors)

    def test_mapped_files_stay(self):
        """Written anew, a checkpoint leaves alone what a running server has mapped; a failed write leaves the old file."""
        folder = os.path.join(self.dir.name, "twice")
        write = lambda seed: mc.main(["random", folder, "--size", "20M", "--layers", "5", "--experts", "7", "--shards", "1",
                                      "--seed", seed])
        write("9")
        path = os.path.join(folder, "model.safetensors")
        with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            before = bytes(mapped)
            write("10")
            self.assertEqual(bytes(mapped), before)
        with open(path, "rb") as f:
            after = f.read()
        self.assertNotEqual(after, before)
        with self.assertRaises(ZeroDivisionError):
            mc.write_file(path, [mc.norm("x", 8)], lambda t, arch: 1 // 0, None)
        with open(path, "rb") as f:
            self.assertEqual(f.read(), after)
        self.assertEqual(sorted(os.listdir(folder)), ["config.json", "model.safetensors"])


if __name__ == "__main__":
    unittest.main()
