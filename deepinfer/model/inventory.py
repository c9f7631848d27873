"""Every tensor that a checkpoint must hold, derived from the numbers of its config alone.

In: a Shape. Out: an ordered mapping from tensor name to dtype, shape and part.
Does not know: files, torch. Checkpoint spellings live here and in weights.py only.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from deepinfer.model.shape import Shape

Part = Literal["backbone", "engram", "draft", "vision", "special"]

# Names as safetensors writes them. I8 holds two E2M1 codes per byte (specification 2.2).
DTYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {"BF16": 2, "F32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}
)
BLOCK = 32
IMAGE_MARKS = ("image_start", "image_newline", "image_end")
IMAGE_PREFIXES = ("vision.", "aligner.", *IMAGE_MARKS)
DRAFT_PREFIX = "mtp."


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One stored tensor. `unit` is its row in the byte table of specification 7.1."""

    dtype: str
    shape: tuple[int, ...]
    part: Part
    unit: str

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.count * DTYPE_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


Named = Iterator[tuple[str, TensorSpec]]


def inventory(shape: Shape) -> dict[str, TensorSpec]:
    """All tensors in the order embed, layers, norm, head, draft stages, tower (section 2.3)."""
    found: dict[str, TensorSpec] = {}
    vocabulary = (shape.vocab_size, shape.hidden_size)
    found["embed.weight"] = TensorSpec("BF16", vocabulary, "backbone", "embed")
    for layer in range(shape.num_hidden_layers):
        found.update(_Block(shape, f"layers.{layer}.", "backbone").layer(layer))
    found["norm.weight"] = TensorSpec("BF16", (shape.hidden_size,), "backbone", "norm")
    found["head.weight"] = TensorSpec("BF16", vocabulary, "backbone", "head")
    for stage in range(shape.num_nextn_predict_layers):
        found.update(_Block(shape, f"{DRAFT_PREFIX}{stage}.", "draft").stage(stage))
    found.update(_tower(shape))
    return found


def is_draft(name: str) -> bool:
    return name.startswith(DRAFT_PREFIX)


def is_image_only(name: str) -> bool:
    """Tensors that a checkpoint without `vision_config` may carry and nobody reads."""
    return name.startswith(IMAGE_PREFIXES) or name.endswith(".ffn.gate.bias_vl")


class _Block:
    """The tensors of one layer or draft stage."""

    def __init__(self, shape: Shape, prefix: str, part: Part) -> None:
        self.shape, self.prefix, self.part = shape, prefix, part

    def layer(self, layer: int) -> Named:
        shape = self.shape
        if shape.has_engram(layer):
            yield from self._engram(shape.engram_rows(layer))
        yield from self._sites()
        yield from self._attention()
        if shape.owns_kv(layer):
            yield from self._compressor(shape.ratio(layer))
        if shape.owns_index(layer):
            yield from self._index_queries()
        yield from self._experts(shape.n_routed_experts)

    def stage(self, stage: int) -> Named:
        shape = self.shape
        width = shape.hidden_size
        if stage == 0:
            targets = len(shape.dspark_target_layer_ids)
            yield from self._dense("main_proj", width, targets * width, "draft")
            yield self._plain("main_norm.weight", (width,), "draft")
        yield from self._sites()
        yield from self._attention()
        yield from self._experts(shape.draft_experts)
        if stage == shape.num_nextn_predict_layers - 1:
            rank = shape.dspark_markov_rank
            yield self._plain("norm.weight", (width,), "draft")
            yield self._plain("markov_head.embed.weight", (shape.vocab_size, rank), "draft")
            yield self._plain("markov_head.head.weight", (shape.vocab_size, rank), "draft")
            yield self._plain("confidence_head.proj.weight", (1, width + rank), "draft")

    def _sites(self) -> Named:
        """Norms and hyper-connections of the two sublayers (3.3)."""
        copies, width = self.shape.hc_mult, self.shape.hidden_size
        mixes = copies * (2 + copies)
        for site in ("attn", "ffn"):
            yield self._plain(f"{site}_norm.weight", (width,), "norm")
            yield self._plain(f"hc_{site}_fn", (mixes, copies * width), "mhc", "F32")
            yield self._plain(f"hc_{site}_base", (mixes,), "mhc", "F32")
            yield self._plain(f"hc_{site}_scale", (3,), "mhc", "F32")

    def _attention(self) -> Named:
        shape, unit = self.shape, "attention"
        heads, dim, width = shape.num_attention_heads, shape.head_dim, shape.hidden_size
        latent = shape.o_groups * shape.o_lora_rank
        yield self._plain("attn.attn_sink", (heads,), unit, "F32")
        yield from self._dense("attn.wq_a", shape.q_lora_rank, width, unit)
        yield self._plain("attn.q_norm.weight", (shape.q_lora_rank,), unit)
        yield from self._dense("attn.wq_b", heads * dim, shape.q_lora_rank, unit)
        yield from self._dense("attn.wkv", dim, width, unit)
        yield self._plain("attn.kv_norm.weight", (dim,), unit)
        yield from self._dense("attn.wo_a", latent, heads // shape.o_groups * dim, unit)
        yield from self._dense("attn.wo_b", width, latent, unit)

    def _compressor(self, ratio: int) -> Named:
        shape = self.shape
        dim, width = shape.head_dim, shape.hidden_size
        yield self._plain("attn.compressor.wkv.weight", (dim, width), "compressor")
        if ratio > 1:
            yield self._plain("attn.compressor.wgate.weight", (dim, width), "compressor")
        yield self._plain("attn.compressor.norm.weight", (dim,), "compressor")
        yield self._plain("attn.indexer.wk.weight", (shape.index_head_dim, dim), "indexer")
        yield self._plain("attn.indexer.k_norm.weight", (shape.index_head_dim,), "indexer")

    def _index_queries(self) -> Named:
        shape = self.shape
        heads = shape.index_n_heads
        queries = heads * shape.index_head_dim
        yield from self._dense("attn.indexer.wq_b", queries, shape.q_lora_rank, "indexer")
        yield self._plain(
            "attn.indexer.weights_proj.weight", (heads, shape.hidden_size), "indexer"
        )

    def _experts(self, experts: int) -> Named:
        width, inner = self.shape.hidden_size, self.shape.moe_intermediate_size
        yield self._plain("ffn.gate.weight", (experts, width), "router")
        yield self._plain("ffn.gate.bias", (experts,), "router", "F32")
        if self.shape.has_vision:
            yield self._plain("ffn.gate.bias_vl", (experts,), "router", "F32")
        sides = {"w1": (inner, width), "w3": (inner, width), "w2": (width, inner)}
        for expert in range(experts):
            for side, (rows, columns) in sides.items():
                name = f"ffn.experts.{expert}.{side}"
                yield self._plain(f"{name}.weight", (rows, columns // 2), "experts", "I8")
                scales = (rows, columns // BLOCK)
                yield self._plain(f"{name}.scale", scales, "experts", "F8_E8M0")
        for side, (rows, columns) in sides.items():
            yield from self._dense(f"ffn.shared_experts.{side}", rows, columns, "shared")

    def _engram(self, rows: int) -> Named:
        shape = self.shape
        dim, copies, width = shape.engram_head_dim, shape.hc_mult, shape.hidden_size
        table = {"weight": ("F8_E4M3", dim), "scale": ("F8_E8M0", dim // BLOCK)}
        for suffix, (dtype, columns) in table.items():
            spec = TensorSpec(dtype, (rows, columns), "engram", "engram_table")
            yield f"{self.prefix}engram.embed.{suffix}", spec
        wide = shape.engram_columns * dim
        unit = "engram_projection"
        yield from self._dense("engram.wkv", (copies + 1) * width, wide, unit)
        yield self._plain("engram.q_weight", (copies, width), unit)
        yield self._plain("engram.k_weight", (copies, width), unit)

    def _plain(
        self, name: str, shape: tuple[int, ...], unit: str, dtype: str = "BF16"
    ) -> tuple[str, TensorSpec]:
        return self.prefix + name, TensorSpec(dtype, shape, self.part, unit)

    def _dense(self, name: str, rows: int, columns: int, unit: str) -> Named:
        """FP8 weight with one scale per 32x32 tile, the last tile of a side may be cut."""
        tiles = (-(-rows // BLOCK), -(-columns // BLOCK))
        yield self._plain(f"{name}.weight", (rows, columns), unit, "F8_E4M3")
        yield self._plain(f"{name}.scale", tiles, unit, "F8_E8M0")


def _tower(shape: Shape) -> Named:
    """Vision specification, section 2."""
    tower = shape.vision
    if tower is None:
        return
    width, inner = tower.hidden_size, tower.intermediate_size
    cell = width * tower.downsample_ratio**2
    sizes: dict[str, tuple[int, ...]] = {
        "vision.patch_embed.proj.weight": (width, 3 * tower.patch_size**2),
        "vision.patch_embed.proj.bias": (width,),
    }
    for block in range(tower.num_hidden_layers):
        name = f"vision.blocks.{block}."
        sizes[name + "norm1.weight"] = (width,)
        sizes[name + "attn.wqkv.weight"] = (3 * width, width)
        sizes[name + "attn.wqkv.bias"] = (3 * width,)
        sizes[name + "attn.wo.weight"] = (width, width)
        sizes[name + "attn.wo.bias"] = (width,)
        sizes[name + "norm2.weight"] = (width,)
        sizes[name + "mlp.w1.weight"] = (2 * inner, width)
        sizes[name + "mlp.w2.weight"] = (width, inner)
    sizes["vision.norm.weight"] = (width,)
    for side, columns in {"w1": cell, "w2": shape.hidden_size}.items():
        sizes[f"aligner.{side}.weight"] = (shape.hidden_size, columns)
        sizes[f"aligner.{side}.bias"] = (shape.hidden_size,)
    for name, size in sizes.items():
        yield name, TensorSpec("BF16", size, "vision", "vision")
    for name in IMAGE_MARKS:
        yield name, TensorSpec("BF16", (shape.hidden_size,), "special", "vision")
