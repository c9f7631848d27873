"""Tray: turns the entries of a step into the arrays that the model reads.

In: entries (sequence, first token, number of rows). Out: a Batch on the device.
Does not know: what is computed from it, nor why these entries were chosen.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer.engine.blocks import Geometry
from deepinfer.engine.sequence import Entry, Sequence
from deepinfer.model.batch import Batch, Groups, Rows, Window
from deepinfer.model.shape import Shape

Ints = NDArray[numpy.int64]


class Cut(NamedTuple):
    """Positions of an entry in one layer: rows from `enter` on enter, from `fresh` on write
    compressed entries, from `key` on write window keys, from `leave` on leave; all end at `end`."""

    enter: int
    fresh: int
    key: int
    leave: int
    end: int


class Tray:
    """Fills batches for one shape and geometry. `compressed_ids` maps token ids for the n-grams."""

    def __init__(
        self, shape: Shape, geometry: Geometry, compressed_ids: Several[int], device: str = "cpu"
    ) -> None:
        self.shape, self.geometry, self.device = shape, geometry, device
        self._compressed = numpy.asarray(compressed_ids, dtype=numpy.int64)

    def batch(self, entries: Several[Entry]) -> Batch:
        """Rows of all entries, one entry after the other."""
        known: dict[tuple[Cut, ...], Rows] = {}
        layers: list[Rows] = []
        cuts: tuple[Cut, ...] = ()
        for layer in range(self.shape.num_hidden_layers):
            cuts = tuple(_cut(entry, layer) for entry in entries)
            if cuts not in known:
                known[cuts] = self._rows(entries, cuts)
            layers.append(known[cuts])
        first = tuple(_cut(entry, 0) for entry in entries)
        tokens = [
            numpy.asarray(e.sequence.tokens[cut.enter : cut.end])
            for e, cut in zip(entries, first, strict=True)
        ]
        ends = numpy.cumsum([cut.end - cut.leave for cut in cuts])
        wanted = [
            numpy.arange(end - e.wanted, end) for e, end in zip(entries, ends, strict=True)
        ]
        return Batch(
            ids=self._put(_join(tokens)),
            layers=tuple(layers),
            block_table=self._put(self._table(entries)).int(),
            wanted=self._put(_join(wanted)),
        )

    def _rows(self, entries: Several[Entry], cuts: Several[Cut]) -> Rows:
        """Rows of one layer (engine 4.2): what enters, what writes keys, what leaves."""
        both = list(zip(entries, cuts, strict=True))
        at_out = _join([numpy.arange(cut.leave, cut.end) for cut in cuts])
        sequence = numpy.repeat(numpy.arange(len(cuts)), [cut.end - cut.leave for cut in cuts])
        ratios = {ratio for ratio in self.shape.compress_ratios if ratio}
        history = [self._history(e.sequence, cut.enter, cut.end) for e, cut in both]
        return Rows(
            positions=self._put(_join([numpy.arange(cut.enter, cut.end) for cut in cuts])),
            history=self._put(numpy.concatenate(history)),
            dead=self._put(
                numpy.concatenate([_dead(e.sequence, cut.enter, cut.end) for e, cut in both])
            ).bool(),
            keys=self._subset(cuts, "enter", "key"),
            out=self._subset(cuts, "key", "leave"),
            leave=self._subset(cuts, "enter", "leave"),
            at_keys=self._put(_join([numpy.arange(cut.key, cut.end) for cut in cuts])),
            at_out=self._put(at_out),
            sequence=self._put(sequence),
            window=self._window(entries, cuts),
            groups={ratio: self._groups(ratio, entries, cuts, at_out) for ratio in ratios},
        )

    def _subset(self, cuts: Several[Cut], outer: str, inner: str) -> Tensor | None:
        """Places of the inner rows among the outer rows; None if they are the same."""
        begins = [(getattr(cut, outer), getattr(cut, inner), cut.end) for cut in cuts]
        if all(wide == narrow for wide, narrow, _ in begins):
            return None
        places, offset = [], 0
        for wide, narrow, end in begins:
            places.append(offset + numpy.arange(narrow - wide, end - wide))
            offset += end - wide
        return self._put(_join(places))

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
        at = self._put(_join(positions))
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
            window=Window(self._put(nothing), self._put(index).int(), self._put(_join(earlier))),
            groups={},
        )
        return Batch(
            ids=self._put(_join(ids)),
            layers=(alive,),
            block_table=self._put(self._table(entries)).int(),
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

    def _window(self, entries: Several[Entry], cuts: Several[Cut]) -> Window:
        """Ring rows to write, and what each leaving row reads (backbone 4.2 item 1)."""
        w, ring = self.shape.sliding_window, self.geometry.ring
        # what a short step overwrites lies outside every row's window, so the ring can be read
        linear = any(cut.end - cut.key > ring - w + 1 for cut in cuts)
        # keys that begin inside this step begin with an empty window: no leaving row reads before
        lows = [cut.key if cut.key > e.first else 0 for e, cut in zip(entries, cuts, strict=True)]
        spans = [
            numpy.arange(max(low, cut.key - w + 1), cut.key)
            for low, cut in zip(lows, cuts, strict=True)
        ]
        start = sum(map(len, spans)) if linear else 0
        rows, index, earlier, begin = [], [], [], 0
        for entry, cut, span, low in zip(entries, cuts, spans, lows, strict=True):
            home = entry.sequence.slot * ring
            position = numpy.arange(cut.key, cut.end)
            rows.append(numpy.where(position >= cut.end - ring, home + position % ring, -1))
            reads = numpy.arange(cut.leave, cut.end)[:, None] - numpy.arange(w - 1, -1, -1)
            place = home + reads % ring
            if linear:
                before = begin + reads - (cut.key - len(span))
                place = numpy.where(reads >= cut.key, start + reads - cut.key, before)
                begin, start = begin + len(span), start + cut.end - cut.key
                earlier.append(home + span % ring)
            index.append(numpy.where(reads >= low, place, -1))
        return Window(
            self._put(_join(rows)),
            self._put(numpy.concatenate(index)).int(),
            self._put(_join(earlier)) if linear else None,
        )

    def _groups(
        self, ratio: int, entries: Several[Entry], cuts: Several[Cut], at_out: Ints
    ) -> Groups:
        """Groups of `ratio` tokens that close in this step (backbone 4.2 items 2-4)."""
        keep = self.geometry.open_rows
        numbers, sources, owners, opened, start = [], [], [], [], 0
        for place, (entry, cut) in enumerate(zip(entries, cuts, strict=True)):
            group = numpy.arange(cut.fresh // ratio, max(cut.end // ratio, cut.fresh // ratio))
            token = group[:, None] * ratio + numpy.arange(ratio)
            home = entry.sequence.slot * keep
            new = start + token - cut.fresh
            sources.append(numpy.where(token >= cut.fresh, new, -1 - (home + token % keep)))
            numbers.append(group)
            owners.append(numpy.full(len(group), place))
            position = numpy.arange(cut.fresh, cut.end)
            opened.append(numpy.where(position >= cut.end - keep, home + position % keep, -1))
            start += cut.end - cut.fresh
        number = _join(numbers)
        visible = (at_out + 1) // ratio
        return Groups(
            fresh=self._subset(cuts, "enter", "fresh"),
            sources=self._put(numpy.concatenate(sources)),
            positions=self._put(number * ratio),
            numbers=self._put(number).int(),
            sequence=self._put(_join(owners)),
            open_rows=self._put(_join(opened)),
            visible=self._put(visible).int(),
            count=int(visible.max(initial=0)),
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


def _cut(entry: Entry, layer: int) -> Cut:
    """The part of an entry that a layer sees; the whole of it where no start says otherwise."""
    first, end, starts = entry.first, entry.first + entry.rows, entry.sequence.starts
    if starts is None:
        return Cut(first, first, first, first, end)
    begins = (starts.into[layer], starts.fresh, starts.keys[layer], starts.into[layer + 1])
    enter, fresh, key, leave = (min(max(first, begin), end) for begin in begins)
    return Cut(enter, max(fresh, enter), key, leave, end)


def _dead(sequence: Sequence, begin: int, end: int) -> NDArray[numpy.bool_]:
    """Which tokens from `begin` to `end` are dead."""
    return numpy.isin(numpy.arange(begin, end), sequence.dead)


def _join(parts: Several[Ints]) -> Ints:
    return numpy.concatenate([*parts, numpy.empty(0, dtype=numpy.int64)]).astype(numpy.int64)
