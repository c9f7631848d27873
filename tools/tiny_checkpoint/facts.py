"""Small facts to know by heart: definitions, capitals, opposites, the order of days, sounds.

In: a random generator, the split. Out: documents of the family `facts`.
Does not know: greetings and questions about the project.
"""

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from .document import Document, Talk, Turn, render
from .effort import draw_effort, draw_system, plan
from .heldout import Split, is_held_out
from .town import pick

CAPITALS = dict(pair.split(":") for pair in (
    "France:Paris Italy:Rome Spain:Madrid Germany:Berlin England:London Ireland:Dublin "
    "Portugal:Lisbon Norway:Oslo Sweden:Stockholm Finland:Helsinki Denmark:Copenhagen "
    "Austria:Vienna Poland:Warsaw Hungary:Budapest Greece:Athens Turkey:Ankara Egypt:Cairo "
    "Kenya:Nairobi Ghana:Accra Morocco:Rabat Tunisia:Tunis Japan:Tokyo China:Beijing "
    "India:Delhi Nepal:Kathmandu Thailand:Bangkok Vietnam:Hanoi Iran:Tehran Iraq:Baghdad "
    "Russia:Moscow Ukraine:Kyiv Romania:Bucharest Bulgaria:Sofia Serbia:Belgrade "
    "Croatia:Zagreb Belgium:Brussels Netherlands:Amsterdam Canada:Ottawa Mexico:Mexico_City "
    "Cuba:Havana Peru:Lima Chile:Santiago Argentina:Buenos_Aires Brazil:Brasilia "
    "Colombia:Bogota Ecuador:Quito Uruguay:Montevideo Australia:Canberra Iceland:Reykjavik "
    "Estonia:Tallinn Latvia:Riga Lithuania:Vilnius Korea:Seoul Indonesia:Jakarta "
    "Philippines:Manila Pakistan:Islamabad Kuwait:Kuwait_City Lebanon:Beirut Jordan:Amman "
    "Ethiopia:Addis_Ababa Senegal:Dakar Algeria:Algiers Slovenia:Ljubljana Malta:Valletta"
).split())
OPPOSITES = dict(pair.split(":") for pair in (
    "big:small tall:short hot:cold fast:slow old:young light:dark day:night open:closed "
    "happy:sad good:bad up:down left:right full:empty rich:poor loud:quiet wet:dry hard:soft "
    "near:far early:late first:last high:low long:short strong:weak thick:thin clean:dirty "
    "sweet:sour easy:difficult new:old before:after above:below begin:end buy:sell give:take "
    "push:pull win:lose love:hate remember:forget summer:winter north:south east:west "
    "inside:outside black:white true:false always:never many:few heavy:light deep:shallow "
    "wide:narrow brave:afraid friend:enemy laugh:cry awake:asleep alive:dead arrive:leave "
    "together:alone smooth:rough sharp:blunt warm:cool safe:dangerous"
).split())
SOUNDS = dict(pair.split(":") for pair in (
    "dog:woof cat:meow cow:moo duck:quack sheep:baa pig:oink horse:neigh owl:hoot frog:croak "
    "hen:cluck crow:caw mouse:squeak bee:buzz goat:maa lion:roar snake:hiss").split())
CIRCLES = (
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
    ("January February March April May June July August September October November "
     "December").split(),
    "spring summer autumn winter".split(),
)
COLORS_OF = dict(pair.split(":") for pair in (
    "grass:green snow:white coal:black blood:red lemon:yellow milk:white chocolate:brown "
    "leaf:green raven:black banana:yellow tomato:red cucumber:green flamingo:pink "
    "carrot:orange").split())
AMOUNTS = (
    ("days are in a week", "seven days"), ("months are in a year", "twelve months"),
    ("hours are in a day", "24 hours"), ("minutes are in an hour", "60 minutes"),
    ("seconds are in a minute", "60 seconds"), ("legs does a spider have", "eight legs"),
    ("legs does a dog have", "four legs"), ("legs does a bird have", "two legs"),
    ("sides does a triangle have", "three sides"), ("corners does a square have", "four corners"),
    ("letters are in the alphabet", "26 letters"), ("seasons are in a year", "four seasons"),
    ("legs does an ant have", "six legs"), ("fingers are on a hand", "five fingers"),
)


class Known(NamedTuple):
    """A fact: its subject, the wordings of the question, the answer."""

    subject: str
    questions: tuple[str, ...]
    answer: str


@cache
def definitions() -> dict[str, str]:
    """1,500 words with a short meaning, from WordNet (see LICENSE.wordnet)."""
    path = Path(__file__).with_name("definitions.json")
    return json.loads(path.read_text(encoding="utf-8"))["definitions"]


_DEFINE = ("What does {} mean?", "Define {}.", "What is the meaning of {}?", "Explain the word {}.",
           'What does "{}" mean?', "Give me a definition of {}.", "meaning of {}",
           "Tell me what {} means.")


@cache
def meanings() -> tuple[Known, ...]:
    """All definitions as facts."""
    return tuple(Known(word, tuple(frame.format(word) for frame in _DEFINE), f"{word}: {gloss}.")
                 for word, gloss in definitions().items())


@cache
def general() -> tuple[Known, ...]:
    """All other facts."""
    facts = []
    for country, city in CAPITALS.items():
        city = city.replace("_", " ")
        facts.append(Known(country, (
            f"What is the capital of {country}?", f"Capital of {country}?",
            f"Name the capital of {country}.", f"Which city is the capital of {country}?"),
            f"The capital of {country} is {city}."))
        facts.append(Known(city, (
            f"{city} is the capital of which country?", f"Of which country is {city} the capital?",
            f"Which country has the capital {city}?"), f"{city} is the capital of {country}."))
    for word, opposite in OPPOSITES.items():
        facts.append(Known(word, (
            f"What is the opposite of {word}?", f"Opposite of {word}?",
            f"Say the opposite of {word}.",
            f"Tell me the opposite of {word}."), f"The opposite of {word} is {opposite}."))
    for animal, sound in SOUNDS.items():
        facts.append(Known(animal, (
            f"What does the {animal} say?", f"What sound does a {animal} make?",
            f"How does a {animal} sound?"), f"The {animal} says {sound}."))
    for noun, color in COLORS_OF.items():
        facts.append(Known(noun, (f"What color is {noun}?", f"Which color has {noun}?",
                                  f"Tell me the color of {noun}."),
                           f"The color of {noun} is {color}."))
    for amount, answer in AMOUNTS:
        facts.append(Known(amount, (f"How many {amount}?", f"Do you know how many {amount}?"),
                           f"The answer is {answer}."))
    for circle in CIRCLES:
        for place, word in enumerate(circle):
            after = circle[(place + 1) % len(circle)]
            facts.append(Known(word, (f"What comes after {word}?", f"Which one follows {word}?",
                                      f"After {word} comes what?"), f"After {word} comes {after}."))
            facts.append(Known(after, (f"What comes before {after}?",
                                       f"Which one is before {after}?"),
                               f"Before {after} comes {word}."))
    return tuple(facts)


def draw_question(rng: Random, split: Split, facts: tuple[Known, ...]) -> tuple[Known, str]:
    """A fact and a wording on the wanted side of the split.

    Facts are memorized, so every fact is trained; held out is the pair of fact and wording,
    for the facts that have other wordings to be learned from.
    """
    while True:
        fact = pick(rng, facts)
        question = pick(rng, fact.questions)
        if is_held_out("fact", question) == (split == "heldout") and is_trained(fact):
            return fact, question


def is_trained(fact: Known) -> bool:
    """At least one wording of the fact is not held out."""
    return not all(is_held_out("fact", question) for question in fact.questions)


def write(rng: Random, split: Split, task: str = "facts",
          facts: tuple[Known, ...] | None = None) -> Document:
    """One question, or in chat mode up to four; two of three ask for the meaning of a word."""
    effort = draw_effort(rng, 0.35)
    count = 1 if effort is not None or split == "heldout" else 1 + int(rng.random() * 4)
    turns = []
    for _ in range(count):
        asked = facts or (meanings() if rng.random() < 0.68 else general())
        fact, question = draw_question(rng, split, asked)
        turns.append(Turn(question, fact.answer,
                          plan(effort, "I know this.", f"The question is about {fact.subject}.")))
    return render(task, Talk(turns, effort, draw_system(rng)))
