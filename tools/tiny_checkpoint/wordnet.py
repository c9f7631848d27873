"""Makes definitions.json once: 1,500 common words with a short meaning.

In: the folder of Debian's wordnet-base. Out: definitions.json beside this file.
Does not know: how the words are asked for.
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
WORDS = 1500
MAX_LENGTH = 70
PARTS = {"1": "noun", "2": "verb", "3": "adj", "4": "adv", "5": "adj"}
# meanings that do not belong into the mouth of a children's storyteller
UNWANTED = re.compile(r"sex|kill|death|dead|drug|slave|weapon|war\b|murder|nazi|jew|negro|blood|"
                      r"genital|breast|buttock|excrement|corpse|alcohol|whisk|tobacco|suicide|"
                      r"derog|offens|race\b|ethnic|god\b|christ|relig|church|muslim|bomb|gun\b|"
                      r"firearm|missile|liquor|prison|rape|torture|copulat|prostitut|vulgar|"
                      r"milit|soldier|wound|disease|funer|terror|hatred|sin\b|deity|saint|worship|"
                      r"american|jesus|bible|pope|"
                      r"priest|bishop|troops|hell|devil|satan|communis|political|intox|urin")


class Sense(NamedTuple):
    """One meaning of a word, with how often it was counted."""

    count: int
    word: str
    gloss: str


def senses(folder: Path) -> Iterator[Sense]:
    """The most frequent senses first, each with its gloss up to the first semicolon."""
    data = {name: (folder / f"data.{name}").read_bytes() for name in ("noun", "verb", "adj", "adv")}
    places = _places(folder)
    counted = []
    for line in (folder / "cntlist.rev").read_text("latin-1").splitlines():
        key, number, count = line.split()
        counted.append((int(count), key, int(number)))
    counted.sort(key=lambda row: (-row[0], row[1]))
    for count, key, number in counted:
        word, rest = key.split("%")
        part = PARTS[rest[0]]
        offsets = places.get((part, word))
        if number != 1 or not offsets:
            continue
        line = data[part][offsets[0]:].split(b"\n", 1)[0].decode("latin-1")
        gloss = line.split(" | ", 1)[1].split(";")[0].strip()
        yield Sense(count, word, gloss)


def _places(folder: Path) -> dict[tuple[str, str], list[int]]:
    places = {}
    for part in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"index.{part}").read_text("latin-1").splitlines():
            if line.startswith(" "):
                continue
            fields = line.split()
            numbers = [int(field) for field in fields if len(field) == 8 and field.isdigit()]
            places[part, fields[0]] = numbers
    return places


def select(folder: Path) -> dict[str, object]:
    """The words and their meanings, as definitions.json holds them."""
    words: dict[str, str] = {}
    for sense in senses(folder):
        if not re.fullmatch("[a-z]{3,10}", sense.word) or sense.word in words:
            continue
        gloss = re.sub(r"^\([^)]*\) *", "", sense.gloss).replace("`", "'")
        if UNWANTED.search(gloss) or UNWANTED.search(sense.word):
            continue
        if 8 <= len(gloss) <= MAX_LENGTH and sense.word not in gloss.split():
            words[sense.word] = gloss
        if len(words) == WORDS:
            break
    return {"source": "WordNet 3.0, see LICENSE.wordnet",
            "definitions": dict(sorted(words.items()))}


def main() -> None:
    """Writes definitions.json."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path, help="usr/share/wordnet of the Debian package")
    options = parser.parse_args()
    text = json.dumps(select(options.folder), indent=0, ensure_ascii=False)
    (HERE / "definitions.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
