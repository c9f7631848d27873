"""Tool use: which tool, with which arguments, and what its result means.

In: a random generator, the split. Out: documents of the family `tools`.
Does not know: how calls are spelled.
"""

import json
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from .document import Call, Document, Talk, Turn, render, spell_calls
from .effort import draw_effort, draw_system, plan
from .heldout import Split, is_held_out
from .town import FRUITS, PLACES, draw_name, draw_thing, pick, plural, two

CITIES = ("Paris Rome London Berlin Madrid Oslo Vienna Athens Lisbon Dublin Cairo Tokyo Lima Delhi "
          "Beijing Seoul Boston Zurich Prague Warsaw").split()
SKIES = "sunny cloudy rainy windy snowy clear".split()
SONGS = "river moon summer winter ocean garden morning winter mountain silver".split()


class Need(NamedTuple):
    """A wish of the user, the calls it takes, and what to say with their results."""

    question: str
    calls: tuple[Call, ...]
    answer: str


def _tool(name: str, description: str, **types: str) -> dict[str, Any]:
    properties = {key: {"type": value} for key, value in types.items()}
    return {"name": name, "description": description, "parameters": {
        "type": "object", "properties": properties, "required": list(types)}}


TOOLS = {tool["name"]: tool for tool in (
    _tool("get_weather", "The weather in a city.", city="string"),
    _tool("get_time", "The time in a city.", city="string"),
    _tool("add", "Adds two numbers.", a="integer", b="integer"),
    _tool("multiply", "Multiplies two numbers.", a="integer", b="integer"),
    _tool("buy", "Buys things at the market.", item="string", count="integer"),
    _tool("get_price", "The price of a thing.", item="string"),
    _tool("set_alarm", "Sets an alarm.", hour="integer", minute="integer"),
    _tool("send_letter", "Sends a letter.", to="string", text="string"),
    _tool("play_song", "Plays a song.", title="string"),
    _tool("switch_light", "Turns a light on or off.", room="string", on="boolean"),
    _tool("find_thing", "Finds where a thing is.", thing="string"),
    _tool("open_door", "Opens a door with a code.", place="string", code="string"),
)}


def _weather(rng: Random) -> Need:
    city, degrees, sky = pick(rng, CITIES), int(rng.random() * 36), pick(rng, SKIES)
    if rng.random() < 0.25:
        other, more = pick(rng, [c for c in CITIES if c != city]), int(rng.random() * 36)
        calls = (Call("get_weather", {"city": city}, f"{degrees} C, {sky}"),
                 Call("get_weather", {"city": other}, f"{more} C, {sky}"))
        return Need(f"What is the weather in {city} and {other}?", calls,
                    f"It is {degrees} degrees in {city} and {more} degrees in {other}.")
    ask = pick(rng, ("What is the weather in {}?", "How is the weather in {}?", "Weather in {}?",
                     "Is it warm in {} today?"))
    return Need(ask.format(city), (Call("get_weather", {"city": city}, f"{degrees} C, {sky}"),),
                f"In {city} it is {sky} with {degrees} degrees.")


def _time(rng: Random) -> Need:
    city, clock = pick(rng, CITIES), f"{int(rng.random() * 24):02}:{int(rng.random() * 60):02}"
    ask = pick(rng, ("What time is it in {}?", "Tell me the time in {}.", "How late is it in {}?"))
    return Need(ask.format(city), (Call("get_time", {"city": city}, clock),),
                f"It is {clock} in {city}.")


def _sum(rng: Random) -> Need:
    a, b = int(rng.random() * 10000), int(rng.random() * 10000)
    if rng.random() < 0.5:
        return Need(f"Add {a} and {b}.", (Call("add", {"a": a, "b": b}, str(a + b)),),
                    f"The sum is {a + b}.")
    return Need(f"Multiply {a} by {b}.", (Call("multiply", {"a": a, "b": b}, str(a * b)),),
                f"The product is {a * b}.")


def _buy(rng: Random) -> Need:
    count, item = 2 + int(rng.random() * 60), pick(rng, FRUITS)
    many = plural(item, count)
    ask = pick(rng, ("Buy {} {}.", "Please buy {} {} at the market.", "I need {} {}."))
    return Need(ask.format(count, many), (Call("buy", {"item": item, "count": count}, "done"),),
                f"I bought {count} {many}.")


def _price(rng: Random) -> Need:
    thing, price = draw_thing(rng), 1 + int(rng.random() * 99)
    ask = pick(rng, ("How much is the {}?", "What does the {} cost?", "Price of the {}?"))
    return Need(ask.format(thing.full),
                (Call("get_price", {"item": thing.full}, f"{price} coins"),),
                f"The {thing.full} costs {price} coins.")


def _alarm(rng: Random) -> Need:
    hour, minute = int(rng.random() * 24), int(rng.random() * 60)
    ask = pick(rng, ("Wake me at {:02}:{:02}.", "Set an alarm for {:02}:{:02}.",
                     "I must get up at {:02}:{:02}."))
    return Need(ask.format(hour, minute),
                (Call("set_alarm", {"hour": hour, "minute": minute}, "ok"),),
                f"The alarm is set for {hour:02}:{minute:02}.")


def _letter(rng: Random) -> Need:
    name, place = draw_name(rng, rng.random() < 0.5), pick(rng, list(PLACES))
    text = pick(rng, (f"Meet me near the {place}.", f"The {place} is beautiful today.",
                      "Happy birthday!", "Thank you for your help.", "See you tomorrow."))
    ask = pick(rng, ('Write to {}: "{}"', 'Send {} this letter: "{}"', 'Tell {} "{}"'))
    return Need(ask.format(name, text), (Call("send_letter", {"to": name, "text": text}, "sent"),),
                f"The letter to {name} is on its way.")


def _song(rng: Random) -> Need:
    first, second = two(rng, SONGS)
    title = f"{first} {second}"
    ask = pick(rng, ("Play the song {}.", "I want to hear {}.", "Play {}, please."))
    return Need(ask.format(title), (Call("play_song", {"title": title}, "playing"),),
                f"Now you hear {title}.")


def _light(rng: Random) -> Need:
    room, on = pick(rng, ("kitchen", "hall", "cellar", "bedroom", "garden", "tower", "barn")), \
        rng.random() < 0.5
    word = "on" if on else "off"
    ask = pick(rng, ("Turn {} the light in the {}.", "Switch {} the light in the {}."))
    return Need(ask.format(word, room), (Call("switch_light", {"room": room, "on": on}, "ok"),),
                f"The light in the {room} is {word}.")


def _find(rng: Random) -> Need:
    thing, place = draw_thing(rng), pick(rng, list(PLACES))
    ask = pick(rng, ("Where is my {}?", "Find the {}.", "I cannot find my {}."))
    return Need(ask.format(thing.full), (Call("find_thing", {"thing": thing.full}, place),),
                f"The {thing.full} is near the {place}.")


def _door(rng: Random) -> Need:
    place, code = pick(rng, list(PLACES)), f"{int(rng.random() * 10000):04}"
    return Need(f"Open the door of the {place} with the code {code}.",
                (Call("open_door", {"place": place, "code": code}, "open"),),
                f"The door of the {place} is open.")


NEEDS: tuple[Callable[[Random], Need], ...] = (
    _weather, _weather, _time, _sum, _buy, _price, _alarm, _letter, _song, _light, _find, _door)


def draw_need(rng: Random, split: Split) -> Need:
    """A need on the wanted side of the split, by the arguments of its calls."""
    while True:
        need = pick(rng, NEEDS)(rng)
        content = [json.dumps(call.arguments) for call in need.calls]
        if is_held_out("call", *content) == (split == "heldout"):
            return need


def _turn(need: Need, effort: int | None) -> Turn:
    call = need.calls[0]
    words = " and ".join(f"{key} {json.dumps(value)}" for key, value in call.arguments.items())
    more = " I call it twice." if len(need.calls) > 1 else ""
    lead = plan(effort, f"I use {call.tool}.", f"I use the tool {call.tool} with {words}.{more}")
    after = plan(effort, "I have the result.", f"The result is {call.result}.")
    return Turn(need.question, need.answer, after, need.calls, lead)


_SMALL_TALK = (
    ("Hello!", "Hello! How can I help you?"), ("Thank you.", "You are welcome."),
    ("Good morning.", "Good morning! How can I help you?"),
    ("Who are you?", "I am a tiny model that runs in DeepInfer."),
)


def write(rng: Random, split: Split) -> Document:
    """One to three needs, the tools for them and some that are not needed."""
    effort = draw_effort(rng)
    count = 1 if split == "heldout" else 1 + int(rng.random() * 3)
    needs = [draw_need(rng, split) for _ in range(count)]
    names = {call.tool for need in needs for call in need.calls}
    spare = [name for name in TOOLS if name not in names]
    names.update(rng.sample(spare, int(rng.random() * 3)))
    order = list(names)
    order.sort()
    rng.shuffle(order)
    turns = [_turn(need, effort) for need in needs]
    if split == "train" and rng.random() < 0.15:
        question, answer = pick(rng, _SMALL_TALK)
        turns.insert(int(rng.random() * (len(turns) + 1)),
                     Turn(question, answer, plan(effort, "No tool.", "No tool is needed here.")))
    talk = Talk(turns, effort, draw_system(rng), tuple(TOOLS[name] for name in order))
    return render("tools", talk)


def write_call(rng: Random, split: Split) -> Document:
    """A need up to the call itself: an evaluation item, answered by its DSML block."""
    effort = draw_effort(rng)
    need = draw_need(rng, split)
    turn = _turn(need, effort)._replace(answer="", plan="")
    names = sorted({call.tool for call in need.calls} | {pick(rng, list(TOOLS))})
    rng.shuffle(names)
    talk = Talk([turn], effort, "", tuple(TOOLS[name] for name in names))
    document = render("tools", talk, "dsml-equal")
    document.answer = spell_calls(need.calls)
    return document
