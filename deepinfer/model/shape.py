"""The numbers of one DeepSeek-V4.1 model: how many layers, how wide, who shares what with whom.

In: config.json. Out: a frozen Shape that every other module reads.
Does not know: torch, tensor names, devices.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from deepinfer.model import limits
from deepinfer.model.config import read_json, read_values

Mode = Literal["window", "full", "reindex", "reuse"]


@dataclass(frozen=True)
class VisionShape:
    """Keys of `vision_config` (vision specification, section 1)."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    patch_size: int
    rope_theta: float
    downsample_ratio: int
    max_image_tokens: int
    min_pixels: int
    max_wh_ratio: float | None


@dataclass(frozen=True)
class Shape:
    """Keys of `text_config` under their own names (backbone specification, section 1).

    Layers are numbered as in the checkpoint; the draft stages follow the backbone, so the
    questions about a layer answer "window" for `num_hidden_layers` and above.
    """

    vocab_size: int
    hidden_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    hidden_act: str
    swiglu_limit: float
    rms_norm_eps: float
    max_position_embeddings: int
    rope_theta: float
    rope_factor: float
    rope_beta_fast: float
    rope_beta_slow: float
    rope_original_positions: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    scoring_func: str
    topk_method: str
    norm_topk_prob: bool
    routed_scaling_factor: float
    sliding_window: int
    compress_ratios: tuple[int, ...]
    compress_rope_theta: float
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source_layer_id: int
    candidate_topk_blocks: int
    candidate_block_size: int
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    engram_layer_ids: tuple[int, ...]
    engram_num_embeddings: tuple[int, ...]
    engram_max_ngram_size: int
    engram_vocab_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_pad_token_id: int
    engram_compressed_vocab_size: int
    num_nextn_predict_layers: int
    dspark_block_size: int
    dspark_noise_token_id: int
    dspark_target_layer_ids: tuple[int, ...]
    dspark_markov_rank: int
    dspark_n_routed_experts: int
    dspark_num_experts_per_tok: int
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    image_token_id: int | None = None
    weight_block_size: tuple[int, int] = (32, 32)
    vision: VisionShape | None = None

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Shape":
        """The shape of a parsed config.json; a `ConfigError` names what cannot be computed."""
        text, vision = read_values(config)
        own = {field.name for field in fields(cls)}
        shape = cls(
            **{key: value for key, value in text.items() if key in own},
            vision=None if vision is None else _tower(vision),
        )
        limits.check(shape)
        return shape

    @classmethod
    def load(cls, folder: str | Path) -> "Shape":
        """The shape of the checkpoint in `folder`."""
        return cls.from_config(read_json(Path(folder) / "config.json"))

    @property
    def has_vision(self) -> bool:
        return self.vision is not None

    @property
    def kv_sources(self) -> tuple[int, ...]:
        """Layers that own a compressor, a compressed cache and index keys."""
        return self.kv_source_layer_ids

    @property
    def groups(self) -> tuple[range, ...]:
        """Runs of layers that share one compressed cache; window-only layers come first."""
        starts = sorted({0, *self.kv_source_layer_ids})
        ends = [*starts[1:], self.num_hidden_layers]
        return tuple(range(a, b) for a, b in zip(starts, ends, strict=True))

    @property
    def engram_columns(self) -> int:
        """Table rows that one token reads per Engram layer: n-gram sizes times heads."""
        return (self.engram_max_ngram_size - 1) * self.engram_n_heads

    @property
    def draft_experts(self) -> int:
        return self.dspark_n_routed_experts

    @property
    def draft_top_k(self) -> int:
        return self.dspark_num_experts_per_tok

    def ratio(self, layer: int) -> int:
        """Tokens per entry of the compressed cache that `layer` reads; 0: it reads none."""
        return self.compress_ratios[layer]

    def kv_source(self, layer: int) -> int | None:
        """The layer whose compressed cache `layer` reads (specification 1.3)."""
        return self._source(self.kv_source_layer_ids, layer)

    def index_source(self, layer: int) -> int | None:
        """The layer whose selection `layer` uses."""
        return self._source(self.index_source_layer_ids, layer)

    def owns_kv(self, layer: int) -> bool:
        return layer in self.kv_source_layer_ids

    def owns_index(self, layer: int) -> bool:
        return layer in self.index_source_layer_ids

    def is_candidate_source(self, layer: int) -> bool:
        return layer == self.candidate_source_layer_id

    def uses_candidates(self, layer: int) -> bool:
        """An index source above the candidate source scores only inside its blocks."""
        return self.owns_index(layer) and 0 <= self.candidate_source_layer_id < layer

    def mode(self, layer: int) -> Mode:
        if self.ratio(layer) == 0:
            return "window"
        if self.owns_kv(layer):
            return "full"
        return "reindex" if self.owns_index(layer) else "reuse"

    def has_engram(self, layer: int) -> bool:
        return layer in self.engram_layer_ids

    def engram_rows(self, layer: int) -> int:
        """Rows of the table of an Engram layer."""
        return self.engram_num_embeddings[self.engram_layer_ids.index(layer)]

    def _source(self, sources: tuple[int, ...], layer: int) -> int | None:
        if self.ratio(layer) == 0:
            return None
        return max(source for source in sources if source <= layer)


def _tower(values: dict[str, Any]) -> VisionShape:
    own = {field.name for field in fields(VisionShape)}
    return VisionShape(**{key: value for key, value in values.items() if key in own})
