"""Snapshots of windows: what a prefix hit needs besides blocks, so that nothing is replayed.

In: places in the prefix tree. Out: snapshot numbers. Does not know: tensors, requests.
Source: engine specification 3.3, 3.5. A copy is made before anything that a later step does, so a
number can be handed out again at once.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from deepinfer.engine.prefix import Node, Prefix


@dataclass(eq=False, slots=True)
class Snapshot:
    """Windows before position `at` of all layers (whole), or of those below the decoder.

    node  the last full block before `at`; tail  ids behind it, which lie in block `tail_block`
    """

    number: int
    whole: bool
    at: int
    node: Node | None = None
    tail: bytes = b""
    tail_block: int = 0


class Snapshots:
    """Numbers 0 .. whole - 1 hold all layers, whole .. whole + halves - 1 the lower ones."""

    def __init__(self, prefix: Prefix, whole: int, halves: int) -> None:
        self._prefix = prefix
        self._free = {True: deque(range(whole)), False: deque(range(whole, whole + halves))}
        self._used: dict[bool, OrderedDict[Snapshot, None]] = {
            True: OrderedDict(), False: OrderedDict(),
        }  # fmt: skip
        self._taken: set[int] = set()

    def __len__(self) -> int:
        return len(self._used[True]) + len(self._used[False])

    def take(self, whole: bool) -> int | None:
        """A number to write to, of the least recently used snapshot if none is free."""
        if not self._free[whole] and not self.drop_oldest(whole):
            return None
        number = self._free[whole].popleft()
        self._taken.add(number)
        return number

    def give_back(self, number: int, whole: bool) -> None:
        """A number that was taken and not used."""
        self._taken.remove(number)
        self._free[whole].append(number)

    def keep(self, snapshot: Snapshot) -> bool:
        """Makes a taken snapshot known at its node; False if one is known there already."""
        assert snapshot.node is not None
        twin = self.at(snapshot.node, snapshot.whole, snapshot.at, snapshot.tail)
        if twin is not None:
            self.touch(twin)
            return False
        if snapshot.tail_block:
            self._prefix.pin_block(snapshot.tail_block)
        snapshot.node.snapshots.append(snapshot)
        self._taken.remove(snapshot.number)
        self._used[snapshot.whole][snapshot] = None
        return True

    @staticmethod
    def at(node: Node, whole: bool, at: int, tail: bytes = b"") -> Snapshot | None:
        """The snapshot of this kind at this place."""
        for one in node.snapshots:
            if (one.whole, one.at, one.tail) == (whole, at, tail):
                found: Snapshot = one
                return found
        return None

    def touch(self, snapshot: Snapshot) -> None:
        """Its turn to be dropped comes last."""
        self._used[snapshot.whole].move_to_end(snapshot)

    def drop(self, snapshot: Snapshot) -> None:
        """Its number is free again."""
        del self._used[snapshot.whole][snapshot]
        assert snapshot.node is not None
        snapshot.node.snapshots.remove(snapshot)
        self._free[snapshot.whole].append(snapshot.number)
        if snapshot.tail_block:
            self._prefix.release_block(snapshot.tail_block)

    def drop_of(self, node: Node) -> None:
        """A node goes, and its snapshots with it."""
        for one in list(node.snapshots):
            self.drop(one)

    def drop_oldest(self, whole: bool) -> bool:
        """The least recently used one of a kind; False if there is none."""
        if not self._used[whole]:
            return False
        self.drop(next(iter(self._used[whole])))
        return True

    def drop_tail(self) -> bool:
        """The least recently used one that holds a block; False if there is none."""
        for one in self._used[True]:
            if one.tail_block:
                self.drop(one)
                return True
        return False
