"""What one row may not choose, as one bias row for `sampler.penalize`.

In: parameters of a request, its output so far. Out: [vocabulary] f32, -inf where banned, or None.
Does not know: tokenizers (bad words come as ids), grammars.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from deepinfer.sample.params import SamplingParams


def bias_row(
    params: SamplingParams,
    size: int,
    output_ids: Sequence[int],
    stop_ids: Sequence[int],
    bad_words: Sequence[Sequence[int]] = (),
) -> Tensor | None:
    """Logit bias, allowed ids, bad words and `min_tokens` (DSpark and sampling 5.2, 3 and 5).

    stop_ids   ids that end the request: the end token (with ignore_eos too) and stop_token_ids
    bad_words  each word as ids, with and without a space before it
    returns    [size] f32, or None if nothing is biased or banned at this place
    """
    banned = last_ids(bad_words, output_ids)
    if len(output_ids) < params.min_tokens:
        banned += [*stop_ids, *params.stop_token_ids]
    if not params.logit_bias and params.allowed_token_ids is None and not banned:
        return None
    row = torch.zeros(size)
    if params.allowed_token_ids is not None:
        row.fill_(-torch.inf)
        row[list(params.allowed_token_ids)] = 0.0
    if params.logit_bias:
        row[list(params.logit_bias)] += torch.tensor(list(params.logit_bias.values()))
    row[banned] = -torch.inf
    return row


def last_ids(bad_words: Sequence[Sequence[int]], output_ids: Sequence[int]) -> list[int]:
    """Last ids of those bad words whose other ids the output ends with."""
    found = []
    for word in bad_words:
        *head, last = word
        if not head or list(output_ids[-len(head) :]) == head:
            found.append(last)
    return found
