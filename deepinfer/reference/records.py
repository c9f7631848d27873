"""Cache records: how one row of each cache kind is laid out in bytes, in three layouts.

In: rows of values. Out: rows of bytes, and back.
Does not know: which rows belong to whom. Layouts: "packed" is the official format (528 / 288 / 68
bytes at V4.1's widths), "bf16" holds the same values as BF16, "wide" holds unrounded numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from deepinfer.plugin.types import Layout, Record
from deepinfer.reference.numerics import Numerics
from deepinfer.reference.quantizers import (
    e8m0,
    from_e2m1,
    from_e8m0,
    pack_pairs,
    q4_entry,
    q4_index,
    q8,
    scaled,
    unpack_pairs,
)


def packed_kv(dims: Mapping[str, Any]) -> dict[str, Record]:
    """Window rows: E4M3 then UE8M0 per 32. Entries: E2M1 pairs then E4M3 per 16 (backbone 4.1)."""
    dim = dims["head_dim"]
    return {
        "window": Record("uint8", dim + dim // 32),
        "entry": Record("uint8", dim // 2 + dim // 16),
        "open": Record("float32", 2 * dim),
    }


def packed_index(dims: Mapping[str, Any]) -> dict[str, Record]:
    """Index keys: E2M1 pairs then UE8M0 per 32."""
    dim = dims["index_dim"]
    return {"index": Record("uint8", dim // 2 + dim // 32)}


def plain_kv(dtype: str, state: str) -> Any:
    """One element of `dtype` a channel; open groups in `state`."""

    def records(dims: Mapping[str, Any]) -> dict[str, Record]:
        dim = dims["head_dim"]
        return {
            "window": Record(dtype, dim),
            "entry": Record(dtype, dim),
            "open": Record(state, 2 * dim),
        }

    return records


def plain_index(dtype: str) -> Any:
    """One element of `dtype` a channel."""
    return lambda dims: {"index": Record(dtype, dims["index_dim"])}


KV = {
    "packed": Layout("packed", packed_kv),
    "bf16": Layout("bf16", plain_kv("bfloat16", "float32")),
    "float32": Layout("float32", plain_kv("float32", "float32")),
    "float64": Layout("float64", plain_kv("float64", "float64")),
}
INDEX = {
    "packed": Layout("packed", packed_index),
    "bf16": Layout("bf16", plain_index("bfloat16")),
    "float32": Layout("float32", plain_index("float32")),
    "float64": Layout("float64", plain_index("float64")),
}


def encode(values: Tensor, record: str) -> Tensor:
    """Rows [n, dim] bf16 as packed bytes [n, record bytes]."""
    if record == "window":
        codes, scale = q8(values)
        return torch.cat([codes.view(torch.uint8), e8m0(scale).view(torch.uint8)], -1)
    if record == "entry":
        codes, scale = q4_entry(values)
        return torch.cat([pack_pairs(codes), scale.view(torch.uint8)], -1)
    codes, scale = q4_index(values)
    return torch.cat([pack_pairs(codes), e8m0(scale).view(torch.uint8)], -1)


def decode(rows: Tensor, record: str) -> Tensor:
    """Packed bytes as the f32 numbers they stand for: [n, dim]."""
    if record == "window":
        dim = rows.shape[-1] * 32 // 33
        codes, scale = rows[..., :dim], rows[..., dim:]
        return scaled(codes.view(torch.float8_e4m3fn), from_e8m0(scale), 32)
    if record == "entry":
        dim = rows.shape[-1] * 16 // 9
        codes, scale = rows[..., : dim // 2], rows[..., dim // 2 :]
        return scaled(from_e2m1(unpack_pairs(codes)), scale.view(torch.float8_e4m3fn), 16)
    dim = rows.shape[-1] * 32 // 17
    codes, scale = rows[..., : dim // 2], rows[..., dim // 2 :]
    return scaled(from_e2m1(unpack_pairs(codes)), from_e8m0(scale), 32)


def round_trip(values: Tensor, record: str, n: Numerics) -> Tensor:
    """Values as a reader will see them, [n, dim] bf16 (unchanged where nothing is rounded)."""
    return n.bf(decode(encode(values, record), record)) if n.rounding else n.up(values)


def write(cache: Tensor, rows: Tensor, values: Tensor, record: str, n: Numerics) -> None:
    """Stores values [n, dim] into rows [n] of a cache; negative rows are not written."""
    kept = rows >= 0
    if cache.dtype == torch.uint8:
        cache[rows[kept]] = encode(values[kept].contiguous(), record)
    else:
        cache[rows[kept]] = round_trip(values[kept].contiguous(), record, n).to(cache.dtype)


def read(cache: Tensor, rows: Tensor, record: str, n: Numerics) -> Tensor:
    """Rows of any shape [...] of a cache as values [..., dim], bf16 where the model rounds."""
    picked = cache[rows.long()]
    return n.bf(decode(picked, record) if cache.dtype == torch.uint8 else picked)
