#!/usr/bin/env python3
"""Pictures from outside: published preprocessing vectors through `k3 encode-image`, refusals, and the golden picture
prompts of the bundled model through `k3 run --image`."""
import json
import os
import struct
import tempfile
import unittest
import zlib

import cli
from cli import floats, model, refused, run

IMAGES = os.path.join(cli.DATA, "image")
MINI = os.path.join(cli.SOURCE, "models", "mini")
GOLDEN = os.path.join(cli.DATA, "mini")


def form_png(w, h, c):
    """The synthetic picture of the published vectors as a PNG file."""
    rows = b"".join(b"\0" + bytes((37 * x + 91 * y + 53 * k + x * y) & 255 for x in range(w) for k in range(c))
                    for y in range(h))

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", w, h, 8, {3: 2, 4: 6}[c], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


class Encode(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.dir.cleanup()

    def file(self, name, data):
        path = os.path.join(self.dir.name, name)
        with open(path, "wb") as f:
            f.write(data)
        return path

    def test_patches_have_the_published_bytes(self):
        for w, h, c, limit, crc in ((303, 181, 3, 65536, 0x09E756CB), (303, 181, 4, 65536, 0xFD429F38),
                                    (303, 181, 3, 64, 0xB6397B0C), (303, 181, 4, 64, 0x346F65FF),
                                    (30, 16, 3, 65536, 0x71D4615A)):
            path = self.file("form.png", form_png(w, h, c))
            out, _ = run("encode-image", "-m", model("tiny"), path, "--patches", "-", "--image-patches", limit)
            self.assertEqual(zlib.crc32(out), crc)

    def test_info(self):
        for w, h, grid, tokens in ((30, 16, (4, 2), 2), (448, 449, (32, 34), 272), (1500, 50, (108, 4), 108)):
            path = self.file("form.png", form_png(w, h, 3))
            out, _ = run("encode-image", "-m", model("tiny"), path, "--info", "--json")
            info = json.loads(out)
            self.assertEqual((info["width"], info["height"]), (w, h))
            self.assertEqual((info["grid_width"], info["grid_height"]), grid)
            self.assertEqual((info["patches"], info["tokens"]), (grid[0] * grid[1], tokens))

    def test_rows(self):
        path = os.path.join(IMAGES, "rgb420.jpg")
        one, _ = run("encode-image", "-m", model("tiny"), path, "-o", "-", "--threads", 1)
        self.assertEqual(len(one), 2 * 2 * 32 * 4)  # 45 x 37 pixels: 2 x 2 rows
        self.assertTrue(all(abs(x) < 100 for x in floats(one)))
        three, _ = run("encode-image", "-m", model("tiny"), path, "-o", "-", "--threads", 3)
        self.assertEqual(one, three)
        other, _ = run("encode-image", "-m", model("tiny"), os.path.join(IMAGES, "gray.jpg"), "-o", "-")
        self.assertNotEqual(one, other)

    def test_a_large_picture_shows_progress(self):
        """On a terminal, and only there."""
        path = self.file("large.png", form_png(14 * 64, 14 * 64, 3))
        args = ("encode-image", "-m", model("tiny"), path, "-o", "-")
        want, err = run(*args)
        self.assertEqual(err, b"")
        out, shown = cli.on_terminal(*args)
        self.assertEqual(out, want)
        self.assertIn("encoding pictures: step", shown)
        self.assertTrue(shown.endswith("\r\x1b[K"), repr(shown[-20:]))
        self.assertNotIn("encoding", cli.on_terminal(*args[:3], self.file("small.png", form_png(28, 28, 3)), *args[4:])[1])

    def test_the_name_does_not_tell_the_format(self):
        with open(os.path.join(IMAGES, "lossy.webp"), "rb") as f:
            path = self.file("picture.png", f.read())
        run("encode-image", "-m", model("tiny"), path, "--info")

    def test_exif(self):
        path = os.path.join(IMAGES, "exif6.jpg")
        sizes = []
        for what in ("apply", "ignore"):
            out, _ = run("encode-image", "-m", model("tiny"), path, "--info", "--json", "--exif", what)
            sizes.append((json.loads(out)["width"], json.loads(out)["height"]))
        self.assertEqual(sizes, [(37, 45), (45, 37)])

    def test_refusals(self):
        command = ("encode-image", "-m", model("tiny"))
        with open(os.path.join(IMAGES, "rgb8.png"), "rb") as f:
            data = f.read()
        refused(*command, self.file("cut.png", data[:len(data) // 2]), "--info", word="truncated")
        refused(*command, self.file("empty.png", b""), "--info", word="empty")
        refused(*command, self.file("text.png", b"hello"), "--info", word="no picture")
        refused(*command, self.file("film.mp4", b"\0\0\0\x20ftypisom" + bytes(20)), "--info", word="video")
        refused(*command, "/nonexistent.png", "--info", word="/nonexistent.png")
        refused(*command, "--info", word="FILE")
        path = os.path.join(IMAGES, "rgb8.png")
        refused(*command, path, word="nothing to do")
        refused(*command, path, "--info", "-o", "-", word="standard output")
        refused(*command, path, "-o", "/nonexistent/rows", word="/nonexistent/rows")
        refused(*command, path, "--info", "--image-patches", "0", word="image-patches")
        refused("encode-image", "-m", model("A"), path, "--info", word="preprocessor_config.json")


def collapse(prompt, pad):
    """The ids with one placeholder a picture."""
    ids = list(prompt["prompt_ids"])
    for im in reversed(prompt["images"]):
        ids[im["first_pad"]:im["first_pad"] + im["tokens"]] = [pad]
    return ",".join(map(str, ids))


HAS_MINI = all(map(os.path.exists, (os.path.join(MINI, "config.json"), os.path.join(GOLDEN, "golden.json"))))
if not HAS_MINI:
    print("NOT RUN: k3 run --image: models/mini or tests/data/mini is missing")


@unittest.skipUnless(HAS_MINI, "the bundled model is missing")
class Run(unittest.TestCase):
    def setUp(self):
        with open(os.path.join(GOLDEN, "golden.json")) as f:
            golden = json.load(f)
        prompts = golden if isinstance(golden, list) else golden["prompts"]
        self.prompts = [p for p in prompts if p["images"]]
        with open(os.path.join(MINI, "config.json")) as f:
            config = json.load(f)
        self.pad = config["media_placeholder_token_id"]

    def answer(self, ids, files, n, *more):
        command = ["run", "-m", MINI, "--ids", ids, "--output-ids", "-n", n, *more]
        for name in files:
            command += ["--image", os.path.join(GOLDEN, name)]
        out, _ = run(*command)
        return [int(x) for x in out.split()]

    def test_golden(self):
        for p in self.prompts:
            files = [im["file"] for im in p["images"]]
            got = self.answer(collapse(p, self.pad), files, len(p["greedy_ids"]), "--mode", "f32")
            self.assertEqual(got, p["greedy_ids"][:len(got)])
            self.assertGreaterEqual(len(got), len(p["greedy_ids"]) - 1)  # the end of the message is not shown
            self.assertEqual(got, self.answer(collapse(p, self.pad), files, len(p["greedy_ids"]), "--mode", "f32",
                                              "--chunk", 3, "--threads", 1))

    def test_swapped_pictures_change_the_answer(self):
        for p in self.prompts:
            files = [im["file"] for im in p["images"]]
            if len(files) < 2:
                continue
            ids, n = collapse(p, self.pad), len(p["greedy_ids"])
            self.assertNotEqual(self.answer(ids, files, n), self.answer(ids, files[::-1], n))

    def test_marks(self):
        picture = os.path.join(GOLDEN, self.prompts[0]["images"][0]["file"])
        text = ("run", "-m", MINI, "-n", 8, "--output-ids")
        first, _ = run(*text, "-p", "<image> shows", "--image", picture)
        same, _ = run(*text, "-p", " shows", "--image", picture)
        self.assertEqual(first, same)
        refused(*text, "-p", "<image> and <image>", "--image", picture, word="2 marks")
        refused(*text, "--ids", "1,2", "--image", picture, word="placeholders")
        refused(*text, "-p", "x", "--exif", "ignore", word="--image")
        refused(*text, "-p", "x", "--image", os.path.join(GOLDEN, "golden.json"), word="golden.json")
        run(*text, "-p", "a literal <image> is text where no picture is given")


if __name__ == "__main__":
    cli.main()
