"""Norms, rotations, quantizers, routing, hyper-connections and the n-gram memory, as specified.

In: tensors of the catalogue's contracts. Out: the same.
Does not know: caches, devices, speed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.ops.values import ExpertRows, Quantized, Weight
from deepinfer.reference.numerics import OFFICIAL, Numerics
from deepinfer.reference.quantizers import dequantize, e8m0, q8


def embed(ids: Tensor, table: Tensor, *, n: Numerics = OFFICIAL) -> Tensor:
    return n.bf(table[ids])


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, n: Numerics = OFFICIAL) -> Tensor:
    wide = n.up(x)  # [..., width]
    rms = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return n.bf(n.up(weight) * wide * rms)


def rope(
    x: Tensor,
    positions: Tensor,
    frequencies: Tensor,
    inverse: bool = False,
    *,
    n: Numerics = OFFICIAL,
) -> Tensor:
    # The angle is an FP32 product: near position 10^6 an FP64 angle differs visibly (backbone 3.4).
    angle = positions.to(torch.float32)[:, None] * frequencies
    turn = torch.polar(torch.ones_like(angle), angle)  # [tokens, rope / 2]
    cos, sin = n.up(turn.real), n.up(turn.imag)
    if inverse:
        sin = -sin
    if x.dim() == 3:
        cos, sin = cos[:, None], sin[:, None]
    width = 2 * frequencies.shape[0]
    a, b = n.up(x[..., -width::2]), n.up(x[..., 1 - width :: 2])
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([n.bf(x[..., :-width]), n.bf(turned)], -1)


def quantize(x: Tensor, *, n: Numerics = OFFICIAL) -> Quantized:
    if not n.rounding:
        return Quantized(n.up(x))
    codes, scale = q8(x)
    return Quantized(codes, e8m0(scale))


def swiglu_quantize(
    gate_up: Tensor, weight: Tensor | None, limit: float, *, n: Numerics = OFFICIAL
) -> Quantized:
    gate, up = n.up(gate_up).chunk(2, -1)  # [rows, width] each
    gate = gate.clamp(max=limit)
    up = up.clamp(-limit, limit)
    product = gate * torch.sigmoid(gate) * up
    if weight is not None:
        product = n.up(weight)[:, None] * product  # before the down projection (backbone N8)
    return quantize(n.bf(product), n=n)


def route(
    logits: Tensor, bias: Tensor, top_k: int, scale: float, *, n: Numerics = OFFICIAL
) -> tuple[Tensor, Tensor]:
    wide = n.up(logits)  # [tokens, experts]
    # softplus without losing the digits of very negative logits (kernels 4.9)
    softplus = wide.clamp(min=0) + torch.log1p(torch.exp(-wide.abs()))
    score = n.f32(softplus.sqrt())
    # a stable sort keeps the lowest expert number on ties
    order = (score + bias.to(score.dtype)).sort(dim=-1, descending=True, stable=True).indices
    experts = order[:, :top_k].sort(-1).values
    weights = n.up(score.gather(-1, experts))
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * scale
    return experts.int(), n.f32(weights)


def permute_rows(
    x: Quantized, experts: Tensor, weights: Tensor, count: int, *, n: Numerics = OFFICIAL
) -> ExpertRows:
    top_k = experts.shape[1]
    flat = experts.flatten().long()  # [tokens * top_k]
    source = flat.argsort(stable=True)
    sizes = torch.bincount(flat, minlength=count)
    offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    token = source // top_k
    if x.scale is None:
        values, scale = x.values[token], None
    else:  # indexing by bytes: FP8 types have few operators
        values = x.values.view(torch.uint8)[token].view(x.values.dtype)
        scale = x.scale.view(torch.uint8)[token].view(x.scale.dtype)
    return ExpertRows(Quantized(values, scale), weights.flatten()[source], source, offsets)


def unpermute_rows(
    y: Tensor, rows: ExpertRows, shared: Tensor, top_k: int, *, n: Numerics = OFFICIAL
) -> Tensor:
    pairs = torch.empty_like(y)
    pairs[rows.source] = y
    # places are in increasing expert number
    by_token = pairs.view(shared.shape[0], top_k, shared.shape[1])
    total = torch.zeros_like(shared, dtype=n.wide)
    for place in range(top_k):
        total = total + n.up(by_token[:, place])
    return n.bf(total + n.up(shared))


def hyper_pre(
    stream: Tensor,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    eps: float,
    mix_eps: float,
    steps: int,
    *,
    n: Numerics = OFFICIAL,
) -> tuple[Tensor, Tensor, Tensor]:
    copies = stream.shape[1]
    x = n.up(stream).flatten(1)  # [tokens, copies * hidden]
    rho = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    m = (x @ n.up(fn).T) * rho  # [tokens, copies * (2 + copies)]
    a, b = n.up(scale), n.up(base)
    pre = torch.sigmoid(m[:, :copies] * a[0] + b[:copies]) + mix_eps
    post = 2 * torch.sigmoid(m[:, copies : 2 * copies] * a[1] + b[copies : 2 * copies])
    mix = (m[:, 2 * copies :] * a[2] + b[2 * copies :]).unflatten(-1, (copies, copies))
    mix = torch.softmax(mix, -1) + mix_eps
    mix = mix / (mix.sum(1, keepdim=True) + mix_eps)
    for _ in range(steps - 1):
        mix = mix / (mix.sum(2, keepdim=True) + mix_eps)
        mix = mix / (mix.sum(1, keepdim=True) + mix_eps)
    return n.f32(pre), n.f32(post), n.f32(mix)


def hyper_collapse(stream: Tensor, pre: Tensor, *, n: Numerics = OFFICIAL) -> Tensor:
    return n.bf((n.up(pre)[..., None] * n.up(stream)).sum(1))


def hyper_post(
    stream: Tensor, y: Tensor, post: Tensor, mix: Tensor, *, n: Numerics = OFFICIAL
) -> Tensor:
    carried = torch.einsum("tik,tid->tkd", n.up(mix), n.up(stream))  # over the first index of mix
    return n.bf(n.up(post)[..., None] * n.up(y)[:, None] + carried)


def mean_copies(stream: Tensor, *, n: Numerics = OFFICIAL) -> Tensor:
    return n.bf(n.up(stream).mean(1))


def hash_lookup(
    history: Tensor,
    multipliers: Tensor,
    primes: Tensor,
    offsets: Tensor,
    pad: int,
    *,
    n: Numerics = OFFICIAL,
) -> Tensor:
    tokens = torch.where(history < 0, pad, history)  # [tokens, ngram] int64
    heads = primes.shape[0] // (history.shape[1] - 1)
    mixed = tokens[:, 0] * multipliers[0]
    columns = []
    for shift in range(1, history.shape[1]):
        mixed = mixed ^ (tokens[:, shift] * multipliers[shift])
        prime = primes[(shift - 1) * heads : shift * heads]
        columns.append(mixed[:, None] % prime)
    return torch.cat(columns, -1) + offsets


def gather_rows(table: Weight, rows: Tensor, *, n: Numerics = OFFICIAL) -> Quantized:
    assert table.scale is not None
    flat = rows.flatten()
    picked = table.values.view(torch.uint8)[flat].view(table.values.dtype)
    scale = table.scale.view(torch.uint8)[flat].view(table.scale.dtype)
    values = n.bf(dequantize(Weight(picked, scale)))  # [tokens * columns, width]
    width = rows.shape[1] * table.values.shape[1]
    return quantize(values.view(rows.shape[0], width), n=n)


def engram_gate(
    stream: Tensor,
    kv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    dead: Tensor,
    eps: float,
    *,
    n: Numerics = OFFICIAL,
) -> Tensor:
    tokens, copies, hidden = stream.shape
    r = n.up(stream)
    key, value = n.up(kv).view(tokens, copies + 1, hidden).split([copies, 1], 1)
    d = (r * n.up(q_weight) * n.up(k_weight) * key).sum(-1)  # [tokens, copies]
    d = d * torch.rsqrt(r.square().mean(-1) + eps) * torch.rsqrt(key.square().mean(-1) + eps)
    d = d * hidden**-0.5
    # copysign: d = +0 opens the gate a little, d = -0 closes it a little (backbone N9)
    gate = torch.sigmoid(torch.copysign(d.abs().clamp(min=1e-6).sqrt(), d))
    gate = gate.masked_fill(dead[:, None], 0)
    return n.bf(r + gate[..., None] * value)


def entry_rows(
    entries: Tensor,
    block_table: Tensor,
    sequence: Tensor,
    per_block: int,
    *,
    n: Numerics = OFFICIAL,
) -> Tensor:
    number = entries.clamp(min=0).long()
    block = block_table[sequence].long().gather(1, number // per_block)  # [tokens, k]
    row = block * per_block + number % per_block
    return torch.where(entries < 0, -1, row).int()


def pick_rows(x: Tensor, rows: Tensor, *, n: Numerics = OFFICIAL) -> Tensor:
    return x[rows]
