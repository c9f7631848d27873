"""Prefixes that are in the cache: a tree of full blocks by content, and which may be dropped.

In: token ids, a salt. Out: nodes with block numbers. Does not know: requests, windows, tensors.
Source: engine specification 3.2, 3.6.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy

from deepinfer.engine.blocks import Blocks

APPROXIMATE = b"approximate"
"""Marks keys of blocks that were written behind a bounded replay: no exact request finds them."""


@dataclass(eq=False, slots=True)
class Node:
    """A full block behind its parent; a root (block 0) stands for a salt."""

    key: bytes
    parent: Node | None
    ids: bytes
    block: int
    salt: bytes
    exact: bool = True
    children: int = 0
    snapshots: list[Any] = field(default_factory=list)


def pack(ids: Sequence[int]) -> bytes:
    """Ids as little-endian u32."""
    return numpy.asarray(ids, dtype="<u4").tobytes()


def key_after(parent: bytes, ids: bytes, exact: bool = True) -> bytes:
    """Key of a block behind another: 16 bytes."""
    return blake2b(parent + ids + (b"" if exact else APPROXIMATE), digest_size=16).digest()


class Prefix:
    """The tree. `dropped` is told about a node's snapshots before it goes."""

    def __init__(
        self, blocks: Blocks, block_tokens: int, dropped: Callable[[Node], None] = lambda node: None
    ) -> None:
        self._blocks, self._width, self._dropped = blocks, 4 * block_tokens, dropped
        self._nodes: dict[bytes, Node] = {}
        self._roots: dict[bytes, Node] = {}
        self._of_block: dict[int, Node] = {}
        self._idle: OrderedDict[Node, None] = OrderedDict()
        self._pinned: set[bytes] = set()

    def root(self, salt: bytes) -> Node:
        """Where the chains of a salt begin."""
        if salt not in self._roots:
            key = blake2b(salt, digest_size=16).digest()
            self._roots[salt] = Node(key, None, b"", 0, salt)
        return self._roots[salt]

    @property
    def idle(self) -> int:
        """Blocks that could be dropped."""
        return len(self._idle)

    def __len__(self) -> int:
        return len(self._nodes)

    def match(self, salt: bytes, packed: bytes, approximate: bool = False) -> list[Node]:
        """The longest chain of full blocks whose ids are those of `packed`, root first.

        approximate  also nodes behind a bounded replay; exact ones win
        """
        found = [self.root(salt)]
        for ids in self._pieces(packed):
            last = found[-1]
            node = self._nodes.get(key_after(last.key, ids)) if last.exact else None
            if node is None and approximate:
                node = self._nodes.get(key_after(last.key, ids, exact=False))
            if node is None or node.ids != ids:
                break
            found.append(node)
        return found

    def _pieces(self, packed: bytes) -> Iterator[bytes]:
        for begin in range(0, len(packed) - self._width + 1, self._width):
            yield packed[begin : begin + self._width]

    def pin(self, nodes: Sequence[Node]) -> None:
        """One reference to the block of each node; roots have none."""
        for node in nodes:
            if node.block:
                self.pin_block(node.block)

    def pin_block(self, block: int) -> None:
        """One more reference to a block, published or not."""
        self._blocks.pin(block)
        node = self._of_block.get(block)
        if node is not None:
            self._idle.pop(node, None)

    def release(self, nodes: Sequence[Node]) -> None:
        """Takes references back, children before parents, so that they are dropped first."""
        for node in reversed(nodes):
            if node.block:
                self.release_block(node.block)

    def release_block(self, block: int) -> None:
        """One reference less to a block, published or not."""
        if self._blocks.release(block):
            node = self._of_block.get(block)
            if node is not None and node.salt not in self._pinned:
                self._idle[node] = None

    def publish(self, parent: Node, ids: bytes, block: int, exact: bool) -> Node:
        """Makes a held block known. If its content is known already, the other node comes back:
        the caller goes on with that block, which it must `pin`, and gives its own back."""
        key = key_after(parent.key, ids, exact)
        known = self._nodes.get(key)
        if known is not None:
            return known
        node = Node(key, parent, ids, block, parent.salt, exact)
        self._blocks.publish(block)
        self._nodes[key] = node
        self._of_block[block] = node
        parent.children += 1
        return node

    def evict(self) -> bool:
        """Drops the least recently used leaf that nobody holds."""
        node = next((node for node in self._idle if not node.children), None)
        if node is None:
            return False
        self._dropped(node)
        del self._idle[node], self._nodes[node.key], self._of_block[node.block]
        assert node.parent is not None
        node.parent.children -= 1
        self._blocks.forget(node.block)
        return True

    def keep(self, salt: bytes) -> None:
        """Blocks of this salt are not dropped until `let_go`."""
        self._pinned.add(salt)
        for node in [node for node in self._idle if node.salt == salt]:
            del self._idle[node]

    def let_go(self, salt: bytes) -> None:
        """Undoes `keep`."""
        self._pinned.discard(salt)
        for node in self._nodes.values():
            if node.salt == salt and not self._blocks.is_held(node.block):
                self._idle.setdefault(node)
