"""Rows of one layer, from the borders of every entry: vectors over entries, no loop over them.

In: for every entry its slot and its borders in this layer (Cuts). Out: `Rows` of the model.
Does not know: tokens, requests; where the borders come from.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer.engine.blocks import Geometry
from deepinfer.model.batch import Groups, Rows, Tap, Window
from deepinfer.model.shape import Shape

Ints = NDArray[numpy.int64]
Int32 = NDArray[numpy.int32]


class Cuts(NamedTuple):
    """Borders by entry, each [entries] int64: positions in one layer.

    Rows from `enter` on enter, from `fresh` on write compressed entries, from `key` on write window
    keys, from `leave` on leave; all end at `end`. `first` is where the step's part of the sequence
    begins; the ring of `slot` holds window keys from `oldest` on.
    """

    slot: Ints
    first: Ints
    oldest: Ints
    enter: Ints
    fresh: Ints
    key: Ints
    leave: Ints
    end: Ints


class Copy(NamedTuple):
    """A snapshot that is taken of a running entry: `layers` windows before position `at`."""

    entry: int
    at: int
    snapshot: int
    layers: int


@dataclass(frozen=True)
class Looks:
    """What entering rows of layer 0 look back at: history [rows, ngram] int64, dead [rows] bool."""

    enter: Ints
    history: Ints
    dead: NDArray[numpy.bool_]


class Placer:
    """Makes Rows for one shape and geometry."""

    def __init__(self, shape: Shape, geometry: Geometry, device: str) -> None:
        self.back, self.ring = shape.sliding_window - 1, geometry.ring
        self.keep, self.block, self.device = geometry.open_rows, geometry.block_tokens, device
        self.ngram = shape.engram_max_ngram_size
        self.ratios = sorted({ratio for ratio in shape.compress_ratios if ratio})
        phase = numpy.arange(self.ring)[:, None] - numpy.arange(self.back, -1, -1)
        self._places = (phase % self.ring).astype(numpy.int32)  # [ring, w] by p mod ring

    def decodes(self, slots: Ints, positions: Ints) -> Rows:
        """What `rows` gives for sequences that go on by one token each; history is not filled in.

        Most steps are of this kind, so it is written without borders.
        """
        count, ring, keep = len(slots), self.ring, self.keep
        home, phase = slots * ring, positions % ring
        index = self._places[phase]
        index += home.astype(numpy.int32)[:, None]
        if count and positions.min() < self.back:
            reads = positions[:, None] - numpy.arange(self.back, -1, -1)
            index[reads < 0] = -1
        at, every = self.put(positions), self.put(numpy.arange(count))
        nothing = torch.full((count,), -1, dtype=torch.int64, device=self.device)
        groups = {}
        for ratio in self.ratios:
            visible = ((positions + 1) // ratio).astype(numpy.int32)
            counts = self.put(visible), int(visible.max(initial=0)), self.block // ratio
            if ratio == 1:
                numbers = self.put(positions.astype(numpy.int32))
                groups[1] = Groups(None, every[:, None], at, numbers, every, nothing, *counts)
                continue
            closing = numpy.flatnonzero((positions + 1) % ratio == 0)
            begins, opened = positions[closing] + 1 - ratio, slots * keep
            sources = -1 - (opened[closing, None] + (begins[:, None] + numpy.arange(ratio)) % keep)
            sources[:, -1] = closing
            groups[ratio] = Groups(
                None,
                self.put(sources),
                self.put(begins),
                self.put(visible[closing] - 1),
                self.put(closing),
                self.put(opened + positions % keep),
                *counts,
            )
        return Rows(
            positions=at,
            history=torch.full((count, self.ngram), -1, dtype=torch.int64, device=self.device),
            dead=torch.zeros(count, dtype=torch.bool, device=self.device),
            keys=None,
            out=None,
            leave=None,
            at_keys=at,
            at_out=at,
            sequence=every,
            window=Window(self.put(home + phase), self.put(index), None),
            groups=groups,
        )

    def rows(self, cuts: Cuts, looks: Looks, copies: Several[Copy]) -> Rows:
        """Everything a layer must know about its rows (engine 4.2)."""
        at_out = ragged(cuts.leave, cuts.end)
        owner = repeat(cuts.end - cuts.leave)
        history, dead = looks.history, looks.dead
        if not numpy.array_equal(cuts.enter, looks.enter):
            offset = starts_of(cuts.end - looks.enter) - looks.enter
            seen = ragged(offset + cuts.enter, offset + cuts.end)
            history, dead = history[seen], dead[seen]
        return Rows(
            positions=self.put(ragged(cuts.enter, cuts.end)),
            history=self.put(history),
            dead=torch.from_numpy(dead).to(self.device),
            keys=self._subset(cuts.enter, cuts.key, cuts.end),
            out=self._subset(cuts.key, cuts.leave, cuts.end),
            leave=self._subset(cuts.enter, cuts.leave, cuts.end),
            at_keys=self.put(ragged(cuts.key, cuts.end)),
            at_out=self.put(at_out),
            sequence=self.put(owner),
            window=self._window(cuts, at_out, owner, copies),
            groups={ratio: self._groups(ratio, cuts, at_out) for ratio in self.ratios},
        )

    def put(self, values: NDArray[numpy.generic]) -> Tensor:
        """On the device, in its own integer type."""
        tensor = torch.from_numpy(numpy.ascontiguousarray(values))
        return tensor if self.device == "cpu" else tensor.to(self.device, non_blocking=True)

    def _subset(self, outer: Ints, inner: Ints, end: Ints) -> Tensor | None:
        """Places of the inner rows among the outer rows; None if they are the same."""
        if numpy.array_equal(outer, inner):
            return None
        offset = starts_of(end - outer) - outer
        return self.put(ragged(offset + inner, offset + end))

    def _window(self, cuts: Cuts, at_out: Ints, owner: Ints, copies: Several[Copy]) -> Window:
        """Ring rows to write, and what each leaving row reads (backbone 4.2 item 1)."""
        ring, home = self.ring, cuts.slot * self.ring
        position = ragged(cuts.key, cuts.end)
        lengths = cuts.end - cuts.key
        kept = numpy.repeat(cuts.end - ring, lengths)
        rows = numpy.repeat(home, lengths) + position % ring
        if (lengths > ring).any():
            rows[position < kept] = -1
        # keys that begin inside this step begin with an empty window: no leaving row reads before
        low = numpy.maximum(cuts.oldest, numpy.where(cuts.key > cuts.first, cuts.key, 0))
        # what a short step overwrites lies outside every row's window, so the ring can be read
        linear = bool((lengths > ring - self.back).any())
        if linear:
            index, earlier = self._linear(cuts, at_out, owner, low)
        else:
            index, earlier = self._places[at_out % ring], None
            index += home.astype(numpy.int32)[owner][:, None]
        short = numpy.flatnonzero(at_out - self.back < low[owner])
        if len(short):
            reads = at_out[short, None] - numpy.arange(self.back, -1, -1)
            part = index[short]
            part[reads < low[owner[short], None]] = -1
            index[short] = part
        taps = tuple(self._tap(copy, cuts) for copy in copies)
        return Window(
            self.put(rows),
            self.put(index),
            None if earlier is None else self.put(earlier),
            taps,
        )

    def _linear(self, cuts: Cuts, at_out: Ints, owner: Ints, low: Ints) -> tuple[Int32, Ints]:
        """Places in the linear workspace, and the ring rows in front of it."""
        begin = numpy.minimum(numpy.maximum(low, cuts.key - self.back), cuts.key)
        spans = cuts.key - begin
        earlier = numpy.repeat(cuts.slot * self.ring, spans) + ragged(begin, cuts.key) % self.ring
        before = starts_of(spans) - begin
        now = len(earlier) + starts_of(cuts.end - cuts.key) - cuts.key
        reads = at_out[:, None] - numpy.arange(self.back, -1, -1)
        shift = numpy.where(reads >= cuts.key[owner, None], now[owner, None], before[owner, None])
        shift += reads
        return shift.astype(numpy.int32), earlier

    def _tap(self, copy: Copy, cuts: Cuts) -> Tap:
        """Where the window keys before `copy.at` are: in this step, or already in the ring."""
        begin = max(copy.at - self.back, 0)
        place = copy.snapshot * self.back + self.back - copy.at  # + position
        key, slot = int(cuts.key[copy.entry]), int(cuts.slot[copy.entry])
        lengths = cuts.end - cuts.key
        rows = numpy.full(int(lengths.sum()), -1, dtype=numpy.int64)
        fresh = numpy.arange(max(begin, key), max(copy.at, key))
        rows[int(starts_of(lengths)[copy.entry]) + fresh - key] = place + fresh
        old = numpy.arange(begin, min(key, copy.at))
        home = slot * self.ring
        earlier = home + old % self.ring
        return Tap(self.put(rows), self.put(earlier), self.put(place + old), copy.layers)

    def _groups(self, ratio: int, cuts: Cuts, at_out: Ints) -> Groups:
        """Groups of `ratio` tokens that close in this step (backbone 4.2 items 2-4)."""
        keep, home = self.keep, cuts.slot * self.keep
        first = cuts.fresh // ratio
        last = numpy.maximum(cuts.end // ratio, first)
        number, owner = ragged(first, last), repeat(last - first)
        lengths = cuts.end - cuts.fresh
        token = number[:, None] * ratio + numpy.arange(ratio)
        new = (starts_of(lengths) - cuts.fresh)[owner, None] + token
        old = -1 - (home[owner, None] + token % keep)
        position = ragged(cuts.fresh, cuts.end)
        opened = numpy.repeat(home, lengths) + position % keep
        opened[position < numpy.repeat(cuts.end - keep, lengths)] = -1
        visible = (at_out + 1) // ratio
        return Groups(
            fresh=self._subset(cuts.enter, cuts.fresh, cuts.end),
            sources=self.put(numpy.where(token >= cuts.fresh[owner, None], new, old)),
            positions=self.put(number * ratio),
            numbers=self.put(number.astype(numpy.int32)),
            sequence=self.put(owner),
            open_rows=self.put(opened),
            visible=self.put(visible.astype(numpy.int32)),
            count=int(visible.max(initial=0)),
            per_block=self.block // ratio,
        )


def ragged(begin: Ints, end: Ints) -> Ints:
    """The ranges begin[i] .. end[i] - 1, one behind the other."""
    lengths = end - begin
    return numpy.arange(int(lengths.sum())) + numpy.repeat(begin - starts_of(lengths), lengths)


def repeat(lengths: Ints) -> Ints:
    """Each entry's number as often as it has rows."""
    return numpy.repeat(numpy.arange(len(lengths)), lengths)


def starts_of(lengths: Ints) -> Ints:
    """Where each part begins when all lie one behind the other."""
    return numpy.cumsum(lengths) - lengths
