"""DeepSeek-V4.1: the forward pass on one page.

In: a Batch and Caches. Out: hidden rows, logits, and the features that draft stages read.
Does not know: devices, kernels, requests, how weights got here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepinfer.model import attention, experts, hashes, streams
from deepinfer.model.attention import Attention, Selection
from deepinfer.model.batch import Batch, Caches, Rows
from deepinfer.model.experts import Experts
from deepinfer.model.hashes import Engram
from deepinfer.model.shape import Shape
from deepinfer.model.streams import Site
from deepinfer.ops.table import Table


@dataclass(frozen=True)
class Layer:
    """One block: attention and experts, each behind a hyper-connection site; perhaps an Engram."""

    attention_site: Site
    attention: Attention
    expert_site: Site
    experts: Experts
    engram: Engram | None = None


@dataclass(frozen=True)
class Backbone:
    """Everything the forward pass needs. embed and head are prepared; norm [hidden] bf16."""

    embed: Any
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Any


@dataclass(frozen=True)
class Passed:
    """Result of a forward pass.

    logits    [wanted, vocabulary] f32
    features  [rows into the last layer, targets * hidden] bf16 at the entry of the draft's target
              layers, or None
    """

    logits: Tensor
    features: Tensor | None


class Model:
    """The V4.1 backbone over a table of operators. `pad` is the compressed id of the pad token."""

    def __init__(self, shape: Shape, weights: Backbone, ops: Table, pad: int) -> None:
        self.shape, self.weights, self.ops, self.pad = shape, weights, ops, pad

    def at(self, tokens: int) -> Model:
        """The same model with the kernels that the plan chose for a step of this many tokens."""
        return Model(self.shape, self.weights, self.ops.step(tokens), self.pad)

    def forward(self, batch: Batch, caches: Caches, features: bool = False) -> Passed:
        """One step for all rows of the batch (backbone 3.2)."""
        stream, pre = self.begin(batch.ids)
        selection, taken = Selection(), []
        last = len(self.weights.layers) - 1
        for number, layer in enumerate(self.weights.layers):
            stream = self.remember(layer, stream, batch.at(number))
            if features and number in self.shape.dspark_target_layer_ids:
                taken.append(self.ops.tensor_mean_copies(stream))
            stream, pre = self.block(layer, stream, pre, batch, caches, selection)
            leave = batch.at(number).leave
            if leave is not None and number < last:
                taken = [self.ops.tensor_pick_rows(one, leave) for one in taken]
            if stream.shape[0] == 0:  # a chunk that ends before any row the last one can read
                return Passed(stream.new_empty(0, self.shape.vocab_size).float(), None)
        logits = self.end(stream, pre, batch.wanted)
        return Passed(logits, torch.cat(taken, -1) if features else None)

    def begin(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Four copies of the embedding, and the mix that takes the first of them."""
        rows = self.ops.tensor_embed(ids, self.weights.embed)  # [tokens, hidden]
        stream = rows[:, None].expand(-1, self.shape.hc_mult, -1).contiguous()
        pre = torch.zeros(stream.shape[:2], dtype=torch.float32, device=stream.device)
        pre[:, 0] = 1
        return stream, pre

    def remember(self, layer: Layer, stream: Tensor, rows: Rows) -> Tensor:
        """The n-gram memory in front of some layers."""
        if layer.engram is None:
            return stream
        return hashes.forward(layer.engram, stream, rows, self.pad, self.shape, self.ops)

    def block(
        self,
        layer: Layer,
        stream: Tensor,
        pre: Tensor,
        batch: Batch,
        caches: Caches,
        selection: Selection,
    ) -> tuple[Tensor, Tensor]:
        """One layer on the stream; returns the new stream and the mix for the next site (3.3)."""
        shape, ops = self.shape, self.ops
        x = streams.enter(layer.attention_site, stream, pre, shape, ops)
        y = attention.forward(layer.attention, x, batch, caches, selection, shape, ops)
        leave = batch.at(layer.attention.layer).leave
        if leave is not None:
            stream = ops.tensor_pick_rows(stream, leave)
        if stream.shape[0] == 0:
            return stream, pre
        own = streams.mixes(layer.attention_site, stream, shape, ops)
        stream, pre = streams.leave(stream, y, own, ops), own.pre

        own = streams.mixes(layer.expert_site, stream, shape, ops)
        x = streams.enter(layer.expert_site, stream, pre, shape, ops)
        y = experts.forward(layer.experts, x, shape, ops)
        return streams.leave(stream, y, own, ops), own.pre

    def end(self, stream: Tensor, pre: Tensor, wanted: Tensor) -> Tensor:
        """Logits of the wanted rows."""
        ops = self.ops
        last, mix = ops.tensor_pick_rows(stream, wanted), ops.tensor_pick_rows(pre, wanted)
        hidden = ops.tensor_hyper_collapse(last, mix)
        hidden = ops.tensor_rms_norm(hidden, self.weights.norm, self.shape.rms_norm_eps)
        logits: Tensor = ops.gemm_logits(hidden, self.weights.head)
        return logits
