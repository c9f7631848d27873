"""The endless training text: documents of all families in given shares, the same for each seed.

In: a seed, the share of each family. Out: an iterator of documents.
Does not know: token ids, files.
"""

from collections.abc import Callable, Iterator
from itertools import accumulate
from random import Random

from tools.tiny_checkpoint import arithmetic, calls, chat, facts, lists, reading, recall, records, stories
from tools.tiny_checkpoint.document import Document
from tools.tiny_checkpoint.heldout import Split

# shares of the tokens; section 1.2, with a little plain prose taken from the stories
WEIGHTS: dict[str, float] = {
    "story": 0.33, "prose": 0.03, "reading": 0.12, "arithmetic": 0.17, "json": 0.08,
    "tools": 0.04, "recall": 0.08, "lists": 0.06, "facts": 0.06, "chat": 0.03,
}
# measured length of one document in tokens
MEAN_TOKENS: dict[str, float] = {
    "story": 126, "prose": 92, "reading": 137, "arithmetic": 85, "json": 102, "tools": 638,
    "recall": 225, "lists": 69, "facts": 69, "chat": 62,
}
TRAIN_ONLY = ("chat",)


class UnknownFamily(ValueError):
    """A share was given for a family that does not exist."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no family {name!r} of documents; there are "
                         f"{', '.join([*WEIGHTS, 'long_recall'])}")


def mixture(seed: int, weights: dict[str, float] = WEIGHTS, recall_lines: int = 16,
            long_recall_tokens: tuple[int, int] | None = None,
            split: Split = "train") -> Iterator[Document]:
    """Documents without end. `weights` are shares of tokens, not of documents.

    `recall_lines` bounds the lines of a `recall` text; `long_recall_tokens` is the range of
    lengths of the family `long_recall`, which is left out without it.
    """
    rng = Random(f"{seed} {split}")
    writers = _writers(recall_lines, long_recall_tokens)
    means = dict(MEAN_TOKENS)
    if long_recall_tokens:
        means["long_recall"] = sum(long_recall_tokens) / 2
    for name in weights:
        if name not in WEIGHTS and name != "long_recall":
            raise UnknownFamily(name)
    names = [name for name, weight in weights.items()
             if weight > 0 and name in means and (split == "train" or name not in TRAIN_ONLY)]
    bounds = list(accumulate(weights[name] / means[name] for name in names))
    while True:
        chance = rng.random() * bounds[-1]
        name = next(name for name, bound in zip(names, bounds, strict=True) if chance < bound)
        yield writers[name](rng, split)


def _writers(recall_lines: int, long_tokens: tuple[int, int] | None,
             ) -> dict[str, Callable[[Random, Split], Document]]:
    return {
        "story": stories.write, "prose": stories.write_prose, "reading": reading.write,
        "arithmetic": arithmetic.write, "json": records.write, "tools": calls.write,
        "recall": lambda rng, split: recall.write(rng, split, recall_lines),
        "long_recall": lambda rng, split: recall.write_long(rng, split, *(long_tokens or (0, 0))),
        "lists": lists.write, "facts": facts.write, "chat": lambda rng, split: chat.write(rng),
    }
