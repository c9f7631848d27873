"""Text to token ids and back; what a user types never becomes a control token.

In: tokenizer.json of a checkpoint. Out: ids, text, bytes of a token.
Does not know: chat formats, torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library

from deepinfer.errors import ModelError, RequestError

FILE = "tokenizer.json"
NAMES = "tokenizer_config.json"
BEGIN, END, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"


class BadTokenizer(ModelError):
    """The tokenizer of a checkpoint is missing, broken, or lacks a token that is needed."""


class BadText(RequestError):
    """A text that no file could hold either: half of a surrogate pair."""


def _byte_of_character() -> dict[str, int]:
    """Byte-level BPE writes printable Latin-1 bytes as themselves and shifts the others to 256."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in own}
    others = [byte for byte in range(256) if byte not in own]
    return table | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_of_character()


class Tokenizer:
    """The tokenizer of one checkpoint.

    control_ids     all added tokens, special or not: no user text may produce them
    control_tokens  their ids by their spelling
    """

    def __init__(self, file: str | Path) -> None:
        self.file = Path(file)
        parsed = _read(self.file)
        self._whole = _built(self.file, parsed)
        # a second one without added tokens: in it a typed "<｜User｜>" is nothing but characters,
        # even though the files mark that token as not special (chat 1.2)
        self._plain = _built(self.file, parsed | {"added_tokens": [], "post_processor": None})
        added = parsed.get("added_tokens") or []
        self.control_tokens = {str(one["content"]): int(one["id"]) for one in added}
        self.control_ids = frozenset(self.control_tokens.values())
        self._special = {int(one["id"]) for one in added if one.get("special")}
        self.size: int = self._whole.get_vocab_size(with_added_tokens=True)
        self._pieces: dict[int, bytes] = {}
        self.bos_id = self._named("bos_token", BEGIN)
        self.eos_id = self._named("eos_token", END)
        self.pad_id = self._named("pad_token", PAD)

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """The tokenizer of the checkpoint in `folder`."""
        return cls(Path(folder) / FILE)

    def _named(self, key: str, official: str) -> int:
        """Id of begin, end or pad: the official spelling, else the one tokenizer_config.json names.

        In this order, because the official tokenizer_config.json names the end token as pad.
        """
        file = self.file.parent / NAMES
        if self._whole.token_to_id(official) is not None or not file.exists():
            return self.id_of(official)
        name = _json(file).get(key)
        name = name.get("content") if isinstance(name, dict) else name
        return self.id_of(name if isinstance(name, str) else official)

    def id_of(self, token: str) -> int:
        """Id of a token by its spelling in the vocabulary."""
        number = self._whole.token_to_id(token)
        if number is None:
            raise BadTokenizer(
                f"{self.file}: the vocabulary has no token {token!r}; "
                "the file belongs to another model"
            )
        return int(number)

    def spelling(self, token_id: int) -> str:
        """The token's raw spelling in the vocabulary."""
        token = self._whole.id_to_token(token_id)
        if token is None:
            raise BadTokenizer(f"{self.file}: no token {token_id}; ids end at {self.size - 1}")
        return str(token)

    def encode(self, text: str, parse_special: bool = False) -> list[int]:
        """Ids of a text. Control tokens are matched only with parse_special."""
        try:
            text.encode()
        except UnicodeEncodeError as cause:
            raise BadText(
                f"character {cause.start} of the text is half of a surrogate pair "
                f"({text[cause.start]!r}); give whole Unicode characters"
            ) from cause
        library = self._whole if parse_special else self._plain
        ids: list[int] = library.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of ids; bytes that are no UTF-8 become U+FFFD."""
        return str(self._whole.decode(list(ids), skip_special_tokens=skip_special))

    def is_hidden(self, token_id: int) -> bool:
        """Whether decode with skip_special leaves this token out."""
        return token_id in self._special

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for."""
        known = self._pieces.get(token_id)
        if known is None:
            spelling = self.spelling(token_id)
            # a spelling with a character outside the byte alphabet is the text itself
            if all(one in _BYTES for one in spelling):
                known = bytes(_BYTES[one] for one in spelling)
            else:
                known = spelling.encode()
            self._pieces[token_id] = known
        return known


def _read(file: Path) -> dict[str, Any]:
    """The parsed file; only byte-level vocabularies can be cut into bytes, as `stream` needs."""
    parsed = _json(file)
    decoder = parsed.get("decoder")
    kind = decoder.get("type") if isinstance(decoder, dict) else None
    if kind != "ByteLevel":
        raise BadTokenizer(f"{file}: a decoder of type ByteLevel is needed, this one is {kind}")
    return parsed


def _json(file: Path) -> dict[str, Any]:
    try:
        parsed = json.loads(file.read_text(encoding="utf-8"))
    except OSError as cause:
        raise BadTokenizer(f"{file}: cannot be read: {cause.strerror}") from cause
    except (ValueError, RecursionError) as cause:
        raise BadTokenizer(f"{file}: this is no JSON: {cause}") from cause
    if not isinstance(parsed, dict):
        raise BadTokenizer(f"{file}: a JSON object is needed, this is {type(parsed).__name__}")
    return parsed


def _built(file: Path, parsed: dict[str, Any]) -> Library:
    try:
        return Library.from_str(json.dumps(parsed))
    except Exception as cause:  # the library has no narrower class than Exception itself
        raise BadTokenizer(f"{file}: this is no tokenizer: {cause}") from cause
