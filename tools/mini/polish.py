"""Goes on training exported files, mostly on sorting; on a CPU too.

    python polish.py DATA_DIR MODEL_DIR OUT_DIR [--steps 650]
    python polish.py DATA_DIR MODEL_DIR OUT_DIR --draft DRAFT_DIR --own OWN.json [--steps 300]

The target: half of the rows are lists to sort, the others hold what was learned before. Adam moves the
attention, the shared experts and the norms; embeddings, head, router, routed experts (their MXFP4 values stay
as they are) and the vision tower keep their weights. The draft: everything of it, on the frozen target;
a third of the rows are texts that the target wrote (own_text.py). The rate falls linearly to zero. OUT_DIR receives the
exported files and polish.json, the log.
"""
import argparse, dataclasses, json, multiprocessing, os, time
import torch
import data as data_module
import draft, export, kda, model
from chat import HARD
from data import Data

TOKENS, WARMUP, ANCHORS = 8192, 30, 512
# of ten batches nine have rows of 512 tokens and one has rows of 2,048, for what lies far apart
TARGET = {512: dict(sort=0.50, chat=0.12, vision=0.11, tools=0.05, text=0.04, recall=0.05, arithmetic=0.07,
                    lookup=0.06),
          2048: dict(chat=0.10, vision=0.10, tools=0.10, text=0.08, recall=0.50, arithmetic=0.04, lookup=0.08)}
DRAFT = {512: dict(sort=0.20, chat=0.15, vision=0.10, tools=0.07, text=0.34, recall=0.04, arithmetic=0.06,
                   lookup=0.04),
         2048: dict(chat=0.10, vision=0.06, tools=0.06, text=0.48, recall=0.22, arithmetic=0.04, lookup=0.04)}


def length_of(i):
    return 2048 if i % 10 == 9 else 512


def make(folder, seed, steps, shares, own, queue):
    os.nice(5)
    data = Data(folder, seed)
    if own:
        with open(own) as f:
            data_module.POOL = json.load(f)
    for i in range(steps):
        T = length_of(i)
        queue.put((T, dataclasses.asdict(data.batch(i, T, TOKENS, shares[T]))))


def compiled(f):
    return torch.compile(f, dynamic=False)


class Adam:
    """fp32 masters of some leaves, which may be bf16, one after the other."""
    def __init__(self, leaves, masters, rate):
        self.leaves, self.rate, self.count = leaves, rate, 0
        self.flat = torch.cat([masters[n].float().flatten() for n in leaves])
        self.m, self.v = torch.zeros_like(self.flat), torch.zeros_like(self.flat)

    def masters(self):
        parts = self.flat.split([p.numel() for p in self.leaves.values()])
        return {n: w.view(p.shape) for (n, p), w in zip(self.leaves.items(), parts)}

    @torch.no_grad()
    def step(self, scale):
        g = torch.cat([p.grad.float().flatten() for p in self.leaves.values()])
        g *= min(1.0, 1.0 / float(g.norm()))
        self.count += 1
        self.m.lerp_(g, 0.1)
        self.v.lerp_(g.square(), 0.02)
        hat = (self.m / (1 - 0.9 ** self.count)) / ((self.v / (1 - 0.98 ** self.count)).sqrt() + 1e-9)
        self.flat.sub_(hat, alpha=self.rate * scale)
        for n, w in self.masters().items():
            self.leaves[n].data.copy_(w)
            self.leaves[n].grad = None


class Target:
    """The target's leaves in bf16, and its forward pass."""
    def __init__(self, given, moves, device):
        leaves = {}
        for n, (shape, _, _) in model.spec().items():
            kind = torch.float32 if model.is_f32(n) or n.startswith("aux.") else torch.bfloat16
            leaves[n] = given.get(n, torch.zeros(shape)).to(device, kind).requires_grad_(moves(n))
        self.model = model.Target(leaves, device, compiled)
        self.eager, self.short = kda.plain, compiled(kda.plain)

    def choose(self, T):
        # without a GPU; compiling 128 chunks in a row takes minutes
        kda.plain = self.short if T == 512 else self.eager


def moves(name):
    return not (name.startswith(("vision_tower.", "mm_projector.", "aux.", "lm_head.", "model.embed_tokens."))
                or name.startswith("model.layers.0.self_attention_res_")        # nothing to mix yet
                or ".experts." in name or ".gate.weight" in name or name.endswith("e_score_correction_bias"))


class TargetPolisher(Target):
    columns = ["loss", "accuracy", *HARD]

    def __init__(self, args):
        self.given = export.load(args.model, device=args.device)
        super().__init__(self.given, moves, args.device)
        self.adam = Adam({n: p for n, p in self.model.p.items() if moves(n)}, self.given, args.rate)

    def step(self, T, b, scale):
        self.choose(T)
        m, p = self.model, self.model.p
        with torch.no_grad():
            lm, _ = m.features(b)
        blocks, P = m.layers(m.embed(b, lm), T)
        loss, stats = m.head_loss([*blocks, P], p["model.output_attn_res_norm.weight"],
                                  p["model.output_attn_res_proj.weight"], p["model.norm.weight"],
                                  p["lm_head.weight"], b["target"], b["weight"])
        loss.backward()
        self.adam.step(scale)
        return stats.tolist()

    def write(self, args):
        masters = {n: self.given.get(n) for n in model.spec() if n in self.given}
        export.target(masters | self.adam.masters(), args.out, args.data)


class DraftPolisher(Target):
    columns = ["loss"] + [f"accepted {k}" for k in range(draft.W)]

    def __init__(self, args):
        self.given = export.load(args.model, device=args.device)
        super().__init__(self.given, lambda n: False, args.device)
        start = export.load(args.draft, device=args.device)
        self.params = {n: start[n].float().requires_grad_() for n in draft.spec()}
        self.adam = Adam(self.params, {n: p.detach() for n, p in self.params.items()}, args.rate)
        self.cos, self.sin = draft.rope_table(2048 + draft.W, args.device)
        self.loss = compiled(draft.loss)

    def step(self, T, b, scale):
        self.choose(T)
        p = self.model.p
        value, out = (self.loss if T == 512 else draft.loss)(
            self.params, *draft.supervision(self.model, b, T, ANCHORS), p["model.embed_tokens.weight"],
            p["lm_head.weight"], self.cos, self.sin)
        value.backward()
        self.adam.step(scale)
        return out.tolist()

    def write(self, args):
        out = {n: w.clone() for n, w in self.adam.masters().items()}
        export.draft(out | {"embed_tokens.weight": self.given["model.embed_tokens.weight"].float()}, args.out)


def main(args):
    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(args.seed)
    p = (DraftPolisher if args.draft else TargetPolisher)(args)
    shares = DRAFT if args.draft else TARGET
    fresh = multiprocessing.get_context("spawn")
    queue = fresh.Queue(8)
    fresh.Process(target=make, args=(args.data, args.seed, args.steps, shares, args.own, queue), daemon=True).start()
    log, start, saved = [], time.time(), 0
    for i in range(args.steps):
        T, arrays = queue.get()
        now = time.time() - start
        b = {n: torch.from_numpy(x).to(args.device) for n, x in arrays.items()}
        b["ids"] = b["ids"].long()
        b["target"], b["weight"] = b["ids"].roll(-1), b["weight"].roll(-1)
        stats = p.step(T, b, min((i + 1) / WARMUP, 1 - i / args.steps))
        log.append([i, round(now, 1), T] + [round(x, 4) for x in stats])
        print(f"step {i} {now:.0f}s T {T} " + " ".join(f"{n} {x:.3f}" for n, x in zip(p.columns, stats)), flush=True)
        if args.save and now - saved > args.save:
            saved = now
            p.write(args)
    p.write(args)
    with open(f"{args.out}/polish.json", "w") as f:
        json.dump({"seconds": round(time.time() - start, 1), "steps": len(log), "tokens": len(log) * TOKENS,
                   "rate": args.rate, "columns": ["step", "seconds", "T", *p.columns], "log": log}, f)
    print(f"done: {len(log)} steps, {time.time() - start:.0f} s")


if __name__ == "__main__":
    a = argparse.ArgumentParser()
    a.add_argument("data")
    a.add_argument("model", help="folder of the exported target")
    a.add_argument("out")
    a.add_argument("--draft", help="folder of an exported draft: train this instead, on the target as it is")
    a.add_argument("--own", help="texts by the target (own_text.py), instead of the corpus")
    a.add_argument("--steps", type=int, default=650)
    a.add_argument("--rate", type=float, default=5e-4)
    a.add_argument("--seed", type=int, default=11)
    a.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a.add_argument("--save", type=float, default=0, help="also write the files every so many seconds")
    main(a.parse_args())
