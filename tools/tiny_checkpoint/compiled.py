"""Keep what the compiler made, so that the next run on a bare machine starts at once.

In: the compiler's cache after a run. Out: parts small enough to travel; the cache filled again.
Does not know: what was compiled.
"""

import zlib
from pathlib import Path

import torch

PART_BYTES = 15 * 2**20


def save(folder: Path) -> int:
    """Write `compiled.N` parts; returns the compressed size in bytes."""
    artifacts = torch.compiler.save_cache_artifacts()
    packed = zlib.compress(artifacts[0], 6) if artifacts else b""
    for number, first in enumerate(range(0, len(packed), PART_BYTES)):
        (folder / f"compiled.{number}").write_bytes(packed[first : first + PART_BYTES])
    return len(packed)


def load(folder: Path) -> int:
    """Fill the compiler's cache from parts, if there are any; returns their number."""
    parts = sorted(folder.glob("compiled.*"))
    if parts:
        packed = b"".join(part.read_bytes() for part in parts)
        torch.compiler.load_cache_artifacts(zlib.decompress(packed))
    return len(parts)
