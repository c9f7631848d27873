"""The benchmark of the table runs and reports every way to call."""

from __future__ import annotations

import runpy
from pathlib import Path

BENCH = Path(__file__).parent.parent.parent / "bench" / "dispatch.py"


def test_the_dispatch_benchmark_measures_every_way_to_call_and_prints_a_table():
    bench = runpy.run_path(str(BENCH))
    results = bench["measure"](calls=100)
    lines = []
    bench["report"](results, lines.append)
    assert list(results) == ["direct function", "bound slot", "two-way chooser",
                             "four-way bisect", "pluggy, one", "pluggy, three"]
    assert all(len(times) == bench["RUNS"] for times in results.values())
    assert len(lines) == 7
