"""Arguments for one call of an operator, from the catalogue's generator to what a kernel takes.

In: an operator, dims, the table whose kernels are tried. Out: keyword arguments.
Does not know: what a layout looks like: caches are filled by the table's own store operators, and
everything that was not written holds poison.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from deepinfer.ops.operator import Operator
from deepinfer.ops.table import Table
from deepinfer.ops.values import Stored, Weight
from deepinfer.plugin import Record

POISON_BYTE = 0xFF
"""NaN in every format of a record: E4M3, E8M0, BF16, FP32 and FP64 alike."""

_STORE = {
    "window": "attention.store_window",
    "entry": "attention.store_entries",
    "index": "attention.store_index",
    "open": "attention.store_open",
}


def arguments(
    operator: Operator,
    dims: Mapping[str, Any],
    records: Mapping[str, Record],
    table: Table,
    tokens: int,
    seed: int = 0,
    edge: str = "",
) -> dict[str, Any]:
    """One call's arguments; `records` are those of the plan's kv and index layouts."""
    made = dict(operator.inputs(dims, tokens, seed, edge))
    for name, value in made.items():
        if isinstance(value, Weight):
            made[name] = table.prepare(operator.name, value)
        elif isinstance(value, Stored):
            made[name] = cache(value, records[value.record], table)
    return made


def cache(stored: Stored, record: Record, table: Table) -> Tensor:
    """A cache with the written rows in the layout of the plan, all others poisoned."""
    dtype: torch.dtype = getattr(torch, record.dtype)
    nbytes = record.width * dtype.itemsize
    raw = torch.full((len(stored.values), nbytes), POISON_BYTE, dtype=torch.uint8)
    filled = raw.view(dtype)
    rows = torch.where(stored.written, torch.arange(len(stored.values)), -1)
    store = table[_STORE[stored.record]]
    if stored.record == "open":
        store(filled, rows, *stored.values.chunk(2, -1))
    else:
        store(filled, rows, stored.values)
    return filled
