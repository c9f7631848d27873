"""One step: an immutable record of what the device is asked to do, in order.

In: nothing (the scheduler fills it). Out: read by the line, which runs it, and by the loop, which
reads its results. Does not know: how it is run. Source: engine specification 2.1.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from deepinfer.engine.admission import Held
from deepinfer.engine.rows import Copy
from deepinfer.engine.sequence import Decodes, Entry
from deepinfer.engine.snapshots import Snapshot

Append = Callable[[int], None]


class Kind(Enum):
    """What a move copies."""

    SAVE = "windows of a slot into a snapshot"
    RESTORE = "a snapshot into the windows of a slot"
    BLOCK = "one block into another"


class Move(NamedTuple):
    """A copy between caches. SAVE, RESTORE: windows before position `at`, of all layers if `whole`,
    from slot to snapshot or back; BLOCK: block numbers."""

    kind: Kind
    source: int
    target: int
    at: int = 0
    whole: bool = True


class Tap(NamedTuple):
    """A snapshot of a running prompt; it is known to others when the step was read."""

    held: Held
    snapshot: Snapshot


class Chunk(NamedTuple):
    """Rows of a prompt; `is_last` if they end with its last token."""

    held: Held
    entry: Entry
    is_last: bool


class Step(NamedTuple):
    """Seats are taken and moves made, each list in order; then decodes and chunks run; then taps of
    all layers keep their open groups. Steps run one after the other, so what an earlier step reads
    may be handed out again while it is still under way.

    decoding  who decodes, in the order of `decodes`
    appends   `append` of their lists of tokens, if a token in the middle changes nothing else
    copies    where window keys of taps are found; they count entries with the decodes in front
    """

    number: int
    decoding: tuple[Held, ...]
    appends: tuple[Append, ...] | None
    decodes: Decodes
    chunks: tuple[Chunk, ...]
    seats: tuple[Held, ...] = ()
    moves: tuple[Move, ...] = ()
    taps: tuple[Tap, ...] = ()
    copies: tuple[Copy, ...] = ()

    @property
    def rows(self) -> int:
        """Rows that enter the first layer."""
        return len(self.decoding) + sum(chunk.entry.rows for chunk in self.chunks)

    @property
    def wanted(self) -> list[Held]:
        """Who gets a token, in the order of the logits."""
        return [*self.decoding, *(chunk.held for chunk in self.chunks if chunk.is_last)]
