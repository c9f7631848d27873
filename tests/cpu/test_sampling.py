"""Sampling: known answers, laws, orders, ties, broken rows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.ops import sampler as contract
from deepinfer.reference.sampler import keep, penalize, sample, top_logprobs
from deepinfer.sample.noise import exponential, gumbel, philox, seed_tensor, words
from deepinfer.sample.params import SamplingError, SamplingParams, split_mix

WORDS = torch.tensor([0, 0x3FFFFFFF, 0x40000000, 0x80000000, 0xFFFFFFFF])
EXAMPLE = torch.tensor([0.0, 1.0, 2.0, 0.5, -1.0, 1.5, 0.0, 3.0])
CHOICES = [7, 5, 7, 0, 1, 0, 3, 7, 1, 7, 7, 1, 7, 7, 3, 7]
NEUTRAL = {"temperature": 1.0, "top_k": -1, "top_p": 1.0, "min_p": 0.0, "seed": 0, "position": 0}


def draw(logits, **row):
    """Sample with the same numbers, or a list of numbers, for all rows of logits [rows, V]."""
    kinds = {"top_k": torch.int64, "position": torch.int64}
    columns = {}
    for name, value in (NEUTRAL | row).items():
        values = list(value) if isinstance(value, list | tuple) else [value] * len(logits)
        columns[name] = (
            seed_tensor(values)
            if name == "seed"
            else torch.tensor(values, dtype=kinds.get(name, torch.float32))
        )
    return sample(logits, **columns).tolist()


def hexadecimal(tensor) -> str:
    bits = tensor.view(torch.int32) if tensor.is_floating_point() else tensor
    return " ".join(f"{word & 0xFFFFFFFF:08x}" for word in bits.tolist())


def column(value, rows=1):
    return torch.full((rows,), value)


def refusal(**keywords) -> str:
    with pytest.raises(SamplingError) as caught:
        SamplingParams(**keywords)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Known answers (DSpark and sampling 5.3)


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_its_known_answers(counter, key, answer):
    four = philox([torch.tensor([c]) for c in counter], [torch.tensor([k]) for k in key])
    assert hexadecimal(torch.cat(four)) == answer


def test_noise_has_the_bits_of_the_specification():
    assert hexadecimal(exponential(WORDS)) == "2f000000 3e934b10 3e934b10 3f317218 41b6fda9"
    assert hexadecimal(words(seed_tensor([1234]), torch.tensor([7]), 8)[0]) == (
        "b30e22ad 6eb5361a 925f4117 865132fe a4edc7f7 656b6c86 d57cec56 b33d1dbe"
    )


def test_gumbel_noise_of_the_extreme_words_is_finite(monkeypatch):
    monkeypatch.setattr("deepinfer.sample.noise.words", lambda *rest: WORDS[None])
    noise = gumbel(seed_tensor([0]), torch.tensor([0]), 5)
    assert hexadecimal(noise[0]) == "41b6fda9 3f9f79a2 3f9f79a2 3ebba795 c04851d5"


def test_noise_is_close_to_its_definition_in_float64():
    word = torch.randint(1 << 32, (100_000,), generator=torch.Generator().manual_seed(0))
    exact = -torch.log1p(-(word.double() + 0.5) / 2**32)
    assert ((exponential(word) - exact).abs() / exact).max() < 3.3e-7


def test_the_example_of_the_specification_chooses_its_sixteen_tokens():
    positions = list(range(7, 23))
    assert draw(EXAMPLE.expand(16, 8), seed=1234, position=positions) == CHOICES
    noisy = EXAMPLE + gumbel(seed_tensor([1234]), torch.tensor([7]), 8)[0]
    assert noisy[7].item() == pytest.approx(2.813954, abs=1e-6)
    assert noisy[5].item() == pytest.approx(2.184260, abs=1e-6)


def test_split_mix_gives_the_seeds_of_further_samples():
    assert split_mix(1) == 0x910A2DEC89025CC1
    params = SamplingParams(seed=2**64 - 1, n=3)
    assert params.stream_seed(0) == 2**64 - 1 == SamplingParams(seed=2**64 - 1).stream_seed()
    assert params.stream_seed(1) == (2**64 - 1) ^ 0x910A2DEC89025CC1
    assert len({params.stream_seed(stream) for stream in range(3)}) == 3


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5),
    st.integers(0, 2**40),
    st.integers(1, 70),
)
@settings(max_examples=50, deadline=None)
def test_a_larger_vocabulary_or_batch_shifts_no_noise(seeds, position, vocabulary):
    positions = torch.full((len(seeds),), position)
    wide = gumbel(seed_tensor(seeds), positions, 70)
    for row, seed in enumerate(seeds):
        alone = gumbel(seed_tensor([seed]), positions[:1], vocabulary)
        assert torch.equal(alone[0], wide[row, :vocabulary])


def test_positions_beyond_32_bits_and_other_purposes_have_their_own_noise():
    seed, position = seed_tensor([5, 5]), torch.tensor([3, 3 + 2**32])
    noise = gumbel(seed, position, 64)
    assert not torch.equal(noise[0], noise[1])
    again = gumbel(seed, position, 64, purpose=1, ordinal=torch.tensor([0, 0]))
    assert not torch.equal(noise, again)
    with pytest.raises(ValueError, match="ordinal"):
        gumbel(seed, position, 64, purpose=1)


# Laws


def law(logits, temperature, top_k, top_p, min_p):
    """The distribution of 5.2 by a plain loop over tokens in their order, in Python floats."""
    scaled = [value / temperature for value in logits]
    order = sorted(range(len(scaled)), key=lambda v: (-scaled[v], v))
    order = order[:top_k] if top_k >= 1 else order
    weight = {v: math.exp(scaled[v] - scaled[order[0]]) for v in order}
    total, before, kept = sum(weight.values()), 0.0, []
    for v in order:
        if kept and before >= top_p:
            break
        kept.append(v)
        before += weight[v] / total
    kept = [v for v in kept if weight[v] >= min_p]
    rest = sum(weight[v] for v in kept)
    return torch.tensor([weight[v] / rest if v in kept else 0.0 for v in range(len(logits))])


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, -1, 1.0, 0.0),
        (0.7, 0, 1.0, 0.0),
        (1.0, 3, 1.0, 0.0),
        (1.0, -1, 0.8, 0.0),
        (1.0, -1, 1.0, 0.2),
        (1.5, 6, 0.9, 0.05),
    ],
)
def test_draws_follow_softmax_of_what_the_filters_leave(temperature, top_k, top_p, min_p):
    count = 20_000
    drawn = draw(
        EXAMPLE.expand(count, 8), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        seed=99, position=list(range(count)),
    )
    expected = law(EXAMPLE.tolist(), temperature, top_k, top_p, min_p) * count
    found = torch.bincount(torch.tensor(drawn), minlength=8)
    alive = expected > 0
    assert found[~alive].sum() == 0
    chi = ((found - expected)[alive] ** 2 / expected[alive]).sum()
    freedom = torch.tensor((alive.sum().item() - 1) / 2)
    assert torch.special.gammaincc(freedom, chi / 2) > 1e-4


def test_streams_of_one_request_are_independent():
    count, params = 20_000, SamplingParams(seed=7, n=2)
    position = list(range(count))
    flat = torch.zeros(count, 4)
    first, second = (
        torch.tensor(draw(flat, seed=params.stream_seed(i), position=position)) for i in (0, 1)
    )
    found = torch.bincount(first * 4 + second, minlength=16)
    chi = ((found - count / 16) ** 2 / (count / 16)).sum()
    assert torch.special.gammaincc(torch.tensor(7.5), chi / 2) > 1e-4


@given(
    st.lists(st.integers(-4, 4), min_size=1, max_size=12),
    st.integers(-1, 14),
    st.floats(1 / 128, 1.0, width=32),
    st.sampled_from([0.0, 0.01, 0.1, 0.5, 0.99]),
)
@settings(max_examples=150, deadline=None)
def test_filters_keep_what_a_sorting_oracle_keeps(logits, top_k, top_p, min_p):
    kept = keep(
        torch.tensor([logits]).float(), column(top_k), column(top_p), column(min_p)
    )
    # on a border the two may round differently, never beside it
    low = law(logits, 1.0, top_k, top_p - 1e-6, min_p) > 0
    high = law(logits, 1.0, top_k, top_p + 1e-6 if top_p < 1 else 2.0, min_p) > 0
    assert (low <= kept[0]).all()
    assert (kept[0] <= high).all()
    assert kept.any()


@pytest.mark.parametrize(("top_p", "count"), [(0.25, 1), (0.5, 2), (0.51, 3), (0.75, 3), (1.0, 4)])
def test_mass_exactly_on_the_border_is_enough(top_p, count):
    kept = keep(torch.zeros(1, 4), column(0), column(top_p), column(0.0))
    assert kept[0].tolist() == [True] * count + [False] * (4 - count)


def test_ten_equal_tokens_are_cut_at_tenths():
    for tenth in range(1, 11):
        kept = keep(torch.zeros(1, 10), column(0), column(tenth / 10), column(0.0))
        assert kept.sum() == tenth


def test_ties_at_the_border_of_top_k_go_to_the_lowest_ids():
    logits = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0]])
    kept = keep(logits, column(3), column(1.0), column(0.0))
    assert kept[0].tolist() == [True, True, False, True, False]
    # an unstable sort keeps order by luck in short rows
    kept = keep(torch.zeros(1, 5000), column(70), column(1.0), column(0.0))
    assert kept[0].nonzero()[:, 0].tolist() == list(range(70))


def test_top_p_acts_on_what_top_k_left_and_min_p_on_the_maximum():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    # after top-k 2 the masses are 4/7 and 3/7; of all four 0.4 alone would not reach 0.5
    assert keep(logits, column(2), column(0.5), column(0.0)).sum() == 1
    assert keep(logits, column(0), column(0.5), column(0.0)).sum() == 2
    assert keep(logits, column(0), column(1.0), column(0.6)).sum() == 2
    assert keep(logits, column(0), column(1e-9), column(1.0)).sum() == 1


def test_greedy_takes_the_lowest_id_on_ties_and_uses_no_noise():
    logits = torch.tensor([[0.0, 5.0, 5.0, 1.0]])
    for seed in range(20):
        assert draw(logits, temperature=0.0, seed=seed, top_k=3) == [1]


def test_a_temperature_of_a_hundred_thousandth_still_draws_between_ties():
    logits = torch.tensor([[0.0, 5.0, 5.0, 1.0]]).expand(64, 4)
    position = list(range(64))
    assert set(draw(logits, temperature=1e-5, position=position)) == {1, 2}
    assert set(draw(logits, temperature=9.9e-6, position=position)) == {1}


def test_a_masked_token_is_never_chosen_and_shifts_nothing():
    masked = EXAMPLE.clone()
    masked[4] = -torch.inf  # token 4 is never chosen in the example
    positions = list(range(7, 23))
    assert draw(masked.expand(16, 8), seed=1234, position=positions) == CHOICES
    single = torch.full((64, 9), -torch.inf)
    single[:, 6] = -50.0
    assert set(draw(single, seed=3, position=list(range(64)))) == {6}


# Cases of the fault list


def test_bl_48_a_seeded_row_is_the_same_at_every_place_and_beside_any_neighbor():
    generator = torch.Generator().manual_seed(1)
    alone = draw(EXAMPLE[None].expand(16, 8), seed=42, position=list(range(16)))
    for place in range(4):
        for neighbor in ({"temperature": 0.0}, {"top_k": 1}, {"seed": 2**63 + 5}, {"top_p": 0.1}):
            for position, expected in enumerate(alone):
                logits = torch.randn(4, 8, generator=generator) * 9
                logits[place] = EXAMPLE
                rows = {name: [value] * 4 for name, value in (NEUTRAL | neighbor).items()}
                for name, value in (NEUTRAL | {"seed": 42, "position": position}).items():
                    rows[name][place] = value
                assert draw(logits, **rows)[place] == expected


def test_bl_50_a_top_k_beyond_the_vocabulary_is_off_and_disturbs_no_neighbor():
    top_k = [-1, 0, 1, 8, 9, 10**7, 2**31 - 1]
    mixed = draw(EXAMPLE.expand(7, 8), top_k=top_k, seed=1234, position=8)
    off = draw(EXAMPLE[None], seed=1234, position=8)[0]
    assert mixed == [off, off, 7, off, off, off, off]
    temperature = [0.0, 1.0] * 3 + [0.0]
    mixed = draw(EXAMPLE.expand(7, 8), top_k=top_k, temperature=temperature, seed=1234, position=8)
    assert mixed == [7, off, 7, off, 7, off, 7]
    assert SamplingParams(top_k=10**7).top_k == 10**7


@pytest.mark.parametrize(("asked", "given_"), [(0, 0), (5, 5), (8, 8), (9, 8), (1000, 8), (-1, 8)])
def test_bl_52_logprobs_beyond_the_vocabulary_are_clamped_to_it(asked, given_):
    count = SamplingParams(logprobs=asked).alternatives(8)
    assert count == given_
    _, ids, values = top_logprobs(EXAMPLE[None], torch.tensor([7]), asked if asked > 0 else count)
    assert ids.shape == values.shape == (1, given_)


def test_bl_52_a_million_logprobs_are_refused():
    assert refusal(logprobs=10**6).startswith("logprobs = 1000000: must be None or an integer from")
    assert refusal(top_logprobs=10**6).startswith("top_logprobs = 1000000: must be ")
    assert SamplingParams().alternatives(8) is None


def penalized(logits, prompt=(), output=(), repetition=1.0, frequency=0.0, presence=0.0, bias=None):
    size = len(logits)
    counts = [
        torch.bincount(torch.tensor(ids, dtype=torch.int64), minlength=size).int()[None]
        for ids in (prompt, output)
    ]
    bias = torch.zeros(size) if bias is None else bias
    numbers = (column(repetition), column(frequency), column(presence))
    return penalize(torch.tensor([logits]), *counts, *numbers, bias[None])[0].tolist()


def test_bl_54_repetition_counts_prompt_and_output():
    logits = [3.0, 2.0, 1.0, -1.0]
    assert penalized(logits, prompt=[0], repetition=2.0) == [1.5, 2.0, 1.0, -1.0]
    assert penalized(logits, output=[0, 3], repetition=2.0) == [1.5, 2.0, 1.0, -2.0]
    strong = penalized(logits, prompt=[0, 3], output=[1], repetition=1e6)
    assert strong.index(max(strong)) == 2


def test_bl_54_presence_and_frequency_count_the_output_only():
    logits = [3.0, 2.0, 1.0]
    assert penalized(logits, prompt=[0, 0, 1], frequency=2.0, presence=2.0) == logits
    assert penalized(logits, prompt=[1], output=[0, 0], frequency=0.5) == [2.0, 2.0, 1.0]
    assert penalized(logits, output=[0, 0], presence=0.5) == [2.5, 2.0, 1.0]


def test_bias_comes_before_repetition_and_repetition_before_the_others():
    bias = torch.tensor([-4.0, 0.0])
    found = penalized([3.0, 1.0], output=[0], repetition=2.0, presence=1.0, bias=bias)
    assert found == [-3.0, 1.0]


def test_bl_57_logprobs_are_those_of_the_raw_logits():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)) * 4
    chosen, ids, values = top_logprobs(logits, torch.tensor([1, 2, 3]), 5)
    expected = logits.double().log_softmax(-1)
    assert torch.allclose(chosen.double(), expected[[0, 1, 2], [1, 2, 3]], atol=1e-6)
    assert torch.equal(values, expected.float().gather(-1, ids))
    assert SamplingParams(logprobs=5, logprobs_mode="raw").logprobs == 5
    assert "not in this version" in refusal(logprobs=5, logprobs_mode="processed")


def test_equal_logprobs_are_listed_lowest_id_first():
    _, ids, _ = top_logprobs(torch.tensor([[0.0, 2.0, 1.0, 2.0, 2.0]]), torch.tensor([0]), 4)
    assert ids[0].tolist() == [1, 3, 4, 2]


def test_bl_26_a_broken_row_is_reported_and_its_neighbors_are_not_touched():
    """NaN, and a row in which everything is banned."""
    logits = EXAMPLE.expand(4, 8).clone()
    good = draw(logits, seed=1234, position=[7, 8, 9, 10], temperature=[1.0, 0.0, 1.0, 0.0])
    logits[0, 3] = torch.nan
    logits[1] = -torch.inf
    broken = draw(logits, seed=1234, position=[7, 8, 9, 10], temperature=[1.0, 0.0, 1.0, 0.0])
    assert broken == [-1, -1, *good[2:]]
    logits[3, 0] = torch.nan
    assert draw(logits, temperature=[0.0, 1.0, 1.0, 0.0])[3] == -1


@pytest.mark.parametrize("operator", contract.OPERATORS, ids=lambda operator: operator.name)
def test_the_reference_takes_every_input_of_the_catalogue(operator):
    function = {"penalize": penalize, "sample": sample, "top_logprobs": top_logprobs}
    for rows in (0, 1, 5):
        for edge in ("", "ties", "masked", "nan"):
            inputs = operator.inputs({"vocabulary": 33}, rows, 3, edge)
            found = function[operator.name.split(".")[1]](**inputs)
            first = found[0] if isinstance(found, tuple) else found
            assert first.shape[0] == rows
