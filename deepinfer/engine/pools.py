"""Pools: how many rows every cache has, and the views of one arena that they are.

In: a Shape, a Geometry, the records of the plan. Out: sizes in rows and bytes; `Caches`.
Does not know: who uses which row. Source: engine specification 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from deepinfer.engine.blocks import Geometry
from deepinfer.model.batch import Caches
from deepinfer.model.shape import Shape
from deepinfer.plugin import Record
from deepinfer.plugin.memory import Memory

ALIGNMENT = 256
"""Every cache begins at a multiple of this many bytes."""
SNAPSHOT_PART = 0.1
"""Part of the cache memory that snapshots take (engine 3.5)."""
LEAST_SNAPSHOTS = 2
"""Of each kind, however small the cache is."""


class Size(NamedTuple):
    """Rows of one cache and what a row is."""

    rows: int
    record: Record

    @property
    def nbytes(self) -> int:
        """Bytes, aligned."""
        raw: int = self.rows * self.record.width * getattr(torch, self.record.dtype).itemsize
        return -(-raw // ALIGNMENT) * ALIGNMENT


def pool_sizes(
    shape: Shape, geometry: Geometry, records: Mapping[str, Record], drafts: bool
) -> dict[tuple[str, int], Size]:
    """(cache, layer) -> size; caches are window, entry, index, open, saved and saved_open."""
    layers = shape.num_hidden_layers + (shape.num_nextn_predict_layers if drafts else 0)
    back, rings = shape.sliding_window - 1, geometry.slots * geometry.ring
    sizes = {("window", layer): Size(rings, records["window"]) for layer in range(layers)}
    for layer in shape.kv_source_layer_ids:
        rows = geometry.blocks * geometry.block_tokens // shape.ratio(layer)
        sizes["entry", layer] = Size(rows, records["entry"])
        sizes["index", layer] = Size(rows, records["index"])
        if shape.ratio(layer) > 1:
            sizes["open", layer] = Size(geometry.slots * geometry.open_rows, records["open"])
    if not geometry.whole + geometry.halves:
        return sizes
    decoder = max(shape.kv_source_layer_ids)
    for layer in range(layers):
        count = geometry.whole + (geometry.halves if layer < decoder else 0)
        sizes["saved", layer] = Size(count * back, records["window"])
    for layer in shape.kv_source_layer_ids:
        if shape.ratio(layer) > 1:
            rows = geometry.whole * geometry.open_rows
            sizes["saved_open", layer] = Size(rows, records["open"])
    return sizes


def with_snapshots(
    shape: Shape, geometry: Geometry, records: Mapping[str, Record], drafts: bool
) -> Geometry:
    """The same with snapshots for a tenth of the cache memory, half of it for each kind."""

    def nbytes(whole: int, halves: int) -> int:
        sizes = pool_sizes(
            shape, replace(geometry, whole=whole, halves=halves), records, drafts
        )
        return sum(size.nbytes for size in sizes.values())

    bare = nbytes(0, 0)
    budget = int(bare * SNAPSHOT_PART / (1 - SNAPSHOT_PART)) // 2
    return replace(
        geometry,
        whole=max(budget // (nbytes(1, 0) - bare), LEAST_SNAPSHOTS),
        halves=max(budget // (nbytes(0, 1) - bare), LEAST_SNAPSHOTS),
    )


def make_caches(memory: Memory, sizes: Mapping[tuple[str, int], Size]) -> Caches:
    """One arena for all caches; each is a view with a fixed address."""
    memory.arena("kv", sum(size.nbytes for size in sizes.values()))
    names = ("window", "entry", "index", "open", "saved", "saved_open")
    views: dict[str, dict[int, Any]] = {name: {} for name in names}
    offset = 0
    for (cache, layer), size in sizes.items():
        dtype = getattr(torch, size.record.dtype)
        views[cache][layer] = memory.view("kv", offset, (size.rows, size.record.width), dtype)
        offset += size.nbytes
    return Caches(
        tuple(views["window"][layer] for layer in sorted(views["window"])),
        views["entry"],
        views["index"],
        views["open"],
        tuple(views["saved"][layer] for layer in sorted(views["saved"])),
        views["saved_open"],
    )
