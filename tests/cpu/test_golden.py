"""The model against the official reference code's results."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch
from houses import FOLDER
from safetensors.torch import load_file, save_file

from deepinfer.engine import start
from deepinfer.reference import attention, tensor
from deepinfer.testing import golden
from deepinfer.testing.golden import NoGolden, compare


@pytest.mark.parametrize("accumulate", ["float64", "float32"])
def test_every_recorded_tensor_is_reproduced(accumulate):
    report = compare(FOLDER, "reference", accumulate)
    assert report.is_good, str(report)
    assert "not compared" not in str(report)
    kinds = {line.kind for line in report.lines if line.variant == "f"}
    assert {
        "logits",
        "stream_in",
        "pre_in",
        "stream_out.last",
        "experts",
        "expert_weights",
        "selected",
        "candidates",
        "entries",
        "index_keys",
        "draft.logits",
        "draft.confidence",
        "draft.ids",
        "greedy.ids",
        "greedy.logits",
    } <= kinds
    assert "hashes" in {line.kind for line in report.lines if line.variant == "q"}


def test_a_recorded_tensor_of_unknown_kind_is_a_failure_and_not_a_silence(tmp_path):
    """Every key of the file is compared; one that the tool cannot read is named."""
    folder = tmp_path / "golden"
    shutil.copytree(FOLDER, folder)
    tensors = load_file(folder / golden.EXPECTED) | {"f.len7.something_new": torch.ones(3)}
    save_file(tensors, folder / golden.EXPECTED)
    report = compare(folder, "reference")
    assert not report.is_good
    assert "len7.something_new" in str(report)


@pytest.mark.parametrize("key", ["f.len40.logits", "f.len40.selected.4", "q.len40.stream_in.3"])
def test_a_changed_expectation_is_found(tmp_path, key):
    folder = tmp_path / "golden"
    shutil.copytree(FOLDER, folder)
    tensors = load_file(folder / golden.EXPECTED)
    tensors[key] = tensors[key] + 1
    save_file(tensors, folder / golden.EXPECTED)
    report = compare(folder, "reference")
    assert not report.is_good
    failed = {(line.variant, line.kind.split(" ")[0]) for line in report.lines if line.failed}
    assert (key[0], key.split(".")[2]) in failed


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(NoGolden, match="expected.safetensors"):
        compare(tmp_path, "reference")


def without_sink(house):
    layers = [
        replace(layer, attention=replace(layer.attention, sink=layer.attention.sink - 1e4))
        for layer in house.model.weights.layers
    ]
    house.model.weights = replace(house.model.weights, layers=tuple(layers))


def shifted_positions(house):
    layers = [
        replace(
            layer,
            attention=replace(layer.attention, frequencies=layer.attention.frequencies * 1.01),
        )
        for layer in house.model.weights.layers
    ]
    house.model.weights = replace(house.model.weights, layers=tuple(layers))


def wrong_pad(house):
    house.model.pad += 1


@pytest.mark.parametrize("harm", [without_sink, shifted_positions, wrong_pad])
def test_a_harmed_model_is_found(monkeypatch, harm):
    """The comparison can fail: a lost sink, a wrong frequency, a wrong pad id."""
    whole = start.build

    def harmed(*given, **named):
        house = whole(*given, **named)
        harm(house)
        return house

    monkeypatch.setattr(start, "build", harmed)
    assert not compare(FOLDER, "reference").is_good


def test_the_inverse_rotation_matters(monkeypatch):
    """BL-03: leaving it out is found in the first layer."""
    plain = tensor.rope

    def forward_only(x, positions, frequencies, inverse=False, *, n=tensor.OFFICIAL):
        return x if inverse else plain(x, positions, frequencies, False, n=n)

    monkeypatch.setattr(tensor, "rope", forward_only)
    report = compare(FOLDER, "reference")
    assert not report.is_good
    assert torch.inf not in [line.worst for line in report.lines]


def test_a_lost_open_group_is_found(monkeypatch):
    """The recorded greedy ids are what prefill and decode must give; every second step of a decode
    closes a group whose first token lies in an earlier step."""
    plain = attention.store_open

    def forgetful(cache, rows, kv, gate, *, n=tensor.OFFICIAL):
        plain(cache, rows, 0 * kv, 0 * gate, n=n)

    monkeypatch.setattr(attention, "store_open", forgetful)
    report = compare(FOLDER, "reference")
    failed = {line.kind for line in report.lines if line.failed}
    assert failed == {"greedy.ids"}
