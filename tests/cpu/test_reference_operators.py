"""Every operator of the catalogue: its generator, its contract, the specification's examples."""

from __future__ import annotations

import inspect
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from promises import MINUS_INFINITY, PROMISES, Promise

from deepinfer.engine import start
from deepinfer.engine.start import Planned, Wish
from deepinfer.model.shape import Shape
from deepinfer.ops.catalogue import CATALOGUE
from deepinfer.ops.operator import EXACT, Operator, relative, ulp
from deepinfer.ops.table import Table
from deepinfer.ops.values import Weight
from deepinfer.plugin.bind import bind
from deepinfer.reference import attention, tensor
from deepinfer.reference.quantizers import (
    dequantize,
    from_e2m1,
    from_e8m0,
    pack_pairs,
    pow2ceil,
    q4_entry,
    q4_index,
    q8,
    to_e2m1,
    unpack_pairs,
)
from deepinfer.reference.records import decode, encode
from deepinfer.testing.inputs import arguments
from deepinfer.testing.measure import within

FOLDER = Path(__file__).parents[1] / "golden" / "tiny_a"
ONE_PROCESS = [op for op in CATALOGUE.operators.values() if op.family != "all_to_all"]


def made(**modes: str) -> tuple[Planned, Table]:
    planned = start.plan(
        Shape.load(FOLDER), Wish("tiny_a", "reference", 2, 128, 512, modes, drafts=True)
    )
    return planned, bind(planned.plan, planned.declared, Table)


@pytest.fixture(scope="module")
def single() -> tuple[Planned, Table]:
    return made()


@pytest.fixture(scope="module")
def double() -> tuple[Planned, Table]:
    return made(accumulate="float64")


def result(
    house: tuple[Planned, Table], op: Operator, tokens: int, seed: int, edge: str
) -> tuple[list[torch.Tensor], Promise]:
    """The tensors of one call, and the shapes and dtypes that its contract promises."""
    planned, table = house
    dims = planned.declared.model.dims
    records = start.cache_records(planned.declared, planned.plan)
    call = arguments(op, dims, records, table, tokens, seed, edge)
    promised = PROMISES[op.name](call | {"seed": seed}, dims)
    returned = table[op.name](**call)
    return tensors(call["cache"] if returned is None else returned), promised


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple):
        return [one for part in value for one in tensors(part)]
    return []


@pytest.mark.parametrize("op", ONE_PROCESS, ids=lambda op: op.name)
def test_the_reference_keeps_its_own_contract_at_every_size_and_edge(single, double, op):
    """Shapes, dtypes, finite numbers, the row's tolerance: 0, 1, odd and many tokens, every edge of
    the row, poison in slots that are not read."""
    for tokens in (0, 1, 7, 33):
        for seed, edge in enumerate(("", *op.edges)):
            one, promised = result(single, op, tokens, seed, edge)
            two, _ = result(double, op, tokens, seed, edge)
            assert [(tuple(t.shape), t.dtype) for t in one] == promised, (tokens, edge)
            for found, want in zip(one, two, strict=True):
                poisoned = op.name.startswith("attention.store") and found.shape[0] == 256
                if found.is_floating_point() and found.dtype.itemsize > 1 and not poisoned:
                    assert not torch.isnan(found).any(), (tokens, edge)
                    assert not (found == torch.inf).any(), (tokens, edge)
                    below = (found == -torch.inf).any()
                    assert not below or op.name in MINUS_INFINITY, (tokens, edge)
                assert within(found, want, op.tolerance), (op.name, tokens, edge)


@pytest.mark.parametrize("op", CATALOGUE.operators.values(), ids=lambda op: op.name)
def test_a_reference_function_has_the_catalogues_signature(op):
    family = "exchange" if op.family == "all_to_all" else op.family
    module = import_module(f"deepinfer.reference.{family}")
    function = getattr(module, op.name.split(".")[1])

    def offered(call: Any) -> list[tuple[str, Any, Any]]:
        parameters = inspect.signature(call).parameters.values()
        return [(p.name, p.kind, p.default) for p in parameters if p.name != "n"]

    assert offered(function) == offered(op.call)


def test_pow2ceil_is_exact_at_and_just_above_powers_of_two():
    """Backbone 8.3 item 3."""
    powers = 2.0 ** torch.arange(-100, 100, dtype=torch.float32)
    assert torch.equal(pow2ceil(powers), powers)
    above = torch.nextafter(powers, torch.tensor(torch.inf))
    assert torch.equal(pow2ceil(above), 2 * powers)


def test_e2m1_ties_go_to_the_even_code():
    """Backbone 3.1."""
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0, -0.25, -5.0])
    expected = torch.tensor([0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, -0.0, -4.0])
    assert torch.equal(from_e2m1(to_e2m1(ties)), expected)


def test_the_example_of_the_entry_quantizer():
    """Backbone 8.3 item 3: scale 0.140625 and the printed magnitudes."""
    x = (0.1 * torch.arange(16) - 0.7).bfloat16()
    codes, scale = q4_entry(x)
    magnitudes = [0.5625] * 3 + [0.421875, 0.28125, 0.2109375, 0.0703125, 0, 0.0703125, 0.2109375]
    magnitudes += [0.28125, 0.421875] + [0.5625] * 3 + [0.84375]
    assert scale.float().tolist() == [0.140625]
    values = from_e2m1(codes) * 0.140625
    assert values.abs().tolist() == magnitudes
    assert (values[:7] < 0).all()
    both = torch.cat([x, 2 * x])
    assert q4_index(both)[1].tolist() == [0.5]
    assert q8(both)[1].tolist() == [2.0**-8]


def test_a_zero_group_keeps_the_floor_of_its_scale():
    zero = torch.zeros(32).bfloat16()
    codes, scale = q4_entry(zero)
    assert scale.float().tolist() == [2.0**-9] * 2
    assert not from_e2m1(codes).any()
    assert not decode(encode(zero[None], "window"), "window").any()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(["window", "entry", "index"]))
def test_a_packed_record_gives_back_what_was_stored(seed, record):
    """A second round trip changes nothing: stored values lie on the grid."""
    draw = torch.Generator().manual_seed(seed)
    x = (torch.randn(5, 64, generator=draw) * 3).bfloat16()
    once = decode(encode(x, record), record).bfloat16()
    assert torch.equal(decode(encode(once, record), record).bfloat16(), once)
    assert float((once - x).norm() / x.norm()) < (0.04 if record == "window" else 0.2)


def test_pairs_hold_the_even_element_in_the_low_nibble():
    codes = torch.tensor([[1, 2, 3, 4]], dtype=torch.uint8)
    assert pack_pairs(codes).tolist() == [[0x21, 0x43]]
    assert torch.equal(unpack_pairs(pack_pairs(codes)), codes)


def test_scale_bytes_are_exponents_and_never_numbers():
    """BL-18: byte 120 is 2^-7; an independent decode of a whole expert weight agrees."""
    assert from_e8m0(torch.tensor([120], dtype=torch.uint8)).tolist() == [2.0**-7]
    draw = torch.Generator().manual_seed(1)
    pairs = torch.randint(-128, 128, (8, 32), generator=draw, dtype=torch.int8)
    scale = torch.randint(100, 140, (8, 2), generator=draw, dtype=torch.uint8)
    found = dequantize(Weight(pairs, scale.view(torch.float8_e8m0fnu)))
    table = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    for row in range(8):
        for column in range(64):
            byte = int(pairs[row, column // 2]) & 0xFF
            code = byte >> 4 if column % 2 else byte & 15
            want = (
                table[code & 7]
                * (-1 if code & 8 else 1)
                * 2.0 ** (int(scale[row, column // 32]) - 127)
            )
            assert float(found[row, column]) == want


def test_dense_scales_cover_tiles_of_32_by_32():
    values = torch.ones(64, 64).to(torch.float8_e4m3fn)
    scale = torch.tensor([[127, 128], [129, 130]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    found = dequantize(Weight(values, scale))
    assert [float(found[r, c]) for r in (0, 63) for c in (0, 63)] == [1, 2, 4, 8]


def test_the_hyper_connection_split_of_the_specification():
    """Backbone 8.3 item 4: m_t = 2 sin(t^2), scale 1, base 0."""
    m = 2 * torch.sin(torch.arange(24, dtype=torch.float64) ** 2)
    hidden = 32
    stream = torch.zeros(1, 4, hidden, dtype=torch.float64)
    stream[0, 0, 0] = math.sqrt(4 * hidden)  # mean of squares 1: the statistic drops out
    fn = torch.zeros(24, 4 * hidden, dtype=torch.float64)
    fn[:, 0] = m / math.sqrt(4 * hidden)
    wide = tensor.Numerics(rounding=False, wide=torch.float64)
    pre, post, mix = tensor.hyper_pre(
        stream, fn, torch.ones(3), torch.zeros(24), 1e-20, 1e-6, 20, n=wide
    )
    near = {"rtol": 0.0, "atol": 6e-7}
    torch.testing.assert_close(
        pre[0].float(), torch.tensor([0.500001, 0.843295, 0.180406, 0.695136]), **near
    )
    torch.testing.assert_close(
        post[0].float(), torch.tensor([0.719796, 0.868416, 0.241880, 0.258523]), **near
    )
    rows = [
        [0.722542, 0.016311, 0.013554, 0.247592],
        [0.138747, 0.055674, 0.788700, 0.016877],
        [0.106953, 0.374864, 0.114355, 0.403827],
        [0.031757, 0.553149, 0.083390, 0.331703],
    ]
    torch.testing.assert_close(mix[0].float(), torch.tensor(rows), **near)
    assert (mix.sum(1) - 0.999999).abs().max() < 1e-5


def test_hyper_connections_stay_doubly_stochastic_for_a_stream_of_zeros():
    """BL-10."""
    zero = torch.zeros(3, 4, 32).bfloat16()
    draw = torch.randn(24, 128, generator=torch.Generator().manual_seed(3))
    _, _, mix = tensor.hyper_pre(zero, draw, torch.ones(3), torch.zeros(24), 1e-20, 1e-6, 20)
    assert (mix.sum(1) - 1).abs().max() < 1e-3
    assert (mix.sum(2) - 1).abs().max() < 1e-3


def sparse(index: torch.Tensor, sink: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(5)
    q = torch.randn(len(index), 2, 32, generator=draw).bfloat16()
    keys = torch.randn(200, 32, generator=draw).bfloat16()
    return attention.sparse_prefill(q, keys, index, None, None, torch.full((2,), sink), 32**-0.5)


def test_a_row_without_keys_gives_zeros_and_an_empty_lse():
    """Backbone 8.3 item 5."""
    out, lse = sparse(torch.full((1, 70), -1, dtype=torch.int32))
    assert not out.any()
    assert (lse == -torch.inf).all()


@pytest.mark.parametrize("place", [64, 135], ids=["behind an empty block", "in the last slot"])
def test_an_empty_first_block_of_slots_makes_no_nan(place):
    """BL-01: 64 empty slots, then valid ones, equal the same keys listed first."""
    index = torch.full((1, 136), -1, dtype=torch.int32)
    keys = torch.arange(8, dtype=torch.int32)[: 136 - place]
    index[0, place : place + len(keys)] = keys
    dense = torch.full((1, 136), -1, dtype=torch.int32)
    dense[0, : len(keys)] = keys
    for sink in (0.0, 100.0, -torch.inf):
        assert torch.equal(sparse(index, sink)[0], sparse(dense, sink)[0])


def test_the_sink_is_only_in_the_denominator():
    index = torch.arange(8, dtype=torch.int32)[None]
    plain, lse = sparse(index, -torch.inf)
    sunk, same = sparse(index, 2.0)
    assert torch.equal(lse, same)
    mass = torch.exp2(lse.double())
    expected = plain.double() * (mass / (mass + math.exp(2.0)))[..., None]
    torch.testing.assert_close(sunk.double(), expected, rtol=2e-2, atol=1e-3)


def test_lse_is_the_logarithm_to_base_two_of_the_mass():
    draw = torch.Generator().manual_seed(5)
    q = torch.randn(1, 2, 32, generator=draw).bfloat16()
    keys = torch.randn(200, 32, generator=draw).bfloat16()
    scores = torch.einsum("thd,kd->thk", q.double(), keys[:8].double()) * 32**-0.5
    _, lse = sparse(torch.arange(8, dtype=torch.int32)[None])
    torch.testing.assert_close(
        lse.double(), torch.logsumexp(scores, -1) / math.log(2), rtol=0, atol=1e-5
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 60), st.integers(1, 20), st.booleans())
def test_selection_equals_brute_force_and_the_lowest_number_wins_ties(seed, count, top_k, coarse):
    """Backbone 8.3 item 8; BL-11: nothing twice, nothing masked, all of them when they fit."""
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randn(4, count, generator=draw)
    scores = scores.round() if coarse else scores
    visible = torch.randint(0, count + 1, (4,), generator=draw)
    scores = scores.masked_fill(torch.arange(count) >= visible[:, None], -torch.inf)
    found = attention.index_topk(scores, top_k)
    for row in range(4):
        numbers = sorted(range(int(visible[row])), key=lambda j: (-float(scores[row, j]), j))
        expected = sorted(numbers[:top_k])
        assert found[row].tolist() == expected + [-1] * (top_k - len(expected))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 70), st.integers(1, 6), st.integers(1, 4))
def test_candidates_keep_the_newest_block_and_lose_nothing_while_all_fit(seed, count, blocks, size):
    """Backbone 3.7, 8.3 item 8."""
    draw = torch.Generator().manual_seed(seed)
    visible = torch.randint(0, count + 1, (5,), generator=draw)
    scores = torch.randn(5, count, generator=draw)
    scores = scores.masked_fill(torch.arange(count) >= visible[:, None], -torch.inf)
    found = attention.candidate_blocks(scores, visible.int(), size, blocks)
    for row, seen in enumerate(visible.tolist()):
        kept = [block for block in found[row].tolist() if block >= 0]
        assert kept == sorted(set(kept))
        assert seen == 0 or (seen - 1) // size in kept
        if seen <= blocks * size - (size - 1):
            assert kept == list(range(-(-seen // size)))


def test_scores_inside_candidates_are_those_of_the_whole_width(single):
    """The consumer's compact scores pick the same entries as masking everything else would."""
    planned, table = single
    op = CATALOGUE["attention.index_logits"]
    records = start.cache_records(planned.declared, planned.plan)
    given_arguments = arguments(
        op, planned.declared.model.dims, records, table, 9, seed=2, edge="candidates"
    )
    compact = table.attention_index_logits(**given_arguments)
    candidates, size = given_arguments.pop("candidates"), given_arguments.pop("candidate_size")
    whole = table.attention_index_logits(**given_arguments)
    inside = (torch.arange(whole.shape[1])[:, None] // size == candidates[:, None]).any(-1)
    masked = whole.masked_fill(~inside, -torch.inf)
    assert torch.equal(
        table.attention_index_topk(compact, 4, candidates, size),
        table.attention_index_topk(masked, 4),
    )


def test_a_tolerance_refuses_what_it_should():
    """The judge of every kernel must be able to say no."""
    want = torch.linspace(-3, 3, 100).bfloat16()
    step = torch.nextafter(want, torch.full_like(want, 9))
    one, many, far = want.clone(), step.clone(), want.clone()
    one[7], far[7] = step[7], want[7] + 0.5
    assert within(want, want, EXACT)
    assert not within(one, want, EXACT)
    assert within(one, want, ulp(1, 0.01))
    assert not within(many, want, ulp(1, 0.01))
    assert not within(far, want, ulp(1, 0.01))
    assert not within(far, want, relative(1e-3))
    assert not within(torch.full_like(want, torch.nan), want, relative(1.0))
    assert not within(want.float(), want, EXACT)
