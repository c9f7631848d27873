"""Text piece by piece: only whole characters, and nothing that may become a stop string.

In: token ids as they are sampled. Out: text that is final.
Does not know: requests, chats.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence

from deepinfer.text.tokenizer import Tokenizer


class StopStrings:
    """Cuts a growing text at the earliest stop string; holds back only a true beginning of one."""

    def __init__(self, stop: Sequence[str] = (), include_stop: bool = False) -> None:
        given = (stop,) if isinstance(stop, str) else stop
        self.words = tuple(one for one in given if one)
        self.includes = include_stop
        self._held = ""
        self.final = 0  # characters of the text that no stop string can touch any more
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
            self.final += begin
            return text[: end if self.includes else begin]
        keep = max((_overlap(text, one) for one in self.words), default=0)
        self._held = text[len(text) - keep :]
        self.final += len(text) - keep
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back and is text after all."""
        held, self._held = self._held, ""
        self.final += len(held)
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of text that is a beginning of stop, but not all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[len(text) - length :]):
            return length
    return 0


class TextStream:
    """Words out for raw completions: `push` ids, get final text; the pieces join to the whole.

    Ids are taken one by one, so that the same stop is found however they are cut into pushes; ids
    behind the stop are not taken.
    """

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
        self._decoded = 0  # characters so far
        self._ends: deque[int] = deque()  # where the text of an id ends, for ids not yet final
        self.ids_through = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string has been met."""
        return self._stops.stopped

    @property
    def matched(self) -> str | None:
        """The stop string that was met."""
        return self._stops.matched

    @property
    def ids_before(self) -> int:
        """Ids whose text lies wholly before the stop; without a stop, all that were taken.

        `ids_through` counts on to the id that completed the stop.
        """
        if not self.stopped:
            return self.ids_through
        behind = sum(end > self._stops.final for end in self._ends)
        return self.ids_through - behind

    def push(self, ids: Sequence[int]) -> str:
        """Text that these ids make final."""
        pieces = []
        for one in ids:
            if self.stopped:
                break
            pieces.append(self._take(one))
        return "".join(pieces)

    def _take(self, token_id: int) -> str:
        self.ids_through += 1
        hidden = self._skip and self._tokenizer.is_hidden(token_id)
        piece = b"" if hidden else self._tokenizer.token_bytes(token_id)
        text = self._decoder.decode(piece)
        self._decoded += len(text)
        waits = bool(self._decoder.getstate()[0])  # the id ends inside a character
        self._ends.append(self._decoded + waits)
        shown = self._stops.push(text)
        while self._ends and self._ends[0] <= self._stops.final:
            self._ends.popleft()
        return shown

    def finish(self) -> str:
        """The rest: a character that was never completed, and what was held back."""
        text = self._stops.push(self._decoder.decode(b"", final=True))
        return text + self._stops.finish()
