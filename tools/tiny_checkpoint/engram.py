"""Engram: rows looked up by hashes of the last one to four tokens and added behind a gate.

In: token ids, the map onto compressed ids. Out: row numbers; the stream with the rows added.
Does not know: attention, experts. Specification 3.9.
"""

import re
import unicodedata
from functools import lru_cache

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from .numerics import Numerics, fake_q8, linear, region
from .shape import Shape


def _is_prime(value: int) -> bool:
    return value > 1 and all(value % d for d in range(2, int(value**0.5) + 1))


@lru_cache
def primes(
    layers: tuple[int, ...], ngram: int, heads: int, vocab: int
) -> dict[int, list[int]]:
    """Column sizes per layer: strictly fresh primes from `vocab - 1` upward."""
    used: set[int] = set()
    table: dict[int, list[int]] = {}
    for layer in layers:
        table[layer] = []
        for _ in range(2, ngram + 1):
            value = vocab - 1
            for _ in range(heads):
                value += 1
                while value in used or not _is_prime(value):
                    value += 1
                used.add(value)
                table[layer].append(value)
    return table


def multipliers(layer: int, compressed_vocab: int, ngram: int) -> list[int]:
    """Odd factors of one layer's hash."""
    bound = max(1, ((2**63 - 1) // compressed_vocab) // 2)
    drawn = np.random.default_rng(10007 * layer).integers(0, bound, size=ngram, dtype=np.int64)
    return [2 * int(value) + 1 for value in drawn]


def hash_rows(ids: Tensor, start: Tensor, compressed: Tensor, shape: Shape) -> Tensor:
    """Table rows [rows, T, layers, columns] int64, offsets included."""
    length = ids.shape[1]
    small = compressed[ids.long()]
    pad = compressed[shape.engram_pad]
    p = torch.arange(length, device=ids.device)
    shifted = []
    for shift in range(shape.ngram):
        token = small.roll(shift, 1)
        shifted.append(torch.where(p - shift >= start, token, pad))
    sizes = primes(shape.engram_layers, shape.ngram, shape.engram_heads, shape.engram_vocab)
    layers = []
    for layer in shape.engram_layers:
        factor = multipliers(layer, shape.compressed_vocab, shape.ngram)
        acc = shifted[0] * factor[0]
        columns, offset = [], 0
        for order in range(1, shape.ngram):
            acc = acc ^ (shifted[order] * factor[order])
            for head in range(shape.engram_heads):
                size = sizes[layer][(order - 1) * shape.engram_heads + head]
                columns.append(acc % size + offset)
                offset += size
        layers.append(torch.stack(columns, -1))
    return torch.stack(layers, 2)


@region
def inject(
    stream: Tensor, found: Tensor, parts: tuple[Tensor, Tensor, Tensor],
    keep: Tensor | None, shape: Shape, n: Numerics,
) -> Tensor:
    """Stream [tokens, 4, hidden] plus the gated value of its table rows [tokens, columns, dim].

    keep [tokens] is 0 where training drops the contribution, else 1; None keeps all.
    """
    wkv, q_weight, k_weight = parts
    rows = fake_q8(found.to(n.storage).flatten(-2), n)
    kv = linear(rows, wkv, n).to(n.wide).unflatten(-1, (shape.copies + 1, -1))
    key, value = kv[:, : shape.copies], kv[:, shape.copies :]
    wide = stream.to(n.wide)
    joint = q_weight.to(n.wide) * k_weight.to(n.wide)
    d = (wide * joint * key).sum(-1)
    d = d * torch.rsqrt(wide.square().mean(-1) + shape.eps)
    d = d * torch.rsqrt(key.square().mean(-1) + shape.eps) * shape.hidden**-0.5
    gate = torch.sigmoid(torch.copysign(torch.sqrt(d.abs().clamp(min=1e-6)), d))
    if keep is not None:
        gate = gate * keep[:, None]
    return (wide + gate.unsqueeze(-1) * value).to(n.storage)


def normalize(text: str) -> str:
    """The text under which tokens that look alike share a compressed id."""
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    text = "".join(c for c in text if unicodedata.category(c) != "Mn").lower()
    text = re.sub(r"[ \t\r\n]+", " ", text)
    return text if text == " " else text.strip()


def compressed_ids(tokenizer: Tokenizer) -> Tensor:
    """Compressed id of every token id [vocab] int64."""
    numbers: dict[str, int] = {}
    result = []
    for token in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([token], skip_special_tokens=False)
        key = tokenizer.id_to_token(token) if "\ufffd" in text else normalize(text) or text
        result.append(numbers.setdefault(key, len(numbers)))
    return torch.tensor(result)
