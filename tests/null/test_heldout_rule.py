"""What a test may ask is never trained: the split is by content, whatever the seed."""

import json
import re
from itertools import islice
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import raises

from tools.tiny_checkpoint import arithmetic, facts, records
from tools.tiny_checkpoint.corpus import UnknownFamilyError, mixture
from tools.tiny_checkpoint.heldout import (
    is_code_held_out,
    is_held_out,
    is_pair_held_out,
    is_sum_held_out,
)
from tools.tiny_checkpoint.town import ANIMALS, RARE_KINDS, RARE_THINGS, THINGS

KINDS = {*ANIMALS, *RARE_KINDS, "girl", "boy"}
NOUNS = {*THINGS, *RARE_THINGS}
SPLITS = ("train", "heldout")
seeds = st.integers(0, 2**32)


def texts(task: str, seed: int, split: str, count: int = 8):
    return list(islice(mixture(seed, {task: 1.0}, split=split), count))


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_no_trained_story_has_a_held_out_pair_of_kind_and_thing(seed):
    for task in ("story", "reading", "prose"):
        for document in texts(task, seed, "train"):
            words = set(re.findall("[a-z]+", document.text.lower()))
            for kind in words & KINDS:
                pairs = [(kind, noun) for noun in words & NOUNS]
                assert not any(is_pair_held_out(*pair) for pair in pairs), document.text


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_a_held_out_story_is_about_a_held_out_pair(seed):
    for document in texts("reading", seed, "heldout", 3):
        story = document.talk.turns[0].question
        words = re.findall("[a-z]+", story.lower())
        pairs = [(kind, noun) for kind in KINDS & set(words) for noun in NOUNS & set(words)]
        assert any(is_pair_held_out(*pair) for pair in pairs), story


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_numbers_are_on_their_side_of_the_split(seed):
    for split in SPLITS:
        documents = texts("arithmetic", seed, split, 2)
        answers = [turn.answer for document in documents for turn in document.talk.turns]
        for answer in answers:
            if found := re.fullmatch(r"(\d+) ([-+x/]) (\d+) = \d+\.", answer):
                x, y = int(found[1]), int(found[3])
                if found[2] in "+-":
                    assert is_sum_held_out(x, y) == ((x + 7 * y) % 20 == 0)
                    assert is_sum_held_out(x, y) == (split == "heldout")
                problem = arithmetic.Problem(x, found[2], y)
                assert arithmetic.is_held_out(problem) == (split == "heldout")


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_codes_are_on_their_side_of_the_split(seed):
    for split in SPLITS:
        for document in texts("recall", seed, split, 3):
            codes = re.findall(r"(?<=is )\d{4}(?=\.)", document.talk.turns[0].question)
            assert codes
            assert all(is_code_held_out(code) == (split == "heldout") for code in codes)


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_lists_calls_and_facts_are_on_their_side_of_the_split(seed):
    for split in SPLITS:
        held = split == "heldout"
        for turn in texts("lists", seed, split, 1)[0].talk.turns:
            assert is_held_out("list", turn.question) == held
        for turn in texts("facts", seed, split, 1)[0].talk.turns:
            assert is_held_out("fact", turn.question) == held
        for turn in texts("tools", seed, split, 1)[0].talk.turns:
            content = [json.dumps(call.arguments) for call in turn.calls]
            assert not content or is_held_out("call", *content) == held


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_records_are_on_their_side_of_the_split(seed):
    for split in SPLITS:
        fields = records.draw_record(Random(seed), split).fields
        assert is_held_out("record", *fields.values()) == (split == "heldout")


def test_every_fact_that_is_asked_was_trained_in_other_words():
    known = facts.meanings() + facts.general()
    asked = [fact for fact in known if facts.is_trained(fact)]
    assert len(asked) > 0.98 * len(known)
    assert len(facts.meanings()) == 1500


def test_the_first_story_of_a_newcomer_is_trained():
    assert not is_pair_held_out("fox", "lantern")


def test_one_content_in_twenty_is_held_out():
    pairs = [(kind, noun) for kind in KINDS for noun in NOUNS]
    share = sum(is_pair_held_out(*pair) for pair in pairs) / len(pairs)
    assert 0.04 < share < 0.06
    assert sum(is_code_held_out(f"{n:04}") for n in range(10_000)) in range(400, 600)


def test_a_share_for_an_unknown_family_is_refused_with_the_known_ones():
    with raises(UnknownFamilyError, match=r"no family 'storys'.*story"):
        next(mixture(1, {"storys": 1.0}))


def test_the_same_seed_tells_the_same_texts():
    first = [document.text for document in islice(mixture(5), 200)]
    assert first == [document.text for document in islice(mixture(5), 200)]
    assert first != [document.text for document in islice(mixture(6), 200)]
