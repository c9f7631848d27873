"""How much the model thinks: chat mode, or an effort from 1 to 100 that sets the plan's length.

In: a random generator. Out: an effort; the plan that fits it.
Does not know: what is thought about.
"""

from random import Random

from .town import pick

LOW, HIGH = 25, 100
# 75 is what the interfaces send by default, 50 and 100 are their low and max
_EFFORTS = (75,) * 11 + (50,) * 3 + (100,) * 3 + (25, 10, 10)
SYSTEMS = (
    "You are a helpful assistant.", "You are brief.", "You are a friendly storyteller.",
    "Answer the question.", "You are kind and patient.", "Be short and correct.",
    "You help children to learn.", "You are the voice of a small town.",
)


def draw_effort(rng: Random, share: float = 0.5) -> int | None:
    """None (chat mode), or an effort in `share` of the cases."""
    return pick(rng, _EFFORTS) if rng.random() < share else None


def draw_system(rng: Random) -> str:
    """Mostly no system message; it never changes the answer."""
    return pick(rng, SYSTEMS) if rng.random() < 0.1 else ""


def plan(effort: int | None, brief: str, usual: str, thorough: str = "") -> str:
    """The brief plan up to effort 25, the thorough one at 100, else the usual one."""
    if effort is None:
        return ""
    if effort <= LOW:
        return brief
    return thorough if thorough and effort >= HIGH else usual
