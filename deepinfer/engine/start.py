"""The start: platform, plan, memory, weights, in the order of design section 4.

In: a Shape, a platform string, the plan's modes. Out: a plan alone, or a house ready to serve.
Does not know: where a checkpoint comes from, what a request is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from deepinfer.engine.blocks import Geometry
from deepinfer.engine.facts import model_facts
from deepinfer.engine.pools import make_caches, pool_sizes, with_snapshots
from deepinfer.engine.tray import Tray
from deepinfer.model.assemble import Assembler
from deepinfer.model.batch import Caches
from deepinfer.model.drafter import Drafter
from deepinfer.model.inventory import inventory
from deepinfer.model.memory import needed_bytes
from deepinfer.model.shape import Shape
from deepinfer.model.v41 import Model
from deepinfer.model.weights import Checkpoint
from deepinfer.ops.catalogue import CATALOGUE
from deepinfer.ops.table import Table
from deepinfer.plugin import Record, Want
from deepinfer.plugin.bind import bind
from deepinfer.plugin.declare import Declared, declare
from deepinfer.plugin.memory import Memory, fit
from deepinfer.plugin.offers import Offered, choose_graphs, choose_memory
from deepinfer.plugin.plan import Plan
from deepinfer.plugin.resolve import resolve
from deepinfer.plugin.stack import Platform, ground, load_platform
from deepinfer.plugin.types import Fact

BORDERS = (1, 16, 64, 256, 1024, 4096)
"""Last tokens of the core's own buckets; kernels' offers add more."""


@dataclass(frozen=True)
class Wish:
    """What the caller decides before anything is loaded.

    slots sequences run at a time and share room for `tokens` tokens, or `blocks` blocks; a step
    has at most `step_tokens` rows. snapshots: a tenth of the cache keeps windows of prefixes.
    `utilization` is the part of the memory that may be used. modes reach every kernel (accumulate,
    rounding, batch_invariant ...).
    """

    name: str
    platform: str
    slots: int
    tokens: int
    step_tokens: int
    modes: Mapping[str, Fact] = field(default_factory=dict)
    ops: Mapping[str, str] = field(default_factory=dict)
    allow_unverified: bool = False
    drafts: bool = False
    utilization: float = 1.0
    blocks: int | None = None
    snapshots: bool = False
    any_devices: bool = False


@dataclass(frozen=True)
class Planned:
    """Everything that is decided; no weight was read and no arena reserved."""

    shape: Shape
    geometry: Geometry
    platform: Platform
    declared: Declared
    plan: Plan
    memory: Memory
    graphs: Offered | None
    needs: Mapping[str, int]
    drafts: bool


@dataclass(frozen=True)
class House:
    """A start that is finished: the model can be called."""

    planned: Planned
    table: Table
    model: Model
    drafter: Drafter | None
    caches: Caches
    tray: Tray


def plan(shape: Shape, wish: Wish, devices: int = 1) -> Planned:
    """From the platform string to the printed plan; stops with every reason if there is a hole.

    One process computes on one device. On a device that computes nothing it may stand for as many
    as the model needs, if the wish says so.
    """
    geometry = Geometry.of(shape, wish.slots, wish.tokens)
    if wish.blocks is not None:
        geometry = replace(geometry, blocks=wish.blocks + 1)
    platform = load_platform(wish.platform)
    found = ground(platform, Want(count=devices))
    memory = choose_memory(platform, found.device).value
    graphs = choose_graphs(platform, found.device, memory)
    facts = model_facts(shape, wish.name, geometry, wish.drafts)
    declared = declare(platform, found, facts, CATALOGUE)
    chosen = resolve(
        declared,
        tokens=(1, wish.step_tokens),
        borders=BORDERS,
        ops=wish.ops,
        allow_unverified=wish.allow_unverified,
        modes=wish.modes,
    )
    records = cache_records(declared, chosen)
    if wish.snapshots:
        geometry = with_snapshots(shape, geometry, records, wish.drafts)
    sizes = pool_sizes(shape, geometry, records, wish.drafts)
    needs = {
        "weights": needed_bytes(shape, draft=wish.drafts),
        "kv": sum(size.nbytes for size in sizes.values()),
    }
    budget = memory.budget()
    kept_free = int(budget.total * (1 - wish.utilization))
    free = max(budget.free - kept_free, 0)
    computes = found.device.facts.get("computes", True)
    if wish.any_devices and devices == 1 and not computes and sum(needs.values()) > free:
        return plan(shape, wish, -(-sum(needs.values()) // max(free, 1)))
    lines = fit(replace(budget, free=free), needs)
    room = (geometry.blocks - 1) * geometry.block_tokens
    lines += (f"{'room':<10} {room} tokens in at most {geometry.slots} sequences",)
    chosen = chosen.with_memory(lines)
    return Planned(shape, geometry, platform, declared, chosen, memory, graphs, needs, wish.drafts)


def wanted_names(checkpoint: Checkpoint, drafts: bool) -> list[str]:
    """Tensors that a text model reads; the draft stages only when they are used."""
    parts = {"backbone", "engram"} | ({"draft"} if drafts else set())
    specs = inventory(checkpoint.shape)
    return [name for name in checkpoint.names if name in specs and specs[name].part in parts]


def build(
    planned: Planned,
    checkpoint: Checkpoint,
    compressed_ids: Sequence[int],
    advance: Callable[[int], None] | None = None,
) -> House:
    """Builds the kernels, packs the weights, reserves the arenas, seals the table.

    `advance` is told the bytes of every tensor as it is taken.
    """
    shape, device = planned.shape, planned.declared.device.torch_device
    table = bind(planned.plan, planned.declared, Table)
    planned = replace(planned, plan=planned.plan.with_became(table.became))
    assembler = Assembler(checkpoint, table, device, advance)
    weights = assembler.backbone()
    drafter = assembler.drafter() if planned.drafts else None
    records = cache_records(planned.declared, planned.plan)
    sizes = pool_sizes(shape, planned.geometry, records, planned.drafts)
    caches = make_caches(planned.memory, sizes)
    table.seal()
    planned.platform.seal()
    pad = compressed_ids[shape.engram_pad_token_id]
    model = Model(shape, weights, table, pad)
    tray = Tray(shape, planned.geometry, compressed_ids, device)
    return House(planned, table, model, drafter, caches, tray)


def cache_records(declared: Declared, plan: Plan) -> dict[str, Record]:
    """Record of a row of each cache (window, entry, open, index), in the layouts of the plan."""
    records: dict[str, Record] = {}
    for settled in plan.layouts:
        if settled.kind in ("kv", "index"):
            layout = declared.layout(settled.kind, settled.layout)
            if layout.records is not None:
                records |= layout.records(declared.model.dims)
    return records
