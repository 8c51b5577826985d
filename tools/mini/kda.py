"""Chunked gated delta rule (KDA) for training, as five Triton kernels.

Chunks of C = 16 tokens. Per chunk and head, with b the running sum of log decays inside the chunk:
    N[i][j] = beta_i sum_c k_i k_j exp(b_i - b_j)   (i > j)        t = (I + N)^-1
    A[i][j] =        sum_c q_i k_j exp(b_i - b_j)   (i >= j)
    E = t (beta v) - t (beta k exp(b)) S,  O = (q exp(b)) S + A E,  S' = diag(exp(b_last)) S + Kd^T E
The exponents are taken relative to the middle row: with 16 rows and decays above e^-5 a step they
stay within +-40, so fp32 holds every factor. `walk` and `walk_back` go through the chunks of a row, the
other kernels work on all chunks at once: `before` the walk, `between` the walk back and `after` it.
`recurrence` is the definition, token by token, for tests; `plain` the chunked form in tensor operations,
for CPUs.
"""
import os
import torch
import triton
import triton.language as tl

C = 16
INTERPRET = os.environ.get("TRITON_INTERPRET") == "1"      # Triton's own CPU interpreter, for tests


def recurrence(q, k, v, g, beta):
    """q, k (already normalised, q scaled), v, g [B, T, H, D], beta [B, T, H] -> o [B, T, H, D]."""
    B, T, H, D = q.shape
    S = q.new_zeros(B, H, D, D)
    out = []
    for t in range(T):
        S = S * g[:, t].exp().unsqueeze(-1)
        e = v[:, t] - torch.einsum("bhkv,bhk->bhv", S, k[:, t])
        S = S + k[:, t].unsqueeze(-1) * (beta[:, t].unsqueeze(-1) * e).unsqueeze(-2)
        out.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]))
    return torch.stack(out, 1)


@triton.jit
def dot(x, y):
    return tl.dot(x, y, input_precision="tf32x3")


@triton.jit
def row(x, i, r):
    """Row i of a tile whose row numbers are r."""
    return tl.sum(tl.where(r[:, None] == i, x, 0.0), 0)


@triton.jit
def before(q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, w_ptr, u_ptr, qe_ptr, ke_ptr, a_ptr, t_ptr, dl_ptr,
           H: tl.constexpr, D: tl.constexpr):
    """One program: one chunk of one head. q.. [N, H, D] -> w, u, qe, ke [NC, H, 16, D], a, t, dl."""
    pid = tl.program_id(0)
    r, d = tl.arange(0, 16), tl.arange(0, D)
    rows = (pid // H) * 16 + r
    flat = (rows * H + pid % H)[:, None] * D + d[None, :]
    q, k, v, g = tl.load(q_ptr + flat), tl.load(k_ptr + flat), tl.load(v_ptr + flat), tl.load(g_ptr + flat)
    beta = tl.load(beta_ptr + rows * H + pid % H)
    b = tl.cumsum(g, 0)
    last, mid = tl.sum(g, 0), row(b, 8, r)
    up = tl.exp(b - mid[None, :])
    down = tl.trans(k * tl.exp(mid[None, :] - b))
    n = tl.where(r[:, None] > r[None, :], dot(k * up, down) * beta[:, None], 0.0)
    a = tl.where(r[:, None] >= r[None, :], dot(q * up, down), 0.0)
    t = -n
    for i in range(1, 16):
        x = -row(n, i, r)
        t = tl.where(r[:, None] == i, (x + tl.sum(x[:, None] * t, 0))[None, :], t)
    t = t + tl.where(r[:, None] == r[None, :], 1.0, 0.0)
    eb = tl.exp(b)
    out = pid * 16 * D + r[:, None] * D + d[None, :]
    square = pid * 256 + r[:, None] * 16 + r[None, :]
    tl.store(u_ptr + out, dot(t, v * beta[:, None]))
    tl.store(w_ptr + out, dot(t, k * eb * beta[:, None]))
    tl.store(qe_ptr + out, q * eb)
    tl.store(ke_ptr + out, k * tl.exp(last[None, :] - b))
    tl.store(a_ptr + square, a)
    tl.store(t_ptr + square, t)
    tl.store(dl_ptr + pid * D + d, tl.exp(last))


@triton.jit
def walk(w_ptr, u_ptr, q_ptr, a_ptr, k_ptr, dl_ptr, o_ptr, e_ptr, s_ptr, n_chunks: tl.constexpr,
         H: tl.constexpr, D: tl.constexpr, V: tl.constexpr):
    """One program: V of the D value columns of one (row, head), over all its chunks. s: the state
    before each chunk. o [N, H, D]."""
    pid = tl.program_id(0)
    b, h = pid // H, pid % H
    col = tl.program_id(1) * V + tl.arange(0, V)
    r, d = tl.arange(0, 16), tl.arange(0, D)
    S = tl.zeros((D, V), tl.float32)
    for i in range(n_chunks):
        n = b * n_chunks + i
        c = n * H + h
        w = tl.load(w_ptr + c * 16 * D + r[:, None] * D + d[None, :])
        u = tl.load(u_ptr + c * 16 * D + r[:, None] * D + col[None, :])
        q = tl.load(q_ptr + c * 16 * D + r[:, None] * D + d[None, :])
        kt = tl.load(k_ptr + c * 16 * D + r[None, :] * D + d[:, None])
        a = tl.load(a_ptr + c * 256 + r[:, None] * 16 + r[None, :])
        dl = tl.load(dl_ptr + c * D + d)
        tl.store(s_ptr + c * D * D + d[:, None] * D + col[None, :], S)
        e = u - dot(w, S)
        o = dot(q, S) + dot(a, e)
        S = S * dl[:, None] + dot(kt, e)
        tl.store(o_ptr + ((n * 16 + r) * H + h)[:, None] * D + col[None, :], o)
        tl.store(e_ptr + c * 16 * D + r[:, None] * D + col[None, :], e)


@triton.jit
def walk_back(w_ptr, q_ptr, a_ptr, k_ptr, dl_ptr, do_ptr, de_ptr, ds_ptr, n_chunks: tl.constexpr,
              H: tl.constexpr, D: tl.constexpr, V: tl.constexpr):
    """The same walk in reverse: de = gradient of E, ds = gradient of the state after each chunk."""
    pid = tl.program_id(0)
    b, h = pid // H, pid % H
    col = tl.program_id(1) * V + tl.arange(0, V)
    r, d = tl.arange(0, 16), tl.arange(0, D)
    dS = tl.zeros((D, V), tl.float32)
    for j in range(n_chunks):
        n = b * n_chunks + n_chunks - 1 - j
        c = n * H + h
        wt = tl.load(w_ptr + c * 16 * D + r[None, :] * D + d[:, None])
        qt = tl.load(q_ptr + c * 16 * D + r[None, :] * D + d[:, None])
        k = tl.load(k_ptr + c * 16 * D + r[:, None] * D + d[None, :])
        at = tl.load(a_ptr + c * 256 + r[None, :] * 16 + r[:, None])
        dl = tl.load(dl_ptr + c * D + d)
        do = tl.load(do_ptr + ((n * 16 + r) * H + h)[:, None] * D + col[None, :])
        tl.store(ds_ptr + c * D * D + d[:, None] * D + col[None, :], dS)
        de = dot(at, do) + dot(k, dS)
        tl.store(de_ptr + c * 16 * D + r[:, None] * D + col[None, :], de)
        dS = dS * dl[:, None] + dot(qt, do) - dot(wt, de)


@triton.jit
def between(e_ptr, s_ptr, do_ptr, de_ptr, ds_ptr, dqe_ptr, dw_ptr, dke_ptr, da_ptr, ddl_ptr,
            H: tl.constexpr, D: tl.constexpr):
    """Gradients of what `before` gave to the walk (that of u is de), from the states and theirs."""
    pid = tl.program_id(0)
    r, d, v = tl.arange(0, 16), tl.arange(0, D), tl.arange(0, 32)
    rows = ((pid // H) * 16 + r) * H + pid % H
    dqe, dw, dke = tl.zeros((16, D), tl.float32), tl.zeros((16, D), tl.float32), tl.zeros((16, D), tl.float32)
    da, ddl = tl.zeros((16, 16), tl.float32), tl.zeros((D,), tl.float32)
    for at in tl.static_range(0, D, 32):
        do = tl.load(do_ptr + rows[:, None] * D + (at + v)[None, :])
        inner = pid * 16 * D + r[:, None] * D + (at + v)[None, :]
        de, e = tl.load(de_ptr + inner), tl.load(e_ptr + inner)
        state = pid * D * D + d[:, None] * D + (at + v)[None, :]
        s, ds = tl.load(s_ptr + state), tl.load(ds_ptr + state)
        st = tl.trans(s)
        dqe += dot(do, st)
        dw -= dot(de, st)
        dke += dot(e, tl.trans(ds))
        da += dot(do, tl.trans(e))
        ddl += tl.sum(s * ds, 1)
    out = pid * 16 * D + r[:, None] * D + d[None, :]
    tl.store(dqe_ptr + out, dqe)
    tl.store(dw_ptr + out, dw)
    tl.store(dke_ptr + out, dke)
    tl.store(da_ptr + pid * 256 + r[:, None] * 16 + r[None, :],
             tl.where(r[:, None] >= r[None, :], da, 0.0))
    tl.store(ddl_ptr + pid * D + d, ddl)


@triton.jit
def after(q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, t_ptr, de_ptr, dqe_ptr, dw_ptr, dke_ptr, da_ptr, ddl_ptr,
          dq_ptr, dk_ptr, dv_ptr, dg_ptr, dbeta_ptr, H: tl.constexpr, D: tl.constexpr):
    """Gradients of q, k, v, g, beta: `before` in reverse."""
    pid = tl.program_id(0)
    r, d = tl.arange(0, 16), tl.arange(0, D)
    rows = (pid // H) * 16 + r
    flat = (rows * H + pid % H)[:, None] * D + d[None, :]
    inner = pid * 16 * D + r[:, None] * D + d[None, :]
    square = pid * 256 + r[:, None] * 16 + r[None, :]
    lower = r[:, None] > r[None, :]
    de, dqe = tl.load(de_ptr + inner), tl.load(dqe_ptr + inner)
    dw, dke = tl.load(dw_ptr + inner), tl.load(dke_ptr + inner)
    da, ddl = tl.load(da_ptr + square), tl.load(ddl_ptr + pid * D + d)
    # what `before` computed, again
    q, k, v, g = tl.load(q_ptr + flat), tl.load(k_ptr + flat), tl.load(v_ptr + flat), tl.load(g_ptr + flat)
    beta = tl.load(beta_ptr + rows * H + pid % H)[:, None]
    tt = tl.trans(tl.load(t_ptr + square))
    b = tl.cumsum(g, 0)
    last, mid = tl.sum(g, 0), row(b, 8, r)
    up, down = tl.exp(b - mid[None, :]), tl.exp(mid[None, :] - b)
    eb, fall = tl.exp(b), tl.exp(last[None, :] - b)
    ku, kd, qu = k * up, k * down, q * up
    m = dot(ku, tl.trans(kd))
    # through u = t (beta v), w = t (beta k eb), t = (I + n)^-1, n = beta (ku kd^T), a = qu kd^T
    dt = dot(de, tl.trans(v * beta)) + dot(dw, tl.trans(k * eb * beta))
    dbv, dbk = dot(tt, de), dot(tt, dw)
    dn = tl.where(lower, -dot(dot(tt, dt), tt), 0.0)
    dm = dn * beta
    dku, dqu = dot(dm, kd), dot(da, kd)
    dkd = dot(tl.trans(dm), ku) + dot(tl.trans(da), qu)
    dbeta = tl.sum(dn * m, 1) + tl.sum(dbv * v + dbk * k * eb, 1)
    tl.store(dq_ptr + flat, dqu * up + dqe * eb)
    tl.store(dk_ptr + flat, dku * up + dkd * down + dbk * beta * eb + dke * fall)
    tl.store(dv_ptr + flat, dbv * beta)
    tl.store(dbeta_ptr + rows * H + pid % H, dbeta)
    # log decays: db of every row, then the sum over the rows from each on
    rel, end = dku * ku + dqu * qu - dkd * kd, dke * k * fall
    db = rel + dbk * beta * k * eb + dqe * q * eb - end
    db += tl.where(r[:, None] == 8, -tl.sum(rel, 0)[None, :], 0.0)
    db += tl.where(r[:, None] == 15, (tl.sum(end, 0) + ddl * tl.exp(last))[None, :], 0.0)
    tl.store(dg_ptr + flat, tl.cumsum(db, 0, reverse=True))


V, WARPS = 32, (1, 4, 4, 2, 4)          # value columns of a walking program; warps of the kernels


class Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, g, beta, T):
        N, H, D = q.shape
        assert D % V == 0 and D & (D - 1) == 0, "the kernels' tiles are powers of two, V columns at a time"
        NC, n = N // C, T // C
        q, k, v, g, beta = (x.contiguous() for x in (q, k, v, g, beta))
        new = lambda *s: torch.empty(*s, device=q.device)
        w, u, qe, ke, e = (new(NC, H, C, D) for _ in range(5))
        a, t, dl, s, o = new(NC, H, C, C), new(NC, H, C, C), new(NC, H, D), new(NC, H, D, D), new(N, H, D)
        before[(NC * H,)](q, k, v, g, beta, w, u, qe, ke, a, t, dl, H, D, num_warps=WARPS[0])
        walk[(NC // n * H, D // V)](w, u, qe, a, ke, dl, o, e, s, n, H, D, V, num_warps=WARPS[1])
        ctx.save_for_backward(q, k, v, g, beta, w, qe, ke, a, t, dl, e, s)
        ctx.n = n
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, g, beta, w, qe, ke, a, t, dl, e, s = ctx.saved_tensors
        (_, H, D), NC, n = q.shape, len(w), ctx.n
        do = do.contiguous()
        de, ds = torch.empty_like(e), torch.empty_like(s)
        walk_back[(NC // n * H, D // V)](w, qe, a, ke, dl, do, de, ds, n, H, D, V, num_warps=WARPS[2])
        out = [torch.empty_like(x) for x in (q, k, v, g, beta)]
        mid = [torch.empty_like(x) for x in (qe, w, ke, a, dl)]
        between[(NC * H,)](e, s, do, de, ds, *mid, H, D, num_warps=WARPS[3])
        after[(NC * H,)](q, k, v, g, beta, t, de, *mid, *out, H, D, num_warps=WARPS[4])
        return (*out, None)


def plain(q, k, v, g, beta, T):
    """The same in tensor operations, all rows at once."""
    N, H, D = q.shape
    n = T // C
    q, k, v, g = (x.view(N // C, C, H, D).transpose(1, 2) for x in (q, k, v, g))
    beta = beta.view(N // C, C, H).transpose(1, 2).unsqueeze(-1)
    b = g.cumsum(2)
    mid, last = b[:, :, C // 2:C // 2 + 1], b[:, :, -1:]
    kn = (k * (mid - b).exp()).transpose(-1, -2)
    nn = (beta * ((k * (b - mid).exp()) @ kn)).tril(-1)
    a = ((q * (b - mid).exp()) @ kn).tril()
    eye = torch.eye(C, dtype=q.dtype, device=q.device)
    uw = torch.linalg.solve_triangular(eye + nn, torch.cat((beta * v, beta * k * b.exp()), -1), upper=False)
    rows = lambda x: x.view(-1, n, *x.shape[1:]).unbind(1)
    S, out = q.new_zeros(N // T, H, D, D), []
    for uw, q, a, k, dl in zip(*map(rows, (uw, q * b.exp(), a, k * (last - b).exp(),
                                           last.exp().transpose(-1, -2)))):
        e = uw[..., :D] - uw[..., D:] @ S
        out.append(q @ S + a @ e)
        S = S * dl + k.transpose(-1, -2) @ e
    return torch.stack(out, 1).flatten(0, 1).transpose(1, 2).reshape(N, H, D)


def chunked(q, k, v, g, beta, T):
    """q, k, v, g [N, H, D] fp32 (N = rows * T), beta [N, H] -> o [N, H, D]."""
    return Chunked.apply(q, k, v, g, beta, T) if q.is_cuda or INTERPRET else plain(q, k, v, g, beta, T)
