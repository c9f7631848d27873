"""Tray: turns the entries of a step into the arrays that the model reads.

In: entries (sequence, first token, number of rows). Out: a Batch on the device.
Does not know: what is computed from it, nor why these entries were chosen.
"""

from __future__ import annotations

from collections.abc import Sequence as Several

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer.engine.blocks import Geometry
from deepinfer.engine.sequence import Entry
from deepinfer.model.batch import Batch, Groups, Window
from deepinfer.model.shape import Shape

Ints = NDArray[numpy.int64]


class Tray:
    """Fills batches for one shape and geometry. `compressed_ids` maps token ids for the n-grams."""

    def __init__(
        self, shape: Shape, geometry: Geometry, compressed_ids: Several[int], device: str = "cpu"
    ) -> None:
        self.shape, self.geometry, self.device = shape, geometry, device
        self._compressed = numpy.asarray(compressed_ids, dtype=numpy.int64)

    def batch(self, entries: Several[Entry]) -> Batch:
        """Rows of all entries, one entry after the other."""
        counts = [entry.rows for entry in entries]
        starts = numpy.cumsum([0, *counts])
        positions = _join([numpy.arange(e.first, e.first + e.rows) for e in entries])
        sequence = numpy.repeat(numpy.arange(len(entries)), counts)
        wanted = _join(
            [numpy.arange(end - e.wanted, end) for e, end in zip(entries, starts[1:], strict=True)]
        )
        ids = _join([numpy.asarray(e.sequence.tokens[e.first : e.first + e.rows]) for e in entries])
        ratios = {ratio for ratio in self.shape.compress_ratios if ratio}
        return Batch(
            ids=self._put(ids),
            positions=self._put(positions),
            sequence=self._put(sequence),
            history=self._put(numpy.concatenate([self._history(entry) for entry in entries])),
            dead=self._put(numpy.concatenate([_dead(e, e.first) for e in entries])).bool(),
            window=self._window(entries, starts),
            block_table=self._put(self._table(entries)).int(),
            groups={ratio: self._groups(ratio, entries, starts, positions) for ratio in ratios},
            wanted=self._put(wanted),
        )

    def draft_batch(self, entries: Several[Entry], noise: int) -> Batch:
        """Blocks of a draft call: the newest token of each sequence, then noise (DSpark 1.3).

        Every row reads the context keys of the last w computed tokens and all keys of its block;
        nothing is written to the rings.
        """
        size, w, ring = self.shape.dspark_block_size, self.shape.sliding_window, self.geometry.ring
        ids: list[Ints] = []
        positions: list[Ints] = []
        earlier: list[Ints] = []
        spans: list[tuple[int, int]] = []
        for entry in entries:
            s = entry.sequence
            ids.append(numpy.array([s.tokens[entry.first], *[noise] * (size - 1)]))
            positions.append(numpy.arange(entry.first, entry.first + size))
            known = numpy.arange(max(0, entry.first - w), entry.first)
            spans.append((sum(map(len, earlier)), len(known)))
            earlier.append(s.slot * ring + known % ring)
        context = sum(map(len, earlier))
        index = numpy.full((len(entries) * size, w + size), -1, dtype=numpy.int64)
        for place, (start, length) in enumerate(spans):
            own = slice(place * size, (place + 1) * size)
            index[own, :length] = start + numpy.arange(length)
            index[own, length : length + size] = context + place * size + numpy.arange(size)
        rows = len(entries) * size
        nothing = numpy.full(rows, -1, dtype=numpy.int64)
        return Batch(
            ids=self._put(_join(ids)),
            positions=self._put(_join(positions)),
            sequence=self._put(numpy.repeat(numpy.arange(len(entries)), size)),
            history=self._put(numpy.full((rows, self.shape.engram_max_ngram_size), -1)),
            dead=torch.zeros(rows, dtype=torch.bool, device=self.device),
            window=Window(self._put(nothing), self._put(index).int(), self._put(_join(earlier))),
            block_table=self._put(self._table(entries)).int(),
            groups={},
            wanted=self._put(numpy.arange(rows)),
        )

    def _history(self, entry: Entry) -> Ints:
        """[rows, ngram] compressed ids looking back from each row; -1 from the first place on that
        lies before the start or holds a dead token (backbone 3.9)."""
        ngram, tokens = self.shape.engram_max_ngram_size, entry.sequence.tokens
        begin = max(0, entry.first - ngram + 1)
        known = self._compressed[tokens[begin : entry.first + entry.rows]]
        back = numpy.arange(entry.first, entry.first + entry.rows)[:, None] - numpy.arange(ngram)
        place = numpy.maximum(back - begin, 0)
        open_ = (back >= 0) & ~_dead(entry, begin)[place]
        return numpy.where(numpy.logical_and.accumulate(open_, axis=1), known[place], -1)

    def _window(self, entries: Several[Entry], starts: Ints) -> Window:
        """Ring rows to write, and what each row reads (backbone 4.2 item 1)."""
        w, ring = self.shape.sliding_window, self.geometry.ring
        # what a short step overwrites lies outside every row's window, so the ring can be read
        linear = any(entry.rows > ring - w + 1 for entry in entries)
        spans = [numpy.arange(max(0, e.first - w + 1), e.first) for e in entries]
        context = sum(map(len, spans)) if linear else 0
        rows, index, begin = [], [], 0
        for entry, start, span in zip(entries, starts, spans, strict=False):
            position = numpy.arange(entry.first, entry.first + entry.rows)
            home = entry.sequence.slot * ring
            kept = position >= entry.first + entry.rows - ring
            rows.append(numpy.where(kept, home + position % ring, -1))
            reads = position[:, None] - numpy.arange(w - 1, -1, -1)  # increasing position
            if linear:
                fresh = context + int(start) + reads - entry.first
                place = numpy.where(
                    reads >= entry.first, fresh, begin + reads - (entry.first - len(span))
                )
                begin += len(span)
            else:
                place = home + reads % ring
            index.append(numpy.where(reads >= 0, place, -1))
        earlier = None
        if linear:
            homes = [
                e.sequence.slot * ring + span % ring for e, span in zip(entries, spans, strict=True)
            ]
            earlier = self._put(_join(homes))
        return Window(self._put(_join(rows)), self._put(numpy.concatenate(index)).int(), earlier)

    def _groups(self, ratio: int, entries: Several[Entry], starts: Ints, positions: Ints) -> Groups:
        """Groups of `ratio` tokens that close in this step (backbone 4.2 items 2-4)."""
        keep = self.geometry.open_rows
        numbers, sources, owners, opened = [], [], [], []
        for place, entry in enumerate(entries):
            end, start = entry.first + entry.rows, int(starts[place])
            group = numpy.arange(entry.first // ratio, end // ratio)
            token = group[:, None] * ratio + numpy.arange(ratio)
            home = entry.sequence.slot * keep
            fresh = start + token - entry.first
            sources.append(numpy.where(token >= entry.first, fresh, -1 - (home + token % keep)))
            numbers.append(group)
            owners.append(numpy.full(len(group), place))
            position = positions[start : start + entry.rows]
            opened.append(numpy.where(position >= end - keep, home + position % keep, -1))
        number = _join(numbers)
        visible = (positions + 1) // ratio
        return Groups(
            sources=self._put(numpy.concatenate(sources)),
            positions=self._put(number * ratio),
            numbers=self._put(number).int(),
            sequence=self._put(_join(owners)),
            open_rows=self._put(_join(opened)),
            visible=self._put(visible).int(),
            count=int(visible.max()),
            per_block=self.geometry.block_tokens // ratio,
        )

    def _table(self, entries: Several[Entry]) -> Ints:
        """[sequences, blocks] block numbers; the unused end points to block 0."""
        longest = max(len(entry.sequence.blocks) for entry in entries)
        table = numpy.zeros((len(entries), longest), dtype=numpy.int64)
        for row, entry in zip(table, entries, strict=True):
            row[: len(entry.sequence.blocks)] = entry.sequence.blocks
        return table

    def _put(self, values: Ints) -> Tensor:
        return torch.from_numpy(numpy.ascontiguousarray(values, dtype=numpy.int64)).to(self.device)


def _dead(entry: Entry, begin: int) -> NDArray[numpy.bool_]:
    """Which tokens from `begin` to the entry's last row are dead."""
    return numpy.isin(numpy.arange(begin, entry.first + entry.rows), entry.sequence.dead)


def _join(parts: Several[Ints]) -> Ints:
    return numpy.concatenate([*parts, numpy.empty(0, dtype=numpy.int64)]).astype(numpy.int64)
