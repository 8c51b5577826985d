"""Muon for matrices, Adam for the rest; fp32 masters beside the bf16 leaves the model reads.

The routed experts' leaves hold the nearest MXFP4 values of their masters (straight-through training):
what is exported is exactly what was trained.
"""
import torch
import quant


def newton_schulz(x):
    """Approximate orthogonalisation of a stack [n, r, c], r <= c, in bf16."""
    a, b, cc = 3.4445, -4.7750, 2.0315
    x = x / (x.float().norm(dim=(-2, -1), keepdim=True) + 1e-7)
    x = x.bfloat16()
    for _ in range(5):
        g = x @ x.transpose(-1, -2)
        g = torch.baddbmm(g, g, g, beta=b, alpha=cc)
        x = torch.baddbmm(x, g, x, beta=a, alpha=1.0)
    return x


class Group:
    """All matrices of one shape: stacked master and momentum."""
    def __init__(self, names, leaves, values, experts):
        self.names, self.leaves, self.experts = names, leaves, experts
        self.master = torch.stack([v.float().flatten(1) if v.dim() != 3 else v.float() for v in values])
        if experts:
            self.master = self.master.flatten(0, 1)             # [layers * E, out, in]
        self.momentum = torch.zeros_like(self.master)

    def step(self, lr, wd):
        g = torch.stack([p.grad for p in self.leaves]).view(self.master.shape).float()
        self.momentum.lerp_(g, 0.05)
        g = g.lerp_(self.momentum, 0.95)
        tall = g.shape[1] > g.shape[2]
        u = newton_schulz(g.transpose(1, 2) if tall else g)
        u = (u.transpose(1, 2) if tall else u).float()
        scale = 0.2 * max(g.shape[1:]) ** 0.5
        self.master.mul_(1 - lr * wd).sub_(u * (lr * scale))

    def write(self):
        m = quant.fake(self.master) if self.experts else self.master
        m = m.view(len(self.leaves), *self.leaves[0].shape)
        torch._foreach_copy_([p.data for p in self.leaves], list(m.unbind(0)))


class Optimizer:
    def __init__(self, spec, masters, leaves, lr_muon=5e-3, lr_adam=3e-3, wd=0.1):
        self.spec, self.leaves, self.lr_muon, self.lr_adam, self.wd = spec, leaves, lr_muon, lr_adam, wd
        groups, flat = {}, []
        for n, (shape, kind, _) in spec.items():
            if kind == "muon":
                tag = ".experts.w" in n
                groups.setdefault((tuple(masters[n].flatten(1).shape) if not tag else
                                   tuple(masters[n].shape), tag), []).append(n)
            elif kind != "none":
                flat.append(n)
        self.groups = [Group(ns, [leaves[n] for n in ns], [masters[n] for n in ns], tag)
                       for (_, tag), ns in groups.items()]
        self.flat_names = flat
        self.flat = torch.cat([masters[n].float().flatten() for n in flat])
        rate = {"adam": 1.0, "head": 0.5, "query": 0.1}
        self.rate = torch.cat([torch.full((masters[n].numel(),), rate[spec[n][1]],
                                          device=self.flat.device) for n in flat])
        self.m, self.v = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.count = torch.zeros((), device=self.flat.device)

    def step(self, scale):
        """scale: learning-rate factor, a tensor of no dimensions."""
        for g in self.groups:
            g.step(self.lr_muon * scale, self.wd)
        grads = [self.leaves[n].grad for n in self.flat_names]
        g = torch.cat([(torch.zeros_like(self.leaves[n]) if x is None else x).flatten().float()
                       for n, x in zip(self.flat_names, grads)])
        self.count += 1
        self.m.lerp_(g, 0.1)
        self.v.lerp_(g.square(), 0.02)
        hat = (self.m / (1 - 0.9 ** self.count)) / ((self.v / (1 - 0.98 ** self.count)).sqrt() + 1e-9)
        self.flat.sub_(hat * self.rate * (self.lr_adam * scale))

    def write(self):
        for g in self.groups:
            g.write()
        parts = self.flat.split([self.leaves[n].numel() for n in self.flat_names])
        torch._foreach_copy_([self.leaves[n].data.view(-1) for n in self.flat_names], list(parts))

    def masters(self):
        out = {}
        for g in self.groups:
            for n, m in zip(g.names, g.master.view(len(g.leaves), *g.leaves[0].shape)):
                out[n] = m
        for n, part in zip(self.flat_names, self.flat.split([self.leaves[n].numel()
                                                             for n in self.flat_names])):
            out[n] = part.view(self.leaves[n].shape)
        for n, (_, kind, _) in self.spec.items():
            if kind == "none":
                out[n] = self.leaves[n].data
        return {n: out[n] for n in self.spec}

    def state(self):
        return [g.momentum for g in self.groups] + [self.m, self.v, self.count]

    def load_state(self, tensors):
        for a, b in zip(self.state(), tensors):
            a.copy_(b)
