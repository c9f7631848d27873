"""Token compression of the n-gram memory: ids that look alike share one compressed id.

In: a tokenizer. Out: a compressed id for every token id. Source: backbone 3.9.
Does not know: hashes, tables.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tokenizers import Regex, normalizers

from deepinfer.errors import ModelError
from deepinfer.text.tokenizer import Tokenizer

_LONE_SPACE = "\ue000"  # keeps a text that is exactly one space through the final strip


class WrongCompression(ModelError):
    """The map has another number of ids than the config says; every hash would be wrong."""


def compressed_ids(tokenizer: Tokenizer) -> list[int]:
    """The compressed id of each token id, numbered in the order of first appearance."""
    numbers: dict[str, int] = {}
    found = []
    for token_id in range(tokenizer.size):
        text = tokenizer.decode([token_id], skip_special=False)
        key = tokenizer.spelling(token_id) if "\ufffd" in text else normalized(text) or text
        found.append(numbers.setdefault(key, len(numbers)))
    return found


@cache
def _normalizer() -> Any:
    """The library's steps: its idea of accents and blanks is part of the map."""
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), _LONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(_LONE_SPACE, " "),
        ]
    )


def normalized(text: str) -> str:
    """NFKC, NFD, no accents, lower case, one space for runs of blanks, no blanks at the ends."""
    return str(_normalizer().normalize_str(text))


def checked(tokenizer: Tokenizer, count: int) -> list[int]:
    """The map, refused unless it has exactly `count` values (engram_compressed_vocab_size)."""
    ids = compressed_ids(tokenizer)
    if len(set(ids)) != count:
        raise WrongCompression(
            f"{tokenizer.file}: the tokenizer compresses to {len(set(ids))} ids, config.json says "
            f"{count}; the tokenizer belongs to another checkpoint"
        )
    return ids
