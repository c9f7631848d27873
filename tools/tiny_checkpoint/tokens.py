"""Turns the corpus into one row of token ids with its target mask, on many processes.

In: a seed, how many tokens, the mixture. Out: uint16 ids, uint8 mask.
Does not know: batches, training.
"""

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .corpus import WEIGHTS, mixture
from .document import Document
from .heldout import Split
from .tokenizer import Encoder, load

Ids = NDArray[np.uint16]
Mask = NDArray[np.uint8]

# one share of the work; its size does not depend on the machine, so neither does the text
CHUNK_TOKENS = 500_000
BATCH_DOCUMENTS = 256


class Order(NamedTuple):
    """What one process makes: its own seed and the mixture."""

    seed: int
    tokens: int
    weights: dict[str, float]
    recall_lines: int
    long_recall_tokens: tuple[int, int] | None
    split: Split
    folder: Path | None


def _make(order: Order) -> tuple[Ids, Mask]:
    documents = mixture(order.seed, order.weights, order.recall_lines, order.long_recall_tokens,
                        order.split)
    ids, target = [], []
    total = 0
    encoder = Encoder(load(order.folder))
    while total < order.tokens:
        part = list(islice(documents, BATCH_DOCUMENTS))
        found, mask = encode_all(encoder, part)
        ids.append(found)
        target.append(mask)
        total += len(found)
    return np.concatenate(ids), np.concatenate(target)


def encode_all(encoder: Encoder, documents: list[Document]) -> tuple[Ids, Mask]:
    """The documents one after the other."""
    ids, target = encoder.encode(documents)
    return np.array(ids, dtype=np.uint16), np.array(target, dtype=np.uint8)


def build(seed: int, tokens: int, processes: int, weights: dict[str, float] = WEIGHTS,
          recall_lines: int = 16, long_recall_tokens: tuple[int, int] | None = None,
          split: Split = "train", folder: Path | None = None) -> tuple[Ids, Mask]:
    """At least `tokens` tokens of whole documents, each from begin to end of sentence.

    The text depends on the seed and the mixture, not on the number of processes. The mask is 1
    where the assistant speaks. `folder` holds tokenizer.json, `checkpoints/tiny` if not named.
    """
    parts = list(_build_parts(seed, tokens, processes, weights, recall_lines, long_recall_tokens,
                              split, folder))
    return (np.concatenate([part[0] for part in parts]),
            np.concatenate([part[1] for part in parts]))


def _build_parts(seed: int, tokens: int, processes: int, weights: dict[str, float],
                 recall_lines: int, long_recall_tokens: tuple[int, int] | None, split: Split,
                 folder: Path | None) -> Iterator[tuple[Ids, Mask]]:
    count = -(-tokens // CHUNK_TOKENS)
    orders = [Order(seed * 1_000_003 + number, min(CHUNK_TOKENS, tokens - number * CHUNK_TOKENS),
                    weights, recall_lines, long_recall_tokens, split, folder)
              for number in range(count)]
    if processes <= 1 or count == 1:
        yield from map(_make, orders)
        return
    # a fresh interpreter each: a fork of a process that holds a GPU or threads may hang
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(processes, count), initializer=_one_thread) as pool:
        yield from pool.imap(_make, orders)


def _one_thread() -> None:
    # the processes are the parallelism; threads of the tokenizer would fight over the same cores
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def main() -> None:
    """Measures how fast tokens are made."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--tokens", type=int, default=4_000_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    start = time.perf_counter()
    ids, target = build(options.seed, options.tokens, options.processes)
    seconds = time.perf_counter() - start
    print(f"{len(ids)} tokens, {target.mean():.3f} of them targets, {seconds:.1f} s, "
          f"{len(ids) / seconds / 1e6:.2f} M tokens/s on {options.processes} processes")


if __name__ == "__main__":
    main()
