"""Memory of the null platform: the accounts of large devices, and not one byte of them.

In: sizes. Out: tensors over a single element, as large as they are asked for.
Does not know: what is kept in them, for nothing can be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor

from deepinfer.plugin.failures import ArenaError
from deepinfer.plugin.memory import Arenas, Budget
from deepinfer.plugin.types import Mesh

DEVICE_BYTES: Final = 141_000_000_000
"""What one device claims to have."""


class NullMemory:
    """Arenas that are only counted; see `deepinfer.plugin.Memory` for the contract."""

    def __init__(self, total: int = DEVICE_BYTES) -> None:
        self._arenas = Arenas(lambda: (total, total))

    def budget(self) -> Budget:
        """All of the claimed bytes minus what arenas hold."""
        return self._arenas.budget()

    def arena(self, name: str, nbytes: int) -> Tensor:
        """Reserve a block once; `MemoryShort` if it does not fit the claim."""
        self._arenas.reserve(name, nbytes)
        return _hollow((nbytes,), torch.uint8)

    def view(self, arena: str, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor of this shape; that it lies inside the arena is checked as if it did."""
        self._arenas.within(arena, offset, math.prod(shape) * dtype.itemsize)
        if offset % dtype.itemsize:
            raise ArenaError(
                f"offset {offset} in arena {arena} is no multiple of {dtype.itemsize}, "
                f"the bytes of one {str(dtype).removeprefix('torch.')}"
            )
        return _hollow(shape, dtype)

    def host(self, nbytes: int) -> Tensor:
        """Real memory: the core writes there, and the host is no part of the claim."""
        return torch.empty(nbytes, dtype=torch.uint8)

    def register(self, block: Tensor) -> Tensor:
        """Nothing to do: there is no device to copy to."""
        return block

    def exchange(self, nbytes: int, mesh: Mesh) -> Tensor:
        """Peers address nothing here as well as anywhere."""
        return self.arena("exchange", nbytes)

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """Nothing is allocated inside, so nothing is given back."""
        yield


def _hollow(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """All elements are one, which is zero."""
    return torch.zeros(dtype.itemsize, dtype=torch.uint8).view(dtype).expand(shape)
