"""The mixture of experts, computed densely: sixteen small experts are one wide product.

In: sublayer inputs [tokens, hidden]. Out: their sum over the chosen experts and the shared one.
Does not know: attention, streams. Specification 3.8.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .numerics import Numerics, fake_q8, linear, region, wide_linear
from .shape import Shape

Weights = dict[str, Tensor]


def route(x: Tensor, w: Weights, top: int, scale: float, n: Numerics) -> tuple[Tensor, Tensor]:
    """Weights [tokens, experts], zero where not chosen, and the choice as a mask."""
    score = torch.sqrt(F.softplus(wide_linear(x, w["ffn.gate.weight"], n)))
    biased = score.detach() + w["ffn.gate.bias"].to(n.wide)
    chosen = torch.zeros_like(biased, dtype=torch.bool)
    number = torch.arange(biased.shape[-1], device=x.device)
    for _ in range(top):  # argmax returns the lowest index of a tie
        first = biased.masked_fill(chosen, -torch.inf).argmax(-1, keepdim=True)
        chosen = chosen | (number == first)
    kept = score * chosen
    return scale * kept / (kept.sum(-1, keepdim=True) + 1e-20), chosen


@region
def mix_experts(
    x: Tensor, w: Weights, top: int, shape: Shape, n: Numerics
) -> tuple[Tensor, Tensor, Tensor]:
    """Output [tokens, hidden], routing weights [tokens, experts], load [experts].

    Unchosen experts get the weight zero before the down projection, so their products vanish
    and one product over all experts side by side gives the sum.
    """
    weights, chosen = route(x, w, top, shape.route_scale, n)
    one = torch.ones_like(weights[:, :1])
    weight = torch.cat((weights, one), -1)  # the shared expert comes last and has no weight
    up, gate, down = (_side_by_side(w, part) for part in ("w3", "w1", "w2"))
    xq = fake_q8(x, n)
    g = linear(xq, gate, n).to(n.wide).unflatten(-1, (weight.shape[-1], -1)).clamp(max=shape.limit)
    u = linear(xq, up, n).to(n.wide).unflatten(-1, (weight.shape[-1], -1))
    u = u.clamp(-shape.limit, shape.limit)
    a = (weight.unsqueeze(-1) * (F.silu(g) * u)).to(n.storage).flatten(-2)
    a = fake_q8(a, n)
    if not n.exact:
        return linear(a, down, n), weights, chosen.to(n.wide).mean(0)
    # the official sum rounds each expert's product to storage before it adds them up
    each = a.unflatten(-1, (weight.shape[-1], -1)).transpose(0, 1)
    out = (each @ down.to(n.storage).unflatten(-1, (weight.shape[-1], -1)).permute(1, 2, 0))
    out = out.to(n.wide).sum(0).to(n.storage)
    return out, weights, chosen.to(n.wide).mean(0)


def _side_by_side(w: Weights, part: str) -> Tensor:
    """All routed experts and the shared one as one matrix: w1, w3 by rows, w2 by columns."""
    routed, shared = w[f"ffn.experts.{part}.weight"], w[f"ffn.shared_experts.{part}.weight"]
    together = torch.cat((routed, shared.unsqueeze(0)), 0)  # [experts + 1, out, in]
    if part == "w2":
        return together.transpose(0, 1).flatten(1)
    return together.flatten(0, 1)
