"""Cache blocks and window slots: who holds them, and which are free.

In: a Geometry. Out: numbers of blocks and slots. Does not know: tensors, tokens, who asks.
Block 0 is never handed out: rows without a home point there.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from deepinfer.errors import DeepInferError, RequestError
from deepinfer.model.shape import Shape

OPEN_ROWS = 8  # raw rows kept per sequence for groups that may reopen (backbone 4.2 item 5)


class TooLong(RequestError):
    """A request needs more cache than there is in all."""


class BlockFault(DeepInferError):
    """A block or slot was given back twice; a fault of the engine."""


@dataclass(frozen=True)
class Geometry:
    """Sizes of the caches: `block_tokens` tokens in a block, `ring` rows in a window slot.

    whole, halves  snapshots of the windows of all layers, and of those below the decoder
    """

    block_tokens: int
    ring: int
    slots: int
    blocks: int
    open_rows: int = OPEN_ROWS
    whole: int = 0
    halves: int = 0

    @classmethod
    def of(cls, shape: Shape, slots: int, tokens: int) -> Geometry:
        """Room for `slots` sequences and `tokens` tokens (engine 3.1)."""
        block = max(16, shape.sliding_window)
        ring = -(-(shape.sliding_window + shape.dspark_block_size) // 8) * 8
        return cls(block, ring, slots, blocks=-(-tokens // block) + 1)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-tokens // self.block_tokens)


class Blocks:
    """Blocks 1 .. count - 1 with reference counts; block 0 belongs to nobody.

    A block is free, held (referenced), or kept: nobody refers to it, but a prefix is written in it.
    The free list is first in, first out: freed content survives longest.
    """

    def __init__(self, count: int) -> None:
        self._free = deque(range(1, count))
        self._references = [0] * count
        self._published = [False] * count
        self.held = 0

    @property
    def count(self) -> int:
        """Blocks that may be handed out in all."""
        return len(self._references) - 1

    @property
    def free(self) -> int:
        """Blocks in the free list."""
        return len(self._free)

    def take(self) -> int | None:
        """A free block with one reference, or None."""
        if not self._free:
            return None
        block = self._free.popleft()
        self._references[block] = 1
        self.held += 1
        return block

    def pin(self, block: int) -> None:
        """One more reference to a block that is held or kept."""
        if not self._references[block]:
            if not self._published[block]:
                raise BlockFault(f"block {block} is free and cannot be pinned")
            self.held += 1
        self._references[block] += 1

    def release(self, block: int) -> bool:
        """One reference less; True if it was the last."""
        if not self._references[block]:
            raise BlockFault(f"block {block} was given back twice")
        self._references[block] -= 1
        if self._references[block]:
            return False
        self.held -= 1
        if not self._published[block]:
            self._free.append(block)
        return True

    def publish(self, block: int) -> None:
        """From now on the block is kept when its last reference goes."""
        if not self._references[block] or self._published[block]:
            raise BlockFault(f"block {block} is free or published already")
        self._published[block] = True

    def forget(self, block: int) -> None:
        """Undoes `publish`; a block that nobody refers to becomes free."""
        if not self._published[block]:
            raise BlockFault(f"block {block} is not published")
        self._published[block] = False
        if not self._references[block]:
            self._free.append(block)

    def is_held(self, block: int) -> bool:
        """Whether anybody refers to the block."""
        return self._references[block] > 0


class Slots:
    """Window slots, first in, first out."""

    def __init__(self, count: int) -> None:
        self._free = deque(range(count))
        self._taken: set[int] = set()

    @property
    def free(self) -> int:
        """Slots that nobody has."""
        return len(self._free)

    def take(self) -> int | None:
        """A slot, or None."""
        if not self._free:
            return None
        slot = self._free.popleft()
        self._taken.add(slot)
        return slot

    def give_back(self, slot: int) -> None:
        """The slot of a sequence that ended."""
        if slot not in self._taken:
            raise BlockFault(f"slot {slot} was given back twice")
        self._taken.remove(slot)
        self._free.append(slot)
