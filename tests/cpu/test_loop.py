"""The batch loop: ends, neighbors, broken rows, and what is given back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.engine import start
from deepinfer.engine.admission import TooLong
from deepinfer.engine.loop import Loop, Rules
from deepinfer.engine.request import Request
from deepinfer.engine.start import House, Wish
from deepinfer.model.shape import Shape
from deepinfer.model.weights import Checkpoint
from deepinfer.ops.table import KernelFailed
from deepinfer.sample.params import SamplingParams

FOLDER = Path(__file__).parents[1] / "golden" / "tiny_a"
EOS = 1


@pytest.fixture(scope="module")
def house() -> House:
    shape = Shape.load(FOLDER)
    # float64 sums: what a request gets must not depend on its neighbors by a single bit
    wish = Wish("tiny_a", "reference", 4, 256, 64, {"accumulate": "float64"})
    planned = start.plan(shape, wish)
    with Checkpoint(FOLDER, shape) as checkpoint:
        return start.build(planned, checkpoint, [number // 2 for number in range(256)])


def request(index: int, prompt: list[int], limit: int = 64, **params: object) -> Request:
    given_params = SamplingParams(**({"temperature": 0, "max_tokens": 8} | params)).seeded()
    return Request(index, list(prompt), given_params, (EOS,), None, limit)


def free(loop: Loop) -> tuple[int, int]:
    """Slots and blocks that nobody holds."""
    return loop.cache.slots.free, loop.cache.blocks.count - loop.cache.blocks.held


def answers(house: House, requests: list[Request], step_tokens: int = 64) -> list[list[int]]:
    loop = Loop(house, Rules(step_tokens, 64))
    before = free(loop)
    for one in requests:
        loop.add(one)
    for _ in loop.run():
        pass
    assert free(loop) == before
    loop.close()
    return [one.output for one in requests]


def prompts() -> st.SearchStrategy[list[list[int]]]:
    token = st.integers(2, 255)
    return st.lists(st.lists(token, min_size=1, max_size=40), min_size=1, max_size=7)


@settings(max_examples=6, deadline=None)
@given(prompts(), st.integers(3, 64))
def test_neighbours_and_row_budget_do_not_change_an_answer(house, texts, budget):
    """Also with more requests than slots: the seventh waits until the first has ended."""
    together = answers(house, [request(i, text) for i, text in enumerate(texts)], budget)
    alone = [answers(house, [request(0, text)])[0] for text in texts]
    assert together == alone


def test_a_seeded_request_keeps_its_tokens_beside_unseeded_ones(house):
    """BL-48."""
    text = [5, 9, 200, 31]
    hot = {"temperature": 1.0, "max_tokens": 12}
    alone = answers(house, [request(0, text, seed=42, **hot)])[0]
    for place in range(3):
        crowd = [request(i, [7, 8, 9 + i], **hot) for i in range(3)]
        crowd[place] = request(place, text, seed=42, **hot)
        assert answers(house, crowd)[place] == alone


def test_length_ends_exactly_at_max_tokens_and_at_the_context(house):
    """BL-31 without drafts: a prompt just below the limit ends with `length` at the limit."""
    short, full = request(0, [3, 4], max_tokens=5), request(1, list(range(2, 14)), limit=16)
    answers(house, [short, full])
    assert (len(short.output), short.finish_reason) == (5, "length")
    assert (len(full.prompt) + len(full.output), full.finish_reason) == (16, "length")


def test_the_end_token_stops_unless_it_is_ignored(house):
    text = [11, 12, 13]
    free = answers(house, [request(0, text, max_tokens=6)])[0]
    ending = replace(request(0, text, max_tokens=6), stop_ids=(free[2],))
    assert answers(house, [ending])[0] == free[: free.index(free[2]) + 1]
    assert ending.finish_reason == "stop"
    ignoring = replace(request(0, text, max_tokens=6, ignore_eos=True), stop_ids=(free[2],))
    assert answers(house, [ignoring])[0] == free


def test_a_stop_at_the_last_allowed_token_is_a_stop(house):
    """BL-74: the length cap must not be checked first."""
    text = [11, 12, 13]
    free = answers(house, [request(0, text, max_tokens=3)])[0]
    ending = replace(request(0, text, max_tokens=3), stop_ids=(free[2],))
    answers(house, [ending])
    assert ending.finish_reason == "stop"


def test_min_tokens_bans_the_end_token(house):
    text = [11, 12, 13]
    free = answers(house, [request(0, text, max_tokens=6)])[0]
    held = replace(request(0, text, max_tokens=6, min_tokens=4), stop_ids=(free[0],))
    output = answers(house, [held])[0]
    assert free[0] not in output[:4]


def test_a_repetition_penalty_without_bound_repeats_nothing(house):
    """BL-54: prompt tokens count too."""
    text = [11, 12, 13]
    output = answers(house, [request(0, text, max_tokens=20, repetition_penalty=1e6)])[0]
    assert len(set(output)) == 20
    assert not set(output) & set(text)


def test_logprobs_are_those_of_the_raw_logits(house):
    """BL-57: temperature and filters do not change them; the chosen token is always there."""
    seen = []
    for temperature in (0.1, 2.0):
        one = request(0, [11, 12], max_tokens=1, logprobs=5, temperature=temperature, seed=3)
        answers(house, [one])
        seen.append(one.chosen[0])
    assert seen[0].best == seen[1].best
    assert [pair[1] for pair in seen[0].best] == sorted((p[1] for p in seen[0].best), reverse=True)
    assert all(chosen.logprob <= 0 for chosen in seen)


def test_a_row_with_nan_logits_fails_alone(house, monkeypatch):
    """BL-26: the other requests finish with unchanged text."""
    texts = [[5, 6, 7], [8, 9], [10, 11, 12]]
    expected = answers(house, [request(i, text) for i, text in enumerate(texts)])
    whole = type(house.model).end

    def poisoned(self, stream, pre, wanted):
        logits = whole(self, stream, pre, wanted)
        logits[1] = torch.nan
        return logits

    requests = [request(i, text) for i, text in enumerate(texts)]
    loop = Loop(house, Rules(64, 64, ahead=False))
    before = free(loop)
    for one in requests:
        loop.add(one)
    monkeypatch.setattr(type(house.model), "end", poisoned)
    loop.step()
    monkeypatch.undo()
    for _ in loop.run():
        pass
    assert [one.output for one in requests] == [expected[0], [], expected[2]]
    assert requests[1].finish_reason == "error"
    assert "request 1" in str(requests[1].error)
    assert free(loop) == before


@pytest.mark.parametrize("ahead", [False, True])
def test_an_abort_frees_everything_in_every_state(house, ahead):
    """BL-62: queued, in the middle of the prompt, in the middle of the answer."""
    loop = Loop(house, Rules(8, 64, ahead=ahead))
    before = free(loop)
    requests = [request(i, list(range(2, 30))) for i in range(6)]
    for one in requests:
        loop.add(one)
    loop.step()
    for one in requests:
        assert loop.abort(one).finish_reason == "abort"
        assert loop.abort(one) is None
    assert list(loop.run()) == []  # a step under way is read, and its rows are void
    assert free(loop) == before
    assert not loop.is_busy


def test_a_request_larger_than_the_store_is_refused_at_once_with_the_numbers(house):
    """BL-58: it does not wait for ever in front of the others."""
    loop = Loop(house, Rules(64, 64))
    numbers = r"500 .* 100 more need 38 cache blocks of 16 tokens, there are 16"
    with pytest.raises(TooLong, match=numbers):
        loop.add(request(0, [2] * 500, limit=600, max_tokens=100))
    assert not loop.is_busy


def test_two_unrelated_prompts_one_after_the_other_equal_fresh_starts(house):
    """BL-24: nothing of the first conversation is left in slots and blocks."""
    first, second = [40, 41, 42, 43, 44, 45, 46], [90, 91]
    fresh = answers(house, [request(0, second)])[0]
    loop = Loop(house, Rules(64, 64))
    for text in (first, second):
        one = request(0, text)
        loop.add(one)
        for _ in loop.run():
            pass
    assert one.output == fresh


def test_a_kernel_that_raises_is_named_and_not_replaced(house, monkeypatch):
    """R5."""
    loop = Loop(house, Rules(64, 64))
    one = request(0, [5, 6])
    loop.add(one)
    broken = replace(house.model.weights.layers[0].attention, sink=torch.zeros(3))
    layers = list(house.model.weights.layers)
    layers[0] = replace(layers[0], attention=broken)
    weights = replace(house.model.weights, layers=tuple(layers))
    monkeypatch.setattr(house.model, "weights", weights)
    with pytest.raises(KernelFailed, match=r"attention.sparse_decode failed in reference:eager"):
        list(loop.run())
    monkeypatch.undo()
    loop.abort(one)
    assert list(loop.run()) == []
