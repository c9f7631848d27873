"""What a call through the table costs, next to a plain call and to pluggy.

In: nothing. Out: a table of nanoseconds, or JSON with `--json`.
Does not know: kernels; the function that is called does nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pluggy

from deepinfer.ops.table import Table
from deepinfer.plugin.bind import Bound, Part

RUNS = 7
CALLS = 200_000


@dataclass(frozen=True)
class Rows:
    """Stands for a tensor: all that a chooser reads is the shape."""

    shape: tuple[int, ...]


def kernel(x: Any, weight: Any, eps: Any) -> Any:
    """The cheapest kernel there is."""
    return x


def part(low: int, high: int) -> Part:
    """A built kernel for one token range."""

    def own(x: Any, weight: Any, eps: Any) -> Any:
        return x

    return Part(f"bench:from_{low}", "bench", "0", (low, high), own, "replay", "", 0, None)


def table() -> Table:
    """A table with one slot, one two-way and one four-way chooser."""
    names = ("x", "weight", "eps")
    ranges = {
        "bench.bound": [(1, 8192)],
        "bench.two_way": [(1, 256), (257, 8192)],
        "bench.bisect": [(1, 16), (17, 256), (257, 1024), (1025, 8192)],
    }
    return Table(
        [Bound(op, names, (), 0, tuple(part(*r) for r in found)) for op, found in ranges.items()]
    )


def manager(plugins: int) -> pluggy.PluginManager:
    """pluggy with so many implementations; all but one decline."""
    spec, impl = pluggy.HookspecMarker("bench"), pluggy.HookimplMarker("bench")

    class Specs:
        @spec(firstresult=True)
        def call(self, x: Any, weight: Any, eps: Any) -> Any:
            """The hook."""

    def plugin(answer: bool) -> object:
        class Plugin:
            @impl
            def call(self, x: Any, weight: Any, eps: Any) -> Any:
                return x if answer else None

        return Plugin()

    made = pluggy.PluginManager("bench")
    made.add_hookspecs(Specs)
    for number in range(plugins):
        made.register(plugin(answer=number == 0))
    return made


def nanoseconds(statement: str, names: dict[str, Any], calls: int) -> float:
    """Time of one call, the empty loop taken off."""
    timer = timeit.Timer(statement, globals=names)
    empty = timeit.Timer("pass", globals=names)
    return (timer.timeit(calls) - min(empty.repeat(3, calls))) / calls * 1e9


def measure(calls: int = CALLS) -> dict[str, list[float]]:
    """Nanoseconds per call of every way to call, RUNS of each."""
    names: dict[str, Any] = {
        "kernel": kernel, "table": table(), "x": Rows((300, 8)), "w": None, "e": 1e-20,
        "one": manager(1).hook, "three": manager(3).hook,
    }
    ways = {
        "direct function": "kernel(x, w, e)",
        "bound slot": "table.bench_bound(x, w, e)",
        "two-way chooser": "table.bench_two_way(x, w, e)",
        "four-way bisect": "table.bench_bisect(x, w, e)",
        "pluggy, one": "one.call(x=x, weight=w, eps=e)",
        "pluggy, three": "three.call(x=x, weight=w, eps=e)",
    }
    results: dict[str, list[float]] = {way: [] for way in ways}
    # run by run, not way by way: a busy machine then disturbs all of them alike
    for _ in range(RUNS):
        for way, text in ways.items():
            some = calls // 10 if "pluggy" in way else calls
            results[way].append(nanoseconds(text, names, some))
    return results


def report(results: dict[str, list[float]], show: Callable[[str], object] = print) -> None:
    """The table: median, least, and the median over that of the direct function."""
    direct = statistics.median(results["direct function"])
    show(f"{'call':<18}{'median ns':>10}{'least':>8}{'ratio':>8}")
    for way, times in results.items():
        median = statistics.median(times)
        show(f"{way:<18}{median:>10.1f}{min(times):>8.1f}{median / direct:>8.2f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--calls", type=int, default=CALLS, help="calls per run")
    options = SimpleNamespace(**vars(parser.parse_args()))
    results = measure(options.calls)
    if options.json:
        facts = {"python": platform.python_version(), "machine": platform.machine(),
                 "runs": RUNS, "calls": options.calls}
        print(json.dumps({**facts, "nanoseconds": results}, indent=1))
    else:
        report(results)


if __name__ == "__main__":
    main()
