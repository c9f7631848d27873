"""Choice: from logits to one token per request, each with its own parameters and seed.

In: logits of the wanted rows, their requests. Out: token ids and log-probabilities.
Does not know: the model; a row with broken logits fails alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from deepinfer.engine.request import Chosen, Request
from deepinfer.errors import RequestError
from deepinfer.ops.table import Table
from deepinfer.sample.bans import bias_row
from deepinfer.sample.noise import seed_tensor


class BrokenLogits(RequestError):
    """A row of logits holds NaN or nothing that may be chosen."""


def choose(
    logits: Tensor, requests: Sequence[Request], ops: Table
) -> list[tuple[int, Chosen | None]]:
    """One token per row of logits [rows, vocabulary] f32; -1 where the row is broken."""
    device = logits.device

    def column(values: list[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    params = [request.params for request in requests]
    ids = ops.sampler_sample(
        _penalized(logits, requests, ops),
        column([one.temperature for one in params], torch.float32),
        column([one.top_k for one in params], torch.int64),
        column([one.top_p for one in params], torch.float32),
        column([one.min_p for one in params], torch.float32),
        seed_tensor([one.stream_seed() for one in params]).to(device),
        column([len(r.prompt) + len(r.output) for r in requests], torch.int64),
    )
    return list(zip(ids.tolist(), _logprobs(logits, ids, requests, ops), strict=True))


def broken(request: Request) -> BrokenLogits:
    """The error of a request whose row could not be sampled."""
    place = len(request.prompt) + len(request.output)
    return BrokenLogits(
        f"request {request.index}: the logits for position {place} hold NaN, or every token is "
        "banned; the other requests go on. Check the bans of this request, and run "
        "`deepinfer golden` on this platform if it has none"
    )


def _penalized(logits: Tensor, requests: Sequence[Request], ops: Table) -> Tensor:
    size = logits.shape[1]
    biases = [
        bias_row(one.params, size, one.output, one.stop_ids, one.bad_words) for one in requests
    ]
    wanted = [
        one.params.repetition_penalty != 1
        or one.params.frequency_penalty != 0
        or one.params.presence_penalty != 0
        for one in requests
    ]
    if not any(wanted) and all(bias is None for bias in biases):
        return logits
    counts = [one.counts(size) for one in requests]
    nothing = torch.zeros(size)
    penalties = [
        [one.params.repetition_penalty for one in requests],
        [one.params.frequency_penalty for one in requests],
        [one.params.presence_penalty for one in requests],
    ]
    penalized: Tensor = ops.sampler_penalize(
        logits,
        torch.stack([torch.from_numpy(prompt) for prompt, _ in counts]).int().to(logits.device),
        torch.stack([torch.from_numpy(output) for _, output in counts]).int().to(logits.device),
        *(torch.tensor(values, device=logits.device) for values in penalties),
        torch.stack([nothing if bias is None else bias for bias in biases]).to(logits.device),
    )
    return penalized


def _logprobs(
    logits: Tensor, ids: Tensor, requests: Sequence[Request], ops: Table
) -> list[Chosen | None]:
    size = logits.shape[1]
    wanted = [request.params.alternatives(size) for request in requests]
    most = max((count for count in wanted if count is not None), default=None)
    if most is None:
        return [None] * len(requests)
    own, best, values = ops.sampler_top_logprobs(logits, ids.clamp(min=0), most)
    found: list[Chosen | None] = []
    for row, count in enumerate(wanted):
        if count is None:
            found.append(None)
            continue
        pairs = zip(best[row, :count].tolist(), values[row, :count].tolist(), strict=True)
        found.append(Chosen(int(ids[row]), float(own[row]), tuple(pairs)))
    return found
