"""The random numbers of sampling: a pure function of seed, position and token.

In: seeds and positions of rows. Out: Gumbel noise for every token of the vocabulary.
Does not know: logits, batches, devices; equal inputs give equal bits everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10

# FP32 constants of DSpark and sampling 5.3
LN_2 = 0.6931471824645996
THIRD, FIFTH = 0.3333333432674408, 0.20000000298023224
SEVENTH, NINTH = 0.1428571492433548, 0.1111111119389534
TWO_POW_MINUS_32 = 2.0**-32
QUARTER = 1 << 30
LOW_MANTISSA = 0x3F3504F3  # bits of 0.70710677, the lower end of a mantissa in `_log`


def seed_tensor(seeds: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """Unsigned 64-bit seeds as the [rows] int64 tensor that holds their bits."""
    signed = [seed - (1 << 64) if seed >> 63 else seed for seed in seeds]
    return torch.tensor(signed, dtype=torch.int64, device=device)


def philox(counter: Sequence[Tensor], key: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Philox4x32-10 (DSpark and sampling 5.3): four 32-bit words per counter, in int64 tensors.

    counter  four, key two int64 tensors with values below 2^32, of shapes that broadcast
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # the product wraps modulo 2^64; its bits are those of the unsigned product
        low, high = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0 = ((high >> 32) & MASK) ^ c1 ^ k0
        c2 = ((low >> 32) & MASK) ^ c3 ^ k1
        c1, c3 = high & MASK, low & MASK
        k0, k1 = (k0 + KEY_STEPS[0]) & MASK, (k1 + KEY_STEPS[1]) & MASK
    return c0, c1, c2, c3


def words(
    seed: Tensor,
    position: Tensor,
    count: int,
    purpose: int = 0,
    ordinal: Tensor | None = None,
) -> Tensor:
    """One 32-bit word per token: word v mod 4 of Philox block v div 4.

    seed, position  [rows] int64; position of the token to be chosen
    ordinal         [rows] int64 verify-step ordinal of the purposes 1 to 3; purpose 0 has none
    returns         [rows, count] int64 below 2^32
    """
    if (purpose == 0) != (ordinal is None):
        raise ValueError(f"purpose {purpose}: an ordinal belongs to the purposes 1 to 3 only")
    seed, position = seed[:, None], position[:, None]
    high = position >> 32 if ordinal is None else ordinal[:, None]
    block = torch.arange((count + 3) // 4, device=seed.device)[None]  # [1, blocks]
    # every word depends on the block, so that all four come out as [rows, blocks]
    third = torch.full_like(position, purpose)
    counter = (position & MASK, high & MASK, third, block)
    key = (seed & MASK, (seed >> 32) & MASK)
    four = torch.stack(philox(counter, key), dim=-1)  # [rows, blocks, 4]
    return four.flatten(1)[:, :count]  # [rows, count]


def exponential(word: Tensor) -> Tensor:
    """E(x) of 5.3, exponential: -ln(1 - (x + 0.5) / 2^32), small results in full precision.

    word     int64 below 2^32
    returns  f32 of the same shape, above 0 and finite for every word
    """
    small = word < QUARTER
    # one conversion serves both branches: the other word of the pair is NOT x = MASK - x
    near = torch.where(small, word, MASK - word).float()
    fraction = (near + 0.5) * TWO_POW_MINUS_32
    return torch.where(small, _series(fraction / (2.0 - fraction)), -_log(fraction))


def gumbel(
    seed: Tensor,
    position: Tensor,
    vocabulary: int,
    purpose: int = 0,
    ordinal: Tensor | None = None,
) -> Tensor:
    """G(seed, position, token) of 5.3; argmax of logits plus this noise draws from softmax.

    seed, position  [rows] int64
    returns         [rows, vocabulary] f32, finite
    """
    return -_log(exponential(words(seed, position, vocabulary, purpose, ordinal)))


def _series(s: Tensor) -> Tensor:
    """ln((1 + s) / (1 - s)) for small s; every operation is rounded to FP32 on its own."""
    q = s * s
    inner = q * NINTH + SEVENTH
    inner = q * inner + FIFTH
    inner = q * inner + THIRD
    return (s * 2.0) * (q * inner + 1.0)


def _log(value: Tensor) -> Tensor:
    """plog of 5.3: value = m * 2^e with m in [0.70710677, 1.4142135); positive normal f32 only."""
    bits = value.view(torch.int32)
    exponent = (bits - LOW_MANTISSA) >> 23
    mantissa = (bits - (exponent << 23)).view(torch.float32)
    return exponent.float() * LN_2 + _series((mantissa - 1.0) / (mantissa + 1.0))
