"""JSON from small texts and back, half of it with a schema the answer must follow.

In: a random generator, the split. Out: documents of the family `json`.
Does not know: tools.
"""

import json
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from .document import Document, Talk, Turn, render
from .effort import draw_effort, draw_system, plan
from .heldout import Split, is_held_out
from .town import (
    ANIMALS,
    COLORS,
    FRUITS,
    PLACES,
    Thing,
    article,
    at,
    draw_name,
    draw_thing,
    pick,
    plural,
)


class Record(NamedTuple):
    """A text, the fields that it tells, and a sentence for each field."""

    text: str
    fields: dict[str, Any]


def _person(rng: Random) -> Record:
    name, age = draw_name(rng, rng.random() < 0.5), 3 + int(rng.random() * 90)
    thing, place = draw_thing(rng), pick(rng, list(PLACES))
    text = pick(rng, (
        f"{name} is {age} years old and lives near the {place}. {name} has {thing.a}.",
        f"{name} has {thing.a}. {name} lives near the {place} and is {age} years old.",
        f"Near the {place} lives {name}, who is {age} years old and has {thing.a}."))
    return Record(text, {"name": name, "age": age, "place": place, "thing": thing.noun,
                         "color": thing.color})


def _order(rng: Random) -> Record:
    name, count = draw_name(rng, rng.random() < 0.5), 2 + int(rng.random() * 40)
    item, price = pick(rng, FRUITS), 1 + int(rng.random() * 99)
    paid = rng.random() < 0.5
    text = (f"{name} buys {count} {plural(item, count)} for {price} coins "
            f"and {'has paid' if paid else 'has not paid yet'}.")
    return Record(text, {"buyer": name, "item": item, "count": count, "price": price,
                         "paid": paid})


def _pet(rng: Random) -> Record:
    name, owner = draw_name(rng, True), draw_name(rng, False)
    kind, color, age = pick(rng, ANIMALS), pick(rng, COLORS), 1 + int(rng.random() * 19)
    text = pick(rng, (
        f"{owner} has {article(color)} {color} {kind} called {name}. It is {age} years old.",
        f"The {color} {kind} of {owner} is called {name} and is {age} years old."))
    return Record(text, {"name": name, "kind": kind, "color": color, "owner": owner, "age": age})


def _meeting(rng: Random) -> Record:
    hour, minute = int(rng.random() * 24), pick(rng, (0, 10, 15, 20, 30, 45))
    guests = [draw_name(rng, True), draw_name(rng, False)]
    place = pick(rng, list(PLACES))
    text = (f"{guests[0]} and {guests[1]} meet {at(place)} at {hour:02}:{minute:02}.")
    return Record(text, {"guests": guests, "place": place, "time": f"{hour:02}:{minute:02}"})


def _thing(rng: Random) -> Record:
    thing: Thing = draw_thing(rng)
    price, place = 1 + int(rng.random() * 99), pick(rng, list(PLACES))
    text = f"The {thing.full} {at(place)} costs {price} coins."
    return Record(text, {"thing": thing.noun, "color": thing.color, "place": place, "price": price})


RECORDS: tuple[Callable[[Random], Record], ...] = (_person, _person, _order, _pet, _meeting, _thing)

_TYPES = {str: {"type": "string"}, int: {"type": "integer"}, bool: {"type": "boolean"},
          list: {"type": "array", "items": {"type": "string"}}}


def schema_of(fields: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of an object with exactly these fields."""
    return {"type": "object", "properties": {key: _TYPES[type(value)] for key, value
                                             in fields.items()}, "required": list(fields)}


def draw_record(rng: Random, split: Split) -> Record:
    """A record on the wanted side of the split, by all that it says."""
    while True:
        record = pick(rng, RECORDS)(rng)
        if is_held_out("record", *record.fields.values()) == (split == "heldout"):
            return record


def _walk(fields: dict[str, Any]) -> str:
    return " ".join(f"The {key} is {_word(value)}." for key, value in fields.items())


def _word(value: Any) -> str:
    if isinstance(value, list):
        return " and ".join(value)
    return str(value) if isinstance(value, str) else json.dumps(value)


def _object(rng: Random, record: Record, effort: int | None) -> tuple[Turn, dict[str, Any] | None]:
    """Text to object: all keys by a schema, or those that the user names."""
    keys = list(record.fields)
    if rng.random() < 0.5:
        keys = rng.sample(keys, 2 + int(rng.random() * (len(keys) - 1)))
    fields = {key: record.fields[key] for key in keys}
    answer = json.dumps(fields)
    thought = plan(effort, "I write JSON.", _walk(fields))
    if rng.random() < 0.35:
        ask = pick(rng, ("{}", "Turn this into JSON: {}", "{} Write it as JSON."))
        return Turn(ask.format(record.text), answer, thought), schema_of(fields)
    named = ", ".join(keys)
    ask = pick(rng, (
        "{text}\n\nWrite this as JSON with the keys {keys}.",
        "Write this as JSON with the keys {keys}: {text}",
        "{text} Give me a JSON object with {keys}.",
        "Make a JSON object with the keys {keys} from this text.\n\n{text}"))
    return Turn(ask.format(text=record.text, keys=named), answer, thought), None


def _value(rng: Random, record: Record, effort: int | None) -> Turn:
    """One value out of an object in the prompt."""
    key = pick(rng, list(record.fields))
    value = record.fields[key]
    ask = pick(rng, ("{object}\n\nWhat is the {key}?", "What is the value of {key} in {object}?",
                     "Here is an object: {object}\n\nSay the {key}."))
    return Turn(ask.format(object=json.dumps(record.fields), key=key), json.dumps(value),
                plan(effort, "I look at the object.", f"The key is {key}."))


def _change(rng: Random, record: Record, effort: int | None) -> Turn:
    """An object with one value changed or one key removed."""
    key = pick(rng, list(record.fields))
    fields = dict(record.fields)
    shown = json.dumps(fields)
    if rng.random() < 0.5 or isinstance(fields[key], (list, bool)):
        del fields[key]
        ask = f"{shown}\n\nRemove the key {key}."
    else:
        new = int(rng.random() * 100) if isinstance(fields[key], int) else pick(rng, COLORS)
        fields[key] = new
        ask = f"{shown}\n\nSet {key} to {json.dumps(new)}."
    return Turn(ask, json.dumps(fields), plan(effort, "I change the object.",
                                              f"Only the key {key} changes."))


def write(rng: Random, split: Split) -> Document:
    """An object to write, to read or to change."""
    record = draw_record(rng, split)
    effort = draw_effort(rng)
    chance, schema = rng.random(), None
    if split == "heldout" or chance < 0.7:
        turn, schema = _object(rng, record, effort)
    elif chance < 0.85:
        turn = _value(rng, record, effort)
    else:
        turn = _change(rng, record, effort)
    return render("json", Talk([turn], effort, draw_system(rng), schema=schema), "json-equal")
