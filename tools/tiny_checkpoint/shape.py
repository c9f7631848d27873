"""The sizes of one V4.1-shaped network and the layer roles that follow from them.

In: the `config.json` of a checkpoint. Out: a `Shape`, the configuration of size M.
Does not know: tensors, training.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TEXT_M: dict[str, Any] = {
    "model_type": "deepseek_v41_text", "vocab_size": 2048, "hidden_size": 256,
    "moe_intermediate_size": 128, "num_hidden_layers": 10, "num_attention_heads": 8,
    "num_key_value_heads": 1, "head_dim": 64, "qk_rope_head_dim": 16, "q_lora_rank": 128,
    "o_lora_rank": 64, "o_groups": 4, "hidden_act": "silu", "swiglu_limit": 10.0,
    "rms_norm_eps": 1e-20, "attention_bias": False, "attention_dropout": 0.0,
    "initializer_range": 0.02, "use_cache": True, "tie_word_embeddings": False,
    "max_position_embeddings": 8192, "rope_theta": 10000,
    "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                     "original_max_position_embeddings": 65536},
    "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": True,
    "routed_scaling_factor": 1.5, "sliding_window": 32,
    "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0], "compress_rope_theta": 160000,
    "kv_source_layer_ids": [2, 4, 6], "index_source_layer_ids": [2, 4, 6, 8],
    "index_n_heads": 8, "index_head_dim": 32, "index_topk": 64,
    "candidate_source_layer_id": 6, "candidate_topk_blocks": 16, "candidate_block_size": 8,
    "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-06,
    "engram_layer_ids": [1, 4], "engram_num_embeddings": [], "engram_max_ngram_size": 4,
    "engram_vocab_size": 2000, "engram_n_heads": 4, "engram_head_dim": 32,
    "engram_pad_token_id": 2, "engram_compressed_vocab_size": 0,
    "num_nextn_predict_layers": 3, "dspark_block_size": 5, "dspark_noise_token_id": 0,
    "dspark_target_layer_ids": [7, 8, 9], "dspark_markov_rank": 64,
    "dspark_n_routed_experts": 8, "dspark_num_experts_per_tok": 2,
}
QUANTIZATION: dict[str, Any] = {
    "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0", "expert_dtype": "fp4",
}


@dataclass(frozen=True)
class Shape:
    """Every size the network reads, under short names. The specification's section 1.2."""

    vocab: int
    hidden: int
    inter: int
    layers: int
    heads: int
    head_dim: int
    rope_dim: int
    q_rank: int
    o_rank: int
    o_groups: int
    limit: float
    eps: float
    theta: float
    compress_theta: float
    yarn: tuple[float, float, float, float]
    experts: int
    top_experts: int
    route_scale: float
    window: int
    ratios: tuple[int, ...]
    kv_sources: tuple[int, ...]
    index_sources: tuple[int, ...]
    index_heads: int
    index_dim: int
    index_topk: int
    candidate_layer: int
    candidate_blocks: int
    candidate_size: int
    copies: int
    sinkhorn: int
    hc_eps: float
    engram_layers: tuple[int, ...]
    engram_rows: tuple[int, ...]
    ngram: int
    engram_vocab: int
    engram_heads: int
    engram_dim: int
    engram_pad: int
    compressed_vocab: int
    stages: int
    block: int
    noise: int
    targets: tuple[int, ...]
    markov_rank: int
    draft_experts: int
    draft_top: int

    def kv_source(self, layer: int) -> int:
        """The layer whose compressed cache `layer` reads (specification 1.3)."""
        return max(s for s in self.kv_sources if s <= layer)

    def index_source(self, layer: int) -> int:
        """The layer whose selection `layer` uses (specification 1.3)."""
        return max(s for s in self.index_sources if s <= layer)

    @property
    def gated_sources(self) -> tuple[int, ...]:
        """Compressors with two tokens per entry; only these have a gate (3.6)."""
        return tuple(s for s in self.kv_sources if self.ratios[s] == 2)


def shape_of(text: dict[str, Any]) -> Shape:
    """Read a `text_config`."""
    yarn = text["rope_scaling"]
    return Shape(
        vocab=text["vocab_size"], hidden=text["hidden_size"], inter=text["moe_intermediate_size"],
        layers=text["num_hidden_layers"], heads=text["num_attention_heads"],
        head_dim=text["head_dim"], rope_dim=text["qk_rope_head_dim"], q_rank=text["q_lora_rank"],
        o_rank=text["o_lora_rank"], o_groups=text["o_groups"], limit=text["swiglu_limit"],
        eps=text["rms_norm_eps"], theta=text["rope_theta"],
        compress_theta=text["compress_rope_theta"],
        yarn=(yarn["factor"], yarn["beta_fast"], yarn["beta_slow"],
              yarn["original_max_position_embeddings"]),
        experts=text["n_routed_experts"], top_experts=text["num_experts_per_tok"],
        route_scale=text["routed_scaling_factor"], window=text["sliding_window"],
        ratios=tuple(text["compress_ratios"]), kv_sources=tuple(text["kv_source_layer_ids"]),
        index_sources=tuple(text["index_source_layer_ids"]), index_heads=text["index_n_heads"],
        index_dim=text["index_head_dim"], index_topk=text["index_topk"],
        candidate_layer=text["candidate_source_layer_id"],
        candidate_blocks=text["candidate_topk_blocks"],
        candidate_size=text["candidate_block_size"], copies=text["hc_mult"],
        sinkhorn=text["hc_sinkhorn_iters"], hc_eps=text["hc_eps"],
        engram_layers=tuple(text["engram_layer_ids"]),
        engram_rows=tuple(text["engram_num_embeddings"]), ngram=text["engram_max_ngram_size"],
        engram_vocab=text["engram_vocab_size"], engram_heads=text["engram_n_heads"],
        engram_dim=text["engram_head_dim"], engram_pad=text["engram_pad_token_id"],
        compressed_vocab=text["engram_compressed_vocab_size"],
        stages=text["num_nextn_predict_layers"], block=text["dspark_block_size"],
        noise=text["dspark_noise_token_id"], targets=tuple(text["dspark_target_layer_ids"]),
        markov_rank=text["dspark_markov_rank"], draft_experts=text["dspark_n_routed_experts"],
        draft_top=text["dspark_num_experts_per_tok"],
    )


def read_shape(folder: Path) -> Shape:
    """Read the shape of the checkpoint in `folder`."""
    return shape_of(json.loads((folder / "config.json").read_text())["text_config"])


def config_m(rows: list[int], compressed_vocab: int, noise: int, vocab: int) -> dict[str, Any]:
    """The `config.json` of size M; what depends on the tokenizer is given."""
    text = TEXT_M | {
        "engram_num_embeddings": rows, "engram_compressed_vocab_size": compressed_vocab,
        "dspark_noise_token_id": noise, "vocab_size": vocab,
    }
    return {
        "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41",
        "dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
        "quantization_config": QUANTIZATION, "text_config": text,
    }
