"""All-to-all operators on gloo processes, against one process."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from deepinfer.ops.tensor import quantized
from deepinfer.ops.values import Quantized
from deepinfer.reference import exchange, gemm
from deepinfer.reference import tensor as one_process
from deepinfer.reference.numerics import Numerics
from deepinfer.reference.quantizers import from_e8m0, scaled

EXPERTS, TOP_K, HIDDEN = 12, 3, 64
# tokens of each rank, case by case; all cases of one number of ranks share one start of processes
CASES = {
    2: {"even": (5, 5), "uneven": (9, 2), "empty": (0, 4), "nobody": (0, 0)},
    3: {"even": (4, 4, 4), "uneven": (7, 0, 2)},
}
UNROUNDED = Numerics(rounding=False)


def rows_of(rank: int, tokens: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(100 + rank)
    x = torch.randn(tokens, HIDDEN, generator=draw).bfloat16()
    scores = torch.randn(tokens, EXPERTS, generator=draw)
    experts = scores.topk(TOP_K, -1).indices.sort(-1).values.int()
    weights = torch.rand(tokens, TOP_K, generator=draw)
    shared = torch.randn(tokens, HIDDEN, generator=draw).bfloat16()
    return {"x": x, "experts": experts, "weights": weights, "shared": shared}


def summand(rank: int) -> torch.Tensor:
    """[6, 2] bf16 that gives other bits when it is rounded between, or added in another order."""
    tiny = torch.full((6, 2), 2.0**-8) if rank else torch.full((6, 2), 1.0)
    return (tiny * torch.tensor([1.0, 3.0])).bfloat16()


def wide_summand(rank: int) -> torch.Tensor:
    """[2] f32 that loses the small one unless the large ones meet first, in rank order."""
    return torch.tensor([[2.0**30, 1.0], [-(2.0**30), 2.0], [0.75, 4.0]])[rank]


def expert(
    rows: Quantized, offsets: torch.Tensor, weights: torch.Tensor, first: int
) -> torch.Tensor:
    """A stand-in for the experts that depends on the row, the weight and the expert."""
    values = scaled(rows.values, from_e8m0(rows.scale), 32) * weights[:, None]
    for number in range(len(offsets) - 1):
        part = slice(int(offsets[number]), int(offsets[number + 1]))
        values[part] *= 1 + 0.25 * (first + number)
    return values.bfloat16()


def whole(rank: int, tokens: int) -> torch.Tensor:
    """What one process computes for the tokens of one rank."""
    given = rows_of(rank, tokens)
    rows = one_process.permute_rows(
        quantized(given["x"]), given["experts"], given["weights"], EXPERTS
    )
    y = expert(rows.rows, rows.offsets, rows.weights, 0)
    return one_process.unpermute_rows(y, rows, given["shared"], TOP_K)


def cancelling(rank: int, ranks: int, tokens: int, group: Any) -> torch.Tensor:
    """Experts 0, 5 and 9 answer 1, 2^25 and -2^25: in FP32 their sum is 0 in this order only."""
    answers = {0: 1.0, 5: 2.0**25, 9: -(2.0**25)}
    experts = torch.tensor(list(answers), dtype=torch.int32).expand(tokens, -1)
    x = quantized(torch.ones(tokens, HIDDEN).bfloat16())
    sent = exchange.dispatch(x, experts, torch.ones(tokens, 3), EXPERTS, group)
    first = rank * (EXPERTS // ranks)
    sizes = sent.offsets.diff().tolist()
    y = [answers[first + e] for e, size in enumerate(sizes) for _ in range(size)]
    rows = torch.tensor(y)[:, None].expand(-1, HIDDEN).bfloat16()
    return exchange.combine(rows, sent.ticket, torch.ones(tokens, HIDDEN).bfloat16(), group)


def take_part(rank: int, ranks: int, tokens: int, group: Any) -> dict[str, Any]:
    given, local = rows_of(rank, tokens), EXPERTS // ranks
    asked = given["experts"], given["weights"], EXPERTS, group
    sent = exchange.dispatch(quantized(given["x"]), *asked)
    plain = exchange.dispatch(Quantized(given["x"].float()), *asked, n=UNROUNDED)
    y = expert(sent.rows, sent.offsets, sent.weights, rank * local)
    q = quantized(given["x"])
    return {
        "combined": exchange.combine(y, sent.ticket, given["shared"], group),
        "cancelled": cancelling(rank, ranks, tokens, group),
        "codes": (sent.rows.values.dtype, sent.rows.scale.dtype),
        "decoded": scaled(sent.rows.values, from_e8m0(sent.rows.scale), 32),
        "weights": sent.weights,
        "plain": plain.rows.values,
        "unscaled": plain.rows.scale is None,
        "offsets": sent.offsets,
        "gathered": exchange.all_gather(given["x"], group),
        "gathered_codes": exchange.all_gather(q.values, group).view(torch.uint8),
        "gathered_scales": exchange.all_gather(q.scale, group).view(torch.uint8),
        "reduced": exchange.all_reduce(summand(rank), group),
        "reduced_f32": exchange.all_reduce(wide_summand(rank), group),
        "scattered": exchange.reduce_scatter(summand(rank) * (rank + 1), group),
    }


def work(rank: int, ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    meet = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=ranks)
    group = dist.group.WORLD
    found = {
        name: take_part(rank, ranks, tokens[rank], group) for name, tokens in CASES[ranks].items()
    }
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """Number of ranks -> what each rank found, case by case."""
    context = multiprocessing.get_context("spawn")
    folders, processes = {}, []
    for ranks in CASES:
        folders[ranks] = tmp_path_factory.mktemp(f"ranks{ranks}")
        for rank in range(ranks):
            given = (rank, ranks, str(folders[ranks]))
            processes.append(context.Process(target=work, args=given, daemon=True))
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    return {
        ranks: [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(ranks)]
        for ranks, folder in folders.items()
    }


EVERY = [
    pytest.param(ranks, name, id=f"{ranks} ranks, {name}")
    for ranks in CASES
    for name in CASES[ranks]
]


@pytest.mark.parametrize("ranks, name", EVERY)
def test_dispatch_and_combine_give_the_bits_of_one_process(results, ranks, name):
    """BL-81: a rank without rows takes part like the others."""
    for rank, found in enumerate(results[ranks]):
        expected = whole(rank, CASES[ranks][name][rank])
        assert torch.equal(found[name]["combined"], expected)


@pytest.mark.parametrize("ranks, name", EVERY)
def test_experts_are_summed_in_increasing_number_wherever_they_live(results, ranks, name):
    """Backbone 3.8 step 5."""
    for rank, found in enumerate(results[ranks]):
        only_shared = torch.ones(CASES[ranks][name][rank], HIDDEN).bfloat16()
        assert torch.equal(found[name]["cancelled"], only_shared)


@pytest.mark.parametrize("ranks, name", EVERY)
def test_rows_arrive_by_expert_then_rank_then_token_and_fp8_stays_fp8(results, ranks, name):
    """The contract of Dispatched; without rounding the rows travel as they are."""
    local, tokens = EXPERTS // ranks, CASES[ranks][name]
    for rank, found in enumerate(results[ranks]):
        rows, plain, weights, sizes = [], [], [], []
        for number in range(rank * local, (rank + 1) * local):
            before = len(rows)
            for source, count in enumerate(tokens):
                given = rows_of(source, count)
                q = quantized(given["x"])
                values = scaled(q.values, from_e8m0(q.scale), 32)
                for token, place in (given["experts"] == number).nonzero().tolist():
                    rows.append(values[token])
                    plain.append(given["x"][token].float())
                    weights.append(float(given["weights"][token, place]))
            sizes.append(len(rows) - before)
        one = found[name]
        assert one["codes"] == (torch.float8_e4m3fn, torch.float8_e8m0fnu)
        assert one["offsets"].diff().tolist() == sizes
        assert one["weights"].tolist() == weights
        assert one["unscaled"]
        assert len(one["decoded"]) == len(one["plain"]) == len(rows)
        if rows:
            assert torch.equal(one["decoded"], torch.stack(rows))
            assert torch.equal(one["plain"], torch.stack(plain))


@pytest.mark.parametrize("ranks, name", EVERY)
def test_a_gather_takes_any_number_of_rows_of_any_type(results, ranks, name):
    tokens = CASES[ranks][name]
    everyone = torch.cat([rows_of(rank, count)["x"] for rank, count in enumerate(tokens)])
    q = quantized(everyone)
    for found in results[ranks]:
        assert torch.equal(found[name]["gathered"], everyone)
        assert torch.equal(found[name]["gathered_codes"], q.values.view(torch.uint8))
        assert torch.equal(found[name]["gathered_scales"], q.scale.view(torch.uint8))


@pytest.mark.parametrize("ranks", CASES)
def test_sums_run_in_rank_order_and_are_rounded_once(results, ranks):
    """In FP32: 1 + 2^-8 + 2^-8 is 1 in BF16 when it is rounded between."""
    total, scaled_total, wide = torch.zeros(6, 2), torch.zeros(6, 2), torch.zeros(2)
    for rank in range(ranks):
        total += summand(rank).float()
        scaled_total += (summand(rank) * (rank + 1)).float()
        wide += wide_summand(rank)
    if ranks == 3:  # the summands are such that another order or a rounding between would show
        assert float(total[0, 0]) == 1 + 2.0**-7
        assert float(wide[0]) == 0.75
        assert float((wide_summand(2) + wide_summand(1) + wide_summand(0))[0]) != 0.75
    share = 6 // ranks
    for rank, one in enumerate(results[ranks]):
        found = one["even"]
        assert found["reduced"].dtype == torch.bfloat16
        assert torch.equal(found["reduced"], total.bfloat16())
        assert torch.equal(found["reduced_f32"], wide)
        mine = scaled_total.bfloat16()[rank * share : (rank + 1) * share]
        assert torch.equal(found["scattered"], mine)


def test_the_stand_in_experts_see_the_same_numbers_as_the_reference():
    """The stand-in would prove nothing if it read the rows in another way."""
    x = quantized(rows_of(0, 4)["x"])
    assert torch.equal(scaled(x.values, from_e8m0(x.scale), 32), gemm.activation(x, gemm.OFFICIAL))
