"""Training forward pass of the target, written from the specification of the Kimi-K3 text model
and its vision path. Rows of T tokens lie flat in [N, ...]; every row starts from zero state.

Weights are named as in the published checkpoint, without the `language_model.` prefix of the text
part; the experts of a layer are stacked (`experts.w1` [E, F, D]). Small functions are compiled, not
the whole model: nothing is recompiled when T changes.
"""
import math
import torch
import torch.nn.functional as F
import config as c
import kda
from chat import HARD
from data import AUX_PHOTOS, AUX_SCENES, GRIDS, N_LARGE, N_SMALL

K = c.KDA_HEADS * c.KDA_DIM
QK = c.NOPE + c.PE


# ---- parameters -----------------------------------------------------------------------------------

def spec():
    """name -> (shape, kind, init). kind: muon | adam | head | query | none; init: std or a tensor."""
    H, out = c.HIDDEN, {}

    def lin(name, rows, cols, gain=1.0, kind="muon", lead=()):
        out[name] = ((*lead, rows, cols), kind, gain * cols ** -0.5)

    def one(name, n, value=1.0, kind="adam"):
        out[name] = ((n,), kind, torch.full((n,), value))
    out["model.embed_tokens.weight"] = ((c.VOCAB, H), "adam", 0.5)
    for i in range(c.LAYERS):
        p = f"model.layers.{i}."
        for n in ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm",
                  "mlp_res_norm"):
            one(p + n + ".weight", H)
        for n in ("self_attention_res_proj", "mlp_res_proj"):
            out[p + n + ".weight"] = ((1, H), "query", torch.zeros(1, H))
        a = p + "self_attn."
        if i in c.MLA_LAYERS:
            lin(a + "q_a_proj.weight", c.QLORA, H)
            one(a + "q_a_layernorm.weight", c.QLORA)
            lin(a + "q_b_proj.weight", c.MLA_HEADS * QK, c.QLORA)
            lin(a + "kv_a_proj_with_mqa.weight", c.KVLORA + c.PE, H)
            one(a + "kv_a_layernorm.weight", c.KVLORA)
            lin(a + "kv_b_proj.weight", c.MLA_HEADS * (c.NOPE + c.VDIM), c.KVLORA)
            lin(a + "g_proj.weight", c.MLA_HEADS * c.VDIM, H)
            lin(a + "o_proj.weight", H, c.MLA_HEADS * c.VDIM, 0.5)
        else:
            for n in "qkv":
                lin(a + n + "_proj.weight", K, H)
                taps = torch.randn(K, 1, 4) * 0.1
                taps[:, 0, 3] += 1.0
                out[a + n + "_conv1d.weight"] = ((K, 1, 4), "adam", taps)
            lin(a + "f_a_proj.weight", c.KDA_DIM, H)
            lin(a + "f_b_proj.weight", K, c.KDA_DIM, 0.5)
            decay = torch.exp(torch.empty(K).uniform_(math.log(0.002), math.log(1.5)))
            out[a + "dt_bias"] = ((K,), "adam", torch.logit(decay / 5))
            one(a + "A_log", c.KDA_HEADS, 0.0)
            lin(a + "b_proj.weight", c.KDA_HEADS, H)
            one(a + "o_norm.weight", c.KDA_DIM)
            lin(a + "g_proj.weight", K, H)
            lin(a + "o_proj.weight", H, K, 0.5)
        if i == 0:
            m = p + "mlp."
            lin(m + "gate_proj.weight", c.DENSE, H)
            lin(m + "up_proj.weight", c.DENSE, H)
            lin(m + "down_proj.weight", H, c.DENSE, 0.5)
            continue
        m = p + "block_sparse_moe."
        lin(m + "gate.weight", c.EXPERTS, H)
        one(m + "gate.e_score_correction_bias", c.EXPERTS, 0.0, "none")
        lin(m + "routed_expert_down_proj.weight", c.LATENT, H)
        one(m + "routed_expert_norm.weight", c.LATENT)
        lin(m + "routed_expert_up_proj.weight", H, c.LATENT, 0.5)
        s = c.SHARED * c.FF
        lin(m + "shared_experts.gate_proj.weight", s, H)
        lin(m + "shared_experts.up_proj.weight", s, H)
        lin(m + "shared_experts.down_proj.weight", H, s, 0.5)
        lin(m + "experts.w1", c.FF, c.LATENT, lead=(c.EXPERTS,))
        lin(m + "experts.w3", c.FF, c.LATENT, lead=(c.EXPERTS,))
        lin(m + "experts.w2", c.LATENT, c.FF, lead=(c.EXPERTS,))
    one("model.norm.weight", H)
    one("model.output_attn_res_norm.weight", H)
    out["model.output_attn_res_proj.weight"] = ((1, H), "query", torch.zeros(1, H))
    out["lm_head.weight"] = ((c.VOCAB, H), "head", 0.02)
    D, E = c.V_HIDDEN, c.V_HEADS * c.V_DIM
    out["vision_tower.patch_embed.proj.weight"] = ((D, 3, 14, 14), "muon", 588 ** -0.5)
    out["vision_tower.patch_embed.pos_emb.weight"] = ((c.V_GRID, c.V_GRID, D), "adam", 0.1)
    for i in range(c.V_LAYERS):
        p = f"vision_tower.encoder.blocks.{i}."
        one(p + "norm0.weight", D)
        one(p + "norm1.weight", D)
        lin(p + "wqkv.weight", 3 * E, D)
        lin(p + "wo.weight", D, E, 0.5)
        lin(p + "mlp.fc0.weight", c.V_MLP, D)
        lin(p + "mlp.fc1.weight", D, c.V_MLP, 0.5)
    one("vision_tower.encoder.final_layernorm.weight", D)
    lin("mm_projector.proj.0.weight", 4 * D, 4 * D)
    lin("mm_projector.proj.2.weight", H, 4 * D)
    one("mm_projector.post_norm.weight", H, 0.5)
    # auxiliary heads on the mean feature of a picture; they are not exported
    lin("aux.photo", 10, H, kind="adam")
    lin("aux.shapes", 15 * 6, H, kind="adam")
    return out


F32 = ("_conv1d.weight", "A_log", "dt_bias", "o_norm.weight", "e_score_correction_bias")


def is_f32(name):
    return name.endswith(F32)


# ---- pieces ---------------------------------------------------------------------------------------

def rms(x, w, eps):
    f = x.float()
    return (w.float() * (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + eps))).to(x.dtype)


def mix(src, rn, rq):
    """AttnRes: softmax mixture of the sources; scores from normalised, values from raw ones."""
    w = rn.float() * rq.float().view(-1)
    f = [v.float() for v in src]
    s = torch.stack([(v * w).sum(-1) * torch.rsqrt(v.square().mean(-1) + c.EPS) for v in f])
    p = torch.softmax(s, 0).unsqueeze(-1)
    return sum(p[j] * f[j] for j in range(len(f))).to(src[0].dtype)


def mix_norm(src, rn, rq, ln):
    return rms(mix(src, rn, rq), ln, c.EPS)


def first_norm(x, ln):
    return rms(x, ln, c.EPS)


def situ(g, u):
    g, u = g.float(), u.float()
    return 4 * torch.tanh(g / 4) * torch.sigmoid(g) * 25 * torch.tanh(u / 25)


def kda_pre(x, pos, wq, wk, wv, wg, wfa, wb, wfb, cq, ck, cv, dt_bias, a_log):
    N = x.shape[0]
    w = (wq, wk, wv, wg, wfa, wb)
    if c.KDA_HEADS % 8:                                 # rows in eights, for the tensor cores
        w += (x.new_zeros(-c.KDA_HEADS % 8, c.HIDDEN),)
    y = x @ torch.cat(w).t()
    raw, gate = y[:, :3 * K], y[:, 3 * K:4 * K]
    fa, b = y[:, 4 * K:4 * K + c.KDA_DIM], y[:, 4 * K + c.KDA_DIM:4 * K + c.KDA_DIM + c.KDA_HEADS]
    taps = torch.cat((cq, ck, cv)).view(3 * K, 4)
    f = raw.float()
    acc = f * taps[:, 3]
    for s in (1, 2, 3):
        old = F.pad(f[:-s], (0, 0, s, 0))
        acc = acc + torch.where(pos.unsqueeze(-1) >= s, old, 0.0) * taps[:, 3 - s]
    qkv = F.silu(acc).view(N, 3, c.KDA_HEADS, c.KDA_DIM)
    q, k, v = qkv[:, 0], qkv[:, 1], qkv[:, 2].contiguous()
    q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + 1e-6) * c.KDA_DIM ** -0.5
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6)
    gr = (fa @ wfb.t()).float().view(N, c.KDA_HEADS, c.KDA_DIM)
    g = -5 * torch.sigmoid(a_log.exp().unsqueeze(-1) * (gr + dt_bias.view(c.KDA_HEADS, c.KDA_DIM)))
    return q, k, v, g, torch.sigmoid(b.float()), gate


def kda_post(o, gate, norm, wo, P):
    z = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + c.EPS) * norm
    z = z.reshape(-1, K) * torch.sigmoid(gate.float())
    out = z.to(gate.dtype) @ wo.t()
    return out if P is None else P + out


def mla_pre(x, wqa, nqa, wqb, wkva, nkv, wkvb, wg):
    N = x.shape[0]
    y = x @ torch.cat((wqa, wkva, wg)).t()
    qa, lat, kp, gate = y.split((c.QLORA, c.KVLORA, c.PE, c.MLA_HEADS * c.VDIM), -1)
    q = (rms(qa, nqa, c.LATENT_EPS) @ wqb.t()).view(N, c.MLA_HEADS, QK)
    kv = (rms(lat, nkv, c.LATENT_EPS) @ wkvb.t()).view(N, c.MLA_HEADS, c.NOPE + c.VDIM)
    k = torch.cat((kv[..., :c.NOPE], kp.unsqueeze(1).expand(-1, c.MLA_HEADS, -1)), -1)
    v = F.pad(kv[..., c.NOPE:], (0, QK - c.VDIM))
    return q, k, v, gate


def attention(q, k, v, T):
    q, k, v = (z.view(-1, T, c.MLA_HEADS, QK).transpose(1, 2) for z in (q, k, v))
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return o.transpose(1, 2).reshape(-1, c.MLA_HEADS, QK)


def mla_post(o, gate, wo, P):
    o = o[..., :c.VDIM].reshape(-1, c.MLA_HEADS * c.VDIM)
    out = (o * torch.sigmoid(gate.float()).to(o.dtype)) @ wo.t()
    return out if P is None else P + out


def dense(x, wg, wu, wd, P):
    return P + situ(x @ wg.t(), x @ wu.t()).to(x.dtype) @ wd.t()


def moe(x, gate, bias, wdown, norm, wup, sg, su, sd, w1, w3, w2, P):
    """All experts as two wide products, unselected ones with weight zero: no sort, static shapes."""
    s = torch.sigmoid(x.float() @ gate.float().t())
    choose = s + bias
    rank = (choose.unsqueeze(1) > choose.unsqueeze(2)).sum(-1)
    mask = (rank < c.TOP).float()
    w = s * mask
    w = w / (w.sum(-1, keepdim=True) + 1e-20)
    y = x @ torch.cat((wdown, sg, su)).t()
    ell, hg, hu = y.split((c.LATENT, c.SHARED * c.FF, c.SHARED * c.FF), -1)
    h = situ(ell @ w1.flatten(0, 1).t(), ell @ w3.flatten(0, 1).t())
    h = (h.view(-1, c.EXPERTS, c.FF) * w.unsqueeze(-1)).flatten(1).to(x.dtype)
    lat = h @ w2.transpose(1, 2).reshape(c.EXPERTS * c.FF, c.LATENT)
    out = rms(lat, norm, c.EPS) @ wup.t() + situ(hg, hu).to(x.dtype) @ sd.t()
    return P + out, mask.sum(0)


def head_loss(src, rn, rq, ln, w, target, weight):
    """Weighted cross entropy with a small z-loss; for the log: loss, accuracy, accuracy of every kind
    of hard token."""
    x = mix_norm(src, rn, rq, ln)
    z = (x @ w.t()).float()
    lse = torch.logsumexp(z, -1)
    nll = lse - z.gather(1, target.unsqueeze(1)).squeeze(1)
    total = weight.sum().clamp_min(1.0)
    loss = (weight * (nll + 1e-4 * lse.square())).sum() / total
    hit = (z.argmax(-1) == target).float()
    part = lambda m: (m * hit).sum() / m.sum().clamp_min(1e-9)
    hard = [part((weight == h).float()) for h in HARD.values()]
    return loss, torch.stack([(weight * nll).sum().detach() / total, part(weight), *hard])


class Embed(torch.autograd.Function):
    """Row gather whose gradient is a one-hot product (the index kernel is slower)."""
    @staticmethod
    def forward(ctx, ids, table):
        ctx.save_for_backward(ids)
        ctx.rows = table.shape[0]
        return table[ids]

    @staticmethod
    def backward(ctx, d):
        (ids,) = ctx.saved_tensors
        hot = (ids.unsqueeze(0) == torch.arange(ctx.rows, device=ids.device).unsqueeze(1)).to(d.dtype)
        return None, hot @ d


# ---- vision ---------------------------------------------------------------------------------------

class Grids:
    """Constant tables of the 16 patch grids (2..8 by 2..8): positions, rotation, merging."""
    def __init__(self, device):
        n = len(GRIDS)
        self.pos = torch.zeros(n, 64, c.V_GRID * c.V_GRID)
        self.cos, self.sin = torch.ones(n, 64, c.V_DIM // 2), torch.zeros(n, 64, c.V_DIM // 2)
        self.valid = torch.zeros(n, 64, dtype=torch.bool)
        self.merge = torch.zeros(n, 16, 4, dtype=torch.long)
        self.tokens = torch.zeros(n, 16)
        freq = 10000.0 ** (-4 * torch.arange(c.V_DIM // 4, dtype=torch.float64) / c.V_DIM)
        for g, (h, w) in enumerate(GRIDS):
            wy, wx = (self.line(m) for m in (h, w))
            self.pos[g, :h * w] = torch.einsum("ra,qb->rqab", wy, wx).reshape(h * w, -1)
            r, q = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            ang = torch.stack((q.reshape(-1, 1) * freq, r.reshape(-1, 1) * freq), -1).flatten(1)
            self.cos[g, :h * w], self.sin[g, :h * w] = ang.cos().float(), ang.sin().float()
            self.valid[g, :h * w] = True
            for t in range(h * w // 4):
                R, Q = t // (w // 2), t % (w // 2)
                self.merge[g, t] = torch.tensor([(2 * R + a) * w + 2 * Q + b for a in (0, 1)
                                                 for b in (0, 1)])
                self.tokens[g, t] = 1.0
        for name, x in vars(self).items():
            setattr(self, name, x.to(device))

    @staticmethod
    def line(out):
        """[out, grid] bilinear weights of one axis, half-pixel centres, edge clamped."""
        m = torch.zeros(out, c.V_GRID)
        for i in range(out):
            z = max(0.0, c.V_GRID / out * (i + 0.5) - 0.5)
            i0 = int(z)
            m[i, i0] += 1 - (z - i0)
            m[i, min(i0 + 1, c.V_GRID - 1)] += z - i0
        return m


def normalise(p):
    return (p.float() / 255 - 0.5) * 2


def rotate(x, cos, sin):
    e, o = x[..., 0::2], x[..., 1::2]
    return torch.stack((e * cos - o * sin, e * sin + o * cos), -1).flatten(-2)


def tower(small, large, pos, cos, sin, valid, patch, table, blocks, final, p0, p2, post, merge,
          n_small):
    """small [n, 16, 588], large [m, 64, 588] normalised patches -> features [n * 4 + m * 16, H].
    pos/cos/sin/valid/merge: per-item constants, already gathered, for (small, large)."""
    dt = patch.dtype
    P = torch.cat((small.flatten(0, 1), large.flatten(0, 1))).to(dt)
    t = table.float().flatten(0, 1)
    where = torch.cat([(w @ t).flatten(0, 1) for w in pos])
    x = P @ patch.view(c.V_HIDDEN, 588).t() + where.to(dt)
    cut = small.shape[0] * 16
    for n0, n1, wqkv, wo, f0, f1 in blocks:
        y = rms(x, n0, c.VISION_EPS) @ wqkv.t()
        outs = []
        for part, size, cc, ss, ok in ((y[:cut], 16, cos[0], sin[0], valid[0]),
                                       (y[cut:], 64, cos[1], sin[1], valid[1])):
            q, k, v = part.view(-1, size, 3, c.V_HEADS, c.V_DIM).permute(2, 0, 3, 1, 4)
            q, k = (rotate(z.float(), cc.unsqueeze(1), ss.unsqueeze(1)).to(dt) for z in (q, k))
            s = (q @ k.transpose(-1, -2)).float() * c.V_DIM ** -0.5
            s = s.masked_fill(~ok[:, None, None, :], -1e30)
            outs.append((torch.softmax(s, -1).to(dt) @ v).transpose(1, 2).reshape(-1, c.V_HEADS * c.V_DIM))
        x = x + torch.cat(outs) @ wo.t()
        y = rms(x, n1, c.VISION_EPS)
        x = x + F.gelu(y @ f0.t(), approximate="tanh") @ f1.t()
    x = rms(x, final, c.VISION_EPS)
    m = torch.cat((x[:cut].view(-1, 16, c.V_HIDDEN).gather(1, merge[0]).reshape(-1, 4 * c.V_HIDDEN),
                   x[cut:].view(-1, 64, c.V_HIDDEN).gather(1, merge[1]).reshape(-1, 4 * c.V_HIDDEN)))
    return rms(F.gelu(m @ p0.t()) @ p2.t(), post, 1e-5)


def aux_loss(feat, n_small, tok_small, tok_large, wp, wsh, labels, counts):
    """Class of photographs and numbers of shapes from the mean feature of a picture."""
    a = feat[:n_small * 4].view(n_small, 4, -1)[-AUX_PHOTOS:].float()
    ta = tok_small[-AUX_PHOTOS:].unsqueeze(-1)
    a = (a * ta).sum(1) / ta.sum(1)
    b = feat[n_small * 4:].view(-1, 16, feat.shape[-1])[-AUX_SCENES:].float()
    tb = tok_large[-AUX_SCENES:].unsqueeze(-1)
    b = (b * tb).sum(1) / tb.sum(1)
    photo = F.cross_entropy(a @ wp.float().t(), labels, label_smoothing=0.05)
    shapes = F.cross_entropy((b @ wsh.float().t()).view(-1, 6), counts.view(-1))
    return photo, shapes


# ---- the whole ------------------------------------------------------------------------------------

class Target:
    """p: name -> leaf tensor. compile: torch.compile or the identity."""
    def __init__(self, p, device, compile=lambda f: f):
        self.p, self.device, self.grids = p, device, Grids(device)
        for f in (mix_norm, first_norm, kda_pre, kda_post, mla_pre, mla_post, dense, moe, head_loss, tower,
                  aux_loss):
            setattr(self, f.__name__, compile(f))

    def features(self, b):
        """Features of the batch's pictures, and the auxiliary losses."""
        p, g = self.p, self.grids
        photos = b["photos"].repeat_interleave(2, 1).repeat_interleave(2, 2)
        photos = photos.view(-1, 4, 14, 4, 14).permute(0, 1, 3, 2, 4).reshape(-1, 16, 196).repeat(1, 1, 3)
        small = normalise(torch.cat((b["small"], photos)))
        large = normalise(b["large"])
        four = torch.full((photos.shape[0],), GRIDS.index((4, 4)), device=self.device)
        gs, gl = torch.cat((b["small_grid"], four)), b["large_grid"]
        n_small = small.shape[0]
        merge = tuple(g.merge[i][:, :n].reshape(i.shape[0], n * 4, 1).expand(-1, -1, c.V_HIDDEN)
                      for i, n in ((gs, 4), (gl, 16)))
        blocks = []
        for i in range(c.V_LAYERS):
            q = f"vision_tower.encoder.blocks.{i}."
            blocks.append(tuple(p[q + n + ".weight"] for n in ("norm0", "norm1", "wqkv", "wo", "mlp.fc0",
                                                               "mlp.fc1")))
        feat = self.tower(
            small, large, (g.pos[gs][:, :16], g.pos[gl]), (g.cos[gs][:, :16], g.cos[gl]),
            (g.sin[gs][:, :16], g.sin[gl]), (g.valid[gs][:, :16], g.valid[gl]),
            p["vision_tower.patch_embed.proj.weight"], p["vision_tower.patch_embed.pos_emb.weight"],
            blocks, p["vision_tower.encoder.final_layernorm.weight"], p["mm_projector.proj.0.weight"],
            p["mm_projector.proj.2.weight"], p["mm_projector.post_norm.weight"], merge, n_small)
        aux = self.aux_loss(feat, n_small, g.tokens[gs][:, :4], g.tokens[gl], p["aux.photo"],
                            p["aux.shapes"], b["photo_label"], b["counts"])
        lm = torch.cat((feat[:N_SMALL * 4], feat[n_small * 4:n_small * 4 + N_LARGE * 16]))
        return lm, aux

    def embed(self, b, lm):
        x = Embed.apply(b["ids"], self.p["model.embed_tokens.weight"])
        x = torch.cat((x, x.new_zeros(1, c.HIDDEN)))
        return x.index_copy(0, b["place"], lm.to(x.dtype))[:-1]

    def layers(self, x, T, loads=None, taps=None):
        """-> snapshots and the last prefix. taps: list that receives the prefix after layers TAPS."""
        N = x.shape[0]
        pos = torch.arange(N, device=self.device) % T
        P, blocks = x, []
        for i in range(c.LAYERS):
            L = lambda n: self.p[f"model.layers.{i}.{n}.weight"]
            A = lambda n: self.p[f"model.layers.{i}.self_attn.{n}"]
            if blocks:
                h = self.mix_norm([*blocks, P], L("self_attention_res_norm"),
                                  L("self_attention_res_proj"), L("input_layernorm"))
            else:
                h = self.first_norm(P, L("input_layernorm"))
            if i % c.BLOCK == 0:
                blocks.append(P)
                P = None
            if i in c.MLA_LAYERS:
                q, k, v, gate = self.mla_pre(h, *(A(n + ".weight") for n in (
                    "q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm",
                    "kv_b_proj", "g_proj")))
                P = self.mla_post(attention(q, k, v, T), gate, A("o_proj.weight"), P)
            else:
                *z, gate = self.kda_pre(h, pos, *(A(n + ".weight") for n in (
                    "q_proj", "k_proj", "v_proj", "g_proj", "f_a_proj", "b_proj", "f_b_proj",
                    "q_conv1d", "k_conv1d", "v_conv1d")), A("dt_bias"), A("A_log"))
                o = kda.chunked(*z, T)
                P = self.kda_post(o, gate, A("o_norm.weight"), A("o_proj.weight"), P)
            h = self.mix_norm([*blocks, P], L("mlp_res_norm"), L("mlp_res_proj"),
                              L("post_attention_layernorm"))
            if i == 0:
                P = self.dense(h, L("mlp.gate_proj"), L("mlp.up_proj"), L("mlp.down_proj"), P)
            else:
                M = lambda n: self.p[f"model.layers.{i}.block_sparse_moe.{n}"]
                P, load = self.moe(h, *(M(n) for n in (
                    "gate.weight", "gate.e_score_correction_bias", "routed_expert_down_proj.weight",
                    "routed_expert_norm.weight", "routed_expert_up_proj.weight",
                    "shared_experts.gate_proj.weight", "shared_experts.up_proj.weight",
                    "shared_experts.down_proj.weight", "experts.w1", "experts.w3", "experts.w2")), P)
                if loads is not None:
                    loads.append(load)
            if taps is not None and i in c.TAPS:
                taps.append(P)
        return blocks, P

    def loss(self, b, T, aux=0.1):
        """-> loss, statistics (see train.COLUMNS), expert loads [layers with experts, E]."""
        lm, (photo, shapes) = self.features(b)
        loads = []
        blocks, P = self.layers(self.embed(b, lm), T, loads)
        p = self.p
        token, seen = self.head_loss(
            [*blocks, P], p["model.output_attn_res_norm.weight"], p["model.output_attn_res_proj.weight"],
            p["model.norm.weight"], p["lm_head.weight"], b["target"], b["weight"])
        loss = token + aux * (photo + shapes)
        return loss, torch.cat((seen, torch.stack((photo.detach(), shapes.detach())))), torch.stack(loads)
