"""The differentiable backbone: DeepSeek-V4.1 over packed rows of documents, exactly as specified.

In: stacked weights, token ids [rows, T]. Out: hidden states for the head, the draft's features,
the indexer's loss, expert loads.
Does not know: how weights are stored or updated. Specification 3.2.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from . import attention, engram, experts, streams
from .numerics import Numerics, lookup, region, wide_linear
from .shape import Shape

LAYER_PARTS = (
    "attn.wq_a.weight", "attn.q_norm.weight", "attn.wq_b.weight", "attn.wkv.weight",
    "attn.kv_norm.weight", "attn.wo_a.weight", "attn.wo_b.weight", "attn.attn_sink",
    "ffn.gate.weight", "ffn.gate.bias", "ffn.experts.w1.weight", "ffn.experts.w3.weight",
    "ffn.experts.w2.weight", "ffn.shared_experts.w1.weight", "ffn.shared_experts.w3.weight",
    "ffn.shared_experts.w2.weight",
)
SOURCE_PARTS = ("compressor.wkv.weight", "compressor.norm.weight", "indexer.wk.weight",
                "indexer.k_norm.weight")


@dataclass
class Layer:
    """Views of one layer's weights."""

    w: dict[str, Tensor]
    norms: tuple[Tensor, Tensor]
    attn_site: tuple[Tensor, Tensor, Tensor]
    ffn_site: tuple[Tensor, Tensor, Tensor]


@dataclass
class Packed:
    """Token rows with what follows from them; a document begins at every id 0."""

    ids: Tensor  # [rows, T]
    start: Tensor  # [rows, T], first position of the token's document
    turns: dict[bool, tuple[Tensor, Tensor]]  # cos, sin [rows * T, rope / 2] by "compressed"
    hashes: Tensor  # [rows * T, layers, columns]


@dataclass
class Result:
    """What a forward pass hands on."""

    hidden: Tensor  # [rows * T, hidden], normalized for the head
    features: Tensor  # [rows * T, targets * hidden], entry streams for the draft
    loads: Tensor  # [layers, experts]
    index_loss: Tensor
    trace: dict[str, Tensor] = field(default_factory=dict)


def unstack(weights: dict[str, Tensor], prefix: str, parts: tuple[str, ...]) -> list[dict]:
    """One dictionary of views per owner."""
    columns = {part: weights[prefix + part].unbind(0) for part in parts}
    count = len(next(iter(columns.values())))
    return [{part: column[i] for part, column in columns.items()} for i in range(count)]


def layer_views(weights: dict[str, Tensor], prefix: str = "") -> list[Layer]:
    """The layers of the backbone, or with `mtp.` the stages of the draft."""
    sites = ("hc_attn_fn", "hc_attn_base", "hc_attn_scale", "hc_ffn_fn", "hc_ffn_base",
             "hc_ffn_scale", "attn_norm.weight", "ffn_norm.weight")
    mains, extras = unstack(weights, prefix, LAYER_PARTS), unstack(weights, prefix, sites)
    return [
        Layer(w, (e["attn_norm.weight"], e["ffn_norm.weight"]),
              (e["hc_attn_fn"], e["hc_attn_base"], e["hc_attn_scale"]),
              (e["hc_ffn_fn"], e["hc_ffn_base"], e["hc_ffn_scale"]))
        for w, e in zip(mains, extras, strict=True)
    ]


def pack(ids: Tensor, compressed: Tensor, shape: Shape) -> Packed:
    """Derive document starts, RoPE tables and hashes; T must be a multiple of the window."""
    rows, length = ids.shape
    p = torch.arange(length, device=ids.device)
    start = torch.where(ids == 0, p, 0).cummax(1).values
    turns = {}
    for kind in (False, True):
        cos, sin = attention.angles(p, shape, kind)
        turns[kind] = (cos.repeat(rows, 1), sin.repeat(rows, 1))
    hashes = engram.hash_rows(ids, start, compressed, shape).flatten(0, 1)
    return Packed(ids, start, turns, hashes)


class Backbone:
    """One forward pass: carries the stream, the mix, the caches and the selection by layer."""

    def __init__(self, weights: dict[str, Tensor], packed: Packed, shape: Shape, n: Numerics,
                 dense: bool = False):
        self.weights, self.packed, self.shape, self.n = weights, packed, shape, n
        self.dense = dense
        self.rows, self.length = packed.ids.shape
        self.layers = layer_views(weights)
        self.sources = unstack(weights, "attn.", SOURCE_PARTS)
        self.queries = unstack(weights, "attn.indexer.", ("wq_b.weight", "weights_proj.weight"))
        self.entries = self.keys = self.seen = self.scores = self.candidates = None
        self.shares: list[Tensor] = []
        self.losses: list[Tensor] = []

    def run(self, keep: Tensor | None, learn_index: bool, trace: bool) -> Result:
        """All layers; `keep` [rows * T] drops the Engram contribution where it is 0."""
        shape, n = self.shape, self.n
        embedded = lookup(self.packed.ids.flatten(), self.weights["embed.weight"][0])
        stream = embedded.to(n.storage).unsqueeze(1).expand(-1, shape.copies, -1).contiguous()
        pre = torch.zeros(stream.shape[:2], dtype=n.wide, device=stream.device)
        pre[:, 0] = 1
        pre.requires_grad_(torch.is_grad_enabled())  # one compiled region serves all layers
        features, loads, seen = [], [], {}
        for number, layer in enumerate(self.layers):
            if trace:
                seen |= {f"stream_in.{number}": stream, f"pre_in.{number}": pre}
            if number in shape.engram_layers:
                stream = self.inject(number, stream, keep)
            if number in shape.targets:
                features.append(stream.to(n.wide).mean(1).to(n.storage))
            x, pre_attn, post, mixing = streams.enter(
                stream, pre, layer.attn_site, layer.norms[0], shape, n)
            stream = streams.leave(stream, self.attend(number, layer, x, learn_index), post,
                                   mixing, n)
            if trace and number in shape.index_sources and self.seen is not None:
                seen[f"seen.{number}"] = self.seen
            x, pre, post, mixing = streams.enter(
                stream, pre_attn, layer.ffn_site, layer.norms[1], shape, n)
            out, routing, load = experts.mix_experts(x, layer.w, shape.top_experts, shape, n)
            stream = streams.leave(stream, out, post, mixing, n)
            loads.append(load)
            if trace:
                seen[f"routing.{number}"] = routing
        hidden = streams.finish(stream, pre, self.weights["norm.weight"][0], shape, n)
        if trace:
            seen["stream_out.last"] = stream
        self.close_group(learn_index)
        loss = sum(self.losses) if self.losses else hidden.new_zeros((), dtype=n.wide)
        return Result(hidden, torch.cat(features, -1), torch.stack(loads), loss, seen)

    def inject(self, number: int, stream: Tensor, keep: Tensor | None) -> Tensor:
        row = self.shape.engram_layers.index(number)
        parts = tuple(self.weights[f"engram.{part}"][row]
                      for part in ("wkv.weight", "q_weight", "k_weight"))
        table = self.weights[f"layers.{number}.engram.embed.weight"][0]
        found = lookup(self.packed.hashes[:, row], table)
        return engram.inject(stream, found, parts, keep, self.shape, self.n)

    def attend(self, number: int, layer: Layer, x: Tensor, learn_index: bool) -> Tensor:
        """Attention of one layer, with the roles of specification 1.3."""
        shape, n, start = self.shape, self.n, self.packed.start
        ratio = shape.ratios[number]
        cos, sin = self.packed.turns[ratio > 0]
        qr, q, k = attention.project(x, layer.w, cos, sin, shape, n)
        if ratio == 0 or not n.compressed:
            return attention.attend_window(q, k, start, layer.w, cos, sin, shape, n)
        if number in shape.index_sources:
            self.close_group(learn_index)
        if number in shape.kv_sources:
            self.compress(number, x, ratio)
        if number in shape.index_sources:
            self.select(number, x, qr, ratio)
        out, share = attention.attend_both(
            q, k, self.entries, self.seen, start, layer.w, cos, sin, shape, n)
        self.shares.append(share)
        return out

    def compress(self, number: int, x: Tensor, ratio: int) -> None:
        shape = self.shape
        row = shape.kv_sources.index(number)
        w = {f"attn.{key}": value for key, value in self.sources[row].items()}
        if ratio == 2:
            gate = self.weights["attn.compressor.wgate.weight"]
            w["attn.compressor.wgate.weight"] = gate[shape.gated_sources.index(number)]
        turns = tuple(t[: self.length : ratio] for t in self.packed.turns[True])
        self.entries, self.keys = attention.compress(
            x, w, turns, self.rows, ratio, shape, self.n)

    def select(self, number: int, x: Tensor, qr: Tensor, ratio: int) -> None:
        """Score, publish candidates at their source, obey them above it, keep the best."""
        shape, n = self.shape, self.n
        row = shape.index_sources.index(number)
        w = {f"attn.indexer.{key}": value for key, value in self.queries[row].items()}
        start = self.packed.start
        scores = attention.score_entries(
            x.detach(), qr.detach(), self.keys, w, self.packed.turns[True], start, ratio, shape, n)
        self.scores = scores
        with torch.no_grad():
            if self.dense:
                self.seen = scores > -torch.inf
                return
            if number == shape.candidate_layer:
                self.candidates = attention.candidate_entries(scores, start, shape, n.exact)
            allowed = scores.detach()
            if 0 <= shape.candidate_layer < number:
                allowed = allowed.masked_fill(~self.candidates, -torch.inf)
            self.seen = attention.best(allowed, shape.index_topk, n.exact)

    def close_group(self, learn_index: bool) -> None:
        """The layers that shared a selection are done: teach its indexer what they looked at."""
        if learn_index and self.shares and self.scores is not None:
            mass = sum(self.shares) / len(self.shares)
            self.losses.append(attention.index_loss(self.scores, self.seen, mass))
        self.shares = []


def forward(
    weights: dict[str, Tensor], packed: Packed, shape: Shape, n: Numerics,
    keep: Tensor | None = None, learn_index: bool = False, trace: bool = False,
    dense: bool = False,
) -> Result:
    """Run the backbone once; `dense` lets every query see all visible entries."""
    return Backbone(weights, packed, shape, n, dense).run(keep, learn_index, trace)


def logits(weights: dict[str, Tensor], hidden: Tensor, n: Numerics) -> Tensor:
    """Logits [tokens, vocab], wide (specification 3.2)."""
    return wide_linear(hidden, weights["head.weight"][0], n)


@region
def token_loss(hidden: Tensor, head: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
    """Weighted cross-entropy [tokens] -> scalar; a BF16 product is exact enough to learn from."""
    scores = F.linear(hidden, head.to(hidden.dtype)).float()
    loss = F.cross_entropy(scores, targets, reduction="none")
    return (loss * weight).sum() / weight.sum().clamp(min=1)
