"""Shows how far loading is, with bytes per second: a bar on a terminal, plain lines elsewhere.

In: a number of bytes, then steps. Out: text on the error stream.
Does not know: what is loaded.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

Advance = Callable[[int], None]
PLAIN_LINES = 10


def in_words(size: float) -> str:
    """1024 -> '1.0 kB': decimal units, as disks and download pages count."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


@contextmanager
def loading_bar(label: str, total_bytes: int, stream: TextIO | None = None) -> Iterator[Advance]:
    """A function to call with every number of bytes that has arrived."""
    target = sys.stderr if stream is None else stream
    if not target.isatty():
        yield _plain_lines(label, total_bytes, target)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(file=target)
    with Progress(*columns, TransferSpeedColumn(), console=console) as progress:
        task = progress.add_task(label, total=total_bytes)
        yield lambda size: progress.advance(task, size)


def _plain_lines(label: str, total_bytes: int, target: TextIO) -> Advance:
    """About ten lines in all: a log file is no place for a bar."""
    begin, arrived, shown = time.monotonic(), 0, 0

    def advance(size: int) -> None:
        nonlocal arrived, shown
        arrived += size
        tenth = PLAIN_LINES * arrived // max(total_bytes, 1)
        if tenth > shown:
            shown = tenth
            rate = in_words(arrived / max(time.monotonic() - begin, 1e-9))
            amount = f"{in_words(arrived)} of {in_words(total_bytes)}"
            print(f"{label}: {amount}, {rate}/s", file=target, flush=True)

    return advance
