"""The memory ledger against the numbers that the specification prints, and against a real start."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.errors import MemoryShort, UsageError
from deepinfer.ledger import table
from deepinfer.ledger.account import LENGTHS, MOST_RANKS, Ledger, advice, make, slots_of
from deepinfer.ledger.ask import of_model
from deepinfer.ledger.parts import Counts, Options, Units
from deepinfer.ledger.weights import physical_experts
from deepinfer.model.locate import find_model
from deepinfer.model.shape import Shape
from deepinfer.open import FULL_LENGTH, load_model, plan_model
from deepinfer.settings import Settings

GB = 10**9
EXPERT = 18_800_640
RECORDS = {"window": 528, "entry": 288, "index": 68, "open": 4_096}
WIDENED = ("wo_a", "head", "compressors", "draft heads")
DERIVED = {"frequencies", "primes", "offsets", "multipliers"}  # computed, in no checkpoint
FIXED = ("weights", "engram", "workspace", "graphs", "exchange")


@cache
def shape(model: str = "official") -> Shape:
    return Shape.load(find_model(model))


def units(model: str = "official", **records: int) -> Units:
    """Of the official records, but for those that are given."""
    return Units.of(shape(model), RECORDS | records, 128, 136, 8)


def stored(*widened: str, **changes: Any) -> Options:
    """Section 8: 141 GB, 8 ranks, 8,192 rows, drafts; widened is only what is named."""
    unused = {term: "as stored" for term in WIDENED if term not in widened}
    return replace(Options(total=141 * GB, ranks=8, unused=unused), **changes)


def ledger(options: Options, model: str = "official") -> Ledger:
    return make(shape(model), units(model), options)


def row(one: Ledger, name: str) -> int:
    """Bytes of the row of this name."""
    return {each.name.strip(): each.bytes for each in one.rows}[name]


def settings(platform: str, **changes: Any) -> Settings:
    """The whole device may be used: a busy machine has little memory left for the reference."""
    whole = {"gpu_memory_utilization": 1.0} if platform == "reference" else {}
    return Settings.load({"platform": platform, **whole, **changes})


# units: engine specification 3.1, backbone 4.1


def test_units_are_those_of_the_table_of_pools():
    official = units()
    assert official.block == 113_920 == 128 * 890
    assert official.entries == (3 * 64 + 128) * 288
    assert official.keys == (3 * 64 + 128) * 68
    assert official.window == 2_872_320 == 40 * 136 * 528
    assert official.draft == 215_424 == 3 * 136 * 528
    assert official.open == 98_304 == 3 * 8 * 4_096
    assert official.slot(drafts=True) == 2_872_320 + 215_424 + 98_304
    assert official.slot(drafts=False) == 2_872_320 + 98_304


def test_snapshot_f_has_draft_rows_only_if_the_drafts_run():
    official = units()
    assert official.snapshot_e == 1_341_120 == 20 * 127 * 528
    assert official.snapshot_e // 890 == 1_506  # "equals 1,507 tokens", rounded up
    assert official.snapshot(drafts=True) == 2_884_992 == 40 * 127 * 528 + 3 * 128 * 528
    assert official.snapshot(drafts=False) == 40 * 127 * 528


def test_other_records_change_only_the_record_size():
    bf16 = units(window=1_024, entry=1_024, index=256)
    assert (bf16.window, bf16.draft) == (5_570_560, 417_792)
    assert bf16.block == 128 * 3_200
    other = units(window=584, entry=584, index=132)
    assert other.block == 128 * 5 * (584 + 132) // 2
    assert other.window == 40 * 136 * 584
    assert other.open == units().open


def test_the_plan_of_the_null_platform_has_the_official_records():
    found, _ = of_model("official", settings("null"), 8)
    assert found.units == units()


# weights: engine specification 8, backbone 7.1


def test_terms_of_the_weights_are_those_of_section_8():
    one = ledger(stored(*WIDENED))
    assert row(one, "replicated backbone") == 9_846_748_608 == 298_624_579_008 - 288_777_830_400
    assert row(one, "routed experts") == 40 * 48 * EXPERT
    assert row(one, "draft stages") == 713_428_872
    assert row(one, "draft experts") == 3 * 16 * EXPERT
    assert row(one, "wo_a in BF16") == 1_342_177_280
    assert row(one, "head in FP32") == 1_323_827_200
    assert row(ledger(stored(spare=2)), "spare expert slots") == 40 * 2 * EXPERT
    assert row(ledger(stored(vision=True)), "image tower") == 970_536_960


def test_compressors_of_ratio_2_double_and_the_one_of_ratio_1_stays():
    """Backbone 2.4: three pairs of 512 x 5,120 BF16 matrices; section 8 leaves them out."""
    assert row(ledger(stored("compressors")), "compressors in FP32") == 3 * 2 * 512 * 5_120 * 2


@pytest.mark.parametrize(
    ("ranks", "billions"),
    [(1, 306.6), (2, 158.6), (4, 84.6), (8, 47.6), (16, 29.1), (32, 19.8), (64, 15.2)],
)
def test_weights_by_ranks_are_those_of_the_table(ranks, billions):
    weights = ledger(stored(ranks=ranks)).part("weights")
    by_hand = 9_846_748_608 + 40 * (384 // ranks) * EXPERT + 713_428_872
    assert weights == by_hand + 3 * (128 // ranks) * EXPERT
    assert round(weights / GB, 1) == billions


def test_one_rank_holds_the_checkpoint_without_the_image_tower():
    one = ledger(stored(ranks=1, engram="device"))
    assert one.part("weights", "engram") + 970_536_960 == 510_286_023_000
    assert one.part("engram") == 202_758_032_400


def test_engram_tables_are_split_or_lie_once_in_host_memory():
    split, host = ledger(stored(engram="device")), ledger(stored())
    assert round(split.part("engram") / GB, 1) == 25.3
    assert (split.host, host.host, host.part("engram")) == (0, 202_758_032_400, 0)
    assert split.device - split.part("cache") - split.part("engram") == (
        host.device - host.part("cache")
    )


# the rest of section 8


def test_workspace_and_exchange_are_the_formulas_of_section_8():
    one, rows, logits = ledger(stored()), 8_192, 256 * 6
    per_row = 2 * 40_960 + 2 * 65_536 + 16_384 + 10_240
    pairs = -(-6 * rows * 9 // 5)
    experts = pairs * (5_280 + 9_216 + 10_240)
    assert one.part("workspace") == rows * per_row + experts + 268_435_456 + logits * 517_120
    assert one.part("exchange") == (2 * logits + rows) * (8 * 5_344 + 61_440)
    assert one.part("graphs") == 1_500_000_000


def test_one_rank_has_no_imbalance_and_exchanges_nothing():
    one = ledger(stored(ranks=1))
    assert row(one, "expert rows") == 6 * 8_192 * (5_280 + 9_216 + 10_240)
    assert one.part("exchange") == 0


def test_two_devices_of_141_gb_are_too_few():
    assert ledger(stored(ranks=2)).short > 0
    assert ledger(stored(ranks=4)).short == 0


def test_eight_devices_have_about_70_gb_for_caches():
    """Section 8 rounds: wo_a widened gives its 544,000 blocks to 0.3 %, all widened to 2 %."""
    one = ledger(stored("wo_a"))
    assert one.usable == 126_900_000_000
    assert one.cache_room == 70_110_208_120
    assert one.counts == Counts(slots=307, blocks=545_304)
    assert round(307 * one.units.slot(drafts=True) / GB, 1) == 1.0
    assert round(row(one, "snapshots") / GB) == 7
    assert round((one.counts.blocks - 1) * 128 / 10**6) == 70
    for widened in ((), WIDENED):
        blocks = ledger(stored(*widened)).counts.blocks
        assert abs(blocks / 544_000 - 1) < 0.025


def test_requests_are_the_floor_over_slots_and_blocks():
    one = ledger(stored("wo_a"))
    assert dict(one.requests()) == {
        4_096: 307, 32_768: 307, 131_072: 307, 524_288: 545_303 // 4_096, 1_048_576: 66,
    }  # fmt: skip
    assert tuple(length for length, _ in one.requests()) == LENGTHS


def test_global_cache_of_a_full_request_is_933_mb():
    assert 8_192 * units().block == 933_232_640
    assert ledger(stored()).blocks_wanted == 8_193


# properties


RANKS = st.integers(1, MOST_RANKS)
OPTIONS = st.builds(
    Options,
    total=st.integers(20 * GB, 400 * GB),
    others=st.integers(0, 5 * GB),
    utilization=st.sampled_from([0.5, 0.9, 0.95, 1.0]),
    ranks=RANKS,
    max_model_len=st.sampled_from([0, 1, 128, 100_000, 1_048_576]),
    max_num_seqs=st.sampled_from([1, 2, 7, 256, 3_000]),
    step_tokens=st.sampled_from([1, 128, 1_024, 8_192]),
    drafts=st.booleans(),
    redundant=st.integers(0, 64),
    spare=st.integers(0, 2),
    engram=st.sampled_from(["host", "device"]),
    full_requests=st.sampled_from([1, FULL_LENGTH]),
    unused=st.sampled_from([{}, {"snapshots": "off"}, {"graphs": "none", "exchange": "none"}]),
)


@given(OPTIONS)
def test_rows_add_up_and_nothing_is_left_over(options):
    one = ledger(options)
    assert sum(each.bytes for each in one.rows if each.place == "device") == one.device
    assert one.usable - one.device == one.remainder
    assert one.part(*FIXED) + one.part("cache") == one.device
    assert one.usable - one.part(*FIXED) == one.cache_room
    assert all(each.bytes >= 0 for each in one.rows)
    assert all(each.bytes in (0, each.unit_bytes * each.count) for each in one.rows if each.unit)
    if one.counts.blocks:
        assert 0 <= one.remainder < one.units.block


@given(OPTIONS)
def test_requests_never_take_more_blocks_or_slots_than_there_are(options):
    one = ledger(options)
    for length, requests in one.requests():
        assert requests * -(-length // 128) <= max(one.counts.blocks - 1, 0)
        assert 0 <= requests <= one.counts.slots
        more = (requests + 1) * -(-length // 128)
        assert requests == one.counts.slots or more > one.counts.blocks - 1


@given(OPTIONS)
def test_it_fits_exactly_if_the_wanted_blocks_are_there(options):
    one = ledger(options)
    fits = one.remainder >= 0 and one.counts.blocks >= one.blocks_wanted
    assert (one.short == 0) == fits
    assert slots_of(options) >= options.max_num_seqs + 2


@given(OPTIONS)
def test_advice_fits_when_it_is_taken(options):
    one = ledger(options)
    if one.short:
        for line in advice(one):
            assert not ledger(taken(line, options)).short, line


def taken(line: str, options: Options) -> Options:
    """The options with one line of advice followed."""
    number = [float(word) for word in re.findall(r"\d+(?:\.\d+)?", line)]
    if line.startswith("max_model_len"):
        return replace(options, max_model_len=int(number[0]))
    if "draft stages" in line:
        return replace(options, drafts=False)
    if "Engram" in line:
        return replace(options, engram="host")
    if line.startswith("max_num_seqs"):
        return replace(options, max_num_seqs=int(number[0]))
    if "ranks" in line:  # several ranks are section 8 alone, see `of_model`
        return replace(options, ranks=int(number[0]), full_requests=1)
    assert "or a device" in line
    return replace(options, total=round(number[0] * GB))


@given(OPTIONS, RANKS)
def test_more_ranks_never_hold_more_weights(options, ranks):
    few, many = sorted((options.ranks, ranks))
    a, b = (ledger(replace(options, ranks=n)) for n in (few, many))
    for part in ("weights", "engram"):
        assert b.part(part) <= a.part(part)
    if 1 < few and "exchange" not in options.unused:  # a row is 5,344 bytes more per rank
        assert b.part("exchange") >= a.part("exchange")


@given(OPTIONS, st.integers(0, 5))
def test_twice_the_ranks_never_need_more_bytes_per_rank(options, power):
    """Up to 64; beyond, windows of the exchange grow faster than the experts shrink."""
    few, many = (ledger(replace(options, ranks=n)) for n in (2**power, 2 ** (power + 1)))
    if options.max_num_seqs <= 256:
        assert many.part(*FIXED) <= few.part(*FIXED)


@given(st.integers(0, 500), RANKS)
def test_physical_experts_are_the_least_multiple(redundant, ranks):
    found = physical_experts(384, redundant, ranks)
    assert found % ranks == 0
    assert 0 <= found - 384 - redundant < ranks


# a real start

ARRAYS = 100  # more than the tiny model has; each begins at a multiple of 256


@pytest.mark.parametrize("prefix", ["off", "exact"])
@pytest.mark.parametrize("platform", ["reference", "null"])
def test_the_ledger_says_what_a_start_plans(platform, prefix):
    chosen = settings(platform, prefix=prefix)
    planned = plan_model("tiny", chosen).planned
    one, title = of_model("tiny", chosen)
    assert "as the engine reserves them" in title
    assert one.part("cache") == planned.needs["kv"]
    assert 0 <= row(one, "alignment of arrays") < 256 * ARRAYS
    geometry = planned.geometry
    assert one.counts == Counts(geometry.slots, geometry.blocks, geometry.whole, geometry.halves)
    assert (one.counts.whole > 0) == (row(one, "snapshots F") > 0) == (prefix == "exact")
    assert one.blocks_wanted == one.counts.blocks
    loaded = one.part("weights", "engram") + one.host  # a start counts Engram as weights
    widened = {"reference": 68_558_816 - 327_680 - 1_048_576 - 131_072, "null": 0}
    assert loaded - widened[platform] == planned.needs["weights"]


def tensors(value: object, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor below a value, with the name of its field."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors(part, name)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from tensors(part, str(key))
    elif is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            yield from tensors(getattr(value, one.name), one.name)


def held(value: object, left_out: frozenset[str] | set[str] = frozenset()) -> int:
    """Bytes of the storages below a value, each once."""
    found = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for name, tensor in tensors(value)
        if name not in left_out
    }
    return sum(found.values())


def test_the_ledger_is_what_a_start_of_the_reference_holds():
    """Section 10, item 18: plan = allocated bytes."""
    chosen = settings("reference")
    house, _ = load_model(plan_model("tiny", chosen), quiet=True)
    one, _ = of_model("tiny", chosen)
    assert held(house.model.weights, DERIVED) == one.part("weights", "engram")
    assert held(house.model.weights) - held(house.model.weights, DERIVED) == 768
    assert house.planned.memory.budget().held == {"kv": one.part("cache")}


def test_what_a_start_refuses_is_never_said_to_fit():
    """Room for one request of 8,192 tokens, but a start reserves four of them."""
    needs = plan_model("tiny", settings("null", max_model_len=8_192)).planned.needs
    short = settings(
        "null", max_model_len=8_192, gpu_memory_utilization=(sum(needs.values()) - 1) / (141 * GB)
    )
    with pytest.raises(MemoryShort):
        plan_model("tiny", short)
    with pytest.raises(MemoryShort):
        table.checked(*of_model("tiny", short))


@pytest.mark.parametrize(("ranks", "nbytes"), [(0, None), (1, 0), (-1, 10)])
def test_ranks_and_bytes_are_positive(ranks, nbytes):
    with pytest.raises(UsageError, match="must be 1 or more"):
        of_model("tiny", settings("null"), ranks, nbytes)


# the command


def plan(*words: str) -> subprocess.CompletedProcess[str]:
    """`deepinfer plan --memory` in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DEEPINFER")}
    return subprocess.run(
        [sys.executable, "-m", "deepinfer", "plan", "--memory", *words],
        capture_output=True, text=True, env=environment, timeout=120,
    )  # fmt: skip


OFFICIAL = ("--model", "official", "--platform", "null")


def test_the_command_shows_the_reference():
    done = plan("--platform", "reference", "--set", "gpu_memory_utilization=1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "memory of one rank" in done.stdout
    one, _ = of_model("tiny", settings("reference"))
    assert re.search(rf"= cache +{one.part('cache'):,} ", done.stdout)
    assert "kernels of the reference take temporaries from the C heap" in done.stdout


def test_the_official_model_fits_eight_null_devices():
    done = plan(*OFFICIAL, "--ranks", "8", "--set", "prefix=off")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1,920 experts" in done.stdout
    assert "48 of 384 per layer" in done.stdout
    assert re.search(r"^ +1,048,576 +81$", done.stdout, re.MULTILINE)


def test_the_official_model_does_not_fit_one_and_the_refusal_helps():
    done = plan(*OFFICIAL, "--ranks", "1")
    assert done.returncode == MemoryShort.exit_code != 0
    assert done.stdout == ""
    assert done.stderr.startswith("deepinfer: memory is short by 177,065,531,840 bytes")
    assert re.search(r"= weights +301,322,040,768 ", done.stderr)
    assert "What to change:\n  3 ranks of this size fit (--ranks 3)" in done.stderr
    assert "Traceback" not in done.stderr
    assert plan(*OFFICIAL, "--ranks", "3").returncode == 0


def test_json_is_one_document_with_the_same_numbers():
    done = plan(*OFFICIAL, "--ranks", "8", "--json")
    found = json.loads(done.stdout)
    one, _ = of_model("official", settings("null"), 8)
    assert done.returncode == 0
    assert found == json.loads(json.dumps(table.values(one)))
    assert found["block_bytes"] == 113_920
    assert sum(r["bytes"] for r in found["rows"] if r["place"] == "device") == found["device_bytes"]
    assert found["usable_bytes"] - found["device_bytes"] == found["remainder_bytes"]


def test_json_of_a_refusal_still_parses():
    done = plan(*OFFICIAL, "--ranks", "1", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["short_bytes"] == 177_065_531_840
    assert "What to change:" in done.stderr


def test_another_device_is_described_by_its_bytes():
    done = plan(*OFFICIAL, "--ranks", "16", "--memory-bytes", str(64 * GB), "--json")
    assert json.loads(done.stdout)["total_bytes"] == 64 * GB
    assert done.returncode == 0
