"""Caches, compression, index scores, selection and attention, as the specification reads.

In: tensors of the catalogue's contracts. Out: the same.
Does not know: how blocks are handed out, which request a row belongs to.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepinfer.reference.numerics import OFFICIAL, Numerics
from deepinfer.reference.records import read, round_trip, write
from deepinfer.reference.tensor import rms_norm

SLOTS_AT_ONCE = 64  # block of the running maximum (backbone 3.5 step 5)


def store_window(cache: Tensor, rows: Tensor, keys: Tensor, *, n: Numerics = OFFICIAL) -> Tensor:
    write(cache, rows, keys, "window", n)
    return round_trip(keys.contiguous(), "window", n)


def load_window(cache: Tensor, rows: Tensor, *, n: Numerics = OFFICIAL) -> Tensor:
    return read(cache, rows, "window", n)


def store_entries(cache: Tensor, rows: Tensor, entries: Tensor, *, n: Numerics = OFFICIAL) -> None:
    write(cache, rows, entries, "entry", n)


def load_entries(cache: Tensor, rows: Tensor, *, n: Numerics = OFFICIAL) -> Tensor:
    return read(cache, rows, "entry", n)


def store_index(cache: Tensor, rows: Tensor, keys: Tensor, *, n: Numerics = OFFICIAL) -> None:
    write(cache, rows, keys, "index", n)


def load_index(cache: Tensor, rows: Tensor, *, n: Numerics = OFFICIAL) -> Tensor:
    return read(cache, rows, "index", n)


def store_open(
    cache: Tensor, rows: Tensor, kv: Tensor, gate: Tensor, *, n: Numerics = OFFICIAL
) -> None:
    kept = rows >= 0
    cache[rows[kept]] = torch.cat([kv, gate], -1)[kept].to(cache.dtype)


def compress(
    kv: Tensor,
    gate: Tensor,
    cache: Tensor,
    sources: Tensor,
    weight: Tensor,
    eps: float,
    *,
    n: Numerics = OFFICIAL,
) -> Tensor:
    fresh = torch.cat([kv, gate], -1)  # [tokens, 2 * dim]
    earlier = cache[(-1 - sources).clamp(min=0)].to(fresh.dtype)
    both = torch.where((sources >= 0)[..., None], fresh[sources.clamp(min=0)], earlier)
    a, s = n.up(both).chunk(2, -1)  # [groups, ratio, dim] each
    latent = (torch.softmax(s, 1) * a).sum(1)
    return rms_norm(n.bf(latent), weight, eps, n=n)  # rounded before the norm (backbone N2)


def index_logits(
    query: Tensor,
    weights: Tensor,
    scale: float,
    cache: Tensor,
    block_table: Tensor,
    sequence: Tensor,
    visible: Tensor,
    count: int,
    per_block: int,
    candidates: Tensor | None = None,
    candidate_size: int = 0,
    *,
    n: Numerics = OFFICIAL,
) -> Tensor:
    number = torch.arange(count, device=query.device).expand(query.shape[0], -1)
    own_columns = candidates is not None and not n.release
    if candidates is not None and own_columns:
        inside = torch.arange(candidate_size, device=query.device)
        number = (candidates[..., None] * candidate_size + inside).flatten(1)
    hidden = (number < 0) | (number >= visible[:, None])  # [tokens, columns]
    if candidates is not None and n.release:  # the release masks the full width instead
        hidden |= ~(number[..., None] // candidate_size == candidates[:, None]).any(-1)
    rounded = round_trip(query.contiguous(), "index", n)
    weights = n.bf(n.up(weights) * scale)
    scores = torch.empty(number.shape, dtype=n.wide, device=query.device)
    for owner in sequence.unique().tolist():
        mine = sequence == owner
        wanted = number[mine].masked_fill(hidden[mine], 0)
        columns = wanted if own_columns else wanted.amax(0)
        row = block_table[owner].long()[columns // per_block] * per_block + columns % per_block
        keys = read(cache, row, "index", n)  # [columns, dim] or [tokens, columns, dim]
        scores[mine] = _head_sum(rounded[mine], weights[mine], keys, n)
    return n.f32(scores.masked_fill(hidden, -torch.inf))


def _head_sum(query: Tensor, weights: Tensor, keys: Tensor, n: Numerics) -> Tensor:
    """Sum over heads of weight * relu(q . k), one head after the other."""
    rule = "td,cd->tc" if keys.dim() == 2 else "td,tcd->tc"
    total: Tensor | float = 0.0
    for head in range(query.shape[1]):
        dot = torch.einsum(rule, n.up(query[:, head]), n.up(keys))
        weight = n.up(weights[:, head, None])
        if n.release:  # the release rounds each step of the chain
            total = total + n.up(n.bf(n.up(n.bf(dot)).relu() * weight))
        else:
            total = total + dot.relu() * weight
    assert isinstance(total, Tensor)
    return n.up(n.bf(total)) if n.release else total


def index_topk(
    scores: Tensor,
    top_k: int,
    candidates: Tensor | None = None,
    candidate_size: int = 0,
    *,
    n: Numerics = OFFICIAL,
) -> Tensor:
    chosen = _best(scores, top_k, n)
    if candidates is None or n.release:
        return chosen
    block = candidates.long().gather(1, chosen.clamp(min=0).long() // candidate_size)
    number = block * candidate_size + chosen % candidate_size
    return torch.where(chosen < 0, -1, number).int()


def candidate_blocks(
    scores: Tensor, visible: Tensor, size: int, top_k: int, *, n: Numerics = OFFICIAL
) -> Tensor:
    missing = -scores.shape[1] % size
    padded = torch.nn.functional.pad(scores, (0, missing), value=-torch.inf)
    best = padded.unflatten(1, (-1, size)).amax(-1)  # [tokens, blocks]
    newest = (visible.long() - 1).clamp(min=0) // size
    if best.shape[1]:
        forced = torch.where(visible[:, None] > 0, torch.inf, -torch.inf).to(best.dtype)
        best = best.scatter(1, newest[:, None], forced)
    return _best(best, top_k, n)


def _best(scores: Tensor, top_k: int, n: Numerics) -> Tensor:
    """Columns of the best scores that are not masked, increasing, -1 behind: [rows, top_k]."""
    if n.release:  # leaves ties to the library (backbone 3.7, ties)
        order = scores.topk(min(top_k, scores.shape[1]), dim=-1, sorted=False).indices
    else:  # a stable sort keeps the lowest number
        order = scores.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    masked = scores.gather(1, order) == -torch.inf
    number = order.masked_fill(masked, scores.shape[1]).sort(-1).values
    number = torch.where(number == scores.shape[1], -1, number)
    return torch.nn.functional.pad(number, (0, top_k - number.shape[1]), value=-1).int()


def sparse_prefill(
    q: Tensor,
    window: Tensor,
    window_index: Tensor,
    entries: Tensor | None,
    entry_index: Tensor | None,
    sink: Tensor,
    scale: float,
    *,
    n: Numerics = OFFICIAL,
) -> tuple[Tensor, Tensor]:
    keys = n.up(window[window_index.clamp(min=0).long()])  # [tokens, w, dim]
    return _with_entries(q, keys, window_index, entries, entry_index, sink, scale, n)


def sparse_decode(
    q: Tensor,
    window: Tensor,
    window_index: Tensor,
    entries: Tensor | None,
    entry_index: Tensor | None,
    sink: Tensor,
    scale: float,
    *,
    n: Numerics = OFFICIAL,
) -> tuple[Tensor, Tensor]:
    keys = n.up(read(window, window_index.clamp(min=0), "window", n))  # [tokens, w, dim]
    return _with_entries(q, keys, window_index, entries, entry_index, sink, scale, n)


def _with_entries(
    q: Tensor,
    keys: Tensor,
    valid: Tensor,
    entries: Tensor | None,
    entry_index: Tensor | None,
    sink: Tensor,
    scale: float,
    n: Numerics,
) -> tuple[Tensor, Tensor]:
    if entries is not None and entry_index is not None:
        compressed = n.up(read(entries, entry_index.clamp(min=0), "entry", n))
        keys = torch.cat([keys, compressed], 1)
        valid = torch.cat([valid, entry_index], 1)
    return _attend(n.up(q), keys, valid >= 0, n.up(sink), scale, n)


def _attend(
    q: Tensor, keys: Tensor, valid: Tensor, sink: Tensor, scale: float, n: Numerics
) -> tuple[Tensor, Tensor]:
    """q [tokens, heads, dim], keys [tokens, slots, dim], valid [tokens, slots]."""
    keys = keys.masked_fill(~valid[..., None], 0)  # an unread slot may hold NaN
    score = torch.einsum("thd,tkd->thk", q, keys) * scale
    score = score.masked_fill(~valid[:, None], -torch.inf)
    # -1e30, not -inf: a block without keys must add nothing, never exp(-inf + inf)
    top = torch.full(score.shape[:2], -1e30, dtype=n.wide, device=q.device)
    mass = torch.zeros_like(top)
    out = torch.zeros_like(q)
    for first in range(0, score.shape[2], SLOTS_AT_ONCE):
        part = score[..., first : first + SLOTS_AT_ONCE]
        now = torch.maximum(top, part.amax(-1))
        p = torch.exp(part - now[..., None])  # [tokens, heads, slots]
        shrink = torch.exp(top - now)
        mass = mass * shrink + p.sum(-1)
        values = keys[:, first : first + SLOTS_AT_ONCE]
        out = out * shrink[..., None] + torch.einsum("thk,tkd->thd", n.up(n.bf(p)), values)
        top = now
    out = out / (mass + torch.exp(sink - top))[..., None]
    lse = torch.log2(mass) + top * math.log2(math.e)
    return n.bf(out), n.f32(lse.masked_fill(mass == 0, -torch.inf))
