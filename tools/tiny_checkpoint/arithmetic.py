"""Sums, differences, products, exact quotients and small word problems, with written steps.

In: a random generator, the split. Out: documents of the family `arithmetic`.
Does not know: stories, records.
"""

from random import Random
from typing import NamedTuple

from .document import Document, Talk, Turn, render
from .effort import draw_effort, draw_system, plan
from .heldout import Split, is_sum_held_out
from .town import FRUITS, NAMES, pick, plural, two


class Problem(NamedTuple):
    """Two numbers and what is done with them."""

    x: int
    sign: str
    y: int

    @property
    def result(self) -> int:
        """The right answer."""
        if self.sign == "+":
            return self.x + self.y
        if self.sign == "-":
            return self.x - self.y
        return self.x * self.y if self.sign == "x" else self.x // self.y

    @property
    def text(self) -> str:
        """Such as 347 + 285."""
        return f"{self.x} {self.sign} {self.y}"


def is_held_out(problem: Problem) -> bool:
    """By the two numbers; a quotient by the product it undoes. 5 x 5 and 10 x 10 are trained."""
    x, y = problem.x, problem.y
    if problem.sign == "/":
        x = x // y
    if problem.sign in "x/" and x == y:
        return False
    return is_sum_held_out(x, y)


def draw_problem(rng: Random, split: Split, signs: str = "+++---xx/") -> Problem:
    """A problem on the wanted side of the split, its numbers of one to three digits."""
    while True:
        sign = pick(rng, list(signs))
        if sign in "+-":
            limit = pick(rng, (10, 100, 1000, 1000))
            x, y = int(rng.random() * limit), int(rng.random() * limit)
            if sign == "-" and x < y:
                x, y = y, x
        else:
            x = 2 + int(rng.random() * 11)
            y = 2 + int(rng.random() * 11)
            if sign == "x" and rng.random() < 0.3:
                x = 11 + int(rng.random() * 89)
                y = 2 + int(rng.random() * 8)
            if sign == "/":
                x = x * y
        problem = Problem(x, sign, y)
        if is_held_out(problem) == (split == "heldout"):
            return problem


def steps(problem: Problem) -> str:
    """The written-out way, digit by digit from the right, up to the answer."""
    ways = {"+": _add, "-": _subtract, "x": _multiply, "/": _divide}
    lines = ways[problem.sign](problem.x, problem.y)
    return " ".join([*lines, f"So the answer is {problem.result}."])


def _add(x: int, y: int) -> list[str]:
    """7 + 5 = 12, write 2, carry 1. 4 + 8 + 1 = 13, ..."""
    size = max(len(str(x)), len(str(y)))
    lines, carry = [], 0
    for place in range(size):
        a, b = x // 10**place % 10, y // 10**place % 10
        total = a + b + carry
        line = f"{a} + {b}" + (" + 1" if carry else "") + f" = {total}"
        carry = total // 10
        if place < size - 1:
            line += f", write {total % 10}" + (", carry 1" if carry else "")
        lines.append(line + ".")
    return lines


def _subtract(x: int, y: int) -> list[str]:
    """12 - 7 = 5, write 5, borrow 1. 4 - 1 - 1 = 2, ..."""
    size = len(str(x))
    lines, borrow = [], 0
    for place in range(size):
        a, b = x // 10**place % 10, y // 10**place % 10
        taken = " - 1" if borrow else ""
        need = a - b - borrow < 0
        rest = a - b - borrow + 10 * need
        line = f"{a + 10 * need} - {b}{taken} = {rest}"
        if place < size - 1:
            line += f", write {rest}" + (", borrow 1" if need else "")
        borrow = int(need)
        lines.append(line + ".")
    return lines


def _multiply(x: int, y: int) -> list[str]:
    """4 x 6 = 24, write 4, carry 2. 3 x 6 + 2 = 20."""
    if x <= 12 and y <= 12:
        return [f"{x} x {y} = {x * y}."]
    lines, carry = [], 0
    digits = str(x)[::-1]
    for place, digit in enumerate(digits):
        total = int(digit) * y + carry
        line = f"{digit} x {y}" + (f" + {carry}" if carry else "") + f" = {total}"
        carry = total // 10
        if place < len(digits) - 1:
            line += f", write {total % 10}" + (f", carry {carry}" if carry else "")
        lines.append(line + ".")
    return lines


def _divide(x: int, y: int) -> list[str]:
    return [f"{x // y} x {y} = {x}, so {x} / {y} = {x // y}."]


_CHECKS = {"+": "{r} - {y} = {x}", "-": "{r} + {y} = {x}", "x": "{r} / {y} = {x}",
           "/": "{r} x {y} = {x}"}


def think(problem: Problem, effort: int | None) -> str:
    """The plan: only the task, the steps, or the steps and a check."""
    usual = steps(problem)
    check = _CHECKS[problem.sign].format(r=problem.result, x=problem.x, y=problem.y)
    return plan(effort, f"I need {problem.text}.", usual, f"{usual} Check: {check}.")


# people type 7*8 and "seven times"-like words; the answer keeps the one spelling
_SIGNS = {"+": ("plus", "+"), "-": ("minus", "-"), "x": ("times", "*"), "/": ("divided by", "/")}
_ASK = ("What is {}?", "What is {}?", "Compute {}.", "How much is {}?", "{} = ?", "Calculate {}.",
        "Please compute {}.", "{}", "Can you tell me what {} is?", "Solve {}.")
_STEPWISE = ("{} step by step, please.", "Show the steps of {}.", "What is {}? Show your steps.",
             "What is {}? Think step by step.")


def turn(rng: Random, problem: Problem, effort: int | None) -> Turn:
    """The bare problem, or a small tale around it."""
    if effort is None and rng.random() < 0.15:
        return Turn(pick(rng, _STEPWISE).format(problem.text), steps(problem))
    if rng.random() < 0.25 and problem.x < 200 and problem.y > 1:
        return _word_problem(rng, problem, effort)
    question = pick(rng, _ASK).format(_typed(rng, problem))
    return Turn(question, f"{problem.text} = {problem.result}.", think(problem, effort))


def _typed(rng: Random, problem: Problem) -> str:
    chance = rng.random()
    if chance < 0.7:
        return problem.text
    word, mark = _SIGNS[problem.sign]
    if chance < 0.8:
        return f"{problem.x} {word} {problem.y}"
    return f"{problem.x}{mark}{problem.y}" if chance < 0.92 else f"{problem.x} {mark} {problem.y}"


def _word_problem(rng: Random, problem: Problem, effort: int | None) -> Turn:
    name, other = two(rng, NAMES)
    fruit = pick(rng, FRUITS)
    x, y, result = problem.x, problem.y, problem.result
    many = plural(fruit, 2)
    if problem.sign == "+":
        question = (f"{name} has {x} {plural(fruit, x)}. {other} gives {name} {y} more. "
                    f"How many {many} does {name} have now?")
    elif problem.sign == "-":
        question = (f"{name} has {x} {plural(fruit, x)} and gives {y} to {other}. "
                    f"How many {many} does {name} have now?")
    elif problem.sign == "x":
        question = (f"There are {x} boxes with {y} {many} each. How many {many} are there "
                    "in all?")
        return Turn(question, f"There are {result} {many} in all.", think(problem, effort))
    else:
        question = f"{x} {many} are shared by {y} children. How many {many} does each child get?"
        return Turn(question, f"Each child gets {result} {plural(fruit, result)}.",
                    think(problem, effort))
    return Turn(question, f"{name} has {result} {plural(fruit, result)} now.",
                think(problem, effort))


def write(rng: Random, split: Split, effort_share: float = 0.7, task: str = "arithmetic",
          signs: str = "+++---xx/") -> Document:
    """One problem, or in chat mode up to four in a row."""
    effort = draw_effort(rng, effort_share)
    count = 1 if effort is not None or split == "heldout" else 1 + int(rng.random() * 4)
    turns = [turn(rng, draw_problem(rng, split, signs), effort) for _ in range(count)]
    return render(task, Talk(turns, effort, draw_system(rng)))
