"""Store: hands out window slots and cache blocks, and takes them back.

In: how many tokens a sequence may reach. Out: a slot and block numbers.
Does not know: tensors, texts, who asks. Block 0 is never handed out: homeless rows point there.
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
    """Sizes of the caches: `block_tokens` tokens in a block, `ring` rows in a window slot."""

    block_tokens: int
    ring: int
    slots: int
    blocks: int
    open_rows: int = OPEN_ROWS

    @classmethod
    def of(cls, shape: Shape, slots: int, tokens: int) -> Geometry:
        """Room for `slots` sequences and `tokens` tokens (engine 3.1)."""
        block = max(16, shape.sliding_window)
        ring = -(-(shape.sliding_window + shape.dspark_block_size) // 8) * 8
        return cls(block, ring, slots, blocks=-(-tokens // block) + 1)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-tokens // self.block_tokens)


class Store:
    """Free lists of slots and blocks, first in first out: freed content survives longest."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self._slots = deque(range(geometry.slots))
        self._blocks = deque(range(1, geometry.blocks))
        self._taken_slots: set[int] = set()
        self._taken_blocks: set[int] = set()

    @property
    def free(self) -> tuple[int, int]:
        """Free slots and free blocks."""
        return len(self._slots), len(self._blocks)

    def check(self, tokens: int) -> None:
        """Refuses what would not fit an empty store, with the arithmetic."""
        need, have = self.geometry.blocks_for(tokens), self.geometry.blocks - 1
        if need > have:
            raise TooLong(
                f"{tokens} tokens need {need} cache blocks of {self.geometry.block_tokens}, there "
                f"are {have}; raise max_model_len or ask for fewer tokens"
            )

    def take(self, tokens: int) -> tuple[int, list[int]] | None:
        """A slot and blocks for `tokens` tokens, or None while they are in use."""
        need = self.geometry.blocks_for(tokens)
        if not self._slots or need > len(self._blocks):
            return None
        slot = self._slots.popleft()
        blocks = [self._blocks.popleft() for _ in range(need)]
        self._taken_slots.add(slot)
        self._taken_blocks.update(blocks)
        return slot, blocks

    def give_back(self, slot: int, blocks: list[int]) -> None:
        """Everything a sequence held."""
        if slot not in self._taken_slots or not self._taken_blocks.issuperset(blocks):
            raise BlockFault(f"slot {slot} or blocks {blocks} were given back twice")
        self._taken_slots.remove(slot)
        self._taken_blocks.difference_update(blocks)
        self._slots.append(slot)
        self._blocks.extend(blocks)
