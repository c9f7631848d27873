"""One sequence in the cache: its tokens, and how far they are computed.

In: prompt ids, then sampled ids. Out: what the tray needs to place its rows.
Does not know: sampling, text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from deepinfer.model.cone import Starts


@dataclass
class Sequence:
    """`tokens` are prompt and output; `computed` of them are in the caches; `dead` are positions
    inside image spans, which the n-gram memory neither reads nor serves (backbone 3.9); `starts`
    says which rows of the prompt take part in which layer (None: all in all)."""

    tokens: list[int]
    slot: int
    blocks: list[int]
    computed: int = 0
    dead: list[int] = field(default_factory=list)
    starts: Starts | None = None

    @property
    def waiting(self) -> int:
        """Tokens that are known and not computed."""
        return len(self.tokens) - self.computed


@dataclass(frozen=True)
class Entry:
    """Part of a step: `rows` tokens of a sequence from `first`; logits of the last `wanted`."""

    sequence: Sequence
    first: int
    rows: int
    wanted: int
