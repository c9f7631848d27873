"""Tray: turns the entries of a step into the arrays that the model reads.

In: entries (sequence, first token, number of rows). Out: a Batch on the device.
Does not know: what is computed from it, nor why these entries were chosen.
"""

from __future__ import annotations

from collections.abc import Sequence as Several

import numpy
import torch
from numpy.typing import NDArray

from deepinfer.engine.blocks import Geometry
from deepinfer.engine.rows import Copy, Cuts, Ints, Looks, Placer
from deepinfer.engine.sequence import Decodes, Entry, Sequence
from deepinfer.model.batch import Batch, Rows, Window
from deepinfer.model.shape import Shape

NOBODY = numpy.empty(0, dtype=numpy.int64)
NO_DECODES = Decodes(NOBODY, NOBODY, numpy.zeros((0, 1), dtype=numpy.int32))


class Tray:
    """Fills batches for one shape and geometry. `compressed_ids` maps token ids for the n-grams."""

    def __init__(
        self, shape: Shape, geometry: Geometry, compressed_ids: Several[int], device: str = "cpu"
    ) -> None:
        self.shape, self.geometry, self.device = shape, geometry, device
        self._compressed = numpy.asarray(compressed_ids, dtype=numpy.int64)
        self.compressed = torch.from_numpy(self._compressed).to(device)
        self._placer = Placer(shape, geometry, device)
        self._put = self._placer.put

    def batch(
        self,
        entries: Several[Entry],
        decodes: Decodes = NO_DECODES,
        copies: Several[Copy] = (),
    ) -> Batch:
        """Rows of the decodes, then of all entries, one behind the other.

        Ids and history of decodes are left 0 and -1: the device fills them in. `copies` count
        entries with the decodes in front.
        """
        if not entries:
            return self._decode_batch(decodes)
        looks = self._looks(entries, decodes)
        known: dict[tuple[tuple[int, ...], ...], tuple[Rows, Cuts]] = {}
        layers: list[Rows] = []
        for layer in range(self.shape.num_hidden_layers):
            own = tuple(_cut(entry, layer) for entry in entries)
            taken = tuple(copy for copy in copies if layer < copy.layers)
            key = (*own, tuple(copy.snapshot for copy in taken))
            if key not in known:
                cuts = _cuts(entries, own, decodes)
                known[key] = self._placer.rows(cuts, looks, taken), cuts
            rows, cuts = known[key]
            layers.append(rows)
        ends = numpy.cumsum(cuts.end - cuts.leave)
        wanted = [ends[: len(decodes.slots)] - 1]
        for entry, end in zip(entries, ends[len(decodes.slots) :], strict=True):
            wanted.append(numpy.arange(end - entry.wanted, end))
        ids = [numpy.zeros(len(decodes.slots), dtype=numpy.int64)]
        ids += [
            numpy.asarray(e.sequence.tokens[begin : e.first + e.rows], dtype=numpy.int64)
            for e, begin in zip(entries, looks.enter[len(decodes.slots) :].tolist(), strict=True)
        ]
        return Batch(
            ids=self._put(numpy.concatenate(ids)),
            layers=tuple(layers),
            block_table=self._put(self._table(entries, decodes)),
            wanted=self._put(numpy.concatenate(wanted)),
        )

    def _decode_batch(self, decodes: Decodes) -> Batch:
        rows, count = self._placer.decodes(decodes.slots, decodes.positions), len(decodes.slots)
        return Batch(
            ids=torch.zeros(count, dtype=torch.int64, device=self.device),
            layers=(rows,) * self.shape.num_hidden_layers,
            block_table=self._put(decodes.table),
            wanted=rows.sequence,
        )

    def _looks(self, entries: Several[Entry], decodes: Decodes) -> Looks:
        """History and dead flags of the rows that enter layer 0."""
        count = len(decodes.slots)
        begins = [_cut(entry, 0)[0] for entry in entries]
        history = [numpy.full((count, self.shape.engram_max_ngram_size), -1, dtype=numpy.int64)]
        dead = [numpy.zeros(count, dtype=numpy.bool_)]
        for entry, begin in zip(entries, begins, strict=True):
            end = entry.first + entry.rows
            history.append(self._history(entry.sequence, begin, end))
            dead.append(_dead(entry.sequence, begin, end))
        enter = numpy.concatenate([decodes.positions, numpy.asarray(begins, dtype=numpy.int64)])
        return Looks(enter, numpy.concatenate(history), numpy.concatenate(dead))

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
        at = self._put(numpy.concatenate(positions))
        alive = Rows(
            positions=at,
            history=self._put(numpy.full((rows, self.shape.engram_max_ngram_size), -1)),
            dead=torch.zeros(rows, dtype=torch.bool, device=self.device),
            keys=None,
            out=None,
            leave=None,
            at_keys=at,
            at_out=at,
            sequence=self._put(numpy.repeat(numpy.arange(len(entries)), size)),
            window=Window(
                self._put(nothing),
                self._put(index.astype(numpy.int32)),
                self._put(numpy.concatenate(earlier)),
            ),
            groups={},
        )
        return Batch(
            ids=self._put(numpy.concatenate(ids)),
            layers=(alive,),
            block_table=self._put(self._table(entries, NO_DECODES)),
            wanted=self._put(numpy.arange(rows)),
        )

    def _history(self, sequence: Sequence, first: int, end: int) -> Ints:
        """[rows, ngram] compressed ids looking back from each row; -1 from the first place on that
        lies before the start or holds a dead token (backbone 3.9)."""
        ngram, tokens = self.shape.engram_max_ngram_size, sequence.tokens
        begin = max(0, first - ngram + 1)
        known = self._compressed[tokens[begin:end]]
        back = numpy.arange(first, end)[:, None] - numpy.arange(ngram)
        if not len(back):
            return back
        place = numpy.maximum(back - begin, 0)
        open_ = (back >= 0) & ~_dead(sequence, begin, end)[place]
        return numpy.where(numpy.logical_and.accumulate(open_, axis=1), known[place], -1)

    def _table(self, entries: Several[Entry], decodes: Decodes) -> NDArray[numpy.int32]:
        """[sequences, blocks] block numbers; the unused end points to block 0."""
        count = len(decodes.slots)
        if not entries:
            return decodes.table
        longest = max([len(entry.sequence.blocks) for entry in entries] + [decodes.table.shape[1]])
        table = numpy.zeros((count + len(entries), longest), dtype=numpy.int32)
        table[:count, : decodes.table.shape[1]] = decodes.table
        for row, entry in zip(table[count:], entries, strict=True):
            row[: len(entry.sequence.blocks)] = entry.sequence.blocks
        return table


def _cut(entry: Entry, layer: int) -> tuple[int, int, int, int]:
    """Borders of an entry in a layer (enter, fresh, key, leave); the whole of it where no start
    says otherwise."""
    first, end, starts = entry.first, entry.first + entry.rows, entry.sequence.starts
    if starts is None:
        return first, first, first, first
    begins = (starts.into[layer], starts.fresh, starts.keys[layer], starts.into[layer + 1])
    enter, fresh, key, leave = (min(max(first, begin), end) for begin in begins)
    return enter, max(fresh, enter), key, leave


def _cuts(
    entries: Several[Entry], own: Several[tuple[int, int, int, int]], decodes: Decodes
) -> Cuts:
    """Borders of all entries of a step in one layer, decodes in front."""
    numbers = [
        (e.sequence.slot, e.first, e.sequence.oldest, *cut, e.first + e.rows)
        for e, cut in zip(entries, own, strict=True)
    ]
    columns = numpy.array(numbers, dtype=numpy.int64).reshape(-1, 8).T
    if not len(decodes.slots):
        return Cuts(*columns)
    slots, at = decodes.slots, decodes.positions
    nothing = numpy.zeros_like(at)
    mine = (slots, at, nothing, at, at, at, at, at + 1)
    return Cuts(*(numpy.concatenate(both) for both in zip(mine, columns, strict=True)))


def _dead(sequence: Sequence, begin: int, end: int) -> NDArray[numpy.bool_]:
    """Which tokens from `begin` to `end` are dead."""
    if not sequence.dead:
        return numpy.zeros(end - begin, dtype=numpy.bool_)
    return numpy.isin(numpy.arange(begin, end), sequence.dead)
