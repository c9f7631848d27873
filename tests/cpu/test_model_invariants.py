"""What must not change an answer: chunks, neighbors, slots, blocks, what a cache held before."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from houses import BLOCK, IDS, RING, WINDOW, build, exact, prefill
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deepinfer.engine.blocks import Blocks, Slots
from deepinfer.engine.sequence import Entry, Sequence
from deepinfer.engine.start import House
from deepinfer.model import attention, rotary
from deepinfer.model.shape import Shape
from deepinfer.reference import attention as kernels

OFFICIAL = Path(__file__).parents[1] / "data" / "official_config.json"


def cuts(length: int) -> st.SearchStrategy[list[int]]:
    """Ways to cut `length` tokens into chunks."""
    borders = st.sets(st.integers(1, length - 1), max_size=8) if length > 1 else st.just(set())
    return borders.map(
        lambda at: [b - a for a, b in zip([0, *sorted(at)], [*sorted(at), length], strict=True)]
    )


@pytest.mark.parametrize(
    "chunks", [[17] + [1] * 31, [5, 9, 3, 16, 7, 8], [1] * 48], ids=["decode", "odd", "single"]
)
def test_chunks_of_the_specification_do_not_change_a_single_bit(chunks):
    """Backbone 8.3 item 6."""
    whole = prefill(exact(), IDS[:48])
    assert torch.equal(prefill(exact(), IDS[:48], chunks), whole)


@settings(max_examples=12, deadline=None)
@given(st.data(), st.integers(1, 70))
def test_no_chunking_changes_a_single_bit(data, length):
    """BL-04, BL-05: entries of an open group survive a chunk border; BL-13: no drift."""
    chunks = data.draw(cuts(length))
    assert torch.equal(prefill(exact(), IDS[:length], chunks), prefill(exact(), IDS[:length]))


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_neighbors_slots_and_blocks_do_not_change_a_single_bit(data):
    """Unequal lengths, any slot, any blocks, over poisoned caches (BL-08)."""
    length = data.draw(st.integers(1, 60))
    chunks = data.draw(cuts(length))
    others = data.draw(
        st.lists(st.tuples(st.integers(1, 50), st.integers(1, 20)), min_size=1, max_size=3)
    )
    blocks = data.draw(st.permutations(range(1, 20)))[: -(-length // BLOCK)]
    beside = tuple(
        (IDS[100 + 60 * i : 100 + 60 * i + n], rows) for i, (n, rows) in enumerate(others)
    )
    slot = data.draw(st.integers(0, 3))
    found = prefill(exact(), IDS[:length], chunks, slot=slot, blocks=blocks, neighbors=beside)
    assert torch.equal(found, prefill(exact(), IDS[:length]))


def compressed(house: House, length: int) -> list[torch.Tensor]:
    """Entries and index keys of a sequence in blocks 1, 2, ..., read as the model reads them."""
    found = []
    for layer in house.planned.shape.kv_source_layer_ids:
        ratio = house.planned.shape.ratio(layer)
        rows = BLOCK // ratio + torch.arange(length // ratio)
        found.append(house.table.attention_load_entries(house.caches.entries[layer], rows))
        found.append(house.table.attention_load_index(house.caches.index[layer], rows))
    return found


@pytest.mark.parametrize(
    "length", [1, 2, 3, 4, WINDOW - 1, WINDOW, WINDOW + 1, RING - WINDOW + 1, RING, RING + 1]
)
def test_prompts_at_every_border_equal_token_by_token(length):
    """BL-06, BL-10: ratio, group, window and ring borders; nothing is NaN."""
    whole = prefill(exact(), IDS[:length])
    assert torch.isfinite(whole).all()
    before = compressed(exact(), length)
    assert torch.equal(prefill(exact(), IDS[:length], [1] * length), whole)
    for kept, again in zip(before, compressed(exact(), length), strict=True):
        assert torch.isfinite(kept).all()
        assert torch.equal(again, kept)


@pytest.mark.parametrize("token", [0, 1, 2, 255], ids=["bos", "eos", "pad", "noise"])
def test_a_prompt_of_one_special_token_is_answered(token):
    """BL-10: no compressed entry exists yet in ratio-2 layers."""
    alone = prefill(exact(), [token])
    assert torch.isfinite(alone).all()
    assert torch.equal(prefill(exact(), [token, *IDS[:5]], [1, 5])[:1], alone)


@pytest.mark.parametrize("aborted_after", [1, 7, 21])
def test_a_new_conversation_over_a_used_slot_sees_nothing_of_the_old_one(aborted_after):
    """BL-24: slots and blocks go back to the store uncleaned; one prompt ends in mid-prefill."""
    house = exact()
    expected = prefill(house, IDS[200:237], [20, 17])
    slots, store = Slots(1), Blocks(4)
    for ids, rows in ((IDS[:45], aborted_after), (IDS[60:108], 48), (IDS[200:237], 20)):
        slot, blocks = slots.take(), [store.take() for _ in range(-(-len(ids) // BLOCK))]
        sequence = Sequence(ids, slot, blocks)
        found = []
        for first, count in ((0, rows), (rows, min(17, len(ids) - rows))):
            if count:
                batch = house.tray.batch([Entry(sequence, first, count, count)])
                with torch.inference_mode():
                    found.append(house.model.forward(batch, house.caches).logits)
        slots.give_back(slot)
        assert all([store.release(block) for block in blocks])
    assert torch.equal(torch.cat(found), expected)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 50)), min_size=1, max_size=4))
def test_a_step_writes_no_cache_row_twice_and_reads_none_that_it_overwrites(parts):
    """Which of two writes to one row wins is nobody's promise; earlier keys are read before."""
    house = exact()
    entries = [
        Entry(Sequence(IDS[:100], slot, list(range(1 + 7 * slot, 8 + 7 * slot))), first, rows, 0)
        for slot, (first, rows) in enumerate(parts)
    ]
    batch = house.tray.batch(entries)
    alive = batch.layers[0]
    groups = alive.groups[2]
    for rows in (alive.window.rows, groups.open_rows):
        kept = rows[rows >= 0]
        assert len(kept.unique()) == len(kept)
    if alive.window.earlier is not None:
        return
    # without a linear workspace the ring is read after the write: nothing needed may be gone
    ring = house.planned.geometry.ring
    for slot, (first, rows) in enumerate(parts):
        newest = {slot * ring + p % ring: p for p in range(first + rows)}
        mine = alive.window.index[alive.sequence == slot].tolist()
        for position, index in zip(range(first, first + rows), mine, strict=True):
            seen = [newest[row] for row in index if row >= 0]
            assert seen == list(range(max(0, position - WINDOW + 1), position + 1))


@pytest.mark.parametrize("length", [40, 41, 42, 43])
def test_every_residue_gives_the_same_next_token_by_every_split(length):
    """BL-04: one prefill of n, and n - k then k single tokens, for k up to 8."""
    whole = prefill(exact(), IDS[:length])[-1]
    for k in range(1, 9):
        assert torch.equal(prefill(exact(), IDS[:length], [length - k] + [1] * k)[-1], whole)


def test_without_rounding_fp32_chunks_agree_to_1e5():
    """Backbone 8.3 item 7."""
    house = build(rounding="none", accumulate="float32")
    whole = prefill(house, IDS[:48])
    for chunks in ([17] + [1] * 31, [5, 9, 3, 16, 7, 8], [1] * 48):
        assert float((prefill(house, IDS[:48], chunks) - whole).abs().max()) < 1e-5


def test_generating_and_reading_the_same_tokens_give_the_same_logits():
    """BL-13: 80 tokens one by one after a long prompt; the difference stays flat (at zero)."""
    ids = IDS[:210]
    assert torch.equal(prefill(exact(), ids, [130] + [1] * 80), prefill(exact(), ids))


def test_packed_and_bf16_caches_hold_the_same_numbers():
    """D12: the format of the cache is a switch of bytes, not of answers."""
    ops = {
        "attention.sparse_decode": "reference:eager_bf16",
        "attention.index_logits": "reference:eager_bf16",
    }
    wide = build(ops)
    assert wide.caches.window[0].dtype == torch.bfloat16
    assert exact().caches.window[0].dtype == torch.uint8
    for chunks in ([48], [17] + [1] * 31):
        assert torch.equal(prefill(wide, IDS[:48], chunks), prefill(exact(), IDS[:48]))


def test_packed_records_have_the_sizes_of_the_format():
    """Backbone 4.1 at the tiny widths: 64 channels, index keys of 32."""
    caches = exact().caches
    assert caches.window[0].shape[1] == 64 + 2
    assert caches.entries[2].shape[1] == 32 + 4
    assert caches.index[2].shape[1] == 16 + 1


@settings(max_examples=6, deadline=None)
@given(st.integers(8, 40))
@example(9)
def test_a_full_layer_scores_its_own_keys_while_its_group_is_open(length):
    """Backbone 9 U3, BL-05: the mix-up of the release is not here."""
    whole = prefill(exact(), IDS[:length])
    assert torch.equal(prefill(exact(), IDS[:length], [length - 1, 1]), whole)


def test_the_releases_defect_would_be_found(monkeypatch):
    """Negative control: scoring another source's keys in one-token steps changes the logits."""
    whole = attention._select

    def mixed_up(p, query, x, batch, caches, selection, shape, ops):
        if len(batch.ids) == 1 and p.ratio == 2 and int(batch.layers[0].positions[0]) % 2 == 0:
            others = replace(caches, index={**caches.index, p.layer: caches.index[6]})
            return whole(p, query, x, batch, others, selection, shape, ops)
        return whole(p, query, x, batch, caches, selection, shape, ops)

    expected = prefill(exact(), IDS[:41])
    monkeypatch.setattr(attention, "_select", mixed_up)
    assert not torch.equal(prefill(exact(), IDS[:41], [20] + [1] * 21), expected)


@pytest.mark.parametrize("length", [3, 4, 5, 8, 30])
def test_up_to_the_top_k_sparse_equals_dense_and_beyond_it_does_not(monkeypatch, length):
    """BL-11: top-k is 4 here; the ratio-1 layers have one visible entry per token."""
    expected = prefill(exact(), IDS[:length])
    chosen = kernels._best

    def everything(scores, top_k, n):
        return chosen(scores, max(top_k, scores.shape[1]), n)

    monkeypatch.setattr(kernels, "_best", everything)
    found = prefill(exact(), IDS[:length])
    assert torch.equal(found[:4], expected[:4])
    assert torch.equal(found, expected) == (length <= 4)


def test_the_look_back_does_not_stop_at_a_chunk_border_nor_cross_into_a_neighbor():
    """BL-17: the history of every token is the same however the prompt is cut."""
    house = exact()
    mine, other = Sequence(IDS[:21], 0, [1, 2]), Sequence(IDS[200:230], 1, [3, 4])
    whole = house.tray.batch([Entry(mine, 0, 21, 0)]).layers[0].history
    assert whole[0].tolist()[1:] == [-1] * 3
    for rows in (1, 3, 7):
        parts = []
        for first in range(0, 21, rows):
            beside = [Entry(other, first, rows, 0), Entry(mine, first, rows, 0)]
            parts.append(house.tray.batch(beside).layers[0].history[rows:])
        assert torch.equal(torch.cat(parts), whole)


def test_the_official_frequencies_are_those_of_the_specification():
    """Backbone 3.4: check values of the YaRN ramp, and no ramp in window-only layers."""
    shape = Shape.from_config(json.loads(OFFICIAL.read_text()))
    for layer in (2, 20, 39):
        found = rotary.frequencies(shape, layer)
        assert found.shape == (32,)
        known = [1, 3.63553851e-3, 2.26562493e-3, 2.96977785e-4, 5.37231244e-6, 5.6805294e-7]
        assert found[[0, 15, 16, 20, 25, 31]].tolist() == pytest.approx(known, rel=2e-6)
    for layer in (0, 1, 40, 42):
        plain = [10000 ** (-2 * i / 64) for i in range(32)]
        assert rotary.frequencies(shape, layer).tolist() == pytest.approx(plain, rel=2e-6)


@pytest.mark.parametrize("position", [10, 1000, 4000])
def test_each_kind_of_layer_rotates_with_its_own_frequencies(position):
    """BL-03: plain theta in window-only layers, YaRN elsewhere; the angle is an FP32 product."""
    house = exact()
    shape = house.planned.shape
    for layer in house.model.weights.layers[:3]:
        p = layer.attention
        base = shape.rope_theta if p.ratio == 0 else shape.compress_rope_theta
        plain = base ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
        assert torch.allclose(p.frequencies.double()[:3], plain[:3], rtol=1e-6)
        x = torch.zeros(1, 64).bfloat16()
        x[0, 48] = 1.0
        turned = house.table.tensor_rope(x, torch.tensor([position]), p.frequencies)
        angle = torch.tensor(float(position)) * p.frequencies[0]
        assert float(turned[0, 48]) == pytest.approx(float(torch.cos(angle)), abs=4e-3)
        back = house.table.tensor_rope(turned, torch.tensor([position]), p.frequencies, True)
        assert float((back - x).abs().max()) < 0.02
