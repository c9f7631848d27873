"""All-to-all operators: rows between ranks.

In: the model's dims and a process group. Out: catalogue rows (contract, tolerance, inputs).
Does not know: the transport.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from deepinfer.ops.draw import Draw
from deepinfer.ops.operator import EXACT, Operator, relative
from deepinfer.ops.tensor import quantized
from deepinfer.ops.values import Quantized


class Dispatched(NamedTuple):
    """Rows that arrived for this rank's experts, in the order of the experts.

    rows     Quantized [arrived, k], sorted by local expert, then by source rank, then by token
    offsets  [local experts + 1] int64
    weights  [arrived] f32 routing weights
    ticket   what `combine` needs to send results back; opaque
    """

    rows: Quantized
    offsets: Tensor
    weights: Tensor
    ticket: Any


def dispatch(  # type: ignore[empty-body]
    x: Quantized, experts: Tensor, weights: Tensor, count: int, group: Any
) -> Dispatched:
    """Sends rows to the ranks of their experts; expert e lives on rank e // (count / ranks).

    x        Quantized [tokens, k], layouts of kinds `activations`, `expert_rows`; tokens may be 0
    experts  [tokens, top_k] int32 in increasing number; weights [tokens, top_k] f32
    count    experts in all, a multiple of the ranks
    group    process group of the expert ranks; every rank must call, with rows or without
    returns  Dispatched
    Source: engine 7.2.
    """


def combine(y: Tensor, ticket: Any, shared: Tensor, group: Any) -> Tensor:  # type: ignore[empty-body]
    """Brings the experts' outputs home and sums them in increasing expert number, shared last.

    y        [arrived, hidden] bf16 in the order of Dispatched.rows
    shared   [tokens, hidden] bf16
    returns  [tokens, hidden] bf16, FP32 sum, one rounding: equal to one rank's result
    Source: engine 7.2, backbone 3.8 step 5.
    """


def all_reduce(x: Tensor, group: Any) -> Tensor:  # type: ignore[empty-body]
    """Sum over the ranks in rank order, FP32, rounded once to x's dtype; x is not changed."""


def all_gather(x: Tensor, group: Any) -> Tensor:  # type: ignore[empty-body]
    """Rows of all ranks in rank order: [n_r, ...] per rank -> [sum of n_r, ...]; n_r may differ."""


def reduce_scatter(x: Tensor, group: Any) -> Tensor:  # type: ignore[empty-body]
    """Sum as all_reduce, then this rank's equal share of the rows: [ranks * n, ...] -> [n, ...]."""


def _reduce(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    return {"x": Draw(seed).bf16(tokens, dims["hidden"], edge=edge), "group": None}


def _dispatch(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw, top_k = Draw(seed), dims["experts_per_token"]
    experts = draw.f32(tokens, dims["experts"]).topk(top_k, -1).indices.sort(-1).values.int()
    if edge == "one_rank":
        experts = experts % top_k + 0 * experts
        experts = experts.sort(-1).values
    return {
        "x": quantized(draw.bf16(tokens, dims["hidden"])),
        "experts": experts,
        "weights": draw.f32(tokens, top_k).abs(),
        "count": dims["experts"],
        "group": None,
    }


def _combine(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw = Draw(seed)
    return {
        "y": draw.bf16(tokens, dims["hidden"]),
        "ticket": None,
        "shared": draw.bf16(tokens, dims["hidden"]),
        "group": None,
    }


_EXPERT_DIMS = ("hidden", "experts", "experts_per_token")
OPERATORS = (
    Operator(
        "all_to_all.dispatch",
        dispatch,
        _EXPERT_DIMS,
        EXACT,
        _dispatch,
        ("one_rank",),
        ("activations", "expert_rows"),
        needs="ranks",
    ),
    Operator(
        "all_to_all.combine",
        combine,
        _EXPERT_DIMS,
        EXACT,
        _combine,
        (),
        ("expert_rows",),
        needs="ranks",
    ),
    Operator(
        "all_to_all.all_reduce", all_reduce, ("hidden",), relative(1e-6), _reduce, (), needs="ranks"
    ),
    Operator("all_to_all.all_gather", all_gather, ("hidden",), EXACT, _reduce, (), needs="ranks"),
    Operator(
        "all_to_all.reduce_scatter",
        reduce_scatter,
        ("hidden",),
        relative(1e-6),
        _reduce,
        (),
        needs="ranks",
    ),
)
