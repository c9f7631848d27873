"""A model of marks instead of numbers: every value is a hash of all that it was made from.

Its forward pass reads and writes the caches exactly where the real one does, so one wrong row,
block or border changes every token behind it. `truth` computes the same without any cache.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy
import torch

from deepinfer.engine.blocks import Geometry
from deepinfer.engine.tray import Tray
from deepinfer.model.batch import Batch, Caches, Rows
from deepinfer.model.shape import Shape
from deepinfer.model.v41 import Passed

LAYERS, WINDOW, BLOCK, RING, OPEN = 5, 4, 4, 8, 8
RATIOS = (0, 2, 2, 1, 1)
SOURCES = (1, 3)
ENGRAM, NGRAM = 1, 3
VOCABULARY, EOS = 64, 1
ODD = numpy.random.default_rng(5).integers(1, 1 << 62, 4096, dtype=numpy.uint64) * 2 + 1


def shape() -> Shape:
    """A small shape with every kind of layer."""
    given: dict[str, Any] = {field.name: 0 for field in fields(Shape)}
    given |= {
        "num_hidden_layers": LAYERS,
        "sliding_window": WINDOW,
        "compress_ratios": RATIOS,
        "kv_source_layer_ids": SOURCES,
        "index_source_layer_ids": SOURCES,
        "engram_layer_ids": (ENGRAM,),
        "engram_max_ngram_size": NGRAM,
        "dspark_target_layer_ids": (4,),
        "vocab_size": VOCABULARY,
    }
    return Shape(**given)


def mix(*parts: Any) -> Any:
    """A hash of arrays, element by element."""
    found = numpy.full(1, 0x9E3779B97F4A7C15, dtype=numpy.uint64)
    for place, part in enumerate(parts):
        value = numpy.asarray(part).astype(numpy.uint64) + ODD[place]
        found = (found ^ value) * ODD[place + 64]
        found = found ^ (found >> numpy.uint64(29))
    return found


def chosen(marks: Any, seeds: Any) -> Any:
    """Token ids; the end token now and then."""
    drawn = mix(marks, seeds) >> numpy.uint64(7)
    ids = 2 + drawn % numpy.uint64(VOCABULARY - 2)
    return numpy.where(drawn % numpy.uint64(23) == 0, EOS, ids).astype(numpy.int64)


def truth(tokens: list[int], seed: int) -> list[int]:
    """The token behind every row, computed at once and without caches."""
    ids = numpy.array(tokens, dtype=numpy.int64)
    at, count = numpy.arange(len(ids)), len(ids)
    marks = mix(ids, at)
    history = numpy.full((count, NGRAM), -1, dtype=numpy.int64)
    for back in range(NGRAM):
        history[back:, back] = ids[: count - back] // 2
    entries = numpy.zeros(0, dtype=numpy.uint64)
    for layer in range(LAYERS):
        if layer == ENGRAM:
            marks = mix(marks, *history.T)
        ratio = RATIOS[layer]
        if layer in SOURCES:
            groups = marks[: count // ratio * ratio].reshape(-1, ratio)
            entries = mix(layer, *groups.T)
        keys = mix(layer + 100, marks)
        window = numpy.zeros(count, dtype=numpy.uint64)
        for back in range(min(WINDOW, count)):
            window[back:] += keys[: count - back] * ODD[WINDOW - 1 - back]
        seen = numpy.zeros(count, dtype=numpy.uint64)
        if ratio:
            sums = numpy.concatenate([[numpy.uint64(0)], numpy.cumsum(_weighed(entries))])
            seen = sums[(at + 1) // ratio]
        marks = mix(layer, marks, window, seen)
    return list(chosen(marks, numpy.full(count, seed % (1 << 63))).tolist())


def _weighed(entries: Any) -> Any:
    return entries * ODD[128 : 128 + entries.shape[-1]]


class MarkModel:
    """What the line asks of a model."""

    def __init__(self) -> None:
        self.ops = SimpleNamespace(sampler_sample=self._sample)

    def at(self, rows: int) -> MarkModel:
        return self

    @staticmethod
    def _sample(logits: Any, temperature: Any, k: Any, p: Any, m: Any, seeds: Any, at: Any) -> Any:
        return torch.from_numpy(chosen(logits[:, 0].numpy(), seeds.numpy() & (2**63 - 1)))

    def forward(self, batch: Batch, caches: Caches) -> Passed:
        table = batch.block_table.numpy().astype(numpy.int64)
        marks = mix(batch.ids.numpy(), batch.layers[0].positions.numpy())
        for layer in range(LAYERS):
            rows = batch.at(layer)
            if layer == ENGRAM:
                marks = mix(marks, *rows.history.numpy().T)
            marks = self._layer(layer, marks, rows, table, caches)
            if not len(marks):
                return Passed(torch.zeros(0, 1, dtype=torch.int64), None)
        logits = marks[batch.wanted.numpy()].view(numpy.int64)
        return Passed(torch.from_numpy(logits)[:, None], None)

    def _layer(self, layer: int, marks: Any, rows: Rows, table: Any, caches: Caches) -> Any:
        if layer in SOURCES:
            self._extend(layer, marks, rows, table, caches)
        with_keys = _pick(marks, rows.keys)
        keys, window = mix(layer + 100, with_keys), rows.window
        ring = _marks(caches.window[layer])
        for tap in window.taps:
            if layer < tap.layers:
                saved = _marks(caches.saved[layer])
                _store(saved, tap.rows.numpy(), keys)
                saved[tap.copies.numpy()] = ring[tap.earlier.numpy()]
        read = ring
        if window.earlier is not None:
            read = numpy.concatenate([ring[window.earlier.numpy()], keys])
        _store(ring, window.rows.numpy(), keys)
        leaving = _pick(with_keys, rows.out)
        index = window.index.numpy()
        values = numpy.where(index >= 0, read[index], 0) * ODD[:WINDOW]
        seen = numpy.zeros(len(leaving), dtype=numpy.uint64)
        if RATIOS[layer]:
            seen = self._seen(layer, rows, table, caches)
        return mix(layer, leaving, values.sum(-1, dtype=numpy.uint64), seen)

    def _extend(self, layer: int, marks: Any, rows: Rows, table: Any, caches: Caches) -> None:
        groups = rows.groups[RATIOS[layer]]
        fresh, sources = _pick(marks, groups.fresh), groups.sources.numpy()
        if RATIOS[layer] > 1:
            opened = _marks(caches.opened[layer])
            old = opened[numpy.where(sources < 0, -1 - sources, 0)]
            parts = numpy.where(sources < 0, old, _at(fresh, numpy.maximum(sources, 0)))
            _store(opened, groups.open_rows.numpy(), fresh)
        else:
            parts = _at(fresh, sources)
        number = groups.numbers.numpy().astype(numpy.int64)
        per_block, owner = groups.per_block, groups.sequence.numpy()
        place = table[owner, number // per_block] * per_block + number % per_block
        _marks(caches.entries[layer])[place] = mix(layer, *parts.T)

    def _seen(self, layer: int, rows: Rows, table: Any, caches: Caches) -> Any:
        source = max(one for one in SOURCES if one <= layer)
        groups = rows.groups[RATIOS[layer]]
        number = numpy.arange(groups.count)
        place = table[:, number // groups.per_block] * groups.per_block + number % groups.per_block
        sums = numpy.cumsum(_weighed(_marks(caches.entries[source])[place]), axis=1)
        sums = numpy.concatenate([numpy.zeros((len(table), 1), dtype=numpy.uint64), sums], axis=1)
        return sums[rows.sequence.numpy(), groups.visible.numpy()]


def _pick(values: Any, rows: torch.Tensor | None) -> Any:
    return values if rows is None else values[rows.numpy()]


def _at(values: Any, rows: Any) -> Any:
    return values[rows] if len(values) else numpy.zeros(rows.shape, dtype=numpy.uint64)


def _marks(cache: torch.Tensor) -> Any:
    return cache[:, 0].numpy().view(numpy.uint64)


def _store(cache: Any, rows: Any, values: Any) -> None:
    cache[rows[rows >= 0]] = values[rows >= 0]


def house(slots: int, blocks: int, whole: int, halves: int) -> Any:
    """A house over marks; every cache begins with other garbage."""
    own = shape()
    geometry = Geometry(BLOCK, RING, slots, blocks + 1, OPEN, whole, halves)
    random = numpy.random.default_rng(9)

    def garbage(rows: int) -> torch.Tensor:
        return torch.from_numpy(random.integers(0, 1 << 62, (rows, 1)))

    saved = [whole + (halves if layer < max(SOURCES) else 0) for layer in range(LAYERS)]
    caches = Caches(
        tuple(garbage(slots * RING) for _ in range(LAYERS)),
        {layer: garbage((blocks + 1) * BLOCK // RATIOS[layer]) for layer in SOURCES},
        {layer: garbage((blocks + 1) * BLOCK // RATIOS[layer]) for layer in SOURCES},
        {layer: garbage(slots * OPEN) for layer in SOURCES if RATIOS[layer] > 1},
        tuple(garbage(count * (WINDOW - 1)) for count in saved),
        {layer: garbage(whole * OPEN) for layer in SOURCES if RATIOS[layer] > 1},
    )
    return SimpleNamespace(
        planned=SimpleNamespace(geometry=geometry, shape=own),
        table=SimpleNamespace(blaming=nullcontext),
        model=MarkModel(),
        caches=caches,
        tray=Tray(own, geometry, [number // 2 for number in range(VOCABULARY)]),
    )
