"""The loop: plan, launch, read, hand out, until every request has its end.

In: requests. Out: deltas, step by step. Does not know: text rules, kernels, who may run.
With `ahead` one step runs while the next is planned (engine specification 2.6).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import compress
from time import perf_counter

from deepinfer.engine.admission import Admission
from deepinfer.engine.cache import Cache
from deepinfer.engine.line import Line, Result
from deepinfer.engine.request import Delta, Request
from deepinfer.engine.scheduler import Scheduler
from deepinfer.engine.start import House
from deepinfer.engine.stats import Stats
from deepinfer.engine.step import Step
from deepinfer.errors import RequestError
from deepinfer.model.cone import Cone


class BrokenLogits(RequestError):
    """A row of logits holds NaN or nothing that may be chosen."""


class DeadlinePassed(RequestError):
    """A request did not end in its time."""


class QueueFull(RequestError):
    """As many requests wait as may."""


@dataclass(frozen=True)
class Rules:
    """How a loop serves: settings of the same names; `ahead` is async_scheduling.

    step_tokens  rows of a step; limit  tokens of the context
    running, queued  most requests that run, and that wait; None for as many as there are slots,
                     and for any number
    """

    step_tokens: int
    limit: int
    running: int | None = None
    queued: int | None = None
    prefix: str = "exact"
    replay: str = "exact"
    ahead: bool = True


class Loop:
    """Serves requests on one house. `clock` gives seconds for ages and deadlines."""

    def __init__(
        self, house: House, rules: Rules, clock: Callable[[], float] = perf_counter
    ) -> None:
        self.house, self.rules, self.clock = house, rules, clock
        shape, geometry = house.planned.shape, house.planned.geometry
        self.cache = Cache(geometry)
        admission = Admission(
            self.cache,
            Cone.of(shape),
            shape.num_hidden_layers,
            shape.sliding_window,
            rules.prefix,
            rules.replay,
        )
        rows = max(rules.step_tokens, 2)
        running = geometry.slots if rules.running is None else rules.running
        self.scheduler = Scheduler(self.cache, admission, rows, rules.limit, running, clock)
        self.line = Line(house, rules.ahead)
        self.stats = Stats(self)
        self.flying: deque[Step] = deque()
        self._deadlines: list[tuple[float, int, Request]] = []
        self._late: list[tuple[Request, Delta]] = []

    def add(self, request: Request) -> None:
        """Queues a request; one that can never fit is refused here, alone."""
        queued = self.rules.queued
        if queued is not None and len(self.scheduler.queue) >= queued:
            raise QueueFull(
                f"request {request.index}: {queued} requests wait already (max_queued); "
                "try again when some have ended"
            )
        self.scheduler.add(request)
        if request.deadline_s is not None:
            heappush(self._deadlines, (request.deadline_s, request.arrival, request))

    @property
    def is_busy(self) -> bool:
        """Whether any request has not ended, or a step is under way."""
        return bool(self.flying or self._late) or not self.scheduler.is_idle

    def abort(self, request: Request) -> Delta | None:
        """Ends a request wherever it is; None if it has ended. What it holds comes free when the
        steps that name it were read."""
        return self._end(request, request.end("abort")) if not request.is_finished else None

    def run(self) -> Iterator[Delta]:
        """Steps until nobody is left."""
        while self.is_busy:
            for _, delta in self.step():
                yield delta

    def step(self) -> list[tuple[Request, Delta]]:
        """Plans and starts one step, and reads the oldest one that it need not leave running."""
        began = perf_counter()
        self._expire()
        self.scheduler.settle()
        step = self.scheduler.plan()
        planned = placed = perf_counter()
        if step is not None:
            entries = [chunk.entry for chunk in step.chunks]
            batch = self.house.tray.batch(entries, step.decodes, step.copies)
            placed = perf_counter()
            self.line.launch(step, batch)
            self.flying.append(step)
        launched = perf_counter()
        if step is not None:
            self.stats.planned(step, began, planned - began, placed - planned)
        deltas, self._late = self._late, []
        if self.flying and (step is None or len(self.flying) > int(self.rules.ahead)):
            first = self.flying.popleft()
            result = self._read(first)
            waited = perf_counter()
            deltas += self._hand_out(first, result)
            self.stats.read(first, result, waited - launched, perf_counter() - waited)
        elif step is None and not self.scheduler.is_idle:
            self.scheduler.unblock()
        return deltas

    def close(self) -> None:
        """Waits for what is under way and ends the thread."""
        self.flying.clear()
        self.line.close()
        if self.stats.trace is not None:
            self.stats.trace.close()

    def _read(self, step: Step) -> Result:
        try:
            return self.line.read()
        except BaseException:
            # whatever runs behind it reads rows that were never written: nobody may go on
            self.line.drop()
            for lost in (step, *self.flying):
                self.scheduler.lose(lost)
            self.flying.clear()
            raise

    def _hand_out(self, step: Step, result: Result) -> list[tuple[Request, Delta]]:
        """Tokens to their requests; rows of requests that ended meanwhile are void."""
        self.scheduler.commit(step)
        deltas: list[tuple[Request, Delta]] = []
        wanted, ids = step.wanted, result.ids
        places: Iterable[int] = range(len(ids))
        if step.appends is not None:
            plain, special = self.scheduler.here.plain(step, ids)
            mine = zip(compress(step.appends, plain), compress(ids, plain), strict=True)
            for append, token in mine:
                append(token)
            places = (*special, *range(len(plain), len(ids)))
        for place in places:
            held, token = wanted[place], ids[place]
            logprobs = None if result.chosen is None else result.chosen[place]
            request = held.request
            if request.finish_reason is not None:
                continue
            delta = request.take(token, logprobs) if token >= 0 else _broken(request)
            if delta is not None:
                deltas.append((request, delta))
                if delta.finish_reason is not None:
                    self.scheduler.finish(request)
        self.scheduler.settle()
        return deltas

    def _expire(self) -> None:
        now = self.clock()
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, _, request = heappop(self._deadlines)
            if request.is_finished:
                continue
            late = DeadlinePassed(
                f"request {request.index}: its time was over after "
                f"{deadline - request.arrived_s:.3f} s and {len(request.output)} tokens; give it "
                "more time (timeout_s) or fewer tokens (max_tokens)"
            )
            self._late.append((request, self._end(request, request.end("deadline", late))))

    def _end(self, request: Request, delta: Delta) -> Delta:
        self.scheduler.finish(request)
        self.scheduler.settle()
        return delta


def _broken(request: Request) -> Delta:
    """The end of a request whose row could not be sampled."""
    error = BrokenLogits(
        f"request {request.index}: the logits for position {len(request.tokens)} hold NaN, or "
        "every token is banned; the other requests go on. Check the bans of this request, and run "
        "`deepinfer golden` on this platform if it has none"
    )
    return request.end("error", error)
