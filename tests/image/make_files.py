#!/usr/bin/env python3
"""Writes tests/data/image: small pictures of every kind, and what Pillow makes of them.

The pictures are synthetic. expect.txt has one line a file and patch budget:
    name exif budget w h new_w new_h crc
where crc is the CRC-32 of the RGB bytes after decoding, orientation, resize and transparency, computed
with Pillow and numpy only. Needs python3-pil and python3-numpy. Run it again only to add cases: encoders
of other versions write other bytes.
"""
import io
import math
import os
import struct
import sys
import zlib

import numpy as np
from PIL import Image, ImageOps

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "image")
W, H = 45, 37
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
cases = []


def smooth(channels, top=255, w=W, h=H):
    """[h, w, channels] integers in 0..top: gradients with an edge, different in each channel."""
    y, x = np.mgrid[0:h, 0:w]
    planes = []
    for c in range(channels):
        v = 0.5 + 0.45 * np.sin(0.17 * x * (c + 1) + 0.23 * y + c) * np.cos(0.05 * x * y / (c + 2))
        v[h // 3:h // 2, w // 4:w // 2] = (c * 0.3) % 1
        planes.append(np.round(v * top))
    return np.stack(planes, -1).astype(np.int64)


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(samples, color, depth, interlace=False, extra=b""):
    """A PNG file of samples [h, w, c], any legal colour type and depth; `extra` chunks stand before IDAT."""
    h, w, c = samples.shape

    def rows(part):
        out = b""
        for row in part:
            flat = row.reshape(-1)
            if depth == 16:
                body = flat.astype(">u2").tobytes()
            elif depth == 8:
                body = flat.astype(np.uint8).tobytes()
            else:
                bits = "".join(format(int(v), "0%db" % depth) for v in flat)
                bits += "0" * (-len(bits) % 8)
                body = bytes(int(bits[i:i + 8], 2) for i in range(0, len(bits), 8))
            out += b"\0" + body
        return out

    if interlace:
        raw = b"".join(rows(samples[y0::dy, x0::dx]) for x0, y0, dx, dy in ADAM7
                       if samples[y0::dy, x0::dx].size)
    else:
        raw = rows(samples)
    head = struct.pack(">IIBBBBB", w, h, depth, color, 0, 0, int(interlace))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + extra + chunk(b"IDAT", zlib.compress(raw, 9))
            + chunk(b"IEND", b""))


def fill(im):
    """Step 4 of the reference, in f32."""
    if im.mode == "RGB":
        return np.asarray(im)
    has_alpha = im.mode in ("LA", "RGBA", "PA") or "transparency" in im.info
    if not has_alpha:
        return np.asarray(im.convert("RGB"))
    px = np.asarray(im.convert("RGBA")).astype(np.float32)
    h, w = px.shape[:2]
    y, x = np.mgrid[0:h, 0:w]
    bg = np.where((x // 8 + y // 8) % 2 == 1, np.float32(180), np.float32(255)).astype(np.float32)[..., None]
    alpha = px[..., 3:] / np.float32(255)
    return (alpha * px[..., :3] + (np.float32(1) - alpha) * bg).astype(np.uint8)


def plan(w, h, budget):
    a, b = max(1, w // 14), max(1, h // 14)
    s = min(1.0, math.sqrt(budget / (a * b)), 512 * 14 / w, 512 * 14 / h)
    return min(max(1, int(w * s)), 7168), min(max(1, int(h * s)), 7168)


def add(name, data, exif=0, open_as=None):
    with open(os.path.join(OUT, name), "wb") as f:
        f.write(data)
    for budget in (65536, 5):
        im = Image.open(io.BytesIO(open_as or data))
        im.load()
        if exif:
            im = ImageOps.exif_transpose(im)
        w, h = im.size
        nw, nh = plan(w, h, budget)
        small = im if (nw, nh) == (w, h) else im.resize((nw, nh), Image.Resampling.BICUBIC)
        if "transparency" in im.info:
            small.info["transparency"] = im.info["transparency"]
        rgb = fill(small)
        cases.append("%s %d %d %d %d %d %d %08x" % (name, exif, budget, w, h, nw, nh, zlib.crc32(rgb.tobytes())))


def save(im, fmt, **kw):
    f = io.BytesIO()
    im.save(f, fmt, **kw)
    return f.getvalue()


def pngs():
    for interlace in (False, True):
        i = "-adam7" if interlace else ""
        for depth in (1, 2, 4, 8):
            add("gray%d%s.png" % (depth, i), png(smooth(1, 2 ** depth - 1), 0, depth, interlace))
            pal = chunk(b"PLTE", np.random.default_rng(depth).integers(0, 256, 3 * 2 ** depth, np.uint8).tobytes())
            add("pal%d%s.png" % (depth, i), png(smooth(1, 2 ** depth - 1), 3, depth, interlace, pal))
            alpha = chunk(b"tRNS", bytes(range(0, 2 ** depth * 7 % 200, 7)) or b"\x40")
            add("pal%d-alpha%s.png" % (depth, i), png(smooth(1, 2 ** depth - 1), 3, depth, interlace, pal + alpha))
        for color, c, kind in ((2, 3, "rgb"), (4, 2, "ga"), (6, 4, "rgba")):
            for depth in (8, 16):
                add("%s%d%s.png" % (kind, depth, i), png(smooth(c, 2 ** depth - 1), color, depth, interlace))
    key = chunk(b"tRNS", struct.pack(">H", int(smooth(1)[20, 20, 0])))
    add("gray8-key.png", png(smooth(1), 0, 8, extra=key))
    add("gray4-key.png", png(smooth(1, 15), 0, 4, extra=chunk(b"tRNS", struct.pack(">H", 15))))
    add("gray2-key.png", png(smooth(1, 3), 0, 2, extra=chunk(b"tRNS", struct.pack(">H", 0))))
    rgb_key = chunk(b"tRNS", struct.pack(">HHH", *[int(v) for v in smooth(3)[12, 12]]))
    add("rgb8-key.png", png(smooth(3), 2, 8, extra=rgb_key))
    # Colour management is ignored.
    add("rgb8-gamma.png", png(smooth(3), 2, 8, extra=chunk(b"gAMA", struct.pack(">I", 100000))))
    # 16-bit gray by the high byte (the reference clips instead: gray16-clip lines).
    g16 = smooth(1, 65535)
    add("gray16.png", png(g16, 0, 16), open_as=png(g16 >> 8, 0, 8))
    low = smooth(1, 400)
    add("gray16-low.png", png(low, 0, 16), open_as=png(low >> 8, 0, 8))
    add("gray16-clip.png", png(low, 0, 16))
    exif = Image.Exif()
    exif[0x0112] = 6
    add("exif6.png", png(smooth(3), 2, 8, extra=chunk(b"eXIf", exif.tobytes()[6:])), exif=1)


def apngs():
    """Animated PNG: the first frame is the picture, whether the animation counts it or begins behind it."""
    first, second = png(smooth(3), 2, 8), png(255 - smooth(3), 2, 8)
    body = [part[part.index(b"IDAT") + 4:part.index(b"IEND") - 8] for part in (first, second)]
    end = first.index(b"IDAT") - 4

    def control(number):
        return chunk(b"fcTL", struct.pack(">IIIIIHHBB", number, W, H, 0, 0, 1, 10, 0, 0))

    def frame(number, data):
        return chunk(b"fdAT", struct.pack(">I", number) + data)

    idat, iend = chunk(b"IDAT", body[0]), chunk(b"IEND", b"")
    add("animated.png", first[:end] + chunk(b"acTL", struct.pack(">II", 2, 0)) + control(0) + idat + control(1)
        + frame(2, body[1]) + iend)
    add("animated-default.png", first[:end] + chunk(b"acTL", struct.pack(">II", 1, 0)) + idat + control(0)
        + frame(1, body[1]) + iend)


def jpegs():
    rgb = Image.fromarray(smooth(3).astype(np.uint8))
    gray = Image.fromarray(smooth(1)[..., 0].astype(np.uint8))
    cmyk = Image.fromarray(smooth(4).astype(np.uint8), "CMYK")
    for sub, kind in ((0, "444"), (1, "422"), (2, "420")):
        add("rgb%s.jpg" % kind, save(rgb, "JPEG", quality=80, subsampling=sub))
    add("progressive.jpg", save(rgb, "JPEG", quality=80, progressive=True))
    add("gray.jpg", save(gray, "JPEG", quality=80))
    add("cmyk.jpg", save(cmyk, "JPEG", quality=90))
    plain = save(cmyk, "JPEG", quality=90)
    at = plain.index(b"\xff\xee\x00\x0eAdobe")
    add("cmyk-no-adobe.jpg", plain[:at] + plain[at + 16:], open_as=plain)
    ycck = bytearray(plain)
    ycck[at + 15] = 2  # the Adobe marker now says YCCK
    add("ycck.jpg", bytes(ycck))
    for o in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = o
        data = save(rgb, "JPEG", quality=80, exif=exif)
        add("exif%d.jpg" % o, data, exif=1)
        if o == 5:
            add("exif5-ignored.jpg", data)


def webps():
    rgb = Image.fromarray(smooth(3).astype(np.uint8))
    rgba = Image.fromarray(smooth(4).astype(np.uint8))
    add("lossy.webp", save(rgb, "WEBP", quality=70))
    add("lossy-alpha.webp", save(rgba, "WEBP", quality=70))
    add("lossless.webp", save(rgb, "WEBP", lossless=True))
    add("lossless-alpha.webp", save(rgba, "WEBP", lossless=True))
    second = Image.fromarray(255 - smooth(4).astype(np.uint8))
    add("animated.webp", save(rgba, "WEBP", save_all=True, append_images=[second], lossless=True))
    exif = Image.Exif()
    exif[0x0112] = 8
    add("exif8.webp", save(rgb, "WEBP", quality=70, exif=exif.tobytes()), exif=1)


def gifs():
    rgb = Image.fromarray(smooth(3).astype(np.uint8))
    pal = rgb.quantize(32)
    add("palette.gif", save(pal, "GIF", interlace=0))
    add("interlaced.gif", save(pal, "GIF", interlace=1))
    add("transparent.gif", save(pal, "GIF", transparency=5))
    ramp = Image.fromarray(smooth(1)[..., 0].astype(np.uint8))
    add("gray.gif", save(ramp, "GIF"))
    add("gray-key.gif", save(ramp, "GIF", transparency=int(smooth(1)[20, 20, 0])))
    add("animated.gif", save(pal, "GIF", save_all=True, append_images=[rgb.transpose(0).quantize(16)]))
    for name, kw in (("canvas.gif", {}), ("canvas-transparent.gif", {"transparency": 3})):
        data = bytearray(save(pal, "GIF", interlace=0, **kw))
        struct.pack_into("<HH", data, 6, W + 9, H + 6)  # a canvas larger than the frame
        at = data.rindex(b",\0\0\0\0" + struct.pack("<HH", W, H))
        struct.pack_into("<HH", data, at + 1, 4, 5)
        add(name, bytes(data))
    data = bytearray(save(pal, "GIF", interlace=0))
    struct.pack_into("<HH", data, 6, 10, 10)  # and one smaller
    add("canvas-small.gif", bytes(data))


def sizes():
    for w, h in ((1, 1), (1, 3000), (3000, 1)):
        add("%dx%d.png" % (w, h), png(smooth(3, w=w, h=h), 2, 8))
        add("%dx%d-alpha.png" % (w, h), png(smooth(4, w=w, h=h), 6, 8))
        rgb, rgba = (Image.fromarray(smooth(c, w=w, h=h).astype(np.uint8)) for c in (3, 4))
        add("%dx%d.jpg" % (w, h), save(rgb, "JPEG", quality=40))
        add("%dx%d.webp" % (w, h), save(rgb, "WEBP", quality=70))
        add("%dx%d-alpha.webp" % (w, h), save(rgba, "WEBP", lossless=True))
        add("%dx%d.gif" % (w, h), save(rgb.quantize(4), "GIF"))
        add("%dx%d-alpha.gif" % (w, h), save(rgb.quantize(4), "GIF", transparency=0))


def main():
    os.makedirs(OUT, exist_ok=True)
    pngs(), apngs(), jpegs(), webps(), gifs(), sizes()
    with open(os.path.join(OUT, "expect.txt"), "w") as f:
        f.write("\n".join(cases) + "\n")
    print(len(cases), "cases, Pillow", Image.__version__ if hasattr(Image, "__version__") else "", file=sys.stderr)


if __name__ == "__main__":
    main()
