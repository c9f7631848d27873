"""Mixture of experts: a router, the chosen experts on MXFP4 weights, and one shared expert.

In: rows [tokens, hidden]. Out: rows [tokens, hidden].
Does not know: on which rank an expert lives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from deepinfer.model.shape import Shape
from deepinfer.ops.table import Table


@dataclass(frozen=True)
class Experts:
    """gate, w13 (gate and up as one), w2, shared13, shared2 are prepared; bias [experts] f32."""

    gate: Any
    bias: Tensor
    w13: Any
    w2: Any
    shared13: Any
    shared2: Any
    count: int
    top_k: int


def forward(p: Experts, x: Tensor, shape: Shape, ops: Table) -> Tensor:
    """backbone 3.8; the rows are quantized once for the routed and the shared experts."""
    logits = ops.gemm_dense_f32(x, p.gate)
    experts, weights = ops.tensor_route(logits, p.bias, p.top_k, shape.routed_scaling_factor)
    quantized = ops.tensor_quantize(x)

    rows = ops.tensor_permute_rows(quantized, experts, weights, p.count)
    hidden = ops.gemm_grouped_mxfp4(rows.rows, rows.offsets, p.w13)
    active = ops.tensor_swiglu_quantize(hidden, rows.weights, shape.swiglu_limit)
    routed = ops.gemm_grouped_mxfp4(active, rows.offsets, p.w2)

    hidden = ops.gemm_dense_mxfp8(quantized, p.shared13)
    active = ops.tensor_swiglu_quantize(hidden, None, shape.swiglu_limit)
    shared = ops.gemm_dense_mxfp8(active, p.shared2)
    return ops.tensor_unpermute_rows(routed, rows, shared, p.top_k)
