"""Choice: from logits to one token per row, each with its own parameters and seed.

In: logits of the wanted rows, who sits where. Out: token ids and log-probabilities.
Does not know: the model, requests; a row with broken logits fails alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from deepinfer.engine.request import Chosen, Request, counts
from deepinfer.ops.table import Table
from deepinfer.sample.bans import bias_row
from deepinfer.sample.noise import seed_tensor
from deepinfer.sample.params import SamplingParams


@dataclass(slots=True)
class Seat:
    """What choosing needs of the request in a slot.

    prompt, output  ids, kept only where penalties or bans read them (`reads`)
    """

    params: SamplingParams
    stop_ids: tuple[int, ...]
    bad_words: tuple[tuple[int, ...], ...]
    reads: bool
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, request: Request) -> Seat:
        """The seat of a request that was just admitted, with what it said before it was parked."""
        params = request.params
        seat = cls(params, request.stop_ids, request.bad_words, _reads(params))
        if seat.reads:
            seat.prompt, seat.output = request.prompt, request.output
        return seat

    @property
    def is_penalized(self) -> bool:
        return _is_penalized(self.params)


def _is_penalized(params: SamplingParams) -> bool:
    return bool(
        params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty
    )


def _reads(params: SamplingParams) -> bool:
    banned = params.bad_words or params.min_tokens or params.logit_bias
    return _is_penalized(params) or bool(banned) or params.allowed_token_ids is not None


class Columns:
    """Sampling parameters by slot, on the device."""

    def __init__(self, slots: int, device: str) -> None:
        self._device = device
        self._floats = torch.zeros(3, slots, dtype=torch.float32, device=device)
        self._top_k = torch.zeros(slots, dtype=torch.int64, device=device)
        self._seeds = torch.zeros(slots, dtype=torch.int64, device=device)

    def put(self, slots: Sequence[int], requests: Sequence[Request]) -> None:
        """Those who were seated."""
        where = torch.tensor(slots, device=self._device)
        params = [request.params for request in requests]
        values = [[p.temperature, p.top_p, p.min_p] for p in params]
        self._floats[:, where] = torch.tensor(values, device=self._device).T
        self._top_k[where] = torch.tensor([p.top_k for p in params], device=self._device)
        seeds = [p.stream_seed(r.sample) for p, r in zip(params, requests, strict=True)]
        self._seeds[where] = seed_tensor(seeds).to(self._device)

    def sample(self, logits: Tensor, slots: Tensor, places: Tensor, ops: Table) -> Tensor:
        """[rows] int64 ids; -1 where a row is broken. places [rows] positions of the new tokens."""
        temperature, top_p, min_p = self._floats[:, slots]
        top_k, seeds = self._top_k[slots], self._seeds[slots]
        ids: Tensor = ops.sampler_sample(logits, temperature, top_k, top_p, min_p, seeds, places)
        return ids


def penalized(logits: Tensor, seats: Sequence[Seat], ops: Table) -> Tensor:
    """Logits [rows, vocabulary] f32 after penalties and bans."""
    size = logits.shape[1]
    biases = [
        bias_row(one.params, size, one.output, one.stop_ids, one.bad_words) if one.reads else None
        for one in seats
    ]
    if not any(one.is_penalized for one in seats) and all(bias is None for bias in biases):
        return logits
    prompts = torch.stack([torch.from_numpy(counts(one.prompt, size)) for one in seats])
    outputs = torch.stack([torch.from_numpy(counts(one.output, size)) for one in seats])
    nothing = torch.zeros(size)
    penalties = [
        [one.params.repetition_penalty for one in seats],
        [one.params.frequency_penalty for one in seats],
        [one.params.presence_penalty for one in seats],
    ]
    changed: Tensor = ops.sampler_penalize(
        logits,
        prompts.int().to(logits.device),
        outputs.int().to(logits.device),
        *(torch.tensor(values, device=logits.device) for values in penalties),
        torch.stack([nothing if bias is None else bias for bias in biases]).to(logits.device),
    )
    return changed


def logprobs(logits: Tensor, ids: Tensor, seats: Sequence[Seat], ops: Table) -> Any:
    """What the reader of a step makes log-probabilities of, or None if nobody asked."""
    most = max((_asked(one, logits.shape[1]) for one in seats), default=-1)
    return None if most < 0 else ops.sampler_top_logprobs(logits, ids.clamp(min=0), most)


def read_logprobs(
    taken: Any, ids: Sequence[int], seats: Sequence[Seat], size: int
) -> list[Chosen | None]:
    """One entry per row; None where nobody asked."""
    if taken is None:
        return [None] * len(ids)
    own, best, values = taken
    found: list[Chosen | None] = []
    for row, seat in enumerate(seats):
        count = _asked(seat, size)
        if count < 0:
            found.append(None)
            continue
        pairs = zip(best[row, :count].tolist(), values[row, :count].tolist(), strict=True)
        found.append(Chosen(int(ids[row]), float(own[row]), tuple(pairs)))
    return found


def _asked(seat: Seat, size: int) -> int:
    """Alternatives that a request wants; -1 for no log-probabilities at all."""
    asked = seat.params.alternatives(size)
    return -1 if asked is None else asked
