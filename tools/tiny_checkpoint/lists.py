"""Small tasks on a row of words or numbers: repeat, reverse, sort, count, spell, pick out.

In: a random generator, the split. Out: documents of the family `lists`.
Does not know: what the words mean.
"""

from collections.abc import Callable
from random import Random

from .document import Document, Talk, Turn, render
from .effort import draw_effort, draw_system, plan
from .heldout import Split, is_held_out
from .town import (
    ANIMALS,
    COLORS,
    FRUITS,
    NAMES,
    NUMBERS,
    PLACES,
    RARE_THINGS,
    THINGS,
    pick,
)

Task = tuple[str, str, str]
_WORDS = (THINGS, ANIMALS, COLORS, FRUITS, NAMES, list(PLACES), THINGS + RARE_THINGS)
_ORDINALS = ("first", "second", "third", "fourth", "fifth")


def _row(rng: Random, most: int = 6) -> list[str]:
    words = pick(rng, _WORDS)
    return rng.sample(words, min(len(words), 2 + int(rng.random() * (most - 1))))


def _numbers(rng: Random) -> list[str]:
    return [str(n) for n in rng.sample(range(100), 2 + int(rng.random() * 5))]


def _join(row: list[str]) -> str:
    return ", ".join(row)


def _repeat(rng: Random) -> Task:
    row = pick(rng, (_row, _numbers))(rng)
    ask = pick(rng, ("Repeat: {}", "Say this again: {}", "Repeat after me: {}", "Copy: {}"))
    return ask.format(_join(row)), _join(row), f"There are {NUMBERS[len(row)]} words."


def _reverse(rng: Random) -> Task:
    row = pick(rng, (_row, _numbers))(rng)
    ask = pick(rng, ("Reverse: {}", "Say this backwards: {}", "Turn this list around: {}"))
    return ask.format(_join(row)), _join(row[::-1]), f"The last one is {row[-1]}."


def _sort(rng: Random) -> Task:
    if rng.random() < 0.5:
        row = _numbers(rng)
        ordered = sorted(row, key=int)
        ask = pick(rng, ("Sort: {}", "Sort these numbers: {}", "Put in order: {}"))
        return ask.format(_join(row)), _join(ordered), f"The smallest is {ordered[0]}."
    row = _row(rng, 5)
    ordered = sorted(row)
    ask = pick(rng, ("Sort by the alphabet: {}", "Sort these words: {}", "Sort: {}"))
    return ask.format(_join(row)), _join(ordered), f"The first is {ordered[0]}."


def _count(rng: Random) -> Task:
    row = _row(rng, 9)
    number = NUMBERS[len(row)]
    ask = pick(rng, ("How many words are here: {}", "Count: {}",
                     "How many things are in the list: {}"))
    walk = ", ".join(f"{word} {n + 1}" for n, word in enumerate(row))
    return ask.format(_join(row)), f"There are {number}.", f"{walk}."


def _count_on(rng: Random) -> Task:
    start, step = int(rng.random() * 80), pick(rng, (1, 1, 1, 2, 3, 5, 10))
    row = [str(start + step * n) for n in range(3)]
    more = [str(start + step * n) for n in range(3, 7)]
    ask = pick(rng, ("Count on: {}", "What comes next: {}", "Continue: {}"))
    return ask.format(_join(row)), _join(more), f"The step is {step}."


def _spell(rng: Random) -> Task:
    word = pick(rng, pick(rng, _WORDS))
    ask = pick(rng, ("Spell {}.", "How do you spell {}?", "Spell the word {}."))
    return ask.format(word), "-".join(word.lower()), f"The word has {len(word)} letters."


def _nth(rng: Random) -> Task:
    row = _row(rng, 5)
    place = int(rng.random() * len(row))
    if rng.random() < 0.25:
        name, place = "last", len(row) - 1
    else:
        name = _ORDINALS[place]
    ask = pick(rng, ("What is the {} word: {}", "Say the {} of these: {}"))
    return ask.format(name, _join(row)), row[place], f"The list is {_join(row[:place + 1])}."


def _contains(rng: Random) -> Task:
    row = _row(rng, 6)
    inside = rng.random() < 0.5
    if inside:
        word = pick(rng, row)
    else:
        word = pick(rng, [w for w in pick(rng, _WORDS) if w not in row] or ["moon"])
    ask = pick(rng, ("Is {} in this list: {}", "Does the list have {}? {}"))
    answer = f"Yes, {word} is in the list." if inside else f"No, {word} is not in the list."
    return ask.format(word, _join(row)), answer, f"I look for {word}."


def _largest(rng: Random) -> Task:
    row = _numbers(rng)
    if rng.random() < 0.5:
        return f"Which number is the largest: {_join(row)}", max(row, key=int), "I compare them."
    return f"Which number is the smallest: {_join(row)}", min(row, key=int), "I compare them."


TASKS: tuple[Callable[[Random], Task], ...] = (
    _repeat, _reverse, _sort, _sort, _count, _count_on, _spell, _nth, _contains, _largest)


def write(rng: Random, split: Split) -> Document:
    """One task; in chat mode up to four in a row. A task is held out by its whole question."""
    effort = draw_effort(rng)
    count = 1 if effort is not None or split == "heldout" else 1 + int(rng.random() * 4)
    turns: list[Turn] = []
    while len(turns) < count:
        question, answer, thought = pick(rng, TASKS)(rng)
        if is_held_out("list", question) == (split == "heldout"):
            turns.append(Turn(question, answer, plan(effort, "I look at the list.", thought)))
    return render("lists", Talk(turns, effort, draw_system(rng)))
