"""Every operator without its arithmetic: results of the right shape and type that hold nothing.

In: tensors of the catalogue's contracts; only their shapes are read. Out: the same, as views of one
element. Nobody may write into them. Does not know: numbers; ids are in range, floats are zero.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from deepinfer.ops.exchange import Dispatched
from deepinfer.ops.values import ExpertRows, Quantized, Weight

BF16, F32 = torch.bfloat16, torch.float32
I32, I64 = torch.int32, torch.int64
E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu
GROUP = 32
"""Elements that share one scale of a quantized row."""
FIRST_ID = 2
"""The ids below it begin and end texts; a chosen token is never one of them."""
STRIDE = 0x9E3779B1
"""Odd number that spreads neighboring positions over the vocabulary."""


@lru_cache(maxsize=8192)
def zeros(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A tensor of this shape over one zero; the same shape is one object."""
    return torch.zeros(dtype.itemsize, dtype=torch.uint8).view(dtype).expand(shape)


@lru_cache(maxsize=8192)
def empty(shape: tuple[int, ...]) -> Tensor:
    """Lists of this shape that select nothing: -1 everywhere, int32."""
    return torch.full((1,), -1, dtype=I32).expand(shape)


@lru_cache(maxsize=8192)
def numbers(dtype: torch.dtype, rows: int, count: int) -> Tensor:
    """In every row 0, 1 ... count - 1: distinct ids in increasing order, [rows, count]."""
    return torch.arange(count, dtype=dtype).expand(rows, count)


@lru_cache(maxsize=8192)
def rows_of(rows: int, width: int) -> Quantized:
    """Quantized rows [rows, width]."""
    return Quantized(zeros(E4M3, (rows, width)), zeros(E8M0, (rows, width // GROUP)))


# attention


def store_window(cache: Any, rows: Tensor, keys: Tensor) -> Tensor:
    return zeros(BF16, keys.shape)


def load_window(cache: Any, rows: Tensor) -> Tensor:
    return zeros(BF16, (rows.shape[0], cache.shape[1] * 32 // 33))


def store_entries(cache: Any, rows: Tensor, entries: Tensor) -> None:
    return None


def load_entries(cache: Any, rows: Tensor) -> Tensor:
    return zeros(BF16, (rows.shape[0], cache.shape[1] * 16 // 9))


def store_index(cache: Any, rows: Tensor, keys: Tensor) -> None:
    return None


def load_index(cache: Any, rows: Tensor) -> Tensor:
    return zeros(BF16, (rows.shape[0], cache.shape[1] * 32 // 17))


def store_open(cache: Any, rows: Tensor, kv: Tensor, gate: Tensor) -> None:
    return None


def compress(
    kv: Tensor, gate: Tensor, cache: Any, sources: Tensor, weight: Tensor, eps: float
) -> Tensor:
    return zeros(BF16, (sources.shape[0], weight.shape[0]))


def index_logits(
    query: Tensor,
    weights: Tensor,
    scale: float,
    cache: Any,
    block_table: Tensor,
    sequence: Tensor,
    visible: Tensor,
    count: int,
    per_block: int,
    candidates: Tensor | None = None,
    candidate_size: int = 0,
) -> Tensor:
    width = count if candidates is None else candidates.shape[1] * candidate_size
    return zeros(F32, (query.shape[0], width))


def index_topk(
    scores: Tensor, top_k: int, candidates: Tensor | None = None, candidate_size: int = 0
) -> Tensor:
    return empty((scores.shape[0], top_k))


def candidate_blocks(scores: Tensor, visible: Tensor, size: int, top_k: int) -> Tensor:
    return empty((scores.shape[0], top_k))


def sparse_prefill(
    q: Tensor,
    window: Tensor,
    window_index: Tensor,
    entries: Any,
    entry_index: Tensor | None,
    sink: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    shape = q.shape
    return zeros(BF16, shape), zeros(F32, shape[:2])


def sparse_decode(
    q: Tensor,
    window: Any,
    window_index: Tensor,
    entries: Any,
    entry_index: Tensor | None,
    sink: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    shape = q.shape
    return zeros(BF16, shape), zeros(F32, shape[:2])


# gemm


def dense_mxfp8(x: Quantized, weight: Weight) -> Tensor:
    return zeros(BF16, (x.values.shape[0], weight.values.shape[0]))


def dense_bf16(x: Tensor, weight: Weight) -> Tensor:
    return zeros(BF16, (x.shape[0], weight.values.shape[0]))


def dense_f32(x: Tensor, weight: Weight) -> Tensor:
    return zeros(F32, (x.shape[0], weight.values.shape[0]))


def logits(x: Tensor, weight: Weight) -> Tensor:
    return zeros(F32, (x.shape[0], weight.values.shape[0]))


def batched(x: Tensor, weight: Weight) -> Tensor:
    tokens, groups, _ = x.shape
    return zeros(BF16, (tokens, groups, weight.values.shape[0] // groups))


def grouped_mxfp4(rows: Quantized, offsets: Tensor, weight: Weight) -> Tensor:
    return zeros(BF16, (rows.values.shape[0], weight.values.shape[1]))


# all_to_all: every rank is taken to send as many rows as it gets


def dispatch(
    x: Quantized, experts: Tensor, weights: Tensor, count: int, group: Any
) -> Dispatched:
    pairs = experts.numel()
    offsets = zeros(I64, (count // _ranks(group) + 1,))
    return Dispatched(rows_of(pairs, x.values.shape[1]), offsets, zeros(F32, (pairs,)), None)


def combine(y: Tensor, ticket: Any, shared: Tensor, group: Any) -> Tensor:
    return zeros(BF16, shared.shape)


def all_reduce(x: Tensor, group: Any) -> Tensor:
    return zeros(x.dtype, x.shape)


def all_gather(x: Tensor, group: Any) -> Tensor:
    return zeros(x.dtype, (x.shape[0] * _ranks(group), *x.shape[1:]))


def reduce_scatter(x: Tensor, group: Any) -> Tensor:
    return zeros(x.dtype, (x.shape[0] // _ranks(group), *x.shape[1:]))


def _ranks(group: Any) -> int:
    if group is None and not dist.is_initialized():
        return 1
    return dist.get_world_size(group)


# sampler


def penalize(
    logits: Tensor,
    prompt_counts: Tensor,
    output_counts: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
    bias: Tensor,
) -> Tensor:
    return zeros(F32, logits.shape)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    position: Tensor,
) -> Tensor:
    """Whole numbers of (seed, position) only; the sum may wrap around, the remainder is >= 0."""
    room = max(logits.shape[1] - FIRST_ID, 1)
    mixed = seed.numpy() + position.numpy() * STRIDE  # numpy: a third of torch's time for few rows
    return torch.from_numpy(mixed % room + FIRST_ID)


def top_logprobs(logits: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    rows, vocabulary = logits.shape
    k = min(k, vocabulary)
    return zeros(F32, (rows,)), numbers(I64, rows, k), zeros(F32, (rows, k))


# tensor


def embed(ids: Tensor, table: Weight) -> Tensor:
    return zeros(BF16, (ids.shape[0], table.values.shape[1]))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return zeros(BF16, x.shape)


def rope(x: Tensor, positions: Tensor, frequencies: Tensor, inverse: bool = False) -> Tensor:
    return zeros(BF16, x.shape)


def quantize(x: Tensor) -> Quantized:
    return rows_of(*x.shape)


def swiglu_quantize(gate_up: Tensor, weight: Tensor | None, limit: float) -> Quantized:
    rows, both = gate_up.shape
    return rows_of(rows, both // 2)


def route(logits: Tensor, bias: Tensor, top_k: int, scale: float) -> tuple[Tensor, Tensor]:
    tokens = logits.shape[0]
    return numbers(I32, tokens, top_k), zeros(F32, (tokens, top_k))


def permute_rows(x: Quantized, experts: Tensor, weights: Tensor, count: int) -> ExpertRows:
    """Offsets are zeros: no expert has a row, so that whoever follows them reads nothing."""
    return _permuted(experts.numel(), x.values.shape[1], count)


@lru_cache(maxsize=8192)
def _permuted(pairs: int, width: int, count: int) -> ExpertRows:
    rows, weights = rows_of(pairs, width), zeros(F32, (pairs,))
    return ExpertRows(rows, weights, zeros(I64, (pairs,)), zeros(I64, (count + 1,)))


def unpermute_rows(y: Tensor, rows: ExpertRows, shared: Tensor, top_k: int) -> Tensor:
    return zeros(BF16, shared.shape)


def hyper_pre(
    stream: Tensor, fn: Tensor, scale: Tensor, base: Tensor, eps: float, mix_eps: float, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    tokens, copies, _ = stream.shape
    one = zeros(F32, (tokens, copies))
    return one, one, zeros(F32, (tokens, copies, copies))


def hyper_collapse(stream: Tensor, pre: Tensor) -> Tensor:
    return zeros(BF16, stream.shape[::2])


def hyper_post(stream: Tensor, y: Tensor, post: Tensor, mix: Tensor) -> Tensor:
    return zeros(BF16, stream.shape)


def mean_copies(stream: Tensor) -> Tensor:
    return zeros(BF16, stream.shape[::2])


def hash_lookup(
    history: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor, pad: int
) -> Tensor:
    return zeros(I64, (history.shape[0], primes.shape[0]))


def gather_rows(table: Weight, rows: Tensor) -> Quantized:
    tokens, columns = rows.shape
    return rows_of(tokens, columns * table.values.shape[1])


def engram_gate(
    stream: Tensor, kv: Tensor, q_weight: Tensor, k_weight: Tensor, dead: Tensor, eps: float
) -> Tensor:
    return zeros(BF16, stream.shape)


def entry_rows(
    entries: Tensor, block_table: Tensor, sequence: Tensor, per_block: int
) -> Tensor:
    return empty(entries.shape)


def pick_rows(x: Tensor, rows: Tensor) -> Tensor:
    return zeros(x.dtype, (rows.shape[0], *x.shape[1:]))
