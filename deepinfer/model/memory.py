"""Compares the memory that the weights need with the memory there is, before a byte is read.

In: a Shape. Out: bytes, or a MemoryShort that names both numbers.
Does not know: devices; a platform's own memory is its plugin's matter.
"""

import os
from pathlib import Path

from deepinfer.errors import MemoryShort
from deepinfer.model.inventory import TensorSpec, inventory
from deepinfer.model.progress import in_words
from deepinfer.model.shape import Shape

# Names that are widened at load, and the bytes per element they then take (specification 2.4).
BF16_BYTES, F32_BYTES = 2, 4
WIDENED = {
    "attn.wo_a.weight": BF16_BYTES,
    "markov_head.head.weight": F32_BYTES,
    "confidence_head.proj.weight": F32_BYTES,
}


def needed_bytes(shape: Shape, *, draft: bool = True, engram: bool = True) -> int:
    """Bytes of all weights that a text model holds, as the release widens them at load."""
    parts = {"backbone"} | ({"draft"} if draft else set()) | ({"engram"} if engram else set())
    return sum(
        _loaded_bytes(shape, name, spec)
        for name, spec in inventory(shape).items()
        if spec.part in parts
    )


def _loaded_bytes(shape: Shape, name: str, spec: TensorSpec) -> int:
    if name == "head.weight":
        return F32_BYTES * spec.count
    for suffix, width in WIDENED.items():
        if name.endswith(suffix):
            return width * spec.count
    if name.endswith(("compressor.wkv.weight", "compressor.wgate.weight")):
        layer = int(name.split(".")[1])
        return F32_BYTES * spec.count if shape.ratio(layer) > 1 else spec.bytes
    return spec.bytes


def check_memory(
    shape: Shape, *, available_bytes: int | None = None, draft: bool = True, engram: bool = True
) -> int:
    """Bytes needed; raises `MemoryShort` when there are fewer."""
    needed = needed_bytes(shape, draft=draft, engram=engram)
    there = free_bytes() if available_bytes is None else available_bytes
    if needed > there:
        raise MemoryShort(
            f"the weights need {in_words(needed)} of memory and {in_words(there)} are free; "
            "close other programs, or use a machine or a platform with more memory"
        )
    return needed


def free_bytes() -> int:
    """Host memory that can be had without swapping, inside the limit of a container."""
    found = [_available()]
    limit, used = (_number(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if limit is not None and used is not None:
        found.append(max(limit - used, 0))
    return min(found)


def _available() -> int:
    information = Path("/proc/meminfo")
    if information.is_file():
        for line in information.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _number(file: str) -> int | None:
    """The number in a control file; None without the file or without a limit ("max")."""
    path = Path(file)
    text = path.read_text().strip() if path.is_file() else "max"
    return int(text) if text.isdigit() else None
