"""DSpark: draft stages that propose a block of tokens from features of the backbone.

In: features of committed tokens, the newest token. Out: draft logits, confidences, draft ids.
Does not know: who verifies, nor how many drafts are wanted. Changes no result of the backbone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepinfer.model.attention import Attention, Selection
from deepinfer.model.batch import Batch, Caches
from deepinfer.model.v41 import Layer, Model


@dataclass(frozen=True)
class Drafter:
    """main_proj, markov_head and confidence are prepared; norms are [hidden] bf16.

    markov_embed  [vocabulary, rank] prepared for `tensor.embed`
    window_keys   per stage its own wkv, prepared, as the context keys need it alone
    """

    main_proj: Any
    main_norm: Tensor
    stages: tuple[Layer, ...]
    window_keys: tuple[Any, ...]
    norm: Tensor
    markov_embed: Any
    markov_head: Any
    confidence: Any


@dataclass(frozen=True)
class Drafts:
    """A draft call for r requests and blocks of g.

    base_logits, logits [r, g, vocabulary] f32 without and with the Markov term
    confidence          [r, g] f32 before the sigmoid
    ids                 [r, g] int64 greedy proposals
    """

    base_logits: Tensor
    logits: Tensor
    confidence: Tensor
    ids: Tensor


def keep_context(p: Drafter, model: Model, features: Tensor, batch: Batch, caches: Caches) -> None:
    """Writes the context keys of this step's tokens into every stage's window (DSpark 1.2)."""
    ops, shape, rows = model.ops, model.shape, batch.layers[-1]
    main = ops.gemm_dense_mxfp8(ops.tensor_quantize(features), p.main_proj)
    quantized = ops.tensor_quantize(ops.tensor_rms_norm(main, p.main_norm, shape.rms_norm_eps))
    for stage, wkv in zip(p.stages, p.window_keys, strict=True):
        own: Attention = stage.attention
        key = ops.gemm_dense_mxfp8(quantized, wkv)
        key = ops.tensor_rms_norm(key, own.kv_norm, shape.rms_norm_eps)
        key = ops.tensor_rope(key, rows.at_keys, own.frequencies)
        ops.attention_store_window(caches.window[own.layer], rows.window.rows, key)


def draft(p: Drafter, model: Model, batch: Batch, caches: Caches) -> Drafts:
    """One call (DSpark 1.3). The batch holds, per request, the newest token and g - 1 noise tokens;
    its window lists the context keys and all keys of the block, and writes nothing."""
    ops, size = model.ops, model.shape.dspark_block_size
    stream, pre = model.begin(batch.ids)
    for stage in p.stages:
        stream, pre = model.block(stage, stream, pre, batch, caches, Selection())
    hidden = ops.tensor_hyper_collapse(stream, pre)  # [r * g, hidden], before the norm
    base = ops.gemm_logits(
        ops.tensor_rms_norm(hidden, p.norm, model.shape.rms_norm_eps), model.weights.head
    ).unflatten(0, (-1, size))
    token, hidden = batch.ids.view(-1, size)[:, 0], hidden.unflatten(0, (-1, size))
    logits, confidence, ids = [], [], []
    for place in range(size):
        markov = ops.tensor_embed(token, p.markov_embed)  # [r, rank]
        here = base[:, place] + ops.gemm_logits(markov, p.markov_head)
        both = torch.cat([hidden[:, place], markov], -1)
        token = here.argmax(-1)
        logits.append(here)
        confidence.append(ops.gemm_dense_f32(both, p.confidence)[:, 0])
        ids.append(token)
    return Drafts(base, torch.stack(logits, 1), torch.stack(confidence, 1), torch.stack(ids, 1))
