"""How exactly one forward pass computes: dtypes, quantizers, and what is compiled.

In: a choice of switches. Out: `Numerics`, the decorator `region`, rounding-aware linear layers.
Does not know: layers, checkpoints.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .quantize import q8, straight_through

STANCE = {"compile": False}


@dataclass(frozen=True)
class Numerics:
    """Switches of a forward pass; the defaults are the official numerics (specification 5.1)."""

    storage: torch.dtype = torch.bfloat16
    wide: torch.dtype = torch.float32
    weights: bool = False  # fake-quantize the masters; off when they already hold stored values
    activations: bool = True
    caches: bool = True
    compressed: bool = True  # off: the ablation without compressed attention
    exact: bool = True  # FP32 scores and pooling, lowest-index ties; off: fast training forms


def region(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function` on its own when compilation is switched on, else call it as it is.

    Layers of one kind share a region, so ten layers cost the compile time of one.
    """
    compiled = torch.compile(function, fullgraph=True, dynamic=False)

    @wraps(function)
    def call(*arguments: Any) -> Any:
        return (compiled if STANCE["compile"] else function)(*arguments)

    return call


def rms(value: Tensor, weight: Tensor, eps: float, n: Numerics) -> Tensor:
    """RMSNorm over the last axis with one rounding at the end (specification 3)."""
    wide = value.to(n.wide)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (weight.to(n.wide) * wide * scale).to(n.storage)


def fake_q8(value: Tensor, n: Numerics) -> Tensor:
    """Q8 of the input of an FP8 or FP4 weight, if activations are quantized."""
    return straight_through(value, q8) if n.activations else value


def linear(value: Tensor, weight: Tensor, n: Numerics) -> Tensor:
    """Storage-dtype operands, wide accumulation, one rounding (bf-linear)."""
    return F.linear(value.to(n.storage), weight.to(n.storage))


def wide_linear(value: Tensor, weight: Tensor, n: Numerics) -> Tensor:
    """Wide operands and result (f32-linear)."""
    return F.linear(value.to(n.wide), weight.to(n.wide))


def similarity(queries: Tensor, keys: Tensor, n: Numerics) -> Tensor:
    """Scores [..., a, b] of queries [..., a, d] and keys [..., b, d]; wide when exact."""
    if n.exact:
        queries, keys = queries.to(n.wide), keys.to(n.wide)
    return queries @ keys.transpose(-1, -2)


def average(p: Tensor, values: Tensor, n: Numerics) -> Tensor:
    """Probabilities [..., a, b], rounded to storage, times values [..., b, d]; wide when exact."""
    p = p.to(n.storage)
    if n.exact:
        p, values = p.to(n.wide), values.to(n.wide)
    return p @ values


@region
def lookup(ids: Tensor, table: Tensor) -> Tensor:
    """Rows of a table. Compiled, its gradient is a plain scatter that a GPU graph can hold."""
    return F.embedding(ids, table)


@contextmanager
def plain() -> Iterator[None]:
    """Run regions uncompiled inside the block: for shapes that are seen only once."""
    before = STANCE["compile"]
    STANCE["compile"] = False
    try:
        yield
    finally:
        STANCE["compile"] = before
