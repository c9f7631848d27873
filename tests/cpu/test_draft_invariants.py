"""Draft calls depend on their own request alone, and change nothing of the backbone."""

from __future__ import annotations

import pytest
import torch
from houses import BLOCK, IDS, WINDOW, build, poison

from deepinfer.engine.sequence import Entry, Sequence
from deepinfer.engine.start import House
from deepinfer.model import drafter
from deepinfer.model.drafter import Drafts


@pytest.fixture(scope="module")
def house() -> House:
    return build(drafts=True)


def read(house: House, sequences: list[Sequence], rows: int) -> torch.Tensor:
    """Computes all tokens but the last, at most `rows` a step and sequence; context keys too."""
    last = []
    while True:
        entries = [
            Entry(one, one.computed, min(rows, one.waiting - 1), 1)
            for one in sequences
            if one.waiting > 1
        ]
        if not entries:
            return torch.cat(last)
        batch = house.tray.batch(entries)
        with torch.inference_mode():
            passed = house.model.forward(batch, house.caches, features=True)
            drafter.keep_context(house.drafter, house.model, passed.features, batch, house.caches)
        last.append(passed.logits)
        for entry in entries:
            entry.sequence.computed += entry.rows


def draft(house: House, sequences: list[Sequence]) -> Drafts:
    noise = house.planned.shape.dspark_noise_token_id
    batch = house.tray.draft_batch([Entry(one, one.computed, 1, 0) for one in sequences], noise)
    with torch.inference_mode():
        return drafter.draft(house.drafter, house.model, batch, house.caches)


def sequence(first: int, length: int, slot: int) -> Sequence:
    blocks = range(1 + 4 * slot, 1 + 4 * slot + -(-length // BLOCK))
    return Sequence(IDS[first : first + length], slot, list(blocks))


@pytest.mark.parametrize("length", [2, WINDOW, WINDOW + 1, 40])
def test_drafts_do_not_depend_on_chunks_nor_on_neighbors(house, length):
    poison(house)
    alone = sequence(0, length, 0)
    read(house, [alone], 64)
    expected = draft(house, [alone])
    assert torch.isfinite(expected.logits).all()
    poison(house)
    together = [sequence(100, 29, 1), sequence(0, length, 2), sequence(200, 5, 3)]
    read(house, together, 3)
    found = draft(house, together)
    assert torch.equal(found.logits[1], expected.logits[0])
    assert torch.equal(found.confidence[1], expected.confidence[0])
    assert torch.equal(found.ids[1], expected.ids[0])


def test_a_draft_call_changes_no_result_of_the_backbone(house):
    """Backbone 3.11: the caches stay as they are, byte for byte."""
    poison(house)
    one = sequence(0, 30, 0)
    read(house, [one], 64)
    caches = house.caches
    groups = (caches.entries.values(), caches.index.values(), caches.opened.values())
    everything = [*caches.window, *(cache for group in groups for cache in group)]
    before = [cache.view(torch.uint8).clone() for cache in everything]
    draft(house, [one])
    for cache, kept in zip(everything, before, strict=True):
        assert torch.equal(cache.view(torch.uint8), kept)


def test_a_draft_block_sees_its_own_later_tokens_and_no_others(house):
    """Backbone 3.11: the block is not causal; the newest token decides every place of it."""
    poison(house)
    one, other = sequence(0, 20, 0), sequence(0, 20, 0)
    other.tokens[-1] = (one.tokens[-1] + 1) % 256
    read(house, [one], 64)
    other.computed = one.computed
    first, second = draft(house, [one]), draft(house, [other])
    for place in range(house.planned.shape.dspark_block_size):
        assert not torch.equal(first.base_logits[0, place], second.base_logits[0, place])


def test_the_window_of_the_draft_ends_at_the_last_committed_token(house):
    """At most `window` context keys, position s included, and all keys of the block."""
    one = sequence(0, 30, 2)
    one.computed = 29
    batch = house.tray.draft_batch([Entry(one, 29, 1, 0)], 255)
    ring = house.planned.geometry.ring
    earlier = [2 * ring + position % ring for position in range(29 - WINDOW, 29)]
    assert batch.layers[0].window.earlier.tolist() == earlier
    size = house.planned.shape.dspark_block_size
    for row in batch.layers[0].window.index.tolist():
        assert row == list(range(WINDOW + size))
    assert (batch.layers[0].window.rows == -1).all()
    assert batch.layers[0].positions.tolist() == [29, 30, 31]
    assert batch.ids.tolist() == [one.tokens[29], 255, 255]
