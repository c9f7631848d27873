"""Requests for a story, each naming only what really occurs, and the story told.

In: a random generator, the split. Out: documents of the families `story` and `prose`.
Does not know: how a plot runs.
"""

from random import Random
from typing import NamedTuple

from .document import Document, Talk, Turn, prose, render
from .effort import draw_effort, draw_system, plan
from .heldout import Split
from .plots import Tale, tell
from .town import Cast, article, at, draw_cast, is_on_side, pick


class Request(NamedTuple):
    """What the user asks for and the words that the story must hold."""

    text: str
    mentions: tuple[str, ...]


_PLAIN = (
    "Tell me a story.", "Please tell me a story.", "Tell me a short story.", "Tell a story.",
    "Can you tell me a story?", "Write a short story.", "I would like to hear a story.",
    "Tell me a bedtime story.", "Make up a story for me.", "Do you know a story?",
    "Write a little story.", "A story, please.", "Tell me something nice.",
    "Write me a story for children.", "Once more a story, please.",
)
_FRAMES = (
    "Tell me a story about {}.", "Tell me a story about {}.", "Tell me a story about {}.",
    "Write a short story about {}.", "Please tell me a story about {}.",
    "Can you tell me a story about {}?", "I want a story about {}.", "Tell a story about {}.",
    "Write a story about {}.", "Tell me a short story about {}.", "Make up a story about {}.",
    "Do you know a story about {}?", "A story about {}, please.", "tell me a story about {}",
    "Give me a story about {}.", "I would like to hear a story about {}.",
    "Could you write a little story about {}?", "Tell me a bedtime story about {}.",
)
_WITH = (
    "Write a story with {} in it.", "Tell me a story with {}.", "Please use {} in a short story.",
    "There should be {} in the story. Tell it.", "Tell me a story in which there is {}.",
)


def a(noun: str) -> str:
    """The noun with its indefinite article."""
    return f"{article(noun)} {noun}"


def request(rng: Random, tale: Tale) -> Request:
    """A request that this tale fulfills."""
    hero, friend, thing, _, _, place = tale.cast
    chance = rng.random()
    if chance < 0.1:
        return Request(pick(rng, _PLAIN), (hero.name,))
    if chance < 0.34:
        subject = f"{a(hero.kind)} and {a(thing.noun)}"
        return Request(pick(rng, _FRAMES).format(subject), (hero.kind, thing.noun))
    named = f"{a(hero.kind)} {pick(rng, ('named', 'named', 'called'))} {hero.name}"
    options = (
        (a(hero.kind), (hero.kind,)),
        (named, (hero.kind, hero.name)),
        (named + " " + at(place), (hero.kind, hero.name, place)),
        (f"{named} and {thing.a}", (hero.kind, hero.name, thing.color, thing.noun)),
        (hero.name, (hero.name,)),
        (f"{hero.name} and {friend.name}", (hero.name, friend.name)),
        (f"{hero.name} the {hero.kind}", (hero.name, hero.kind)),
        (f"{hero.name} and {thing.a}", (hero.name, thing.color, thing.noun)),
        (f"{a(hero.kind)} and {thing.a}", (hero.kind, thing.color, thing.noun)),
        (f"{a(hero.kind)} and {a(friend.kind)}" if hero.kind != friend.kind
         else f"two {hero.kind}s", (hero.kind, friend.kind)),
        (f"{a(hero.trait)} {hero.kind}", (hero.trait, hero.kind)),
        (f"{a(hero.kind)} with {thing.a}", (hero.kind, thing.color, thing.noun)),
        (f"{a(hero.kind)} {at(place)}", (hero.kind, place)),
        (tale.theme, (hero.name,)),
        (f"{a(hero.kind)} and {tale.theme}", (hero.kind,)),
    )
    if chance < 0.44:
        subject, mentions = pick(rng, ((thing.a, (thing.color, thing.noun)),
                                       (a(thing.noun), (thing.noun,)),
                                       (f"the {place}", (place,))))
        frames = _WITH if not subject.startswith("the ") and rng.random() < 0.6 else _FRAMES
        return Request(pick(rng, frames).format(subject), mentions)
    subject, mentions = pick(rng, options)
    return Request(pick(rng, _FRAMES).format(subject), mentions)


def think(tale: Tale, effort: int | None) -> str:
    """The plan of a story: short, or with everybody and everything in it."""
    hero, friend, thing, other, _, place = tale.cast
    brief = f"A story about {hero.name} the {hero.kind}."
    usual = (f"The hero is {hero.name} the {hero.kind}. The friend is {friend.name} the "
             f"{friend.kind}. There is {thing.a}.")
    other_thing = f" {friend.name} has {other.a}." if tale.theme == "a trade" else ""
    thorough = f"{usual}{other_thing} It happens {at(place)}. It is about {tale.theme}."
    return plan(effort, brief, usual + other_thing, thorough)


_CONTINUE = ("Continue this story: {}", "Continue: {}", "{}", "Go on with this story. {}",
             "How does this story go on? {}")


def _opening(rng: Random, tale: Tale) -> Request:
    """The first sentences as the request; what is left of the tale is the answer."""
    count = 1 + int(rng.random() * 3)
    told, tale.lines = tale.lines[:count], tale.lines[count:]
    return Request(pick(rng, _CONTINUE).format(" ".join(told)), (tale.cast.thing.noun,))


def _typed(rng: Random, text: str) -> str:
    """As people type: at times without the last mark or the capital letter."""
    chance = rng.random()
    if chance < 0.08 and not text.startswith("I "):
        text = text[0].lower() + text[1:]
    return text[:-1] if 0.04 < chance < 0.12 and text[-1] in ".?" else text


def _cast(rng: Random, split: Split) -> Cast:
    """Anybody; one time in a hundred the fox and the lantern of the project's first example."""
    cast = draw_cast(rng, split)
    if split == "train" and rng.random() < 0.01:
        hero, thing = cast.hero._replace(kind="fox"), cast.thing._replace(noun="lantern")
        if (cast.friend.kind != "fox" and cast.other.noun != "lantern"
                and is_on_side(split, hero, cast.friend, thing, cast.other)):
            return cast._replace(hero=hero, thing=thing)
    return cast


def write(rng: Random, split: Split) -> Document:
    """A story on request; nearly half of them are followed by questions about it."""
    tale = tell(rng, _cast(rng, split))
    effort = draw_effort(rng, 0.35)
    thought = think(tale, effort)
    if split == "train" and rng.random() < 0.05:
        asked = _opening(rng, tale)
        return render("story", Talk([Turn(asked.text, tale.text, thought)], effort), "contains",
                      asked.mentions)
    asked = request(rng, tale)
    turns = [Turn(_typed(rng, asked.text), tale.text, thought)]
    if split == "train" and rng.random() < (0.45 if effort is None else 0.1):
        facts = rng.sample(tale.facts, 1 + (rng.random() < 0.5))
        turns += [Turn(fact.question, fact.answer, evidence(fact.evidence, fact.answer, effort))
                  for fact in facts]
    return render("story", Talk(turns, effort, draw_system(rng)), "contains", asked.mentions)


def evidence(line: str, answer: str, effort: int | None) -> str:
    """The plan of an answer about a story: where the story says it."""
    usual = f'The story says: {line}'
    return plan(effort, "I look at the story.", usual, f"{usual} So the answer is: {answer}")


def write_prose(rng: Random, split: Split) -> Document:
    """A story without a conversation around it, at times after the bare request."""
    tale = tell(rng, draw_cast(rng, split))
    if rng.random() < 0.4:
        return prose("prose", f"{request(rng, tale).text}\n\n{tale.text}")
    return prose("prose", tale.text)
