"""The network that trains the tiny checkpoint computes what the official reference computes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tools.tiny_checkpoint import drafter, network
from tools.tiny_checkpoint.numerics import Numerics
from tools.tiny_checkpoint.shape import read_shape
from tools.tiny_checkpoint.weights import read_checkpoint

GOLDEN = Path(__file__).parents[1] / "golden" / "tiny_a"
SHAPE = read_shape(GOLDEN)
EXPECTED = load_file(GOLDEN / "expected.safetensors")
# CPU top-k breaks a tie as the reference did; the stable lowest-index rule would not
PLAIN = Numerics(torch.float64, torch.float64, activations=False, caches=False, exact=False)
COMPRESSED = torch.arange(SHAPE.vocab) // 2


def weights_in(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {key: value.to(dtype) for key, value in read_checkpoint(GOLDEN, SHAPE).items()}


def packed(length: int) -> network.Packed:
    """The prompt, padded to whole windows; documents begin at position 0 only."""
    ids = EXPECTED[f"len{length}.ids"].long()
    whole = -(-length // SHAPE.window) * SHAPE.window
    padded = torch.nn.functional.pad(ids, (0, whole - length), value=2)[None]
    result = network.pack(padded, COMPRESSED, SHAPE)
    if (padded[0, 1:] == 0).any():  # random ids contain the begin token inside the prompt
        start = torch.zeros_like(padded)
        hashes = network.engram.hash_rows(padded, start, COMPRESSED, SHAPE).flatten(0, 1)
        result = replace(result, start=start, hashes=hashes)
    return result


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.detach() - want).abs().max() / want.square().mean().sqrt())


@pytest.mark.parametrize("length", [1, 7, 40, 200])
def test_the_training_network_matches_the_reference_in_float64(length):
    """Logits, streams, selections and experts of the variant without quantizers."""
    batch = packed(length)
    weights = weights_in(torch.float64)
    result = network.forward(weights, batch, SHAPE, PLAIN, trace=True)
    got = network.logits(weights, result.hidden, PLAIN)[:length]
    want = EXPECTED[f"f.len{length}.logits"].double()
    assert (got - want).abs().max() < 2e-5
    for layer in range(SHAPE.layers):
        if length <= 40:
            stream = result.trace[f"stream_in.{layer}"][:length]
            assert relative(stream, EXPECTED[f"f.len{length}.stream_in.{layer}"].double()) < 1e-5
        chosen = result.trace[f"routing.{layer}"][:length]
        experts = EXPECTED[f"f.len{length}.experts.{layer}"].long()
        amounts = EXPECTED[f"f.len{length}.expert_weights.{layer}"].double()
        assert relative(chosen.gather(1, experts), amounts) < 1e-5
    for layer in SHAPE.index_sources if length > 1 else ():  # one token: nothing to select from
        selected = EXPECTED[f"f.len{length}.selected.{layer}"].long()
        mask = result.trace[f"seen.{layer}"][0, :length]
        want_mask = torch.zeros(length, mask.shape[1] + 1, dtype=torch.bool)
        want_mask.scatter_(1, selected % (mask.shape[1] + 1), True)
        assert torch.equal(mask, want_mask[:, :-1])


@pytest.mark.parametrize("length", [7, 40, 200])
def test_a_draft_call_matches_the_reference_in_float64(length):
    """Token, base logits, logits with the Markov term, confidence and drafted ids."""
    batch = packed(length)
    weights = weights_in(torch.float64)
    result = network.forward(weights, batch, SHAPE, PLAIN)
    token = network.logits(weights, result.hidden[length - 1], PLAIN).argmax()
    prefix = f"f.len{length}.draft."
    assert token == EXPECTED[prefix + "token"][0]
    hidden = drafter.draft_hidden(weights, result.features, batch, torch.tensor([length - 1]),
                                  token[None], SHAPE, PLAIN)
    ids, base, full, sure = drafter.propose(weights, hidden, token[None], SHAPE, PLAIN)
    assert torch.equal(ids[0], EXPECTED[prefix + "ids"].long())
    for got, name in ((base, "base_logits"), (full, "logits"), (sure, "confidence")):
        assert (got[0] - EXPECTED[prefix + name].double()).abs().max() < 2e-5


@pytest.mark.parametrize("length", [1, 7, 40])
def test_the_quantized_network_stays_near_the_reference_until_rounding_chaos(length):
    """Official numerics: the first layers agree almost everywhere, bit for bit."""
    batch = packed(length)
    weights = weights_in(torch.float32)
    result = network.forward(weights, batch, SHAPE, Numerics(), trace=True)
    for layer in range(3):
        got = result.trace[f"stream_in.{layer}"][:length].float()
        want = EXPECTED[f"q.len{length}.stream_in.{layer}"].float()
        assert (got != want).float().mean() < 0.02
        assert relative(got, want) < 0.05


def test_packed_documents_do_not_see_each_other():
    """A document behind another gives the logits it gives alone."""
    weights = weights_in(torch.float64)
    torch.manual_seed(2)
    first, second = torch.randint(3, 255, (2, 23)).tolist()
    rows = [[0, *first, 0, *second], [0, *second] + [2] * 24]
    result = network.forward(weights, network.pack(torch.tensor(rows), COMPRESSED, SHAPE),
                             SHAPE, PLAIN, dense=True)
    hidden = result.hidden.unflatten(0, (2, -1))
    assert (hidden[0, 24:48] - hidden[1, :24]).abs().max() < 1e-5  # angles are FP32
