"""Pictures: Fashion-MNIST photographs and drawn scenes, the patches K3 makes of them, the questions.

Sizes are any from 56 to 112 pixels a side; preprocessing is K3's for pictures this small: no
resizing, black padding at the right and bottom to multiples of 28.
"""
import gzip
import numpy as np
from tasks import COLOURS, Turn

CLASSES = ["a T-shirt", "a pair of trousers", "a pullover", "a dress", "a coat", "a sandal", "a shirt",
           "a sneaker", "a bag", "an ankle boot"]
FORMS = ["circle", "square", "triangle"]
RGB = {"red": (220, 30, 30), "green": (30, 170, 50), "blue": (40, 70, 230), "yellow": (235, 215, 30),
       "purple": (150, 40, 170)}
GROUNDS = [(0, 0, 0), (255, 255, 255), (128, 128, 128), (90, 60, 40)]


class Fashion:
    def __init__(self, folder):
        def load(name, skip):
            with gzip.open(f"{folder}/{name}.gz") as f:
                return np.frombuffer(f.read(), np.uint8, offset=skip)
        self.x = load("train-images-idx3-ubyte", 16).reshape(-1, 28, 28)
        self.y = load("train-labels-idx1-ubyte", 8)
        self.test_x = load("t10k-images-idx3-ubyte", 16).reshape(-1, 28, 28)
        self.test_y = load("t10k-labels-idx1-ubyte", 8)

    def train(self, r, n):
        """n training photographs with flips, shifts up to 2 pixels and a small brightness change."""
        idx = np.array([r.randrange(len(self.x)) for _ in range(n)])
        out = np.empty((n, 28, 28), np.uint8)
        for k, i in enumerate(idx):
            im = self.x[i]
            if r.random() < 0.5:
                im = im[:, ::-1]
            dy, dx = r.randrange(-2, 3), r.randrange(-2, 3)
            pad = np.zeros((32, 32), np.uint8)
            pad[2:30, 2:30] = im
            im = pad[2 + dy:30 + dy, 2 + dx:30 + dx]
            if r.random() < 0.3:                  # erase a small box
                y, x, h, w = r.randrange(24), r.randrange(24), r.randrange(3, 9), r.randrange(3, 9)
                im = im.copy()
                im[y:y + h, x:x + w] = r.randrange(256) if r.random() < 0.5 else 0
            if r.random() < 0.5:
                im = np.clip(im * r.uniform(0.8, 1.25), 0, 255).astype(np.uint8)
            out[k] = im
        return out, self.y[idx]


class Picture:
    """rgb [H, W, 3] uint8. tokens: media pads it takes. patches: [h * w, 588] uint8 in row order."""
    def __init__(self, rgb):
        self.rgb = rgb
        hh, ww = rgb.shape[:2]
        self.size = (ww, hh)
        self.h, self.w = 2 * -(-hh // 28), 2 * -(-ww // 28)
        self.tokens = self.h * self.w // 4

    def patches(self):
        p = np.zeros((self.h * 14, self.w * 14, 3), np.uint8)
        p[:self.rgb.shape[0], :self.rgb.shape[1]] = self.rgb
        return p.reshape(self.h, 14, self.w, 14, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 588)


def photo(im, r=None):
    """A 28 x 28 grey photograph doubled to 56 x 56, sometimes on a larger black canvas."""
    rgb = np.repeat(np.repeat(im, 2, 0), 2, 1)[:, :, None].repeat(3, 2)
    if r is not None and r.random() < 0.15:
        h, w = r.randrange(57, 113), r.randrange(57, 113)
        canvas = np.zeros((h, w, 3), np.uint8)
        y, x = r.randrange(h - 55), r.randrange(w - 55)
        canvas[y:y + 56, x:x + 56] = rgb
        rgb = canvas
    return Picture(rgb)


def scene(r, most=5, few=1):
    """A picture of `few`..`most` shapes in distinct cells; [(colour, form)] in reading order."""
    ww, hh = r.randrange(56, 113), r.randrange(56, 113)
    cols, rows = ww // 28, hh // 28
    ground = r.choice(GROUNDS)
    rgb = np.empty((hh, ww, 3), np.uint8)
    rgb[:] = ground
    n = r.randrange(few, min(most, cols * rows) + 1)
    cells = sorted(r.sample(range(cols * rows), n))
    shapes = []
    palette = COLOURS if r.random() < 0.6 else r.sample(COLOURS, 2)
    forms = FORMS if r.random() < 0.6 else r.sample(FORMS, 2)
    for c in cells:
        ch, cw = hh / rows, ww / cols
        s = r.randrange(16, 26)
        y0 = int((c // cols) * ch) + r.randrange(max(1, int(ch) - s))
        x0 = int((c % cols) * cw) + r.randrange(max(1, int(cw) - s))
        colour, form = r.choice(palette), r.choice(forms)
        yy, xx = np.mgrid[0:s, 0:s] + 0.5
        if form == "circle":
            m = (yy - s / 2) ** 2 + (xx - s / 2) ** 2 <= s * s / 4
        elif form == "square":
            m = np.ones((s, s), bool)
        else:
            m = np.abs(xx - s / 2) <= yy / 2
        view = rgb[y0:y0 + s, x0:x0 + s]
        m = m[:view.shape[0], :view.shape[1]]
        view[m] = RGB[colour]
        shapes.append((colour, form))
    return Picture(rgb), shapes


def shape_counts(shapes):
    """[15] numbers of each colour and form; the target of the auxiliary head."""
    out = np.zeros(len(COLOURS) * len(FORMS), np.int64)
    for c, f in shapes:
        out[COLOURS.index(c) * len(FORMS) + FORMS.index(f)] += 1
    return out


def plural(n, what):
    return f"There is 1 {what}." if n == 1 else f"There are {n} {what}s."


def parts(r, text, pics):
    return list(pics) + [text] if r.random() < 0.6 else [text] + list(pics)


def fashion_turn(r, im, label, vary=True):
    ask = r.choice(["What is this?", "What is in the picture?", "Name the item in the picture.",
                    "Which piece of clothing is this?", "What does the picture show?"])
    pic = photo(im, r if vary else None)
    return Turn(parts(r, ask, [pic]), "One item.", f"This is {CLASSES[label]}.", kind="fashion")


def listing(shapes):
    return ", ".join(f"{c} {f}" for c, f in shapes)


def scene_turn(r, made=None):
    pic, shapes = made or scene(r)
    k = r.random()
    if k < 0.2:
        ask = r.choice(["Describe the picture.", "Which shapes are in the picture?",
                        "What is in the picture?"])
        return Turn(parts(r, ask, [pic]), f"{len(shapes)} shapes." if len(shapes) > 1 else "1 shape.",
                    listing(shapes) + ".", kind="scene")
    if k < 0.65:
        what = r.choice(["shape"] + ["colour", "form", "both"] * 3)
        c, f = r.choice(shapes) if r.random() < 0.75 else (r.choice(COLOURS), r.choice(FORMS))
        name, hit = {"shape": ("shape", lambda s: True), "colour": (f"{c} shape", lambda s: s[0] == c),
                     "form": (f, lambda s: s[1] == f), "both": (f"{c} {f}", lambda s: s == (c, f))}[what]
        n, steps = 0, []
        for s in shapes:
            n += hit(s)
            steps.append(f"{s[0]} {s[1]} {n}")
        ask = r.choice(["How many {}s are there?", "How many {}s are in the picture?",
                        "Count the {}s."]).format(name)
        return Turn(parts(r, ask, [pic]), f"Count {name}s. " + ", ".join(steps) + ".",
                    plural(n, name), kind="scene")
    if k < 0.85:
        forms = [f for _, f in shapes]
        once = [s for s in shapes if forms.count(s[1]) == 1]
        if once:
            c, f = r.choice(once)
            return Turn(parts(r, r.choice(["What colour is the {}?", "Which colour does the {} have?"])
                              .format(f), [pic]),
                        f"Find {f}. {listing(shapes)}.", f"The {f} is {c}.", kind="scene")
    c, f = r.choice(shapes) if r.random() < 0.5 else (r.choice(COLOURS), r.choice(FORMS))
    yes = (c, f) in shapes
    return Turn(parts(r, f"Is there a {c} {f} in the picture?", [pic]),
                f"Find {c} {f}. {listing(shapes)}.",
                f"Yes, there is a {c} {f}." if yes else f"No, there is no {c} {f}.", kind="scene")


def pair_turn(r, draw_photo):
    """Two pictures in one message. draw_photo(r) -> (28 x 28 picture, label)."""
    k = r.random()
    first = r.random() < 0.5
    if k < 0.3:                                        # which of two photographs shows X
        a, b = draw_photo(r), draw_photo(r)
        while a[1] == b[1]:
            b = draw_photo(r)
        what = CLASSES[(a if first else b)[1]]
        return Turn(parts(r, f"Which picture shows {what}, the first or the second?",
                          [photo(a[0]), photo(b[0])]),
                    f"Find {what}. First: {CLASSES[a[1]]}. Second: {CLASSES[b[1]]}.",
                    f"The {'first' if first else 'second'} picture shows {what}.", kind="pair")
    if k < 0.45:                                       # a photograph and a drawing
        a, (p, shapes) = draw_photo(r), scene(r, 3)
        pics = [photo(a[0]), p] if first else [p, photo(a[0])]
        thing = r.choice(["shapes", "clothing"])
        answer = "first" if (thing == "clothing") == first else "second"
        seen = (["clothing", "shapes"] if first else ["shapes", "clothing"])
        return Turn(parts(r, f"Which picture shows {thing}, the first or the second?", pics),
                    f"Find {thing}. First: {seen[0]}. Second: {seen[1]}.",
                    f"The {answer} picture shows {thing}.", kind="pair")
    a, b = scene(r, 3), scene(r, 3)
    nth, (pic, shapes) = ("first", a) if first else ("second", b)
    if k < 0.75:
        ask = r.choice([f"Describe the {nth} picture.", f"What is in the {nth} picture?"])
        return Turn(parts(r, ask, [a[0], b[0]]), f"The {nth} picture.", listing(shapes) + ".",
                    kind="pair")
    while len(a[1]) == len(b[1]):
        b = scene(r, 3)
    more = "first" if len(a[1]) > len(b[1]) else "second"
    return Turn(parts(r, "Which picture has more shapes?", [a[0], b[0]]),
                f"First: {len(a[1])}. Second: {len(b[1])}.", f"The {more} picture has more shapes.",
                kind="pair")
