"""Compares a platform with recorded results of the official reference code.

In: a folder with a checkpoint and `expected.safetensors`. Out: the worst error per kind of tensor.
Does not know: the recorded sizes; lengths and layers are read from the keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from deepinfer.engine import start
from deepinfer.engine.sequence import Entry, Sequence
from deepinfer.engine.start import House, Wish
from deepinfer.errors import ModelError
from deepinfer.model import drafter
from deepinfer.model.attention import Selection
from deepinfer.model.shape import Shape
from deepinfer.model.shards import check
from deepinfer.model.weights import Checkpoint
from deepinfer.ops.table import Traced
from deepinfer.testing.measure import Line, Measure, Report

EXPECTED = "expected.safetensors"


class NoGolden(ModelError):
    """The folder holds no recorded results, or some that this tool cannot read."""


@dataclass
class Recorded:
    """The expected tensors of one variant ("q", "f") and one prompt length."""

    variant: str
    length: int
    ids: list[int]
    tensors: dict[str, Tensor]
    used: set[str] = field(default_factory=set)

    def __getitem__(self, key: str) -> Tensor:
        """An expected tensor; it counts as used from now on."""
        self.used.add(key)
        return self.tensors[key]

    def __contains__(self, key: str) -> bool:
        return key in self.tensors


def compare(folder: str | Path, platform: str, accumulate: str = "float64") -> Report:
    """Runs every recorded case on a platform.

    Variant "f" (nothing rounded) runs end to end, in `accumulate`; variant "q" (official rounding)
    layer by layer on the recorded streams, because rounding is chaotic over layers.
    """
    folder = Path(folder)
    file = folder / EXPECTED
    if not file.is_file():
        raise NoGolden(f"{folder}: no {EXPECTED}; give a folder laid out like tests/golden/tiny_a")
    tensors = load_file(file)
    report = check(folder, tokenizer=False)
    report.raise_if_bad()
    shape = Shape.load(folder)
    cases = list(_cases(tensors))
    if not cases:
        raise NoGolden(f"{file}: no key of the form len<N>.ids")
    lines: list[Line] = []
    for variant, rounding in (("f", "none"), ("q", "official")):
        mine = [case for case in cases if case.variant == variant]
        if not mine:
            continue
        width = accumulate if variant == "f" else "float32"
        modes = {"rounding": rounding, "accumulate": width, "selection": "release"}
        longest = max(case.length for case in mine) + 64
        drafts = report.has_draft
        wish = Wish(folder.name, platform, 2, 2 * longest, longest, modes, drafts=drafts)
        planned = start.plan(shape, wish)
        with Checkpoint(folder, shape, report=report) as checkpoint:
            house = start.build(planned, checkpoint, _pairs(shape))
        measure = Measure(variant, width)
        run = _end_to_end if variant == "f" else _layer_by_layer
        with torch.inference_mode():
            for case in mine:
                run(house, case, measure)
                for key in sorted(set(case.tensors) - case.used):
                    measure.left_out(f"len{case.length}.{key}")
        lines += measure.lines(planned.plan.id)
    return Report(str(folder), platform, tuple(lines))


def _pairs(shape: Shape) -> list[int]:
    """There is no tokenizer: the compressed id is half the id (README of the golden data)."""
    return [number // 2 for number in range(shape.vocab_size)]


def _cases(tensors: dict[str, Tensor]) -> Iterable[Recorded]:
    lengths = sorted(int(m[1]) for key in tensors if (m := re.fullmatch(r"len(\d+)\.ids", key)))
    for variant in ("f", "q"):
        for length in lengths:
            begin = f"{variant}.len{length}."
            greedy = f"{variant}.greedy_from_len{length}."
            found = {k.removeprefix(begin): t for k, t in tensors.items() if k.startswith(begin)}
            found |= {
                "greedy." + key.removeprefix(greedy): value
                for key, value in tensors.items()
                if key.startswith(greedy)
            }
            if found:
                yield Recorded(variant, length, tensors[f"len{length}.ids"].tolist(), found)


class Recorder:
    """Collects what operators return, in call order, through the table's tracing."""

    def __init__(self) -> None:
        self.results: dict[str, list[Any]] = {}

    def __call__(self, call: Traced) -> None:
        self.results.setdefault(call.op, []).append(call.result)

    def of(self, op: str) -> list[Any]:
        return self.results.get(op, [])


def _begin(house: House, case: Recorded) -> tuple[Sequence, Any]:
    blocks = list(range(1, house.planned.geometry.blocks))
    sequence = Sequence(list(case.ids), 0, blocks)
    return sequence, house.tray.batch([Entry(sequence, 0, case.length, case.length)])


def _end_to_end(house: House, case: Recorded, measure: Measure) -> None:
    sequence, batch = _begin(house, case)
    model, recorder = house.model, Recorder()
    selection, features = Selection(), []
    with house.table.traced(recorder):
        stream, pre = model.begin(batch.ids)
        for number, layer in enumerate(model.weights.layers):
            _streams(case, measure, number, stream, pre)
            stream = model.remember(layer, stream, batch.at(number))
            if number in model.shape.dspark_target_layer_ids:
                features.append(house.table.tensor_mean_copies(stream) if house.drafter else stream)
            stream, pre = model.block(layer, stream, pre, batch, house.caches, selection)
        logits = model.end(stream, pre, batch.wanted)
    _expect(case, measure, "stream_out.last", stream)
    _expect(case, measure, "logits", logits)
    _choices(house, case, measure, recorder, sequence)
    if house.drafter is not None and "draft.logits" in case:
        drafter.keep_context(house.drafter, model, torch.cat(features, -1), batch, house.caches)
        _drafts(house, case, measure, int(logits[-1].argmax()))
    if "greedy.ids" in case:
        _greedy(house, case, measure)


def _layer_by_layer(house: House, case: Recorded, measure: Measure) -> None:
    """Each layer on the recorded stream at its entry; caches fill from the same streams."""
    sequence, batch = _begin(house, case)
    model, recorder = house.model, Recorder()
    selection, features = Selection(), []
    count = len(model.weights.layers)
    if "stream_in.0" not in case:
        with measure.reporting("hashes"):  # nothing to feed the layers with: chaotic, so no limits
            _end_to_end(house, case, measure)
        return
    with house.table.traced(recorder):
        for number, layer in enumerate(model.weights.layers):
            stream, pre = case[f"stream_in.{number}"], case[f"pre_in.{number}"]
            stream = model.remember(layer, stream, batch.at(number))
            if house.drafter is not None and number in model.shape.dspark_target_layer_ids:
                features.append(house.table.tensor_mean_copies(stream))
            stream, pre = model.block(layer, stream, pre, batch, house.caches, selection)
            if number + 1 < count:
                _streams(case, measure, number + 1, stream, pre)
            else:
                _expect(case, measure, "stream_out.last", stream)
    _choices(house, case, measure, recorder, sequence)
    if house.drafter is not None and "draft.logits" in case:
        drafter.keep_context(house.drafter, model, torch.cat(features, -1), batch, house.caches)
        _drafts(house, case, measure, int(case["draft.token"]))
    logits = model.forward(batch, house.caches).logits
    with measure.reporting():
        _expect(case, measure, "logits", logits)


def _expect(case: Recorded, measure: Measure, key: str, found: Tensor) -> None:
    if key in case:
        measure.close(re.sub(r"\.\d+$", "", key), f"len{case.length}.{key}", found, case[key])


def _streams(case: Recorded, measure: Measure, layer: int, stream: Tensor, pre: Tensor) -> None:
    _expect(case, measure, f"stream_in.{layer}", stream)
    _expect(case, measure, f"pre_in.{layer}", pre)


def _choices(
    house: House, case: Recorded, measure: Measure, recorder: Recorder, sequence: Sequence
) -> None:
    """Experts, selections, candidates, hashes, and what the caches hold."""
    shape = house.planned.shape
    for layer, (experts, weights) in enumerate(recorder.of("tensor.route")):
        _equal(case, measure, f"experts.{layer}", experts)
        _expect(case, measure, f"expert_weights.{layer}", weights)
    sources = shape.index_source_layer_ids
    for layer, selected in zip(sources, recorder.of("attention.index_topk"), strict=True):
        _equal(case, measure, f"selected.{layer}", selected)
    for blocks in recorder.of("attention.candidate_blocks"):
        _candidates(case, measure, shape, blocks)
    hashes = recorder.of("tensor.hash_lookup")
    if hashes:
        _equal(case, measure, "hashes", torch.stack(hashes, 1))
    for layer in shape.kv_source_layer_ids:
        per_block = house.planned.geometry.block_tokens // shape.ratio(layer)
        number = torch.arange(case.length // shape.ratio(layer))
        rows = torch.tensor(sequence.blocks)[number // per_block] * per_block + number % per_block
        entries = house.table.attention_load_entries(house.caches.entries[layer], rows)
        _expect(case, measure, f"entries.{layer}", entries)
        keys = house.table.attention_load_index(house.caches.index[layer], rows)
        _expect(case, measure, f"index_keys.{layer}", keys)


def _equal(case: Recorded, measure: Measure, key: str, found: Tensor) -> None:
    if key in case:
        want = case[key]
        if found.shape[-1] > want.shape[-1] and bool((found[..., want.shape[-1] :] == -1).all()):
            found = found[..., : want.shape[-1]]  # a prompt shorter than the top-k records less
        measure.equal(re.sub(r"\.\d+$", "", key), f"len{case.length}.{key}", found, want)


def _candidates(case: Recorded, measure: Measure, shape: Shape, blocks: Tensor) -> None:
    key = f"candidates.{shape.candidate_source_layer_id}"
    if key not in case:
        return
    entry = torch.arange(case[key].shape[1])
    inside = (entry[:, None] // shape.candidate_block_size == blocks[:, None]).any(-1)
    visible = (torch.arange(case.length)[:, None] + 1) // shape.ratio(
        shape.candidate_source_layer_id
    )
    # an entry that is not visible cannot be selected, in whichever block it lies
    want = case[key] & (entry < visible)
    measure.equal("candidates", f"len{case.length}.{key}", inside & (entry < visible), want)


def _drafts(house: House, case: Recorded, measure: Measure, token: int) -> None:
    assert house.drafter is not None
    shape = house.planned.shape
    blocks = list(range(1, house.planned.geometry.blocks))
    after = Sequence([*case.ids, token], 0, blocks)
    batch = house.tray.draft_batch([Entry(after, case.length, 1, 0)], shape.dspark_noise_token_id)
    drafts = drafter.draft(house.drafter, house.model, batch, house.caches)
    _equal(case, measure, "draft.token", torch.tensor([token]))
    _expect(case, measure, "draft.base_logits", drafts.base_logits[0])
    _expect(case, measure, "draft.logits", drafts.logits[0])
    _expect(case, measure, "draft.confidence", drafts.confidence[0])
    _equal(case, measure, "draft.ids", drafts.ids[0])


def _greedy(house: House, case: Recorded, measure: Measure) -> None:
    """Prefill, then one token a step, gives the recorded ids. The recorded logits come from a fresh
    prefill for each token; the library resolves exact ties of index scores by the length of the
    row, so the logits are compared with fresh prefills and the decode's error is reported."""
    want = case["greedy.ids"].tolist()

    def step(sequence: Sequence, first: int) -> Tensor:
        entry = Entry(sequence, first, len(sequence.tokens) - first, 1)
        return house.model.forward(house.tray.batch([entry]), house.caches).logits

    half = house.planned.geometry.blocks // 2
    growing = Sequence(list(case.ids), 1, list(range(1, half)))
    afresh = Sequence(list(case.ids), 0, list(range(half, 2 * half - 1)))
    first, decoded, prefilled = 0, [], []
    for token in want:
        prefilled.append(step(afresh, 0))
        decoded.append(step(growing, first))
        first = len(growing.tokens)
        growing.tokens.append(token)
        afresh.tokens.append(token)
    _equal(case, measure, "greedy.ids", torch.cat(decoded).argmax(-1))
    _expect(case, measure, "greedy.logits", torch.cat(prefilled))
    with measure.reporting():
        measure.close("greedy.logits", "decoded", torch.cat(decoded), case["greedy.logits"])
