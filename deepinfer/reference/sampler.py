"""Sampler operators in eager torch: penalties, the choice of a token, log-probabilities.

In: logits and per-row numbers. Out: logits, ids, log-probabilities.
Does not know: requests; a broken row is answered with -1, the others are not touched.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.sample.noise import gumbel

GREEDY_BELOW = 1e-5


def penalize(
    logits: Tensor,
    prompt_counts: Tensor,
    output_counts: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
    bias: Tensor,
) -> Tensor:
    """DSpark and sampling 5.2, steps 3 to 5: bias (-inf bans), then the penalties.

    logits, bias [rows, vocabulary] f32; counts [rows, vocabulary] int32; the others [rows] f32
    """
    logits = logits.float() + bias
    written = output_counts > 0
    seen = written | (prompt_counts > 0)
    factor = repetition[:, None]
    repeated = torch.where(logits > 0, logits / factor, logits * factor)
    logits = torch.where(seen, repeated, logits)
    return logits - (frequency[:, None] * output_counts + presence[:, None] * written)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    position: Tensor,
) -> Tensor:
    """DSpark and sampling 5.2, steps 6 to 9, with the noise of 5.3.

    logits [rows, vocabulary] f32; top_k, seed, position [rows] int64; the others [rows] f32
    returns [rows] int64; -1 where the largest logit is NaN or not finite
    """
    logits = logits.float()
    ids = logits.argmax(-1)  # the lowest id on ties
    drawn = (temperature >= GREEDY_BELOW).nonzero()[:, 0]  # [drawn rows]
    scaled = logits[drawn] / temperature[drawn, None]
    kept = keep(scaled, top_k[drawn], top_p[drawn], min_p[drawn])
    # noise belongs to (seed, position, token): what is banned or cut shifts nothing
    noisy = scaled + gumbel(seed[drawn], position[drawn], logits.shape[-1])
    ids[drawn] = noisy.masked_fill(~kept, -torch.inf).argmax(-1)
    return ids.masked_fill(~logits.amax(-1).isfinite(), -1)


def keep(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Which tokens survive top-k, then top-p, then min-p (5.1, 5.2 step 7).

    logits [rows, vocabulary] f32, tempered; returns [rows, vocabulary] bool, never an empty row
    """
    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)  # ties: lowest id first
    rank = torch.arange(logits.shape[-1], device=logits.device)
    within = (rank < top_k[:, None]) | (top_k < 1)[:, None]
    # sums in FP64, compared in FP32: a mass that stands exactly on the border is on it
    mass = ordered.double().masked_fill(~within, -torch.inf).softmax(-1)
    before = (mass.cumsum(-1) - mass).float()
    within &= (before < top_p[:, None]) | (top_p >= 1)[:, None]
    within &= ordered >= ordered[:, :1] + min_p.log()[:, None]
    within[:, :1] = True
    return torch.empty_like(within).scatter_(-1, ids, within)


def top_logprobs(logits: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """DSpark and sampling 5.2, step 2: log-softmax of the raw logits (2.7, `raw`).

    logits [rows, vocabulary] f32; ids [rows] int64, -1 is taken as no choice (NaN)
    returns chosen [rows] f32; best ids [rows, k] int64, lowest id on ties; their values [rows, k];
    k beyond the vocabulary is the whole vocabulary
    """
    logprobs = logits.double().log_softmax(-1).float()  # [rows, vocabulary]
    chosen = logprobs.gather(-1, ids.clamp(min=0)[:, None])[:, 0]
    chosen = chosen.masked_fill(ids < 0, torch.nan)
    # by the logits: two of them may round to one log-probability
    best = logits.argsort(dim=-1, descending=True, stable=True)[:, :k]
    return chosen, best, logprobs.gather(-1, best)
