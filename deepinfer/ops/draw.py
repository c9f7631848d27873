"""Seeded random inputs with the edges that kernels get wrong.

In: a seed, a shape, the name of an edge. Out: tensors on the CPU.
Does not know: operators.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Draw:
    """A stream of random tensors; the same seed gives the same inputs on every machine."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def f32(self, *shape: int) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(shape, generator=self.generator)

    def bf16(self, *shape: int, edge: str = "", size: float = 1.0) -> Tensor:
        """Normal numbers in bf16; edges: zeros, tiny (1e-6), huge (1e4), strided."""
        factor = {"zeros": 0.0, "tiny": 1e-6, "huge": 1e4}.get(edge, 1.0)
        if edge == "strided":
            wide = self.f32(*shape[:-1], 2 * shape[-1]) * size
            return wide.bfloat16()[..., : shape[-1]]
        return (self.f32(*shape) * size * factor).bfloat16()

    def ids(self, below: int, *shape: int) -> Tensor:
        """Uniform int64 numbers in [0, below)."""
        return torch.randint(below, shape, generator=self.generator)

    def e4m3(self, *shape: int) -> Tensor:
        """Uniform finite E4M3 codes."""
        codes = torch.randint(0, 256, shape, generator=self.generator, dtype=torch.int32)
        codes[(codes & 0x7F) == 0x7F] = 0
        return codes.to(torch.uint8).view(torch.float8_e4m3fn)

    def e8m0(self, *shape: int, low: int = 117, high: int = 124) -> Tensor:
        """Uniform power-of-two scales 2^(low - 127) .. 2^(high - 128)."""
        codes = torch.randint(low, high, shape, generator=self.generator, dtype=torch.int32)
        return codes.to(torch.uint8).view(torch.float8_e8m0fnu)

    def e2m1_pairs(self, *shape: int) -> Tensor:
        """Uniform bytes, each two E2M1 codes."""
        return torch.randint(-128, 128, shape, generator=self.generator, dtype=torch.int8)
