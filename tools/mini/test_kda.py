"""Chunked KDA against the recurrence, forward and backward. Without a GPU: TRITON_INTERPRET=1."""
import sys
import torch
from kda import chunked, recurrence


def case(B, T, H, D, slow, device):
    torch.manual_seed(T)
    mk = lambda *s: torch.randn(*s, device=device, dtype=torch.float64)
    q, k = (torch.nn.functional.normalize(mk(B, T, H, D) + (1.5 if slow else 0), dim=-1) for _ in "qk")
    q = q * D ** -0.5
    v, dout = mk(B, T, H, D), mk(B, T, H, D)
    g = -5 * torch.sigmoid(mk(B, T, H, D) * 2 - (6 if slow else -1))
    beta = torch.sigmoid(mk(B, T, H) + 1)
    args = [x.requires_grad_() for x in (q, k, v, g, beta)]
    ref = recurrence(*args)
    want = torch.autograd.grad(ref, args, dout)
    flat = [x.detach().float().flatten(0, 1).requires_grad_() for x in args]
    got = chunked(*flat, T)
    have = torch.autograd.grad(got, flat, dout.float().flatten(0, 1))
    err = lambda a, b: ((a.double().view_as(b) - b).norm() / b.norm()).item()
    return [err(got, ref)] + [err(a, b) for a, b in zip(have, want)]


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    worst = 0
    for shape in ((2, 64, 2, 64), (1, 160, 1, 64), (2, 64, 2, 32), (1, 160, 1, 32)) if device == "cpu" else \
            ((8, 512, 5, 64), (8, 512, 8, 32), (8, 512, 9, 32)):
        for slow in (False, True):
            e = case(*shape, slow, device)
            worst = max([worst] + e)
            print(shape, "slow" if slow else "fast", " ".join(f"{x:.1e}" for x in e))
    sys.exit(worst > 1e-4)
