"""Greedy text with drafts, for many prompts at once, by running the whole prefix every step.

In: weights, prompts. Out: answers, accepted drafts per step. Slow per token, simple, exact.
Does not know: caches, tasks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from . import drafter, network
from .numerics import Numerics
from .shape import Shape

END_ID = 1
PAD_ID = 2


@dataclass
class Answer:
    """Greedy continuation of one prompt; `accepted` holds one number per verified block."""

    ids: list[int]
    accepted: list[int]
    ended: bool


def _buffer(prompts: list[list[int]], limit: int, shape: Shape, device: str) -> Tensor:
    """Rows [prompts, T] with room for the answer and one block, T whole windows."""
    need = max(map(len, prompts)) + limit + shape.block + 2
    length = -(-need // shape.window) * shape.window
    rows = torch.full((len(prompts), length), PAD_ID, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        rows[row, : len(prompt)] = torch.tensor(prompt)
    return rows.to(device)


@torch.no_grad()
def speculate(
    weights: dict[str, Tensor], prompts: list[list[int]], limit: int, compressed: Tensor,
    shape: Shape, n: Numerics,
) -> list[Answer]:
    """Verify five drafts per step; the text equals plain greedy decoding (draft spec 2.1)."""
    device = weights["embed.weight"].device
    rows = _buffer(prompts, limit, shape, str(device))
    count, length = rows.shape
    newest = torch.tensor([len(p) - 1 for p in prompts], device=device)
    drafts = torch.zeros(count, 0, dtype=torch.int64, device=device)
    answers = [Answer([], [], False) for _ in prompts]
    live = list(range(count))
    base = torch.arange(count, device=device) * length
    while live:
        packed = network.pack(rows, compressed, shape)
        result = network.forward(weights, packed, shape, n)
        at = base[:, None] + newest[:, None] + torch.arange(drafts.shape[1] + 1, device=device)
        chosen = network.logits(weights, result.hidden[at], n).argmax(-1)
        agree = (drafts == chosen[:, :-1]).long().cumprod(1).sum(1)
        _record(answers, live, chosen.tolist(), agree.tolist(), limit, drafts.shape[1] > 0)
        live = [i for i in live if not answers[i].ended and len(answers[i].ids) < limit]
        anchor = base + newest + agree
        token = chosen.gather(1, agree[:, None])
        hidden = drafter.draft_hidden(weights, result.features, packed, anchor, token[:, 0],
                                      shape, n)
        drafts = drafter.propose(weights, hidden, token[:, 0], shape, n)[0]
        newest = (newest + agree + 1).clamp(max=length - shape.block - 1)
        where = newest[:, None] + torch.arange(1 + shape.block, device=device)
        rows.scatter_(1, where, torch.cat((token, drafts), 1))
    return answers


def _record(
    answers: list[Answer], live: list[int], chosen: list[list[int]], agree: list[int],
    limit: int, drafted: bool,
) -> None:
    """Commit the agreed drafts and the correction, token by token, up to the end token."""
    for i in live:
        fresh = chosen[i][: agree[i] + 1]
        if END_ID in fresh:
            fresh = fresh[: fresh.index(END_ID) + 1]
            answers[i].ended = True
        if drafted:
            answers[i].accepted.append(min(agree[i], len(fresh)))
        answers[i].ids = (answers[i].ids + fresh)[:limit]
