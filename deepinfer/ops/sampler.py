"""Sampler operators: penalties, the choice, and log-probabilities.

In: the model's dims. Out: catalogue rows (contract, tolerance, inputs).
Does not know: requests; every row brings its own numbers and its own seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from deepinfer.ops.draw import Draw
from deepinfer.ops.operator import EXACT, Operator, relative


def penalize(  # type: ignore[empty-body]
    logits: Tensor,
    prompt_counts: Tensor,
    output_counts: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
    bias: Tensor,
) -> Tensor:
    """Logit bias, then penalties: repetition over prompt and output, the others over output.

    logits         [rows, vocabulary] f32
    prompt_counts, output_counts  [rows, vocabulary] int32
    repetition, frequency, presence  [rows] f32; 1, 0 and 0 change nothing
    bias           [rows, vocabulary] f32, added first; -inf bans a token
    returns        [rows, vocabulary] f32
    Source: DSpark and sampling 5.2 steps 3-5.
    """


def sample(  # type: ignore[empty-body]
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    position: Tensor,
) -> Tensor:
    """Chooses one token per row; no state, no host synchronization.

    logits       [rows, vocabulary] f32
    temperature  [rows] f32; below 1e-5 the row is greedy, lowest id on ties
    top_k        [rows] int64, 0 or below is off; exactly k, lowest ids at the border
    top_p, min_p [rows] f32
    seed         [rows] int64 (the 64 bits of an unsigned seed); position [rows] int64 of the token
                 to be chosen: together they fix the noise (Philox4x32-10, Gumbel)
    returns      [rows] int64; -1 for a row with NaN or without a finite logit
    Source: DSpark and sampling 5.2 steps 6-9, 5.3.
    """


def top_logprobs(logits: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[empty-body]
    """Log-probabilities of the raw logits: of the chosen token, and the k best.

    logits   [rows, vocabulary] f32; ids [rows] int64
    returns  chosen [rows] f32; best ids [rows, k] int64 (lowest id on ties); their values [rows, k]
    Source: DSpark and sampling 5.2 step 2.
    """


def _logits(dims: Mapping[str, Any], rows: int, draw: Draw, edge: str) -> Tensor:
    logits = draw.f32(rows, dims["vocabulary"]) * 3
    if edge == "ties":
        logits = logits.round()
    if edge == "masked":
        logits = logits.masked_fill(draw.f32(rows, dims["vocabulary"]) > 0.5, -torch.inf)
    if edge == "nan" and rows:
        logits[0, 0] = torch.nan
    return logits


def _penalize(dims: Mapping[str, Any], rows: int, seed: int, edge: str) -> dict[str, Any]:
    draw, vocabulary = Draw(seed), dims["vocabulary"]
    return {
        "logits": _logits(dims, rows, draw, edge),
        "prompt_counts": draw.ids(3, rows, vocabulary).int(),
        "output_counts": draw.ids(3, rows, vocabulary).int(),
        "repetition": draw.f32(rows).abs() + 0.5,
        "frequency": draw.f32(rows).clamp(-2, 2),
        "presence": draw.f32(rows).clamp(-2, 2),
        "bias": draw.f32(rows, vocabulary),
    }


def _sample(dims: Mapping[str, Any], rows: int, seed: int, edge: str) -> dict[str, Any]:
    draw = Draw(seed)
    greedy = (draw.f32(rows) > 0).float()
    return {
        "logits": _logits(dims, rows, draw, edge),
        "temperature": draw.f32(rows).abs() * greedy,
        "top_k": draw.ids(2 * dims["vocabulary"], rows) - 5,
        "top_p": draw.f32(rows).sigmoid(),
        "min_p": draw.f32(rows).sigmoid() / 10,
        "seed": draw.ids(2**62, rows),
        "position": draw.ids(2**33, rows),
    }


def _top(dims: Mapping[str, Any], rows: int, seed: int, edge: str) -> dict[str, Any]:
    draw = Draw(seed)
    return {
        "logits": _logits(dims, rows, draw, edge),
        "ids": draw.ids(dims["vocabulary"], rows),
        "k": 5,
    }


_DIMS = ("vocabulary",)
OPERATORS = (
    Operator("sampler.penalize", penalize, _DIMS, relative(1e-6), _penalize, ("masked",)),
    Operator("sampler.sample", sample, _DIMS, EXACT, _sample, ("ties", "masked", "nan")),
    Operator("sampler.top_logprobs", top_logprobs, _DIMS, relative(1e-5), _top, ("ties", "masked")),
)
