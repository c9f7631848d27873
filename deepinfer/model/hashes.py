"""The n-gram memory (Engram): hashes of the last tokens pick rows of a large table.

In: compressed token ids, the stream. Out: the stream with the gated value added.
Does not know: the tokenizer; ids arrive compressed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy
import torch
from torch import Tensor

from deepinfer.errors import ModelError
from deepinfer.model.batch import Rows
from deepinfer.model.shape import Shape
from deepinfer.ops.table import Table

# NumPy does not promise its random stream for ever, so the official ones are data (backbone 3.9).
_OFFICIAL = {
    (99092, 1): (76632096046245, 4839876093313, 35959672319349, 73987337458391),
    (99092, 14): (67716810739261, 51510806800915, 30921347202721, 82619226485591),
}


@dataclass(frozen=True)
class Engram:
    """table, wkv are prepared; q_weight, k_weight [copies, hidden] bf16; the rest is int64."""

    table: Any
    wkv: Any
    q_weight: Tensor
    k_weight: Tensor
    multipliers: Tensor
    primes: Tensor
    offsets: Tensor


def forward(p: Engram, stream: Tensor, at: Rows, pad: int, shape: Shape, ops: Table) -> Tensor:
    """backbone 3.9. `pad` is the compressed id of the pad token."""
    rows = ops.tensor_hash_lookup(at.history, p.multipliers, p.primes, p.offsets, pad)
    kv = ops.gemm_dense_mxfp8(ops.tensor_gather_rows(p.table, rows), p.wkv)
    return ops.tensor_engram_gate(
        stream, kv, p.q_weight, p.k_weight, at.dead, shape.rms_norm_eps
    )


def constants(shape: Shape, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """Multipliers [ngram], primes [columns] and table offsets [columns] of one Engram layer."""
    place = shape.engram_layer_ids.index(layer)
    columns = shape.engram_columns
    primes = _primes(
        shape.engram_vocab_size, columns * len(shape.engram_layer_ids), shape.engram_n_heads
    )
    mine = torch.tensor(primes[place * columns : (place + 1) * columns])
    offsets = torch.cat([mine.new_zeros(1), mine.cumsum(0)[:-1]])
    if int(mine.sum()) != shape.engram_num_embeddings[place]:
        raise ModelError(
            f"config.json: engram_num_embeddings of layer {layer} is "
            f"{shape.engram_num_embeddings[place]}, its primes add up to {int(mine.sum())}"
        )
    return torch.tensor(multipliers(shape, layer)), mine, offsets


def multipliers(shape: Shape, layer: int) -> tuple[int, ...]:
    """Odd multipliers of one layer, one per token of the longest n-gram."""
    size, ngram = shape.engram_compressed_vocab_size, shape.engram_max_ngram_size
    if (size, layer) in _OFFICIAL and ngram == 4:
        return _OFFICIAL[size, layer]
    bound = max(1, (2**63 - 1) // size // 2)
    drawn = numpy.random.default_rng(10007 * layer).integers(
        0, bound, size=ngram, dtype=numpy.int64
    )
    return tuple(2 * int(value) + 1 for value in drawn)


@cache
def _primes(vocabulary: int, count: int, heads: int) -> tuple[int, ...]:
    """`count` primes: for every n-gram length start again at vocabulary - 1, never repeat one."""
    taken: list[int] = []
    seen: set[int] = set()
    while len(taken) < count:
        candidate = vocabulary - 1
        for _ in range(heads):
            candidate += 1
            while candidate in seen or not _is_prime(candidate):
                candidate += 1
            taken.append(candidate)
            seen.add(candidate)
    return tuple(taken)


def _is_prime(number: int) -> bool:
    if number < 2 or number % 2 == 0:
        return number == 2
    return all(number % divisor for divisor in range(3, int(number**0.5) + 1, 2))
