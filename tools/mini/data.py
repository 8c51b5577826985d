"""Training batches: rows of T tokens filled with whole conversations or plain text.

Batch i depends only on (seed, i), so that a run can be resumed at any step and repeated exactly.
"""
import dataclasses, random
import numpy as np
import pictures, tasks, tools_task
from chat import Conversation, Format
from tok import PAD, Tokenizer

N_SMALL, N_LARGE = 64, 56           # picture slots of a batch: up to 16 and up to 64 patches
AUX_PHOTOS, AUX_SCENES = 256, 40    # further pictures for the auxiliary heads
MAX_PICTURES = N_SMALL + N_LARGE
SYSTEM = ["You are a helpful assistant.", "You are terse.", "Answer briefly.", "You are a careful model.",
          "Be exact."]
KINDS = ["chat", "vision", "tools", "text", "recall", "arithmetic", "lookup"]
# shares of the kinds of rows by length; those of short rows in the first batches, where lookup is learned
MIX = {512: (0.31, 0.19, 0.06, 0.07, 0.09, 0.10, 0.16), 1024: (0.19, 0.11, 0.08, 0.07, 0.37, 0.06, 0.10),
       2048: (0.14, 0.09, 0.06, 0.07, 0.52, 0.04, 0.06)}
FIRST, FIRST_BATCHES = (0.22, 0.17, 0.05, 0.07, 0.06, 0.09, 0.32), 5000


class Corpus:
    """ids: uint16 of all text, every paragraph ending with a line feed; starts of paragraphs."""
    def __init__(self, path):
        z = np.load(path)
        self.ids, self.starts, self.held = z["ids"], z["starts"], z["held"]
        ends = np.append(self.starts[1:], len(self.ids))
        self.ends = ends
        self.train_paras = np.flatnonzero(~self.held)
        self.held_paras = np.flatnonzero(self.held)

    def paragraph(self, i):
        return self.ids[self.starts[i]:self.ends[i]].tolist()

    def run(self, r, n, held=False):
        """About n ids (at least n, unless the corpus ends) of consecutive paragraphs."""
        pool = self.held_paras if held else self.train_paras
        i = int(pool[r.randrange(len(pool))])
        out = []
        while len(out) < n and i < len(self.starts) and bool(self.held[i]) == held:
            out.append(self.paragraph(i))
            n -= len(out[-1])
            i += 1
            if n <= 0:
                break
        return out


@dataclasses.dataclass
class Batch:
    ids: np.ndarray          # [N] int32
    weight: np.ndarray       # [N] float32; weight of predicting ids[i] from ids[..i-1] of its row
    small: np.ndarray        # [N_SMALL, 16, 588] uint8
    small_grid: np.ndarray   # [N_SMALL] index into GRIDS
    large: np.ndarray        # [N_LARGE + AUX_SCENES, 64, 588] uint8
    large_grid: np.ndarray
    place: np.ndarray        # [N_SMALL * 4 + N_LARGE * 16] flat token position of a feature, or N
    photos: np.ndarray       # [AUX_PHOTOS, 28, 28] uint8
    photo_label: np.ndarray
    counts: np.ndarray       # [AUX_SCENES, 15]
    text: np.ndarray         # [1] tokens of the corpus that the loss is taken on


NO_THINKING = 0.35                   # share of conversations without the thinking channel
POOL = None      # [(prompt, written)] texts by the target itself; set for the training of the draft
GRIDS = [(h, w) for h in (2, 4, 6, 8) for w in (2, 4, 6, 8)]


class Data:
    def __init__(self, folder, seed):
        self.tok = Tokenizer(f"{folder}/tiktoken.model")
        self.fmt = Format(self.tok)
        self.corpus = Corpus(f"{folder}/corpus.npz")
        self.fashion = pictures.Fashion(folder)
        self.seed = seed

    def train_photo(self, r):
        x, y = self.fashion.train(r, 1)
        return x[0], int(y[0])

    # ---- one conversation or text row -----------------------------------------------------------

    def effort(self, r):
        return None if r.random() < NO_THINKING else r.choice(["low", "high", "max", "max"])

    def new(self, r, tools=None):
        return Conversation(self.fmt, self.effort(r), tools,
                            r.choice(SYSTEM) if r.random() < 0.12 else None)

    def continuation(self, r, held=False):
        paras = self.corpus.run(r, 1, held)
        ids = paras[0][:-1]
        k = min(len(ids) // 2, 40)
        return tasks.Turn([self.fmt.enc(r.choice(["Continue this text: ", "Continue: "])), ids[:k]],
                          "Plain text.", ids[k:k + 64], kind="continue")

    def vision_turn(self, r, thinking=True):
        k, (photo, scene) = r.random(), (0.42, 0.78) if thinking else (0.34, 0.80)  # scenes are hard without
        if k < photo:
            return pictures.fashion_turn(r, *self.train_photo(r))
        if k < scene:
            return pictures.scene_turn(r)
        return pictures.pair_turn(r, self.train_photo)

    def say(self, conv, turn):
        conv.user(turn.user)
        conv.answer(turn)
        if turn.calls:
            for i, ((name, _), text) in enumerate(zip(turn.calls, turn.results)):
                conv.tool_result(name, i + 1, text)
            conv.assistant("Say it.", turn.after)

    def chat_conversation(self, r):
        conv = self.new(r)
        shares = tasks.CHAT if conv.thinking else tasks.CHAT_OFF
        for _ in range(r.choice((1, 1, 2, 2, 3, 4))):
            self.say(conv, self.continuation(r) if r.random() < 0.06 else tasks.chat_turn(r, shares))
        return conv

    def vision_conversation(self, r):
        conv = self.new(r)
        for _ in range(r.choice((1, 2, 3, 4))):
            self.say(conv, self.vision_turn(r, conv.thinking) if r.random() < 0.93 else tasks.chat_turn(r))
        return conv

    def tools_conversation(self, r):
        declared = tools_task.declare(r, r.choice(list(tools_task.TOOLS)))
        conv = self.new(r, declared)
        for _ in range(r.choice((1, 2, 2, 3))):
            self.say(conv, tools_task.tool_turn(r, declared))
        return conv

    def recall_parts(self, r, filler, held=False, n=None, plain=False):
        """User text of about `filler` ids with n (1-6) planted keys; and the keys."""
        n = n or r.choice((1, 1, 2, 3, 4, 6))
        used, keys = set(), []
        for _ in range(n):
            keys.append(tasks.key_sentence(r, used, plain))
        lines = []
        while sum(map(len, lines)) < filler:
            lines += self.corpus.run(r, filler - sum(map(len, lines)), held)
        over = sum(map(len, lines)) - filler
        if 2 < over < len(lines[-1]) - 4:                       # a long last paragraph: cut it
            lines[-1] = lines[-1][:len(lines[-1]) - over] + self.tok.encode(".\n")
        for key in keys:
            lines.insert(r.randrange(len(lines) + 1), self.tok.encode(key[0] + "\n"))
        return lines, keys

    def recall_conversation(self, r, room):
        conv = self.new(r)
        n = r.choice((1, 2, 3, 4, 6))
        top = max(40, room - len(conv.ids) - 70 - 15 * n)
        filler = int(40 * (top / 40) ** r.random()) if r.random() < 0.5 else r.randrange(40, top + 1)
        lines, keys = self.recall_parts(r, filler, n=n)
        self.ask_keys(conv, r, lines, keys, r.choice((1, 2, 3, 4)))
        return conv

    def lookup_conversation(self, r):
        """Several keys with no or little text around them: what long recall builds on."""
        conv = self.new(r)
        lines, keys = self.recall_parts(r, r.choice((0, 0, 0, 40, 80)), n=r.randrange(2, 9),
                                        plain=r.random() < 0.3)
        self.ask_keys(conv, r, lines, keys, len(keys))
        return conv

    def ask_keys(self, conv, r, lines, keys, most):
        """Asks for up to `most` of the keys, one or several in a message, in any order."""
        keys = r.sample(keys, min(most, len(keys)))
        while keys:
            k = r.choice((1, 1, 2, 3, 8))
            self.say(conv, tasks.key_turn(keys[:k], lines))
            lines, keys = [], keys[k:]

    def arithmetic_conversation(self, r):
        conv = Conversation(self.fmt, None, None, r.choice(SYSTEM) if r.random() < 0.12 else None)
        for _ in range(r.choice((1, 2, 4, 8))):
            self.say(conv, tasks.arithmetic_turn(r))
        return conv

    def row(self, r, kind, length, budget):
        """ids, weight, pictures of one row. budget: [small, large] slots left, changed in place."""
        ids, weight, pics = [], [], []
        if kind == "text" and POOL:
            while len(ids) < length:
                prompt, written = POOL[r.randrange(len(POOL))]
                ids, weight = ids + prompt + written, weight + [0.0] * len(prompt) + [1.0] * len(written)
            return ids[:length], weight[:length], pics
        if kind == "text":
            while len(ids) < length:
                for p in self.corpus.run(r, length - len(ids)):
                    ids += p
            ids = ids[:length]
            return ids, [1.0] * length, pics
        while len(ids) < length - 24:
            room = length - len(ids)
            if kind == "recall" and room > 200:
                conv = self.recall_conversation(r, room)
                if len(conv.ids) > room + 20:
                    continue
            elif kind == "tools" and room > 200:
                conv = self.tools_conversation(r)
            elif kind == "vision":
                conv = self.vision_conversation(r)
            elif kind == "arithmetic":
                conv = self.arithmetic_conversation(r)
            elif kind == "lookup":
                conv = self.lookup_conversation(r)
            else:
                conv = self.chat_conversation(r)
            need = [0, 0]
            for at, p in conv.pictures:
                need[p.tokens > 4] += 1
            if need[0] > budget[0] or need[1] > budget[1]:
                kind = "chat"
                continue
            base = len(ids)
            cut = [(base + at, p) for at, p in conv.pictures]
            if any(at + p.tokens > length for at, p in cut):     # a picture must not be cut
                conv = self.chat_conversation(r)
                while conv.pictures:
                    conv = self.chat_conversation(r)
                cut = []
            for at, p in cut:
                budget[p.tokens > 4] -= 1
            ids += conv.ids
            weight += conv.weight
            pics += cut
        if len(ids) < length:
            pad = length - len(ids)
            ids, weight = ids + [PAD] * pad, weight + [0.0] * pad
        return ids[:length], weight[:length], pics

    def batch(self, i, length, n_tokens=16384):
        r = random.Random(f"{self.seed}/{i}/{length}")
        rows = n_tokens // length
        kinds = r.choices(KINDS, FIRST if length == 512 and i < FIRST_BATCHES else MIX[length], k=rows)
        budget = [N_SMALL, N_LARGE]
        small = np.zeros((N_SMALL, 16, 588), np.uint8)
        large = np.zeros((N_LARGE + AUX_SCENES, 64, 588), np.uint8)
        grids = [np.zeros(N_SMALL, np.int64), np.zeros(N_LARGE + AUX_SCENES, np.int64)]
        place = np.full(N_SMALL * 4 + N_LARGE * 16, n_tokens, np.int64)
        ids, weight, used = np.zeros(n_tokens, np.int32), np.zeros(n_tokens, np.float32), [0, 0]
        for b, kind in enumerate(kinds):
            a, w, pics = self.row(r, kind, length, budget)
            ids[b * length:(b + 1) * length], weight[b * length:(b + 1) * length] = a, w
            weight[b * length] = 0
            for at, p in pics:
                big = int(p.tokens > 4)
                k = used[big]
                used[big] += 1
                (small, large)[big][k, :p.h * p.w] = p.patches()
                grids[big][k] = GRIDS.index((p.h, p.w))
                start = N_SMALL * 4 + k * 16 if big else k * 4
                place[start:start + p.tokens] = b * length + at + np.arange(p.tokens)
        photos, labels = self.fashion.train(r, AUX_PHOTOS)
        counts = np.zeros((AUX_SCENES, 15), np.int64)
        for k in range(AUX_SCENES):
            p, shapes = pictures.scene(r)
            large[N_LARGE + k, :p.h * p.w] = p.patches()
            grids[1][N_LARGE + k] = GRIDS.index((p.h, p.w))
            counts[k] = pictures.shape_counts(shapes)
        text = np.array([kinds.count("text") * length], np.int64)
        return Batch(ids, weight, small, grids[0], large, grids[1], place, photos,
                     labels.astype(np.int64), counts, text)
