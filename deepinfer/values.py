"""Kinds of values that settings take: how each is read from text, checked and described.

In: a text of the environment, or a Python value. Out: the value in its one form, or `BadValue`.
Does not know: which settings there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

YES_WORDS = ("1", "true", "yes", "on")
NO_WORDS = ("0", "false", "no", "off")


class BadValue(ValueError):
    """A value is not of its kind; the text completes 'must be ...'."""


@dataclass(frozen=True)
class Kind:
    """One kind of value.

    words   completes "must be ..."
    read    text to value; may raise ValueError
    check   value to its one form, or raises ValueError
    """

    words: str
    read: Callable[[str], Any]
    check: Callable[[Any], Any]

    def from_text(self, text: str) -> Any:
        """The value that a text of the environment or of `--set` means."""
        if not text.strip():
            raise BadValue(f"{self.words}, not empty")
        try:
            return self.read(text.strip())
        except ValueError:
            raise BadValue(self.words) from None

    def checked(self, value: Any) -> Any:
        """The value in its one form."""
        try:
            return self.check(value)
        except (TypeError, ValueError):
            raise BadValue(self.words) from None


def _demand(holds: bool) -> None:
    if not holds:
        raise ValueError


def read_switch(text: str) -> bool:
    """0/1/true/false/yes/no/on/off in any case, and nothing else (engine specification 1.3)."""
    word = text.strip().lower()
    _demand(word in YES_WORDS + NO_WORDS)
    return word in YES_WORDS


def _check_switch(value: Any) -> bool:
    _demand(isinstance(value, bool))
    return bool(value)


SWITCH = Kind("one of 0, 1, true, false, yes, no, on, off", read_switch, _check_switch)


def _check_text(value: Any) -> str:
    _demand(isinstance(value, str) and bool(value.strip()))
    return str(value)


TEXT = Kind("a text", str, _check_text)


def _check_path(value: Any) -> Path:
    _demand(isinstance(value, Path) or (isinstance(value, str) and bool(value.strip())))
    path = Path(value)
    try:
        return path.expanduser()
    except RuntimeError as cause:  # no home folder
        raise ValueError from cause


PATH = Kind("a path; one that begins with ~ needs a home folder", str, _check_path)


def whole(low: int, high: int | None = None) -> Kind:
    """An integer; a bool is none."""

    def check(value: Any) -> int:
        _demand(type(value) is int and low <= value and (high is None or value <= high))
        return int(value)

    end = f"of at least {low}" if high is None else f"from {low} to {high}"
    return Kind(f"an integer {end}", int, check)


def number(low: float, high: float = math.inf) -> Kind:
    """A finite number above `low` and up to `high`."""

    def check(value: Any) -> float:
        _demand(type(value) in (int, float) and math.isfinite(value) and low < value <= high)
        return float(value)

    end = "" if high == math.inf else f" and up to {high:g}"
    return Kind(f"a number above {low:g}{end}", float, check)


def numbers(low: float) -> Kind:
    """One number above `low`, or several; text separates them by commas."""
    one = number(low)

    def read(text: str) -> tuple[float, ...]:
        return tuple(float(part) for part in text.split(","))

    def check(value: Any) -> tuple[float, ...]:
        found = value if isinstance(value, tuple | list) else (value,)
        _demand(len(found) > 0)
        return tuple(one.check(part) for part in found)

    return Kind(f"a number above {low:g}, or a list of them", read, check)


def choice(*words: str) -> Kind:
    """One of a few words, in any case."""

    def check(value: Any) -> str:
        _demand(isinstance(value, str) and value.lower() in words)
        return str(value).lower()

    return Kind(" or ".join(words), str, check)


def optional(kind: Kind) -> Kind:
    """None, or a value of `kind`."""

    def check(value: Any) -> Any:
        return None if value is None else kind.check(value)

    return Kind(kind.words, kind.read, check)


def _read_pairs(text: str) -> dict[str, str]:
    pairs = dict(part.split("=", 1) for part in text.split(","))
    return {key.strip(): value.strip() for key, value in pairs.items()}


def _check_pairs(value: Any) -> dict[str, str]:
    _demand(isinstance(value, Mapping))
    both: Iterable[Any] = [*value.keys(), *value.values()]
    _demand(all(isinstance(word, str) and bool(word) for word in both))
    return dict(value)


PAIRS = Kind("a mapping of names to names, as text a=b,c=d", _read_pairs, _check_pairs)
