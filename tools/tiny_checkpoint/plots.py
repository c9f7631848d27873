"""Fourteen things that can happen in the town, told in short sentences.

In: a cast. Out: a `Tale`: its sentences and the questions that have one answer.
Does not know: who asks for the story, how it is spelled for the model.
"""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from .town import ANIMALS, FRUITS, NUMBERS, Cast, at, pick, plural


class Fact(NamedTuple):
    """A question with its one answer and the sentence of the tale that gives it."""

    question: str
    answer: str
    evidence: str


class Tale:
    """The sentences said so far and the facts that they settle."""

    def __init__(self, rng: Random, cast: Cast) -> None:
        self.rng = rng
        self.cast = cast
        self.lines: list[str] = []
        self.facts: list[Fact] = []
        self.theme = ""

    def say(self, *options: str) -> str:
        """Adds one of the wordings of a sentence and gives it back."""
        line = options[int(self.rng.random() * len(options))]
        self.lines.append(line)
        return line

    def ask(self, question: str, answer: str, evidence: str) -> None:
        """Notes a question that the evidence answers."""
        self.facts.append(Fact(question, answer, evidence))

    @property
    def text(self) -> str:
        """The whole tale."""
        return " ".join(self.lines)


def _open(tale: Tale) -> None:
    """Who it is about and where the hero lives."""
    hero, home = tale.cast.hero, tale.cast.home
    line = tale.say(
        f"Once upon a time there was a {hero.trait} {hero.kind} named {hero.name}.",
        f"In a little town lived a {hero.trait} {hero.kind} named {hero.name}.",
        f"There once was a {hero.trait} {hero.kind} called {hero.name}.",
        f"Long ago there lived a {hero.trait} {hero.kind} named {hero.name}.")
    tale.ask("Who is the story about?", f"The story is about {hero.name}.", line)
    tale.ask("Who is the hero?", f"The hero is {hero.name}.", line)
    if hero.kind not in ("girl", "boy"):
        tale.ask(f"What kind of animal is {hero.name}?" if hero.kind in _REAL else
                 f"What is {hero.name}?", f"{hero.name} is {_a(hero.kind)}.", line)
    if tale.rng.random() < 0.55:
        line = tale.say(f"{hero.He} lived near the {home}.",
                        f"{hero.name} lived in a small house near the {home}.",
                        f"{hero.His} home was near the {home}.")
        tale.ask(f"Where did {hero.name} live?", f"{hero.name} lived near the {home}.", line)


def _a(noun: str) -> str:
    return ("an " if noun[0] in "aeio" else "a ") + noun


_REAL = frozenset(ANIMALS)


def _day(tale: Tale) -> str:
    return pick(tale.rng, ("One day", "One morning", "One sunny afternoon", "On a warm day",
                           "On a cold day", "One evening"))


def _own(tale: Tale) -> None:
    """The hero has the thing."""
    hero, thing = tale.cast.hero, tale.cast.thing
    line = tale.say(f"{hero.name} had {thing.a}.", f"{hero.He} had {thing.a}.",
                    f"{hero.name} owned {thing.a} and loved it very much.",
                    f"{hero.He} loved {hero.his} {thing.full}.")
    _color(tale, line)


def _color(tale: Tale, line: str) -> None:
    thing = tale.cast.thing
    tale.ask(f"What color was the {thing.noun}?", f"The {thing.noun} was {thing.color}.", line)


def _meet(tale: Tale) -> str:
    """The friend comes in."""
    hero, friend = tale.cast.hero, tale.cast.friend
    line = tale.say(f"{hero.name} met a {friend.trait} {friend.kind} named {friend.name}.",
                    f"There {hero.he} met {friend.name} the {friend.kind}.",
                    f"{friend.name} the {friend.kind} came along.")
    tale.ask(f"Who is {friend.name}?", f"{friend.name} is {_a(friend.kind)}.", line)
    return line


def _close(tale: Tale, *options: str) -> None:
    hero, friend = tale.cast.hero, tale.cast.friend
    tale.say(*options, f"{hero.name} and {friend.name} were happy.",
             f"From that day on {hero.name} and {friend.name} were friends.",
             f"That night {hero.name} slept very well.")


def lost(tale: Tale) -> None:
    """The hero loses the thing and the friend has seen it."""
    hero, friend, thing, _, _, place = tale.cast
    tale.theme = f"a lost {thing.noun}"
    _own(tale)
    line = tale.say(f"{_day(tale)}, {hero.he} lost the {thing.noun} {at(place)}.",
                    f"{_day(tale)}, {hero.name} could not find the {thing.noun}. "
                    f"{hero.He} had lost it {at(place)}.")
    tale.ask(f"What did {hero.name} lose?", f"{hero.name} lost the {thing.full}.", line)
    tale.ask(f"Where did {hero.name} lose the {thing.noun}?",
             f"{hero.name} lost it {at(place)}.", line)
    tale.say(f"{hero.He} looked everywhere and felt sad.", f"{hero.name} began to cry.",
             f'"Where is my {thing.noun}?" asked {hero.name}.')
    _meet(tale)
    spot = pick(tale.rng, ("under a bench", "behind a tree", "in the tall grass", "under a leaf",
                           "next to a stone", "behind the door"))
    line = tale.say(f'"I saw {thing.a} {spot}," said {friend.name}.',
                    f'{friend.name} said, "There is {thing.a} {spot}."')
    tale.ask(f"Where was the {thing.noun}?", f"The {thing.noun} was {spot}.", line)
    tale.ask(f"Who helped {hero.name}?", f"{friend.name} helped {hero.name}.", line)
    tale.say(f"They ran there, and {hero.name} found the {thing.full}.",
             f"And there it was. {hero.name} held the {thing.noun} and smiled.")
    _close(tale, f'"Thank you, {friend.name}," said {hero.name}.')


def share(tale: Tale) -> None:
    """The hero has fruit and gives half of it away."""
    hero, friend, thing, _, _, place = tale.cast
    half = 1 + int(tale.rng.random() * 6)
    fruit = pick(tale.rng, FRUITS)
    many, few = plural(fruit, 2 * half), plural(fruit, half)
    tale.theme = "sharing"
    _own(tale)
    line = tale.say(f"{_day(tale)}, {hero.he} put {NUMBERS[2 * half]} {many} beside the "
                    f"{thing.noun}.",
                    f"{_day(tale)}, {hero.name} had {NUMBERS[2 * half]} {many} and {hero.his} "
                    f"{thing.noun} with {hero.him}.")
    tale.ask(f"How many {plural(fruit, 2)} did {hero.name} have at first?",
             f"{hero.name} had {NUMBERS[2 * half]} {many}.", line)
    line = tale.say(f"{at(place).capitalize()} sat {friend.name} the {friend.kind}, "
                    "who was hungry.",
                    f"{friend.name} the {friend.kind} was sitting {at(place)} and looked hungry.")
    tale.ask("Who was hungry?", f"{friend.name} was hungry.", line)
    tale.ask(f"Where was {friend.name}?", f"{friend.name} was {at(place)}.", line)
    line = tale.say(f'"Please take {NUMBERS[half]} {few}," said {hero.name}.',
                    f"{hero.name} gave {friend.name} {NUMBERS[half]} {few}.")
    tale.ask(f"How many {plural(fruit, 2)} did {friend.name} get?",
             f"{friend.name} got {NUMBERS[half]} {few}.", line)
    tale.say(f"Now {friend.name} had {NUMBERS[half]} and {hero.name} had {NUMBERS[half]}.",
             f"So each of them had {NUMBERS[half]}.")
    tale.say(f"Then they played with the {thing.full}.",
             f"{hero.name} showed {friend.name} the {thing.full}.")
    _close(tale, "Sharing made them both happy.", f'"You are a good friend," said {friend.name}.')


def storm(tale: Tale) -> None:
    """A storm takes the thing away and the friend gives shelter."""
    hero, friend, thing, _, _, place = tale.cast
    tale.theme = "a storm"
    _own(tale)
    line = tale.say(f"{_day(tale)}, a big storm came while {hero.name} was {at(place)}.",
                    f"{_day(tale)}, {hero.he} was {at(place)} when a storm began.")
    tale.ask(f"Where was {hero.name} when the storm came?", f"{hero.name} was {at(place)}.", line)
    tale.say(f"The wind was loud, and {hero.name} held the {thing.noun} tight.",
             f"It rained and rained. {hero.name} put the {thing.noun} under {hero.his} coat.")
    line = tale.say(f'"Come into my house!" called {friend.name} the {friend.kind}.',
                    f"{friend.name} the {friend.kind} opened the door and let {hero.him} in.")
    tale.ask(f"Who helped {hero.name}?", f"{friend.name} helped {hero.name}.", line)
    drink = pick(tale.rng, ("hot tea", "warm milk", "hot soup", "warm cocoa"))
    line = tale.say(f"{friend.name} gave {hero.name} some {drink}.",
                    f"They sat by the fire and had {drink}.")
    tale.ask("What did they drink?" if drink != "hot soup" else "What did they eat?",
             f"They had {drink}.", line)
    tale.say("Soon the sun came out again.", "In the morning the sky was blue.")
    tale.say(f"The {thing.full} was dry and safe.", f"{hero.name} still had the {thing.full}.")
    _close(tale, f'"Thank you for your help," said {hero.name}.')


def build(tale: Tale) -> None:
    """The two build something and the thing becomes part of it."""
    hero, friend, thing, _, _, place = tale.cast
    work = pick(tale.rng, ("tree house", "raft", "snow house", "sand castle",
                           "small bridge", "hut"))
    tale.theme = f"building a {work}"
    line = tale.say(f"{_day(tale)}, {hero.he} wanted to build a {work} {at(place)}.",
                    f'"I will build a {work} {at(place)}," said {hero.name}.')
    tale.ask(f"What did {hero.name} want to build?", f"{hero.name} wanted to build a {work}.", line)
    tale.ask(f"Where did {hero.name} build it?", f"{hero.name} built it {at(place)}.", line)
    tale.say("It was hard to do alone.", "But the work was too hard for one.")
    line = tale.say(f"{friend.name} the {friend.kind} came to help.",
                    f"So {hero.he} asked {friend.name} the {friend.kind} for help.")
    tale.ask(f"Who helped {hero.name}?", f"{friend.name} helped {hero.name}.", line)
    days = 2 + int(tale.rng.random() * 6)
    line = tale.say(f"They worked for {NUMBERS[days]} days.",
                    f"After {NUMBERS[days]} days the {work} was ready.")
    tale.ask("How many days did they work?", f"They worked for {NUMBERS[days]} days.", line)
    line = tale.say(f"{friend.name} brought {thing.a} and put it inside.",
                    f"At the end {friend.name} put {thing.a} on top.")
    _color(tale, line)
    tale.ask(f"What did {friend.name} bring?", f"{friend.name} brought the {thing.full}.", line)
    tale.say(f"Everybody could see the {thing.noun} from far away.",
             f"The {thing.full} looked very nice there.")
    _close(tale, "Together they could do anything.")


def trade(tale: Tale) -> None:
    """Hero and friend change their things; each then has the other's."""
    hero, friend, thing, other, _, place = tale.cast
    tale.theme = "a trade"
    line = tale.say(f"{hero.name} had {thing.a}.", f"{hero.He} had {thing.a}.")
    _color(tale, line)
    line = tale.say(f"{_day(tale)}, {hero.he} met {friend.name} the {friend.kind} {at(place)}.",
                    f"{_day(tale)}, {friend.name} the {friend.kind} came to {hero.him} "
                    f"{at(place)}.")
    tale.ask(f"Where did {hero.name} and {friend.name} meet?", f"They met {at(place)}.", line)
    tale.say(f"{friend.name} had {other.a}.")
    tale.say('"Shall we trade?" ' + f"asked {hero.name}.",
             f'"I like your {other.noun}," said {hero.name}. "Shall we trade?"',
             f'"Your {thing.noun} is so nice," said {friend.name}. '
             f'"Do you want my {other.noun} for it?"')
    line = tale.say(f"So {hero.name} gave {friend.name} the {thing.full} and got the {other.full}.",
                    f"{hero.name} gave the {thing.full} to {friend.name}, and {friend.name} gave "
                    f"{hero.him} the {other.full}.")
    tale.ask(f"What did {hero.name} give to {friend.name}?",
             f"{hero.name} gave {friend.name} the {thing.full}.", line)
    line = tale.say(f"Now {hero.name} had the {other.full} and {friend.name} had the {thing.full}.")
    tale.ask(f"What did {hero.name} have at the end?", f"{hero.name} had the {other.full}.", line)
    tale.ask(f"What did {friend.name} have at the end?", f"{friend.name} had the {thing.full}.",
             line)
    _close(tale, f"{hero.name} liked the {other.noun}, and {friend.name} liked the {thing.noun}.",
           "It was a good trade for both.")


def noise(tale: Tale) -> None:
    """A noise at night turns out to be the friend with the thing."""
    hero, friend, thing, _, _, place = tale.cast
    tale.theme = "a noise in the night"
    line = tale.say(f"One night {hero.he} heard a strange noise {at(place)}.",
                    f"Late at night there was a strange noise {at(place)}, and {hero.name} "
                    "woke up.")
    tale.ask("Where was the noise?", f"The noise was {at(place)}.", line)
    tale.say(f"{hero.name} was afraid, but {hero.he} went to look.",
             f'"Who is there?" asked {hero.name}.',
             f"{hero.name} took a deep breath and went outside.")
    line = tale.say(f"It was only {friend.name} the {friend.kind}, who had dropped {thing.a}.",
                    f"There stood {friend.name} the {friend.kind} with {thing.a}.")
    _color(tale, line)
    tale.ask("Who made the noise?", f"{friend.name} made the noise.", line)
    tale.ask(f"What did {friend.name} have?", f"{friend.name} had the {thing.full}.", line)
    tale.say(f'"I am sorry," said {friend.name}. "My {thing.noun} is so loud."',
             f'"I wanted to show you my {thing.noun}," said {friend.name}.')
    tale.say(f"{hero.name} laughed and looked at the {thing.noun}.",
             f"They sat down with the {thing.noun} and laughed.")
    _close(tale, f"After that {hero.name} was not afraid of the dark.")


def seed(tale: Tale) -> None:
    """The hero plants a seed and waits; the thing marks the spot."""
    hero, friend, thing, _, _, place = tale.cast
    fruit, count = pick(tale.rng, FRUITS[:4]), 2 + int(tale.rng.random() * 11)
    tale.theme = "a seed"
    line = tale.say(f"{_day(tale)}, {hero.he} found a small seed and put it in the ground "
                    f"{at(place)}.",
                    f"{_day(tale)}, {hero.name} planted a seed {at(place)}.")
    tale.ask(f"Where did {hero.name} plant the seed?", f"{hero.name} planted it {at(place)}.", line)
    line = tale.say(f"{hero.He} laid {thing.a} next to it to mark the spot.",
                    f"To remember the spot, {hero.he} left {thing.a} there.")
    _color(tale, line)
    tale.ask("What marked the spot?", f"The {thing.full} marked the spot.", line)
    tale.say(f"Every day {hero.he} gave it water.", f"{hero.name} watered it every morning.")
    line = tale.say(f'"Nothing is growing," said {friend.name} the {friend.kind}.',
                    f'{friend.name} the {friend.kind} said, "I see only the {thing.noun}."')
    tale.say(f'"We must wait," said {hero.name}.', f"But {hero.name} was patient.")
    line = tale.say(f"At last a tree stood beside the {thing.noun}. It had {NUMBERS[count]} "
                    f"{plural(fruit, count)}.",
                    f"In the end there was a tree with {NUMBERS[count]} {plural(fruit, count)}.")
    tale.ask(f"How many {plural(fruit, 2)} were there?",
             f"There were {NUMBERS[count]} {plural(fruit, count)}.", line)
    line = tale.say(f"{hero.name} gave one {fruit} to {friend.name}.",
                    f"{friend.name} got the first {fruit}.")
    tale.ask(f"What did {friend.name} get?", f"{friend.name} got {_a(fruit)}.", line)
    _close(tale, "Good things take time.")


def letter(tale: Tale) -> None:
    """An invitation comes, and the hero brings the thing as a present."""
    hero, friend, thing, _, _, place = tale.cast
    tale.theme = "a letter"
    line = tale.say(f"{_day(tale)}, {hero.he} got a letter from {friend.name} the {friend.kind}.",
                    f"{_day(tale)}, a letter came for {hero.name}. "
                    f"It was from {friend.name} the {friend.kind}.")
    tale.ask(f"Who wrote the letter to {hero.name}?", f"{friend.name} wrote the letter.", line)
    line = tale.say(f'"Please come to my party {at(place)}," it said.',
                    f'It said, "My birthday party is {at(place)}."')
    tale.ask("Where was the party?", f"The party was {at(place)}.", line)
    line = tale.say(f"{hero.name} looked for a present and chose {thing.a}.",
                    f"{hero.name} made {thing.a} as a present.")
    _color(tale, line)
    tale.ask(f"What was the present for {friend.name}?", f"The present was the {thing.full}.", line)
    tale.say(f"{friend.name} opened it and found the {thing.noun}.",
             f'"The {thing.noun} is for you," said {hero.name}.')
    tale.say(f'"What a beautiful {thing.noun}!" said {friend.name}.',
             f"{friend.name} loved the {thing.full}.")
    _close(tale, "They danced and sang until the stars came out.", "It was the best party of all.")


def race(tale: Tale) -> None:
    """The two run a race; the thing is the prize."""
    hero, friend, thing, _, home, place = tale.cast
    first, second = (hero, friend) if tale.rng.random() < 0.6 else (friend, hero)
    tale.theme = "a race"
    line = tale.say(f"{_day(tale)}, {hero.he} ran a race with {friend.name} the {friend.kind}.",
                    f'{_day(tale)}, {friend.name} the {friend.kind} said, "Let us run a race, '
                    f'{hero.name}!"')
    tale.ask(f"Who raced with {hero.name}?", f"{friend.name} raced with {hero.name}.", line)
    line = tale.say(f"They ran from the {home} to the {place}.",
                    f"The way went from the {home} to the {place}.")
    tale.ask("Where did the race end?", f"The race ended at the {place}.", line)
    line = tale.say(f"The prize was {thing.a}.", f"The winner would get {thing.a}.")
    _color(tale, line)
    tale.ask("What was the prize?", f"The prize was the {thing.full}.", line)
    tale.say(f"{second.name} was fast, but {first.name} was faster.",
             f"{second.name} stopped to rest, but {first.name} ran on.")
    line = tale.say(f"So {first.name} won the {thing.full}.",
                    f"{first.name} won and got the {thing.noun}.")
    tale.ask("Who won the race?", f"{first.name} won the race.", line)
    tale.say(f'"You can play with my {thing.noun} too," said {first.name}.',
             f"{first.name} let {second.name} hold the {thing.noun} for a while.")
    _close(tale, f'"Well done, {first.name}," said {second.name}.')


def broken(tale: Tale) -> None:
    """The hero breaks the friend's thing, says so, and repairs it."""
    hero, friend, thing, _, _, place = tale.cast
    tale.theme = f"a broken {thing.noun}"
    line = tale.say(f"{_day(tale)}, {hero.he} played with the {thing.full} of {friend.name} the "
                    f"{friend.kind} {at(place)}.",
                    f"{friend.name} the {friend.kind} had {thing.a}. {_day(tale)}, {hero.name} "
                    f"played with it {at(place)}.")
    _color(tale, line)
    tale.ask(f"Where did {hero.name} play?", f"{hero.name} played {at(place)}.", line)
    tale.ask(f"Who owned the {thing.noun}?", f"{friend.name} owned the {thing.noun}.", line)
    line = tale.say(f"The {thing.noun} fell down and broke.", f"Suddenly the {thing.noun} broke.")
    tale.ask("What broke?", f"The {thing.full} broke.", line)
    tale.say(f"{hero.name} wanted to run away, but {hero.he} told the truth.",
             f'"I broke your {thing.noun}. I am sorry," said {hero.name}.')
    tale.say(f'"Thank you for telling me," said {friend.name}.',
             f"{friend.name} was not angry.")
    tool = pick(tale.rng, ("glue", "string", "tape", "paint", "a needle", "a nail"))
    line = tale.say(f"Together they fixed the {thing.noun} with {tool}.",
                    f"They took {tool} and fixed the {thing.noun}.")
    tale.ask(f"How did they fix the {thing.noun}?", f"They fixed it with {tool}.", line)
    _close(tale, f"The {thing.full} was as good as new.", "It is good to tell the truth.")


def found(tale: Tale) -> None:
    """The hero finds the thing and looks for its owner."""
    hero, friend, thing, _, _, place = tale.cast
    tale.theme = f"finding a {thing.noun}"
    line = tale.say(f"{_day(tale)}, {hero.he} found {thing.a} {at(place)}.",
                    f"{_day(tale)}, {hero.name} saw something {at(place)}. It was {thing.a}.")
    _color(tale, line)
    tale.ask(f"What did {hero.name} find?", f"{hero.name} found the {thing.full}.", line)
    tale.ask(f"Where did {hero.name} find the {thing.noun}?",
             f"{hero.name} found it {at(place)}.", line)
    tale.say(f'"Whose {thing.noun} is this?" asked {hero.name}.',
             f'"Somebody must miss this {thing.noun}," said {hero.name}.')
    tale.say(f"{hero.He} knocked on every door in the town.",
             f"{hero.name} asked everybody in the town.")
    line = tale.say(f'"That {thing.noun} is mine!" said {friend.name} the {friend.kind}.',
                    f"At last {friend.name} the {friend.kind} said, \"It is my {thing.noun}!\"")
    tale.ask(f"Who owned the {thing.noun}?", f"{friend.name} owned the {thing.noun}.", line)
    tale.say(f"{hero.name} gave {friend.name} the {thing.full}.",
             f"So {hero.name} gave the {thing.noun} back to {friend.name}.")
    _close(tale, f"{friend.name} was very glad to have the {thing.noun} again.")


def present(tale: Tale) -> None:
    """The hero saves coins and buys the thing for the friend."""
    hero, friend, thing, _, _, place = tale.cast
    coins = 2 + int(tale.rng.random() * 15)
    tale.theme = f"a present for {friend.name}"
    line = tale.say(f"{hero.name} wanted to make {friend.name} the {friend.kind} happy.",
                    f"{hero.name} had a friend, {friend.name} the {friend.kind}.")
    tale.ask(f"Who is {friend.name}?", f"{friend.name} is {_a(friend.kind)}.", line)
    line = tale.say(f"{_day(tale)}, {hero.he} saw {thing.a} {at(place)}.",
                    f"{at(place).capitalize()} {hero.he} saw {thing.a}.")
    _color(tale, line)
    tale.ask(f"Where did {hero.name} see the {thing.noun}?",
             f"{hero.name} saw it {at(place)}.", line)
    line = tale.say(f"The {thing.noun} cost {NUMBERS[coins]} coins.",
                    f'"It costs {NUMBERS[coins]} coins," said the seller.')
    tale.ask(f"How much did the {thing.noun} cost?",
             f"The {thing.noun} cost {NUMBERS[coins]} coins.", line)
    tale.say(f"{hero.name} worked hard and saved all the money.",
             f"{hero.name} carried wood and water to earn the money.")
    tale.say(f"Then {hero.he} bought the {thing.full}.",
             f"At last {hero.he} could buy the {thing.noun}.")
    line = tale.say(f"{hero.name} gave the {thing.noun} to {friend.name}.",
                    f'"This {thing.noun} is for you, {friend.name}," said {hero.name}.')
    tale.ask(f"Who got the {thing.noun}?", f"{friend.name} got the {thing.noun}.", line)
    _close(tale, f"{friend.name} hugged {hero.name}.")


def lend(tale: Tale) -> None:
    """The friend needs the thing, borrows it, and brings it back with thanks."""
    hero, friend, thing, _, _, place = tale.cast
    tale.theme = "helping a friend"
    _own(tale)
    line = tale.say(f"{_day(tale)}, {friend.name} the {friend.kind} came to {hero.him} "
                    f"{at(place)}.",
                    f"{_day(tale)}, {hero.he} met {friend.name} the {friend.kind} {at(place)}.")
    tale.ask(f"Where did {hero.name} and {friend.name} meet?", f"They met {at(place)}.", line)
    line = tale.say(f'"May I borrow your {thing.noun}?" asked {friend.name}.',
                    f'"I need your {thing.noun} today," said {friend.name}.')
    tale.ask(f"What did {friend.name} need?", f"{friend.name} needed the {thing.full}.", line)
    line = tale.say(f'"Yes, take the {thing.noun}," said {hero.name}.',
                    f"{hero.name} gave {friend.name} the {thing.full}.")
    days = 2 + int(tale.rng.random() * 6)
    line = tale.say(f"After {NUMBERS[days]} days {friend.name} brought the {thing.full} back.",
                    f"{friend.name} kept the {thing.noun} for {NUMBERS[days]} days and then "
                    "brought it back.")
    tale.ask(f"How many days did {friend.name} keep the {thing.noun}?",
             f"{friend.name} kept it for {NUMBERS[days]} days.", line)
    snack = pick(tale.rng, ("cake", "bread", "soup", "honey", "cheese"))
    line = tale.say(f"{friend.He} also brought some {snack} to say thank you.",
                    f"With the {thing.noun} came some {snack}.")
    _close(tale, "A friend in need is a friend indeed.", f"They ate the {snack} together.")


PLOTS: tuple[Callable[[Tale], None], ...] = (
    lost, share, storm, build, trade, trade, noise, seed, letter, race, broken, found, present,
    lend)


def tell(rng: Random, cast: Cast) -> Tale:
    """One tale about the cast."""
    tale = Tale(rng, cast)
    _open(tale)
    pick(rng, PLOTS)(tale)
    return tale
