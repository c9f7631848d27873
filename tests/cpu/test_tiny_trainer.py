"""The trainer of the tiny checkpoint: formats, packing, steps and greedy text."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.tiny_checkpoint import network, quantize
from tools.tiny_checkpoint.export import write_checkpoint
from tools.tiny_checkpoint.generate import PAD_ID, speculate
from tools.tiny_checkpoint.numerics import Numerics
from tools.tiny_checkpoint.optimizer import Optimizer
from tools.tiny_checkpoint.packing import TARGET, pack_rows
from tools.tiny_checkpoint.shape import read_shape
from tools.tiny_checkpoint.steps import BackboneStep, DraftStep
from tools.tiny_checkpoint.weights import read_checkpoint, start_values, stored_values

GOLDEN = Path(__file__).parents[1] / "golden" / "tiny_a"
SHAPE = read_shape(GOLDEN)
COMPRESSED = torch.arange(SHAPE.vocab) // 2
PLAIN = Numerics(torch.float64, torch.float64, activations=False, caches=False, exact=False)


def learned(masters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    for key, value in masters.items():
        value.requires_grad_(not key.endswith("gate.bias"))
    return {key: value for key, value in masters.items() if value.requires_grad}


def test_training_sees_exactly_the_values_that_the_exported_bytes_decode_to(tmp_path):
    """The fakes and the packers must not differ by a single bit."""
    masters = start_values(SHAPE, 5, "cpu")
    write_checkpoint(masters, SHAPE, {}, tmp_path)
    found, wanted = read_checkpoint(tmp_path, SHAPE), stored_values(SHAPE, masters)
    assert [key for key in wanted if not torch.equal(found[key], wanted[key])] == []


def test_a_checkpoint_survives_reading_and_writing(tmp_path):
    """Values that a format holds already are not changed by packing them again."""
    before = read_checkpoint(GOLDEN, SHAPE)
    write_checkpoint(before, SHAPE, {}, tmp_path)
    after = read_checkpoint(tmp_path, SHAPE)
    changed = [key for key in before if not torch.equal(before[key], after[key])]
    assert changed == []


def test_the_fake_quantizers_give_the_values_of_the_specification():
    """Specification 8.3, item 3."""
    ramp = (0.1 * torch.arange(16) - 0.7).bfloat16().float()
    magnitudes = [.5625, .5625, .5625, .421875, .28125, .2109375, .0703125, 0, .0703125,
                  .2109375, .28125, .421875, .5625, .5625, .5625, .84375]
    signs = torch.tensor([-1.0] * 7 + [1.0] * 9)
    assert torch.equal(quantize.q4k(ramp), torch.tensor(magnitudes) * signs)
    both = torch.cat((ramp, 2 * ramp))
    assert torch.equal(quantize.q4i(both) / 0.5, quantize.round_e2m1(both / 0.5))
    assert torch.equal(quantize.q8(both) * 256, quantize.round_e4m3(both * 256))


def test_a_fake_quantizer_passes_gradients_unchanged():
    value = torch.randn(4, 64, requires_grad=True)
    rounded = quantize.straight_through(value, quantize.q8)
    assert torch.equal(rounded, quantize.q8(value))
    rounded.sum().backward()
    assert torch.equal(value.grad, torch.ones(4, 64))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=80))
def test_packing_keeps_every_document_whole_and_at_an_even_place(sizes):
    """Longer documents are cut to a row; nothing else is lost, nothing is doubled."""
    documents = [np.arange(size, dtype=np.uint16) + 3 * (np.arange(size) > 0) for size in sizes]
    ids = np.concatenate(documents)
    rows, marks = pack_rows(ids, np.ones(len(ids), np.uint8), 64)
    begins = np.argwhere(rows == 0)
    assert all(place % 2 == 0 for _, place in begins)
    found = sorted(int(np.argmax(np.append(marks[r, p + 1 :], 0) != TARGET)) + 1
                   for r, p in begins)
    assert found == sorted(min(size, 64) for size in sizes)


def test_training_steps_of_backbone_and_draft_lower_their_losses():
    """Eight steps on one batch; the router's biases move, every gradient is finite."""
    torch.manual_seed(1)
    masters = start_values(SHAPE, 1, "cpu")
    backbone = {k: v for k, v in masters.items() if not k.startswith("mtp.")}
    optimizer = Optimizer(learned(backbone), "cpu")
    optimizer.rate.fill_(5e-3)
    step = BackboneStep(backbone, optimizer, COMPRESSED, SHAPE, 2, 32, dense=False)
    step.speed.fill_(0.002)
    ids = torch.randint(3, 255, (2, 32))
    ids[:, 0] = 0
    marks = torch.full_like(ids, TARGET)
    losses = []
    for _ in range(8):
        step.run(ids, marks)
        losses.append(step.loss.item())
    assert losses[-1] < losses[0] - 0.5
    assert backbone["ffn.gate.bias"].abs().max() > 0
    draft = {k: v for k, v in masters.items() if k.startswith("mtp.")}
    frozen = stored_values(SHAPE, {k: v.detach() for k, v in backbone.items()})
    teacher = DraftStep(frozen, draft, Optimizer(learned(draft), "cpu"), COMPRESSED, SHAPE, 2,
                        32, anchors=16)
    teacher.optimizer.rate.fill_(5e-3)
    losses = []
    for _ in range(4):
        teacher.run(ids, marks)
        losses.append(teacher.loss.item())
    assert losses[-1] < losses[0]


def test_greedy_text_with_drafts_is_plain_greedy_text():
    weights = {k: v.double() for k, v in read_checkpoint(GOLDEN, SHAPE).items()}
    prompts = [[0, 17, 33, 91], [0, 5, 6, 7, 8, 9, 10, 11, 12]]
    answers = speculate(weights, prompts, 9, COMPRESSED, SHAPE, PLAIN)
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = list(prompt)
        for _ in answer.ids:
            padded = ids + [PAD_ID] * (-len(ids) % SHAPE.window)
            packed = network.pack(torch.tensor([padded]), COMPRESSED, SHAPE)
            hidden = network.forward(weights, packed, SHAPE, PLAIN).hidden[len(ids) - 1]
            ids.append(int(network.logits(weights, hidden, PLAIN).argmax()))
        assert ids[len(prompt) :] == answer.ids


def test_without_compressed_attention_nothing_beyond_the_windows_is_seen():
    """The ablation of eval.json: ten windows of eight reach 70 tokens, two Engrams 3 more each."""
    weights = {k: v.double() for k, v in read_checkpoint(GOLDEN, SHAPE).items()}
    torch.manual_seed(3)
    ids = torch.randint(3, 255, (2, 96))
    ids[:, 0] = 0
    ids[1, 1:] = ids[0, 1:]
    ids[1, 5] = (ids[0, 5] + 7) % 250 + 3
    packed = network.pack(ids, COMPRESSED, SHAPE)

    def moved(n: Numerics) -> torch.Tensor:
        hidden = network.forward(weights, packed, SHAPE, n).hidden.unflatten(0, (2, -1))
        return (hidden[0] - hidden[1]).abs().amax(-1)

    assert moved(replace(PLAIN, compressed=False))[82:].max() == 0
    assert moved(PLAIN)[82:].max() > 0
