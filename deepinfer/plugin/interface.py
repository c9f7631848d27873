"""Which plugin interfaces this core speaks, checked before a plugin is asked anything.

In: `DEEPINFER_API` as a module states it. Out: the version, or an error that says which fit.
Does not know: what the interface contains.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import tokenize
from typing import Final

from deepinfer.plugin.failures import WrongInterface
from deepinfer.plugin.types import API

FIRST_MAJOR: Final = 1
"""There never was a released interface before this one."""

STATEMENT: Final = "DEEPINFER_API"


def is_spoken(stated: tuple[int, int], spoken: tuple[int, int] = API) -> bool:
    """Same major and a minor that is not newer, or the major before (through adapters)."""
    major, minor = stated
    if major == spoken[0]:
        return minor <= spoken[1]
    return major == spoken[0] - 1 and major >= FIRST_MAJOR


def spoken_words(spoken: tuple[int, int] = API) -> str:
    """The versions that fit, in words."""
    major, minor = spoken
    own = f"{major}.0 to {major}.{minor}" if minor else f"{major}.0"
    return own if major == FIRST_MAJOR else f"{major - 1}.x, {own}"


def check_interface(
    subject: str, stated: object, spoken: tuple[int, int] = API
) -> tuple[int, int]:
    """The stated version if this core speaks it."""
    if not _is_version(stated):
        said = "states no interface version" if stated is None else f"states {stated!r}"
        raise WrongInterface(
            f"{subject} {said}; it must say {STATEMENT} = (major, minor), the interface it was "
            f"written against. This core fits {spoken_words(spoken)}"
        )
    assert isinstance(stated, tuple)
    if not is_spoken(stated, spoken):
        raise WrongInterface(
            f"{subject} was written against interface {stated[0]}.{stated[1]}; this core fits "
            f"{spoken_words(spoken)}. Install "
            + ("a newer deepinfer" if stated > spoken else "a newer version of the platform")
            + ", or the version of one that fits the other"
        )
    return stated


def check_source(subject: str, module: str) -> None:
    """Check a version that is written plainly in the source, before the module is imported.

    A plugin of another age often dies deep inside its imports; the version is the better answer.
    What is not plain is checked after the import.
    """
    stated = _stated_in_source(module)
    if stated is not None:
        check_interface(subject, stated)


def _stated_in_source(module: str) -> object:
    # a dotted name would import its parents, which is what must not happen yet
    if "." in module or module in sys.modules:
        return None
    spec = importlib.util.find_spec(module) if module.isidentifier() else None
    if spec is None or not spec.has_location or not str(spec.origin).endswith(".py"):
        return None
    try:
        with tokenize.open(str(spec.origin)) as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError):
        return None  # the import that follows says the same, with its place
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == STATEMENT for target in node.targets
        ):
            return _literal(node.value)
    return None


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None  # computed at import; checked afterwards


def _is_version(stated: object) -> bool:
    return (
        isinstance(stated, tuple)
        and len(stated) == 2
        and all(type(part) is int and part >= 0 for part in stated)
    )
