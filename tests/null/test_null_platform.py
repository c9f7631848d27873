"""The null platform: shapes and types of the reference, no arithmetic, no memory, large models."""

from __future__ import annotations

import inspect
import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from deepinfer.engine import start
from deepinfer.engine.sequence import Entry, Sequence
from deepinfer.engine.start import House, Planned, Wish
from deepinfer.errors import MemoryShort, ModelError
from deepinfer.model.assemble import _beside, _bytewise, _stack
from deepinfer.model.hollow import HollowCheckpoint, hollow, is_hollow
from deepinfer.model.locate import find_model
from deepinfer.model.shape import Shape
from deepinfer.model.weights import DTYPES
from deepinfer.null import kernels
from deepinfer.null.memory import DEVICE_BYTES, NullMemory
from deepinfer.open import load_model, plan_model
from deepinfer.ops.catalogue import CATALOGUE
from deepinfer.ops.operator import Operator
from deepinfer.ops.table import Table
from deepinfer.ops.values import Weight
from deepinfer.plugin import Device, Facts, Memory, Mesh, Want
from deepinfer.plugin.bind import bind
from deepinfer.plugin.failures import ArenaError, NoAutomaticChoice
from deepinfer.plugin.find import installed
from deepinfer.plugin.stack import ground, load_platform
from deepinfer.reference import tensor as reference_tensor
from deepinfer.settings import Settings
from deepinfer.testing.inputs import arguments

FOLDER = Path(__file__).parents[1] / "golden" / "tiny_a"
BUILD_BYTES = 500_000_000
ONE_PROCESS = [op for op in CATALOGUE.operators.values() if op.family != "all_to_all"]
BETWEEN_RANKS = [op for op in CATALOGUE.operators.values() if op.family == "all_to_all"]


def made(platform: str) -> tuple[Planned, Table]:
    wish = Wish("tiny_a", platform, 2, 128, 512, drafts=True)
    planned = start.plan(Shape.load(FOLDER), wish)
    return planned, bind(planned.plan, planned.declared, Table)


@pytest.fixture(scope="module")
def reference() -> tuple[Planned, Table]:
    return made("reference")


@pytest.fixture(scope="module")
def null() -> tuple[Planned, Table]:
    return made("null")


def described(value: Any) -> Any:
    """Shapes and dtypes, in the structure of the result."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, tuple):
        return type(value).__name__, [described(part) for part in value]
    return value


def call(house: tuple[Planned, Table], op: Operator, tokens: int, seed: int, edge: str) -> Any:
    planned, table = house
    records = start.cache_records(planned.declared, planned.plan)
    dims = planned.declared.model.dims
    return table[op.name](**arguments(op, dims, records, table, tokens, seed, edge))


# operators


@pytest.mark.parametrize("op", ONE_PROCESS, ids=lambda op: op.name)
def test_results_have_the_shapes_and_types_of_the_reference(reference, null, op):
    for tokens in (0, 1, 7, 33):
        for seed, edge in enumerate(("", *op.edges)):
            expected = described(call(reference, op, tokens, seed, edge))
            assert described(call(null, op, tokens, seed, edge)) == expected, (tokens, edge)


@pytest.mark.parametrize("op", BETWEEN_RANKS, ids=lambda op: op.name)
def test_with_one_rank_rows_stay_as_many_as_they_are(null, op):
    """Of the reference's rows: a dispatch to oneself is a permutation."""
    dims = null[0].declared.model.dims
    given = dict(op.inputs(dims, 7, 1, ""))
    result = getattr(kernels, op.name.split(".")[1])(**given)
    if op.name != "all_to_all.dispatch":
        first = given.get("shared", given.get("x"))
        assert described(result) == described(first)
        return
    given.pop("group")
    rows, weights, _, offsets = reference_tensor.permute_rows(**given)
    assert [described(part) for part in result[:3]] == [
        described(part) for part in (rows, offsets, weights)
    ]


@pytest.mark.parametrize("op", CATALOGUE.operators.values(), ids=lambda op: op.name)
def test_a_null_function_has_the_catalogues_signature(op):
    def offered(function: Any) -> list[tuple[str, Any, Any]]:
        parameters = inspect.signature(function).parameters.values()
        return [(one.name, one.kind, one.default) for one in parameters]

    assert offered(getattr(kernels, op.name.split(".")[1])) == offered(op.call)


@pytest.mark.parametrize("op", ONE_PROCESS, ids=lambda op: op.name)
def test_results_take_no_memory(null, op):
    result = call(null, op, 33, 0, "")
    for one in result if isinstance(result, tuple) else (result,):
        if isinstance(one, torch.Tensor):
            assert one.untyped_storage().nbytes() <= 33 * 8, op.name


def test_a_store_leaves_its_cache_alone(null):
    op = CATALOGUE["attention.store_entries"]
    planned, table = null
    records = start.cache_records(planned.declared, planned.plan)
    given = arguments(op, planned.declared.model.dims, records, table, 9)
    before = given["cache"].clone()
    assert table.attention_store_entries(**given) is None
    assert torch.equal(given["cache"], before)


def test_a_chosen_token_follows_from_seed_and_position_and_is_no_control_token():
    logits, row = torch.zeros(1, 500).expand(400, 500), torch.zeros(400)
    seeds = torch.randint(-(2**63), 2**63 - 1, (400,), generator=torch.Generator().manual_seed(4))
    places = torch.arange(400)
    chosen = kernels.sample(logits, row, places, row, row, seeds, places)
    assert int(chosen.min()) >= 2
    assert int(chosen.max()) < 500
    assert len(chosen.unique()) > 150
    again = kernels.sample(torch.ones(400, 500), row + 1, places, row, row, seeds, places)
    assert torch.equal(chosen, again)
    moved = kernels.sample(logits, row, places, row, row, seeds, places + 1)
    assert (chosen != moved).all()


def test_chosen_experts_are_different_and_in_range(null):
    experts, _ = kernels.route(torch.zeros(5, 16), torch.zeros(16), 6, 1.5)
    assert experts.tolist() == [[0, 1, 2, 3, 4, 5]] * 5


def test_a_mode_that_changes_shapes_or_types_is_refused(null):
    shape = Shape.load(FOLDER)
    for mode, words in {"rounding": "does not round", "selection": "selects otherwise"}.items():
        wish = Wish("tiny_a", "null", 2, 128, 512, {mode: "none"})
        with pytest.raises(Exception, match=words):
            start.plan(shape, wish)


def test_the_plan_has_one_null_kernel_for_every_operator(null):
    plan = null[0].plan
    assert {row.served_by for row in plan.rows} == {"null:hollow"}
    assert {settled.layout for settled in plan.layouts if settled.kind in ("kv", "index")} == {
        "packed"
    }


def test_packed_records_are_as_long_as_the_references(reference, null):
    (of_reference, _), (of_null, _) = reference, null
    expected = start.cache_records(of_reference.declared, of_reference.plan)
    assert start.cache_records(of_null.declared, of_null.plan) == expected


# the platform


def test_null_is_built_in_and_never_chosen_by_auto():
    offers = installed()
    (offer,) = offers["null"]
    assert (offer.module, offer.distribution) == ("deepinfer.null", "deepinfer")
    with pytest.raises(NoAutomaticChoice):
        load_platform("auto", offers={"null": offers["null"]})


def test_the_device_claims_its_memory_for_each_device_asked_for():
    platform = load_platform("null")
    device = ground(platform, Want(count=8)).device
    assert device == Device(
        "null", device.name, "cpu", 8, 8 * DEVICE_BYTES, Facts(computes=False)
    )


def test_memory_is_counted_and_not_taken():
    memory = NullMemory(1000)
    assert isinstance(memory, Memory)
    block = memory.arena("kv", 640)
    assert (block.shape, block.dtype, block.untyped_storage().nbytes()) == ((640,), torch.uint8, 1)
    view = memory.view("kv", 128, (8, 16), torch.float32)
    assert (view.shape, view.dtype, view.stride()) == ((8, 16), torch.float32, (0, 0))
    assert (memory.budget().free, memory.budget().held) == (360, {"kv": 640})
    assert memory.exchange(60, Mesh(size=4)).shape == (60,)
    assert memory.host(100).shape == memory.register(memory.host(100)).shape == (100,)
    with memory.scratch():
        assert memory.budget().free == 300


def test_arenas_of_the_claim_are_refused_as_real_ones_are():
    memory = NullMemory(1000)
    memory.arena("kv", 64)
    with pytest.raises(MemoryShort):
        memory.arena("weights", 2000)
    with pytest.raises(ArenaError, match="lie outside arena kv"):
        memory.view("kv", 32, (16,), torch.float32)
    with pytest.raises(ArenaError, match="no multiple of 4"):
        memory.view("kv", 2, (4,), torch.float32)
    with pytest.raises(ArenaError, match="reserved once"):
        memory.arena("kv", 64)


# weights without bytes


def test_a_hollow_checkpoint_has_every_tensor_of_the_inventory():
    checkpoint = HollowCheckpoint(Shape.load(FOLDER))
    for name in checkpoint.names:
        tensor = checkpoint.tensor(name)
        assert tensor.numel() == 1 or is_hollow(tensor)
        assert name in checkpoint
        assert tensor.nbytes == checkpoint.total_bytes([name])
    assert checkpoint.tensor("embed.weight").dtype == DTYPES["BF16"]
    assert "layers.99.ffn.gate.weight" not in checkpoint
    with pytest.raises(ModelError, match=r"layers\.99"):
        checkpoint.tensor("layers.99.ffn.gate.weight")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
def test_hollow_weights_are_joined_like_real_ones_and_stay_hollow(dtype):
    for join in (_stack, lambda parts: _beside(*parts)):
        shapes = [(64, 32)] * 3 if join is _stack else [(64, 32), (32, 32)]
        real = [Weight(torch.ones(s, dtype=torch.uint8).view(dtype)) for s in shapes]
        real = [weight._replace(scale=weight.values[:, :1]) for weight in real]
        bare = [Weight(hollow(tuple(w.values.shape), dtype)) for w in real]
        bare = [w._replace(scale=hollow((w.values.shape[0], 1), dtype)) for w in bare]
        assert described(join(bare)) == described(join(real))
        assert all(is_hollow(part) for part in join(bare))


def test_a_real_part_makes_the_whole_real():
    parts = [hollow((2, 4), torch.uint8), torch.ones(2, 4, dtype=torch.uint8)]
    joined = _bytewise(torch.cat, parts)
    assert not is_hollow(joined)
    assert joined.sum() == 8
    assert not is_hollow(torch.zeros(1, 1))


# the official model


@pytest.fixture
def roomy(monkeypatch):
    """One device that is large enough for all ranks' weights."""
    monkeypatch.setattr("deepinfer.null.memory.DEVICE_BYTES", 8 * DEVICE_BYTES)


def forward(house: House, count: int, chunk: int, drafts: bool = False) -> list[tuple[int, ...]]:
    """Shapes of the logits of one sequence's steps."""
    blocks = -(-count // house.planned.geometry.block_tokens)
    mine, shapes = Sequence(list(range(5, 5 + count)), 0, list(range(1, blocks + 1))), []
    while mine.waiting:
        rows = min(chunk, mine.waiting)
        with torch.inference_mode():
            batch = house.tray.batch([Entry(mine, mine.computed, rows, 1)])
            logits = house.model.forward(batch, house.caches, drafts).logits
        mine.computed += rows
        shapes.append(tuple(logits.shape))
    return shapes


def test_the_official_model_is_built_without_its_bytes_and_steps(roomy):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    opened = plan_model("official", Settings(platform="null", max_num_seqs=8), drafts=True)
    assert opened.max_model_len == opened.shape.max_position_embeddings == 1_048_576
    house, tokenizer = load_model(opened)
    assert tokenizer is None
    assert opened.planned.needs["weights"] > 289_000_000_000
    assert house.drafter is not None
    assert house.model.pad == opened.shape.engram_pad_token_id
    wide = opened.shape.vocab_size
    assert forward(house, 200, 90, drafts=True) == [(1, wide)] * 3
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (after - before) * 1024 < BUILD_BYTES


def test_one_device_is_too_small_for_the_official_model_and_says_so():
    with pytest.raises(MemoryShort, match="short by"):
        plan_model("official", Settings(platform="null", max_model_len=4096))


def test_official_is_found_by_its_name_and_has_the_recorded_numbers():
    folder = find_model("official")
    recorded = Path(__file__).parents[1] / "data" / "official_config.json"
    assert (folder / "config.json").read_bytes() == recorded.read_bytes()
    assert [path.name for path in folder.iterdir()] == ["config.json"]


def test_a_model_with_a_tokenizer_keeps_it():
    opened = plan_model("tiny", Settings(platform="null", max_num_seqs=2))
    house, tokenizer = load_model(opened, quiet=True)
    assert tokenizer.encode("fox")
    assert forward(house, 20, 20) == [(1, opened.shape.vocab_size)]


def test_a_shape_without_a_checkpoint_is_refused_where_numbers_are_computed():
    """`official` has no shards: only a device that reads no values can serve it."""
    opened = plan_model("tiny", Settings(platform="reference", max_num_seqs=2))
    object.__setattr__(opened, "folder", find_model("official"))
    with pytest.raises(ModelError):
        load_model(opened, quiet=True)
