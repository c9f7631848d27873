"""What the reference rounds, and in which width it adds.

In: two words of the plan's modes. Out: the rounding functions that every reference operator uses.
Does not know: operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Numerics:
    """The ledger of backbone 5.1 as a value.

    rounding      True: BF16 storage, FP32 results and all quantizers as the release has them.
                  False: nothing is rounded and nothing quantized; everything stays `wide`
    wide          torch.float32, or torch.float64 to make sums independent of their order
    release       selection as the release's code makes it: BF16 index scores where it rounds, and
                  ties left to the library; for comparisons with its results (backbone 3.7, ties)
    """

    rounding: bool = True
    wide: torch.dtype = torch.float32
    release: bool = False

    @classmethod
    def of(cls, modes: Mapping[str, Any]) -> Numerics:
        """From a plan's modes `accumulate`, `rounding`, `selection`."""
        return cls(
            rounding=modes.get("rounding", "official") == "official",
            wide=torch.float64 if modes.get("accumulate") == "float64" else torch.float32,
            release=modes.get("selection") == "release",
        )

    def up(self, x: Tensor) -> Tensor:
        """Widens for arithmetic."""
        return x.to(self.wide)

    def bf(self, x: Tensor) -> Tensor:
        """Rounds to BF16 where the specification stores BF16."""
        return x.to(torch.bfloat16) if self.rounding else x.to(self.wide)

    def f32(self, x: Tensor) -> Tensor:
        """Rounds to FP32 where the specification has an FP32 result."""
        return x.to(torch.float32) if self.rounding else x.to(self.wide)


OFFICIAL = Numerics()
