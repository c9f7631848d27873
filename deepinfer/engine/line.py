"""The line: runs one step after the other on the device, beside the thread that plans.

In: steps with their batches. Out: results, in the same order.
Does not know: who runs when, text. What the next step needs of a token stays on the device.
Source: engine specification 2.6.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deepinfer.engine import choice
from deepinfer.engine.choice import Columns, Seat
from deepinfer.engine.moves import Mover
from deepinfer.engine.request import Chosen
from deepinfer.engine.start import House
from deepinfer.engine.step import Step
from deepinfer.model.batch import Batch


class Result(NamedTuple):
    """Ids of the wanted rows, -1 where a row is broken; log-probabilities or None; when the device
    began and ended, in seconds of perf_counter."""

    ids: list[int]
    chosen: list[Chosen | None] | None
    began_s: float
    ended_s: float


class Line:
    """Steps run in the order of `launch`; `read` gives the result of the oldest.

    beside  whether they run in a thread of their own; otherwise inside `read`
    """

    def __init__(self, house: House, beside: bool) -> None:
        self.house = house
        geometry, device = house.planned.geometry, house.tray.device
        self._columns = Columns(geometry.slots, device)
        self._seats: list[Seat | None] = [None] * geometry.slots
        self._mover = Mover(house)
        self._last = torch.zeros(geometry.slots, dtype=torch.int64, device=device)
        ngram = house.planned.shape.engram_max_ngram_size
        self._history = torch.full((geometry.slots, ngram), -1, dtype=torch.int64, device=device)
        self._compressed = house.tray.compressed
        self._thread = ThreadPoolExecutor(1, "deepinfer-line") if beside else None
        self._flights: deque[Callable[[], Result]] = deque()

    def __len__(self) -> int:
        return len(self._flights)

    def launch(self, step: Step, batch: Batch) -> None:
        """Starts a step behind those that are under way."""
        if self._thread is not None:
            self._flights.append(self._thread.submit(self._run, step, batch).result)
        else:
            self._flights.append(partial(self._run, step, batch))

    def read(self) -> Result:
        """Waits for the oldest step; raises what it raised."""
        return self._flights.popleft()()

    def drop(self) -> None:
        """Waits for everything under way and forgets it."""
        self._flights.clear()
        if self._thread is not None:
            self._thread.submit(int).result()  # the last of a line: all others have ended

    def close(self) -> None:
        """Ends the thread."""
        self.drop()
        if self._thread is not None:
            self._thread.shutdown()

    def _run(self, step: Step, batch: Batch) -> Result:
        began = perf_counter()
        house = self.house
        with torch.inference_mode(), house.table.blaming():
            self._seat(step)
            self._mover.make(step.moves)
            self._fill_in(step, batch)
            passed = house.model.at(step.rows).forward(batch, house.caches)
            self._mover.complete(step.taps)
            result = self._choose(step, batch, passed.logits)
        return Result(*result, began, perf_counter())

    def _seat(self, step: Step) -> None:
        if not step.seats:
            return
        slots = [held.slot for held in step.seats]
        self._columns.put(slots, [held.request for held in step.seats])
        for slot, held in zip(slots, step.seats, strict=True):
            self._seats[slot] = held.seat

    def _fill_in(self, step: Step, batch: Batch) -> None:
        """Ids and history of decodes, which only the device knows."""
        count = len(step.decoding)
        if not count:
            return
        slots = torch.from_numpy(step.decodes.slots).to(batch.ids.device)
        batch.ids[:count] = self._last[slots]
        history = self._history[slots]
        for rows in {id(rows): rows for rows in batch.layers}.values():
            rows.history[:count] = history

    def _choose(
        self, step: Step, batch: Batch, logits: Tensor
    ) -> tuple[list[int], list[Chosen | None] | None]:
        wanted = step.wanted
        if not wanted:
            return [], None
        model, device = self.house.model.at(step.rows), logits.device
        numbers = [held.slot for held in wanted]
        slots = torch.tensor(numbers, device=device)
        seats: list[Any] = [self._seats[slot] for slot in numbers]
        rows = batch.layers[-1]
        places = rows.at_out[batch.wanted] + 1
        reading = [seat for seat in seats if seat.reads]
        shifted = choice.penalized(logits, seats, model.ops) if reading else logits
        ids = self._columns.sample(shifted, slots, places, model.ops)
        self._remember(step, batch, slots, ids)
        taken = choice.logprobs(logits, ids, seats, model.ops)
        listed = ids.tolist()
        for seat, token in zip(seats, listed, strict=True):
            if seat.reads:
                seat.output.append(token)
        if taken is None:
            return listed, None
        return listed, choice.read_logprobs(taken, listed, seats, logits.shape[1])

    def _remember(self, step: Step, batch: Batch, slots: Tensor, ids: Tensor) -> None:
        """What the next step of each slot reads: its token, and the compressed ids before it."""
        known = ids.clamp(min=0)
        self._last[slots] = known
        ends = list(range(len(step.decoding)))
        row = len(ends)
        for chunk in step.chunks:
            row += chunk.entry.rows
            ends += [row - 1] if chunk.is_last else []
        before = batch.layers[0].history[torch.tensor(ends, device=ids.device)]
        self._history[slots, 1:] = before[:, :-1]
        self._history[slots, 0] = self._compressed[known]
