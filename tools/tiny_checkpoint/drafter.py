"""DSpark: stages that guess the next five tokens from the backbone's late entry streams.

In: features of all backbone tokens, anchors (row, position). Out: draft logits, confidence.
Does not know: the backbone's layers, acceptance. Draft specification 1.2 and 1.3.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from . import attention, experts, streams
from .network import Packed, layer_views
from .numerics import (
    Numerics,
    average,
    fake_q8,
    linear,
    lookup,
    region,
    rms,
    similarity,
    wide_linear,
)
from .quantize import q8, straight_through
from .shape import Shape

Weights = dict[str, Tensor]


@region
def context_keys(
    mx: Tensor, wkv: Tensor, norm: Tensor, cos: Tensor, sin: Tensor, shape: Shape, n: Numerics
) -> Tensor:
    """Window keys [tokens, dim] of one stage, made from the backbone alone."""
    key = rms(linear(fake_q8(mx, n), wkv, n), norm, shape.eps, n)
    key = attention.rotate(key, cos, sin, n)
    return straight_through(key, q8) if n.caches else key


@region
def read_features(features: Tensor, w: Tensor, norm: Tensor, shape: Shape, n: Numerics) -> Tensor:
    """[tokens, targets * hidden] -> [tokens, hidden]."""
    return rms(linear(fake_q8(features, n), w, n), norm, shape.eps, n)


@region
def attend_block(
    q: Tensor, k: Tensor, context: Tensor, valid: Tensor, w: Weights, cos: Tensor, sin: Tensor,
    shape: Shape, n: Numerics,
) -> Tensor:
    """All queries of a block see the same context keys [anchors, window, dim] and the block."""
    anchors = context.shape[0]
    keys = torch.cat((context, k.unflatten(0, (anchors, -1))), 1)
    valid = F.pad(valid, (0, shape.block), value=True)  # [anchors, window + block]
    scores = similarity(q.reshape(anchors, shape.block * shape.heads, -1), keys, n).to(n.wide)
    scores = (scores * shape.head_dim**-0.5).masked_fill(~valid[:, None], -torch.inf)
    scores = scores.reshape(anchors, shape.block, shape.heads, -1)
    top = scores.amax(-1, keepdim=True).detach()
    p = torch.exp(scores - top)
    mass = p.sum(-1, keepdim=True) + torch.exp(w["attn.attn_sink"].to(n.wide)[:, None] - top)
    out = average(p.flatten(1, 2), keys, n)
    out = (out.reshape(anchors, shape.block, shape.heads, -1) / mass).to(n.storage)
    return attention.output(out.flatten(0, 1), w, cos, sin, shape, n)


def draft_hidden(
    weights: Weights, features: Tensor, packed: Packed, anchor: Tensor, token: Tensor,
    shape: Shape, n: Numerics,
) -> Tensor:
    """h before its norm [anchors, block, hidden].

    anchor [anchors] is the flat index of the last committed token, token [anchors] the newest.
    """
    length, block = packed.ids.shape[1], shape.block
    mx = read_features(features, weights["mtp.main_proj.weight"][0],
                       weights["mtp.main_norm.weight"][0], shape, n)
    position = anchor % length
    back = torch.arange(shape.window - 1, -1, -1, device=anchor.device)
    valid = position[:, None] - back >= packed.start.flatten()[anchor][:, None]
    where = (anchor[:, None] - back).clamp(min=0)  # [anchors, window]
    at = (position[:, None] + 1 + torch.arange(block, device=anchor.device)).flatten()
    cos, sin = attention.angles(at, shape, False)
    ids = torch.full((len(anchor), block), shape.noise, device=anchor.device)
    ids[:, 0] = token
    embedded = F.embedding(ids.flatten(), weights["embed.weight"][0]).to(n.storage)
    stream = embedded.unsqueeze(1).expand(-1, shape.copies, -1).contiguous()
    pre = torch.zeros(stream.shape[:2], dtype=n.wide, device=stream.device)
    pre[:, 0] = 1
    pre.requires_grad_(torch.is_grad_enabled())
    stream.requires_grad_(torch.is_grad_enabled())
    for stage in layer_views(weights, "mtp."):
        w = stage.w
        context = context_keys(mx, w["attn.wkv.weight"], w["attn.kv_norm.weight"],
                               *packed.turns[False], shape, n)[where]
        x, pre_attn, post, mixing = streams.enter(
            stream, pre, stage.attn_site, stage.norms[0], shape, n)
        _, q, k = attention.project(x, w, cos, sin, shape, n)
        out = attend_block(q, k, context, valid, w, cos, sin, shape, n)
        stream = streams.leave(stream, out, post, mixing, n)
        x, pre, post, mixing = streams.enter(
            stream, pre_attn, stage.ffn_site, stage.norms[1], shape, n)
        out, _, load = experts.mix_experts(x, w, shape.draft_top, shape, n)
        stream = streams.leave(stream, out, post, mixing, n)
    h = (pre.unsqueeze(-1) * stream.to(n.wide)).sum(-2).to(n.storage)
    return h.unflatten(0, (-1, block))


def base_logits(weights: Weights, h: Tensor, shape: Shape, n: Numerics) -> Tensor:
    """Logits without the Markov term [anchors, block, vocab]."""
    normed = rms(h, weights["mtp.norm.weight"][0], shape.eps, n)
    return wide_linear(normed, weights["head.weight"][0], n)


def markov(weights: Weights, before: Tensor, n: Numerics) -> tuple[Tensor, Tensor]:
    """The bigram term [..., vocab] of the token before, and that token's row [..., rank]."""
    row = lookup(before, weights["mtp.markov_head.embed.weight"][0]).to(n.storage)
    return wide_linear(row, weights["mtp.markov_head.head.weight"][0], n), row


def confidence(weights: Weights, h: Tensor, row: Tensor, n: Numerics) -> Tensor:
    """Acceptance logit [...] from h before its norm and the Markov row."""
    proj = weights["mtp.confidence_head.proj.weight"][0]
    return wide_linear(torch.cat((h, row), -1), proj, n).squeeze(-1)


def propose(
    weights: Weights, h: Tensor, token: Tensor, shape: Shape, n: Numerics
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Greedy drafts left to right: ids, base logits, logits, confidence, each [anchors, block]."""
    base = base_logits(weights, h, shape, n)
    ids, full, sure = [], [], []
    for slot in range(shape.block):
        term, row = markov(weights, token, n)
        full.append(base[:, slot] + term)
        sure.append(confidence(weights, h[:, slot], row, n))
        token = full[-1].argmax(-1)
        ids.append(token)
    return torch.stack(ids, 1), base, torch.stack(full, 1), torch.stack(sure, 1)
