"""Holds tokenizer.json of a checkpoint folder against the vocabulary size of its config.

In: a folder, the number of tokens. Out: findings.
Does not know: how text becomes tokens.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deepinfer.model.config import ConfigError, read_json
from deepinfer.model.header import Finding

TOKENIZER = "tokenizer.json"


def check_tokenizer(folder: Path, vocab_size: int | None) -> Iterator[Finding]:
    """Ids run from 0 to `vocab_size` - 1 without a gap; merges join tokens that exist."""
    path = folder / TOKENIZER
    if not path.is_file():
        yield Finding(TOKENIZER, None, "the tokenizer of the checkpoint", "no such file")
        return
    try:
        parsed = read_json(path)
    except ConfigError as reason:
        yield Finding(TOKENIZER, None, "a tokenizer of valid JSON", str(reason))
        return
    model = parsed.get("model") if isinstance(parsed, dict) else None
    vocab = model.get("vocab") if isinstance(model, dict) else None
    added = _added(parsed)
    if not isinstance(model, dict) or not isinstance(vocab, dict) or added is None:
        yield Finding(TOKENIZER, None, "model.vocab and added_tokens", "none that can be read")
        return
    yield from _check_ids(vocab, added, vocab_size)
    yield from _check_merges(vocab, model.get("merges", []))


def _added(parsed: Any) -> dict[str, Any] | None:
    tokens = parsed.get("added_tokens", []) if isinstance(parsed, dict) else None
    if not isinstance(tokens, list):
        return None
    found = {}
    for token in tokens:
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            return None
        found[token["content"]] = token.get("id")
    return found


def _check_ids(
    vocab: dict[str, Any], added: dict[str, Any], vocab_size: int | None
) -> Iterator[Finding]:
    for text, number in added.items():
        if vocab.get(text, number) != number:
            yield Finding(TOKENIZER, text, f"id {vocab[text]}, as in model.vocab", f"id {number}")
    numbers = list({**vocab, **added}.values())
    if any(type(number) is not int or number < 0 for number in numbers):
        yield Finding(TOKENIZER, None, "whole numbers as token ids", "something else")
        return
    count = len(set(numbers))
    if count != len(numbers) or count != max(numbers, default=-1) + 1:
        yield Finding(
            TOKENIZER,
            None,
            "one id per token, without a gap",
            f"{len(numbers)} tokens, {count} ids",
        )
    if vocab_size is not None and count != vocab_size:
        yield Finding(TOKENIZER, None, f"{vocab_size} tokens (vocab_size)", f"{count} tokens")


def _check_merges(vocab: dict[str, Any], merges: Any) -> Iterator[Finding]:
    if not isinstance(merges, list):
        yield Finding(TOKENIZER, None, "a list of merges", type(merges).__name__)
        return
    for number, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or not all(isinstance(piece, str) for piece in pair)
            or any(piece not in vocab for piece in [*pair, "".join(pair)])
        ):
            yield Finding(
                TOKENIZER, None, f"merge {number} to join two tokens of the vocabulary", repr(merge)
            )
            return
