"""Shape and inventory: the checkpoint's tensors from config.json alone."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path

import pytest

from deepinfer.model.config import ConfigError
from deepinfer.model.inventory import inventory
from deepinfer.model.memory import needed_bytes
from deepinfer.model.shape import Shape

TESTS = Path(__file__).parents[1]
OFFICIAL = json.loads((TESTS / "data" / "official_config.json").read_text())
TINY = json.loads((TESTS / "golden" / "tiny_a" / "config.json").read_text())


def test_the_official_config_has_the_published_digest():
    """Backbone 8.3 item 1: two-space indentation, one newline, 3,311 bytes."""
    text = json.dumps(OFFICIAL, indent=2) + "\n"
    assert len(text.encode()) == 3311
    digest = "8be45ce0476004a3f529fd896115a4a2e800a129ad2d3ec05b16050f52e21879"
    assert hashlib.sha256(text.encode()).hexdigest() == digest


def test_the_official_inventory_has_the_published_names_and_bytes():
    specs = inventory(Shape.from_config(OFFICIAL))
    assert len(specs) == 96085
    assert sum(spec.bytes for spec in specs.values()) == 510_286_023_000


def test_the_parts_of_the_official_checkpoint_have_the_published_bytes():
    """Backbone 7.1."""
    specs = inventory(Shape.from_config(OFFICIAL))
    draft = sum(s.bytes for name, s in specs.items() if name.startswith("mtp."))
    tables = sum(s.bytes for name, s in specs.items() if ".engram.embed." in name)
    experts = sum(
        s.bytes for n, s in specs.items() if n.startswith("layers.") and ".ffn.experts." in n
    )
    vision = [s for s in specs.values() if s.part in ("vision", "special")]
    assert draft == 7_932_874_632
    assert tables == 202_758_032_400
    assert experts == 288_777_830_400
    assert sum(spec.bytes for spec in vision) == 970_536_960
    assert len(vision) == 266  # the tower, its aligner and three rows


def test_the_layers_have_the_roles_of_the_specification():
    """Backbone 1.3."""
    shape = Shape.from_config(OFFICIAL)
    modes = [shape.mode(layer) for layer in range(40)]
    assert [i for i, mode in enumerate(modes) if mode == "full"] == [2, 8, 14, 20]
    assert [i for i, mode in enumerate(modes) if mode == "reindex"] == [24, 28, 32, 36]
    assert modes[:2] == ["window", "window"]
    assert (shape.kv_source(39), shape.index_source(39)) == (20, 36)
    assert shape.kv_source(1) is None
    assert shape.is_candidate_source(20)
    assert [i for i in range(40) if shape.uses_candidates(i)] == [24, 28, 32, 36]
    assert [i for i in range(40) if shape.has_engram(i)] == [1, 14]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("scoring_func", "softmax"),
        ("topk_method", "greedy"),
        ("attention_bias", True),
        ("tie_word_embeddings", True),
        ("hidden_act", "gelu"),
        ("hidden_size", 100),
        ("num_attention_heads", 0),
        ("compress_ratios", [0, 0, 2]),
        ("o_groups", 3),
        ("index_topk", 64),
        ("kv_source_layer_ids", [2, 40]),
        ("hidden_size", "128"),
        ("compress_ratios", [0, 0, 2, 2, 2, 2, 1, 1, 1, 3, 0, 0]),
        ("n_routed_experts", -1),
        ("engram_num_embeddings", [384, 553]),
        ("no_such_key", 1),
        ("num_experts_per_tok", 9),
    ],
)
def test_a_config_that_cannot_be_computed_is_refused_with_key_and_value(key, value):
    config = copy.deepcopy(TINY)
    config["text_config"][key] = value
    with pytest.raises(ConfigError) as refused:
        Shape.from_config(config)
    assert "config.json" in str(refused.value)
    named = {"index_topk": "candidate"}.get(key, key)
    assert named in str(refused.value)


def test_a_missing_key_is_named():
    config = copy.deepcopy(TINY)
    del config["text_config"]["sliding_window"]
    with pytest.raises(ConfigError, match="sliding_window"):
        Shape.from_config(config)


def test_the_loaded_bytes_of_the_official_model_count_what_the_release_widens():
    """Backbone 2.4: the head in FP32 and wo_a in BF16 take more than they do in the files."""
    shape = Shape.from_config(OFFICIAL)
    text = sum(s.bytes for s in inventory(shape).values() if s.part not in ("vision", "special"))
    wo_a = 43 * 8192 * 4096
    head = 129280 * 5120 * 2
    assert needed_bytes(shape) > text + wo_a + head
    assert needed_bytes(shape) < 1.02 * text
