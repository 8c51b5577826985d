"""The DSpark draft (`K3DSparkModel`): forward pass and training on the frozen target.

    python draft.py DATA_DIR WORK_DIR --seconds 150

reads WORK_DIR/target, writes WORK_DIR/draft and draft.json (another name with --out). The plain text it
learns from is written by the target itself (greedy continuations of training text), so that its guesses
follow what the target will say. With --compile it takes one step of every row length, needs no target and
writes nothing: that fills the compilers' caches.
"""
import argparse, json, math, random, time
import torch
import torch.nn.functional as F
import config as c
import data as data_module
import export, model
from data import Data
from engine import Engine, Runner
from loader import Loader
from tok import EOM, MASK
from train import Trainer

QK, W, EPS = c.D_NOPE + c.D_PE, c.D_WIDTH, c.EPS
MSCALE = 0.1 * math.log(c.YARN_FACTOR) + 1
SCALE = QK ** -0.5 * MSCALE ** 2
LENGTHS, SHARES = (512, 2048), (0.7, 0.3)
MIX = {512: (0.21, 0.11, 0.08, 0.48, 0.04, 0.04, 0.04), 2048: (0.10, 0.06, 0.06, 0.48, 0.22, 0.04, 0.04)}
ANCHORS = 1024                              # per step, shared out over the rows
OWN = 16384                                 # texts the target writes for the draft


def spec():
    H, out = c.HIDDEN, {}

    def lin(n, r, k, gain=1.0):
        out[n + ".weight"] = torch.randn(r, k) * gain * k ** -0.5

    def one(n, k):
        out[n + ".weight"] = torch.ones(k)
    lin("context_proj", H, H * len(c.TAPS))
    one("context_norm", H)
    for i in range(c.D_LAYERS):
        p = f"layers.{i}."
        one(p + "input_layernorm", H)
        lin(p + "self_attn.q_a_proj", c.D_QLORA, H)
        one(p + "self_attn.q_a_layernorm", c.D_QLORA)
        lin(p + "self_attn.q_b_proj", c.D_HEADS * QK, c.D_QLORA)
        lin(p + "self_attn.kv_a_proj_with_mqa", c.D_KVLORA + c.D_PE, H)
        one(p + "self_attn.kv_a_layernorm", c.D_KVLORA)
        lin(p + "self_attn.kv_b_proj", c.D_HEADS * (c.D_NOPE + c.D_V), c.D_KVLORA)
        lin(p + "self_attn.o_proj", H, c.D_HEADS * c.D_V, 0.5)
        one(p + "post_attention_layernorm", H)
        lin(p + "mlp.gate_proj", c.D_MLP, H)
        lin(p + "mlp.up_proj", c.D_MLP, H)
        lin(p + "mlp.down_proj", H, c.D_MLP, 0.5)
    one("final_norm", H)
    out["markov_head.markov_w1.weight"] = torch.randn(c.VOCAB, c.D_MARKOV) * 0.1
    out["markov_head.markov_w2.weight"] = torch.randn(c.VOCAB, c.D_MARKOV) * 0.02
    out["confidence_head.proj.weight"] = torch.zeros(1, H + c.D_MARKOV)
    out["confidence_head.proj.bias"] = torch.zeros(1)
    return out


def rope_table(n, device, dtype=torch.float32):
    """cos, sin [n, D_PE / 2] by YaRN (tables computed in float64)."""
    D = c.D_PE
    i = torch.arange(D // 2, dtype=torch.float64)
    f = c.THETA ** (-2 * i / D)
    edge = lambda beta: D * math.log(c.YARN_ORIG / (beta * 2 * math.pi)) / (2 * math.log(c.THETA))
    low, high = max(0, math.floor(edge(32))), min(D - 1, math.ceil(edge(1)))
    r = ((i - low) / (high - low if high > low else 0.001)).clamp(0, 1)
    a = torch.arange(n, dtype=torch.float64).unsqueeze(1) * (f * (1 - r) + f / c.YARN_FACTOR * r)
    return a.cos().to(device, dtype), a.sin().to(device, dtype)


def rms(x, w):
    f = x.float() if x.dtype == torch.bfloat16 else x
    return (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + EPS) * w).to(x.dtype)


def rotate(x, cos, sin):
    e, o = x[..., 0::2], x[..., 1::2]
    return torch.stack((e * cos - o * sin, e * sin + o * cos), -1).flatten(-2)


def block(p, taps, anchors, ids, embed, cos, sin):
    """The non-causal block pass. taps [B, T, taps H], anchors [B, A] positions, ids [B, A] their tokens.
    A block row sees the context rows before its anchor and its own W rows. -> g [B, A, W, H]."""
    B, T = taps.shape[:2]
    A, dt = anchors.shape[1], taps.dtype
    w = lambda n: p[n + ".weight"].to(dt)
    ctx = rms(taps @ w("context_proj").t(), p["context_norm.weight"])
    pos = anchors.unsqueeze(-1) + torch.arange(W, device=taps.device)
    h = torch.cat((embed[ids].unsqueeze(2), embed[MASK].expand(B, A, W - 1, -1)), 2)
    seen = torch.arange(T, device=taps.device) < anchors.unsqueeze(-1)              # [B, A, T]
    for i in range(c.D_LAYERS):
        q = f"layers.{i}.self_attn."
        heads = lambda x, d: x.view(*x.shape[:-1], c.D_HEADS, d)

        def keys(x, cs, sn):
            r = x @ w(q + "kv_a_proj_with_mqa").t()
            kv = heads(rms(r[..., :c.D_KVLORA], p[q + "kv_a_layernorm.weight"])
                       @ w(q + "kv_b_proj").t(), c.D_NOPE + c.D_V)
            kr = rotate(r[..., c.D_KVLORA:].to(cs.dtype), cs, sn).to(dt).unsqueeze(-2)
            k = torch.cat((kv[..., :c.D_NOPE], kr.expand(*kv.shape[:-1], c.D_PE)), -1)
            return k, kv[..., c.D_NOPE:]
        kc, vc = keys(ctx, cos[:T], sin[:T])                                        # [B, T, h, .]
        y = rms(h, p[f"layers.{i}.input_layernorm.weight"])
        cb, sb = cos[pos], sin[pos]
        ko, vo = keys(y, cb, sb)                                                    # [B, A, W, h, .]
        qq = heads(rms(y @ w(q + "q_a_proj").t(), p[q + "q_a_layernorm.weight"])
                   @ w(q + "q_b_proj").t(), QK)
        qr = rotate(qq[..., c.D_NOPE:].to(cb.dtype), cb.unsqueeze(-2), sb.unsqueeze(-2)).to(dt)
        qq = torch.cat((qq[..., :c.D_NOPE], qr), -1)
        sc = (qq.flatten(1, 2).transpose(1, 2) @ kc.permute(0, 2, 3, 1)).view(B, c.D_HEADS, A, W, T)
        sc = sc.to(cos.dtype).masked_fill(~seen[:, None, :, None, :], -1e30)
        so = (qq.transpose(2, 3) @ ko.permute(0, 1, 3, 4, 2)).to(cos.dtype)         # [B, A, h, W, W]
        s = torch.cat((sc, so.permute(0, 2, 1, 3, 4)), -1) * SCALE
        pr = torch.softmax(s, -1).to(dt)
        o = (pr[..., :T].reshape(B, c.D_HEADS, A * W, T) @ vc.transpose(1, 2)).view(
            B, c.D_HEADS, A, W, c.D_V).permute(0, 2, 3, 1, 4)
        o = o + (pr[..., T:].transpose(1, 2) @ vo.transpose(2, 3)).transpose(2, 3)
        h = h + o.reshape(B, A, W, -1) @ w(q + "o_proj").t()
        y = rms(h, p[f"layers.{i}.post_attention_layernorm.weight"])
        m = f"layers.{i}.mlp."
        h = h + (F.silu(y @ w(m + "gate_proj").t()) * (y @ w(m + "up_proj").t())) @ w(m + "down_proj").t()
    return rms(h, p["final_norm.weight"])


def loss(p, taps, final, anchors, ids, valid, embed, head, cos, sin):
    """final [B, T, H]: what the target's head reads. valid [B, A, W]. -> loss, acceptance per row."""
    B, A = anchors.shape
    at = (anchors.unsqueeze(-1) + torch.arange(W, device=ids.device)).view(B, -1)
    here = ids.gather(1, at)                                                        # tokens x[k]
    g = block(p, taps, anchors, ids.gather(1, anchors), embed, cos, sin).view(B, A * W, -1)
    e = p["markov_head.markov_w1.weight"][here]
    z = (g @ head.t()).float() + (e.to(g.dtype) @ p["markov_head.markov_w2.weight"].to(g.dtype).t()).float()
    y = (final.gather(1, at.unsqueeze(-1).expand(-1, -1, c.HIDDEN)) @ head.t()).float()
    lq, lp = torch.log_softmax(z, -1), torch.log_softmax(y, -1)
    q, t = lq.exp(), lp.exp()
    tv, best = 0.5 * (t - q).abs().sum(-1), y.argmax(-1)
    ce = -(t * lq).sum(-1) - lq.gather(-1, best.unsqueeze(-1)).squeeze(-1)      # all of it, and the first
    hit = (z.argmax(-1) == best).float()
    conf = F.linear(torch.cat((g.float(), e), -1).detach(), p["confidence_head.proj.weight"],
                    p["confidence_head.proj.bias"]).squeeze(-1)
    bce = F.binary_cross_entropy_with_logits(conf, hit, reduction="none")
    k = torch.arange(W, device=ids.device)
    weight = valid.view(B, -1) * torch.exp(-k / 4.0).repeat(A)
    total = weight.sum().clamp_min(1)
    value = (weight * (0.25 * ce + 0.5 * tv + 0.3 * bce)).sum() / total
    v = valid.view(-1, W).float()
    run = (hit.view(-1, W) * v).cumprod(-1)
    return value, torch.cat((value.detach().view(1), run.sum(0) / v.sum(0).clamp_min(1)))


class DraftTrainer(Trainer):
    """The frozen target's forward pass, then one AdamW step of the draft; one CUDA graph per T."""
    def __init__(self, device, weights, seed):
        masters = {n: weights.get(n, torch.zeros(s)) for n, (s, _, _) in model.spec().items()}
        super().__init__(device, masters, seed)
        for x in self.leaves.values():
            x.requires_grad_(False)
        self.params = {n: w.to(device).requires_grad_() for n, w in spec().items()}
        self.adam = torch.optim.AdamW(self.params.values(), lr=torch.tensor(0.0, device=device),
                                      betas=(0.9, 0.98), weight_decay=0.01, capturable=device == "cuda",
                                      fused=device == "cuda")
        self.cos, self.sin = rope_table(2048 + W, device)
        self.out = torch.zeros(1 + W, device=device)
        self.loss_fn = torch.compile(loss, dynamic=False) if device == "cuda" else loss

    def compute(self, T):
        b = self.batch
        B = b["ids"].numel() // T
        A = max(1, ANCHORS // B)
        with torch.no_grad():
            lm, _ = self.model.features(b)
            taps = []
            blocks, P = self.model.layers(self.model.embed(b, lm), T, taps=taps)
            p = self.leaves
            final = self.model.mix_norm([*blocks, P], p["model.output_attn_res_norm.weight"],
                                        p["model.output_attn_res_proj.weight"], p["model.norm.weight"])
            taps = torch.cat(taps, -1).view(B, T, -1)
            ids, wt = b["ids"].view(B, T), b["weight"].view(B, T) > 0   # wt[p]: p + 1 is answered
            noise = torch.rand(B, T, device=ids.device) * wt
            noise[:, T - W:] = 0
            anchors = noise.topk(A, -1).indices.clamp_max(T - W - 1)
            at = (anchors.unsqueeze(-1) + torch.arange(W, device=ids.device)).view(B, -1)
            valid = wt.gather(1, at).view(B, A, W).float().cumprod(-1)
        value, out = self.loss_fn(self.params, taps, final.view(B, T, -1), anchors, ids, valid,
                                  p["model.embed_tokens.weight"], p["lm_head.weight"], self.cos, self.sin)
        value.backward()
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        self.out.copy_(out)


@torch.no_grad()
def own_text(weights, data, device, count, new=200, seed=5):
    """[(prompt ids, ids the target wrote)]: plain continuations and chat continuations, greedy."""
    r, rows = random.Random(seed), min(count, 8192)
    prompts = []
    for k in range(count):
        if k % 4:
            ids = [x for p in data.corpus.run(r, 64) for x in p]
            prompts.append((ids[:r.randrange(8, 64)], {}))
        else:
            conv = data.new(r)
            conv.user(data.continuation(r).user)
            conv.generation_prompt()
            prompts.append((conv.ids, {}))
    engine = Engine({n: w.to(device) for n, w in weights.items()}, device)
    run = Runner(engine, rows, max(len(p) for p, _ in prompts) + new)
    out = []
    for k in range(0, count, rows):
        part = prompts[k:k + rows]
        out += [(p, o) for (p, _), o in zip(part, run.run(part, new, EOM)[0])]
    return out


def run(args, device, start, loader, weights, schedule):
    t = DraftTrainer(device, weights, args.seed)
    if args.start:
        for n, w in export.load(args.start).items():
            if n in t.params:
                t.params[n].data.copy_(w)
    log, step = [], 0
    while time.time() - start < args.seconds and not (args.compile and step == len(LENGTHS)):
        T, arrays = loader.get(step)
        t.set_batch(arrays)
        if device == "cuda":
            torch.cuda.current_stream().synchronize()
        loader.free()
        x = (time.time() - start) / args.seconds
        t.adam.param_groups[0]["lr"].fill_(args.peak * 3e-3 * min(1.0, (step + 1) / 100) * 0.5
                                           * (1 + math.cos(math.pi * min(1.0, x))))
        t.step(T)
        step += 1
        if step % 100 == 0 or step < 3:
            s = t.out.tolist()
            log.append([step, round(time.time() - start, 1), T] + [round(v, 4) for v in s])
            print(f"draft {step} {time.time() - start:6.1f}s T {T} loss {s[0]:.3f} accepted "
                  + " ".join(f"{v:.2f}" for v in s[1:]), flush=True)
    if args.compile:
        return
    out = {n: p.detach().float().cpu() for n, p in t.params.items()}
    out["embed_tokens.weight"] = weights["model.embed_tokens.weight"].float().cpu()
    export.draft(out, f"{args.work}/{args.out}")
    with open(f"{args.work}/{args.out}.json", "w") as f:
        json.dump({"seconds": round(time.time() - start, 1), "steps": step, "tokens": step * 16384,
                   "columns": ["step", "seconds", "T", "loss"] + [f"accepted {k}" for k in range(W)],
                   "log": log}, f)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("data")
    a.add_argument("work")
    a.add_argument("--seconds", type=float, default=150)
    a.add_argument("--seed", type=int, default=77)
    a.add_argument("--out", default="draft", help="name of the written draft in WORK_DIR")
    a.add_argument("--compile", action="store_true", help="one step of every row length, nothing is written")
    a.add_argument("--start", help="continue from an exported draft")
    a.add_argument("--peak", type=float, default=1.0)
    a.add_argument("--workers", type=int, default=14)
    a.add_argument("--own", type=int, default=OWN)
    a.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = a.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    torch._dynamo.config.recompile_limit = 64
    start = time.time()
    data_module.MIX.update(MIX)
    data_module.FIRST_BATCHES = 0
    weights = {}
    if not args.compile:
        weights = export.load(f"{args.work}/target")
        data_module.POOL = own_text(weights, Data(args.data, 0), args.device, args.own, seed=args.seed)
        print(f"{len(data_module.POOL)} texts written by the target, {time.time() - start:.1f} s; e.g.")
        tok = Data(args.data, 0).tok
        for p, o in data_module.POOL[1:3]:
            print("   ", repr(tok.decode(p)[-120:]), "->", repr(tok.decode(o)[:240]), flush=True)

    def schedule(i):
        if args.compile:
            return LENGTHS[i % len(LENGTHS)]
        return random.Random(f"{args.seed}/length/{i}").choices(LENGTHS, SHARES)[0]
    loader = Loader(args.data, args.seed, schedule, args.workers)
    if args.device == "cuda":
        with torch.cuda.stream(torch.cuda.Stream()):
            run(args, "cuda", start, loader, weights, schedule)
    else:
        run(args, "cpu", start, loader, weights, schedule)
    loader.close()
    print(f"draft done, {time.time() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
