"""Sampling parameters: what a request may ask for, and what it may not choose."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import replace

import pytest

from deepinfer.sample.bans import bias_row
from deepinfer.sample.params import SamplingError, SamplingParams


def refusal(**keywords) -> str:
    with pytest.raises(SamplingError) as caught:
        SamplingParams(**keywords)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_defaults_are_those_of_the_specification():
    params = SamplingParams()
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1.0, 1.0, -1, 0.0)
    assert (params.n, params.seed, params.max_tokens, params.min_tokens) == (1, None, None, 0)
    assert not params.greedy
    assert SamplingParams(temperature=0).greedy
    assert SamplingParams(temperature=9e-6).greedy
    assert not SamplingParams(temperature=1e-5).greedy


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("temperature", [0, 0.0, 1, 100.0], [-0.1, math.nan, math.inf, True, "1", None, 1e39]),
        ("top_k", [-1, 0, 1, 10**7], [-2, 1.0, True, None, 2**31]),
        ("top_p", [1e-9, 0.5, 1, 1.0], [0, 0.0, -0.1, 1.01, math.nan, True]),
        ("min_p", [0, 0.5, 1], [-0.01, 1.01, math.nan, False]),
        ("presence_penalty", [-2, 0, 2.0], [-2.01, 2.01, math.nan]),
        ("frequency_penalty", [-2, 0, 2.0], [-2.01, 2.01, "0"]),
        ("repetition_penalty", [1e-3, 1, 1e6], [0, -1, 1e-40, math.inf]),
        ("logit_bias", [None, {}, {3: -100, 4: 100.0}],
         [{3: 101}, {"3": 1}, {-1: 1}, {True: 1}, [3]]),
        ("bad_words", ["x", ["x", "y z"], ()], [[""], [3], ""]),
        ("allowed_token_ids", [None, [0], (5, 5)], [[], [-1], [True], "ab", 3]),
        ("min_tokens", [0, 5], [-1, 1.5, True]),
        ("max_tokens", [None, 1, 2**31, 2**40], [0, -1, 16.0, True]),
        ("stop", [None, "x", ["x", "yy"]], ["", [""], 3, [None]]),
        ("stop_token_ids", [None, [], [1, 2]], [3, [-1], ["1"]]),
        ("ignore_eos", [True, False], [0, 1, "yes", None]),
        ("include_stop_str_in_output", [True, False], [0]),
        ("n", [1, 8], [0, -1, True, 1.0]),
        ("seed", [None, 0, 2**64 - 1], [-1, 2**64, True, 1.0, "7"]),
        ("seq_seed", [None, 0, 2**64 - 1], [-1, 2**64, True]),
        ("logprobs", [None, -1, 0, 1000, True, False], [-2, 1001, 1.0]),
        ("skip_special_tokens", [True, False], [None]),
        ("detokenize", [True, False], [1]),
    ],
)
def test_every_parameter_knows_its_bounds(name, inside, outside):
    for value in inside:
        SamplingParams(**{name: value})
    for value in outside:
        said = refusal(**{name: value})
        assert said.startswith("seed" if name == "seq_seed" else name)
        assert "must be " in said


def test_an_unknown_name_is_answered_with_near_ones():
    assert refusal(temprature=1) == (
        "temprature: no such sampling parameter; did you mean temperature?"
    )
    assert "known are allowed_token_ids, " in refusal(zzz=1)


@pytest.mark.parametrize(
    "later",
    [
        {"so_args": {"schema_type": "json", "schema": "{}"}},
        {"prompt_logprobs": True},
        {"prompt_logprobs": 0},
        {"filter_order": "p_k"},
        {"golden_token_ids": [1]},
        {"first_n_token_no_eos": 3},
        {"logprob_token_ids": [1]},
        {"coupling": "block"},
        {"priority": 1},
        {"deadline": 3.0},
    ],
)
def test_what_this_version_lacks_is_refused_by_name_and_never_ignored(later):
    [name] = later
    said = refusal(**later)
    assert said.startswith(f"{name} = ")
    assert said.endswith(f"not in this version; leave {name} out")


def test_all_defaults_of_the_original_are_accepted():
    original = {
        "temperature": 1.0, "top_p": 1.0, "top_k": -1, "ignore_eos": False, "max_tokens": 16,
        "logprobs": False, "prompt_logprobs": False, "top_logprobs": 0, "first_n_token_no_eos": 0,
        "eos_id": 0, "so_args": None, "golden_token_ids": None, "seq_seed": None,
    }
    assert SamplingParams(**original) == SamplingParams(max_tokens=16)


def test_aliases_mean_the_same_and_may_not_contradict():
    assert SamplingParams(seq_seed=5) == SamplingParams(seed=5)
    assert "says something else" in refusal(seed=5, seq_seed=6)
    assert SamplingParams(top_logprobs=5) == SamplingParams(logprobs=5)
    assert SamplingParams(logprobs=True, top_logprobs=5).logprobs == 5
    assert SamplingParams(logprobs=True).logprobs == 0
    assert "contradicts" in refusal(logprobs=False, top_logprobs=5)
    assert "contradicts" in refusal(logprobs=1, top_logprobs=5)


def test_parameters_that_exclude_each_other_are_refused():
    assert "at most max_tokens = 3" in refusal(min_tokens=4, max_tokens=3)
    assert "stop_token_ids" in refusal(stop="x", detokenize=False)


def test_ids_are_compared_with_the_vocabulary():
    SamplingParams(stop_token_ids=[7], logit_bias={7: 1}).vocabulary_checks(8)
    for name, value in [
        ("stop_token_ids", [1, 8]), ("allowed_token_ids", [8]), ("logit_bias", {8: 0.0})
    ]:
        with pytest.raises(SamplingError, match=f"{name} = 8: must be a token id from 0 to 7"):
            SamplingParams(**{name: value}).vocabulary_checks(8)


def test_a_seed_is_drawn_once_and_can_be_reported():
    params = SamplingParams(n=2)
    with pytest.raises(SamplingError, match="no seed is drawn yet"):
        params.stream_seed()
    drawn = params.seeded()
    assert 0 <= drawn.seed < 2**64
    assert drawn.seeded() is drawn
    with pytest.raises(SamplingError, match="from 0 to 1"):
        drawn.stream_seed(2)


def test_parameters_are_values():
    params = SamplingParams(stop=["a"], logit_bias={1: 2}, seed=3, logprobs=2)
    assert pickle.loads(pickle.dumps(params)) == copy.deepcopy(params) == params
    assert hash(params) == hash(replace(params))
    assert params.with_default_max_tokens(16).max_tokens == 16
    assert params.with_default_max_tokens(16).with_default_max_tokens(4).max_tokens == 16
    with pytest.raises(AttributeError):
        params.seed = 4


# Bans


def test_bans_follow_output_length_and_history():
    assert bias_row(SamplingParams(), 6, [], [1]) is None
    row = bias_row(SamplingParams(min_tokens=2, stop_token_ids=[3]), 6, [5], [1])
    assert row.isinf().nonzero()[:, 0].tolist() == [1, 3]
    assert bias_row(SamplingParams(min_tokens=2), 6, [5, 5], [1]) is None
    row = bias_row(SamplingParams(allowed_token_ids=[2, 4], logit_bias={4: 1.5, 0: 9}), 6, [], [])
    assert row.tolist() == [-math.inf, -math.inf, 0.0, -math.inf, 1.5, -math.inf]


def test_a_bad_word_bans_its_last_id_only_behind_the_others():
    banned = [(2, 3), (4,)]
    for output, expected in [([], [4]), ([2], [3, 4]), ([2, 5], [4]), ([3, 2], [3, 4])]:
        row = bias_row(SamplingParams(bad_words=["x"]), 6, output, [], banned)
        assert row.isinf().nonzero()[:, 0].tolist() == expected
