#!/usr/bin/env python3
"""Writes corpora of fuzz targets: tests/image/corpus_{jpeg,png,webp,gif,resize}.

Valid files of 11 x 9 synthetic pixels, one for each path of a decoder; small, because a fuzzer changes few bytes
at a time. Inputs that once failed stand beside them under other names and are left alone. Needs python3-pil and
python3-numpy.
"""
import os
import struct

import numpy as np
from PIL import Image

from make_files import chunk, png, save, smooth

HERE = os.path.dirname(os.path.abspath(__file__))
W, H = 11, 9


def pixels(channels, top=255):
    return smooth(channels, top, W, H)


def picture(channels, mode=None):
    v = pixels(channels).astype(np.uint8)
    return Image.fromarray(v[..., 0] if channels == 1 else v, mode)


def orientation(value):
    exif = Image.Exif()
    exif[0x0112] = value
    return exif


def write(folder, files):
    out = os.path.join(HERE, "corpus_" + folder)
    os.makedirs(out, exist_ok=True)
    for name, data in files.items():
        with open(os.path.join(out, name), "wb") as f:
            f.write(data)


def pngs():
    files = {}
    for interlace in (False, True):
        i = "-adam7" if interlace else ""
        for depth in (1, 2, 4, 8, 16):
            files["gray%d%s" % (depth, i)] = png(pixels(1, 2 ** depth - 1), 0, depth, interlace)
        for depth in (1, 2, 4, 8):
            colors = np.random.default_rng(depth).integers(0, 256, 3 * min(2 ** depth, 40), np.uint8).tobytes()
            extra = chunk(b"PLTE", colors) + chunk(b"tRNS", b"\x40\x80")
            files["palette%d%s" % (depth, i)] = png(pixels(1, min(2 ** depth, 40) - 1), 3, depth, interlace, extra)
        for color, c, kind in ((2, 3, "rgb"), (4, 2, "ga"), (6, 4, "rgba")):
            for depth in (8, 16):
                files["%s%d%s" % (kind, depth, i)] = png(pixels(c, 2 ** depth - 1), color, depth, interlace)
    files["gray8-key"] = png(pixels(1), 0, 8, extra=chunk(b"tRNS", struct.pack(">H", int(pixels(1)[3, 3, 0]))))
    files["exif"] = png(pixels(3), 2, 8, extra=chunk(b"eXIf", orientation(6).tobytes()[6:]))
    control = chunk(b"acTL", struct.pack(">II", 1, 0)) + chunk(b"fcTL", struct.pack(">IIIIIHHBB", 0, W, H, 0, 0, 1, 10, 0, 0))
    files["animated"] = png(pixels(3), 2, 8, extra=control)
    return files


def jpegs():
    rgb, cmyk = picture(3), picture(4, "CMYK")
    files = {"rgb%d" % s: save(rgb, "JPEG", quality=60, subsampling=s) for s in (0, 1, 2)}
    files["gray"] = save(picture(1), "JPEG", quality=60)
    files["cmyk"] = save(cmyk, "JPEG", quality=60)
    files["progressive"] = save(rgb, "JPEG", quality=60, progressive=True)
    files["exif"] = save(rgb, "JPEG", quality=60, exif=orientation(5))
    return files


def webps():
    rgb, rgba = picture(3), picture(4)
    second = Image.fromarray(255 - np.asarray(rgba))
    return {
        "lossy": save(rgb, "WEBP", quality=50),
        "lossy-alpha": save(rgba, "WEBP", quality=50),
        "lossless": save(rgb, "WEBP", lossless=True),
        "lossless-alpha": save(rgba, "WEBP", lossless=True),
        "animated": save(rgba, "WEBP", save_all=True, append_images=[second], lossless=True),
        "exif": save(rgb, "WEBP", quality=50, exif=orientation(8).tobytes()),
    }


def gifs():
    pal = picture(3).quantize(8)
    files = {
        "palette": save(pal, "GIF", interlace=0),
        "interlaced": save(pal, "GIF", interlace=1),
        "transparent": save(pal, "GIF", transparency=5),
        "gray": save(picture(1), "GIF"),
        "animated": save(pal, "GIF", save_all=True, append_images=[picture(3).transpose(0).quantize(4)]),
    }
    canvas = bytearray(files["transparent"])
    struct.pack_into("<HH", canvas, 6, W + 5, H + 3)  # a canvas larger than the frame
    at = canvas.rindex(b",\0\0\0\0" + struct.pack("<HH", W, H))
    struct.pack_into("<HH", canvas, at + 1, 2, 1)
    files["canvas"] = bytes(canvas)
    return files


write("png", pngs())
write("jpeg", jpegs())
write("webp", webps())
write("gif", gifs())
# Modes 0..6 (k3i_pix), one colour (128) and not; sizes as fuzz_resize.c reads them.
write("resize", {"mode%d%s" % (mode, "-flat" if flat else ""):
                 bytes([mode | flat, 0x11 * (mode % 4), 20 + mode, 30, 0x11 * (3 - mode % 4), 30, 9 + mode, 5, 180, 0x2c])
                 + bytes(range(3, 200, 13))
                 for mode in range(7) for flat in (0, 128)})
