"""Whether the numbers of a model fit together: the constraints that hold across several keys.

In: a Shape. Out: nothing, or a ConfigError with key, value and what is supported.
Does not know: files, tensors.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from deepinfer.model.config import refuse

if TYPE_CHECKING:
    from deepinfer.model.shape import Shape

# One power-of-two scale per 32 elements of every reduction (backbone specification, 1.2).
GROUP = 32


def check(shape: "Shape") -> None:
    """Backbone specification 8.1 and the candidate invariant of 3.7."""
    _check_widths(shape)
    _check_sources(shape)
    _check_candidates(shape)
    _check_engram(shape)
    _check_experts(shape)
    _check_draft(shape)
    _check_ids(shape)
    if shape.vision is not None:
        _check_vision(shape)


def _check_widths(shape: "Shape") -> None:
    if shape.num_attention_heads % shape.o_groups:
        raise refuse("o_groups", shape.o_groups, f"a divisor of {shape.num_attention_heads} heads")
    group_heads = shape.num_attention_heads // shape.o_groups
    lengths = {
        "hidden_size": shape.hidden_size,
        "moe_intermediate_size": shape.moe_intermediate_size,
        "q_lora_rank": shape.q_lora_rank,
        "head_dim": shape.head_dim,
        "index_head_dim": shape.index_head_dim,
        "engram_head_dim": shape.engram_head_dim,
        "o_groups * o_lora_rank": shape.o_groups * shape.o_lora_rank,
        "heads per output group * head_dim": group_heads * shape.head_dim,
    }
    for key, length in lengths.items():
        if length % GROUP:
            raise refuse(key, length, f"a multiple of {GROUP}, the size of a scale group")
    rope = shape.qk_rope_head_dim
    if rope % 2 or rope > min(shape.head_dim, shape.index_head_dim):
        raise refuse(
            "qk_rope_head_dim",
            rope,
            f"an even width up to head_dim {shape.head_dim} and "
            f"index_head_dim {shape.index_head_dim}",
        )


def _check_sources(shape: "Shape") -> None:
    layers, stages = shape.num_hidden_layers, shape.num_nextn_predict_layers
    ratios = shape.compress_ratios
    if len(ratios) != layers + stages:
        raise refuse(
            "compress_ratios",
            ratios,
            f"{layers + stages} entries ({layers} layers and {stages} draft stages), "
            f"not {len(ratios)}",
        )
    for key in ("kv_source_layer_ids", "index_source_layer_ids"):
        _check_layers(key, getattr(shape, key), layers)
    owners = shape.kv_source_layer_ids
    strangers = sorted(set(owners) - set(shape.index_source_layer_ids))
    if strangers:
        raise refuse("kv_source_layer_ids", owners, f"index sources only; {strangers} are not")
    first = owners[0] if owners else layers
    if any(index < first for index in shape.index_source_layer_ids):
        raise refuse(
            "index_source_layer_ids",
            shape.index_source_layer_ids,
            f"layers from the first KV source ({first}) on",
        )
    for layer, ratio in enumerate(ratios):
        _check_ratio(shape, layer, ratio, first)


def _check_ratio(shape: "Shape", layer: int, ratio: int, first: int) -> None:
    key = f"compress_ratios[{layer}]"
    if layer >= shape.num_hidden_layers or layer < first:
        if ratio:
            raise refuse(key, ratio, "0 below the first KV source and for draft stages")
        return
    source = max(owner for owner in shape.kv_source_layer_ids if owner <= layer)
    if ratio not in (1, 2):
        raise refuse(key, ratio, "1 or 2 from the first KV source on")
    if ratio != shape.compress_ratios[source]:
        raise refuse(
            key, ratio, f"{shape.compress_ratios[source]}, the ratio of its KV source {source}"
        )


def _check_candidates(shape: "Shape") -> None:
    source = shape.candidate_source_layer_id
    if source < 0:
        return
    key = "candidate_source_layer_id"
    if source not in shape.index_source_layer_ids:
        raise refuse(key, source, "an index source, or -1 for none")
    if shape.kv_source(source) != shape.kv_source_layer_ids[-1]:
        raise refuse(
            key,
            source,
            "a layer that reads the last compressed cache, as every consumer above it must",
        )
    kept = shape.candidate_topk_blocks * shape.candidate_block_size
    sure = kept - (shape.candidate_block_size - 1)
    if sure < shape.index_topk:
        raise refuse(
            "candidate_topk_blocks",
            shape.candidate_topk_blocks,
            f"enough blocks of {shape.candidate_block_size} to hold index_topk "
            f"{shape.index_topk} visible entries; these hold {sure} for certain",
        )


def _check_engram(shape: "Shape") -> None:
    layers = shape.engram_layer_ids
    _check_layers("engram_layer_ids", layers, shape.num_hidden_layers)
    rows = shape.engram_num_embeddings
    if len(rows) != len(layers):
        raise refuse("engram_num_embeddings", rows, f"{len(layers)} entries, one per Engram layer")
    for layer, count, expected in zip(layers, rows, _table_rows(shape), strict=True):
        if count != expected:
            raise refuse(
                "engram_num_embeddings", count, f"{expected}, the sum of layer {layer}'s primes"
            )
    if shape.engram_compressed_vocab_size > shape.vocab_size:
        raise refuse(
            "engram_compressed_vocab_size",
            shape.engram_compressed_vocab_size,
            f"at most vocab_size {shape.vocab_size}",
        )


def _table_rows(shape: "Shape") -> list[int]:
    """Rows per Engram table: sums of primes that are never handed out twice (3.9)."""
    used: set[int] = set()
    totals = []
    for _ in shape.engram_layer_ids:
        total = 0
        for _ in range(shape.engram_max_ngram_size - 1):
            candidate = shape.engram_vocab_size - 1
            for _ in range(shape.engram_n_heads):
                candidate += 1
                while candidate in used or not _is_prime(candidate):
                    candidate += 1
                used.add(candidate)
                total += candidate
        totals.append(total)
    return totals


def _is_prime(number: int) -> bool:
    if number < 4:
        return number > 1
    if number % 2 == 0:
        return False
    return all(number % odd for odd in range(3, int(number**0.5) + 1, 2))


def _check_experts(shape: "Shape") -> None:
    pairs = {
        "num_experts_per_tok": (shape.num_experts_per_tok, shape.n_routed_experts),
        "dspark_num_experts_per_tok": (shape.draft_top_k, shape.draft_experts),
    }
    for key, (chosen, there) in pairs.items():
        if chosen > there:
            raise refuse(key, chosen, f"at most the {there} experts there are")


def _check_draft(shape: "Shape") -> None:
    if not shape.num_nextn_predict_layers:
        return
    key = "dspark_target_layer_ids"
    _check_layers(key, shape.dspark_target_layer_ids, shape.num_hidden_layers)
    if not shape.dspark_target_layer_ids:
        raise refuse(key, (), "at least one backbone layer")


def _check_ids(shape: "Shape") -> None:
    keys = "bos_token_id eos_token_id pad_token_id engram_pad_token_id dspark_noise_token_id"
    for key in [*keys.split(), "image_token_id"]:
        value = getattr(shape, key)
        if value is not None and value >= shape.vocab_size:
            raise refuse(key, value, f"a token below vocab_size {shape.vocab_size}")


def _check_vision(shape: "Shape") -> None:
    """Vision specification, section 1."""
    tower = shape.vision
    assert tower is not None
    if shape.image_token_id is None:
        raise refuse("image_token_id", None, "the id of the image token when vision_config is set")
    heads = tower.num_attention_heads
    if tower.hidden_size % heads or (tower.hidden_size // heads) % 4:
        raise refuse(
            "vision_config.num_attention_heads", heads, "heads of equal width, a multiple of 4"
        )
    if tower.max_wh_ratio is not None and tower.max_wh_ratio < 1:
        raise refuse("vision_config.max_wh_ratio", tower.max_wh_ratio, "null, or 1 and more")


def _check_layers(key: str, ids: Iterable[int], layers: int) -> None:
    found = tuple(ids)
    if list(found) != sorted(set(found)) or any(layer >= layers for layer in found):
        raise refuse(key, found, f"increasing layer numbers below {layers}")
