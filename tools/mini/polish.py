"""An optional short phase for the target: more of what fell below its goal, the rest held where it was.

    python polish.py DATA_DIR WORK_DIR

continues from the exported files in WORK_DIR/target and writes them anew (those before stay in
WORK_DIR/target-1). Most rows are sorting (tasks.hard_sort) with the usual loss, most of the questions such
that the model missed; a scan before the first step finds them, and a question that is missed again comes
again. The other rows are drawn as in training, but learn from the model as it was: the divergence between
its distribution and the new one is zero at first and pulls only against what the sorting changes.

What the draft shares (embeddings, head) and what small steps could only disturb (routed experts in MXFP4,
their routing, the vision tower, the first layers) is not trained and keeps its values; the forward pass
sees the experts as they are exported. Runs eagerly, in bf16 with fp32 masters, on any device.
"""
import argparse, json, os, random, shutil, time
import torch
import torch.nn.functional as F
import config as c
import export, model, tasks
from chat import Conversation
from data import Data
from engine import Engine
from tok import PAD
from train import Trainer

LENGTH, ROWS, SORTING = 512, 7, 5           # a step: seven rows of 512 ids, five of them sorting
KINDS, SHARES = ("chat", "vision", "tools", "text", "arithmetic", "recall"), (4, 2, 2, 3, 1, 2)
FROZEN = (r"^(aux|vision_tower|mm_projector|lm_head|model\.embed_tokens|model\.layers\.[0-4])\."
          r"|\.experts\.|moe\.gate\.")
UNSURE = 0.3                                # -log of the probability below which a token counts as missed
MISSED = 0.7                                # share of the sorting questions that were missed before
WARMUP, DECAY = 0.05, 0.4                   # shares of the steps: the rate rises, is constant, falls to zero


class Batches:
    """Rows of LENGTH ids. `missed` holds sorting questions that the model was unsure of when it last saw
    them; MISSED of the sorting questions are taken out of it."""
    def __init__(self, folder, seed, missed):
        self.data, self.r, self.missed = Data(folder, 0), random.Random(f"polish/{seed}"), missed

    def sorting_row(self):
        """-> ids, weights, [(first id, last id + 1, turn)]"""
        r, ids, weight, turns = self.r, [], [], []
        while len(ids) < LENGTH - 24:
            effort = None if r.random() < 0.15 else r.choice(["low", "high", "max"])
            conv = Conversation(self.data.fmt, effort)
            for _ in range(r.choice((1, 1, 4, 8))):
                old = self.missed and r.random() < MISSED
                turn = self.missed.pop(r.randrange(len(self.missed))) if old else tasks.hard_sort(r)
                first = len(ids) + len(conv.ids)
                self.data.say(conv, turn)
                turns.append((first, len(ids) + len(conv.ids), turn))
                if turns[-1][1] >= LENGTH:
                    break
            ids, weight = ids + conv.ids, weight + conv.weight
        return ids, weight, turns

    def next(self, rows, sorting):
        """-> ids, weights [rows * LENGTH]; pictures of the rows after the sorting ones [(first pad, picture)];
        sorting questions [(first id, last id + 1, turn)]."""
        ids, weight, pics, asked = [], [], [], []
        for b in range(rows):
            at = b * LENGTH
            if b < sorting:
                a, w, turns = self.sorting_row()
                asked += [(at + i, at + min(j, LENGTH), turn) for i, j, turn in turns]
            else:
                a, w, p = self.data.row(self.r, self.r.choices(KINDS, SHARES)[0], LENGTH, [99, 99])
                pics += [(at + i, x) for i, x in p]
            pad = max(0, LENGTH - len(a))
            ids, weight = ids + a[:LENGTH] + [PAD] * pad, weight + [0.0] + w[1:LENGTH] + [0.0] * pad
        return torch.tensor(ids), torch.tensor(weight), pics, asked

    def note(self, asked, unsure):
        """unsure [N]: True where the right id had a low probability."""
        self.missed += [turn for i, j, turn in asked if bool(unsure[i:j].any())]


def moe(x, gate, bias, wdown, norm, wup, sg, su, sd, w1, w3, w2, P):
    """model.moe expert by expert, which is less work where kernels are cheap to start."""
    s = torch.sigmoid(x.float() @ gate.float().t())
    chosen = (s + bias).topk(c.TOP, -1).indices
    w = torch.zeros_like(s).scatter(1, chosen, s.gather(1, chosen))
    w = w / (w.sum(-1, keepdim=True) + 1e-20)
    ell, lat = x @ wdown.t(), x.new_zeros(len(x), c.LATENT, dtype=torch.float32)
    for e in range(c.EXPERTS):
        rows = (w[:, e] > 0).nonzero().squeeze(1)
        y = ell[rows]
        h = model.situ(y @ w1[e].t(), y @ w3[e].t()) * w[rows, e].unsqueeze(1)
        lat = lat.index_add(0, rows, (h.to(x.dtype) @ w2[e].t()).float())
    shared = model.situ(x @ sg.t(), x @ su.t()).to(x.dtype) @ sd.t()
    return P + model.rms(lat, norm, c.EPS).to(x.dtype) @ wup.t() + shared, None


class Polisher(Trainer):
    def __init__(self, device, weights, seed):
        masters = {n: weights.get(n, torch.zeros(s)) for n, (s, _, _) in model.spec().items()}
        super().__init__(device, masters, seed, compile=False, frozen=FROZEN, low=torch.bfloat16)
        self.before = model.Target({n: p.detach().clone() for n, p in self.leaves.items()}, device)
        if device == "cpu":
            self.model.moe = self.before.moe = moe
        self.tower = Engine({n: w.to(device) for n, w in weights.items()}, device)

    def hidden(self, m, ids, places, features):
        """What the head reads, [N, H]."""
        x = F.embedding(ids, m.p["model.embed_tokens.weight"])
        if places is not None:
            x = x.index_copy(0, places, features.to(x.dtype))
        blocks, P = m.layers(x, LENGTH)
        return m.mix_norm([*blocks, P], m.p["model.output_attn_res_norm.weight"],
                          m.p["model.output_attn_res_proj.weight"], m.p["model.norm.weight"])

    def learn(self, batches, rows, sorting):
        """One step. -> loss and accuracy of sorting, divergence of the rest."""
        d, cut, head = self.device, sorting * LENGTH, self.leaves["lm_head.weight"]
        ids, weight, pics, asked = batches.next(rows, sorting)
        ids, weight, target = ids.to(d), weight.to(d).roll(-1), ids.to(d).roll(-1)
        places = features = shifted = None
        with torch.no_grad():
            if pics:
                features = torch.cat([self.tower.features(p) for _, p in pics])
                places = torch.cat([torch.arange(at, at + p.tokens) for at, p in pics]).to(d)
                shifted = places - cut
            old = self.hidden(self.before, ids[cut:], shifted, features) if rows > sorting else None
        with torch.set_grad_enabled(rows > sorting):
            h = self.hidden(self.model, ids, places, features)
        at = (weight > 0).nonzero().squeeze(1)
        a, b = at[at < cut], at[at >= cut]
        z, w = (h[a] @ head.t()).float(), weight[a]
        nll = F.cross_entropy(z, target[a], reduction="none")
        unsure = torch.zeros(len(ids), dtype=torch.bool, device=d)
        unsure[a + 1] = nll.detach() > UNSURE
        batches.note(asked, unsure.cpu())
        loss, away = (w * nll).sum() / w.sum(), torch.zeros((), device=d)
        if rows > sorting:
            p, q = (torch.log_softmax((x @ head.t()).float(), -1) for x in (old[b - cut], h[b]))
            away = (p.exp() * (p - q)).sum(-1).mean()
            (loss + away).backward()
            with torch.no_grad():
                self.opt.step(self.scale)
                self.opt.write()
            for leaf in self.leaves.values():
                leaf.grad = None
        return [float(x) for x in (loss.detach(), (z.argmax(-1) == target[a]).float().mean(), away.detach())]


def run(args, weights):
    start, batches, log, sums = time.time(), Batches(args.data, args.seed, missed(args)), [], []
    t = Polisher(args.device, weights, args.seed)
    for _ in range(0 if args.missed else args.scan):                  # only asks, to fill batches.missed
        sums.append(t.learn(batches, args.sorting, args.sorting))
    if sums:
        print(f"scan {time.time() - start:.0f}s accuracy {sum(x[1] for x in sums) / len(sums):.4f}, "
              f"{len(batches.missed)} questions missed", flush=True)
    begin, sums = time.time(), []
    for step in range(args.steps):
        done = max(step / args.steps, (time.time() - begin) / args.seconds)
        rise = (step + 1) / max(1.0, WARMUP * args.steps)
        t.scale.fill_(args.peak * min(1.0, rise, max(1 - done, 0.02) / DECAY))
        sums.append(t.learn(batches, args.rows, args.sorting))
        if step % args.every == args.every - 1 or step == args.steps - 1 or done >= 1:
            mean = [round(sum(x) / len(sums), 5) for x in zip(*sums)]
            log.append([step + 1, round(time.time() - start, 1), *mean, len(batches.missed)])
            print("polish %d %.0fs sorting %.4f %.4f away %.5f missed %d" % tuple(log[-1]),
                  f"lr {float(t.scale):.4f}", flush=True)
            sums = []
        if args.save and (step + 1) % args.save == 0:
            export.target(masters(t), f"{args.work}/target-{step + 1}", args.data)
        if done >= 1:
            break
    return t, {"seconds": round(time.time() - start, 1), "steps": step + 1,
               "tokens": (step + 1) * args.rows * LENGTH, "device": args.device,
               "columns": ["step", "seconds", "loss", "accuracy", "divergence", "missed"], "log": log}


def missed(args):
    if not args.missed:
        return []
    with open(args.missed) as f:
        return [tasks.Turn(**t) for t in json.load(f)]


def masters(t):
    return {n: m.detach().float().cpu() for n, m in t.opt.masters().items()}


def main():
    a = argparse.ArgumentParser()
    a.add_argument("data")
    a.add_argument("work")
    a.add_argument("--steps", type=int, default=300)
    a.add_argument("--seconds", type=float, default=3000, help="at most; the rate follows what comes first")
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--peak", type=float, default=0.04, help="share of training's rate")
    a.add_argument("--rows", type=int, default=ROWS)
    a.add_argument("--sorting", type=int, default=SORTING, help="how many of the rows")
    a.add_argument("--scan", type=int, default=40, help="batches that are only asked, before the first step")
    a.add_argument("--missed", help="JSON list of turns to begin with, instead of a scan")
    a.add_argument("--every", type=int, default=10)
    a.add_argument("--save", type=int, default=0, help="also export after every so many steps")
    a.add_argument("--threads", type=int, default=0)
    a.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = a.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    target, before = f"{args.work}/target", f"{args.work}/target-1"
    if not os.path.exists(before):
        shutil.copytree(target, before)
    t, log = run(args, export.load(before))
    total = export.target(masters(t), target, args.data)
    with open(f"{args.work}/polish.json", "w") as f:
        json.dump(log, f)
    print(f"polished: {log['steps']} steps, {log['seconds']} s, {total / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
