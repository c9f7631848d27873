"""Streamed text: whole characters, stop strings, and nothing shown twice."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deepinfer.engine.request import Request
from deepinfer.sample.params import SamplingParams
from deepinfer.text.stream import StopStrings, TextStream
from deepinfer.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.load(Path(__file__).parents[2] / "checkpoints" / "tiny")
BYTES = {TOKENIZER.token_bytes(number): number for number in range(3, 259)}
ANY_IDS = st.lists(st.integers(0, TOKENIZER.size - 1), max_size=30)
BYTE_IDS = st.lists(st.sampled_from(sorted(BYTES.values())), max_size=30)
LETTERS = st.text("abé😀", max_size=25)
STOPS = st.lists(st.text("abé😀", min_size=1, max_size=5), max_size=4)


def cuts(ids: list[int], places: set[int]) -> list[list[int]]:
    borders = sorted({0, len(ids), *(place % (len(ids) + 1) for place in places)})
    return [ids[begin:end] for begin, end in pairwise(borders)]


PLACES = st.sets(st.integers(0, 30))


def ids_by_byte(text: str) -> list[int]:
    return [BYTES[bytes([one])] for one in text.encode()]


def streamed(pieces: list[list[int]], stream: TextStream) -> str:
    shown = [stream.push(piece) for piece in pieces]
    return "".join(shown) + ("" if stream.stopped else stream.finish())


def cut_at_stop(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """Letter by letter: the first stop string to be complete; of two, the longer."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@settings(deadline=None)
@given(ANY_IDS | BYTE_IDS, PLACES, st.booleans())
@example(ids_by_byte("😀")[:3], {1, 2}, True)
@example([*ids_by_byte("é")[:1], *ids_by_byte("😀")[:2], *ids_by_byte("é")], {1}, True)
def test_pieces_join_to_the_full_decode_however_the_ids_are_cut(ids, places, skip):
    """BL-72: invalid bytes and a character cut off at the end as in the full decode."""
    stream = TextStream(TOKENIZER, skip_special=skip)
    assert streamed(cuts(ids, places), stream) == TOKENIZER.decode(ids, skip_special=skip)
    assert stream.ids_through == len(ids)


@settings(deadline=None)
@given(BYTE_IDS, st.sampled_from(["", "aa", "\ufffd"]))
def test_what_was_shown_is_never_taken_back(ids, stop):
    """BL-72: the shown text is at every moment a beginning of the whole."""
    whole = cut_at_stop(TOKENIZER.decode(ids), [stop] if stop else [], False)[0]
    stream, shown = TextStream(TOKENIZER, [stop]), ""
    for one in ids:
        shown += stream.push([one])
        assert whole.startswith(shown)
    assert shown + ("" if stream.stopped else stream.finish()) == whole


@settings(deadline=None, max_examples=300)
@given(LETTERS, STOPS, PLACES, st.booleans(), st.booleans())
@example("abab", ["bb", "ab"], {1, 2, 3}, False, False)
@example("aab", ["aab", "ab"], set(), False, True)
@example("ab", ["abb"], {1}, False, False)
def test_the_earliest_stop_wins_whatever_the_cut(text, stops, places, include, by_byte):
    """BL-74: several ids per push, stop strings across pushes, several stop strings."""
    ids = ids_by_byte(text) if by_byte else TOKENIZER.encode(text)
    stream = TextStream(TOKENIZER, stops, include)
    expected, matched = cut_at_stop(text, stops, include)
    assert streamed(cuts(ids, places), stream) == expected
    assert stream.matched == matched
    assert stream.stopped == (matched is not None)


@settings(deadline=None)
@given(LETTERS, STOPS, PLACES, st.booleans())
def test_ids_are_counted_before_and_through_the_stop(text, stops, places, by_byte):
    """BL-74: a block of accepted drafts is cut where the stop was completed."""
    ids = ids_by_byte(text) if by_byte else TOKENIZER.encode(text)
    stream = TextStream(TOKENIZER, stops)
    streamed(cuts(ids, places), stream)
    before, matched = cut_at_stop(text, stops, False)
    if matched is None:
        assert stream.ids_before == stream.ids_through == len(ids)
        return
    ends = [len(b"".join(map(TOKENIZER.token_bytes, ids[: n + 1]))) for n in range(len(ids))]
    begin, end = len(before.encode()), len((before + matched).encode())
    assert stream.ids_before == sum(one <= begin for one in ends)
    assert stream.ids_through == 1 + next(n for n, one in enumerate(ends) if one >= end)


def test_a_stop_is_found_at_each_place_of_a_block():
    """BL-74: the stop string ends at place 1 to 5 of five ids pushed at once."""
    for place in range(5):
        block = ids_by_byte("abcde"[:place] + "." + "fghi"[place:])
        stream = TextStream(TOKENIZER, ["."])
        assert stream.push(block) == "abcde"[:place]
        assert (stream.ids_before, stream.ids_through) == (place, place + 1)
        assert stream.push(ids_by_byte("more")) == ""
        assert stream.ids_through == place + 1


@pytest.mark.parametrize("cap", range(1, 8))
def test_a_stop_beats_the_cap_at_the_same_token(cap):
    """BL-74: the cap before, at and after the stop; the earliest event gives the reason."""
    words = TextStream(TOKENIZER, ["cd"])
    params = SamplingParams(max_tokens=cap)
    request = Request(0, [5], params, (TOKENIZER.eos_id,), lambda: words, limit=100)
    for one in ids_by_byte("abcdefg"):
        request.take(one, None)
        if request.finish_reason is not None:
            break
    assert request.finish_reason == ("stop" if cap >= 4 else "length")
    assert request.text == ("ab" if cap >= 4 else "abc"[:cap])
    assert len(request.output) == min(cap, 4)


def test_only_a_true_beginning_of_a_stop_string_is_held_back():
    """BL-76: a long stop string delays nothing but what it may become."""
    stream = TextStream(TOKENIZER, ["X" * 20])
    seen = [stream.push(ids_by_byte(one)) for one in "abXXcX"]
    assert seen == ["a", "b", "", "", "XXc", ""]
    assert stream.finish() == "X"
    plain, words = TextStream(TOKENIZER, ["X" * 20]), TOKENIZER.encode("Once upon a time.")
    assert [plain.push([one]) for one in words] == [TOKENIZER.decode([one]) for one in words]


def test_a_held_beginning_slides_when_it_fails():
    stream = TextStream(TOKENIZER, ["aab"])
    assert [stream.push(ids_by_byte(one)) for one in "aaab"] == ["", "", "a", ""]
    assert stream.matched == "aab"


def test_the_flush_still_looks_for_stop_strings():
    """BL-76: a cut character becomes U+FFFD at the end, and that may complete a stop string."""
    stream = TextStream(TOKENIZER, ["a\ufffd"])
    assert stream.push([*ids_by_byte("ba"), *ids_by_byte("é")[:1]]) == "b"
    assert stream.finish() == ""
    assert stream.matched == "a\ufffd"


def test_an_id_inside_a_character_is_not_before_the_stop_behind_it():
    stream = TextStream(TOKENIZER, ["é"])
    assert stream.push(ids_by_byte("aé")) == "a"
    assert (stream.ids_before, stream.ids_through) == (1, 3)


def test_nothing_of_the_past_is_kept_without_a_stop_string():
    """The cost of a push does not grow with the text: only what is open is looked at again."""
    stream = TextStream(TOKENIZER, ["zz"])
    for one in ids_by_byte("abc" * 2000):
        stream.push([one])
        assert len(stream._ends) <= 1
        assert len(stream._stops._held) == 0


@settings(deadline=None)
@given(LETTERS, STOPS)
def test_what_is_held_back_is_the_longest_possible_beginning_and_no_more(text, stops):
    """BL-76: at every letter, and whatever the stop strings have in common."""
    met = StopStrings(stops)
    shown = read = ""
    for letter in text:
        shown += met.push(letter)
        if met.stopped:
            break
        read += letter
        begun = [n for one in stops for n in range(1, len(one)) if read.endswith(one[:n])]
        assert len(read) - len(shown) == max(begun, default=0)


def test_a_stop_string_may_end_inside_a_token():
    token = next(one for one in range(300, 2000) if len(TOKENIZER.token_bytes(one)) > 4)
    text = TOKENIZER.decode([token])
    stream = TextStream(TOKENIZER, [text[1:3]])
    assert stream.push([token]) == text[:1]
    assert stream.stopped


def test_a_single_text_is_one_stop_string_and_not_its_letters():
    assert TextStream(TOKENIZER, "END").push(ids_by_byte("the NEDEND")) == "the NED"
