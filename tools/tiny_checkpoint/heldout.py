"""Decides by content what training never sees, so that a test cannot have been memorized.

In: the content of a text (a pair, two numbers, a code, words). Out: held out or not.
Does not know: how the content is worded.
"""

from typing import Literal
from zlib import crc32

Split = Literal["train", "heldout"]
ONE_IN = 20


def is_held_out(*content: object) -> bool:
    """One content in twenty, by a checksum of its words. Section 1.2."""
    return crc32("|".join(map(str, content)).encode()) % ONE_IN == 7


def is_sum_held_out(x: int, y: int) -> bool:
    """Sums and differences of x and y with (x + 7y) mod 20 = 0. Section 1.2."""
    return (x + 7 * y) % ONE_IN == 0


def is_code_held_out(code: str) -> bool:
    """One four-digit code in twenty."""
    return is_held_out("code", code)


def is_pair_held_out(kind: str, thing: str) -> bool:
    """One pair of hero kind and object in twenty, such as (owl, drum)."""
    return is_held_out("pair", kind, thing)
