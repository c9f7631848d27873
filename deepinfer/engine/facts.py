"""What kernels may ask about a model: its Shape as plain facts.

In: a Shape. Out: `plugin.Model`. Does not know: any kernel.
"""

from __future__ import annotations

from deepinfer.engine.blocks import Geometry
from deepinfer.model.shape import Shape
from deepinfer.plugin import Facts, Model


def model_facts(shape: Shape, name: str, geometry: Geometry, drafts: bool = False) -> Model:
    """Dims and features of one model; see docs/operators.md for their meaning."""
    features = {"compressed"} if any(shape.compress_ratios) else set()
    features |= {f"ratio{ratio}" for ratio in set(shape.compress_ratios) if ratio}
    features |= {"engram"} if shape.engram_layer_ids else set()
    features |= {"candidates"} if shape.candidate_source_layer_id >= 0 else set()
    features |= {"draft"} if drafts else set()
    return Model(name, Facts(_dims(shape, geometry)), frozenset(features))


def _dims(shape: Shape, geometry: Geometry) -> dict[str, int | tuple[object, ...]]:
    heads = shape.num_attention_heads * shape.head_dim
    index = shape.index_n_heads * shape.index_head_dim
    engram = (shape.hc_mult + 1) * shape.hidden_size, shape.engram_columns * shape.engram_head_dim
    linear = [
        (shape.q_lora_rank + shape.head_dim, shape.hidden_size),
        (heads, shape.q_lora_rank),
        (heads + index, shape.q_lora_rank),
        (shape.hidden_size, shape.o_groups * shape.o_lora_rank),
        (2 * shape.moe_intermediate_size, shape.hidden_size),
        (shape.hidden_size, shape.moe_intermediate_size),
    ]
    linear += [engram] if shape.engram_layer_ids else []
    return {
        "hidden": shape.hidden_size,
        "vocabulary": shape.vocab_size,
        "heads": shape.num_attention_heads,
        "head_dim": shape.head_dim,
        "rope_dim": shape.qk_rope_head_dim,
        "o_groups": shape.o_groups,
        "o_rank": shape.o_lora_rank,
        "copies": shape.hc_mult,
        "sinkhorn_steps": shape.hc_sinkhorn_iters,
        "window": shape.sliding_window,
        "window_rows": geometry.ring,
        "block_tokens": geometry.block_tokens,
        "index_heads": shape.index_n_heads,
        "index_dim": shape.index_head_dim,
        "index_topk": shape.index_topk,
        "candidate_blocks": shape.candidate_topk_blocks,
        "candidate_block_size": shape.candidate_block_size,
        "experts": shape.n_routed_experts,
        "experts_per_token": shape.num_experts_per_tok,
        "expert_hidden": shape.moe_intermediate_size,
        "ngram": shape.engram_max_ngram_size,
        "engram_columns": shape.engram_columns,
        "engram_dim": shape.engram_head_dim,
        "norm_widths": (
            shape.hidden_size,
            shape.q_lora_rank,
            shape.head_dim,
            shape.index_head_dim,
        ),
        "linear_shapes": tuple(linear),
    }
