"""Reads config.json key by key and refuses what this engine does not compute.

In: the parsed JSON. Out: plain values, checked for type and meaning of each single key.
Does not know: how the values fit together (limits.py), tensors.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from deepinfer.errors import ModelError

Values = dict[str, Any]
Rule = Callable[[str, Any], Any]


class ConfigError(ModelError):
    """config.json asks for something this engine does not compute, or is damaged."""


def refuse(key: str, value: Any, supported: str) -> ConfigError:
    return ConfigError(f"config.json: {key} is {value!r}; supported: {supported}")


def whole(low: int) -> Rule:
    def rule(key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 2**63:
            raise refuse(key, value, f"a whole number, {low} or more")
        return value

    return rule


def real(low: float) -> Rule:
    def rule(key: str, value: Any) -> float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value <= low:
            raise refuse(key, value, f"a finite number above {low}")
        return float(value)

    return rule


def wholes(low: int) -> Rule:
    def rule(key: str, value: Any) -> tuple[int, ...]:
        if not isinstance(value, list):
            raise refuse(key, value, "a list of whole numbers")
        return tuple(whole(low)(f"{key}[{i}]", item) for i, item in enumerate(value))

    return rule


def only(*supported: Any) -> Rule:
    def rule(key: str, value: Any) -> Any:
        # True == 1 in Python, but "norm_topk_prob": 1 is not what the release writes
        if not any(value == item and type(value) is type(item) for item in supported):
            raise refuse(key, value, " or ".join(json.dumps(item) for item in supported))
        return value

    return rule


def anything(key: str, value: Any) -> Any:
    return value


def optional(rule: Rule) -> Rule:
    def accept(key: str, value: Any) -> Any:
        return None if value is None else rule(key, value)

    return accept


TOP: dict[str, Rule] = {
    "model_type": only("deepseek_v41"),
    "architectures": only(["DeepseekV41ForCausalLM"]),
    "bos_token_id": whole(0),
    "eos_token_id": whole(0),
    "pad_token_id": whole(0),
    "quantization_config": anything,
    "text_config": anything,
}
TOP_OPTIONAL: dict[str, Rule] = {
    "image_token_id": optional(whole(0)),
    "vision_config": anything,
    "tie_word_embeddings": only(False),
}

TEXT: dict[str, Rule] = {
    "model_type": only("deepseek_v41_text"),
    "vocab_size": whole(1),
    "hidden_size": whole(1),
    "moe_intermediate_size": whole(1),
    "num_hidden_layers": whole(1),
    "num_attention_heads": whole(1),
    "num_key_value_heads": only(1),
    "head_dim": whole(1),
    "qk_rope_head_dim": whole(2),
    "q_lora_rank": whole(1),
    "o_lora_rank": whole(1),
    "o_groups": whole(1),
    "hidden_act": only("silu"),
    "swiglu_limit": real(0.0),
    "rms_norm_eps": real(0.0),
    "attention_bias": only(False),
    "tie_word_embeddings": only(False),
    "max_position_embeddings": whole(1),
    "rope_theta": real(0.0),
    "rope_scaling": anything,
    "n_routed_experts": whole(1),
    "n_shared_experts": only(1),
    "num_experts_per_tok": whole(1),
    "scoring_func": only("sqrtsoftplus"),
    "topk_method": only("noaux_tc"),
    "norm_topk_prob": only(True),
    "routed_scaling_factor": real(0.0),
    "sliding_window": whole(1),
    "compress_ratios": wholes(0),
    "compress_rope_theta": real(0.0),
    "kv_source_layer_ids": wholes(0),
    "index_source_layer_ids": wholes(0),
    "index_n_heads": whole(1),
    "index_head_dim": whole(1),
    "index_topk": whole(1),
    "candidate_source_layer_id": whole(-(2**31)),
    "candidate_topk_blocks": whole(1),
    "candidate_block_size": whole(1),
    "hc_mult": whole(1),
    "hc_sinkhorn_iters": whole(1),
    "hc_eps": real(0.0),
    "engram_layer_ids": wholes(0),
    "engram_num_embeddings": wholes(1),
    "engram_max_ngram_size": whole(2),
    "engram_vocab_size": whole(2),
    "engram_n_heads": whole(1),
    "engram_head_dim": whole(1),
    "engram_pad_token_id": whole(0),
    "engram_compressed_vocab_size": whole(1),
    "num_nextn_predict_layers": whole(0),
    "dspark_block_size": whole(1),
    "dspark_noise_token_id": whole(0),
    "dspark_target_layer_ids": wholes(0),
    "dspark_markov_rank": whole(1),
    "dspark_n_routed_experts": whole(1),
    "dspark_num_experts_per_tok": whole(1),
}
# Written by relatives of this model; only the value that changes nothing is accepted.
TEXT_OPTIONAL: dict[str, Rule] = {
    "attention_dropout": anything,
    "n_group": only(1, None),
    "topk_group": only(1, None),
    "first_k_dense_replace": only(0),
    "moe_layer_freq": only(1),
    "num_hash_layers": only(0),
}
ROPE_SCALING: dict[str, Rule] = {
    "rope_type": only("yarn"),
    "factor": real(0.0),
    "beta_fast": real(0.0),
    "beta_slow": real(0.0),
    "original_max_position_embeddings": whole(1),
}
QUANTIZATION: dict[str, Rule] = {
    "quant_method": only("fp8"),
    "activation_scheme": only("dynamic"),
    "weight_block_size": only([32, 32]),
    "scale_fmt": only("ue8m0"),
    "expert_dtype": only("fp4"),
}
VISION: dict[str, Rule] = {
    "model_type": only("deepseek_v41_vision"),
    "num_hidden_layers": whole(1),
    "hidden_size": whole(1),
    "num_attention_heads": whole(1),
    "intermediate_size": whole(1),
    "patch_size": whole(1),
    "rope_theta": real(0.0),
    "downsample_ratio": whole(1),
    "max_image_tokens": whole(1),
    "min_pixels": whole(1),
    "max_wh_ratio": optional(real(0.0)),
}
# Notes of the writing library and training settings: no effect on inference.
NEUTRAL = frozenset(
    (
        "transformers_version",
        "dtype",
        "torch_dtype",
        "initializer_range",
        "use_cache",
        "auto_map",
        "_name_or_path",
    )
)


def select(
    section: str,
    found: Any,
    required: Mapping[str, Rule],
    optional_keys: Mapping[str, Rule] | None = None,
) -> Values:
    """The values of one section of the file, each checked by the rule of its key."""
    extra = optional_keys or {}
    prefix = f"{section}." if section else ""
    if not isinstance(found, Mapping):
        raise refuse(section or "the file", found, "a JSON object")
    missing = [prefix + key for key in required if key not in found]
    if missing:
        raise ConfigError(
            f"config.json: {', '.join(missing)} missing; "
            "every key of an official DeepSeek-V4.1 config.json is needed"
        )
    values: Values = {}
    for key, value in found.items():
        rule = required.get(key) or extra.get(key)
        if rule is not None:
            values[key] = rule(prefix + key, value)
        elif key not in NEUTRAL:
            known = ", ".join(sorted([*required, *extra]))
            raise refuse(prefix + key, value, f"no such key; known here: {known}")
    return values


def read_values(config: Any) -> tuple[Values, Values | None]:
    """(values of the language model under their own names, values of the vision tower)."""
    top = select("", config, TOP, TOP_OPTIONAL)
    text = select("text_config", top["text_config"], TEXT, TEXT_OPTIONAL)
    rope = select("text_config.rope_scaling", text.pop("rope_scaling"), ROPE_SCALING)
    quantization = select("quantization_config", top["quantization_config"], QUANTIZATION)
    text.update(
        rope_factor=rope["factor"],
        rope_beta_fast=rope["beta_fast"],
        rope_beta_slow=rope["beta_slow"],
        rope_original_positions=rope["original_max_position_embeddings"],
        weight_block_size=tuple(quantization["weight_block_size"]),
        image_token_id=top.get("image_token_id"),
    )
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        text[key] = top[key]
    vision = top.get("vision_config")
    return text, None if vision is None else select("vision_config", vision, VISION)


def read_json(path: Path) -> Any:
    """Parsed JSON of a small file; a key written twice is damage, not a choice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [key for key, _ in pairs]
            twice = sorted({key for key in names if names.count(key) > 1})
            raise ConfigError(f"{path}: key written twice: {', '.join(twice)}")
        return found

    if not path.is_file():
        raise ConfigError(f"{path} is missing; every checkpoint folder has this file")
    try:
        return json.loads(path.read_bytes().decode("utf-8"), object_pairs_hook=once)
    except (ValueError, RecursionError) as reason:
        raise ConfigError(f"{path} is not valid JSON: {reason}; copy the file again") from reason
    except OSError as reason:
        raise ConfigError(f"{path} cannot be read: {reason.strerror}") from reason
