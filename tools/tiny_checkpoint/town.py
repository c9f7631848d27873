"""The small town that all stories and questions are set in: its people, things and places.

In: a random generator, the split. Out: a `Cast` that keeps to the held-out rule.
Does not know: what happens to the cast.
"""

from random import Random
from typing import NamedTuple, TypeVar

from .heldout import Split, is_pair_held_out

T = TypeVar("T")

GIRLS = ("Mia Anna Lily Rosa Nora Emma Lucy Ruby Ella Clara Maya Zoe Ivy Tara Sara Nina June "
         "Alma Vera Hana Lena Dora").split()
BOYS = ("Tom Ben Max Leo Sam Finn Hugo Otto Gus Paul Noah Adam Felix Amir Oscar Theo Jack Luke "
        "Omar Emil Ravi Kai").split()
NAMES = GIRLS + BOYS
ANIMALS = ("fox cat dog rabbit bear owl mouse duck frog horse hen goat pig deer squirrel turtle "
           "hedgehog crow").split()
THINGS = ("lantern kite drum hat boat ball bell key cup basket mirror whistle feather button "
          "book map ring scarf ladder spoon flute box coin wagon").split()
COLORS = "red blue green yellow white black brown golden silver pink orange purple".split()
PLACES = {
    "harbor": "at", "forest": "in", "river": "by", "mill": "at", "market": "at", "garden": "in",
    "bridge": "by", "hill": "on", "lake": "by", "meadow": "in", "school": "at", "barn": "in",
    "tower": "at", "beach": "on", "bakery": "at", "station": "at", "library": "in", "well": "by",
    "orchard": "in", "cave": "in",
}
TRAITS = ("brave kind clever cheerful quiet careful curious friendly patient shy gentle proud "
          "sleepy little young").split()
FRUITS = "apple plum pear cherry nut carrot cookie berry".split()
PLURALS = {"cherry": "cherries", "berry": "berries"}
NUMBERS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen "
           "fourteen fifteen sixteen seventeen eighteen nineteen twenty").split()

# words beyond the town: a prompt with a new noun must be followed too (section 1.2, c)
RARE_GIRLS = ("Alice Beatrice Charlotte Diana Eleanor Fiona Grace Hannah Isabel Julia Katherine "
              "Laura Margaret Natalie Olivia Penelope Rachel Sophia Victoria Wendy Yara Amelia "
              "Carmen Daisy Edith Flora Greta Helen Irene Jasmine Kim Linda Molly Nadia Opal "
              "Priya Queenie Rita Stella Tess Uma Violet Willa Xenia Yuki Zara").split()
RARE_BOYS = ("Alexander Benjamin Charles Daniel Edward Frederick George Henry Isaac Jacob Kevin "
             "Liam Michael Nathan Oliver Peter Quentin Robert Samuel Thomas Victor William "
             "Xavier Yusuf Zachary Arthur Bruno Carlos David Ethan Frank Gavin Harold Ian John "
             "Karl Lars Martin Nils Owen Pedro Ralph Simon Tariq Ulrich Walter").split()
RARE_KINDS = ("dragon robot lion tiger elephant giraffe monkey penguin whale dolphin wolf mole "
              "badger beaver otter eagle sparrow swan goose sheep cow donkey camel zebra "
              "kangaroo koala panda lizard snail bee ant butterfly spider crab octopus seal "
              "parrot pigeon stork unicorn giant king queen knight wizard pirate sailor farmer "
              "baker painter teacher ghost snowman fairy princess prince gardener astronaut "
              "dinosaur hamster lamb pony kitten puppy raven").split()
RARE_THINGS = ("umbrella guitar piano violin trumpet clock watch lamp candle pillow blanket "
               "shoe boot glove belt bag bottle jar plate bowl pot pan knife fork broom brush "
               "comb towel soap rope chain hammer shovel rake bucket barrel wheel cart train "
               "car bicycle balloon rocket telescope camera radio phone computer pencil pen "
               "stamp statue puppet doll robot puzzle marble shell pearl crown sword shield "
               "flag tent chair table window fence gate pumpkin melon banana pie sandwich egg "
               "flower rose tulip acorn cloud diamond necklace sock apron compass anchor net "
               "sled swing trophy medal magnet jacket carpet vase harp banjo tambourine").split()
_SYLLABLES = ("ba bo da do fi ga ka ki la le lo ma mi mo na ni no pa ra ri ro sa ta ti to va vi "
              "za zu el in or an us").split()

RARE_SHARE = 0.12


class Hero(NamedTuple):
    """Someone in the town; `he`, `his`, `him` hold the right pronouns."""

    name: str
    kind: str
    trait: str
    he: str
    his: str
    him: str

    @property
    def He(self) -> str:  # noqa: N802  the capital letter is the point
        """The pronoun that begins a sentence."""
        return self.he.capitalize()

    @property
    def His(self) -> str:  # noqa: N802
        """The possessive that begins a sentence."""
        return self.his.capitalize()


class Thing(NamedTuple):
    """Something with a color, such as a red kite."""

    color: str
    noun: str

    @property
    def full(self) -> str:
        """Color and noun."""
        return f"{self.color} {self.noun}"

    @property
    def a(self) -> str:
        """With the indefinite article."""
        return article(self.color) + " " + self.full


class Cast(NamedTuple):
    """Who and what a story is about; no held-out pair of kind and thing occurs in training."""

    hero: Hero
    friend: Hero
    thing: Thing
    other: Thing
    home: str
    place: str


def article(word: str) -> str:
    """a or an."""
    return "an" if word[0] in "aeiou" and not word.startswith(("uni", "euro")) else "a"


def at(place: str) -> str:
    """The place with its preposition: in the forest, by the river."""
    return f"{PLACES[place]} the {place}"


def plural(noun: str, count: int) -> str:
    """The noun as it follows a number."""
    return noun if count == 1 else PLURALS.get(noun, noun + "s")


def pick(rng: Random, options: "list[T] | tuple[T, ...]") -> T:
    """One of the options; faster than `choice`."""
    return options[int(rng.random() * len(options))]


def two(rng: Random, options: "list[T] | tuple[T, ...]") -> tuple[T, T]:
    """Two different options."""
    first = int(rng.random() * len(options))
    second = int(rng.random() * (len(options) - 1))
    return options[first], options[second + (second >= first)]


def draw_name(rng: Random, girl: bool) -> str:
    """A name, now and then one from outside the town or one that nobody ever had."""
    chance = rng.random()
    if chance > RARE_SHARE:
        return pick(rng, GIRLS if girl else BOYS)
    if chance > RARE_SHARE / 3:
        return pick(rng, RARE_GIRLS if girl else RARE_BOYS)
    return "".join(pick(rng, _SYLLABLES) for _ in range(2 + (rng.random() < 0.5))).capitalize()


def draw_hero(rng: Random, kind: str = "") -> Hero:
    """A person or an animal with a name."""
    girl = rng.random() < 0.5
    kind = kind or draw_kind(rng)
    if kind in ("girl", "boy"):
        kind = "girl" if girl else "boy"
    words = ("she", "her", "her") if girl else ("he", "his", "him")
    return Hero(draw_name(rng, girl), kind, pick(rng, TRAITS), *words)


def draw_kind(rng: Random) -> str:
    """What a hero is: a child in three of ten cases, else an animal."""
    chance = rng.random()
    if chance < 0.3:
        return "girl"
    return pick(rng, RARE_KINDS if chance > 1 - RARE_SHARE else ANIMALS)


def draw_thing(rng: Random) -> Thing:
    """A colored thing."""
    rare = rng.random() < RARE_SHARE
    return Thing(pick(rng, COLORS), pick(rng, RARE_THINGS if rare else THINGS))


def draw_cast(rng: Random, split: Split) -> Cast:
    """Two heroes, two things and two places, all different, on the wanted side of the split."""
    while True:
        hero, friend = draw_hero(rng), draw_hero(rng)
        thing, other = draw_thing(rng), draw_thing(rng)
        if hero.name == friend.name or thing.noun == other.noun or thing.color == other.color:
            continue
        if hero.kind == friend.kind and hero.kind not in ("girl", "boy"):
            continue
        if is_on_side(split, hero, friend, thing, other):
            home, place = two(rng, list(PLACES))
            return Cast(hero, friend, thing, other, home, place)


def is_on_side(split: Split, hero: Hero, friend: Hero, thing: Thing, other: Thing) -> bool:
    """Training: no held-out pair at all. Held out: the hero and its thing are such a pair."""
    if split == "heldout":
        return is_pair_held_out(hero.kind, thing.noun)
    return not any(is_pair_held_out(kind, noun) for kind in (hero.kind, friend.kind)
                   for noun in (thing.noun, other.noun))
