"""Ranges of sampling parameters: each check returns a value in its one form or says the range.

In: whatever a caller wrote. Out: int, float, bool, tuple or dict; or `Bad` with the range in words.
Does not know: names of parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Check = Callable[[Any], Any]
LARGEST_F32 = 3.4028234663852886e38
SMALLEST_F32 = 2.0**-126


class Bad(ValueError):
    """A value is out of its range; the text completes 'must be ...'."""


def whole(low: int, high: int | None = None) -> Check:
    """An integer; a bool, a float and a text are none."""

    def check(value: Any) -> int:
        if type(value) is not int or value < low or (high is not None and value > high):
            end = f"from {low} to {high}" if high is not None else f"of at least {low}"
            raise Bad(f"an integer {end}")
        return value

    return check


def number(low: float, high: float, *, open_low: bool = False) -> Check:
    """A finite number that FP32 can hold; integers are numbers, a bool is none."""

    def check(value: Any) -> float:
        fits = type(value) in (int, float) and math.isfinite(value) and low <= value <= high
        if not fits or (open_low and value <= low):
            end = "above" if open_low else "from"
            raise Bad(f"a number {end} {low:g} {'and up ' if open_low else ''}to {high:g}")
        return float(value)

    return check


def switch(value: Any) -> bool:
    """True or False, nothing that merely looks like it."""
    if type(value) is not bool:
        raise Bad("True or False")
    return value


def optional(check: Check) -> Check:
    """None, or what `check` takes."""

    def check_or_none(value: Any) -> Any:
        try:
            return None if value is None else check(value)
        except Bad as bad:
            raise Bad(f"None or {bad}") from None

    return check_or_none


def texts(value: Any) -> tuple[str, ...]:
    """One text or several, none of them empty."""
    found = (value,) if isinstance(value, str) else _several(value)
    if found is None or any(not isinstance(text, str) or not text for text in found):
        raise Bad("a text or a list of texts, none of them empty")
    return found


def ids(value: Any) -> tuple[int, ...]:
    """Token ids in the order given, each once."""
    found = _several(value)
    if found is None or any(type(token_id) is not int or token_id < 0 for token_id in found):
        raise Bad("a list of token ids, integers of at least 0")
    return tuple(dict.fromkeys(found))


def some_ids(value: Any) -> tuple[int, ...]:
    """Token ids, at least one."""
    found = ids(value)
    if not found:
        raise Bad("a list of at least one token id")
    return found


def biases(low: float, high: float) -> Check:
    """{token id: number}; None is an empty one."""
    check_id, check_bias = whole(0), number(low, high)

    def check(value: Any) -> dict[int, float]:
        words = f"a mapping of token ids to numbers from {low:g} to {high:g}"
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise Bad(words)
        try:
            return {check_id(key): check_bias(bias) for key, bias in value.items()}
        except Bad:
            raise Bad(words) from None

    return check


def _several(value: Any) -> tuple[Any, ...] | None:
    if value is None:
        return ()
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return None
    return tuple(value)
