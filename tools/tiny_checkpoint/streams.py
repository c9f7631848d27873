"""Hyper-connections: four residual streams, mixed, collapsed and expanded around each sublayer.

In: streams [tokens, 4, hidden], the collapse weights of the site before.
Out: sublayer input, the site's own mixes, the expanded stream. Specification 3.3.
Does not know: attention, experts.
"""

import torch
from torch import Tensor

from .numerics import Numerics, region, rms
from .shape import Shape

if torch.cuda.is_available():
    from .sinkhorn import fused


def doubly_stochastic(logits: Tensor, shape: Shape) -> Tensor:
    """Twenty Sinkhorn steps on [tokens, 4, 4]."""
    if logits.is_cuda and logits.dtype == torch.float32:
        return fused(logits, shape.hc_eps, shape.sinkhorn)[0]
    eps = shape.hc_eps
    mixing = torch.softmax(logits, -1) + eps
    mixing = mixing / (mixing.sum(-2, keepdim=True) + eps)
    for _ in range(shape.sinkhorn - 1):
        mixing = mixing / (mixing.sum(-1, keepdim=True) + eps)
        mixing = mixing / (mixing.sum(-2, keepdim=True) + eps)
    return mixing


@region
def enter(
    stream: Tensor, before: Tensor, site: tuple[Tensor, Tensor, Tensor], norm: Tensor,
    shape: Shape, n: Numerics,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sublayer input [tokens, hidden] and the site's pre, post [tokens, 4], mixing [tokens, 4, 4].

    The input is collapsed with the mix of the site before: that is the one-site lag.
    """
    fn, base, scale = (part.to(n.wide) for part in site)
    copies = shape.copies
    wide = stream.to(n.wide)  # [tokens, 4, hidden]
    flat = wide.flatten(-2)
    rho = torch.rsqrt(flat.square().mean(-1, keepdim=True) + shape.eps)
    m = (flat @ fn.T) * rho  # [tokens, 24]
    pre = torch.sigmoid(m[:, :copies] * scale[0] + base[:copies]) + shape.hc_eps
    post = 2 * torch.sigmoid(m[:, copies : 2 * copies] * scale[1] + base[copies : 2 * copies])
    logits = m[:, 2 * copies :] * scale[2] + base[2 * copies :]
    mixing = doubly_stochastic(logits.unflatten(-1, (copies, copies)), shape)
    collapsed = (before.unsqueeze(-1) * wide).sum(-2).to(n.storage)
    return rms(collapsed, norm, shape.eps, n), pre, post, mixing


@region
def leave(stream: Tensor, out: Tensor, post: Tensor, mixing: Tensor, n: Numerics) -> Tensor:
    """Add the sublayer's output to every stream; the sum runs over the first index of mixing."""
    mixed = (mixing.unsqueeze(-1) * stream.to(n.wide).unsqueeze(-2)).sum(-3)
    return (post.unsqueeze(-1) * out.to(n.wide).unsqueeze(-2) + mixed).to(n.storage)


@region
def finish(stream: Tensor, pre: Tensor, norm: Tensor, shape: Shape, n: Numerics) -> Tensor:
    """Collapse and normalize for the head: [tokens, hidden]."""
    collapsed = (pre.unsqueeze(-1) * stream.to(n.wide)).sum(-2).to(n.storage)
    return rms(collapsed, norm, shape.eps, n)
