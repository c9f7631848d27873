"""How long the host works on a step: planning, arrays, handing tokens out; the device is left out.

In: a platform, how many requests run, a kind of traffic. Out: milliseconds per step, by part.
Does not know: how fast a device is. Meant for the null platform, whose steps cost next to nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import count
from statistics import median
from typing import Any, cast

from deepinfer.engine.loop import Loop, Rules
from deepinfer.engine.request import Request
from deepinfer.errors import UsageError
from deepinfer.model.batch import Batch, Caches
from deepinfer.model.v41 import Model, Passed
from deepinfer.open import load_model, plan_model
from deepinfer.sample.params import SamplingParams
from deepinfer.settings import Settings

TRAFFIC = ("decode", "prefix", "samples")
WARM_STEPS = 100
PROMPT, SHARED, SHORT = 128, 2048, 64
SAMPLES = 4


class Replayed:
    """A model whose steps are kept by their size, as a captured graph keeps them: a step then costs
    the host one call. Meant for devices that compute nothing, where every step of a size is equal.
    """

    def __init__(self, model: Model, kept: dict[tuple[int, int], Passed], rows: int = 0) -> None:
        self._model, self._kept, self._rows = model, kept, rows
        self.ops = model.ops

    def at(self, rows: int) -> Replayed:
        """Kernels for this many rows."""
        return Replayed(self._model.at(rows), self._kept, rows)

    def forward(self, batch: Batch, caches: Caches) -> Passed:
        """The result of the first step of this size."""
        size = len(batch.ids), len(batch.wanted)
        if size not in self._kept:
            self._kept[size] = self._model.forward(batch, caches)
        return self._kept[size]


@dataclass(frozen=True)
class HostTime:
    """Milliseconds per step; medians, and the slowest of a hundred. `gap_ms` is how long the
    device waited for the host where steps run ahead; `captured`: see `Replayed`."""

    model: str
    platform: str
    plan: str
    traffic: str
    running: int
    steps: int
    ahead: bool
    streams: bool
    captured: bool
    host_ms_per_step_median: float
    host_ms_per_step_p99: float
    plan_ms: float
    arrays_ms: float
    hand_out_ms: float
    gap_ms: float | None
    hit_rate: float
    preemptions: int

    def __str__(self) -> str:
        gap = "" if self.gap_ms is None else f", the device waited {self.gap_ms:.3f} ms"
        return (
            f"{self.model} on {self.platform}, {self.running} running, {self.traffic}: "
            f"{self.host_ms_per_step_median:.3f} ms of host time per step (median of {self.steps}; "
            f"slowest of a hundred {self.host_ms_per_step_p99:.3f}){gap}\n"
            f"  plan {self.plan_ms:.3f} · arrays {self.arrays_ms:.3f} · hand out "
            f"{self.hand_out_ms:.3f} ms · hits {self.hit_rate:.0%} · parked {self.preemptions}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for `--json`."""
        return asdict(self)


def measure(
    running: int,
    *,
    model: str = "official",
    platform: str = "null",
    traffic: str = "decode",
    steps: int = 200,
    ahead: bool = False,
    streams: bool = True,
    captured: bool = True,
) -> HostTime:
    """Runs `steps` steps with `running` requests at once.

    traffic  decode: everybody goes on by one token; prefix: short answers to prompts with a common
             head, a new one for each that ends; samples: the same, four answers to each prompt
    streams  whether every token is handed to a reader at once
    captured  whether the device's step costs the host one call, as a graph does, or every layer
    """
    if traffic not in TRAFFIC:
        raise UsageError(f"traffic = {traffic!r}: must be one of {', '.join(TRAFFIC)}")
    settings = Settings.load({"platform": platform, "max_num_seqs": running})
    opened = plan_model(model, settings, any_devices=True)
    house, _ = load_model(opened, quiet=True)
    if captured and not house.planned.declared.device.facts.get("computes", True):
        house = replace(house, model=cast(Model, Replayed(house.model, {})))
    rules = Rules(max(opened.step_tokens, 2 * running), opened.max_model_len, running, ahead=ahead)
    loop = Loop(house, rules)
    feed = _feed(loop, traffic, steps, streams)
    here, warm = loop.scheduler.here, 0
    while warm < WARM_STEPS or (traffic == "decode" and (len(here) < running or here.prefilling)):
        feed(running)
        loop.step()
        warm += 1
    _steps(loop, feed, running, steps)
    times, stats = list(loop.stats.times), loop.stats.as_dict()
    for request in list(loop.scheduler.here.of):
        loop.abort(request)
    loop.close()
    host = sorted(one.host for one in times)
    gaps = [one.gap for one in times if one.gap is not None]
    return HostTime(
        model=model,
        platform=platform,
        plan=house.planned.plan.id,
        traffic=traffic,
        running=running,
        steps=len(times),
        ahead=ahead,
        streams=streams,
        captured=captured,
        host_ms_per_step_median=_ms(host),
        host_ms_per_step_p99=1e3 * host[len(host) * 99 // 100],
        plan_ms=_ms([one.plan for one in times]),
        arrays_ms=_ms([one.place for one in times]),
        hand_out_ms=_ms([one.hand_out for one in times]),
        gap_ms=_ms(gaps) if gaps else None,
        hit_rate=stats["hit_rate"],
        preemptions=stats["preemptions"],
    )


def _steps(loop: Loop, feed: Callable[[int], None], running: int, steps: int) -> None:
    """The steps that count, without the garbage collector in between."""
    loop.stats.times.clear()
    gc.collect()
    gc.disable()
    try:
        for _ in range(steps):
            feed(running)
            loop.step()
    finally:
        gc.enable()


def _ms(seconds: list[float]) -> float:
    return 1e3 * median(seconds)


def _feed(loop: Loop, traffic: str, steps: int, streams: bool) -> Callable[[int], None]:
    """Adds requests until as many wait or run as should."""
    numbers = count()
    vocabulary = loop.house.planned.shape.vocab_size
    decode = traffic == "decode"
    samples = SAMPLES if traffic == "samples" else 1
    tokens = 4 * steps + 4 * WARM_STEPS + 1000 if decode else SHORT
    head = [] if decode else [5 + place % 1000 for place in range(SHARED)]

    def feed(running: int) -> None:
        while len(loop.scheduler.queue) + len(loop.scheduler.here) < running:
            number = next(numbers)
            own = [5 + (7 * number + place) % (vocabulary - 5) for place in range(PROMPT)]
            params = SamplingParams(max_tokens=tokens, ignore_eos=True, seed=number, n=samples)
            leader = None
            for sample in range(samples):
                request = Request(
                    number, head + own, params, (), None, loop.rules.limit, sample=sample,
                    leader=leader, streams=streams,
                )  # fmt: skip
                leader = leader or request
                loop.add(request)

    return feed
