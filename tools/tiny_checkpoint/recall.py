"""Codes hidden between the sentences of a story, to be found again: short texts and long ones.

In: a random generator, the split, how many lines or tokens. Out: recall documents.
Does not know: token ids (lengths are estimated).
"""

from random import Random
from typing import NamedTuple

from .document import Document, Talk, Turn, render
from .effort import draw_effort, draw_system, plan
from .heldout import Split, is_code_held_out
from .plots import tell
from .town import COLORS, NAMES, PLACES, THINGS, draw_cast, pick

# letters per token of the sentences, and tokens of a code line, with the shipped vocabulary
LETTERS_PER_TOKEN = 4.08
LINE_TOKENS = 13
FRAME_TOKENS = 60
# ten layers with windows of 32 see 320 tokens back; some margin for the estimate
REACH_TOKENS = 370


class Key(NamedTuple):
    """What a code belongs to, as it stands in a line and in a question."""

    line: str
    question: str


class Entry(NamedTuple):
    """A key with its code."""

    key: Key
    code: str

    @property
    def text(self) -> str:
        """The line of the text."""
        return f"{self.key.line} is {self.code}."


def _key(rng: Random) -> Key:
    chance = rng.random()
    if chance < 0.7:
        owner = f"the {pick(rng, COLORS)} {pick(rng, THINGS)}"
    elif chance < 0.85:
        owner = f"the {pick(rng, list(PLACES))}"
    else:
        owner = pick(rng, NAMES)
    return Key(f"The code of {owner}", f"the code of {owner}")


def draw_code(rng: Random, split: Split) -> str:
    """Four digits on the wanted side of the split."""
    while True:
        code = f"{int(rng.random() * 10000):04}"
        if is_code_held_out(code) == (split == "heldout"):
            return code


def draw_entries(rng: Random, split: Split, count: int) -> list[Entry]:
    """Entries with different keys and different codes."""
    keys: dict[Key, None] = {}
    while len(keys) < count:
        keys[_key(rng)] = None
    codes: dict[str, None] = {}
    while len(codes) < count:
        codes[draw_code(rng, split)] = None
    return [Entry(key, code) for key, code in zip(keys, codes, strict=True)]


_ASK = ("What is {}?", "What is {}?", "Tell me {}.", "Please say {}.", "Do you remember {}?")
_BARE = ("Say only the number: what is {}?", "Number only: {}.")


def turn(rng: Random, entry: Entry, effort: int | None, bare: float = 0.2) -> Turn:
    """The question for one entry; the answer repeats its line, or gives the number alone."""
    thought = plan(effort, "I look for the line.", f"I look for {entry.key.question}.",
                   f"I look for {entry.key.question}. The line says: {entry.text}")
    if rng.random() < bare:
        question = pick(rng, _BARE).format(entry.key.question)
        return Turn(question, entry.code, thought)
    return Turn(pick(rng, _ASK).format(entry.key.question), entry.text, thought)


def _both(first: Entry, second: Entry, effort: int | None) -> Turn:
    question = f"What are {first.key.question} and {second.key.question}?"
    return Turn(question, f"{first.text} {second.text}",
                plan(effort, "I look for the lines.", "I look for two lines."))


def _filler(rng: Random, split: Split) -> list[str]:
    """The sentences of one tale."""
    return tell(rng, draw_cast(rng, split)).lines


def write(rng: Random, split: Split, lines: int) -> Document:
    """Up to `lines` code lines with some story sentences between them, one to four questions.

    Sometimes a key gets a second code further down: then the last one counts.
    """
    count = 1 + int(rng.random() * max(lines, 1))
    if split == "heldout":
        count = max(count, min(2, lines))
    entries = draw_entries(rng, split, count)
    body = [entry.text for entry in entries]
    wanted = list(entries)
    intro = _INTRO
    if count > 1 and rng.random() < 0.15:
        old = int(rng.random() * (count - 1))
        changed = Entry(entries[old].key, draw_code(rng, split))
        body.append(f"Now {changed.key.question} is {changed.code}.")
        wanted[old] = changed
        intro = _INTRO_LAST
    if rng.random() < 0.75:
        body = _mix(rng, body, _filler(rng, split)[: 2 + int(rng.random() * 9)])
    effort = draw_effort(rng)
    asked = _questions(rng, wanted, effort, 4 if split == "train" else 1)
    first = asked[0]._replace(question=f"{intro}{' '.join(body)}\n\n{asked[0].question}")
    return render("recall", Talk([first, *asked[1:]], effort, draw_system(rng)))


_INTRO = "Remember these codes. "
_INTRO_LAST = "Remember these codes. If a code changes, the last one counts. "


def _questions(rng: Random, entries: list[Entry], effort: int | None, most: int) -> list[Turn]:
    if len(entries) > 1 and rng.random() < 0.12:
        first, second = rng.sample(entries, 2)
        return [_both(first, second, effort)]
    count = 1 if effort is not None else 1 + int(rng.random() * min(most, len(entries)))
    return [turn(rng, entry, effort) for entry in rng.sample(entries, count)]


def _mix(rng: Random, lines: list[str], filler: list[str]) -> list[str]:
    """Both in their own order, interleaved at random."""
    places = sorted(int(rng.random() * (len(filler) + 1)) for _ in lines)
    mixed: list[str] = []
    for number, sentence in enumerate([*filler, ""]):
        mixed += [line for place, line in zip(places, lines, strict=True) if place == number]
        if sentence:
            mixed.append(sentence)
    return mixed


def write_long(rng: Random, split: Split, low: int, high: int) -> Document:
    """About `low` to `high` tokens of stories; code lines anywhere, up to eight questions."""
    length = low + int(rng.random() * (high - low + 1))
    entries = draw_entries(rng, split, 2 + int(rng.random() * min(23, max(1, length // 60))))
    effort = draw_effort(rng, 0.2)
    most = 8 if split == "train" and effort is None else 1
    asked = [turn(rng, entry, effort, 0.1)
             for entry in rng.sample(entries, min(len(entries), 1 + int(rng.random() * most)))]
    sentences = _story_of(rng, split, length - LINE_TOKENS * len(entries) - 40 * len(asked))
    text = " ".join(_mix(rng, [entry.text for entry in entries], sentences))
    first = asked[0]._replace(question=f"{_INTRO}{text}\n\n{asked[0].question}")
    return render("long_recall", Talk([first, *asked[1:]], effort))


def _story_of(rng: Random, split: Split, tokens: int) -> list[str]:
    letters = int((tokens - FRAME_TOKENS) * LETTERS_PER_TOKEN)
    sentences: list[str] = []
    while letters > 0:
        for line in _filler(rng, split):
            sentences.append(line)
            letters -= len(line) + 1
            if letters <= 0:
                break
    return sentences


def write_at_depths(rng: Random, tokens: int, depths: tuple[float, ...], each: int,
                    ) -> list[tuple[float, Document]]:
    """Evaluation: one text of about `tokens` tokens and `each` questions for every depth.

    The asked lines stand near a share of the length, but always more than the windows' reach
    before the question; half as many lines that nobody asks for lie anywhere between.
    """
    asked = len(depths) * each
    entries = draw_entries(rng, "heldout", asked + asked // 2)
    sentences = _story_of(rng, "heldout", tokens - LINE_TOKENS * len(entries))
    letters = sum(map(len, sentences))
    last = letters - REACH_TOKENS * LETTERS_PER_TOKEN
    places = [min(depth * letters, last) - (rng.random() * 0.04) * letters
              for depth in depths for _ in range(each)]
    places += [rng.random() * letters for _ in range(asked // 2)]
    waiting = sorted(zip(places, entries, strict=True), reverse=True)
    body: list[str] = []
    passed = 0
    for sentence in sentences:
        while waiting and waiting[-1][0] <= passed:
            body.append(waiting.pop()[1].text)
        body.append(sentence)
        passed += len(sentence)
    body += [entry.text for _, entry in reversed(waiting)]
    found = []
    for number, entry in enumerate(entries[:asked]):
        question = turn(rng, entry, None, 0.0)
        whole = f"{_INTRO}{' '.join(body)}\n\n{question.question}"
        document = render("long_recall", Talk([question._replace(question=whole)]))
        found.append((depths[number // each], document))
    return found
