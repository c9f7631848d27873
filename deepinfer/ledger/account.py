"""The memory of one rank, byte for byte, before anything is loaded (engine specification 8).

In: a Shape, bytes of cache records, options. Out: a frozen Ledger, and advice if it is short.
Does not know: platforms, settings, torch; who prints or refuses it (table.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from deepinfer.ledger.parts import Counts, Options, Row, Units
from deepinfer.ledger.weights import engram_rows, weight_rows
from deepinfer.model.shape import Shape

SCORE_BYTES = 1 << 28
"""Index scores are tiled to this size (engine specification 8)."""
WIRE_ALIGNMENT = 32
"""A row on the wire is padded to this: 5,316 bytes become 5,344 (engine 7.2, 8)."""
LENGTHS = (4_096, 32_768, 131_072, 524_288, 1_048_576)
"""Request lengths, in tokens, for which the ledger counts requests."""
MOST_RANKS = 64
"""How far `advice` looks for a number of ranks that fits."""


@dataclass(frozen=True)
class Ledger:
    """Every byte of one rank. `usable` = utilization * total - others, in bytes."""

    shape: Shape
    units: Units
    options: Options
    rows: tuple[Row, ...]
    counts: Counts
    usable: int
    reserved: bool = False

    def part(self, *names: str) -> int:
        """Device bytes of the rows of these parts."""
        return sum(r.bytes for r in self.rows if r.part in names and r.place == "device")

    @property
    def cache_room(self) -> int:
        """C of section 8: what the caches may take."""
        return self.usable - self.device + self.part("cache")

    @property
    def device(self) -> int:
        """All planned bytes of the device."""
        return sum(row.bytes for row in self.rows if row.place == "device")

    @property
    def host(self) -> int:
        """Bytes in host memory, one copy per machine."""
        return sum(row.bytes for row in self.rows if row.place == "host")

    @property
    def remainder(self) -> int:
        """Usable bytes that nobody plans; negative: so much is short."""
        return self.usable - self.device

    @property
    def blocks_wanted(self) -> int:
        """Blocks of the requests of full length that must fit, and block 0, handed to nobody.

        An engine that reserves its caches has said itself how many it wants.
        """
        if self.reserved:
            return self.counts.blocks
        tokens = self.options.full_requests * self.length
        return -(-tokens // self.units.block_tokens) + 1

    @property
    def length(self) -> int:
        """The longest request that must fit, in tokens."""
        return self.options.max_model_len or self.shape.max_position_embeddings

    @property
    def short(self) -> int:
        """Bytes that are missing for requests of full length; 0 if they fit."""
        rest = self.remainder + max(self.counts.blocks, 0) * self.units.block
        missing = max(self.blocks_wanted * self.units.block - rest, 0)
        return max(missing, -self.remainder, 0)

    def requests(self) -> tuple[tuple[int, int], ...]:
        """(tokens, requests of that length that fit at once): the floor over blocks and slots."""
        most = self.shape.max_position_embeddings
        lengths = [length for length in LENGTHS if length <= most]
        lengths += [most] if most < LENGTHS[-1] and most not in lengths else []
        free = max(self.counts.blocks - 1, 0)
        return tuple(
            (n, min(self.counts.slots, free // -(-n // self.units.block_tokens))) for n in lengths
        )


def make(
    shape: Shape,
    units: Units,
    options: Options,
    counts: Counts | None = None,
    allocated: int | None = None,
) -> Ledger:
    """The ledger of one rank. Without `counts` the caches fill what is left (engine 3.6, 8).

    `allocated` is the size of the arena of an engine that reserves exactly `counts`; what it
    holds beyond units * counts is the alignment of its arrays.
    """
    usable = math.floor(Fraction(str(options.utilization)) * options.total) - options.others
    fixed = (
        *_weights(shape, options),
        *_workspace(shape, options),
        *_graphs(options),
        *_exchange(shape, options),
    )
    room = usable - sum(row.bytes for row in fixed if row.place == "device")
    reserved = counts is not None
    if counts is None:
        budget = _snapshot_budget(room, options)
        counts = _filled(units, options, room - budget)
        snapshots = _within(units, options, budget)
    else:
        snapshots = _reserved(units, options, counts)
    caches = (*_caches(units, options, counts), *snapshots)
    if allocated is not None:
        gap = allocated - sum(row.bytes for row in caches)
        caches += (Row("cache", "alignment of arrays", gap, note="every array begins aligned"),)
    return Ledger(shape, units, options, fixed[:-3] + caches + fixed[-3:], counts, usable, reserved)


def slots_of(options: Options) -> int:
    """Window slots: 1.2 for each running request, at least two beside them (engine 3.6)."""
    wide = math.floor(Fraction(str(options.window_slots)) * options.max_num_seqs)
    return max(wide, options.max_num_seqs + 2)


def advice(ledger: Ledger) -> tuple[str, ...]:
    """What would make room, each tried with the same formulas; the smallest change first."""
    shape, units, options = ledger.shape, ledger.units, ledger.options
    found: list[str] = []
    tokens = (ledger.counts.blocks - 1) * units.block_tokens // options.full_requests
    if ledger.remainder >= 0 and tokens > 0:
        found.append(f"max_model_len = {tokens} fits, {ledger.length} does not")
    if options.drafts and _fits(shape, units, replace(options, drafts=False)):
        found.append("without the draft stages it fits (drafts = 0)")
    if options.engram == "device" and _fits(shape, units, replace(options, engram="host")):
        found.append("with the Engram tables in host memory it fits (engram = host)")
    fewer = replace(options, max_num_seqs=max(options.max_num_seqs // 2, 1))
    if _fits(shape, units, fewer):
        found.append(f"max_num_seqs = {fewer.max_num_seqs} fits")
    ranks, several = options.ranks + 1, replace(options, full_requests=1)
    while ranks <= MOST_RANKS and not _fits(shape, units, replace(several, ranks=ranks)):
        ranks += 1
    if ranks <= MOST_RANKS:
        found.append(f"{ranks} ranks of this size fit (--ranks {ranks})")
    if options.utilization > 0:
        found.append(f"or a device with about {_least(ledger) / 1e9:.1f} GB")
    return tuple(found)


def _least(ledger: Ledger) -> int:
    """Bytes of a device on which everything fits, rounded up to 0.1 GB.

    Of room that is added, snapshots take their share too.
    """
    units, options = ledger.units, ledger.options
    fixed = ledger.device - ledger.part("cache")
    room = slots_of(options) * units.slot(options.drafts) + ledger.blocks_wanted * units.block
    if "snapshots" not in options.unused:
        room = math.ceil(room / (1 - Fraction(str(options.snapshot_share))))
    usable = fixed + room + options.others
    return -(-math.ceil(usable / Fraction(str(options.utilization))) // 10**8) * 10**8


def _fits(shape: Shape, units: Units, options: Options) -> bool:
    return not make(shape, units, options).short


def _weights(shape: Shape, options: Options) -> tuple[Row, ...]:
    """W(E) and the Engram tables."""
    return (*weight_rows(shape, options), *engram_rows(shape, options))


def _zero(part: str, name: str, why: str) -> Row:
    return Row(part, name, 0, note=why)


def _snapshot_budget(room: int, options: Options) -> int:
    if "snapshots" in options.unused:
        return 0
    return max(math.floor(Fraction(str(options.snapshot_share)) * room), 0)


def _filled(units: Units, options: Options, room: int) -> Counts:
    """blocks = floor((C - slots * slot_bytes - snapshots) / block_bytes)."""
    slots = slots_of(options)
    return Counts(slots, max((room - slots * units.slot(options.drafts)) // units.block, 0))


def _caches(units: Units, options: Options, counts: Counts) -> tuple[Row, ...]:
    """Pools by kind (engine 3.1), without snapshots."""
    slots, blocks = counts.slots, counts.blocks
    draft = (
        Row.of("cache", "draft windows", "slot", units.draft, slots)
        if options.drafts
        else _zero("cache", "draft windows", "the draft stages do not run")
    )
    return (
        Row.of("cache", "window rings", "slot", units.window, slots),
        draft,
        Row.of("cache", "open groups", "slot", units.open, slots),
        Row.of("cache", "compressed entries", "block", units.entries, blocks),
        Row.of("cache", "index keys", "block", units.keys, blocks),
    )


def _within(units: Units, options: Options, budget: int) -> tuple[Row, ...]:
    """A budget, and how many snapshots of either kind it would hold alone."""
    never = options.unused.get("snapshots", "" if budget else "no room is left for any")
    within = "" if never else "at most, within this budget"
    e, f = units.snapshot_e, units.snapshot(options.drafts)
    return (
        Row("cache", "snapshots", budget, note=never or "budget shared by E and F"),
        Row("cache", "  E alone", 0, "snapshot", e, budget // e if e else 0, note=within or never),
        Row("cache", "  F alone", 0, "snapshot", f, budget // f if f else 0, note=within or never),
    )


def _reserved(units: Units, options: Options, counts: Counts) -> tuple[Row, ...]:
    """Snapshots of each kind in pools of their own."""
    f = units.whole + (units.whole_draft if options.drafts else 0)
    never = options.unused.get("snapshots", "")
    return (
        Row.of("cache", "snapshots E", "snapshot", units.snapshot_e, counts.halves, never),
        Row.of("cache", "snapshots F", "snapshot", f, counts.whole, never),
    )


def _workspace(shape: Shape, options: Options) -> tuple[Row, ...]:
    """A(T), in bytes: streams and attention, rows of experts, index scores, logits."""
    if "workspace" in options.unused:
        return (_zero("workspace", "A(T)", options.unused["workspace"]),)
    rows, width = options.step_tokens, shape.hidden_size
    stream, queries = shape.hc_mult * width * 2, shape.num_attention_heads * shape.head_dim * 2
    latent = shape.o_groups * shape.o_lora_rank * 2
    token = 2 * stream + 2 * queries + latent + width * 2
    quantized = width + -(-width // 32)
    pair = quantized + 2 * shape.moe_intermediate_size * 2 + width * 2
    skew = Fraction(str(options.skew)) if options.ranks > 1 else Fraction(1)
    pairs = math.ceil(shape.num_experts_per_tok * rows * skew)
    scores = min(SCORE_BYTES, rows * shape.max_position_embeddings * 4)
    logits = logits_rows(shape, options)
    imbalance = f"imbalance {options.skew}" if options.ranks > 1 else "one rank has all experts"
    return (
        Row.of("workspace", "streams, attention", "row", token, rows),
        Row.of("workspace", "expert rows", "pair", pair, pairs, imbalance),
        Row("workspace", "index scores", scores, note="tiled"),
        Row.of("workspace", "logits", "row", shape.vocab_size * 4, logits),
    )


def logits_rows(shape: Shape, options: Options) -> int:
    """Rows of the largest decode step: with drafts 1 + g for each running request."""
    return options.max_num_seqs * (1 + (shape.dspark_block_size if options.drafts else 0))


def _graphs(options: Options) -> tuple[Row, ...]:
    """G, in bytes."""
    if "graphs" in options.unused:
        return (_zero("graphs", "graphs", options.unused["graphs"]),)
    return (Row("graphs", "graphs", options.graphs, note="planned, measured after capture"),)


def _exchange(shape: Shape, options: Options) -> tuple[Row, ...]:
    """X, in bytes: dispatch and combine of captured steps (twice) and of a mixed step."""
    why = options.unused.get("exchange", "one rank exchanges nothing")
    if options.ranks == 1 or "exchange" in options.unused:
        return (
            _zero("exchange", "captured steps", why),
            _zero("exchange", "mixed steps", why),
        )
    width, hits = shape.hidden_size, shape.num_experts_per_tok
    wire = -(-(width + -(-width // 32) + 6 * hits) // WIRE_ALIGNMENT) * WIRE_ALIGNMENT
    row = options.ranks * wire + hits * width * 2
    return (
        Row.of("exchange", "captured steps", "row", row, 2 * logits_rows(shape, options)),
        Row.of("exchange", "mixed steps", "row", row, options.step_tokens),
    )
