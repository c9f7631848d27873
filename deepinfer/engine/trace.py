"""A trace of steps in the format of Perfetto and chrome://tracing.

In: times of steps. Out: a JSON file with one row for the host, one for the device, and counters.
Does not know: what a step computes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TextIO

from deepinfer.errors import UsageError

HOST, DEVICE = 1, 2


class Trace:
    """Written while the engine runs; complete after `close`. Times in microseconds."""

    def __init__(self, path: Path) -> None:
        self._pid = os.getpid()
        try:
            self._file: TextIO = path.open("w", encoding="utf-8")
        except OSError as cause:
            raise UsageError(f"trace file {path}: {cause.strerror}") from cause
        self._file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        self._file.write(self._line(ph="M", name="process_name", args={"name": "deepinfer"}))
        for thread, name in ((HOST, "host"), (DEVICE, "device")):
            self._event(ph="M", name="thread_name", tid=thread, args={"name": name})

    def span(self, thread: int, name: str, began_s: float, took_s: float, **args: Any) -> None:
        """Something that lasted; times of perf_counter."""
        self._event(
            ph="X", name=name, tid=thread, ts=began_s * 1e6, dur=max(took_s, 0.0) * 1e6, args=args
        )

    def count(self, at_s: float, name: str, **values: int) -> None:
        """Counters at a moment."""
        self._event(ph="C", name=name, ts=at_s * 1e6, args=values)

    def close(self) -> None:
        """Ends the document."""
        if not self._file.closed:
            self._file.write("\n]}\n")
            self._file.close()

    def _event(self, **event: Any) -> None:
        self._file.write(",\n" + self._line(**event))

    def _line(self, **event: Any) -> str:
        return json.dumps({"pid": self._pid, **event})
