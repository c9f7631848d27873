"""The cache of one rank: blocks, slots, prefixes and snapshots as one budget.

In: a Geometry. Out: blocks, of which dropped prefixes give what free ones lack.
Does not know: requests, tensors, steps.
"""

from __future__ import annotations

from deepinfer.engine.blocks import Blocks, Geometry, Slots
from deepinfer.engine.prefix import Node, Prefix
from deepinfer.engine.snapshots import Snapshots


class Cache:
    """Everything that requests take and give back."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.blocks, self.slots = Blocks(geometry.blocks), Slots(geometry.slots)
        self.prefix = Prefix(self.blocks, geometry.block_tokens, self._dropped)
        self.snapshots = Snapshots(self.prefix, geometry.whole, geometry.halves)
        self.evicted = 0

    def _dropped(self, node: Node) -> None:
        self.snapshots.drop_of(node)

    def take(self) -> int | None:
        """A block: a free one, else the least recently used of the kept ones, else None."""
        while True:
            block = self.blocks.take()
            if block is not None:
                return block
            if self.prefix.evict():
                self.evicted += 1
            elif not self.snapshots.drop_tail():
                return None

    def room_for(self, blocks: int, slack: float) -> bool:
        """Whether this many blocks more may be held when a part of `slack` stays out of plans."""
        return self.blocks.held + blocks <= (1 - slack) * self.blocks.count

    def clear(self) -> None:
        """Drops every prefix that nobody holds, and all snapshots."""
        while self.snapshots.drop_oldest(True) or self.snapshots.drop_oldest(False):
            pass
        while self.prefix.evict():
            pass
