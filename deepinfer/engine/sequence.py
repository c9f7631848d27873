"""One sequence in the cache: its tokens, and how far they are computed.

In: prompt ids, then sampled ids. Out: what the tray needs to place its rows.
Does not know: sampling, text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from deepinfer.model.cone import Starts

Ints = NDArray[numpy.int64]


@dataclass
class Sequence:
    """`tokens` are prompt and output; `computed` of them are in the caches or on the way there.

    dead    positions inside image spans, which the n-gram memory neither reads nor serves
            (backbone 3.9)
    starts  which rows of the prompt take part in which layer (None: all in all)
    oldest  first position whose window keys the ring holds, if a prefix was not computed here
    """

    tokens: list[int]
    slot: int
    blocks: list[int]
    computed: int = 0
    dead: list[int] = field(default_factory=list)
    starts: Starts | None = None
    oldest: int = 0

    @property
    def waiting(self) -> int:
        """Tokens that are known and not computed."""
        return len(self.tokens) - self.computed


class Entry(NamedTuple):
    """Part of a step: `rows` tokens of a sequence from `first`; logits of the last `wanted`."""

    sequence: Sequence
    first: int
    rows: int
    wanted: int


class Decodes(NamedTuple):
    """Sequences that go on by one token, which the step before chose and the device knows.

    slots, positions [n] int64; table [n, blocks] int32 block numbers
    """

    slots: Ints
    positions: Ints
    table: NDArray[numpy.int32]
