"""Matrix products in the formats of the checkpoint.

In: the model's dims. Out: catalogue rows (contract, tolerance, inputs).
Does not know: who computes them; a weight is whatever the kernel's `prepare` made of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from deepinfer.ops.draw import Draw
from deepinfer.ops.operator import Operator, relative, ulp
from deepinfer.ops.tensor import quantized
from deepinfer.ops.values import Quantized, Weight


def dense_mxfp8(x: Quantized, weight: Any) -> Tensor:  # type: ignore[empty-body]
    """x . weight^T with one power-of-two scale per 32 of K on both sides.

    x        Quantized [tokens, k], layout of kind `activations`
    weight   prepared Weight [n, k] e4m3 with scale [n / 32, k / 32]
    returns  [tokens, n] bf16; blocks of 32 accumulated in FP32, one rounding
    Source: backbone 3.1 (fp8-linear).
    """


def dense_bf16(x: Tensor, weight: Any) -> Tensor:  # type: ignore[empty-body]
    """x . weight^T, BF16 operands, FP32 accumulation, BF16 result.

    x        [tokens, k] bf16; weight prepared Weight [n, k] bf16; returns [tokens, n] bf16
    Source: backbone 3.1 (bf-linear).
    """


def dense_f32(x: Tensor, weight: Any) -> Tensor:  # type: ignore[empty-body]
    """x . weight^T with an FP32 result, TF32 off.

    x        [tokens, k] bf16; weight prepared Weight [n, k] bf16 or f32; returns [tokens, n] f32
    Source: backbone 3.1 (f32-linear).
    """


def logits(x: Tensor, weight: Any) -> Tensor:  # type: ignore[empty-body]
    """The head: [tokens, hidden] bf16 by prepared Weight [vocabulary, hidden] bf16 -> f32.

    A bf16 result makes ties and is not allowed.
    Source: backbone 3.2, DSpark 1.1.
    """


def batched(x: Tensor, weight: Any) -> Tensor:  # type: ignore[empty-body]
    """One product per output group.

    x        [tokens, groups, k] bf16
    weight   prepared Weight [groups * n, k] e4m3 with 32x32 scales, dequantized, rounded to bf16
    returns  [tokens, groups, n] bf16, FP32 accumulation
    Source: backbone 3.5 step 7, 2.4.
    """


def grouped_mxfp4(rows: Quantized, offsets: Tensor, weight: Any) -> Tensor:  # type: ignore[empty-body]
    """Each expert's rows by its own weight.

    rows     Quantized [pairs, k] in expert order, layouts of kinds `activations`, `expert_rows`
    offsets  [experts + 1] int64
    weight   prepared Weight [experts, n, k / 2] int8 (E2M1 pairs) with scale [experts, n, k / 32]
    returns  [pairs, n] bf16; blocks of 32 accumulated in FP32, one rounding
    Source: backbone 2.2, 3.8.
    """


def _shape(dims: Mapping[str, Any], seed: int) -> tuple[int, int]:
    shapes: tuple[tuple[int, int], ...] = dims["linear_shapes"]
    return shapes[seed % len(shapes)]


def _mxfp8(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw, (n, k) = Draw(seed), _shape(dims, seed)
    weight = Weight(draw.e4m3(n, k), draw.e8m0(-(-n // 32), -(-k // 32)))
    return {"x": quantized(draw.bf16(tokens, k, edge=edge)), "weight": weight}


def _bf16(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw, (n, k) = Draw(seed), _shape(dims, seed)
    return {"x": draw.bf16(tokens, k, edge=edge), "weight": Weight(draw.bf16(n, k, size=k**-0.5))}


def _logits(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw, hidden = Draw(seed), dims["hidden"]
    return {
        "x": draw.bf16(tokens, hidden, edge=edge),
        "weight": Weight(draw.bf16(dims["vocabulary"], hidden, size=hidden**-0.5)),
    }


def _batched(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw, groups, n = Draw(seed), dims["o_groups"], dims["o_rank"]
    k = dims["heads"] * dims["head_dim"] // groups
    weight = Weight(draw.e4m3(groups * n, k), draw.e8m0(-(-groups * n // 32), -(-k // 32)))
    return {"x": draw.bf16(tokens, groups, k, edge=edge), "weight": weight}


def _grouped(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw, experts, k, n = Draw(seed), dims["experts"], dims["hidden"], dims["expert_hidden"]
    owner = draw.ids(experts, tokens)
    if edge == "one_expert":
        owner.fill_(experts - 1)
    counts = torch.bincount(owner, minlength=experts)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    weight = Weight(draw.e2m1_pairs(experts, n, k // 2), draw.e8m0(experts, n, k // 32))
    return {"rows": quantized(draw.bf16(tokens, k)), "offsets": offsets, "weight": weight}


_ROUNDED, _WIDE = ulp(1, 0.02), relative(1e-6)
OPERATORS = (
    Operator(
        "gemm.dense_mxfp8",
        dense_mxfp8,
        ("linear_shapes",),
        _ROUNDED,
        _mxfp8,
        ("zeros", "tiny"),
        ("activations", "dense_weights"),
    ),
    Operator(
        "gemm.dense_bf16",
        dense_bf16,
        ("linear_shapes",),
        _ROUNDED,
        _bf16,
        ("strided",),
        needs="compressed",
    ),
    Operator("gemm.dense_f32", dense_f32, ("linear_shapes",), _WIDE, _bf16, ("strided",)),
    Operator("gemm.logits", logits, ("vocabulary", "hidden"), _WIDE, _logits),
    Operator(
        "gemm.batched",
        batched,
        ("heads", "head_dim", "o_groups", "o_rank"),
        _ROUNDED,
        _batched,
        ("strided",),
    ),
    Operator(
        "gemm.grouped_mxfp4",
        grouped_mxfp4,
        ("experts", "hidden", "expert_hidden"),
        _ROUNDED,
        _grouped,
        ("one_expert",),
        ("activations", "expert_rows", "expert_weights"),
    ),
)
