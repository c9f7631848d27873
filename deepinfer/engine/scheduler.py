"""The scheduler: who takes part in the next step, with how many rows.

In: requests. Out: steps; that a step was read comes back through `commit`.
Does not know: tokens' meaning, text, devices. Source: engine specification 2.2 - 2.6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy
from numpy.typing import NDArray

from deepinfer.engine.admission import Admission, Held
from deepinfer.engine.cache import Cache
from deepinfer.engine.queue import Queue
from deepinfer.engine.request import Request, State
from deepinfer.engine.residents import Residents
from deepinfer.engine.rows import Copy
from deepinfer.engine.sequence import Decodes, Entry
from deepinfer.engine.snapshots import Snapshot
from deepinfer.engine.step import Append, Chunk, Step, Tap

MIXED_ROWS = 1024
"""Rows of prompts beside decodes, as long as no times are known (engine 2.2)."""
EVERY_STEPS, LEAST_ROWS = 8, 256
"""While somebody waits, one step in eight has at least 256 rows for prompts (engine 2.2)."""


class Scheduler:
    """Plans steps of at most `step_rows` rows for at most `running` requests; none is longer
    than `limit` tokens. `clock` gives seconds."""

    def __init__(
        self,
        cache: Cache,
        admission: Admission,
        step_rows: int,
        limit: int,
        running: int,
        clock: Callable[[], float],
    ) -> None:
        self.cache, self.admission, self.step_rows, self.clock = cache, admission, step_rows, clock
        self.most_running = running
        self.queue = Queue(clock)
        self.here = Residents(cache, admission, limit)
        self.parked = self.admitted = self.rows_saved = self.rows_cold = 0
        self._arrivals = self._number = self._starved = 0
        self._order: tuple[Held, ...] = ()
        self._slots = numpy.empty(0, dtype=numpy.int64)
        self._plain_of: tuple[Held, ...] = ()
        self._appends: tuple[Append, ...] | None = None

    def check(self, request: Request) -> None:
        """Refuses a request that can never fit."""
        self.admission.check(request)

    def add(self, request: Request) -> None:
        """Queues a request; one that can never fit is refused here, alone."""
        self.check(request)
        request.arrival, self._arrivals = self._arrivals, self._arrivals + 1
        request.state, request.arrived_s = State.QUEUED, self.clock()
        self.queue.add(request)

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits or runs."""
        return not (self.queue or self.here)

    def plan(self) -> Step | None:
        """The next step, or None if nobody can take part in one now."""
        self._number += 1
        hungry = bool(self.here.prefilling or self.queue.head(self.clock()))
        kept = min(LEAST_ROWS, self.step_rows // 2) if hungry else 0
        starved = self._starved + 1 >= EVERY_STEPS
        held, decodes = self._decode(self.step_rows - (kept if starved else 0))
        left = self.step_rows - len(held)
        chunks: list[Chunk] = []
        seats: list[Held] = []
        for chunk in self._chunks(min(left, MIXED_ROWS) if held else left, seats):
            chunks.append(chunk)
        fed = sum(chunk.entry.rows for chunk in chunks) >= kept
        self._starved = 0 if fed or not hungry else self._starved + 1
        if not held and not chunks:
            return None
        taps, copies = self._taps(chunks, len(held))
        moves, self.here.moves = tuple(self.here.moves), []
        return Step(
            self._number, held, self._plain(held), decodes, tuple(chunks), tuple(seats), moves,
            taps, copies,
        )  # fmt: skip

    def commit(self, step: Step) -> None:
        """A step was read: its rows are in the cache. `settle` follows when tokens were taken."""
        here, width, (slots, positions, _) = self.here, self.here.width, step.decodes
        here.flying[slots] -= 1
        here.done[slots] = positions + 1
        for place in numpy.flatnonzero((positions + 1) % width == 0).tolist():
            here.commit(step.decoding[place], int(positions[place]) + 1)
        for held, entry, is_last in step.chunks:
            here.flying[held.slot] -= 1
            here.done[held.slot] = entry.first + entry.rows
            here.commit(held, entry.first + entry.rows)
            if is_last:
                self.queue.follow(held.request)
        for tap in step.taps:
            here.keep(tap)

    def lose(self, step: Step) -> None:
        """A step failed on the device: it is no longer under way, and nothing of it is known."""
        self.here.flying[step.decodes.slots] -= 1
        for held, _, _ in step.chunks:
            self.here.flying[held.slot] -= 1
        for tap in step.taps:
            self.cache.snapshots.give_back(tap.snapshot.number, tap.snapshot.whole)

    def settle(self) -> None:
        """Frees those who left; the parked wait again."""
        for request in self.here.settle():
            self.queue.add(request)

    def finish(self, request: Request) -> None:
        """A request has its end: in a step that was read, or by abort or deadline."""
        held = self.here.of.get(request)
        self.queue.follow(request)
        if held is not None:
            self.here.leave(held)
        elif request.state is not State.FINISHED:
            request.state = State.FINISHED
            self.queue.left()

    def unblock(self) -> None:
        """Nobody could take a row and no step is under way: the youngest gives way."""
        youngest = max(self.here.of.values(), key=lambda held: held.request.arrival, default=None)
        assert youngest is not None and len(self.here) > 1, "one request alone always fits"
        self._park(youngest)
        self.settle()

    def _decode(self, budget: int) -> tuple[tuple[Held, ...], Decodes]:
        """Everybody who goes on by one token; the longest waiting first if there are too many."""
        here, width = self.here, self.here.width
        order, slots = self._current()
        stuck = set()
        for place in numpy.flatnonzero(here.upper[slots] % width == 0).tolist():
            held = order[place]
            if held in here.decoding and not self._grow(held, int(here.upper[slots[place]]) + 1):
                stuck.add(held)
        if stuck or here.changed:
            self._current()
            chosen = [held for held in self._order if held not in stuck]
            order, slots = tuple(chosen), _slots(chosen)
        if len(order) > budget:
            oldest = numpy.argsort(here.last[slots], kind="stable")[:budget]
            oldest.sort()
            order, slots = tuple(order[place] for place in oldest), slots[oldest]
        positions = here.upper[slots]
        here.upper[slots] += 1
        here.left[slots] -= 1
        here.last[slots] = self._number
        here.flying[slots] += 1
        for place in numpy.flatnonzero(here.left[slots] == 0).tolist():
            del here.decoding[order[place]]
            here.changed = True
        longest = int(positions.max(initial=0)) // width + 1
        return order, Decodes(slots, positions, here.tables[slots, :longest])

    def _plain(self, held: tuple[Held, ...]) -> tuple[Append, ...] | None:
        if self._plain_of is not held:
            plain = all(one.is_plain for one in held)
            self._plain_of = held
            self._appends = tuple(h.request.tokens.append for h in held) if plain else None
        return self._appends

    def _current(self) -> tuple[tuple[Held, ...], NDArray[numpy.int64]]:
        if self.here.changed:
            self.here.changed = False
            self._order = tuple(self.here.decoding)
            self._slots = _slots(self._order)
        return self._order, self._slots

    def _chunks(self, allow: int, seats: list[Held]) -> Iterator[Chunk]:
        """Parts of prompts in the order of their keys, until the rows are used up."""
        now = self.clock()
        tried: set[Held] = set()
        admits = True
        while allow > 0:
            running = [held for held in self.here.prefilling if held not in tried]
            held = min(running, key=lambda h: self.queue.key(h.request, now), default=None)
            full = len(self.here) - len(self.here.leaving) >= self.most_running
            head = self.queue.head(now) if admits and not full else None
            if head is not None and (
                held is None or self.queue.key(head, now) < self.queue.key(held.request, now)
            ):
                held = self._admit(head)
                if held is None:
                    admits = False
                    continue
                seats.append(held)
            if held is None:
                return
            tried.add(held)
            chunk = self._chunk(held, allow)
            if chunk is not None:
                allow -= chunk.entry.rows
                yield chunk

    def _chunk(self, held: Held, allow: int) -> Chunk | None:
        """Rows of one prompt: the rest of it, or up to a block border, or an even number."""
        sequence, width = held.sequence, self.here.width
        first, tokens = sequence.computed, len(sequence.tokens)
        end = min(tokens, first + allow)
        if end < tokens:
            end = next((e for e in (end // width * width, end // 2 * 2) if e > first), end)
        if not self._grow(held, end) or held not in self.here.prefilling:
            return None
        sequence.computed = end
        self.here.flying[held.slot] += 1
        self.here.upper[held.slot] = end
        is_last = end == tokens
        if is_last:
            self.here.left[held.slot] -= 1
            self.here.to_decode(held)
        return Chunk(held, Entry(sequence, first, end - first, int(is_last)), is_last)

    def _admit(self, request: Request) -> Held | None:
        held = self.admission.admit(request, alone=not len(self.here))
        if held is None:
            return None
        self.queue.pop(request)
        self.here.join(held)
        self.admitted += 1
        cold = self.admission.cold(len(request.tokens))
        self.rows_cold += cold
        self.rows_saved += cold - held.hit.cost
        if not request.parks:
            request.cached_tokens = held.hit.tokens
        return held

    def _grow(self, held: Held, tokens: int) -> bool:
        """Blocks for this many tokens, if need be from a victim; False: not in this step."""
        while not self.here.grow(held, tokens):
            if any(self.here.flying[other.slot] for other in self.here.leaving):
                return False  # blocks come free when their steps are read
            victim = self._victim()
            if victim is None:
                return False
            self._park(victim)
            self.settle()
            if victim is held or victim in self.here.leaving:
                return False
        return True

    def _victim(self) -> Held | None:
        """The lowest priority, then the youngest; nobody who has no new token since it was parked,
        never the last one (engine 2.4)."""
        running = [held for held in self.here.of.values() if held not in self.here.leaving]
        if len(running) < 2:
            return None
        able = [h for h in running if len(h.request.tokens) > h.request.parked_at]
        return min(able, key=lambda h: (h.request.priority, -h.request.arrival), default=None)

    def _park(self, held: Held) -> None:
        self.parked += 1
        held.request.parks += 1
        held.request.parked_at = len(held.request.tokens)
        self.here.leave(held, parking=True)

    def _taps(self, chunks: list[Chunk], ahead: int) -> tuple[tuple[Tap, ...], tuple[Copy, ...]]:
        """Snapshots that running prompts pass in this step."""
        taps, copies = [], []
        for place, (held, entry, _) in enumerate(chunks):
            while held.taps and held.taps[0][0] <= entry.first + entry.rows:
                at, whole = held.taps.pop(0)
                number = self.cache.snapshots.take(whole) if at > entry.first else None
                if number is not None:
                    layers = self.admission.layers if whole else self.admission.lower
                    taps.append(Tap(held, Snapshot(number, whole, at)))
                    copies.append(Copy(ahead + place, at, number, layers))
        return tuple(taps), tuple(copies)


def _slots(helds: list[Held] | tuple[Held, ...]) -> NDArray[numpy.int64]:
    return numpy.fromiter((held.slot for held in helds), numpy.int64, len(helds))
