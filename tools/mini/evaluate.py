"""Evaluates the exported files: answers, held-out text loss, draft acceptance; writes results.json.

    python evaluate.py DATA_DIR TARGET_DIR DRAFT_DIR OUT.json [--fraction 0.1]

Greedy, fp32, the whole model recomputed token by token (engine.py) from the published file format.
"""
import argparse, json, random, time
import torch
import torch.nn.functional as F
import config as c
import draft as draft_module
import export, model
from data import Data
from engine import Engine, Runner
from suite import Suite
from tok import EOM, N_RANKS

W = c.D_WIDTH
BATCHES = ((160, 1024), (320, 640), (640, 512), (1400, 320), (2200, 200))   # longest row, rows


def answers(engine, questions, new, want_taps=0, log=print):
    """-> [(new ids, margin)], taps of the first `want_taps` questions as {index: [len, taps H]}."""
    order = sorted(range(len(questions)), key=lambda i: len(questions[i].ids))
    out, taps, at = [None] * len(questions), {}, 0
    small = str(engine.device) == "cpu"
    while at < len(order):
        longest = len(questions[order[at]].ids) + new
        room, rows = next((b for b in BATCHES if b[0] >= longest), BATCHES[-1])
        chunk = []
        while at < len(order) and len(chunk) < (48 if small else rows) and \
                len(questions[order[at]].ids) + new <= room:
            chunk.append(order[at])
            at += 1
        assert chunk, "a prompt is longer than the longest room"
        prompts = []
        for i in chunk:
            f = {}
            for first, pic in questions[i].pictures:
                x = engine.features(pic)
                f.update({first + j: x[j] for j in range(pic.tokens)})
            prompts.append((questions[i].ids, f))
        key = (len(chunk) if small else rows, room, any(i < want_taps for i in chunk))
        runner = RUNNERS.get(key)
        if runner is None or runner.e is not engine:
            if len(RUNNERS) > 6:
                RUNNERS.clear()
            runner = RUNNERS[key] = Runner(engine, key[0], room, taps=key[2])
        got, tp, _, margin = runner.run(prompts, new, EOM)
        for b, i in enumerate(chunk):
            out[i] = (got[b], margin[b])
            if i < want_taps:
                taps[i] = tp[b, :len(questions[i].ids) + len(got[b])].flatten(1).clone()
    return out, taps


RUNNERS = {}


def guesses(w, d, taps, ids, anchors, tables):
    """The draft's W tokens and confidences for every anchor. taps [T, taps H], anchors ascending."""
    a = torch.tensor(anchors, device=taps.device)
    x = torch.tensor(ids, device=taps.device)[a]
    g = draft_module.block(d, taps.unsqueeze(0), a.unsqueeze(0), x.unsqueeze(0),
                           w["model.embed_tokens.weight"], *tables)[0]          # [A, W, H]
    base = g @ w["lm_head.weight"].t()
    toks, conf = [], []
    for k in range(W):
        e = d["markov_head.markov_w1.weight"][x]
        conf.append(torch.sigmoid(F.linear(torch.cat((g[:, k], e), -1), d["confidence_head.proj.weight"],
                                           d["confidence_head.proj.bias"])).squeeze(-1))
        x = (base[:, k] + e @ d["markov_head.markov_w2.weight"].t()).argmax(-1)
        toks.append(x)
    return torch.stack(toks, 1).tolist(), torch.stack(conf, 1).tolist()


def cycles(ids, start, toks, conf=None):
    """Walks greedy verification. toks[p - start]: guesses with anchor p. -> [(anchor, accepted)]."""
    out, p = [], start
    while p < len(ids) - 1:
        a, guess = 0, toks[p - start]
        while a < W and p + 1 + a < len(ids) and ids[p + 1 + a] == guess[a]:
            a += 1
        out.append((p, a))
        p += a + 1
    return out


@torch.no_grad()
def draft_stats(w, d, questions, got, taps, tables, bins):
    n = acc = full = 0
    per = [0] * W
    for i, tp in taps.items():
        plen, new = len(questions[i].ids), got[i][0]
        ids = questions[i].ids + new
        if len(new) < 2:
            continue
        toks, conf = guesses(w, d, tp, ids, list(range(plen, len(ids))), tables)
        for p, a in cycles(ids, plen, toks):
            n += 1
            acc += a
            if p + W < len(ids):
                full += 1
                for k in range(a):
                    per[k] += 1
                for k in range(min(a + 1, W)):
                    b = min(4, int(conf[p - plen][k] * 5))
                    bins[b][0] += 1
                    bins[b][1] += k < a
    return {"cycles": n, "accepted": acc, "length": round(1 + acc / max(1, n), 3),
            "by position": [round(x / max(1, full), 3) for x in per], "full blocks": full}


@torch.no_grad()
def random_length(w, d, device, tables, rows=16, length=256, first=32):
    """Mean accepted length on random ids, which nothing can guess: about 1."""
    ids = torch.randint(N_RANKS, (rows, length), generator=torch.Generator().manual_seed(5)).to(device)
    m, taps, n, accepted = model.Target(w, device), [], 0, 0
    m.layers(w["model.embed_tokens.weight"][ids.flatten()], length, taps=taps)
    taps = torch.cat(taps, -1).view(rows, length, -1)
    for b, row in enumerate(ids.tolist()):
        toks, _ = guesses(w, d, taps[b], row, list(range(first, length)), tables)
        for _, a in cycles(row, first, toks):
            n, accepted = n + 1, accepted + a
    return round(1 + accepted / n, 3)


def plain_loss(engine, data):
    """text_loss by the training forward pass (whole rows at once), which is quicker on a CPU."""
    w, m, r, total = engine.w, model.Target(engine.w, "cpu"), random.Random(99), [0.0, 0, 0]
    for _ in range(24):
        x = []
        while len(x) < 512:
            x += [t for p in data.corpus.run(r, 512 - len(x), held=True) for t in p]
        ids = torch.tensor(x[:512])
        blocks, P = m.layers(w["model.embed_tokens.weight"][ids], 512)
        h = m.mix_norm([*blocks, P], w["model.output_attn_res_norm.weight"],
                       w["model.output_attn_res_proj.weight"], w["model.norm.weight"])
        z = (h @ w["lm_head.weight"].t())[:-1]
        total[0] += float(F.cross_entropy(z, ids[1:], reduction="sum"))
        total[1] += int((z.argmax(-1) == ids[1:]).sum())
        total[2] += 511
    return {"loss": round(total[0] / total[2], 4), "accuracy": round(total[1] / total[2], 4),
            "tokens": total[2]}


@torch.no_grad()
def text_loss(engine, data, rows=192, length=512):
    """Mean next-token loss on held-out paragraphs, teacher forced."""
    r = random.Random(99)
    ids = torch.zeros(rows, length, dtype=torch.long)
    for b in range(rows):
        x = []
        while len(x) < length:
            x += [t for p in data.corpus.run(r, length - len(x), held=True) for t in p]
        ids[b] = torch.tensor(x[:length])
    ids = ids.to(engine.device)
    run = Runner(engine, rows, length)
    total = right = 0.0
    for t in range(length - 1):
        run.t.fill_(t)
        run.x.copy_(engine.w["model.embed_tokens.weight"][ids[:, t]])
        run.graph.replay() if run.graph else run.compute()
        total += F.cross_entropy(run.logits, ids[:, t + 1], reduction="sum")
        right += (run.logits.argmax(-1) == ids[:, t + 1]).sum()
    k = rows * (length - 1)
    chars = sum(len(data.tok.decode(row)) for row in ids.tolist())
    return {"loss": round(float(total) / k, 4), "accuracy": round(float(right) / k, 4), "tokens": k,
            "bits per character": round(float(total) / k / 0.693147 * rows * length / chars, 3)}


def main():
    a = argparse.ArgumentParser()
    a.add_argument("data")
    a.add_argument("target")
    a.add_argument("draft")
    a.add_argument("out")
    a.add_argument("--fraction", type=float, default=1.0)
    a.add_argument("--drafted", type=int, default=160)
    a.add_argument("--only", default="")
    a.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = a.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    start = time.time()
    data = Data(args.data, 0)
    w = export.load(args.target, device=args.device)
    d = export.load(args.draft, device=args.device) if args.draft != "-" else None
    engine, suite = Engine(w, args.device), Suite(data)
    tables = draft_module.rope_table(4096, args.device)
    res, bins, total = {}, [[0, 0] for _ in range(5)], [0, 0]
    for name, (qs, judge, goal) in suite.all(args.fraction).items():
        if not any(o in name for o in args.only.split(";")):
            continue
        new = 96 if judge is None else max(len(q.answer) for q in qs) + 8
        k = min(len(qs), args.drafted) if d else 0
        got, taps = answers(engine, qs, new, k)
        r = {"n": len(qs), "goal": goal}
        if judge:
            ok = [suite.right(q, g, judge) for q, (g, _) in zip(qs, got)]
            r["right"] = round(100 * sum(ok) / len(ok), 2)
            if qs[0].tag:
                per = {}
                for q, o in zip(qs, ok):
                    per.setdefault(q.tag, []).append(o)
                r["by class"] = {t: round(100 * sum(v) / len(v), 1) for t, v in per.items()}
            bad = [i for i, o in enumerate(ok) if not o][:3]
            r["failures"] = [[data.tok.decode([t for t in qs[i].ids[-60:]]), data.tok.decode(got[i][0]),
                              data.tok.decode(qs[i].answer)] for i in bad]
        else:
            r["samples"] = [[data.tok.decode(q.ids[-60:]), data.tok.decode(g)]
                            for q, (g, _) in list(zip(qs, got))[:4]]
        if d:
            s = draft_stats(w, d, qs, got, taps, tables, bins)
            r["draft"] = s
            total[0] += s["cycles"]
            total[1] += s["accepted"]
        res[name] = r
        print(f"{name:38s} n {len(qs):5d} right {r.get('right', '-')} goal {goal} draft "
              f"{r.get('draft', {}).get('length', '-')}  [{time.time() - start:.0f} s]", flush=True)
        with open(args.out, "w") as f:
            json.dump({"tasks": res}, f, indent=1)
    out = {"tasks": res, "text": text_loss(engine, data)}
    print("held-out text", out["text"])
    if d:
        out["draft"] = {"length over all cycles": round(1 + total[1] / max(1, total[0]), 3),
                        "length on random tokens": random_length(w, d, args.device, tables),
                        "confidence bins": [[n, round(h / max(1, n), 3)] for n, h in bins]}
        print("draft", out["draft"])
    out["seconds"] = round(time.time() - start, 1)
    with open(args.out, "w") as f:
        json.dump(out, f, indent=1)
    print(f"evaluation {out['seconds']} s", flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        main()
