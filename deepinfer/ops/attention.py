"""Attention operators: caches, compression, index scores, selection, and attention itself.

In: the model's dims. Out: catalogue rows (contract, tolerance, inputs).
Does not know: who computes them, nor how a cache is laid out in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from deepinfer.ops.draw import Draw
from deepinfer.ops.operator import EXACT, Operator, relative, ulp
from deepinfer.ops.values import Stored


def store_window(cache: Any, rows: Tensor, keys: Tensor) -> Tensor:  # type: ignore[empty-body]
    """Writes window keys, Q8 over all channels, and returns them as a reader will see them.

    cache    window cache of one layer, layout of kind `kv`
    rows     [tokens] int64 cache rows; negative is not written
    keys     [tokens, head_dim] bf16, RoPE applied
    returns  [tokens, head_dim] bf16 after the Q8 round trip (unwritten rows too)
    Source: backbone 3.5 step 3, 4.1.
    """


def load_window(cache: Any, rows: Tensor) -> Tensor:  # type: ignore[empty-body]
    """Reads window keys back.

    rows     [n] int64 cache rows
    returns  [n, head_dim] bf16
    Source: backbone 4.2 item 1.
    """


def store_entries(cache: Any, rows: Tensor, entries: Tensor) -> None:
    """Writes compressed entries, Q4k over all channels.

    cache    entry cache of one source layer, layout of kind `kv`
    rows     [n] int64 cache rows; negative is not written
    entries  [n, head_dim] bf16, RoPE applied at the first token of the group
    Source: backbone 3.6.
    """


def load_entries(cache: Any, rows: Tensor) -> Tensor:  # type: ignore[empty-body]
    """Reads compressed entries back: [n, head_dim] bf16 from rows [n] int64."""


def store_index(cache: Any, rows: Tensor, keys: Tensor) -> None:
    """Writes index keys, Q4i over all channels.

    cache    index cache of one source layer, layout of kind `index`
    rows     [n] int64 cache rows; negative is not written
    keys     [n, index_dim] bf16, RoPE applied at the first token of the group
    Source: backbone 3.7.
    """


def load_index(cache: Any, rows: Tensor) -> Tensor:  # type: ignore[empty-body]
    """Reads index keys back: [n, index_dim] bf16 from rows [n] int64."""


def store_open(cache: Any, rows: Tensor, kv: Tensor, gate: Tensor) -> None:
    """Keeps the raw rows of tokens whose group may still be open (or reopened by a rollback).

    cache    open-group cache of one source layer, layout of kind `kv`
    rows     [tokens] int64 cache rows; negative is not written
    kv, gate [tokens, head_dim] f32
    Source: backbone 4.2 items 2 and 5.
    """


def compress(  # type: ignore[empty-body]
    kv: Tensor, gate: Tensor, cache: Any, sources: Tensor, weight: Tensor, eps: float
) -> Tensor:
    """Pools complete groups by a softmax over the group's gates, per channel, then norms.

    kv, gate  [tokens, head_dim] f32 of this step's tokens
    cache     open-group cache with rows of earlier steps
    sources   [groups, ratio] int64: n >= 0 is token n of this step, -1 - r is cache row r
    weight    [head_dim] bf16 of the norm
    returns   [groups, head_dim] bf16; rounded to bf16 once before the norm and once in it
    Source: backbone 3.6 (ratio 2).
    """


def index_logits(  # type: ignore[empty-body]
    query: Tensor,
    weights: Tensor,
    scale: float,
    cache: Any,
    block_table: Tensor,
    sequence: Tensor,
    visible: Tensor,
    count: int,
    per_block: int,
    candidates: Tensor | None = None,
    candidate_size: int = 0,
) -> Tensor:
    """Scores of the cached entries of each token's sequence: sum over heads of w * relu(q . k).

    query        [tokens, index_heads, index_dim] bf16, RoPE applied; Q4i is part of this operator
    weights      [tokens, index_heads] bf16; scale is applied to them, with one bf16 rounding
    cache        index cache, layout of kind `index`
    block_table  [sequences, blocks] int32; sequence [tokens] int64; per_block entries in one block
    visible      [tokens] int32, entries that exist for the token
    count        largest number of visible entries
    candidates   [tokens, c] int32 block numbers in increasing order, -1 empty, of candidate_size
                 entries each; None scores everything
    returns      [tokens, count] f32, or [tokens, c * candidate_size] in the order of candidates;
                 -inf where not visible
    Source: backbone 3.7.
    """


def index_topk(  # type: ignore[empty-body]
    scores: Tensor, top_k: int, candidates: Tensor | None = None, candidate_size: int = 0
) -> Tensor:
    """The best entries of each row; lowest entry number wins ties; never a masked one.

    scores      [tokens, n] f32 of index_logits
    candidates  as given to index_logits, to turn columns into entry numbers
    returns     [tokens, top_k] int32 entry numbers in increasing order, -1 behind them
    Source: backbone 3.7 (selection).
    """


def candidate_blocks(  # type: ignore[empty-body]
    scores: Tensor, visible: Tensor, size: int, top_k: int
) -> Tensor:
    """The best blocks of consecutive entries by their best score; the newest visible block always.

    scores   [tokens, n] f32; visible [tokens] int32
    size     entries in a candidate block
    returns  [tokens, top_k] int32 block numbers in increasing order, -1 behind them
    Source: backbone 3.7 (candidate blocks).
    """


def sparse_prefill(  # type: ignore[empty-body]
    q: Tensor,
    window: Tensor,
    window_index: Tensor,
    entries: Any,
    entry_index: Tensor | None,
    sink: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Attention of each row over its own window keys and its own compressed entries.

    q             [tokens, heads, head_dim] bf16, RoPE applied
    window        [n, head_dim] bf16 linear workspace: earlier window keys, then this step's
    window_index  [tokens, w] int32 rows of window by increasing position, -1 empty
    entries       entry cache (layout of kind `kv`) or None
    entry_index   [tokens, k] int32 rows of entries, -1 empty, or None
    sink          [heads] f32; adds exp(sink) to the denominator, nothing to the output
    returns       out [tokens, heads, head_dim] bf16; lse [tokens, heads] f32 in log2 without the
                  sink. A row without keys gives zeros and -inf
    Slots are taken in list order, window first, in blocks of 64; probabilities are rounded to
    bf16 relative to the running maximum (from -1e30) for the value product only.
    Source: backbone 3.5 step 5, kernels 4.1.
    """


def sparse_decode(  # type: ignore[empty-body]
    q: Tensor,
    window: Any,
    window_index: Tensor,
    entries: Any,
    entry_index: Tensor | None,
    sink: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """As sparse_prefill, but the window keys are read from the window cache.

    window        window cache of the layer, layout of kind `kv`
    window_index  [tokens, w] int32 rows of that cache by increasing position, -1 empty
    Source: backbone 3.5 step 5, kernels 4.2.
    """


_CACHE_ROWS = 256


def _stored(draw: Draw, dim: int, record: str, edge: str) -> Stored:
    values = draw.bf16(_CACHE_ROWS, dim, edge=edge if edge in ("zeros", "tiny", "huge") else "")
    written = draw.f32(_CACHE_ROWS) > (-9 if edge == "full" else -1)
    return Stored(values, written, record)


def _slots(draw: Draw, tokens: int) -> Tensor:
    rows = torch.arange(tokens) * 3 % _CACHE_ROWS
    rows[draw.f32(tokens) > 1.5] = -1
    return rows


def _store(record: str, name: str, dim: str) -> Any:
    def inputs(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
        draw = Draw(seed)
        values = draw.bf16(min(tokens, 80), dims[dim], edge=edge)
        empty = Stored(
            draw.bf16(_CACHE_ROWS, dims[dim]), torch.zeros(_CACHE_ROWS, dtype=torch.bool), record
        )
        return {"cache": empty, "rows": _slots(draw, len(values)), name: values}

    return inputs


def _load(record: str, dim: str) -> Any:
    def inputs(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
        draw = Draw(seed)
        cache = _stored(draw, dims[dim], record, edge)
        written = cache.written.nonzero().flatten()
        return {"cache": cache, "rows": written[draw.ids(len(written), tokens)]}

    return inputs


def _store_open(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw, dim = Draw(seed), dims["head_dim"]
    tokens = min(tokens, 80)
    cache = Stored(
        draw.f32(_CACHE_ROWS, 2 * dim), torch.zeros(_CACHE_ROWS, dtype=torch.bool), "open"
    )
    return {
        "cache": cache,
        "rows": _slots(draw, tokens),
        "kv": draw.f32(tokens, dim),
        "gate": draw.f32(tokens, dim),
    }


def _compress(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw, dim = Draw(seed), dims["head_dim"]
    cache = Stored(
        draw.f32(_CACHE_ROWS, 2 * dim), torch.ones(_CACHE_ROWS, dtype=torch.bool), "open"
    )
    odd = edge == "open"
    first = torch.arange(-1 if odd else 0, tokens - 1, 2) if tokens else torch.arange(0)
    sources = torch.stack([first, first + 1], -1)
    if odd and len(sources):
        sources[0, 0] = -1 - 7
    return {
        "kv": draw.f32(tokens, dim),
        "gate": draw.f32(tokens, dim) * 4,
        "cache": cache,
        "sources": sources,
        "weight": draw.bf16(dim),
        "eps": 1e-20,
    }


def _index(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw, per_block, blocks = Draw(seed), 16, 5
    table = torch.stack(
        [
            torch.randperm(_CACHE_ROWS // per_block, generator=draw.generator)[:blocks]
            for _ in range(2)
        ]
    )
    visible = draw.ids(per_block * blocks + 1, tokens).int()
    if edge == "none_visible":
        visible.zero_()
    arguments = {
        "query": draw.bf16(tokens, dims["index_heads"], dims["index_dim"], edge=edge),
        "weights": draw.bf16(tokens, dims["index_heads"]),
        "scale": (dims["index_dim"] * dims["index_heads"]) ** -0.5,
        "cache": _stored(draw, dims["index_dim"], "index", "full"),
        "block_table": table.int(),
        "sequence": draw.ids(2, tokens),
        "visible": visible,
        "count": int(visible.max()) if tokens else 0,
        "per_block": per_block,
    }
    if edge == "candidates":
        size, blocks_in_all = 8, per_block * blocks // 8
        chosen = draw.f32(tokens, blocks_in_all).topk(4, -1).indices.sort(-1).values.int()
        chosen[:, 3] = -1
        arguments |= {"candidates": chosen, "candidate_size": size}
    return arguments


def _scores(draw: Draw, tokens: int, edge: str) -> tuple[Tensor, Tensor]:
    scores, visible = draw.f32(tokens, 200), draw.ids(201, tokens).int()
    if edge == "ties":
        scores = scores.round()
    if edge == "none_visible":
        visible.zero_()
    return scores.masked_fill(torch.arange(200) >= visible[:, None], -torch.inf), visible


def _topk(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    scores, _ = _scores(Draw(seed), tokens, edge)
    return {"scores": scores, "top_k": dims["index_topk"]}


def _candidates(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    scores, visible = _scores(Draw(seed), tokens, edge)
    return {
        "scores": scores,
        "visible": visible,
        "size": dims["candidate_block_size"],
        "top_k": dims["candidate_blocks"],
    }


def _lists(draw: Draw, tokens: int, width: int, written: Tensor, edge: str) -> Tensor:
    allowed = written.nonzero().flatten()
    index = allowed[draw.ids(len(allowed), tokens, width)].int()
    index[draw.f32(tokens, width) > 0.5] = -1
    if edge == "all_invalid":
        index.fill_(-1)
    if edge == "first_block_invalid":
        index[:, :64] = -1
    return index


def _sparse(cached: bool) -> Any:
    def inputs(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
        draw, dim = Draw(seed), dims["head_dim"]
        window = _stored(draw, dim, "window", edge)
        entries = _stored(draw, dim, "entry", edge)
        poison = torch.where(window.written[:, None], window.values, torch.nan)
        sink = draw.f32(dims["heads"]) * (100 if edge == "large_sink" else 1)
        only_window = edge == "window_only"
        return {
            "q": draw.bf16(tokens, dims["heads"], dim, size=1.0),
            "window": window if cached else poison.bfloat16(),
            "window_index": _lists(draw, tokens, dims["window"], window.written, edge),
            "entries": None if only_window else entries,
            "entry_index": None
            if only_window
            else _lists(draw, tokens, dims["index_topk"], entries.written, edge),
            "sink": sink,
            "scale": dim**-0.5,
        }

    return inputs


_KV = ("kv",)
_EDGES = ("strided", "zeros", "tiny", "huge")
_SPARSE_EDGES = ("window_only", "all_invalid", "first_block_invalid", "large_sink")
_SPARSE_DIMS = ("heads", "head_dim", "window", "index_topk")
OPERATORS = (
    Operator(
        "attention.store_window",
        store_window,
        ("head_dim",),
        EXACT,
        _store("window", "keys", "head_dim"),
        _EDGES,
        _KV,
    ),
    Operator(
        "attention.load_window",
        load_window,
        ("head_dim",),
        EXACT,
        _load("window", "head_dim"),
        ("zeros", "huge"),
        _KV,
    ),
    Operator(
        "attention.store_entries",
        store_entries,
        ("head_dim",),
        EXACT,
        _store("entry", "entries", "head_dim"),
        _EDGES,
        _KV,
        needs="compressed",
    ),
    Operator(
        "attention.load_entries",
        load_entries,
        ("head_dim",),
        EXACT,
        _load("entry", "head_dim"),
        ("zeros", "huge"),
        _KV,
        needs="compressed",
    ),
    Operator(
        "attention.store_index",
        store_index,
        ("index_dim",),
        EXACT,
        _store("index", "keys", "index_dim"),
        _EDGES,
        ("index",),
        needs="compressed",
    ),
    Operator(
        "attention.load_index",
        load_index,
        ("index_dim",),
        EXACT,
        _load("index", "index_dim"),
        ("zeros", "huge"),
        ("index",),
        needs="compressed",
    ),
    Operator(
        "attention.store_open",
        store_open,
        ("head_dim",),
        EXACT,
        _store_open,
        (),
        _KV,
        needs="ratio2",
    ),
    Operator(
        "attention.compress",
        compress,
        ("head_dim",),
        ulp(1, 0.01),
        _compress,
        ("open",),
        _KV,
        needs="ratio2",
    ),
    Operator(
        "attention.index_logits",
        index_logits,
        ("index_heads", "index_dim", "block_tokens"),
        relative(1e-3),
        _index,
        ("none_visible", "candidates", "strided"),
        ("index",),
        needs="compressed",
    ),
    Operator(
        "attention.index_topk",
        index_topk,
        ("index_topk",),
        EXACT,
        _topk,
        ("ties", "none_visible"),
        needs="compressed",
    ),
    Operator(
        "attention.candidate_blocks",
        candidate_blocks,
        ("candidate_blocks", "candidate_block_size"),
        EXACT,
        _candidates,
        ("ties", "none_visible"),
        needs="candidates",
    ),
    Operator(
        "attention.sparse_prefill",
        sparse_prefill,
        _SPARSE_DIMS,
        relative(4e-3),
        _sparse(False),
        _SPARSE_EDGES,
        _KV,
    ),
    Operator(
        "attention.sparse_decode",
        sparse_decode,
        _SPARSE_DIMS,
        relative(4e-3),
        _sparse(True),
        _SPARSE_EDGES,
        _KV,
    ),
)
