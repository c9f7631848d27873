"""The simple batch loop: admit, place, run, choose, until every request has its end.

In: requests. Out: deltas, step by step.
Does not know: text rules, kernels. Steps mix prompt chunks and single tokens under one row budget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import torch

from deepinfer.engine.blocks import Store
from deepinfer.engine.choice import broken, choose
from deepinfer.engine.request import Delta, Request
from deepinfer.engine.sequence import Entry, Sequence
from deepinfer.engine.start import House


class Loop:
    """Requests run in the order in which they came; one that ends makes room for the next."""

    def __init__(self, house: House, step_tokens: int) -> None:
        self.house, self.step_tokens = house, step_tokens
        self.store = Store(house.planned.geometry)
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []

    def add(self, request: Request) -> None:
        """Queues a request; one that can never fit is refused here, alone."""
        self.store.check(request.longest)
        self._waiting.append(request)

    @property
    def is_busy(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._waiting or self._running)

    def abort(self, request: Request) -> Delta | None:
        """Ends a request wherever it is and frees what it held; None if it has ended."""
        if request.finish_reason is not None:
            return None
        delta = request.end("abort")
        if request in self._waiting:
            self._waiting.remove(request)
        else:
            self._leave(request)
        return delta

    def run(self) -> Iterator[Delta]:
        """Steps until nobody is left."""
        while self.is_busy:
            yield from self.step()

    def step(self) -> list[Delta]:
        """One forward pass for everybody who fits."""
        self._admit()
        chosen = self._entries()
        entries = [entry for _, entry in chosen]
        rows = sum(entry.rows for entry in entries)
        house, model = self.house, self.house.model.at(rows)
        ready = [request for request, entry in chosen if entry.wanted]
        with torch.inference_mode(), house.table.blaming():
            passed = model.forward(house.tray.batch(entries), house.caches)
            tokens = choose(passed.logits, ready, model.ops) if ready else []
        for entry in entries:
            entry.sequence.computed += entry.rows
        deltas = []
        for request, (token, logprobs) in zip(ready, tokens, strict=True):
            if token < 0:
                deltas.append(request.end("error", broken(request)))
            else:
                deltas.append(request.take(token, logprobs))
                assert request.sequence is not None
                request.sequence.tokens.append(token)
            if request.finish_reason is not None:
                self._leave(request)
        return deltas

    def _admit(self) -> None:
        while self._waiting:
            request = self._waiting[0]
            taken = self.store.take(request.longest)
            if taken is None:
                return
            slot, blocks = taken
            request.sequence = Sequence(list(request.prompt), slot, blocks)
            self._running.append(self._waiting.popleft())

    def _entries(self) -> list[tuple[Request, Entry]]:
        """Single tokens first, then prompt chunks, up to the budget of rows."""
        left, entries = self.step_tokens, []
        by_need = sorted(self._running, key=lambda request: _sequence(request).waiting > 1)
        for request in by_need:
            sequence = _sequence(request)
            rows = min(sequence.waiting, left)
            if rows == 0:
                continue
            wanted = int(rows == sequence.waiting)
            entries.append((request, Entry(sequence, sequence.computed, rows, wanted)))
            left -= rows
        return entries

    def _leave(self, request: Request) -> None:
        self._running.remove(request)
        sequence = _sequence(request)
        self.store.give_back(sequence.slot, sequence.blocks)
        request.sequence = None


def _sequence(request: Request) -> Sequence:
    assert request.sequence is not None
    return request.sequence
