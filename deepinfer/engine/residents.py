"""Residents: requests that hold a slot and blocks, from admission until their last step was read.

In: admitted requests, how far steps were read. Out: block tables, published prefixes, free blocks.
Does not know: who runs next. Source: engine specification 2.4 - 2.6, 3.3 - 3.5.
"""

from __future__ import annotations

import numpy

from deepinfer.engine.admission import Admission, Held
from deepinfer.engine.cache import Cache
from deepinfer.engine.prefix import pack
from deepinfer.engine.request import Request, State
from deepinfer.engine.snapshots import Snapshot
from deepinfer.engine.step import Kind, Move, Step, Tap

STOPS = 16
"""Ids that may end a request whose tokens are handed out with those of others at once."""


class Residents:
    """By slot: `upper` rows that are computed or under way, `done` rows of steps that were read,
    `left` tokens that may be asked for, `flying` steps that are not read, `last` step, `tables` of
    blocks; `most` tokens, `stops`, and whether the request has `ended`.

    Who decodes stands in `decoding`, in the order of arrival.
    """

    def __init__(self, cache: Cache, admission: Admission, limit: int) -> None:
        slots, self.width = cache.geometry.slots, cache.geometry.block_tokens
        self.cache, self.admission = cache, admission
        self.upper = numpy.zeros(slots, dtype=numpy.int64)
        self.done = numpy.zeros(slots, dtype=numpy.int64)
        self.left = numpy.zeros(slots, dtype=numpy.int64)
        self.most = numpy.zeros(slots, dtype=numpy.int64)
        self.ended = numpy.zeros(slots, dtype=numpy.bool_)
        self.stops = numpy.full((slots, STOPS), -2, dtype=numpy.int64)
        self.flying = numpy.zeros(slots, dtype=numpy.int64)
        self.last = numpy.zeros(slots, dtype=numpy.int64)
        self.tables = numpy.zeros((slots, -(-limit // self.width) + 1), dtype=numpy.int32)
        self.of: dict[Request, Held] = {}
        self.prefilling: dict[Held, None] = {}
        self.decoding: dict[Held, None] = {}
        self.leaving: dict[Held, None] = {}
        self.moves: list[Move] = []
        self.changed = False

    def __len__(self) -> int:
        return len(self.of)

    def join(self, held: Held) -> None:
        """A request that was admitted."""
        request, slot = held.request, held.slot
        self.of[request] = held
        self.prefilling[held] = None
        request.state = State.PREFILL
        blocks = held.sequence.blocks
        self.tables[slot, : len(blocks)] = blocks
        self.upper[slot] = self.done[slot] = held.sequence.computed
        self.left[slot], self.most[slot] = request.most - len(request.tokens), request.most
        self.ended[slot], self.stops[slot] = False, -2
        if len(request.stops) <= STOPS:
            self.stops[slot, : len(request.stops)] = list(request.stops)
            held.is_plain = request.is_plain
        snapshot = held.hit.snapshot
        if snapshot is not None:
            move = Move(Kind.RESTORE, snapshot.number, slot, snapshot.at, snapshot.whole)
            self.moves.append(move)
        if held.copied is not None:
            self.moves.append(Move(Kind.BLOCK, *held.copied))

    def grow(self, held: Held, tokens: int) -> bool:
        """Makes the block table cover this many tokens; False if a block is missing."""
        sequence = held.sequence
        while len(sequence.blocks) * self.width < tokens:
            block = self.cache.take()
            if block is None:
                return False
            self.tables[sequence.slot, len(sequence.blocks)] = block
            sequence.blocks.append(block)
            if held.reserved:
                held.reserved -= 1
                self.admission.reserved -= 1
        return True

    def to_decode(self, held: Held) -> None:
        """Its last prompt row is under way; it goes on token by token, if it may."""
        del self.prefilling[held]
        held.request.state = State.DECODE
        if self.left[held.sequence.slot]:
            self.decoding[held] = None
            self.changed = True

    def commit(self, held: Held, tokens: int) -> None:
        """Rows of this many tokens are computed and read: full blocks become known."""
        if self.admission.prefix == "off" or held.request.is_finished:
            return
        sequence, nodes = held.sequence, held.nodes
        for number in range(len(nodes) - 1, tokens // self.width):
            ids = pack(sequence.tokens[number * self.width : (number + 1) * self.width])
            block = sequence.blocks[number]
            exact = held.hit.exact and nodes[-1].exact
            node = self.cache.prefix.publish(nodes[-1], ids, block, exact)
            if node.block != block:  # somebody else was first: one copy is enough
                self.cache.prefix.pin([node])
                self.cache.prefix.release_block(block)
                sequence.blocks[number] = node.block
                self.tables[sequence.slot, number] = node.block
            nodes.append(node)

    def plain(self, step: Step, ids: list[int]) -> tuple[list[bool], list[int]]:
        """Which decodes got a token in the middle of their answer: [decodes], and the places of
        those that did not."""
        slots = step.decodes.slots
        tokens = numpy.array(ids[: len(slots)], dtype=numpy.int64)
        special = (self.stops[slots] == tokens[:, None]).any(axis=1)
        special |= step.decodes.positions + 2 >= self.most[slots]
        special |= self.ended[slots] | (tokens < 0)
        return (~special).tolist(), numpy.flatnonzero(special).tolist()

    def keep(self, tap: Tap) -> None:
        """A snapshot that a read step wrote."""
        held, snapshot = tap
        if held.request.is_finished or not self._place(held, snapshot):
            self.cache.snapshots.give_back(snapshot.number, snapshot.whole)

    def _place(self, held: Held, snapshot: Snapshot) -> bool:
        """Binds a snapshot to its node; False if the node is not there."""
        full = snapshot.at // self.width
        if len(held.nodes) <= full:
            return False
        sequence = held.sequence
        snapshot.node = held.nodes[full]
        snapshot.tail = pack(sequence.tokens[full * self.width : snapshot.at])
        snapshot.tail_block = sequence.blocks[full] if snapshot.tail else 0
        return self.cache.snapshots.keep(snapshot)

    def leave(self, held: Held, parking: bool = False) -> None:
        """No further step names it; `settle` frees what it holds when the last one was read."""
        held.parking = parking
        self.ended[held.slot] = held.request.is_finished
        self.prefilling.pop(held, None)
        if self.decoding.pop(held, held) is None:
            self.changed = True
        self.leaving[held] = None

    def settle(self) -> list[Request]:
        """Frees those who leave and have no step under way; returns the parked ones."""
        parked = []
        for held in [held for held in self.leaving if not self.flying[held.slot]]:
            request = held.request
            if held.parking and not request.is_finished:
                parked.append(request)
            continues = request.continues and request.finish_reason in ("stop", "length")
            if request.state is State.DECODE and (continues or not request.is_finished):
                self._save(held)
            self._free(held)
            request.state = State.FINISHED if request.is_finished else State.PARKED
        return parked

    def _save(self, held: Held) -> None:
        """A snapshot of all layers where the request stands."""
        if self.admission.prefix == "off":
            return
        at = len(held.request.tokens) - 1  # the last token was never computed, or in vain
        number = self.cache.snapshots.take(whole=True)
        if number is None:
            return
        snapshot = Snapshot(number, True, at)
        if self._place(held, snapshot):
            self.moves.append(Move(Kind.SAVE, held.slot, number, at))
        else:
            self.cache.snapshots.give_back(number, whole=True)

    def _free(self, held: Held) -> None:
        sequence = held.sequence
        for block in reversed(sequence.blocks[len(held.nodes) - 1 :]):
            self.cache.prefix.release_block(block)
        self.cache.prefix.release(held.nodes)
        self.cache.slots.give_back(sequence.slot)
        self.admission.reserved -= held.reserved
        del self.leaving[held], self.of[held.request]
