"""Shapes and dtypes that the contracts promise, written down apart from any implementation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

F32, BF16 = torch.float32, torch.bfloat16
I32, I64 = torch.int32, torch.int64
E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu

Promise = list[tuple[tuple[int, ...], torch.dtype]]
Arguments = Mapping[str, Any]


def _q8(rows: int, width: int) -> Promise:
    return [((rows, width), E4M3), ((rows, width // 32), E8M0)]


def _like(name: str) -> Callable[[Arguments, Arguments], Promise]:
    return lambda a, d: [(tuple(a[name].shape), a[name].dtype)]


def _rows(dim: str) -> Callable[[Arguments, Arguments], Promise]:
    return lambda a, d: [((len(a["rows"]), d[dim]), BF16)]


def _attended(a: Arguments, d: Arguments) -> Promise:
    return [(tuple(a["q"].shape), BF16), (tuple(a["q"].shape[:2]), F32)]


def _scores(a: Arguments, d: Arguments) -> Promise:
    chosen = a.get("candidates")
    width = a["count"] if chosen is None else chosen.shape[1] * a["candidate_size"]
    return [((len(a["query"]), width), F32)]


def _product(dtype: torch.dtype) -> Callable[[Arguments, Arguments], Promise]:
    def promise(a: Arguments, d: Arguments) -> Promise:
        x = a["x"] if isinstance(a["x"], torch.Tensor) else a["x"].values
        n, k = d["linear_shapes"][a["seed"] % len(d["linear_shapes"])]
        assert x.shape[1] == k
        return [((len(x), n), dtype)]

    return promise


def _sorted(a: Arguments, d: Arguments) -> Promise:
    pairs = a["experts"].numel()
    rows = _q8(pairs, d["hidden"])
    return [*rows, ((pairs,), F32), ((pairs,), I64), ((a["count"] + 1,), I64)]


def _mixes(a: Arguments, d: Arguments) -> Promise:
    tokens, copies = len(a["stream"]), d["copies"]
    return [((tokens, copies), F32), ((tokens, copies), F32), ((tokens, copies, copies), F32)]


def _best(a: Arguments, d: Arguments) -> Promise:
    rows = len(a["ids"])
    return [((rows,), F32), ((rows, a["k"]), I64), ((rows, a["k"]), F32)]


PROMISES: dict[str, Callable[[Arguments, Arguments], Promise]] = {
    # store operators without a result: the cache that they filled
    "attention.store_window": _like("keys"),
    "attention.load_window": _rows("head_dim"),
    "attention.store_entries": _like("cache"),
    "attention.load_entries": _rows("head_dim"),
    "attention.store_index": _like("cache"),
    "attention.load_index": _rows("index_dim"),
    "attention.store_open": _like("cache"),
    "attention.compress": lambda a, d: [((len(a["sources"]), d["head_dim"]), BF16)],
    "attention.index_logits": _scores,
    "attention.index_topk": lambda a, d: [((len(a["scores"]), a["top_k"]), I32)],
    "attention.candidate_blocks": lambda a, d: [((len(a["scores"]), a["top_k"]), I32)],
    "attention.sparse_prefill": _attended,
    "attention.sparse_decode": _attended,
    "gemm.dense_mxfp8": _product(BF16),
    "gemm.dense_bf16": _product(BF16),
    "gemm.dense_f32": _product(F32),
    "gemm.logits": lambda a, d: [((len(a["x"]), d["vocabulary"]), F32)],
    "gemm.batched": lambda a, d: [((len(a["x"]), d["o_groups"], d["o_rank"]), BF16)],
    "gemm.grouped_mxfp4": lambda a, d: [((len(a["rows"].values), d["expert_hidden"]), BF16)],
    "sampler.penalize": lambda a, d: [((len(a["logits"]), d["vocabulary"]), F32)],
    "sampler.sample": lambda a, d: [((len(a["logits"]),), I64)],
    "sampler.top_logprobs": _best,
    "tensor.embed": lambda a, d: [((len(a["ids"]), d["hidden"]), BF16)],
    "tensor.rms_norm": _like("x"),
    "tensor.rope": _like("x"),
    "tensor.quantize": lambda a, d: _q8(*a["x"].shape),
    "tensor.swiglu_quantize": lambda a, d: _q8(len(a["gate_up"]), d["expert_hidden"]),
    "tensor.route": lambda a, d: [
        ((len(a["logits"]), a["top_k"]), I32),
        ((len(a["logits"]), a["top_k"]), F32),
    ],
    "tensor.permute_rows": _sorted,
    "tensor.unpermute_rows": _like("shared"),
    "tensor.hyper_pre": _mixes,
    "tensor.hyper_collapse": lambda a, d: [((len(a["stream"]), d["hidden"]), BF16)],
    "tensor.hyper_post": _like("stream"),
    "tensor.mean_copies": lambda a, d: [((len(a["stream"]), d["hidden"]), BF16)],
    "tensor.hash_lookup": lambda a, d: [((len(a["history"]), d["engram_columns"]), I64)],
    "tensor.gather_rows": lambda a, d: _q8(len(a["rows"]), d["engram_columns"] * d["engram_dim"]),
    "tensor.engram_gate": _like("stream"),
    "tensor.entry_rows": lambda a, d: [(tuple(a["entries"].shape), I32)],
    "tensor.pick_rows": lambda a, d: [((len(a["rows"]), *a["x"].shape[1:]), a["x"].dtype)],
}

MINUS_INFINITY = {  # operators whose contract has -inf among its numbers
    "attention.index_logits",
    "attention.sparse_prefill",
    "attention.sparse_decode",
    "sampler.penalize",
    "sampler.top_logprobs",
}
