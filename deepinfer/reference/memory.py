"""Memory of the reference platform: named blocks of ordinary host memory.

In: sizes. Out: torch tensors over blocks that never move.
Does not know: what is kept in them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from deepinfer.errors import PlatformError
from deepinfer.plugin.failures import ArenaError
from deepinfer.plugin.memory import Arenas, Budget
from deepinfer.plugin.types import Mesh

MEMINFO: Final = Path("/proc/meminfo")
GROUP: Final = Path("/sys/fs/cgroup")
ALIGNMENT: Final = 256
"""Arenas begin at a multiple of this, so that any element type and vector width fits."""


class NoExchange(PlatformError):
    """Peers cannot address this memory."""


def measure(meminfo: Path = MEMINFO, group: Path = GROUP) -> tuple[int, int]:
    """Total and available bytes: the kernel's table, else sysconf; a container's limit if lower."""
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        total, free = _kib(lines["MemTotal"]), _kib(lines["MemAvailable"])
    except (OSError, KeyError):
        # macOS and the BSDs have no such table and do not tell what is free; all of it, then
        total = free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):  # no such group, or its limit is the word "max"
        return total, free
    return min(total, limit), max(min(free, limit - used), 0)


def _kib(text: str) -> int:
    return int(text.split()[0]) * 1024


class CpuMemory:
    """Arenas in host memory; see `deepinfer.plugin.Memory` for the contract."""

    def __init__(self, measured: Callable[[], tuple[int, int]] = measure) -> None:
        self._arenas = Arenas(measured)
        self._blocks: dict[str, Tensor] = {}

    def budget(self) -> Budget:
        """What was free at the start minus what arenas hold."""
        return self._arenas.budget()

    def arena(self, name: str, nbytes: int) -> Tensor:
        """Reserve a block once; `MemoryShort` if it does not fit, before anything is touched."""
        self._arenas.reserve(name, nbytes)
        block = _aligned(nbytes)  # [nbytes] uint8
        self._blocks[name] = block
        return block

    def view(self, arena: str, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor over part of an arena; `offset` in bytes, a multiple of the element size."""
        nbytes = math.prod(shape) * dtype.itemsize
        self._arenas.within(arena, offset, nbytes)
        if offset % dtype.itemsize:
            raise ArenaError(
                f"offset {offset} in arena {arena} is no multiple of {dtype.itemsize}, "
                f"the bytes of one {str(dtype).removeprefix('torch.')}"
            )
        return self._blocks[arena][offset : offset + nbytes].view(dtype).view(shape)

    def host(self, nbytes: int) -> Tensor:
        """Host memory is what everything here is."""
        return _aligned(nbytes)  # [nbytes] uint8

    def register(self, block: Tensor) -> Tensor:
        """Nothing to do: there is no device to copy to."""
        return block

    def exchange(self, nbytes: int, mesh: Mesh) -> Tensor:
        """Memory that peers can address; with one rank, that is any memory."""
        if mesh.size > 1:
            raise NoExchange(
                f"{mesh.size} ranks on CPUs do not share memory; the kernels of the reference "
                "move rows by torch.distributed and need none. A kernel that does need it must "
                'answer no("no exchange memory") in supports'
            )
        return self.arena("exchange", nbytes)

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """Temporary tensors come from the C heap and go back to it when they are dropped."""
        yield


def _aligned(nbytes: int) -> Tensor:
    """A block at a multiple of ALIGNMENT; its pages are touched by the first writer."""
    whole = torch.empty(nbytes + ALIGNMENT, dtype=torch.uint8)
    start = -whole.data_ptr() % ALIGNMENT
    return whole[start : start + nbytes]  # [nbytes] uint8
