"""Matrix products, one line each: dequantize exactly, multiply wide, round once.

In: activations and prepared weights. Out: rows.
Does not know: layouts of other platforms. `prepare` holds a weight as wide numbers [n, k].
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.ops.values import Quantized, Weight
from deepinfer.reference.numerics import OFFICIAL, Numerics
from deepinfer.reference.quantizers import dequantize, from_e8m0, scaled


def prepare(weight: Weight, n: Numerics) -> Tensor:
    """The checkpoint's weight as wide numbers; every format decodes exactly."""
    if weight.values.dim() == 3:  # experts: [experts, n, k / 2]
        assert weight.scale is not None
        pairs = zip(weight.values, weight.scale, strict=True)
        return torch.stack([n.up(dequantize(Weight(*pair))) for pair in pairs])
    return n.up(dequantize(weight))


def prepare_batched(weight: Weight, n: Numerics) -> Tensor:
    """wo_a is rounded to BF16 after dequantization, even where nothing else is (backbone 2.4)."""
    return n.up(dequantize(weight).bfloat16())


def activation(x: Quantized, n: Numerics) -> Tensor:
    """The numbers that quantized rows stand for: [tokens, k]."""
    if x.scale is None:
        return n.up(x.values)
    return n.up(scaled(x.values, from_e8m0(x.scale), 32))


def dense_mxfp8(x: Quantized, weight: Tensor, *, n: Numerics = OFFICIAL) -> Tensor:
    return n.bf(activation(x, n) @ weight.T)


def dense_bf16(x: Tensor, weight: Tensor, *, n: Numerics = OFFICIAL) -> Tensor:
    return n.bf(n.up(x) @ weight.T)


def dense_f32(x: Tensor, weight: Tensor, *, n: Numerics = OFFICIAL) -> Tensor:
    return n.f32(n.up(x) @ weight.T)


def logits(x: Tensor, weight: Tensor, *, n: Numerics = OFFICIAL) -> Tensor:
    return n.f32(n.up(x) @ weight.T)


def batched(x: Tensor, weight: Tensor, *, n: Numerics = OFFICIAL) -> Tensor:
    groups = x.shape[1]
    return n.bf(torch.einsum("tgk,gnk->tgn", n.up(x), weight.unflatten(0, (groups, -1))))


def grouped_mxfp4(
    rows: Quantized, offsets: Tensor, weight: Tensor, *, n: Numerics = OFFICIAL
) -> Tensor:
    x = activation(rows, n)  # [pairs, k]
    borders = offsets.tolist()
    out = x.new_zeros(x.shape[0], weight.shape[1])
    for expert, (first, last) in enumerate(zip(borders, borders[1:], strict=False)):
        if first < last:
            out[first:last] = x[first:last] @ weight[expert].T
    return n.bf(out)
