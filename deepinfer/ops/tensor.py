"""Tensor operators: norms, rotations, quantizers, routing, hyper-connections and the n-gram memory.

In: the model's dims. Out: catalogue rows (contract, tolerance, inputs).
Does not know: who computes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from deepinfer.ops.draw import Draw
from deepinfer.ops.operator import EXACT, Operator, relative, ulp
from deepinfer.ops.values import ExpertRows, Quantized, Weight

# The bodies below are the contract; a kernel's callable has the same parameters.


def embed(ids: Tensor, table: Any) -> Tensor:  # type: ignore[empty-body]
    """Rows of the embedding table.

    ids      [tokens] int64
    table    prepared Weight [vocabulary, hidden] bf16
    returns  [tokens, hidden] bf16
    Source: backbone 3.2.
    """


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:  # type: ignore[empty-body]
    """Root mean square norm over the last axis, FP32 inside, one rounding at the end.

    x        [..., width] bf16
    weight   [width] bf16
    eps      added to the mean of squares; 1e-20 in V4.1, so nothing may flush to zero
    returns  like x
    Source: backbone 3 (RMS).
    """


def rope(  # type: ignore[empty-body]
    x: Tensor, positions: Tensor, frequencies: Tensor, inverse: bool = False
) -> Tensor:
    """Rotates interleaved pairs of the last 2 * len(frequencies) channels.

    x            [tokens, dim] or [tokens, heads, dim] bf16
    positions    [tokens] int64; the angle is fp32(position) * frequency, formed in FP32
    frequencies  [rope_dim / 2] f32
    inverse      rotate back
    returns      like x; the other channels are copied
    Source: backbone 3.4.
    """


def quantize(x: Tensor) -> Quantized:  # type: ignore[empty-body]
    """Q8: E4M3 values with one power-of-two scale per 32 elements.

    x        [tokens, k] bf16, k a multiple of 32
    returns  Quantized in the layout of kind `activations`; amax floor 1e-4
    Source: backbone 3.1.
    """


def swiglu_quantize(  # type: ignore[empty-body]
    gate_up: Tensor, weight: Tensor | None, limit: float
) -> Quantized:
    """The expert activation: clamp, silu(gate) * up, routing weight, BF16 rounding, then Q8.

    gate_up  [rows, 2 * width] bf16, gate first
    weight   [rows] f32 routing weights, applied before the down projection; None: shared expert
    limit    gate is clamped from above, up on both sides
    returns  Quantized [rows, width]
    Source: backbone 3.8 step 4.
    """


def route(  # type: ignore[empty-body]
    logits: Tensor, bias: Tensor, top_k: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Chooses experts by sqrt(softplus(logits)) + bias; weights come without the bias.

    logits   [tokens, experts] f32
    bias     [experts] f32
    returns  experts [tokens, top_k] int32 in increasing number; weights [tokens, top_k] f32,
             normalized (sum + 1e-20) and times scale. Ties: lowest expert number
    Source: backbone 3.8 steps 1-3.
    """


def permute_rows(  # type: ignore[empty-body]
    x: Quantized, experts: Tensor, weights: Tensor, count: int
) -> ExpertRows:
    """Brings (token, expert) pairs into the order of the experts.

    x        Quantized [tokens, k]
    experts  [tokens, top_k] int32; weights [tokens, top_k] f32
    count    number of experts
    returns  ExpertRows in the layout of kind `expert_rows`
    Source: backbone 3.8.
    """


def unpermute_rows(  # type: ignore[empty-body]
    y: Tensor, rows: ExpertRows, shared: Tensor, top_k: int
) -> Tensor:
    """Sums each token's expert outputs, FP32, increasing expert number, shared expert last.

    y        [pairs, hidden] bf16 in the order of rows
    shared   [tokens, hidden] bf16
    returns  [tokens, hidden] bf16
    Source: backbone 3.8 step 5.
    """


def hyper_pre(  # type: ignore[empty-body]
    stream: Tensor, fn: Tensor, scale: Tensor, base: Tensor, eps: float, mix_eps: float, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The three mixes of a hyper-connection site.

    stream   [tokens, copies, hidden] bf16
    fn       [copies * (2 + copies), copies * hidden] f32; scale [3] f32; base like fn's rows
    steps    Sinkhorn: a softmax over rows, then `steps` column and `steps` - 1 row normalizations
    returns  pre [tokens, copies] f32, post [tokens, copies] f32, mix [tokens, copies, copies] f32
    Source: backbone 3.3 steps 1-4.
    """


def hyper_collapse(stream: Tensor, pre: Tensor) -> Tensor:  # type: ignore[empty-body]
    """Weighted sum of the copies, FP32, one rounding.

    stream   [tokens, copies, hidden] bf16; pre [tokens, copies] f32
    returns  [tokens, hidden] bf16
    Source: backbone 3.3.
    """


def hyper_post(stream: Tensor, y: Tensor, post: Tensor, mix: Tensor) -> Tensor:  # type: ignore[empty-body]
    """Writes an output back: stream'[k] = post[k] * y + sum over i of mix[i, k] * stream[i].

    stream   [tokens, copies, hidden] bf16; y [tokens, hidden] bf16
    post     [tokens, copies] f32; mix [tokens, copies, copies] f32, summed over its first index
    returns  [tokens, copies, hidden] bf16
    Source: backbone 3.3.
    """


def mean_copies(stream: Tensor) -> Tensor:  # type: ignore[empty-body]
    """Mean over the copies, the feature that the draft stages read.

    stream   [tokens, copies, hidden] bf16
    returns  [tokens, hidden] bf16
    Source: backbone 3.2, DSpark 1.2.
    """


def hash_lookup(  # type: ignore[empty-body]
    history: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor, pad: int
) -> Tensor:
    """Rows of the n-gram table for each token.

    history      [tokens, ngram] int64 compressed ids at p, p-1, ...; -1 where it is blocked
    multipliers  [ngram] int64; primes, offsets [columns] int64
    pad          compressed id used where the look-back is blocked
    returns      [tokens, columns] int64, offsets included
    Source: backbone 3.9 (hash).
    """


def gather_rows(table: Any, rows: Tensor) -> Quantized:  # type: ignore[empty-body]
    """Reads n-gram rows and lays them side by side, on the Q8 grid.

    table    prepared Weight: values [n, width] e4m3, scale [n, width / 32] e8m0
    rows     [tokens, columns] int64
    returns  Quantized [tokens, columns * width], with the values of quantize(bf16(row * scale))
    Source: backbone 3.9 (lookup).
    """


def engram_gate(  # type: ignore[empty-body]
    stream: Tensor, kv: Tensor, q_weight: Tensor, k_weight: Tensor, dead: Tensor, eps: float
) -> Tensor:
    """Adds the gated n-gram value to every copy of the stream.

    stream   [tokens, copies, hidden] bf16
    kv       [tokens, (copies + 1) * hidden] bf16: one key per copy, then the value
    q_weight, k_weight  [copies, hidden] bf16
    dead     [tokens] bool; gate 0
    returns  [tokens, copies, hidden] bf16
    Source: backbone 3.9 (gate).
    """


def entry_rows(  # type: ignore[empty-body]
    entries: Tensor, block_table: Tensor, sequence: Tensor, per_block: int
) -> Tensor:
    """Turns entry numbers of a sequence into rows of the cache.

    entries      [tokens, k] int32; negative is empty and stays -1
    block_table  [sequences, blocks] int32
    sequence     [tokens] int64, row of the block table
    per_block    entries in one block
    returns      [tokens, k] int32
    Source: engine 3.1.
    """


def pick_rows(x: Tensor, rows: Tensor) -> Tensor:  # type: ignore[empty-body]
    """Some rows: x [tokens, ...], rows [n] int64 -> [n, ...]. Source: engine 2.1 (wants)."""


def _embed(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw = Draw(seed)
    table = draw.bf16(dims["vocabulary"], dims["hidden"])
    return {"ids": draw.ids(dims["vocabulary"], tokens), "table": Weight(table)}


def _norm(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw = Draw(seed)
    width = dims["norm_widths"][seed % len(dims["norm_widths"])]
    x = draw.bf16(tokens, width, edge=edge)
    return {"x": x, "weight": draw.bf16(width), "eps": 1e-20}


def _rope(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw = Draw(seed)
    half = dims["rope_dim"] // 2
    last = 1_000_000 if edge == "far" else 4096
    return {
        "x": draw.bf16(tokens, dims["heads"], dims["head_dim"], edge=edge),
        "positions": draw.ids(last, tokens),
        "frequencies": (10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)).float(),
        "inverse": seed % 2 == 1,
    }


def _rows(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    return {"x": Draw(seed).bf16(tokens, dims["hidden"], edge=edge)}


def _swiglu(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw = Draw(seed)
    weight = None if edge == "shared" else draw.f32(tokens).abs()
    return {
        "gate_up": draw.bf16(tokens, 2 * dims["expert_hidden"], edge=edge, size=6.0),
        "weight": weight,
        "limit": 10.0,
    }


def _route(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw = Draw(seed)
    logits = draw.f32(tokens, dims["experts"])
    if edge == "ties":
        logits = (logits * 2).round() / 2
    return {
        "logits": logits,
        "bias": draw.f32(dims["experts"]) * (edge != "ties"),
        "top_k": dims["experts_per_token"],
        "scale": 1.5,
    }


def _experts(dims: Mapping[str, Any], tokens: int, draw: Draw) -> Tensor:
    scores = draw.f32(tokens, dims["experts"])
    return scores.topk(dims["experts_per_token"], -1).indices.sort(-1).values.int()


def quantized(x: Tensor) -> Quantized:
    """Canonical Q8 of rows for input generators: bytes by the rule of backbone 3.1."""
    groups = x.float().unflatten(-1, (-1, 32))
    amax = groups.abs().amax(-1).clamp(min=1e-4) * torch.tensor(1 / 448, dtype=torch.float32)
    bits = amax.view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).int()
    scale = (exponent << 23).view(torch.float32)
    values = (groups / scale[..., None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    return Quantized(values.flatten(-2), exponent.to(torch.uint8).view(torch.float8_e8m0fnu))


def _permute(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw = Draw(seed)
    experts = _experts(dims, tokens, draw)
    if edge == "one_expert" and tokens:
        experts = experts[:1].expand(tokens, -1).contiguous()
    return {
        "x": quantized(draw.bf16(tokens, dims["hidden"])),
        "experts": experts,
        "weights": draw.f32(*experts.shape).abs(),
        "count": dims["experts"],
    }


def _unpermute(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw, top_k = Draw(seed), dims["experts_per_token"]
    flat = _experts(dims, tokens, draw).flatten().long()
    source = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=dims["experts"])
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    empty = Quantized(torch.empty(0, 0))
    return {
        "y": draw.bf16(tokens * top_k, dims["hidden"]),
        "rows": ExpertRows(empty, torch.empty(0), source, offsets),
        "shared": draw.bf16(tokens, dims["hidden"]),
        "top_k": top_k,
    }


def _stream(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    return {"stream": Draw(seed).bf16(tokens, dims["copies"], dims["hidden"], edge=edge)}


def _hyper_pre(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw, copies = Draw(seed), dims["copies"]
    mixes = copies * (2 + copies)
    return _stream(dims, tokens, seed, edge) | {
        "fn": draw.f32(mixes, copies * dims["hidden"]) * (copies * dims["hidden"]) ** -0.5,
        "scale": draw.f32(3),
        "base": draw.f32(mixes),
        "eps": 1e-20,
        "mix_eps": 1e-6,
        "steps": dims["sinkhorn_steps"],
    }


def _hyper_collapse(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    return _stream(dims, tokens, seed, edge) | {"pre": Draw(seed + 1).f32(tokens, dims["copies"])}


def _hyper_post(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw, copies = Draw(seed + 1), dims["copies"]
    return _stream(dims, tokens, seed, edge) | {
        "y": draw.bf16(tokens, dims["hidden"]),
        "post": draw.f32(tokens, copies).sigmoid() * 2,
        "mix": draw.f32(tokens, copies, copies).softmax(-1),
    }


def _hash(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw, columns = Draw(seed), dims["engram_columns"]
    history = draw.ids(1000, tokens, dims["ngram"])
    history[draw.f32(tokens) > 1] = -1 if edge == "blocked" else 3
    primes = torch.arange(101, 101 + 2 * columns, 2)
    offsets = torch.cat([primes.new_zeros(1), primes.cumsum(0)[:-1]])
    multipliers = draw.ids(2**40, dims["ngram"]) * 2 + 1
    return {
        "history": history,
        "multipliers": multipliers,
        "primes": primes,
        "offsets": offsets,
        "pad": 1,
    }


def _gather(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw, rows = Draw(seed), 512
    table = quantized(draw.bf16(rows, dims["engram_dim"], edge=edge))
    return {"table": Weight(*table), "rows": draw.ids(rows, tokens, dims["engram_columns"])}


def _gate(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw, copies, hidden = Draw(seed + 1), dims["copies"], dims["hidden"]
    dead = draw.f32(tokens) > (0 if edge == "dead" else 9)
    return _stream(dims, tokens, seed, edge) | {
        "kv": draw.bf16(tokens, (copies + 1) * hidden),
        "q_weight": draw.bf16(copies, hidden),
        "k_weight": draw.bf16(copies, hidden),
        "dead": dead,
        "eps": 1e-20,
    }


def _pick(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw = Draw(seed)
    x = draw.bf16(tokens, dims["copies"], dims["hidden"], edge=edge)
    return {"x": x, "rows": draw.ids(max(tokens, 1), min(tokens, 3))}


def _entry_rows(dims: Mapping[str, Any], tokens: int, seed: int, edge: str) -> dict[str, Any]:
    draw, per_block, blocks, sequences = Draw(seed), 8, 6, 3
    last = 2**31 // per_block - 1 if edge == "far" else 1000
    table = draw.ids(last, sequences, blocks).int()
    entries = draw.ids(per_block * blocks, tokens, 16).int()
    entries[draw.f32(tokens, 16) > 0.5] = -1
    return {
        "entries": entries,
        "block_table": table,
        "sequence": draw.ids(sequences, tokens),
        "per_block": per_block,
    }


_STREAM_DIMS = ("hidden", "copies")
OPERATORS = (
    Operator("tensor.embed", embed, ("vocabulary", "hidden"), EXACT, _embed),
    Operator(
        "tensor.rms_norm",
        rms_norm,
        ("hidden", "norm_widths"),
        ulp(1, 0.01),
        _norm,
        ("strided", "zeros", "tiny", "huge"),
    ),
    Operator(
        "tensor.rope",
        rope,
        ("heads", "head_dim", "rope_dim"),
        ulp(1, 0.01),
        _rope,
        ("far", "strided"),
    ),
    Operator(
        "tensor.quantize",
        quantize,
        ("hidden",),
        EXACT,
        _rows,
        ("strided", "zeros", "tiny", "huge"),
        layouts=("activations",),
    ),
    Operator(
        "tensor.swiglu_quantize",
        swiglu_quantize,
        ("expert_hidden",),
        ulp(1, 0.01),
        _swiglu,
        ("shared", "huge"),
        layouts=("activations",),
    ),
    Operator(
        "tensor.route", route, ("experts", "experts_per_token"), relative(1e-6), _route, ("ties",)
    ),
    Operator(
        "tensor.permute_rows",
        permute_rows,
        ("hidden", "experts", "experts_per_token"),
        EXACT,
        _permute,
        ("one_expert",),
        layouts=("activations", "expert_rows"),
    ),
    Operator(
        "tensor.unpermute_rows",
        unpermute_rows,
        ("hidden", "experts", "experts_per_token"),
        ulp(1, 0.01),
        _unpermute,
        layouts=("expert_rows",),
    ),
    Operator(
        "tensor.hyper_pre",
        hyper_pre,
        (*_STREAM_DIMS, "sinkhorn_steps"),
        relative(1e-5),
        _hyper_pre,
        ("zeros",),
    ),
    Operator("tensor.hyper_collapse", hyper_collapse, _STREAM_DIMS, ulp(1, 0.01), _hyper_collapse),
    Operator("tensor.hyper_post", hyper_post, _STREAM_DIMS, ulp(1, 0.01), _hyper_post),
    Operator("tensor.mean_copies", mean_copies, _STREAM_DIMS, ulp(1, 0.01), _stream, needs="draft"),
    Operator(
        "tensor.hash_lookup",
        hash_lookup,
        ("ngram", "engram_columns"),
        EXACT,
        _hash,
        ("blocked",),
        needs="engram",
    ),
    Operator(
        "tensor.gather_rows",
        gather_rows,
        ("engram_columns", "engram_dim"),
        EXACT,
        _gather,
        ("zeros",),
        layouts=("activations",),
        needs="engram",
    ),
    Operator(
        "tensor.engram_gate",
        engram_gate,
        _STREAM_DIMS,
        ulp(1, 0.01),
        _gate,
        ("dead", "zeros"),
        needs="engram",
    ),
    Operator(
        "tensor.entry_rows",
        entry_rows,
        ("block_tokens",),
        EXACT,
        _entry_rows,
        ("far",),
        needs="compressed",
    ),
    Operator("tensor.pick_rows", pick_rows, _STREAM_DIMS, EXACT, _pick, ("strided",)),
)
