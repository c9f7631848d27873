"""Serving: several readers share one loop; each gets the deltas of its own requests.

In: requests. Out: iterators of deltas, plain and asynchronous.
Does not know: prompts, outputs. Any thread may step the loop; one at a time does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from threading import RLock
from typing import Self

from deepinfer.engine.loop import Loop
from deepinfer.engine.request import Delta, Request
from deepinfer.errors import UsageError
from deepinfer.output import Output

Outputs = Callable[[Sequence[Request]], list[Output]]


class Closed(UsageError):
    """The LLM was closed."""


class Box:
    """Deltas that a reader did not take yet, and how many of its requests go on."""

    def __init__(self, open_requests: int) -> None:
        self.deltas: deque[Delta] = deque()
        self.open = open_requests


class Front:
    """The loop behind a lock, and whose request is whose."""

    def __init__(self, loop: Loop) -> None:
        self._loop: Loop | None = loop
        self._lock = RLock()
        self._boxes: dict[Request, Box] = {}
        self._running: asyncio.Future[None] | None = None
        self._lost: deque[Request] = deque()

    @property
    def loop(self) -> Loop:
        """The loop, while there is one."""
        if self._loop is None:
            raise Closed("this LLM is closed; make a new one")
        return self._loop

    def add(self, requests: Sequence[Request], box: Box) -> None:
        """Queues requests; if one is refused, those before it are taken back."""
        with self._lock:
            loop = self.loop
            added: list[Request] = []
            try:
                for request in requests:
                    loop.add(request)
                    added.append(request)
            except BaseException:
                for request in added:
                    loop.abort(request)
                raise
            self._boxes.update(dict.fromkeys(requests, box))

    def step(self) -> None:
        """One step for everybody."""
        with self._lock:
            while self._lost:
                self.abort([self._lost.popleft()])
            for request, delta in self.loop.step():
                box = self._boxes.get(request)
                if box is None:
                    continue
                box.deltas.append(delta)
                if delta.finish_reason is not None:
                    box.open -= 1
                    del self._boxes[request]

    async def astep(self) -> None:
        """One step in a thread; whoever waits meanwhile waits for the same one."""
        here = asyncio.get_running_loop()
        running = self._running
        if running is None or running.done() or running.get_loop() is not here:
            running = self._running = here.run_in_executor(None, self.step)
        await asyncio.shield(running)

    def abort(self, requests: Sequence[Request]) -> None:
        """Ends those that have not ended."""
        with self._lock:
            for request in requests:
                box = self._boxes.pop(request, None)
                delta = self._loop.abort(request) if self._loop is not None else None
                if box is not None:
                    box.open -= 1
                    box.deltas.extend([] if delta is None else [delta])
            if not self._boxes and self._loop is not None:
                for _ in self._loop.run():  # nobody is left: only steps under way are read
                    pass

    def lose(self, requests: Sequence[Request]) -> None:
        """Nobody reads these any more: the next step ends them. May be called from anywhere."""
        self._lost.extend(requests)

    def close(self) -> None:
        """Ends everything that runs."""
        with self._lock:
            if self._loop is None:
                return
            self.abort(list(self._boxes))
            self._loop.close()
            self._loop = None


class Serving:
    """Requests that run: iterate for their deltas, with `for` or `async for`.

    Closing it, or losing it, ends what still runs.
    """

    def __init__(self, front: Front, requests: Sequence[Request], outputs: Outputs) -> None:
        self._front, self._requests, self._outputs = front, list(requests), outputs
        self._box = Box(len(self._requests))
        front.add(self._requests, self._box)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delta:
        box = self._box
        while not box.deltas:
            if not box.open:
                raise StopIteration
            self._front.step()
        return box.deltas.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        box = self._box
        while not box.deltas:
            if not box.open:
                raise StopAsyncIteration
            await self._front.astep()
        return box.deltas.popleft()

    def close(self) -> None:
        """Ends what still runs; no delta comes any more."""
        self._front.abort([one for one in self._requests if not one.is_finished])
        self._box.deltas.clear()

    async def aclose(self) -> None:
        """As `close`, for asynchronous readers."""
        await asyncio.to_thread(self.close)

    def __del__(self) -> None:
        box: Box | None = getattr(self, "_box", None)
        if box is not None and box.open:
            self._front.lose(self._requests)

    @property
    def outputs(self) -> list[Output]:
        """What there is of every answer, one for each prompt."""
        return self._outputs(self._requests)
