"""Moves: copies between windows, snapshots and blocks.

In: moves of a step, in order. Out: rows of the caches, copied as they are in any layout.
Does not know: why; requests. Source: engine specification 3.3 - 3.5.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from deepinfer.engine.start import House
from deepinfer.engine.step import Kind, Move, Tap
from deepinfer.model.batch import copy_rows


class Mover:
    """Moves of one house."""

    def __init__(self, house: House) -> None:
        shape, geometry = house.planned.shape, house.planned.geometry
        self._caches, self._device = house.caches, house.tray.device
        self._back, self._ring = shape.sliding_window - 1, geometry.ring
        self._open, self._block = geometry.open_rows, geometry.block_tokens
        self._ratios = {layer: shape.ratio(layer) for layer in shape.kv_source_layer_ids}
        self._decoder = max(shape.kv_source_layer_ids, default=0)

    def make(self, moves: Sequence[Move]) -> None:
        """One after the other: a later one may read what an earlier one wrote."""
        for move in moves:
            if move.kind is Kind.BLOCK:
                self._copy_block(move.source, move.target)
            elif move.kind is Kind.SAVE:
                ring, saved = self._rows(move.source, move.target, move.at)
                for own, kept in self._layers(move.whole):
                    copy_rows(kept, saved, own, ring)
                self._save_open(move.source, move.target)
            else:
                ring, saved = self._rows(move.target, move.source, move.at)
                for own, kept in self._layers(move.whole):
                    copy_rows(own, ring, kept, saved)
                if move.whole:
                    self._restore_open(move.source, move.target)

    def complete(self, taps: Sequence[Tap]) -> None:
        """The window keys of taps were written on the way; open groups follow."""
        for held, snapshot in taps:
            if snapshot.whole:
                self._save_open(held.slot, snapshot.number)

    def _rows(self, slot: int, snapshot: int, at: int) -> tuple[Tensor, Tensor]:
        """Rows of the ring, and of the snapshot, for the window before position `at`."""
        position = torch.arange(max(at - self._back, 0), at, device=self._device)
        ring = slot * self._ring + position % self._ring
        return ring, (snapshot + 1) * self._back - at + position

    def _layers(self, whole: bool) -> list[tuple[Tensor, Tensor]]:
        windows, saved = self._caches.window, self._caches.saved
        count = len(saved) if whole else self._decoder
        return list(zip(windows[:count], saved[:count], strict=True))

    def _save_open(self, slot: int, snapshot: int) -> None:
        for layer, opened in self._caches.opened.items():
            kept = self._caches.saved_opened[layer]
            copy_rows(kept, self._span(snapshot), opened, self._span(slot))

    def _restore_open(self, snapshot: int, slot: int) -> None:
        for layer, opened in self._caches.opened.items():
            kept = self._caches.saved_opened[layer]
            copy_rows(opened, self._span(slot), kept, self._span(snapshot))

    def _span(self, number: int) -> Tensor:
        begin = number * self._open
        return torch.arange(begin, begin + self._open, device=self._device)

    def _copy_block(self, source: int, target: int) -> None:
        for layer, ratio in self._ratios.items():
            count = self._block // ratio
            row = torch.arange(count, device=self._device)
            for cache in (self._caches.entries[layer], self._caches.index[layer]):
                copy_rows(cache, target * count + row, cache, source * count + row)
