"""The weights of one rank by part, in bytes, from the inventory alone (engine specification 8).

In: a Shape, options of the ledger. Out: rows for the replicated parts, experts, Engram tables.
Does not know: checkpoints, devices, caches.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from deepinfer.ledger.parts import Options, Row
from deepinfer.model.inventory import TensorSpec, inventory
from deepinfer.model.memory import loaded_bytes
from deepinfer.model.shape import Shape

Named = list[tuple[str, TensorSpec]]

DECODED = "every matrix is held decoded, see there"
STORED = "kernels read the stored formats"
ONE_EXPERT = "layers.0.ffn.experts.0."
KEPT_BF16 = ("embed.weight", "norm.weight", "engram.q_weight", "engram.k_weight")
"""BF16 tensors that no product reads (names end so)."""


def physical_experts(experts: int, redundant: int, ranks: int) -> int:
    """P: routed experts with their copies, padded to a multiple of the ranks (engine 7.1)."""
    return -(-(experts + redundant) // ranks) * ranks


def weight_rows(shape: Shape, options: Options) -> tuple[Row, ...]:
    """W(E): one row per term of section 8, and the widenings of the release beside them."""
    found = _tensors(shape)
    backbone = [(n, s) for n, s in found if s.part == "backbone" and s.unit != "experts"]
    draft = [(n, s) for n, s in found if s.part == "draft" and s.unit != "experts"]
    one, layers = _expert(found), shape.num_hidden_layers
    here = physical_experts(shape.n_routed_experts, options.redundant, options.ranks)
    here //= options.ranks
    padding = f"{here} of {shape.n_routed_experts} per layer" if options.ranks > 1 else ""
    rows = [
        Row("weights", "replicated backbone", _stored(backbone)),
        Row.of("weights", "routed experts", "expert", one, layers * here, padding),
    ]
    rows += _draft_rows(shape, options, draft, one)
    rows += _widened_rows(options, backbone, shape)
    spare = options.unused.get("spare", "no experts move" if not options.spare else "")
    count = 0 if "spare" in options.unused else layers * options.spare
    rows.append(Row.of("weights", "spare expert slots", "expert", one, count, spare))
    rows.append(_vision(options, found))
    return (*rows, _decoded_row(shape, options, backbone, draft, found))


@lru_cache(maxsize=4)
def _tensors(shape: Shape) -> Named:
    """The inventory with one routed expert for all: 1,627 names instead of 96,085."""
    return [
        (name, spec)
        for name, spec in inventory(shape).items()
        if spec.unit != "experts" or name.startswith(ONE_EXPERT)
    ]


def _draft_rows(shape: Shape, options: Options, draft: Named, one: int) -> list[Row]:
    stages, share = shape.num_nextn_predict_layers, -(-shape.draft_experts // options.ranks)
    if not options.drafts:
        why = "the draft stages are not loaded"
        return [Row("weights", name, 0, note=why) for name in ("draft stages", "draft experts")]
    return [
        Row("weights", "draft stages", _stored(draft)),
        Row.of("weights", "draft experts", "expert", one, stages * share),
        _widened("draft heads", "draft widening", draft, shape, options),
    ]


def _widened_rows(options: Options, backbone: Named, shape: Shape) -> list[Row]:
    """What the release widens at load, beyond the stored bytes (backbone 2.4)."""
    wo_a = [pair for pair in backbone if ".attn.wo_a." in pair[0]]
    head = [pair for pair in backbone if pair[0] == "head.weight"]
    pool = [pair for pair in backbone if ".compressor." in pair[0]]
    return [
        _widened("wo_a", "wo_a in BF16", wo_a, shape, options),
        _widened("head", "head in FP32", head, shape, options),
        _widened("compressors", "compressors in FP32", pool, shape, options),
    ]


def _widened(term: str, name: str, tensors: Named, shape: Shape, options: Options) -> Row:
    why = options.unused.get(term) or (DECODED if options.decoded else "")
    extra = sum(loaded_bytes(shape, n, s) - s.bytes for n, s in tensors)
    return Row("weights", name, 0 if why else extra, note=why or "beyond the stored bytes")


def _vision(options: Options, found: Named) -> Row:
    tower = _stored(pair for pair in found if pair[1].unit == "vision")
    if not options.vision or not tower:
        why = "the image tower is not loaded" if tower else "the model has no image tower"
        return Row("weights", "image tower", 0, note=options.unused.get("vision", why))
    return Row("weights", "image tower", tower)


def _decoded_row(
    shape: Shape, options: Options, backbone: Named, draft: Named, found: Named
) -> Row:
    """What kernels that hold matrices decoded take beyond the stored bytes."""
    if not options.decoded:
        return Row("weights", "decoded matrices", 0, note=STORED)
    each = options.decoded
    experts = shape.num_hidden_layers * physical_experts(
        shape.n_routed_experts, options.redundant, options.ranks
    )
    experts //= options.ranks
    extra = sum(_decoded(n, s, each) - s.bytes for n, s in backbone)
    if options.drafts:
        experts += shape.num_nextn_predict_layers * -(-shape.draft_experts // options.ranks)
        extra += sum(_decoded(n, s, each) - s.bytes for n, s in draft)
    one = [(n, s) for n, s in found if n.startswith(ONE_EXPERT)]
    extra += experts * sum(_decoded(n, s, each) - s.bytes for n, s in one)
    return Row("weights", "decoded matrices", extra, note=f"{each} bytes per element")


def _decoded(name: str, spec: TensorSpec, each: int) -> int:
    """Bytes of one tensor when products read wide numbers and scales are folded in."""
    if spec.dtype == "F8_E8M0":
        return 0
    if spec.dtype == "I8":  # two codes in a byte
        return 2 * spec.count * each
    matrix = spec.dtype == "F8_E4M3" or (spec.dtype == "BF16" and len(spec.shape) > 1)
    return spec.count * each if matrix and not name.endswith(KEPT_BF16) else spec.bytes


def engram_rows(shape: Shape, options: Options) -> tuple[Row, ...]:
    """The tables and their place: row ranges over the ranks, or one copy in host memory (7.6)."""
    if not shape.engram_layer_ids:
        return (Row("engram", "Engram tables", 0, note="the model has none"),)
    row = shape.engram_head_dim + shape.engram_head_dim // 32
    every = sum(shape.engram_num_embeddings)
    shard = sum(-(-rows // options.ranks) for rows in shape.engram_num_embeddings)
    if options.engram == "device":
        name = "Engram tables" if options.ranks == 1 else f"Engram tables, 1/{options.ranks}"
        return (Row.of("engram", name, "row", row, shard),)
    note = f"one copy per machine; on the devices {shard * row:,} bytes each"
    return (Row("engram", "Engram tables", every * row, "row", row, every, "host", note),)


def _expert(found: Named) -> int:
    """Bytes of one routed expert."""
    return _stored(pair for pair in found if pair[0].startswith(ONE_EXPERT))


def _stored(tensors: Iterable[tuple[str, TensorSpec]]) -> int:
    return sum(spec.bytes for _, spec in tensors)
