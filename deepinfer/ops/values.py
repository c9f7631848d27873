"""Values that pass between operators and are more than one tensor.

In: tensors. Out: named pairs, and the canonical (checkpoint or unrounded) form of packed things.
Does not know: layouts of any platform; a kernel's `prepare` turns a `Weight` into its own packing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Weight(NamedTuple):
    """A weight as the checkpoint holds it.

    values  [out, in] bf16 / f32 / float8_e4m3fn, or int8 [out, in / 2] with two E2M1 codes a byte;
            experts add a leading axis
    scale   float8_e8m0fnu [out / 32, in / 32] (dense), [out, in / 32] (experts, Engram), or None
    """

    values: torch.Tensor
    scale: torch.Tensor | None = None


class Quantized(NamedTuple):
    """Activation rows on the Q8 grid, in the layout of kind `activations`.

    In layout "rows": values [rows, k] float8_e4m3fn, scale [rows, k / 32] float8_e8m0fnu.
    Without rounding (the reference's `rounding="none"`): the rows themselves, scale None.
    """

    values: torch.Tensor
    scale: torch.Tensor | None = None


class ExpertRows(NamedTuple):
    """Rows brought into the order of the experts, in the layout of kind `expert_rows`.

    In layout "sorted": rows are contiguous by expert, by token inside one.
    rows     Quantized [pairs, k]
    weights  [pairs] f32 routing weights
    source   [pairs] int64, token * experts_per_token + place of each row
    offsets  [experts + 1] int64, expert e owns rows offsets[e] : offsets[e + 1]
    """

    rows: Quantized
    weights: torch.Tensor
    source: torch.Tensor
    offsets: torch.Tensor


class Stored(NamedTuple):
    """Contents of a cache in canonical form, for input generators.

    `values` [rows, dim] bf16 are to be written by the layout's own store operator; rows outside
    `written` stay poisoned. record is "window", "entry" or "index".
    """

    values: torch.Tensor
    written: torch.Tensor
    record: str
