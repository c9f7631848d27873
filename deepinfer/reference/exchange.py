"""Rows between ranks over `torch.distributed`, for any transport that torch has.

In: rows of this rank. Out: rows of its experts, and the sums at home again.
Does not know: which device, which backend. FP8 rows travel as bytes: gloo refuses their types.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from deepinfer.ops.exchange import Dispatched
from deepinfer.ops.values import Quantized
from deepinfer.reference.numerics import OFFICIAL, Numerics


class Ticket(NamedTuple):
    """How results find home: rows sent and received per rank, both orders, pairs per token."""

    sent: list[int]
    received: list[int]
    order: Tensor
    arrived: Tensor
    top_k: int


def dispatch(
    x: Quantized,
    experts: Tensor,
    weights: Tensor,
    count: int,
    group: Any,
    *,
    n: Numerics = OFFICIAL,
) -> Dispatched:
    ranks, local = dist.get_world_size(group), count // dist.get_world_size(group)
    flat = experts.flatten().long()  # [tokens * top_k]
    order = flat.argsort(stable=True)
    sent = torch.bincount(flat // local, minlength=ranks)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    ways = (sent.tolist(), received.tolist())
    token = order // experts.shape[1]
    values = _travel(_take(x.values, token), *ways, group)
    scale = None if x.scale is None else _travel(_take(x.scale, token), *ways, group)
    owner = _travel(flat[order], *ways, group) % local
    routing = _travel(weights.flatten()[order], *ways, group)
    arrived = owner.argsort(stable=True)
    sizes = torch.bincount(owner, minlength=local)
    offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    rows = Quantized(_take(values, arrived), None if scale is None else _take(scale, arrived))
    ticket = Ticket(*ways, order, arrived, experts.shape[1])
    return Dispatched(rows, offsets, routing[arrived], ticket)


def combine(
    y: Tensor, ticket: Ticket, shared: Tensor, group: Any, *, n: Numerics = OFFICIAL
) -> Tensor:
    in_order = torch.empty_like(y)
    in_order[ticket.arrived] = y
    home = _travel(in_order, ticket.received, ticket.sent, group)
    pairs = torch.empty_like(home)
    pairs[ticket.order] = home
    by_token = pairs.view(shared.shape[0], ticket.top_k, shared.shape[1])
    total = torch.zeros_like(shared, dtype=n.wide)
    for place in range(ticket.top_k):  # places are in increasing expert number
        total = total + n.up(by_token[:, place])
    return n.bf(total + n.up(shared))


def all_gather(x: Tensor, group: Any, *, n: Numerics = OFFICIAL) -> Tensor:
    ranks = dist.get_world_size(group)
    sizes = torch.empty(ranks, dtype=torch.int64, device=x.device)
    mine = torch.tensor([x.shape[0]], dtype=torch.int64, device=x.device)
    dist.all_gather_into_tensor(sizes, mine, group=group)
    longest = int(sizes.max())
    padded = x.new_zeros(longest, *x.shape[1:])
    padded[: x.shape[0]] = x
    everything = x.new_empty(ranks * longest, *x.shape[1:])
    dist.all_gather_into_tensor(_bytes(everything), _bytes(padded), group=group)
    parts = everything.view(ranks, longest, *x.shape[1:])
    return torch.cat([part[:size] for part, size in zip(parts, sizes.tolist(), strict=True)])


def all_reduce(x: Tensor, group: Any, *, n: Numerics = OFFICIAL) -> Tensor:
    parts = all_gather(x[None], group, n=n)
    total = torch.zeros_like(x, dtype=n.wide)
    for part in parts:  # rank order: the same bits on every rank and in every run
        total = total + n.up(part)
    return total.to(x.dtype)


def reduce_scatter(x: Tensor, group: Any, *, n: Numerics = OFFICIAL) -> Tensor:
    share = x.shape[0] // dist.get_world_size(group)
    first = dist.get_rank(group) * share
    return all_reduce(x, group, n=n)[first : first + share]


def _take(x: Tensor, rows: Tensor) -> Tensor:
    return _bytes(x)[rows].view(x.dtype)


def _bytes(x: Tensor) -> Tensor:
    return x.view(torch.uint8) if x.element_size() == 1 else x


def _travel(x: Tensor, sent: list[int], received: list[int], group: Any) -> Tensor:
    """all_to_all of rows: the first sent[0] go to rank 0, and so on."""
    arrived = x.new_empty(sum(received), *x.shape[1:])
    dist.all_to_all_single(_bytes(arrived), _bytes(x.contiguous()), received, sent, group=group)
    return arrived
