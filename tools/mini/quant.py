"""MXFP4 as published: 32-element groups along the input, E2M1 values, E8M0 scale bytes."""
import torch

GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def scales(w):
    """Exponent of each group's scale: the smallest power of two that brings the group within 6."""
    top = w.float().unflatten(-1, (-1, 32)).abs().amax(-1)
    return torch.ceil(torch.log2((top / 6).clamp_min(2.0 ** -100)))


def fake(w):
    """Nearest representable weights, as float32; used in every forward pass of training."""
    s = torch.exp2(scales(w)).unsqueeze(-1)
    x = w.float().unflatten(-1, (-1, 32)) / s
    a = x.abs()
    step = torch.where(a < 2, 0.5, torch.where(a < 4, 1.0, 2.0))
    return (torch.copysign((torch.round(a / step) * step).clamp_max(6.0), x) * s).flatten(-2)


def pack(w):
    """-> packed uint8 [.., out, in/2] (low nibble = even column), scale uint8 [.., out, in/32]."""
    e = scales(w)
    x = fake(w).unflatten(-1, (-1, 32)) / torch.exp2(e).unsqueeze(-1)
    code = torch.searchsorted(torch.tensor(GRID, device=w.device), x.abs().flatten(-2).contiguous())
    code = (code + 8 * (x.flatten(-2) < 0)).to(torch.uint8)
    return code[..., 0::2] | (code[..., 1::2] << 4), (e + 127).to(torch.uint8)


def unpack(packed, scale):
    grid = torch.tensor(GRID + tuple(-g for g in GRID), device=packed.device)
    x = torch.stack((grid[(packed & 15).long()], grid[(packed >> 4).long()]), -1).flatten(-2)
    return (x.unflatten(-1, (-1, 32)) * torch.exp2(scale.float() - 127).unsqueeze(-1)).flatten(-2)
