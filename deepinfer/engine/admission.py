"""Admission: which cached prefix a request uses, and whether its blocks fit.

In: a waiting request. Out: what it holds while it runs (`Held`), or None: wait.
Does not know: steps, rows of others. Source: engine specification 2.3, 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from deepinfer.engine.cache import Cache
from deepinfer.engine.choice import Seat
from deepinfer.engine.prefix import Node, pack
from deepinfer.engine.request import Request
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.snapshots import Snapshot
from deepinfer.errors import RequestError
from deepinfer.model.cone import Cone, Starts

AHEAD = 256
"""Tokens of an answer that are reserved at admission."""
SLACK = 0.05
"""Part of the blocks that plans leave free for answers longer than that."""
EVERY = 8192
"""Tokens of a prompt between snapshots of the lower windows (engine 3.5)."""


class TooLong(RequestError):
    """A request needs more cache than there is in all."""


@dataclass(frozen=True)
class Hit:
    """A way to begin: `tokens` have cached entries, windows before `saved` come from a snapshot.

    nodes  the chain of the cached blocks, root first; a tail behind them is copied
    keep   where a snapshot of all layers is taken on the way
    """

    starts: Starts | None
    cost: int
    nodes: list[Node]
    tokens: int = 0
    saved: int = 0
    oldest: int = 0
    snapshot: Snapshot | None = None
    exact: bool = True
    keep: int = 0


class Copied(NamedTuple):
    """Numbers of two blocks."""

    source: int
    target: int


@dataclass(eq=False, slots=True)
class Held:
    """What a running request has.

    copied       the block that gets what lies behind its cached full blocks
    reserved     blocks that it may still take from what was counted for it
    taps         positions at which snapshots of its prompt are wanted, increasing
    """

    request: Request
    slot: int
    sequence: Sequence
    nodes: list[Node]
    hit: Hit
    reserved: int
    copied: Copied | None
    seat: Seat
    parking: bool = False
    is_plain: bool = False
    taps: list[tuple[int, bool]] = field(default_factory=list)


class Admission:
    """Rules of one engine. `prefix` and `replay` are settings of those names."""

    def __init__(
        self, cache: Cache, cone: Cone | None, layers: int, window: int, prefix: str, replay: str
    ) -> None:
        self.cache, self.cone, self.layers, self.window = cache, cone, layers, window
        self.prefix, self.replay = prefix, replay == "exact" and cone is not None
        self.lower = 0 if cone is None else cone.decoder
        self.reserved = 0

    def cold(self, tokens: int) -> int:
        """Row-layers of a prompt without any cached prefix."""
        starts = self._starts(tokens, 0, 0)
        return self.layers * tokens if starts is None else starts.cost(tokens)

    def check(self, request: Request) -> None:
        """Refuses what would not fit an empty cache, with the arithmetic."""
        geometry, have = self.cache.geometry, self.cache.blocks.count
        need = geometry.blocks_for(request.most)
        if need > have:
            raise TooLong(
                f"request {request.index}: {request.prompt_tokens} prompt tokens and up to "
                f"{request.most - request.prompt_tokens} more need {need} cache blocks of "
                f"{geometry.block_tokens} tokens, there are {have}; ask for fewer tokens "
                f"(max_tokens) or give the cache more blocks (kv_blocks)"
            )

    def admit(self, request: Request, alone: bool) -> Held | None:
        """Gives a request its slot and its cached blocks; `alone` if nobody else runs."""
        cache, geometry = self.cache, self.cache.geometry
        if not cache.slots.free:
            return None
        hit = self.choose(request)
        tokens = len(request.tokens)
        ahead = min(request.most - tokens, AHEAD)
        need = geometry.blocks_for(tokens) - hit.tokens // geometry.block_tokens
        need += geometry.blocks_for(ahead)
        cache.prefix.pin(hit.nodes)
        blocks = [node.block for node in hit.nodes[1:]]
        fits = alone or cache.room_for(self.reserved + need, SLACK)
        copied = self._own_tail(hit) if fits else None
        if not fits or (copied is None and hit.tokens > len(blocks) * geometry.block_tokens):
            cache.prefix.release(hit.nodes)
            return None
        if copied is not None:
            blocks.append(copied.target)
            need -= 1
        slot = cache.slots.take()
        assert slot is not None
        if tokens == request.prompt_tokens:
            request.tokens = list(request.tokens)  # samples of one prompt share it until now
        self.reserved += need
        sequence = Sequence(
            request.tokens,
            slot,
            blocks,
            computed=hit.starts.begin if hit.starts is not None else 0,
            starts=hit.starts,
            oldest=hit.oldest,
        )
        held = Held(
            request, slot, sequence, list(hit.nodes), hit, need, copied,
            Seat.of(request),
        )  # fmt: skip
        held.taps = self._taps(held)
        return held

    def _own_tail(self, hit: Hit) -> Copied | None:
        """A block of its own for the entries behind the last full block, if a snapshot has some."""
        snapshot = hit.snapshot
        if snapshot is None:
            return None
        self.cache.snapshots.touch(snapshot)
        if not snapshot.tail or hit.tokens > snapshot.at:
            return None
        block = self.cache.take()
        return None if block is None else Copied(snapshot.tail_block, block)

    def choose(self, request: Request) -> Hit:
        """The way with the fewest row-layers; of equal ones the one that moves fewer bytes."""
        tokens = len(request.tokens)
        root = self.cache.prefix.root(request.salt)
        ways = [self._way(tokens, [root])]
        if self.prefix == "off":
            return ways[0]
        fast = self.prefix == "fast"
        packed = pack(request.tokens[: tokens - 1])
        nodes = self.cache.prefix.match(request.salt, packed, fast)
        full = (len(nodes) - 1) * self.cache.geometry.block_tokens
        exact = nodes[-1].exact
        if full and self.cone is not None:
            ways.append(self._way(tokens, nodes))
        if full and fast:
            ways.append(self._bounded(tokens, nodes))
        for node in reversed(nodes):
            for snapshot in node.snapshots:
                way = self._with(snapshot, tokens, nodes, packed)
                if way is not None and (exact or fast):
                    ways.append(way)
        best = min(ways, key=lambda way: way.cost)
        return self._teaching(tokens, nodes, best) or best

    def _teaching(self, tokens: int, nodes: list[Node], best: Hit) -> Hit | None:
        """Where prompts part for the second time, windows of all layers are kept for the third.

        Without them a head shorter than the reach of a replay would be cached for nothing.
        """
        full = (len(nodes) - 1) * self.cache.geometry.block_tokens
        if not self.cache.geometry.whole or self.cone is None or best.saved or not best.exact:
            return None
        if not full or not nodes[-1].exact:
            return None
        gain = best.cost - self._way(tokens, nodes, full, full).cost
        ways = [
            self._way(tokens, nodes[:1], keep=full),
            self._way(tokens, nodes, keep=full),
        ]
        way = min(ways, key=lambda one: one.cost)
        return way if way.cost - best.cost < gain else None

    def _way(
        self,
        tokens: int,
        nodes: list[Node],
        hit: int | None = None,
        saved: int = 0,
        keep: int = 0,
    ) -> Hit:
        """Behind cached blocks without windows: exact replay; behind a root: from the start."""
        if hit is None:
            hit = (len(nodes) - 1) * self.cache.geometry.block_tokens
        starts = self._starts(tokens, hit, saved, keep or None)
        cost = self.layers * tokens if starts is None else starts.cost(tokens)
        oldest = max(saved - self.window + 1, 0) if saved else 0 if starts is None else starts.begin
        return Hit(starts, cost, nodes, hit, saved, oldest, exact=nodes[-1].exact, keep=keep)

    def _starts(
        self, tokens: int, hit: int, saved: int, keep: int | None = None
    ) -> Starts | None:
        if self.cone is not None:
            return self.cone.starts(tokens, hit, saved, self.replay, keep)
        if not saved:
            return None
        return Starts((saved,) * (self.layers + 1), (saved,) * self.layers, max(hit, saved))

    def _bounded(self, tokens: int, nodes: list[Node]) -> Hit:
        """Only one window is computed again in front of the cached blocks: not exact."""
        hit = (len(nodes) - 1) * self.cache.geometry.block_tokens
        begin = max(hit - self.window, 0)
        way = self._way(tokens, nodes, hit, begin)
        if begin == 0:
            return way
        return Hit(way.starts, way.cost, nodes, hit, begin, begin, exact=False)

    def _with(
        self, snapshot: Snapshot, tokens: int, nodes: list[Node], packed: bytes
    ) -> Hit | None:
        """From a snapshot on the chain, if it helps this request."""
        width = self.cache.geometry.block_tokens
        at, full = snapshot.at, (len(nodes) - 1) * width
        if at > tokens - 1:
            return None
        tail = packed[4 * (at - at % width) : 4 * at]
        if tail != snapshot.tail:
            return None
        if not snapshot.whole:
            bare = self._starts(tokens, full, 0)
            assert bare is not None and self.cone is not None
            if at > bare.keys[self.cone.decoder]:
                return None
        way = self._way(tokens, nodes, max(full, at), at)
        return Hit(way.starts, way.cost, nodes, way.tokens, at, way.oldest, snapshot, way.exact)

    def _taps(self, held: Held) -> list[tuple[int, bool]]:
        """Where snapshots are taken while the prompt runs: (position, whole), increasing."""
        request, hit, geometry = held.request, held.hit, self.cache.geometry
        tokens, width = len(request.tokens), geometry.block_tokens
        if self.prefix == "off" or self.cone is None or hit.starts is None or tokens < 2:
            return []
        wanted: set[tuple[int, bool]] = set()
        if geometry.halves:
            # the end of the cached blocks is where prompts part: whoever comes next begins there
            places = {self.cone.anchor(tokens), tokens - 1, hit.tokens}
            places |= set(range(EVERY, tokens, EVERY))
            wanted |= {(place // width * width, False) for place in places}
        if hit.keep:
            wanted.add((hit.keep, True))
        if geometry.whole and request.sample == 0 and request.params.n > 1 and not request.parks:
            wanted.add((tokens - 1, True))
        return sorted(tap for tap in wanted if self._can_tap(hit, *tap))

    def _can_tap(self, hit: Hit, at: int, whole: bool) -> bool:
        """Whether this run knows all window keys before `at`, and nobody else does."""
        assert hit.starts is not None and self.cone is not None
        if at <= hit.saved or at == 0 or (not hit.exact and at <= hit.tokens):
            return False
        restored = self.layers if hit.snapshot is None or hit.snapshot.whole else self.cone.decoder
        known = [
            hit.oldest if hit.saved and layer < restored and key == hit.saved else key
            for layer, key in enumerate(hit.starts.keys)
        ]
        first = max(known if whole else known[: self.cone.decoder])
        return max(at - self.window + 1, 0) >= first
