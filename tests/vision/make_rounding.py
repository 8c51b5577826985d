#!/usr/bin/env python3
"""Writes rounding_values.h: the tiny tower of the published expected output in bf16, rounded where the release rounds.
Its norm weights are 1 + fill(.03) instead of 1, so that rounding before the weight would show.

Independent of the C code: numpy, sums in f64, one rounding at each point of the release. The same program without
rounding reproduces the published f32 values, which is checked first."""
import math
import os

import numpy as np

D, HEADS, E, MLP, LAYERS, GRID, TEXT, PATCH = 16, 3, 8, 32, 2, 4, 24, 12
ITEMS = [(1, 2, 4), (1, 4, 2), (1, 4, 4), (3, 2, 2)]
erf = np.vectorize(math.erf)


def bf(x):
    """Nearest bf16, ties to even, of values that are first rounded to f32."""
    b = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return (((b + 0x7FFF + ((b >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32).astype(np.float64)


def fill(shape, s):
    i = np.arange(int(np.prod(shape)))
    return np.float32(((7 * i) % 11 - 5.0) * s).astype(np.float64).reshape(shape)


def tower(rd, gain):
    """rd is the rounding: bf, or the identity; norm weights are 1 + fill(gain)."""
    W = {k: rd(fill(s, v)) for k, s, v in (
        ("patch", (D, PATCH), .05), ("pos", (GRID, GRID, D), .1), ("qkv", (3 * HEADS * E, D), .05),
        ("wo", (D, HEADS * E), .05), ("fc0", (MLP, D), .05), ("fc1", (D, MLP), .05), ("p0", (4 * D, 4 * D), .02),
        ("p2", (TEXT, 4 * D), .05))}
    pixels = rd(fill((44, PATCH), .1))

    def norm(x, eps):
        g = np.float32(rd(np.float32(1 + np.float32(fill((x.shape[-1],), gain)))))
        r = np.float32(1 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)).astype(np.float64)
        return rd(np.float32(np.float32(np.float32(x) * np.float32(r)) * g).astype(np.float64))

    def position(t, h, w):
        def axis(n):
            z = np.maximum(0, np.float32(GRID / n) * (np.arange(n) + np.float32(.5)) - np.float32(.5))
            i0 = z.astype(int)
            return i0, np.minimum(i0 + 1, GRID - 1), (z - i0)
        y0, y1, ly = axis(h)
        x0, x1, lx = axis(w)
        ly, lx, T = ly[:, None, None], lx[None, :, None], W["pos"]
        at = lambda y, x: T[y][:, x]
        p = rd((1 - ly) * ((1 - lx) * at(y0, x0) + lx * at(y0, x1)) + ly * ((1 - lx) * at(y1, x0) + lx * at(y1, x1)))
        p = np.broadcast_to(p, (t, h, w, D))
        if t > 1:
            a = np.arange(t)[:, None] * 10000.0 ** (-np.arange(D // 2) / (D // 2))
            p = rd(p + rd(np.concatenate([np.sin(a), np.cos(a)], 1))[:, None, None, :])
        return p.reshape(-1, D)

    def rope(x, t, h, w):
        f = 10000.0 ** (-4.0 * np.arange(E // 4) / E)
        yy, xx = np.mgrid[0:h, 0:w]
        angle = np.empty((h, w, E // 2))
        angle[..., 0::2], angle[..., 1::2] = xx[..., None] * f, yy[..., None] * f
        angle = np.tile(angle.reshape(-1, E // 2), (t, 1))[:, None, :]
        c, s = np.float32(np.cos(angle)), np.float32(np.sin(angle))
        e, o = x[..., 0::2], x[..., 1::2]
        y = np.empty_like(x)
        y[..., 0::2], y[..., 1::2] = e * c - o * s, e * s + o * c
        return rd(y)

    out, first = [], 0
    for t, h, w in ITEMS:
        n = t * h * w
        x = rd(rd(pixels[first:first + n] @ W["patch"].T) + position(t, h, w))
        first += n
        for _ in range(LAYERS):
            q, k, v = np.moveaxis(rd(norm(x, 2.0 ** -23) @ W["qkv"].T).reshape(n, 3, HEADS, E), 1, 0)
            q, k = rope(q, t, h, w), rope(k, t, h, w)
            s = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(E)
            p = np.exp(s - s.max(-1, keepdims=True))
            o = np.einsum("hqk,khd->qhd", rd(p), v) / p.sum(-1).T[..., None]
            x = rd(x + rd(rd(o.reshape(n, -1)) @ W["wo"].T))
            z = rd(norm(x, 2.0 ** -23) @ W["fc0"].T)
            z = rd(z / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + .044715 * z ** 3))))
            x = rd(x + rd(z @ W["fc1"].T))
        x = rd(norm(x, 2.0 ** -23).reshape(t, h // 2, 2, w // 2, 2, D).mean(0))
        m = x.transpose(0, 2, 1, 3, 4).reshape(-1, 4 * D)
        u = rd(m @ W["p0"].T)
        out.append(norm(rd(rd(u / 2 * (1 + erf(u / math.sqrt(2)))) @ W["p2"].T), 1e-5))
    return np.concatenate(out)


def main():
    exact = tower(lambda x: np.asarray(x, np.float64), 0)
    assert abs(exact[0, 0] + 0.194036) < 5e-6 and abs(exact[8, 0] + 1.565117) < 5e-6, exact[[0, 8], 0]
    bits = (bf(tower(bf, .03)).astype(np.float32).view(np.uint32) >> 16).reshape(-1)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rounding_values.h")
    with open(path, "w") as f:
        f.write("/* Made by make_rounding.py: rows [9, 24] of the tiny tower in bf16. */\n")
        f.write("static const uint16_t rounding_values[9 * 24] = {\n")
        for i in range(0, len(bits), 12):
            f.write("    " + ", ".join("0x%04x" % b for b in bits[i:i + 12]) + ",\n")
        f.write("};\n")
    diff = tower(bf, 0) - exact
    print("bf16 is %.4f from exact (relative L2)" % (np.linalg.norm(diff) / np.linalg.norm(exact)))


main()
