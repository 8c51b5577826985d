"""Batched greedy decoding from the exported files, token by token, in full precision.

This is the second oracle beside the training code: no chunks, no fused kernels, every formula of the
text model as the specification writes it (KDA as the recurrence, MLA in absorbed form over the cache
of normed latents). All rows run in lockstep: each row eats its prompt, then its own tokens.
"""
import math
import torch
import torch.nn.functional as F
import config as c
from model import Grids, rotate
from data import GRIDS


class Engine:
    def __init__(self, w, device="cpu"):
        self.w, self.device = w, device
        self.dtype = w["lm_head.weight"].dtype
        self.grids = Grids(device)

    # ---- vision ----

    def features(self, picture):
        """[tokens, H] of one picture."""
        w, dt = self.w, self.dtype
        P = torch.from_numpy(picture.patches()).to(self.device)
        P = (P.to(dt) / 255 - 0.5) * 2
        g = GRIDS.index((picture.h, picture.w))
        n = picture.h * picture.w
        pos = self.grids.pos[g, :n].to(dt) @ w["vision_tower.patch_embed.pos_emb.weight"].flatten(0, 1)
        x = P @ w["vision_tower.patch_embed.proj.weight"].flatten(1).t() + pos
        cos, sin = self.grids.cos[g, :n].to(dt), self.grids.sin[g, :n].to(dt)
        for i in range(c.V_LAYERS):
            B = lambda k: w[f"vision_tower.encoder.blocks.{i}.{k}.weight"]
            q, k, v = (rms_(x, B("norm0"), c.VISION_EPS) @ B("wqkv").t()).view(
                n, 3, c.V_HEADS, c.V_DIM).permute(1, 2, 0, 3)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            a = torch.softmax(q @ k.transpose(-1, -2) * c.V_DIM ** -0.5, -1) @ v
            x = x + a.transpose(0, 1).reshape(n, -1) @ B("wo").t()
            y = rms_(x, B("norm1"), c.VISION_EPS)
            x = x + F.gelu(y @ B("mlp.fc0").t(), approximate="tanh") @ B("mlp.fc1").t()
        x = rms_(x, w["vision_tower.encoder.final_layernorm.weight"], c.VISION_EPS)
        m = x[self.grids.merge[g, :n // 4]].reshape(n // 4, -1)
        y = F.gelu(m @ w["mm_projector.proj.0.weight"].t()) @ w["mm_projector.proj.2.weight"].t()
        return rms_(y, w["mm_projector.post_norm.weight"], 1e-5)

    # ---- text: one token of every row ----

    def new_state(self, rows, room):
        z = lambda *s: torch.zeros(*s, device=self.device, dtype=self.dtype)
        K = c.KDA_HEADS * c.KDA_DIM
        st = {}
        for i in range(c.LAYERS):
            if i in c.MLA_LAYERS:
                st[i] = (z(rows, room, c.KVLORA), z(rows, room, c.PE))
            else:
                st[i] = (z(rows, 3, 3 * K), z(rows, c.KDA_HEADS, c.KDA_DIM, c.KDA_DIM))
        return st

    def kda(self, i, x, state):
        A = lambda n: self.w[f"model.layers.{i}.self_attn.{n}"]
        hist, S = state
        B = x.shape[0]
        raw = torch.cat([x @ A(n + "_proj.weight").t() for n in "qkv"], -1)
        taps = torch.cat([A(n + "_conv1d.weight") for n in "qkv"]).view(-1, 4)
        line = torch.cat((hist, raw.unsqueeze(1)), 1)
        y = F.silu((line * taps.t()).sum(1)).view(B, 3, c.KDA_HEADS, c.KDA_DIM)
        hist.copy_(line[:, 1:])
        q, k, v = y.unbind(1)
        q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + 1e-6) * c.KDA_DIM ** -0.5
        k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6)
        gr = (x @ A("f_a_proj.weight").t() @ A("f_b_proj.weight").t() + A("dt_bias")).view_as(q)
        decay = torch.exp(-5 * torch.sigmoid(A("A_log").exp().view(-1, 1) * gr))
        beta = torch.sigmoid(x @ A("b_proj.weight").t()).unsqueeze(-1)
        S.mul_(decay.unsqueeze(-1))
        e = v - (S * k.unsqueeze(-1)).sum(-2)
        S.add_(k.unsqueeze(-1) * (beta * e).unsqueeze(-2))
        o = (S * q.unsqueeze(-1)).sum(-2)
        z = rms_(o, A("o_norm.weight"), c.EPS).flatten(1)
        return (z * torch.sigmoid(x @ A("g_proj.weight").t())) @ A("o_proj.weight").t()

    def mla(self, i, x, state, t):
        """t: position, a tensor of one element; cache rows after it are masked."""
        A = lambda n: self.w[f"model.layers.{i}.self_attn.{n}.weight"]
        lat, pe = state
        B = x.shape[0]
        q = (rms_(x @ A("q_a_proj").t(), A("q_a_layernorm"), c.LATENT_EPS) @ A("q_b_proj").t()).view(
            B, c.MLA_HEADS, c.NOPE + c.PE)
        kv = x @ A("kv_a_proj_with_mqa").t()
        new = rms_(kv[:, :c.KVLORA], A("kv_a_layernorm"), c.LATENT_EPS)
        lat.index_copy_(1, t, new.unsqueeze(1))
        pe.index_copy_(1, t, kv[:, c.KVLORA:].unsqueeze(1))
        kvb = A("kv_b_proj").view(c.MLA_HEADS, c.NOPE + c.VDIM, c.KVLORA)
        ql = torch.einsum("bhn,hnl->bhl", q[..., :c.NOPE], kvb[:, :c.NOPE])
        s = ql @ lat.transpose(1, 2) + q[..., c.NOPE:] @ pe.transpose(1, 2)
        s = s * (c.NOPE + c.PE) ** -0.5
        future = torch.arange(lat.shape[1], device=self.device) > t
        p = torch.softmax(s.masked_fill(future, -math.inf), -1)
        o = torch.einsum("bhl,hvl->bhv", p @ lat, kvb[:, c.NOPE:]).flatten(1)
        return (o * torch.sigmoid(x @ A("g_proj").t())) @ A("o_proj").t()

    def ffn(self, i, x):
        if i == 0:
            M = lambda n: self.w[f"model.layers.0.mlp.{n}.weight"]
            return situ_(x @ M("gate_proj").t(), x @ M("up_proj").t()) @ M("down_proj").t()
        M = lambda n: self.w[f"model.layers.{i}.block_sparse_moe.{n}"]
        s = torch.sigmoid(x @ M("gate.weight").t())
        idx = (s + M("gate.e_score_correction_bias")).topk(c.TOP, -1).indices
        w = torch.zeros_like(s).scatter(1, idx, s.gather(1, idx))
        w = w / (w.sum(-1, keepdim=True) + 1e-20)
        ell = x @ M("routed_expert_down_proj.weight").t()
        w1, w3, w2 = (M("experts." + n) for n in ("w1", "w3", "w2"))
        h = situ_(ell @ w1.flatten(0, 1).t(), ell @ w3.flatten(0, 1).t())
        h = (h.view(-1, c.EXPERTS, c.FF) * w.unsqueeze(-1)).flatten(1)
        y = h @ w2.transpose(1, 2).reshape(c.EXPERTS * c.FF, c.LATENT)
        r = rms_(y, M("routed_expert_norm.weight"), c.EPS) @ M("routed_expert_up_proj.weight").t()
        S = lambda n: M(f"shared_experts.{n}.weight")
        return r + situ_(x @ S("gate_proj").t(), x @ S("up_proj").t()) @ S("down_proj").t()

    def step(self, x, state, t, taps=None):
        """x [B, H] input embeddings at position t -> logits [B, V]. taps: [B, taps, H], filled."""
        w, P, blocks = self.w, x, []
        for i in range(c.LAYERS):
            L = lambda n: w[f"model.layers.{i}.{n}.weight"]
            h = mix_([*blocks, P], L("self_attention_res_norm"), L("self_attention_res_proj")) \
                if blocks else P
            if i % c.BLOCK == 0:
                blocks.append(P)
                P = 0
            h = rms_(h, L("input_layernorm"), c.EPS)
            P = P + (self.mla(i, h, state[i], t) if i in c.MLA_LAYERS else self.kda(i, h, state[i]))
            h = mix_([*blocks, P], L("mlp_res_norm"), L("mlp_res_proj"))
            P = P + self.ffn(i, rms_(h, L("post_attention_layernorm"), c.EPS))
            if taps is not None and i in c.TAPS:
                taps[:, c.TAPS.index(i)] = P
        h = mix_([*blocks, P], w["model.output_attn_res_norm.weight"],
                 w["model.output_attn_res_proj.weight"])
        return rms_(h, w["model.norm.weight"], c.EPS) @ w["lm_head.weight"].t()


def rms_(x, w, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w


def situ_(g, u):
    return 4 * torch.tanh(g / 4) * torch.sigmoid(g) * 25 * torch.tanh(u / 25)


def mix_(src, rn, rq):
    v = torch.stack(src)
    s = (v * (rn * rq.view(-1))).sum(-1) * torch.rsqrt(v.square().mean(-1) + c.EPS)
    return (torch.softmax(s, 0).unsqueeze(-1) * v).sum(0)


class Runner:
    """Greedy lockstep decoding of up to `rows` prompts with `room` positions; a CUDA graph on a GPU."""
    def __init__(self, engine, rows, room, taps=False):
        e, d = engine, engine.device
        self.e, self.rows, self.room = e, rows, room
        self.state = e.new_state(rows, room)
        self.t = torch.zeros(1, dtype=torch.long, device=d)
        self.x = torch.zeros(rows, c.HIDDEN, device=d, dtype=e.dtype)
        self.logits = torch.zeros(rows, c.VOCAB, device=d, dtype=e.dtype)
        self.taps = torch.zeros(rows, len(c.TAPS), c.HIDDEN, device=d, dtype=e.dtype) if taps else None
        self.graph = None
        if str(d).startswith("cuda"):
            s = torch.cuda.Stream()
            s.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(s):
                self.compute()
            torch.cuda.current_stream().wait_stream(s)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.compute()

    def compute(self):
        self.logits.copy_(self.e.step(self.x, self.state, self.t, self.taps))

    @torch.no_grad()
    def run(self, prompts, new, stop, keep_logits=(), temperature=0.0, generator=None):
        """prompts: [(ids, {position: feature row})]. Decodes until `stop` or `new` tokens per row.
        -> (list of new ids, taps [rows, steps, taps, H] or None, {row: logits at the last prompt id},
        smallest top-2 margin per row up to and including `stop`)."""
        d, e = self.e.device, self.e
        n = len(prompts)
        longest = max(len(p) for p, _ in prompts)
        plen = torch.ones(self.rows, dtype=torch.long, device=d)
        plen[:n] = torch.tensor([len(p) for p, _ in prompts])
        total = min(self.room, longest + new)
        ids = torch.zeros(self.rows, total + 1, dtype=torch.long, device=d)
        feats, where = [], []
        for b, (p, f) in enumerate(prompts):
            ids[b, :len(p)] = torch.tensor(p)
            for at, row in f.items():
                where.append((b, at))
                feats.append(row)
        table = e.w["model.embed_tokens.weight"]
        if feats:
            table = torch.cat((table, torch.stack(feats).to(table.dtype)))
            b, at = (torch.tensor(z, device=d) for z in zip(*where))
            look = ids.clone()
            look[b, at] = c.VOCAB + torch.arange(len(feats), device=d)
        else:
            look = ids.clone()
        for st in self.state.values():
            for z in st:
                z.zero_()
        all_taps = torch.zeros(self.rows, total, len(c.TAPS), c.HIDDEN, device=d, dtype=e.dtype) \
            if self.taps is not None else None
        margin = torch.full((self.rows,), 1e9, device=d)
        done = torch.zeros(self.rows, dtype=torch.bool, device=d)
        done[n:] = True
        kept, steps = {}, total
        want = {b: len(prompts[b][0]) - 1 for b in keep_logits}
        for t in range(total):
            self.t.fill_(t)
            self.x.copy_(table[look[:, t]])
            self.graph.replay() if self.graph else self.compute()
            if all_taps is not None:
                all_taps[:, t] = self.taps
            top = self.logits.topk(2, -1)
            nxt = top.indices[:, 0]
            if temperature > 0:
                nxt = torch.multinomial(torch.softmax(self.logits.float() / temperature, -1), 1,
                                        generator=generator)[:, 0]
            gen = (t + 1 >= plen) & ~done
            margin = torch.where(gen, torch.minimum(margin, (top.values[:, 0] - top.values[:, 1]).float()),
                                 margin)
            ids[:, t + 1] = torch.where(t + 1 >= plen, nxt, ids[:, t + 1])
            look[:, t + 1] = torch.where(t + 1 >= plen, nxt, look[:, t + 1])
            done |= gen & (nxt == stop)
            done |= t + 1 >= plen + new
            for b, at in want.items():
                if at == t:
                    kept[b] = self.logits[b].clone()
            if t % 16 == 15 and bool(done.all()):
                steps = t + 1
                break
        out, rows = [], ids.tolist()
        for b in range(n):
            p = len(prompts[b][0])
            a = rows[b][p:min(p + new, steps + 1)]
            out.append(a[:a.index(stop) + 1] if stop in a else a)
        return out, all_taps, kept, margin[:n].tolist()
