"""Operators on inputs small enough to be computed by hand, where a wrong reading of the
specification gives another number."""

from __future__ import annotations

import json
import math
import struct

import pytest
import torch
from houses import FOLDER, exact

from deepinfer.ops.values import ExpertRows, Quantized
from deepinfer.reference import attention, records, tensor
from deepinfer.reference.numerics import OFFICIAL, Numerics
from deepinfer.reference.quantizers import from_e2m1, from_e8m0, q4_entry, q4_index, q8, scaled

UNROUNDED = Numerics(rounding=False, wide=torch.float64)


def random(*shape: int, seed: int = 4) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


# --- quantizers -----------------------------------------------------------------------------------


def test_the_scale_of_q8_steps_up_behind_the_largest_value():
    """Backbone 3.1: 448 times a power of two fits exactly; the next BF16 number needs the next."""
    x = torch.zeros(32).bfloat16()
    for exponent in (-16, -3, 0, 7):
        x[3] = 448 * 2.0**exponent
        assert q8(x)[1].tolist() == [2.0**exponent]
        x[3] = 450 * 2.0**exponent
        assert q8(x)[1].tolist() == [2.0 ** (exponent + 1)]


def test_the_entry_scale_is_a_true_division_and_saturates():
    """Backbone 3.1: every BF16 amax against the division in double; beyond 448 * 6 it stays 448."""
    amax = torch.arange(0x3C00, 0x4520, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x = torch.zeros(len(amax), 16).bfloat16()
    x[:, 5] = amax
    expected = (amax.double() / 6).float().to(torch.float8_e4m3fn).float()
    assert torch.equal(q4_entry(x)[1].float()[:, 0], expected)
    x[0, 5] = 10000.0
    codes, scale = q4_entry(x[:1])
    assert scale.float().tolist() == [[448.0]]
    assert from_e2m1(codes)[0, 5] == 6


def test_tiny_index_keys_keep_their_own_scale():
    """Backbone 3.1: the floor of Q4i is the smallest normal power of two, not 1e-4."""
    x = torch.zeros(32).bfloat16()
    x[0] = 2.0**-60
    codes, scale = q4_index(x)
    assert scale.tolist() == [2.0**-62]
    assert float(from_e2m1(codes)[0] * scale[0]) == 2.0**-60
    assert q4_index(torch.zeros(32).bfloat16())[1].tolist() == [2.0**-126]


def test_scale_byte_zero_is_a_subnormal_and_255_is_nan():
    """Backbone 2.2: byte b is 2^(b - 127); NaN is how a recycled cache row looks."""
    found = from_e8m0(torch.arange(256, dtype=torch.int32).to(torch.uint8))
    assert found[:255].double().tolist() == [2.0 ** (b - 127) for b in range(255)]
    assert not found[255].isfinite()


# --- weights as they were loaded ------------------------------------------------------------------


def raw(name: str) -> tuple[bytes, list[int]]:
    """A tensor's bytes and shape by the safetensors format, without a library."""
    index = json.loads((FOLDER / "model.safetensors.index.json").read_text())
    content = (FOLDER / index["weight_map"][name]).read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])[name]
    begin, end = header["data_offsets"]
    return content[8 + size + begin : 8 + size + end], header["shape"]


def e4m3(byte: int) -> float:
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    size = (1 + mantissa / 8) * 2.0 ** (exponent - 7) if exponent else mantissa / 8 * 2.0**-6
    return -size if byte & 128 else size


def e2m1(code: int) -> float:
    return [0, 0.5, 1, 1.5, 2, 3, 4, 6][code & 7] * (-1 if code & 8 else 1)


def decoded_fp8(name: str) -> torch.Tensor:
    values, (rows, columns) = raw(name + ".weight")
    scale, (_, wide) = raw(name + ".scale")
    return torch.tensor(
        [
            [
                e4m3(values[r * columns + c]) * 2.0 ** (scale[r // 32 * wide + c // 32] - 127)
                for c in range(columns)
            ]
            for r in range(rows)
        ],
        dtype=torch.float64,
    )


def decoded_fp4(name: str) -> torch.Tensor:
    values, (rows, half) = raw(name + ".weight")
    scale, (_, wide) = raw(name + ".scale")
    return torch.tensor(
        [
            [
                e2m1(values[r * half + c // 2] >> (4 if c % 2 else 0) & 15)
                * 2.0 ** (scale[r * wide + c // 32] - 127)
                for c in range(2 * half)
            ]
            for r in range(rows)
        ],
        dtype=torch.float64,
    )


def test_loaded_weights_equal_an_independent_decode_of_the_file():
    """BL-18: FP8 with 32x32 tiles, FP4 experts, FP8 rows of the n-gram table, fused or not."""
    layer = exact().model.weights.layers[4]
    fused = [decoded_fp8(f"layers.4.attn.{name}") for name in ("wq_a", "wkv")]
    assert torch.equal(layer.attention.wq_a_wkv, torch.cat(fused))
    queries = [decoded_fp8(f"layers.4.attn.{name}") for name in ("wq_b", "indexer.wq_b")]
    assert torch.equal(layer.attention.wq_b, torch.cat(queries))
    rounded = decoded_fp8("layers.4.attn.wo_a").float().bfloat16().double()
    assert torch.equal(layer.attention.wo_a, rounded)
    for expert in (0, 7):
        prefix = f"layers.4.ffn.experts.{expert}."
        gate_up = torch.cat([decoded_fp4(prefix + "w1"), decoded_fp4(prefix + "w3")])
        assert torch.equal(layer.experts.w13[expert], gate_up)
        assert torch.equal(layer.experts.w2[expert], decoded_fp4(prefix + "w2"))


# --- rotation, routing, experts -------------------------------------------------------------------


@pytest.mark.parametrize("position", [3, 65537, 999_983])
def test_the_angle_is_a_product_in_fp32(position):
    """Backbone 3.4: near 10^6 an angle formed in FP64 is another one."""
    frequencies = (10000.0 ** (-torch.arange(8, dtype=torch.float64) / 8)).float()
    x = torch.zeros(1, 32, dtype=torch.float64)
    x[0, 16::2] = 1.0
    turned = tensor.rope(x, torch.tensor([position]), frequencies, n=UNROUNDED)
    for pair, frequency in enumerate(frequencies):
        angle = float(torch.tensor(float(position)) * frequency)
        assert float(turned[0, 16 + 2 * pair]) == pytest.approx(math.cos(angle), abs=2e-7)
        assert float(turned[0, 17 + 2 * pair]) == pytest.approx(math.sin(angle), abs=2e-7)
    assert not turned[0, :16].any()
    wide = position * float(frequencies[1])
    far = abs(math.cos(wide) - math.cos(float(torch.tensor(float(position)) * frequencies[1])))
    assert far > 1e-3 or position < 10**5


def test_the_bias_chooses_experts_and_is_not_in_their_weights():
    """Backbone 3.8 steps 2 and 3."""
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    experts, weights = tensor.route(logits, torch.tensor([9.0, 0, 0, 0]), 2, 1.5)
    assert experts.tolist() == [[0, 3]]
    score = [math.sqrt(math.log1p(math.exp(x))) for x in (0.0, 3.0)]
    assert weights[0].tolist() == pytest.approx([1.5 * s / sum(score) for s in score], rel=1e-6)


def test_experts_far_below_zero_keep_their_digits_and_meet_the_floor_of_the_sum():
    """Backbone 3.8 step 3: softplus(-90) is 8e-40, its root 3e-20, near the 1e-20 of the sum."""
    logits = torch.tensor([[-90.0, -91.0, -99.0], [-60.0, -61.0, -99.0]])
    _, weights = tensor.route(logits, torch.zeros(3), 2, 1.5, n=UNROUNDED)
    for found, first in zip(weights.tolist(), (-90.0, -60.0), strict=True):
        score = [math.exp(first / 2), math.exp((first - 1) / 2)]
        expected = [1.5 * one / (sum(score) + 1e-20) for one in score]
        assert found == pytest.approx(expected, rel=1e-9)
    _, weights = tensor.route(logits[1:], torch.zeros(3), 2, 1.5)
    assert weights[0].tolist() == pytest.approx(expected, rel=1e-5)


def test_the_gate_is_clamped_from_above_only_and_the_other_branch_on_both_sides():
    """Backbone 3.8 step 4."""
    gate_up = torch.zeros(1, 64).bfloat16()
    gate_up[0, :4] = torch.tensor([20.0, -20.0, 1.0, 1.0])
    gate_up[0, 32:36] = torch.tensor([1.0, 1.0, 30.0, -30.0])
    plain = tensor.swiglu_quantize(gate_up, None, 10.0, n=UNROUNDED).values[0, :4].tolist()

    def silu(x: float) -> float:
        return x / (1 + math.exp(-x))

    expected = [silu(10.0), silu(-20.0), 10 * silu(1.0), -10 * silu(1.0)]
    assert plain == pytest.approx(expected, rel=1e-12)


def test_the_routing_weight_is_applied_before_the_one_rounding():
    """Backbone 3.8 step 4, 5.2 N8: bf(w * product) and not bf(w * bf(product))."""
    gate_up, weight = random(64, 64, seed=1), random(64, seed=2).float().abs() + 0.1
    gate, up = gate_up.float().chunk(2, -1)
    product = gate * torch.sigmoid(gate) * up
    once = (weight[:, None] * product).bfloat16()
    twice = (weight[:, None] * product.bfloat16().float()).bfloat16()
    assert not torch.equal(once, twice)
    found = tensor.swiglu_quantize(gate_up, weight, 10.0)
    codes, scale = q8(once)
    assert torch.equal(found.values.view(torch.uint8), codes.view(torch.uint8))
    assert torch.equal(from_e8m0(found.scale), scale)


def test_experts_are_summed_in_increasing_number_and_the_shared_one_last():
    """Backbone 3.8 step 5: in FP32 1 + 2^25 - 2^25 is 0 from the left and 1 from the right."""
    y = torch.tensor([[1.0], [2.0**25], [-(2.0**25)]]).bfloat16()
    rows = ExpertRows(
        Quantized(torch.empty(0)), torch.ones(3), torch.arange(3), torch.tensor([0, 1, 2, 3])
    )
    shared = torch.tensor([[0.5]]).bfloat16()
    assert tensor.unpermute_rows(y, rows, shared, 3).tolist() == [[0.5]]
    rows = rows._replace(source=torch.tensor([2, 0, 1]))
    assert tensor.unpermute_rows(y, rows, shared, 3).tolist() == [[1.5]]


# --- streams and the n-gram memory ----------------------------------------------------------------


def test_the_stream_is_mixed_over_the_first_index():
    """Backbone 3.3: R'[k] = post[k] * y + sum over i of C[i, k] * R[i]."""
    stream = torch.tensor([[[1.0], [10.0]]]).bfloat16()
    mix = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    y, post = torch.tensor([[100.0]]).bfloat16(), torch.tensor([[1.0, 0.0]])
    found = tensor.hyper_post(stream, y, post, mix)
    assert found[0, :, 0].tolist() == [100 + 1 * 1 + 3 * 10, 2 * 1 + 4 * 10]
    assert tensor.hyper_collapse(stream, torch.tensor([[0.5, 2.0]])).tolist() == [[20.5]]
    assert tensor.mean_copies(stream).tolist() == [[5.5]]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_mixing_matrix_ends_with_its_columns(steps):
    """Backbone 3.3 step 4: softmax over rows, `steps` column and `steps` - 1 row normalizations. At
    20 steps one more or less cannot be seen."""
    base = random(8, seed=6).double() * 3
    stream, fn = torch.ones(1, 2, 32).double(), torch.zeros(8, 64).double()
    mix = base[4:].view(2, 2).softmax(-1) + 1e-6
    for step in range(2 * steps - 1):
        mix = mix / (mix.sum(step % 2, keepdim=True) + 1e-6)
    scale = torch.ones(3)
    found = tensor.hyper_pre(stream, fn, scale, base, 1e-20, 1e-6, steps, n=UNROUNDED)
    torch.testing.assert_close(found[2][0], mix, rtol=1e-12, atol=0)


def test_the_gate_of_the_memory_opens_by_a_thousandth_at_zero_and_never_for_dead_tokens():
    """Backbone 3.9, 5.2 N9: sigmoid(sqrt(1e-6)) at d = +0."""
    stream = torch.zeros(2, 1, 32, dtype=torch.float64)
    kv = torch.ones(2, 64, dtype=torch.float64)
    ones = torch.ones(1, 32, dtype=torch.float64)
    dead = torch.tensor([False, True])
    found = tensor.engram_gate(stream, kv, ones, ones, dead, 1e-20, n=UNROUNDED)
    assert found[0, 0].tolist() == pytest.approx([1 / (1 + math.exp(-1e-3))] * 32, rel=1e-12)
    assert not found[1].any()


def test_the_gate_of_the_memory_follows_its_formula():
    stream, kv = random(3, 2, 32, seed=1).double(), random(3, 96, seed=2).double()
    q, k = random(2, 32, seed=3).double(), random(2, 32, seed=4).double()
    alive = torch.zeros(3, dtype=torch.bool)
    found = tensor.engram_gate(stream, kv, q, k, alive, 1e-20, n=UNROUNDED)
    for token in range(3):
        for copy in range(2):
            r, key = stream[token, copy], kv[token, 32 * copy : 32 * copy + 32]
            d = float((r * q[copy] * k[copy] * key).sum())
            d /= math.sqrt(float(r @ r) / 32) * math.sqrt(float(key @ key) / 32) * math.sqrt(32)
            gate = 1 / (1 + math.exp(-math.copysign(math.sqrt(max(abs(d), 1e-6)), d)))
            assert torch.allclose(found[token, copy], r + gate * kv[token, 64:], rtol=1e-12)


# --- caches, scores and pooling -------------------------------------------------------------------


def test_index_scores_equal_the_sum_over_heads_with_one_rounding_of_the_head_weights():
    """Backbone 3.7: bf(w * scale) * relu(q . k); blocks of the sequence in any order."""
    query, weights, keys = random(4, 3, 32, seed=1), random(4, 3, seed=2), random(16, 32, seed=3)
    cache = torch.full((64, 17), 0xFF, dtype=torch.uint8)
    table = torch.tensor([[5, 1, 7], [0, 3, 2]], dtype=torch.int32)
    number = torch.arange(16)
    rows = table[1].long()[number // 8] * 8 + number % 8
    attention.store_index(cache, rows, keys)
    visible = torch.tensor([16, 3, 0, 9], dtype=torch.int32)
    owner = torch.ones(4, dtype=torch.int64)
    scale = 96**-0.5
    found = attention.index_logits(query, weights, scale, cache, table, owner, visible, 16, 8)
    q, k = (
        scaled(from_e2m1(codes), factor, 32).double()
        for codes, factor in (q4_index(query), q4_index(keys))
    )
    w = (weights.float() * scale).bfloat16().double()
    expected = (w[:, :, None] * torch.einsum("thd,cd->thc", q, k).relu()).sum(1)
    for token, seen in enumerate(visible.tolist()):
        assert (found[token, seen:] == -torch.inf).all()
        torch.testing.assert_close(
            found[token, :seen].double(), expected[token, :seen], rtol=1e-5, atol=1e-5
        )


def test_pooling_weighs_two_tokens_per_channel_and_rounds_before_the_norm():
    """Backbone 3.6, 5.2 N2."""
    kv, gate = random(2, 32, seed=1).float() * 1.7, random(2, 32, seed=2).float()
    weight = random(32, seed=3)
    w = torch.sigmoid(gate[0] - gate[1])
    pooled = (w * kv[0] + (1 - w) * kv[1]).bfloat16()
    expected = tensor.rms_norm(pooled[None], weight, 1e-20)
    empty = torch.full((8, 64), torch.nan)
    sources = torch.tensor([[0, 1]])
    found = attention.compress(kv, gate, empty, sources, weight, 1e-20)
    assert torch.equal(found, expected)
    unrounded = tensor.rms_norm(w * kv[0] + (1 - w) * kv[1], weight.float(), 1e-20)
    assert not torch.equal(found[0], unrounded)
    attention.store_open(empty, torch.tensor([5]), kv[:1], gate[:1])
    sources = torch.tensor([[-1 - 5, 0]])
    assert torch.equal(
        attention.compress(kv[1:], gate[1:], empty, sources, weight, 1e-20), expected
    )


def test_probabilities_are_rounded_for_the_values_only():
    """Backbone 3.5 step 5: bf16 relative to the running maximum over 64 slots, FP32 below."""
    q, keys = random(1, 1, 32, seed=1), random(100, 32, seed=2)
    index = torch.arange(100, dtype=torch.int32)[None]
    out, _ = attention.sparse_prefill(q, keys, index, None, None, torch.zeros(1), 0.3)
    score = (keys.double() @ q[0, 0].double()) * 0.3
    top, mass, total = -1e30, 0.0, torch.zeros(32, dtype=torch.float64)
    for first in (0, 64):
        part = score[first : first + 64]
        now = max(top, float(part.max()))
        p = torch.exp(part - now)
        rounded = p.float().bfloat16().double()
        mass = mass * math.exp(top - now) + float(p.sum())
        total = total * math.exp(top - now) + rounded @ keys[first : first + 64].double()
        top = now
    expected = total / (mass + math.exp(-top))
    assert float((out[0, 0].double() - expected).norm() / expected.norm()) < 2.0**-8
    wide = attention.sparse_prefill(
        q, keys, index, None, None, torch.zeros(1), 0.3, n=Numerics(wide=torch.float64)
    )[0][0, 0]
    assert torch.equal(wide, expected.float().bfloat16())


def test_an_empty_slot_of_a_gather_stays_empty_and_others_follow_the_block_table():
    entries = torch.tensor([[0, 9, -1], [7, -1, 16]], dtype=torch.int32)
    table = torch.tensor([[4, 2, 9], [1, 0, 3]], dtype=torch.int32)
    found = tensor.entry_rows(entries, table, torch.tensor([0, 1]), 8)
    assert found.tolist() == [[32, 17, -1], [15, -1, 24]]
    assert found.dtype == torch.int32


@pytest.mark.parametrize("record", ["window", "entry"])
def test_rows_that_have_no_home_are_not_written(record):
    """A negative row must not wrap around to the end of the cache."""
    width = {"window": 33, "entry": 18}[record]
    cache = torch.full((6, width), 0xFF, dtype=torch.uint8)
    values = random(3, 32, seed=7)
    records.write(cache, torch.tensor([-1, 2, -1]), values, record, OFFICIAL)
    untouched = torch.arange(6) != 2
    assert (cache[untouched] == 0xFF).all()
    found = records.read(cache, torch.tensor([2]), record, OFFICIAL)
    assert torch.equal(found, records.round_trip(values[1:2], record, OFFICIAL))
