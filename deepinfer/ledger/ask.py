"""The ledger of a model on a platform: settings and the plan's layouts become its numbers.

In: a model's name, Settings, ranks, perhaps the bytes of a device. Out: a Ledger and its title.
Does not know: formulas (account.py); no weight is read, nothing is reserved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from deepinfer.engine.blocks import Geometry
from deepinfer.engine.facts import model_facts
from deepinfer.errors import MemoryShort, UsageError
from deepinfer.ledger.account import Ledger, make
from deepinfer.ledger.parts import Counts, Options, Units
from deepinfer.model.locate import EMBEDDED, find_model
from deepinfer.model.shape import Shape
from deepinfer.ops.catalogue import CATALOGUE
from deepinfer.plugin import Want
from deepinfer.plugin.declare import Declared, declare
from deepinfer.plugin.memory import Budget
from deepinfer.plugin.offers import choose_graphs, choose_memory
from deepinfer.plugin.plan import Plan
from deepinfer.plugin.resolve import resolve
from deepinfer.plugin.stack import REFERENCE, ground, load_platform
from deepinfer.settings import Settings

SPARE_SLOTS = 2
"""Spare expert slots per layer and rank where experts move (engine 7.4)."""
WIDE = {"float32": 4, "float64": 8}
CACHE_KINDS = ("kv", "index")


@dataclass(frozen=True)
class _Found:
    """What the platform says, before anything is reserved."""

    declared: Declared
    plan: Plan
    budget: Budget
    graphs: bool


def of_model(
    model: str, settings: Settings, ranks: int = 1, memory_bytes: int | None = None
) -> tuple[Ledger, str]:
    """One rank of `ranks`. One rank on its own device: the caches that the engine reserves;
    otherwise, and where those do not fit, caches that fill what is left (engine 3.6).
    What a start refuses is never said to fit: then `MemoryShort` has the start's own words.
    """
    if ranks < 1 or (memory_bytes is not None and memory_bytes < 1):
        raise UsageError("--ranks and --memory-bytes must be 1 or more")
    folder = find_model(model, hf_model_dir=settings.hf_model_dir, revision=settings.revision)
    shape = Shape.load(folder)
    name = model if model == EMBEDDED else folder.name
    refusal: MemoryShort | None = None
    if ranks == 1 and memory_bytes is None:
        try:
            return _reserved(model, name, settings)
        except MemoryShort as error:
            refusal = error  # the table below says what is short, and what would fit
    drafts = settings.drafts > 0
    geometry = Geometry.of(shape, settings.max_num_seqs, shape.max_position_embeddings)
    found = _ask(shape, name, settings, geometry, drafts)
    budget = found.budget if memory_bytes is None else Budget(memory_bytes, memory_bytes)
    length = settings.max_model_len or shape.max_position_embeddings
    options = options_of(
        settings,
        found.declared,
        found.plan,
        budget,
        ranks=ranks,
        length=length,
        graphs=found.graphs,
        start=refusal is not None and settings.max_model_len is not None,
    )
    units = units_of(shape, geometry, found.declared, found.plan)
    title = _title(name, settings, ranks, "caches take what is left")
    made = make(shape, units, options)
    if refusal is not None and not made.short:
        raise refusal
    return made, title


def _reserved(model: str, name: str, settings: Settings) -> tuple[Ledger, str]:
    """The ledger of exactly what a start would reserve."""
    from deepinfer.open import plan_model

    opened = plan_model(model, settings, drafts=settings.drafts > 0)
    planned, geometry = opened.planned, opened.planned.geometry
    options = options_of(
        settings,
        planned.declared,
        planned.plan,
        planned.memory.budget(),
        ranks=1,
        length=opened.max_model_len,
        graphs=planned.graphs is not None,
        start=True,
    )
    units = units_of(opened.shape, geometry, planned.declared, planned.plan)
    counts = Counts(geometry.slots, geometry.blocks, geometry.whole, geometry.halves)
    made = make(opened.shape, units, options, counts, planned.needs["kv"])
    return made, _title(name, settings, 1, "caches as the engine reserves them")


def _ask(shape: Shape, name: str, settings: Settings, geometry: Geometry, drafts: bool) -> _Found:
    """Platform, layouts and memory as a start finds them, without the question whether it fits."""
    from deepinfer.engine.start import BORDERS

    platform = load_platform(settings.platform)
    device = ground(platform, Want())
    memory = choose_memory(platform, device.device).value
    graphs = choose_graphs(platform, device.device, memory)
    declared = declare(platform, device, model_facts(shape, name, geometry, drafts), CATALOGUE)
    plan = resolve(
        declared,
        tokens=(1, step_tokens(settings, shape.max_position_embeddings)),
        borders=BORDERS,
        ops=settings.ops,
        allow_unverified=settings.allow_unverified,
        modes=settings.modes(),
    )
    return _Found(declared, plan, memory.budget(), graphs is not None)


def step_tokens(settings: Settings, length: int) -> int:
    """T: rows of the largest step."""
    from deepinfer.open import STEP_TOKENS

    return min(settings.max_tokens_per_step or STEP_TOKENS, length)


def units_of(shape: Shape, geometry: Geometry, declared: Declared, plan: Plan) -> Units:
    """Bytes per unit from the records of the layouts that the plan settled."""
    return Units.of(
        shape, record_bytes(declared, plan), geometry.block_tokens, geometry.ring,
        geometry.open_rows,
    )  # fmt: skip


def record_bytes(declared: Declared, plan: Plan) -> Mapping[str, int]:
    """Bytes of one row of each cache."""
    found: dict[str, int] = {}
    for settled in plan.layouts:
        layout = declared.layout(settled.kind, settled.layout)
        if settled.kind in CACHE_KINDS and layout.records is not None:
            for cache, record in layout.records(declared.model.dims).items():
                itemsize: int = getattr(torch, record.dtype).itemsize
                found[cache] = record.width * itemsize
    return found


def options_of(
    settings: Settings,
    declared: Declared,
    plan: Plan,
    budget: Budget,
    *,
    ranks: int,
    length: int,
    graphs: bool,
    start: bool = False,
) -> Options:
    """The numbers of the formulas, and what this platform and these settings do without.

    `start`: room for as many requests of full length as a start of this version reserves.
    """
    from deepinfer.open import FULL_LENGTH

    eager = any(row.op == "gemm.dense_mxfp8" and row.layer == REFERENCE for row in plan.rows)
    place = settings.engram
    if place == "auto":  # host memory, which is the device's own on a CPU
        place = "device" if declared.device.kind == "cpu" else "host"
    return Options(
        total=budget.total,
        others=budget.total - budget.free - sum(budget.held.values()),
        utilization=settings.gpu_memory_utilization,
        ranks=ranks,
        max_model_len=length,
        max_num_seqs=settings.max_num_seqs,
        window_slots=settings.window_slots,
        step_tokens=step_tokens(settings, length),
        drafts=settings.drafts > 0,
        redundant=settings.eplb_redundant,
        spare=SPARE_SLOTS if settings.eplb_interval else 0,
        engram=place,
        decoded=WIDE[settings.accumulate] if eager else 0,
        full_requests=FULL_LENGTH if start else 1,
        unused=_unused(settings, eager, graphs),
    )


def _unused(settings: Settings, eager: bool, graphs: bool) -> dict[str, str]:
    """Terms of section 8 that are 0 here, and why."""
    found: dict[str, str] = {}
    if settings.prefix == "off":
        found["snapshots"] = "prefix reuse is off (prefix = off)"
    if not settings.eplb_interval:
        found["spare"] = "no experts move (eplb.interval = 0)"
    if eager:
        found["workspace"] = "kernels of the reference take temporaries from the C heap"
    if not graphs:
        found["graphs"] = "the platform offers no graphs"
    elif not settings.graphs:
        found["graphs"] = "no step is captured (graphs = false)"
    return found


def _title(name: str, settings: Settings, ranks: int, caches: str) -> str:
    return (
        f"memory of one rank      model  {name}      platform  {settings.platform}      "
        f"ranks  {ranks}      {caches}"
    )
