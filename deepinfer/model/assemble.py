"""From tensor names to layers: the only place, beside the inventory, that spells the checkpoint.

In: a checked Checkpoint, the table. Out: Backbone and Drafter, weights in their kernels' packing.
Does not know: what a packing looks like.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from deepinfer.model import hashes, rotary
from deepinfer.model.attention import Attention, Compressor
from deepinfer.model.drafter import Drafter
from deepinfer.model.experts import Experts
from deepinfer.model.hashes import Engram
from deepinfer.model.hollow import hollow, is_hollow
from deepinfer.model.shape import Shape
from deepinfer.model.streams import Site
from deepinfer.model.v41 import Backbone, Layer
from deepinfer.ops.table import Table
from deepinfer.ops.values import Weight


class Source(Protocol):
    """What the assembler asks of a checkpoint."""

    shape: Shape

    def __contains__(self, name: str) -> bool: ...

    def tensor(self, name: str) -> Tensor:
        """The tensor as it is stored."""


class Assembler:
    """Reads tensors by name and hands them to the kernels' `prepare`, one after the other."""

    def __init__(
        self,
        checkpoint: Source,
        ops: Table,
        device: str = "cpu",
        advance: Callable[[int], None] | None = None,
    ) -> None:
        self.checkpoint, self.ops, self.device = checkpoint, ops, device
        self._advance = advance
        self.shape: Shape = checkpoint.shape

    def backbone(self) -> Backbone:
        """All layers in front of the head."""
        numbers = range(self.shape.num_hidden_layers)
        layers = tuple(self._layer(f"layers.{number}.", number) for number in numbers)
        return Backbone(
            embed=self._prepare("tensor.embed", self._weight("embed")),
            layers=layers,
            norm=self._raw("norm.weight"),
            head=self._prepare("gemm.logits", self._weight("head")),
        )

    def drafter(self) -> Drafter:
        """The draft stages; the checkpoint was checked to hold all of them or none."""
        count, first = self.shape.num_nextn_predict_layers, self.shape.num_hidden_layers
        last = f"mtp.{count - 1}."
        prefixes = [f"mtp.{stage}." for stage in range(count)]
        confidence = Weight(self._raw(last + "confidence_head.proj.weight"))
        return Drafter(
            main_proj=self._linear("mtp.0.main_proj"),
            main_norm=self._raw("mtp.0.main_norm.weight"),
            stages=tuple(self._layer(prefix, first + s) for s, prefix in enumerate(prefixes)),
            window_keys=tuple(self._linear(prefix + "attn.wkv") for prefix in prefixes),
            norm=self._raw(last + "norm.weight"),
            markov_embed=self._prepare("tensor.embed", self._weight(last + "markov_head.embed")),
            markov_head=self._prepare("gemm.logits", self._weight(last + "markov_head.head")),
            confidence=self._prepare("gemm.dense_f32", confidence),
        )

    def _layer(self, prefix: str, layer: int) -> Layer:
        return Layer(
            attention_site=self._site(prefix, "attn"),
            attention=self._attention(prefix + "attn.", layer),
            expert_site=self._site(prefix, "ffn"),
            experts=self._experts(prefix + "ffn.", layer),
            engram=self._engram(prefix + "engram.", layer)
            if self.shape.has_engram(layer)
            else None,
        )

    def _site(self, prefix: str, kind: str) -> Site:
        return Site(
            fn=self._raw(f"{prefix}hc_{kind}_fn"),
            scale=self._raw(f"{prefix}hc_{kind}_scale"),
            base=self._raw(f"{prefix}hc_{kind}_base"),
            norm=self._raw(f"{prefix}{kind}_norm.weight"),
        )

    def _attention(self, prefix: str, layer: int) -> Attention:
        shape = self.shape
        queries = [prefix + "wq_b"]
        index_weights = None
        if shape.owns_index(layer):
            # one product for the heads and the index heads: both read the same latent
            queries.append(prefix + "indexer.wq_b")
            index_weights = self._plain("gemm.dense_bf16", prefix + "indexer.weights_proj")
        return Attention(
            layer=layer,
            ratio=shape.ratio(layer),
            wq_a_wkv=self._linear(prefix + "wq_a", prefix + "wkv"),
            q_norm=self._raw(prefix + "q_norm.weight"),
            kv_norm=self._raw(prefix + "kv_norm.weight"),
            wq_b=self._linear(*queries),
            wo_a=self._prepare("gemm.batched", self._weight(prefix + "wo_a")),
            wo_b=self._linear(prefix + "wo_b"),
            sink=self._raw(prefix + "attn_sink"),
            frequencies=rotary.frequencies(shape, layer).to(self.device),
            compressor=self._compressor(prefix, layer) if shape.owns_kv(layer) else None,
            index_weights=index_weights,
        )

    def _compressor(self, prefix: str, layer: int) -> Compressor:
        pooled = self.shape.ratio(layer) > 1
        op = "gemm.dense_f32" if pooled else "gemm.dense_bf16"
        return Compressor(
            wkv=self._plain(op, prefix + "compressor.wkv"),
            wgate=self._plain(op, prefix + "compressor.wgate") if pooled else None,
            norm=self._raw(prefix + "compressor.norm.weight"),
            index_wk=self._plain("gemm.dense_bf16", prefix + "indexer.wk"),
            index_norm=self._raw(prefix + "indexer.k_norm.weight"),
        )

    def _experts(self, prefix: str, layer: int) -> Experts:
        drafting = layer >= self.shape.num_hidden_layers
        count = self.shape.draft_experts if drafting else self.shape.n_routed_experts
        top_k = self.shape.draft_top_k if drafting else self.shape.num_experts_per_tok
        each = [f"{prefix}experts.{expert}." for expert in range(count)]
        gate_up = [_beside(self._weight(e + "w1"), self._weight(e + "w3")) for e in each]
        down = [self._weight(e + "w2") for e in each]
        return Experts(
            gate=self._plain("gemm.dense_f32", prefix + "gate"),
            bias=self._raw(prefix + "gate.bias"),
            w13=self._prepare("gemm.grouped_mxfp4", _stack(gate_up)),
            w2=self._prepare("gemm.grouped_mxfp4", _stack(down)),
            shared13=self._linear(prefix + "shared_experts.w1", prefix + "shared_experts.w3"),
            shared2=self._linear(prefix + "shared_experts.w2"),
            count=count,
            top_k=top_k,
        )

    def _engram(self, prefix: str, layer: int) -> Engram:
        found = [part.to(self.device) for part in hashes.constants(self.shape, layer)]
        return Engram(
            table=self._prepare("tensor.gather_rows", self._weight(prefix + "embed")),
            wkv=self._linear(prefix + "wkv"),
            q_weight=self._raw(prefix + "q_weight"),
            k_weight=self._raw(prefix + "k_weight"),
            multipliers=found[0],
            primes=found[1],
            offsets=found[2],
        )

    def _raw(self, name: str) -> Tensor:
        tensor = self.checkpoint.tensor(name)
        if self._advance is not None:
            self._advance(tensor.nbytes)
        # a copy: a mapped file that is replaced while it serves would kill the process. Only the
        # n-gram tables stay mapped, which may be larger than memory, and tensors without bytes
        kept = ".engram.embed." in name or is_hollow(tensor)
        return tensor if kept else tensor.to(self.device, copy=True)

    def _weight(self, name: str) -> Weight:
        scale = name + ".scale"
        return Weight(
            self._raw(name + ".weight"), self._raw(scale) if scale in self.checkpoint else None
        )

    def _plain(self, op: str, name: str) -> Any:
        return self._prepare(op, self._weight(name))

    def _linear(self, *names: str) -> Any:
        """FP8 weights that read the same rows, as one product."""
        return self._prepare("gemm.dense_mxfp8", _beside(*(self._weight(name) for name in names)))

    def _prepare(self, op: str, weight: Weight) -> Any:
        return self.ops.prepare(op, weight)


def _beside(*weights: Weight) -> Weight:
    """Weights one below the other: [sum of n, k]; every n is a multiple of the scale tile."""
    if len(weights) == 1:
        return weights[0]
    scales = [weight.scale for weight in weights if weight.scale is not None]
    return Weight(
        _bytewise(torch.cat, [weight.values for weight in weights]), _bytewise(torch.cat, scales)
    )


def _stack(weights: list[Weight]) -> Weight:
    """One weight with the experts as leading axis: [experts, n, k]."""
    scales = [weight.scale for weight in weights if weight.scale is not None]
    values = _bytewise(torch.stack, [weight.values for weight in weights])
    return Weight(values, _bytewise(torch.stack, scales))


def _bytewise(join: Any, parts: list[Tensor]) -> Tensor:
    """Joins tensors of one-byte types by their bytes: few operators exist for those types."""
    if all(is_hollow(part) for part in parts):
        return _joined_hollow(join, parts)
    joined: Tensor = join([part.view(torch.uint8) for part in parts])
    return joined.view(parts[0].dtype)


def _joined_hollow(join: Any, parts: list[Tensor]) -> Tensor:
    """The same tensor without its bytes: official weights would take hundreds of gigabytes."""
    first = parts[0]
    if join is torch.stack:
        return hollow((len(parts), *first.shape), first.dtype)
    rows = sum(part.shape[0] for part in parts)
    return hollow((rows, *first.shape[1:]), first.dtype)
