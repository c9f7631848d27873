"""Text piece by piece: only whole characters, and nothing that may become a stop string.

In: token ids as they are sampled. Out: text that is final.
Does not know: requests, chats.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from deepinfer.text.tokenizer import Tokenizer


class StopStrings:
    """Cuts a growing text at the earliest stop string; holds back only a true beginning of one."""

    def __init__(self, stop: Sequence[str] = (), include_stop: bool = False) -> None:
        self.words = tuple(one for one in stop if one)
        self.includes = include_stop
        self._held = ""
        self.matched: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop string has been met."""
        return self.matched is not None

    def push(self, text: str) -> str:
        """What may be shown now; empty after a stop."""
        if self.stopped:
            return ""
        text = self._held + text
        # of stop strings that are complete, the one that ends first; of those, the longest
        found = [
            (text.find(one) + len(one), text.find(one), one) for one in self.words if one in text
        ]
        if found:
            end, begin, self.matched = min(found)
            self._held = ""
            return text[: end if self.includes else begin]
        keep = max((_overlap(text, one) for one in self.words), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back and is text after all."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of text that is a beginning of stop, but not all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[len(text) - length :]):
            return length
    return 0


class TextStream:
    """Words out for raw completions: `push` ids, get final text; the pieces join to the whole."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special: bool = True,
    ) -> None:
        self._tokenizer, self._skip = tokenizer, skip_special
        # both this decoder and the library replace each maximal invalid part by one U+FFFD
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = StopStrings(stop, include_stop)

    @property
    def stopped(self) -> bool:
        """Whether a stop string has been met."""
        return self._stops.stopped

    @property
    def matched(self) -> str | None:
        """The stop string that was met."""
        return self._stops.matched

    def push(self, ids: Sequence[int]) -> str:
        """Text that these ids make final."""
        pieces = [
            self._tokenizer.token_bytes(one)
            for one in ids
            if not (self._skip and self._tokenizer.is_hidden(one))
        ]
        return self._stops.push(self._decoder.decode(b"".join(pieces)))

    def finish(self) -> str:
        """The rest: a character that was never completed, and what was held back."""
        text = self._stops.push(self._decoder.decode(b"", final=True))
        return text + self._stops.finish()
