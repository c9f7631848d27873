"""The waiting room: priorities, and first come, first served inside one.

In: requests. Out: the one whose turn it is. Does not know: whether there is room for it.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from deepinfer.engine.request import Request, State

AGING_S = 30.0
"""Seconds of waiting that raise a request by one priority, so that nobody starves (engine 2.2)."""


class Queue:
    """Waiting requests by base priority; a parked one has its old arrival and so goes first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heaps: dict[int, list[tuple[int, Request]]] = {}
        self._followers: dict[Request, list[Request]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, request: Request) -> None:
        """A request that waits, for the first time or again; other samples of a prompt wait until
        its cache is filled."""
        self._count += 1
        leader = request.leader
        if leader is not None and leader.state in (State.QUEUED, State.PREFILL):
            self._followers.setdefault(leader, []).append(request)
        else:
            self._push(request)

    def _push(self, request: Request) -> None:
        heappush(self._heaps.setdefault(request.priority, []), (request.arrival, request))

    def follow(self, leader: Request) -> None:
        """The prompt of a leader is in the cache, or it has ended."""
        for request in self._followers.pop(leader, ()):
            self._push(request)

    def key(self, request: Request, now: float) -> tuple[int, int]:
        """Smaller goes first; time in seconds of the loop's clock."""
        age = int((now - request.arrived_s) // AGING_S)
        return -(request.priority + age), request.arrival

    def head(self, now: float) -> Request | None:
        """Whose turn it is."""
        heads = []
        for heap in self._heaps.values():
            while heap and heap[0][1].state is State.FINISHED:
                heappop(heap)  # it was aborted while it waited; `left` has counted it
            if heap:
                heads.append(heap[0][1])
        return min(heads, key=lambda request: self.key(request, now), default=None)

    def pop(self, request: Request) -> None:
        """The head leaves to run."""
        _, popped = heappop(self._heaps[request.priority])
        assert popped is request
        self._count -= 1

    def left(self) -> None:
        """A waiting request ended where it was; it is dropped when its turn comes."""
        self._count -= 1
