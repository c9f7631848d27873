"""Window and compressed attention, the compressor and the indexer, over packed documents.

In: sublayer inputs [tokens, hidden] of `rows` packed rows. Out: attention output, selections.
`start` names for every token the first position of its document: nothing looks before it.
Does not know: streams, experts, checkpoints. Specification 3.4 to 3.7.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

from .numerics import Numerics, average, fake_q8, linear, region, rms, similarity, wide_linear
from .quantize import q4i, q4k, q8, straight_through
from .shape import Shape

Weights = dict[str, Tensor]


@lru_cache
def frequencies(shape: Shape, compressed: bool, device: torch.device) -> Tensor:
    """RoPE frequencies [rope_dim / 2] f32, with the YaRN ramp for layers of ratio 1 and 2."""
    dim = shape.rope_dim
    exponent = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    if not compressed:
        return (1.0 / shape.theta**exponent).to(device)
    factor, fast, slow, original = shape.yarn
    plain = 1.0 / shape.compress_theta**exponent
    cut = [
        dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(shape.compress_theta))
        for turns in (fast, slow)
    ]
    low, high = max(math.floor(cut[0]), 0), min(math.ceil(cut[1]), dim - 1)
    ramp = ((torch.arange(dim // 2) - low) / max(high - low, 0.001)).clamp(0, 1)
    return (plain / factor * ramp + plain * (1 - ramp)).to(device)


def angles(positions: Tensor, shape: Shape, compressed: bool) -> tuple[Tensor, Tensor]:
    """cos and sin [n, rope_dim / 2] of positions [n]; the product is formed in FP32."""
    turn = positions.float()[:, None] * frequencies(shape, compressed, positions.device)
    return turn.cos(), turn.sin()


def rotate(value: Tensor, cos: Tensor, sin: Tensor, n: Numerics) -> Tensor:
    """Interleaved RoPE on the last channels; cos, sin broadcast over the axes between."""
    width = 2 * cos.shape[-1]
    keep, turn = value[..., :-width], value[..., -width:].to(n.wide)
    a, b = turn[..., 0::2], turn[..., 1::2]
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    return torch.cat((keep, turned.to(value.dtype)), -1)


@region
def project(
    x: Tensor, w: Weights, cos: Tensor, sin: Tensor, shape: Shape, n: Numerics
) -> tuple[Tensor, Tensor, Tensor]:
    """Latent qr [tokens, q_rank], queries [tokens, heads, dim], window keys [tokens, dim]."""
    quantized = fake_q8(x, n)
    qr = rms(linear(quantized, w["attn.wq_a.weight"], n), w["attn.q_norm.weight"], shape.eps, n)
    q = linear(fake_q8(qr, n), w["attn.wq_b.weight"], n).unflatten(-1, (shape.heads, -1))
    q = rotate(q, cos[:, None], sin[:, None], n)
    k = rms(linear(quantized, w["attn.wkv.weight"], n), w["attn.kv_norm.weight"], shape.eps, n)
    k = rotate(k, cos, sin, n)
    return qr, q, straight_through(k, q8) if n.caches else k


def output(out: Tensor, w: Weights, cos: Tensor, sin: Tensor, shape: Shape, n: Numerics) -> Tensor:
    """Inverse RoPE, grouped projection: [tokens, heads, dim] -> [tokens, hidden]."""
    out = rotate(out, cos[:, None], -sin[:, None], n)
    grouped = out.reshape(out.shape[0], shape.o_groups, -1).to(n.storage)
    inner = w["attn.wo_a.weight"].to(n.storage).unflatten(0, (shape.o_groups, -1))
    narrow = torch.einsum("tgi,gri->tgr", grouped, inner).flatten(-2)
    return linear(fake_q8(narrow, n), w["attn.wo_b.weight"], n)


def window_scores(
    q: Tensor, k: Tensor, start: Tensor, shape: Shape, n: Numerics
) -> tuple[Tensor, Tensor]:
    """Scores [rows, T, heads, 2 window] against the query's block and the one before; keys."""
    rows, length = start.shape
    size, blocks = shape.window, length // shape.window
    keys = k.reshape(rows, blocks, size, -1)
    past = torch.cat((torch.zeros_like(keys[:, :1]), keys[:, :-1]), 1)
    keys = torch.cat((past, keys), 2)  # [rows, blocks, 2 window, dim]
    queries = q.reshape(rows, blocks, size * shape.heads, -1)
    scores = similarity(queries, keys, n).to(n.wide) * shape.head_dim**-0.5
    scores = scores.reshape(rows, length, shape.heads, 2 * size)
    p = torch.arange(length, device=q.device)[:, None]
    t = (p // size - 1) * size + torch.arange(2 * size, device=q.device)
    seen = (t <= p) & (t > p - size) & (t >= start[:, :, None])  # [rows, T, 2 window]
    return scores.masked_fill(~seen[:, :, None], -torch.inf), keys


def mix_window(p: Tensor, keys: Tensor, shape: Shape, n: Numerics) -> Tensor:
    """Probabilities [rows, T, heads, 2 window] times keys as values -> [rows, T, heads, dim]."""
    rows, length = p.shape[:2]
    blocked = p.reshape(rows, length // shape.window, -1, p.shape[-1])
    return average(blocked, keys, n).reshape(rows, length, shape.heads, -1)


@region
def attend_window(
    q: Tensor, k: Tensor, start: Tensor, w: Weights, cos: Tensor, sin: Tensor,
    shape: Shape, n: Numerics,
) -> Tensor:
    """Attention of a ratio-0 layer (specification 3.5)."""
    scores, keys = window_scores(q, k, start, shape, n)
    top = scores.amax(-1, keepdim=True).detach()
    p = torch.exp(scores - top)
    mass = p.sum(-1, keepdim=True) + torch.exp(w["attn.attn_sink"].to(n.wide)[:, None] - top)
    out = (mix_window(p, keys, shape, n) / mass).to(n.storage)
    return output(out.flatten(0, 1), w, cos, sin, shape, n)


def visible(start: Tensor, entries: int, ratio: int) -> Tensor:
    """[rows, T, entries] bool: entry exists for the query and lies in its document."""
    p = torch.arange(start.shape[1], device=start.device)[:, None]
    j = torch.arange(entries, device=start.device)
    return (j < (p + 1) // ratio) & (j * ratio >= start[:, :, None])


@region
def attend_both(
    q: Tensor, k: Tensor, c: Tensor, seen: Tensor, start: Tensor, w: Weights,
    cos: Tensor, sin: Tensor, shape: Shape, n: Numerics,
) -> tuple[Tensor, Tensor]:
    """Attention over the window and the selected entries; also the mass of every entry.

    c [rows, entries, dim]; seen [rows, T, entries] bool.
    The mass [rows, T, entries] is the teacher of the indexer and carries no gradient.
    """
    rows, length = start.shape
    near, keys = window_scores(q, k, start, shape, n)
    far = similarity(q.reshape(rows, length * shape.heads, -1), c, n).to(n.wide)
    far = far.reshape(rows, length, shape.heads, -1) * shape.head_dim**-0.5
    far = far.masked_fill(~seen[:, :, None], -torch.inf)
    top = torch.maximum(near.amax(-1, keepdim=True), far.amax(-1, keepdim=True)).detach()
    p_near, p_far = torch.exp(near - top), torch.exp(far - top)
    sink = torch.exp(w["attn.attn_sink"].to(n.wide)[:, None] - top)
    mass = p_near.sum(-1, keepdim=True) + p_far.sum(-1, keepdim=True) + sink
    from_far = average(p_far.reshape(rows, length * shape.heads, -1), c, n)
    out = mix_window(p_near, keys, shape, n) + from_far.reshape(rows, length, shape.heads, -1)
    out = (out / mass).to(n.storage)
    share = (p_far / mass).sum(2).detach()
    return output(out.flatten(0, 1), w, cos, sin, shape, n), share


@region
def compress(
    x: Tensor, w: Weights, turns: tuple[Tensor, Tensor], rows: int, ratio: int,
    shape: Shape, n: Numerics,
) -> tuple[Tensor, Tensor]:
    """Entries [rows, n, dim] and index keys [rows, n, index_dim] of a Full layer (3.6, 3.7).

    turns: cos and sin [n, rope / 2] at the first token of each group. The index keys see a
    detached latent: the indexer learns by its own loss and does not pull at the backbone.
    """
    cos, sin = turns
    if ratio == 1:
        pooled = linear(x, w["attn.compressor.wkv.weight"], n)
    else:
        product = wide_linear if n.exact else linear
        a = product(x, w["attn.compressor.wkv.weight"], n).to(n.wide).unflatten(0, (-1, ratio))
        s = product(x, w["attn.compressor.wgate.weight"], n).to(n.wide).unflatten(0, (-1, ratio))
        pooled = (torch.softmax(s, 1) * a).sum(1).to(n.storage)
    latent = rms(pooled, w["attn.compressor.norm.weight"], shape.eps, n).unflatten(0, (rows, -1))
    key = linear(latent.detach(), w["attn.indexer.wk.weight"], n)
    key = rotate(rms(key, w["attn.indexer.k_norm.weight"], shape.eps, n), cos, sin, n)
    entry = rotate(latent, cos, sin, n)
    if n.caches:
        key, entry = straight_through(key, q4i), straight_through(entry, q4k)
    return entry, key


@region
def score_entries(
    x: Tensor, qr: Tensor, key: Tensor, w: Weights, turns: tuple[Tensor, Tensor], start: Tensor,
    ratio: int, shape: Shape, n: Numerics,
) -> Tensor:
    """Index scores [rows, T, entries] wide, -inf where an entry is not visible (3.7)."""
    rows, length = start.shape
    cos, sin = turns
    q = linear(fake_q8(qr, n), w["attn.indexer.wq_b.weight"], n)
    q = rotate(q.unflatten(-1, (shape.index_heads, -1)), cos[:, None], sin[:, None], n)
    if n.caches:
        q = straight_through(q, q4i)
    factor = shape.index_dim**-0.5 * shape.index_heads**-0.5
    hw = linear(x, w["attn.indexer.weights_proj.weight"], n) * factor  # [tokens, heads]
    dots = similarity(q.reshape(rows, length * shape.index_heads, -1), key, n)
    dots = dots.reshape(rows, length, shape.index_heads, -1).to(n.wide)
    scores = (torch.relu(dots) * hw.reshape(rows, length, -1, 1).to(n.wide)).sum(2)
    return scores.masked_fill(~visible(start, key.shape[1], ratio), -torch.inf)


def best(scores: Tensor, count: int, exact: bool) -> Tensor:
    """Mask of the `count` largest per row, the lowest index first when exact; never a -inf."""
    possible = scores > -torch.inf
    if scores.shape[-1] <= count:
        return possible
    top = scores.topk(count, -1, sorted=False)
    if exact:  # among those equal to the last one kept, the lowest index wins
        least = top.values.amin(-1, keepdim=True)
        above, equal = scores > least, scores == least
        room = count - above.sum(-1, keepdim=True)
        return (above | (equal & (equal.cumsum(-1) <= room))) & possible
    mask = torch.zeros_like(possible)
    return mask.scatter_(-1, top.indices, True) & possible


def candidate_entries(scores: Tensor, start: Tensor, shape: Shape, exact: bool) -> Tensor:
    """Candidates [rows, T, entries] bool from the scores of the candidate source (3.7)."""
    size = shape.candidate_size
    blocks = scores.unflatten(-1, (-1, size)).amax(-1)  # [rows, T, entries / size]
    p = torch.arange(start.shape[1], device=start.device)[:, None]
    newest = torch.arange(blocks.shape[-1], device=start.device) == p // size
    blocks = blocks.masked_fill(newest, torch.inf)
    return best(blocks, shape.candidate_blocks, exact).repeat_interleave(size, -1)


@region
def index_loss(scores: Tensor, seen: Tensor, mass: Tensor) -> Tensor:
    """KL of the indexer's softmax over `seen` from the share of attention each entry got."""
    target = mass / (mass.sum(-1, keepdim=True) + 1e-9)
    logits = scores.masked_fill(~seen, -1e9)
    log_p = torch.log_softmax(logits, -1)
    row = (torch.xlogy(target, target) - target * log_p).masked_fill(~seen, 0.0).sum(-1)
    known = seen.any(-1)
    return row.masked_fill(~known, 0.0).sum() / known.sum().clamp(min=1)
