"""Exact bounded replay: rows that cannot reach the last token are left out, and no bit changes."""

from __future__ import annotations

import pytest
import torch
from houses import IDS, exact, poison

from deepinfer.engine.sequence import Entry, Sequence
from deepinfer.model.cone import Cone
from deepinfer.model.shape import Shape

OFFICIAL = Cone(40, 20, 127)


def passed(tokens: int, chunks: list[int], replay: bool) -> list[torch.Tensor]:
    """Logits behind a prompt of `tokens` tokens, and of six more tokens one by one."""
    house = exact()
    poison(house)
    cone = Cone.of(house.planned.shape)
    assert cone is not None
    starts = cone.starts(tokens) if replay else None
    mine = Sequence(IDS[: tokens + 6], 1, list(range(1, 20)), starts=starts)
    found = []
    with torch.inference_mode():
        for rows in [*chunks, *[1] * 6]:
            wanted = int(mine.computed + rows >= tokens)
            entry = Entry(mine, mine.computed, rows, wanted)
            found.append(house.model.forward(house.tray.batch([entry]), house.caches).logits)
            mine.computed += rows
    return [one for one in found if len(one)]


@pytest.mark.parametrize("tokens", [1, 2, 7, 28, 29, 30, 31, 47, 80, 133])
def test_exact_replay_changes_no_bit(tokens):
    whole = passed(tokens, [tokens], replay=False)
    assert all(map(torch.equal, passed(tokens, [tokens], replay=True), whole))


@pytest.mark.parametrize("chunk", [1, 2, 5, 16, 33, 90])
def test_chunk_borders_do_not_matter(chunk):
    """Borders before, at and behind the anchor; some chunks end before any decoder row."""
    tokens = 100
    chunks = [min(chunk, tokens - done) for done in range(0, tokens, chunk)]
    assert all(map(torch.equal, passed(tokens, chunks, True), passed(tokens, [tokens], False)))


def test_the_numbers_of_the_official_model():
    """Engine specification 3.3 and 4.3."""
    assert (OFFICIAL.kept, OFFICIAL.reach) == (2541, 5080)
    starts = OFFICIAL.starts(100_000)
    assert sum(100_000 - first for first in starts.into[21:]) == 24_150
    assert 100_000 - starts.into[21] == 2414
    assert 100_000 - starts.keys[20] == 2541
    assert starts.into[:21] == (0,) * 21
    hit = OFFICIAL.starts(100_000, hit=50_048)
    assert hit.begin == 50_048 - 2540
    assert OFFICIAL.starts(100_000, hit=99_968).begin == 99_999 - 5080


def test_the_cone_is_as_narrow_as_it_may_be():
    """Marks instead of arithmetic: a row of a layer depends on the window of the layer below."""
    tokens = 9000
    starts = OFFICIAL.starts(tokens)
    needed = {tokens - 1}
    low = tokens - 1
    for layer in range(39, 19, -1):
        assert starts.into[layer + 1] == low
        low = min(low, min(needed)) - 127
        needed = {low}
        assert starts.keys[layer] == low
    assert low == OFFICIAL.anchor(tokens)


def test_a_short_prompt_passes_all_rows():
    assert set(OFFICIAL.starts(2541).into[:21]) == {0}
    assert OFFICIAL.anchor(2541) == 0
    assert OFFICIAL.anchor(2542) == 1


def test_a_model_with_a_late_memory_has_no_cone():
    shape = exact().planned.shape
    fields = {**shape.__dict__, "engram_layer_ids": (1, shape.num_hidden_layers - 1)}
    assert Cone.of(Shape(**fields)) is None
