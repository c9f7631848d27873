"""The endless training text: documents of all families in given shares, the same for each seed.

In: a seed, the share of each family. Out: an iterator of documents.
Does not know: token ids, files.
"""

from collections.abc import Callable, Iterator
from itertools import accumulate
from random import Random

from . import (
    arithmetic,
    calls,
    chat,
    facts,
    lists,
    reading,
    recall,
    records,
    stories,
)
from .document import Document, Talk, Turn, render
from .heldout import Split

# shares of the tokens; section 1.2, with a little plain prose taken from the stories
WEIGHTS: dict[str, float] = {
    "story": 0.32, "prose": 0.03, "reading": 0.11, "arithmetic": 0.16, "json": 0.08,
    "tools": 0.04, "recall": 0.08, "lists": 0.05, "facts": 0.06, "chat": 0.03, "talk": 0.04,
}
# measured length of one document in tokens
MEAN_TOKENS: dict[str, float] = {
    "story": 126, "prose": 92, "reading": 137, "arithmetic": 85, "json": 102, "tools": 638,
    "recall": 225, "lists": 69, "facts": 69, "chat": 62, "talk": 165,
}
TRAIN_ONLY = ("chat", "talk")


class UnknownFamilyError(ValueError):
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
            raise UnknownFamilyError(name)
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
        "talk": write_talk,
    }


def write_talk(rng: Random, split: Split) -> Document:
    """A longer conversation: two or three tasks of different families one after the other."""
    turns: list[Turn] = []
    for writer in rng.sample(_PARTS, 2 + (rng.random() < 0.5)):
        last = writer(rng, split)
        turns += last.talk.turns[:2]
    effort = last.talk.effort
    return render("talk", Talk(turns, effort, last.talk.system))


_PARTS: list[Callable[[Random, Split], Document]] = [
    stories.write, reading.write, arithmetic.write, lists.write, facts.write,
    lambda rng, split: chat.write(rng), lambda rng, split: chat.write(rng),
]
