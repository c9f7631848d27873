"""Weights without bytes: tensors of the inventory's shapes and types over one element each.

In: a Shape. Out: what the assembler asks of a checkpoint, for devices that compute nothing.
Does not know: files; which platform has such a device.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor

from deepinfer.errors import ModelError
from deepinfer.model.inventory import inventory
from deepinfer.model.shape import Shape
from deepinfer.model.weights import DTYPES


@lru_cache(maxsize=4096)
def hollow(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor whose elements are all one zero; equal ones are the same object."""
    return torch.zeros(dtype.itemsize, dtype=torch.uint8).view(dtype).expand(shape)


def is_hollow(tensor: Tensor) -> bool:
    """Whether several elements share one place along every axis: a copy would fill memory."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.numel() > 1 and all(size == 1 or not stride for size, stride in sizes)


class HollowCheckpoint:
    """Every tensor of the inventory by name, as `weights.Checkpoint` gives it; nothing is read."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._specs = inventory(shape)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._specs)

    def __contains__(self, name: str) -> bool:
        return name in self._specs

    def total_bytes(self, names: Iterable[str] | None = None) -> int:
        """Bytes that `names`, or all tensors, would take if they were stored."""
        return sum(self._specs[name].bytes for name in (self._specs if names is None else names))

    def tensor(self, name: str) -> Tensor:
        """A tensor of the stored shape and type."""
        spec = self._specs.get(name)
        if spec is None:
            raise ModelError(f"a model of this shape has no tensor {name}")
        return hollow(spec.shape, DTYPES[spec.dtype])
