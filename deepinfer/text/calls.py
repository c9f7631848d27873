"""Follows tool-call markup in a growing reply, to know where the calls end.

In: text, control tokens as MARK. Out: the depth in the markup, and whether the calls are closed.
Does not know: what the calls say; the parser in `chat` reads them.
"""

from __future__ import annotations

import re

DSML = "｜DSML｜"
MARK = "\udc00"
"""Stands for the control token DSML. No decoded text can hold it, so that what only spells the
token, letter by letter, is text for the watch as it is for the parser."""
_OPEN, _CLOSE = f"<{MARK}", f"</{MARK}"
_LONGEST_CLOSE = len(f"{_CLOSE}tool_calls>")
_LONGEST_TAG = 4096  # characters; an opening tag that is longer is taken for text

# The parser's own rules: any opening marker begins the calls, only a closing one of the calls ends
# them, and any closing marker ends an invoke or a parameter, whatever name it carries (chat 1.4).
_STEPS = (
    re.compile(_OPEN),
    re.compile(
        rf'(?P<out>{_CLOSE}(?: calls|tool_calls)>)|(?P<in>{_OPEN}[^>"]*invoke name="[^"]*"[^>]*>)'
    ),
    re.compile(rf'(?P<out>{_CLOSE})|(?P<in>{_OPEN}[^>"]*parameter name="[^"]*" string="[^"]*">)'),
    re.compile(_CLOSE),
)
REPLY, CALLS, INVOKE, PARAMETER = range(4)


class CallsWatch:
    """Depth in the markup: 0 the reply, 1 the calls, 2 an invoke, 3 a parameter.

    Behind the calls the parser swallows everything, so generation must end when they are closed.
    """

    def __init__(self, depth: int = REPLY) -> None:
        self.depth = depth
        self.is_closed = False
        self._tail = ""

    def push(self, text: str) -> None:
        """Reads on; nothing is read behind the end of the calls."""
        self._tail += text
        while not self.is_closed and self._step():
            pass
        self._tail = self._tail[-self._kept() :]

    def _step(self) -> bool:
        found = _STEPS[self.depth].search(self._tail)
        if found is None:
            return False
        if self.depth == REPLY:
            # the marker stays: it may be an invoke without a block around it
            self.depth, self._tail = CALLS, self._tail[found.start() :]
            return True
        self._tail = self._tail[found.end() :]
        inwards = found.lastgroup == "in"
        self.is_closed = self.depth == CALLS and not inwards
        self.depth += 1 if inwards else -1
        return True

    def _kept(self) -> int:
        """Characters at the end that may still become a marker."""
        begun = self._tail.rfind(_OPEN)
        if self.depth in (CALLS, INVOKE) and begun >= 0:
            length = len(self._tail) - begun
            return max(length, _LONGEST_CLOSE) if length <= _LONGEST_TAG else _LONGEST_CLOSE
        return _LONGEST_CLOSE
