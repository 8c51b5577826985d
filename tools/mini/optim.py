"""Muon for matrices, Adam for the rest; fp32 masters beside the bf16 leaves the model reads.

Masters, momenta and gradients lie flat, so that a step is a few wide operations and the matrix products
of Muon. The routed experts' leaves hold the nearest MXFP4 values of their masters (straight-through
training): what is exported is exactly what was trained.
"""
import torch
import quant


def newton_schulz(x):
    """Approximate orthogonalisation of a stack [n, r, c], r <= c, in bf16."""
    a, b, cc = 3.4445, -4.7750, 2.0315
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(5):
        g = x @ x.transpose(-1, -2)
        g = torch.baddbmm(g, g, g, beta=b, alpha=cc)
        x = torch.baddbmm(x, g, x, beta=a, alpha=1.0)
    return x


def blend(momentum, grad):
    """Updates the momentum; the Nesterov gradient."""
    g = grad.float()
    momentum.lerp_(g, 0.05)
    return g.lerp(momentum, 0.95)


def apply(master, update, gain, lr, wd):
    master.mul_(1 - lr * wd).sub_(update * (gain * lr))


def adam(flat, m, v, count, grad, rate, lr):
    count += 1
    m.lerp_(grad, 0.1)
    v.lerp_(grad.square(), 0.02)
    hat = (m / (1 - 0.9 ** count)) / ((v / (1 - 0.98 ** count)).sqrt() + 1e-9)
    flat.sub_(hat * rate * lr)


class Flat:
    """Masters of some leaves, one after the other; `grad` gathers their gradients in the same order."""
    def __init__(self, names, masters, leaves):
        self.names = sorted(names, key=lambda n: leaves[n].dtype == torch.float32)      # by type
        self.leaves = [leaves[n] for n in self.names]
        self.sizes = [p.numel() for p in self.leaves]
        self.master = torch.cat([masters[n].float().flatten() for n in self.names])

    def grad(self):
        out = []
        for p in self.leaves:
            g = torch.zeros_like(p) if p.grad is None else p.grad
            out.append(g.reshape(-1))
        low = [g for g in out if g.dtype != torch.float32]
        parts = [torch.cat(low).float()] if low else []
        high = out[len(low):]
        return torch.cat(parts + high)

    def spread(self, flat):
        torch._foreach_copy_([p.data.view(-1) for p in self.leaves], list(flat.split(self.sizes)))


class Optimizer:
    def __init__(self, spec, masters, leaves, lr_muon=5e-3, lr_adam=3e-3, wd=0.1, compile=lambda f: f):
        self.spec, self.leaves, self.lr_muon, self.lr_adam, self.wd = spec, leaves, lr_muon, lr_adam, wd
        self.blend, self.apply, self.adam, self.fake = (compile(f) for f in (blend, apply, adam, quant.fake))
        muon = [n for n in spec if spec[n][1] == "muon"]
        muon.sort(key=lambda n: ".experts.w" not in n)          # the experts first
        self.muon = Flat(muon, masters, leaves)
        self.experts = sum(leaves[n].numel() for n in muon if ".experts.w" in n)
        self.momentum = torch.zeros_like(self.muon.master)
        self.update, self.gain = torch.zeros_like(self.momentum), torch.empty_like(self.momentum)
        # (smaller side, larger side) -> [(first element, matrices, rows, columns)]: one stack each
        self.stacks, at = {}, 0
        for n in self.muon.names:
            shape = spec[n][0]
            r, c = (shape[1:] if ".experts.w" in n else (shape[0], leaves[n].numel() // shape[0]))
            size = leaves[n].numel()
            self.stacks.setdefault((min(r, c), max(r, c)), []).append((at, size // (r * c), r, c))
            self.gain[at:at + size] = 0.2 * max(r, c) ** 0.5
            at += size
        self.rest = Flat([n for n in spec if spec[n][1] not in ("muon", "none")], masters, leaves)
        rate = {"adam": 1.0, "head": 0.5, "query": 0.1}
        flat = self.rest.master
        self.rate = torch.cat([torch.full((k,), rate[spec[n][1]], device=flat.device)
                               for n, k in zip(self.rest.names, self.rest.sizes)])
        self.m, self.v = torch.zeros_like(flat), torch.zeros_like(flat)
        self.count = torch.zeros((), device=flat.device)

    def step(self, scale):
        """scale: learning-rate factor, a tensor of no dimensions."""
        g = self.blend(self.momentum, self.muon.grad())
        for places in self.stacks.values():
            views = [[x[at:at + n * r * c].view(n, r, c) for x in (g, self.update)] for at, n, r, c in places]
            wide = lambda x: x if x.shape[1] <= x.shape[2] else x.transpose(1, 2)
            u = newton_schulz(torch.cat([wide(x) for x, _ in views]))
            parts = u.split([n for _, n, _, _ in places])
            torch._foreach_copy_([wide(y) for _, y in views], list(parts))
        self.apply(self.muon.master, self.update, self.gain, self.lr_muon * scale, self.wd)
        self.adam(self.rest.master, self.m, self.v, self.count, self.rest.grad(), self.rate,
                  self.lr_adam * scale)

    def write(self):
        w = self.muon.master
        k = self.experts
        experts = self.fake(w[:k].view(-1, 32)).view(-1)
        self.muon.spread(torch.cat((experts, w[k:])))
        self.rest.spread(self.rest.master)

    def masters(self):
        out = {}
        for f in (self.muon, self.rest):
            for n, p, part in zip(f.names, f.leaves, f.master.split(f.sizes)):
                out[n] = part.view(p.shape)
        for n, (_, kind, _) in self.spec.items():
            if kind == "none":
                out[n] = self.leaves[n].data
        return {n: out[n] for n in self.spec}

    def state(self):
        return [self.momentum, self.m, self.v, self.count]

    def load_state(self, tensors):
        for a, b in zip(self.state(), tensors):
            a.copy_(b)
