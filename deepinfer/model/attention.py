"""Attention of one layer: its own window keys, and compressed entries that layers share.

In: rows [tokens, hidden], caches, the selection of the layers before. Out: rows [tokens, hidden].
Does not know: requests, how caches are laid out, which kernel runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepinfer.model.batch import Batch, Caches, Window, copy_rows
from deepinfer.model.shape import Shape
from deepinfer.ops.table import Table


@dataclass(frozen=True)
class Compressor:
    """wkv, wgate (None at ratio 1), index_wk are prepared; norms are [head_dim] and [index_dim]."""

    wkv: Any
    wgate: Any
    norm: Tensor
    index_wk: Any
    index_norm: Tensor


@dataclass(frozen=True)
class Attention:
    """Parameters of one layer's attention.

    wq_a_wkv, wq_b, wo_a, wo_b and index_weights are prepared; wq_b holds the index queries behind
    the heads where the layer runs a selection of its own.
    """

    layer: int
    ratio: int
    wq_a_wkv: Any
    q_norm: Tensor
    kv_norm: Tensor
    wq_b: Any
    wo_a: Any
    wo_b: Any
    sink: Tensor
    frequencies: Tensor
    compressor: Compressor | None = None
    index_weights: Any = None


@dataclass
class Selection:
    """What index sources publish for the layers behind them, within one step (backbone 3.7).

    rows        [tokens, top_k] int32 rows of the entry cache, -1 empty
    candidates  [tokens, blocks] int32 of the candidate source, or None
    """

    rows: Tensor | None = None
    candidates: Tensor | None = None

    def narrow(self, leave: Tensor | None) -> None:
        """Keeps the rows [leaving] of those that entered a layer."""
        if leave is None:
            return
        self.rows = None if self.rows is None else self.rows[leave]
        self.candidates = None if self.candidates is None else self.candidates[leave]


def forward(
    p: Attention,
    x: Tensor,
    batch: Batch,
    caches: Caches,
    selection: Selection,
    shape: Shape,
    ops: Table,
) -> Tensor:
    """backbone 3.5: all entering rows may compress, rows with keys write them, leaving rows attend.

    x [entering, hidden]; returns [leaving, hidden].
    """
    eps, dim, heads = shape.rms_norm_eps, shape.head_dim, shape.num_attention_heads
    rows = batch.at(p.layer)
    if p.compressor is not None:
        _extend(p, p.compressor, x, batch, caches, shape, ops)
    selection.narrow(rows.leave)
    x = _picked(x, rows.keys, ops)  # [keys, hidden]
    if x.shape[0] == 0:
        return x
    down = ops.gemm_dense_mxfp8(ops.tensor_quantize(x), p.wq_a_wkv)
    latent, key = down.split([shape.q_lora_rank, dim], -1)
    key = ops.tensor_rope(ops.tensor_rms_norm(key, p.kv_norm, eps), rows.at_keys, p.frequencies)
    window, keys = _keep(p, key, rows.window, caches, ops)
    if rows.leaving == 0:
        return x[:0]
    latent = ops.tensor_rms_norm(_picked(latent, rows.out, ops), p.q_norm, eps)
    up = ops.gemm_dense_mxfp8(ops.tensor_quantize(latent), p.wq_b)  # [leaving, ...]
    q = ops.tensor_rope(
        up[:, : heads * dim].unflatten(-1, (heads, dim)), rows.at_out, p.frequencies
    )
    if p.index_weights is not None:
        x = _picked(x, rows.out, ops)
        _select(p, up[:, heads * dim :], x, batch, caches, selection, shape, ops)
    entries = chosen = None
    if p.ratio:
        source = shape.kv_source(p.layer)
        assert source is not None
        entries, chosen = caches.entries[source], selection.rows
    attend = ops.attention_sparse_decode if keys is None else ops.attention_sparse_prefill
    read = window if keys is None else keys
    out, _ = attend(q, read, rows.window.index, entries, chosen, p.sink, shape.head_dim**-0.5)

    out = ops.tensor_rope(out, rows.at_out, p.frequencies, True)  # [leaving, heads, dim]
    grouped = ops.gemm_batched(out.flatten(1).unflatten(-1, (shape.o_groups, -1)), p.wo_a)
    return ops.gemm_dense_mxfp8(ops.tensor_quantize(grouped.flatten(1)), p.wo_b)


def _keep(
    p: Attention, key: Tensor, window: Window, caches: Caches, ops: Table
) -> tuple[Tensor, Tensor | None]:
    """Writes window keys; returns the ring and, if this step needs one, the linear workspace."""
    ring = caches.window[p.layer]
    for tap in window.taps:
        if p.layer < tap.layers:
            saved = caches.saved[p.layer]
            ops.attention_store_window(saved, tap.rows, key)
            copy_rows(saved, tap.copies, ring, tap.earlier)
    if window.earlier is None:
        ops.attention_store_window(ring, window.rows, key)
        return ring, None
    # earlier keys are read before the ring takes the new ones: a long chunk overwrites them
    earlier = ops.attention_load_window(ring, window.earlier)
    return ring, torch.cat([earlier, ops.attention_store_window(ring, window.rows, key)])


def _picked(values: Tensor, rows: Tensor | None, ops: Table) -> Tensor:
    return values if rows is None else ops.tensor_pick_rows(values, rows)


def _extend(
    p: Attention,
    c: Compressor,
    x: Tensor,
    batch: Batch,
    caches: Caches,
    shape: Shape,
    ops: Table,
) -> None:
    """Writes entries and index keys of the groups that close in this step (backbone 3.6, 3.7)."""
    groups, eps = batch.at(p.layer).groups[p.ratio], shape.rms_norm_eps
    x = _picked(x, groups.fresh, ops)
    if p.ratio == 1:
        latent = ops.tensor_rms_norm(ops.gemm_dense_bf16(x, c.wkv), c.norm, eps)
    else:
        kv, gate = ops.gemm_dense_f32(x, c.wkv), ops.gemm_dense_f32(x, c.wgate)
        opened = caches.opened[p.layer]
        latent = ops.attention_compress(kv, gate, opened, groups.sources, c.norm, eps)
        ops.attention_store_open(opened, groups.open_rows, kv, gate)
    rows = ops.tensor_entry_rows(
        groups.numbers[:, None], batch.block_table, groups.sequence, groups.per_block
    )[:, 0].long()
    index_key = ops.tensor_rms_norm(ops.gemm_dense_bf16(latent, c.index_wk), c.index_norm, eps)
    index_key = ops.tensor_rope(index_key, groups.positions, p.frequencies)
    ops.attention_store_index(caches.index[p.layer], rows, index_key)
    entry = ops.tensor_rope(latent, groups.positions, p.frequencies)
    ops.attention_store_entries(caches.entries[p.layer], rows, entry)


def _select(
    p: Attention,
    query: Tensor,
    x: Tensor,
    batch: Batch,
    caches: Caches,
    selection: Selection,
    shape: Shape,
    ops: Table,
) -> None:
    """Scores the source's index keys and publishes the best entries (backbone 3.7).

    A Full layer always scores its own index keys, also while a group stays open (backbone 9 U3).
    """
    rows = batch.at(p.layer)
    groups = rows.groups[p.ratio]
    source = shape.kv_source(p.layer)
    assert source is not None
    heads, size = shape.index_n_heads, shape.candidate_block_size
    query = ops.tensor_rope(query.unflatten(-1, (heads, -1)), rows.at_out, p.frequencies)
    scale = shape.index_head_dim**-0.5 * heads**-0.5
    candidates = selection.candidates if shape.uses_candidates(p.layer) else None
    scores = ops.attention_index_logits(
        query,
        ops.gemm_dense_bf16(x, p.index_weights),
        scale,
        caches.index[source],
        batch.block_table,
        rows.sequence,
        groups.visible,
        groups.count,
        groups.per_block,
        candidates,
        size,
    )
    if shape.is_candidate_source(p.layer):
        blocks = shape.candidate_topk_blocks
        selection.candidates = ops.attention_candidate_blocks(scores, groups.visible, size, blocks)
    chosen = ops.attention_index_topk(scores, shape.index_topk, candidates, size)
    selection.rows = ops.tensor_entry_rows(
        chosen, batch.block_table, rows.sequence, groups.per_block
    )
