"""Houses over the golden checkpoint, and runs of a prompt in any chunks beside any neighbors."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from deepinfer.engine import start
from deepinfer.engine.sequence import Entry, Sequence
from deepinfer.engine.start import House, Wish
from deepinfer.model.shape import Shape
from deepinfer.model.weights import Checkpoint

FOLDER = Path(__file__).parents[1] / "golden" / "tiny_a"
WINDOW, RING, BLOCK = 8, 16, 16
IDS = torch.randint(2, 256, (400,), generator=torch.Generator().manual_seed(8)).tolist()


def build(ops: dict[str, str] | None = None, drafts: bool = False, **modes: str) -> House:
    """A fresh house; modes default to what the release rounds, with float64 sums."""
    shape = Shape.load(FOLDER)
    modes = {"accumulate": "float64"} | modes
    wish = Wish("tiny_a", "reference", 4, 512, 256, modes, ops or {}, drafts=drafts)
    planned = start.plan(shape, wish)
    with Checkpoint(FOLDER, shape) as checkpoint:
        return start.build(planned, checkpoint, [number // 2 for number in range(256)])


@lru_cache
def exact() -> House:
    """Official rounding, float64 sums: bits must not depend on how rows are grouped."""
    return build()


def poison(house: House) -> None:
    """NaN in every cache, as a recycled slot might hold."""
    caches = house.caches
    groups = (caches.entries.values(), caches.index.values(), caches.opened.values())
    for cache in (*caches.window, *(one for group in groups for one in group)):
        cache.view(torch.uint8).fill_(0xFF)


def prefill(
    house: House,
    ids: list[int],
    chunks: list[int] | None = None,
    *,
    slot: int = 0,
    blocks: list[int] | None = None,
    neighbors: tuple[tuple[list[int], int], ...] = (),
) -> Tensor:
    """Logits of every token, [len(ids), vocabulary], computed in chunks beside other sequences.

    neighbors  (ids, rows a step): they run in the slots behind, each step some of their rows
    """
    poison(house)
    need = -(-len(ids) // BLOCK)
    mine = Sequence(list(ids), slot, blocks or list(range(1, need + 1)))
    free = iter(sorted(set(range(1, house.planned.geometry.blocks)) - set(mine.blocks)))
    slots = iter(one for one in range(4) if one != slot)
    others = [
        (
            Sequence(list(text), next(slots), [next(free) for _ in range(-(-len(text) // BLOCK))]),
            rows,
        )
        for text, rows in neighbors
    ]
    found = []
    for rows in chunks or [len(ids)]:
        entries = [Entry(mine, mine.computed, rows, rows)]
        for place, (other, most) in enumerate(others):
            count = min(most, other.waiting)
            if count:
                entry = Entry(other, other.computed, count, 0)
                entries.insert(0 if place % 2 else len(entries), entry)
        with torch.inference_mode():
            found.append(house.model.forward(house.tray.batch(entries), house.caches).logits)
        for entry in entries:
            entry.sequence.computed += entry.rows
    return torch.cat(found)
