"""All-to-all operators on two gloo processes, against one process."""

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
from deepinfer.reference.quantizers import from_e8m0, scaled

RANKS, EXPERTS, TOP_K, HIDDEN = 2, 8, 2, 64


def rows_of(rank: int, tokens: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(100 + rank)
    x = torch.randn(tokens, HIDDEN, generator=draw).bfloat16()
    scores = torch.randn(tokens, EXPERTS, generator=draw)
    experts = scores.topk(TOP_K, -1).indices.sort(-1).values.int()
    weights = torch.rand(tokens, TOP_K, generator=draw)
    shared = torch.randn(tokens, HIDDEN, generator=draw).bfloat16()
    return {"x": x, "experts": experts, "weights": weights, "shared": shared}


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


def work(rank: int, folder: str, tokens: tuple[int, ...]) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS
    )
    group = dist.group.WORLD
    given = rows_of(rank, tokens[rank])
    local = EXPERTS // RANKS
    sent = exchange.dispatch(
        quantized(given["x"]), given["experts"], given["weights"], EXPERTS, group
    )
    y = expert(sent.rows, sent.offsets, sent.weights, rank * local)
    results: dict[str, Any] = {
        "combined": exchange.combine(y, sent.ticket, given["shared"], group),
        "codes": sent.rows.values.dtype,
        "gathered": exchange.all_gather(given["x"], group),
        "gathered_fp8": exchange.all_gather(quantized(given["x"]).values, group).view(torch.uint8),
        "reduced": exchange.all_reduce(torch.full((3, 2), 1.0 + rank).bfloat16(), group),
        "scattered": exchange.reduce_scatter(torch.arange(8.0).view(4, 2) * (rank + 1), group),
    }
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def run_ranks(folder: Path, tokens: tuple[int, ...]) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(r, str(folder), tokens)) for r in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]


@pytest.mark.parametrize("tokens", [(5, 5), (9, 2), (0, 4)], ids=["even", "uneven", "empty"])
def test_two_ranks_compute_the_bits_of_one_process(tmp_path, tokens):
    """BL-81: a rank without rows takes part like the others."""
    found = run_ranks(tmp_path, tokens)
    both = torch.cat([rows_of(rank, tokens[rank])["x"] for rank in range(RANKS)])
    for rank, result in enumerate(found):
        assert torch.equal(result["combined"], whole(rank, tokens[rank]))
        assert result["codes"] == torch.float8_e4m3fn
        assert torch.equal(result["gathered"], both)
        assert torch.equal(result["gathered_fp8"], quantized(both).values.view(torch.uint8))
        assert torch.equal(result["reduced"], torch.full((3, 2), 3.0).bfloat16())
        summed = torch.arange(8.0).view(4, 2) * 3
        assert torch.equal(result["scattered"], summed[2 * rank : 2 * rank + 2])


def test_the_stand_in_experts_see_the_same_numbers_as_the_reference():
    """The stand-in would prove nothing if it read the rows in another way."""
    x = quantized(rows_of(0, 4)["x"])
    assert torch.equal(scaled(x.values, from_e8m0(x.scale), 32), gemm.activation(x, gemm.OFFICIAL))
