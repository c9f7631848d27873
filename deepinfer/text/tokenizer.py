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
BEGIN, END, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
THINK, THINK_END = "<think>", "</think>"


class BadTokenizer(ModelError):
    """The tokenizer of a checkpoint is missing, broken, of another size, or lacks a token."""


class BadText(RequestError):
    """A text that no tokenizer can read: it is no text, or holds half of a surrogate pair."""


def _byte_of_character() -> dict[str, int]:
    """Byte-level BPE writes printable Latin-1 bytes as themselves and shifts the others to 256."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in own}
    others = [byte for byte in range(256) if byte not in own]
    return table | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_of_character()


def _reason(text: Any) -> str:
    if not isinstance(text, str):
        return f"a text is wanted, not {type(text).__name__}"
    place = next(at for at, one in enumerate(text) if "\ud800" <= one <= "\udfff")
    return f"character {place} of the text is half of a surrogate pair ({text[place]!r})"


class Tokenizer:
    """The tokenizer of one checkpoint. `control_ids` are all added tokens, special or not."""

    def __init__(self, file: str | Path, size: int | None = None) -> None:
        self.file = Path(file)
        parsed, self._whole = self._read()
        # a second one without added tokens: in it a typed "<｜User｜>" is nothing but characters
        self._plain = Library.from_str(json.dumps(parsed | {"added_tokens": []}))
        added = parsed.get("added_tokens", [])
        self._added = {int(one["id"]): str(one["content"]) for one in added}
        self._special = {int(one["id"]) for one in added if one.get("special")}
        self.size = self._whole.get_vocab_size(with_added_tokens=True)
        self._pieces: dict[int, bytes] = {}
        self._check(parsed.get("decoder"), size)

    @classmethod
    def load(cls, folder: str | Path, size: int | None = None) -> Tokenizer:
        """The tokenizer of the checkpoint in `folder`; `size` is what its config.json says."""
        return cls(Path(folder) / FILE, size)

    def _read(self) -> tuple[dict[str, Any], Library]:
        try:
            text = self.file.read_text(encoding="utf-8")
            return json.loads(text), Library.from_str(text)
        except OSError as cause:
            raise BadTokenizer(f"{self.file}: the tokenizer cannot be read: {cause}") from cause
        except Exception as cause:  # noqa: BLE001 - the library raises plain Exception for all
            raise BadTokenizer(f"{self.file}: this is no tokenizer: {cause}") from cause

    def _check(self, decoder: Any, size: int | None) -> None:
        """What the other rooms rely on, told once and at load."""
        kind = decoder.get("type") if isinstance(decoder, dict) else None
        if kind != "ByteLevel":
            raise BadTokenizer(f"{self.file}: the decoder is {kind}; only ByteLevel is known")
        if size is not None and size != self.size:
            raise BadTokenizer(
                f"{self.file}: the tokenizer has {self.size} tokens, the model {size}; "
                "it belongs to another checkpoint"
            )
        vocabulary = self._whole.get_vocab(with_added_tokens=True)
        if max(vocabulary.values(), default=-1) != self.size - 1:
            raise BadTokenizer(f"{self.file}: the ids 0 to {self.size - 1} have gaps")
        missing = [token for token in (BEGIN, END, PAD) if token not in vocabulary]
        if missing:
            raise BadTokenizer(f"{self.file}: the vocabulary has no {', '.join(missing)}")

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids that no user text may produce."""
        return frozenset(self._added)

    @property
    def control_tokens(self) -> dict[str, int]:
        """Spelling of every control token."""
        return {text: number for number, text in self._added.items()}

    @property
    def bos_id(self) -> int:
        """Id of the token that begins a prompt."""
        return self.id_of(BEGIN)

    @property
    def eos_id(self) -> int:
        """Id of the token that ends a reply."""
        return self.id_of(END)

    @property
    def pad_id(self) -> int:
        """Id of the token that fills up; it is never read."""
        return self.id_of(PAD)

    def id_of(self, token: str) -> int:
        """Id of a token by its spelling in the vocabulary."""
        number = self._whole.token_to_id(token)
        if number is None:
            raise BadTokenizer(f"{self.file}: the vocabulary has no token {token!r}")
        return int(number)

    def spelling(self, token_id: int) -> str:
        """The token's raw spelling in the vocabulary."""
        token = self._whole.id_to_token(token_id)
        if token is None:
            raise BadTokenizer(f"{self.file}: no token {token_id}; ids end at {self.size - 1}")
        return str(token)

    def encode(self, text: str, parse_special: bool = False) -> list[int]:
        """Ids of a text. Control tokens are matched only with parse_special."""
        library = self._whole if parse_special else self._plain
        try:
            ids: list[int] = library.encode(text, add_special_tokens=False).ids
        except TypeError as cause:  # the library's answer to lone surrogates too
            raise BadText(_reason(text)) from cause
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
            # a spelling outside the byte alphabet stands for itself, as in the library's decoder
            is_raw = any(one not in _BYTES for one in spelling)
            known = spelling.encode() if is_raw else bytes(_BYTES[one] for one in spelling)
            self._pieces[token_id] = known
        return known
