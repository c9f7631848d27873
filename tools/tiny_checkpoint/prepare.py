"""Write the packed training sets, one after the other, while the trainer already trains.

In: an output folder. Out: `<name>.npz` per set, complete when the file appears.
Does not know: the network.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .packing import pack_rows
from .tokens import build

SHARES = {
    "story": 0.24, "reading": 0.14, "arithmetic": 0.17, "json": 0.09, "tools": 0.06,
    "recall": 0.17, "lists": 0.05, "facts": 0.06, "chat": 0.02,
}


@dataclass(frozen=True)
class DataSet:
    """One training set; recall grows from few lines to long documents (tiny_checkpoint 3.4)."""

    name: str
    tokens: int
    length: int
    lines: int
    recall: float
    long_range: tuple[int, int] | None = None
    long_share: float = 0.0

    def weights(self) -> dict[str, float]:
        """Shares of tokens per family."""
        rest = (1 - self.recall - self.long_share) / (1 - SHARES["recall"])
        weights = {key: share * rest for key, share in SHARES.items()}
        weights["recall"] = self.recall
        if self.long_range:
            weights["long_recall"] = self.long_share
        return weights


FULL = (
    DataSet("one", 8_000_000, 512, 2, 0.25),
    DataSet("two", 12_000_000, 512, 4, 0.25),
    DataSet("three", 24_000_000, 512, 8, 0.22),
    DataSet("four", 90_000_000, 512, 16, 0.15),
    DataSet("longest", 16_000_000, 8192, 16, 0.08, (400, 8000), 0.50),
)


def prepare(folder: Path, sizes: dict[str, float], processes: int, seed: int) -> None:
    """Build, pack and publish the sets in the order given, each `sizes[name]` times its size."""
    folder.mkdir(parents=True, exist_ok=True)
    known = {data.name: data for data in FULL}
    for number, (name, factor) in enumerate(sizes.items()):
        data = known[name]
        began = time.monotonic()
        ids, target = build(
            seed * 100 + number, int(data.tokens * factor), processes, weights=data.weights(),
            recall_lines=data.lines, long_recall_tokens=data.long_range)
        built = time.monotonic() - began
        rows, marks = pack_rows(ids, target, data.length)
        partial = folder / f"{name}.partial.npz"
        np.savez(partial, ids=rows, marks=marks)
        partial.rename(folder / f"{name}.npz")
        print(f"data {name}: {len(ids)} tokens, {rows.shape} rows, fill "
              f"{(marks > 0).mean():.3f}, target {(marks == 2).mean():.3f}, build {built:.1f} s, "
              f"all {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)


def read_sizes(words: list[str]) -> dict[str, float]:
    """NAME=FACTOR words; all sets at full size if there are none."""
    if not words:
        return {data.name: 1.0 for data in FULL}
    return {name: float(factor) for name, factor in (word.split("=") for word in words)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("sets", nargs="*", help="NAME=FACTOR, in order; default: all, full size")
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    prepare(chosen.folder, read_sizes(chosen.sets), chosen.processes, chosen.seed)
