"""What the engine measures about itself: counts, pools, times of steps.

In: steps that were planned and read. Out: one plain mapping, and events for a trace.
Does not know: who looks at them.
"""

from __future__ import annotations

import logging
from collections import deque
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from deepinfer.engine.line import Result
from deepinfer.engine.step import Step
from deepinfer.engine.trace import DEVICE, HOST, Trace

if TYPE_CHECKING:
    from deepinfer.engine.loop import Loop

KEPT = 4096
"""Steps whose times are remembered."""
LOG_S = 5.0
"""Seconds between two log lines."""
LOG = logging.getLogger("deepinfer.engine")


class Timed(NamedTuple):
    """Seconds of one step: planning, arrays, waiting for the device, handing tokens out, running;
    `gap` is how long the device had nothing to do before it, or None if it had nothing before."""

    number: int
    rows: int
    decodes: int
    plan: float
    place: float
    wait: float
    hand_out: float
    began: float
    ended: float
    gap: float | None

    @property
    def host(self) -> float:
        """The host's own work."""
        return self.plan + self.place + self.hand_out


class Stats:
    """Of one loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop, self._born = loop, perf_counter()
        self.steps = self.rows = self.tokens = 0
        self.times: deque[Timed] = deque(maxlen=KEPT)
        self._plans: dict[int, tuple[float, float]] = {}
        self._ended: float | None = None
        self.trace: Trace | None = None
        self._logged, self._tokens_logged = self._born, 0

    def planned(self, step: Step, began_s: float, plan_s: float, place_s: float) -> None:
        """A step was planned, from `began_s` on, and its arrays were built."""
        self._plans[step.number] = plan_s, place_s
        if self.trace is not None:
            self.trace.span(HOST, f"plan {step.number}", began_s, plan_s)
            self.trace.span(HOST, f"arrays {step.number}", began_s + plan_s, place_s)

    def read(self, step: Step, result: Result, wait_s: float, hand_out_s: float) -> None:
        """A step was read and its tokens were handed out."""
        self.steps += 1
        self.rows += step.rows
        self.tokens += len(result.ids)
        plan, place = self._plans.pop(step.number, (0.0, 0.0))
        gap = None if self._ended is None else max(result.began_s - self._ended, 0.0)
        self._ended = result.ended_s if self._loop.is_busy else None
        timed = Timed(
            step.number, step.rows, len(step.decoding), plan, place, wait_s, hand_out_s,
            result.began_s, result.ended_s, gap,
        )  # fmt: skip
        self.times.append(timed)
        now = perf_counter()
        if self.trace is not None:
            self._draw(self.trace, timed, step, now)
        if now - self._logged > LOG_S and LOG.isEnabledFor(logging.INFO):
            LOG.info("%s", self.line(now))
            self._logged, self._tokens_logged = now, self.tokens

    def line(self, now: float) -> str:
        """One line for a person: what goes on since the line before."""
        cache, scheduler = self._loop.cache, self._loop.scheduler
        speed = (self.tokens - self._tokens_logged) / max(now - self._logged, 1e-9)
        last = self.times[-1]
        saved = scheduler.rows_saved / scheduler.rows_cold if scheduler.rows_cold else 0.0
        return (
            f"running {len(scheduler.here)} · queued {len(scheduler.queue)} · "
            f"blocks {cache.blocks.held}/{cache.blocks.count} · hits {saved:.0%} · "
            f"parked {scheduler.parked} · {speed:.1f} tok/s · "
            f"step {1e3 * (last.ended - last.began):.1f} ms · host {1e3 * last.host:.2f} ms"
        )

    def _draw(self, trace: Trace, timed: Timed, step: Step, now: float) -> None:
        scheduler, blocks = self._loop.scheduler, self._loop.cache.blocks
        trace.span(
            DEVICE, f"step {timed.number}", timed.began, timed.ended - timed.began,
            rows=timed.rows, decodes=timed.decodes, prompts=len(step.chunks),
        )  # fmt: skip
        began = now - timed.hand_out
        trace.span(HOST, f"wait {timed.number}", began - timed.wait, timed.wait)
        trace.span(HOST, f"hand out {timed.number}", began, timed.hand_out)
        trace.count(now, "requests", running=len(scheduler.here), queued=len(scheduler.queue))
        trace.count(now, "blocks", held=blocks.held, free=blocks.free)

    def as_dict(self) -> dict[str, Any]:
        """Everything, in plain values; times in seconds, medians over the last steps."""
        cache, scheduler = self._loop.cache, self._loop.scheduler
        cold = scheduler.rows_cold
        times = list(self.times)
        return {
            "uptime_s": perf_counter() - self._born,
            "queued": len(scheduler.queue),
            "running": len(scheduler.here),
            "steps": self.steps,
            "rows": self.rows,
            "tokens": self.tokens,
            "admitted": scheduler.admitted,
            "preemptions": scheduler.parked,
            "hit_rate": scheduler.rows_saved / cold if cold else 0.0,
            "blocks": {
                "total": cache.blocks.count,
                "held": cache.blocks.held,
                "kept": cache.prefix.idle,
                "free": cache.blocks.free,
                "evicted": cache.evicted,
            },
            "slots": {"total": cache.geometry.slots, "free": cache.slots.free},
            "snapshots": {
                "total": cache.geometry.whole + cache.geometry.halves,
                "used": len(cache.snapshots),
            },
            "step_s": _middle([one.ended - one.began for one in times]),
            "host_s": _middle([one.host for one in times]),
            "gap_s": _middle([one.gap for one in times if one.gap is not None]),
        }


def _middle(values: list[float]) -> float | None:
    return median(values) if values else None
