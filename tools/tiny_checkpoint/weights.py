"""Every tensor of the checkpoint, stacked over its owners: shape, format, start value.

In: a `Shape`, or a folder of shards. Out: master weights, their stored values, official names.
Does not know: the forward pass, the optimizer.
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from . import quantize
from .shape import Shape

FAKES: dict[str, Callable[[Tensor], Tensor]] = {
    "fp8": quantize.fp8_tiles, "fp4": quantize.mxfp4, "rows": quantize.fp8_rows,
    "bf16": quantize.bf16, "f32": torch.clone,
}


@dataclass(frozen=True)
class Entry:
    """One kind of tensor: `owners` are the name prefixes stacked along the first axis."""

    owners: tuple[str, ...]
    suffix: str
    size: tuple[int, ...]
    form: str  # fp8, fp4, rows, bf16 or f32
    std: float | None = None  # None: fan_in^-0.5; norms and mixes set their own values
    fill: float | None = None

    def names(self) -> Iterator[tuple[tuple[int, ...], str]]:
        """(index into the stack, official name) of each stored tensor."""
        for row, owner in enumerate(self.owners):
            if ".experts." not in self.suffix:
                yield (row,), owner + self.suffix
                continue
            before, after = self.suffix.split(".experts.")
            for expert in range(self.size[0]):
                yield (row, expert), f"{owner}{before}.experts.{expert}.{after}"


def _layer_entries(shape: Shape, owners: tuple[str, ...], experts: int) -> list[Entry]:
    """What a backbone layer and a draft stage have in common (specification 2.3)."""
    s, mixes = shape, shape.copies * (shape.copies + 2)
    rows: list[tuple[str, tuple[int, ...], str, float | None, float | None]] = [
        ("attn_norm.weight", (s.hidden,), "bf16", None, 1.0),
        ("ffn_norm.weight", (s.hidden,), "bf16", None, 1.0),
        ("attn.attn_sink", (s.heads,), "f32", None, 0.0),
        ("attn.wq_a.weight", (s.q_rank, s.hidden), "fp8", None, None),
        ("attn.q_norm.weight", (s.q_rank,), "bf16", None, 1.0),
        ("attn.wq_b.weight", (s.heads * s.head_dim, s.q_rank), "fp8", None, None),
        ("attn.wkv.weight", (s.head_dim, s.hidden), "fp8", None, None),
        ("attn.kv_norm.weight", (s.head_dim,), "bf16", None, 1.0),
        ("attn.wo_a.weight", (s.o_groups * s.o_rank, s.heads * s.head_dim // s.o_groups), "fp8",
         None, None),
        ("attn.wo_b.weight", (s.hidden, s.o_groups * s.o_rank), "fp8", 0.02, None),
        ("ffn.gate.weight", (experts, s.hidden), "bf16", None, None),
        ("ffn.gate.bias", (experts,), "f32", None, 0.0),
    ]
    for site in ("attn", "ffn"):
        rows += [
            (f"hc_{site}_fn", (mixes, s.copies * s.hidden), "f32", 0.01, None),
            (f"hc_{site}_base", (mixes,), "f32", None, 0.0),
            (f"hc_{site}_scale", (3,), "f32", None, 0.1),
        ]
    for part in ("w1", "w3", "w2"):
        size = (s.hidden, s.inter) if part == "w2" else (s.inter, s.hidden)
        std = 0.02 if part == "w2" else None
        rows.append((f"ffn.experts.{part}.weight", (experts, *size), "fp4", std, None))
        rows.append((f"ffn.shared_experts.{part}.weight", size, "fp8", std, None))
    return [Entry(owners, *row) for row in rows]


def _source_entries(shape: Shape) -> list[Entry]:
    """Compressors and indexers, owned by the source layers only."""
    s = shape
    kv = tuple(f"layers.{i}." for i in s.kv_sources)
    gated = tuple(f"layers.{i}." for i in s.gated_sources)
    index = tuple(f"layers.{i}." for i in s.index_sources)
    return [
        Entry(kv, "attn.compressor.wkv.weight", (s.head_dim, s.hidden), "bf16"),
        Entry(gated, "attn.compressor.wgate.weight", (s.head_dim, s.hidden), "bf16"),
        Entry(kv, "attn.compressor.norm.weight", (s.head_dim,), "bf16", fill=1.0),
        Entry(kv, "attn.indexer.wk.weight", (s.index_dim, s.head_dim), "bf16"),
        Entry(kv, "attn.indexer.k_norm.weight", (s.index_dim,), "bf16", fill=1.0),
        Entry(index, "attn.indexer.wq_b.weight", (s.index_heads * s.index_dim, s.q_rank), "fp8"),
        Entry(index, "attn.indexer.weights_proj.weight", (s.index_heads, s.hidden), "bf16"),
    ]


def _engram_entries(shape: Shape) -> list[Entry]:
    s = shape
    owners = tuple(f"layers.{i}." for i in s.engram_layers)
    width = (s.ngram - 1) * s.engram_heads * s.engram_dim
    tables = [
        Entry((owner,), "engram.embed.weight", (rows, s.engram_dim), "rows", 0.5)
        for owner, rows in zip(owners, s.engram_rows, strict=True)
    ]
    return tables + [
        Entry(owners, "engram.wkv.weight", ((s.copies + 1) * s.hidden, width), "fp8"),
        Entry(owners, "engram.q_weight", (s.copies, s.hidden), "bf16", fill=1.0),
        Entry(owners, "engram.k_weight", (s.copies, s.hidden), "bf16", fill=1.0),
    ]


def _draft_entries(shape: Shape) -> list[Entry]:
    s, last = shape, f"mtp.{shape.stages - 1}."
    wide = len(s.targets) * s.hidden
    return [
        Entry(("mtp.0.",), "main_proj.weight", (s.hidden, wide), "fp8"),
        Entry(("mtp.0.",), "main_norm.weight", (s.hidden,), "bf16", fill=1.0),
        Entry((last,), "norm.weight", (s.hidden,), "bf16", fill=1.0),
        Entry((last,), "markov_head.embed.weight", (s.vocab, s.markov_rank), "bf16", 0.5),
        Entry((last,), "markov_head.head.weight", (s.vocab, s.markov_rank), "bf16", 0.0),
        Entry((last,), "confidence_head.proj.weight", (1, s.hidden + s.markov_rank), "bf16", 0.0),
    ]


def inventory(shape: Shape) -> dict[str, Entry]:
    """All entries by key: the suffix, behind `mtp.` for the draft, `layers.N.` for tables."""
    s = shape
    layers = tuple(f"layers.{i}." for i in range(s.layers))
    stages = tuple(f"mtp.{i}." for i in range(s.stages))
    whole = [
        Entry(("",), "embed.weight", (s.vocab, s.hidden), "bf16", 0.5),
        Entry(("",), "head.weight", (s.vocab, s.hidden), "bf16", 0.0),
        Entry(("",), "norm.weight", (s.hidden,), "bf16", fill=1.0),
    ]
    result = {e.suffix: e for e in whole}
    for entry in _layer_entries(s, layers, s.experts) + _source_entries(s):
        result[entry.suffix] = entry
    for entry in _engram_entries(s):
        is_table = entry.form == "rows"
        result[(entry.owners[0] if is_table else "") + entry.suffix] = entry
    for entry in _layer_entries(s, stages, s.draft_experts) + _draft_entries(s):
        result["mtp." + entry.suffix] = entry
    return result


def start_values(shape: Shape, seed: int, device: str) -> dict[str, Tensor]:
    """Fresh FP32 masters; the values that trained well are those of tiny_checkpoint.md 3.3."""
    generator = torch.Generator().manual_seed(seed)
    masters = {}
    for key, entry in inventory(shape).items():
        size = (len(entry.owners), *entry.size)
        if entry.fill is not None:
            value = torch.full(size, entry.fill)
        else:
            std = entry.size[-1] ** -0.5 if entry.std is None else entry.std
            value = torch.randn(size, generator=generator) * std
        if key.endswith("_base"):
            c = shape.copies
            value[:, :c] = -math.log(c - 1)  # sigmoid gives 1 / copies
            value[:, 2 * c :] = (4 * torch.eye(c) - 2).flatten()
        masters[key] = value.to(device)
    return masters


def stored_values(shape: Shape, masters: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the exported bytes will decode to, with straight-through gradients."""
    forms = inventory(shape)
    return {
        key: quantize.straight_through(value, FAKES[forms[key].form])
        for key, value in masters.items()
    }


def read_checkpoint(folder: Path, shape: Shape) -> dict[str, Tensor]:
    """Load a checkpoint in the official layout as FP32 values, stacked."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    found: dict[str, Tensor] = {}
    for file in sorted(set(index.values())):
        with safe_open(folder / file, "pt") as shard:
            found |= {name: shard.get_tensor(name) for name in shard.keys()}  # noqa: SIM118
    values = {}
    for key, entry in inventory(shape).items():
        stack = torch.empty(len(entry.owners), *entry.size)
        for place, name in entry.names():
            raw = found[name]
            scale = found.get(name.removesuffix("weight") + "scale")
            scaled = entry.form in ("fp8", "fp4", "rows")
            stack[place] = quantize.unpack(raw, scale) if scaled else raw.float()
        values[key] = stack
    return values
