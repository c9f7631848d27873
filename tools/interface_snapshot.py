"""Writes down the whole plugin interface, so that a change of it cannot go unnoticed.

In: hooks, public classes, the catalogue. Out: tests/null/interface.json, compared by a test.
Does not know: platforms.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import sys
from pathlib import Path
from typing import Any

from deepinfer import plugin
from deepinfer.ops.catalogue import CATALOGUE
from deepinfer.plugin import memory, specs

PLACE = Path(__file__).parent.parent / "tests" / "null" / "interface.json"


def surface() -> dict[str, Any]:
    """Everything a plugin may rely on."""
    return {
        "api": list(plugin.API),
        "names": sorted(plugin.__all__),
        "hooks": {hook: _signature(getattr(specs, hook)) for hook in sorted(specs.HOOKS)},
        "classes": {
            name: _fields(getattr(plugin, name))
            for name in sorted(plugin.__all__)
            if inspect.isclass(getattr(plugin, name))
        },
        "functions": {
            name: _signature(getattr(plugin, name))
            for name in sorted(plugin.__all__)
            if inspect.isfunction(getattr(plugin, name))
        },
        "arenas": list(memory.ARENAS),
        "operators": {
            name: {
                "signature": operator.signature,
                "layouts": list(operator.layouts),
                "needs": operator.needs,
                "composed_of": list(operator.composed_of),
                "dims": list(operator.dims),
            }
            for name, operator in sorted(CATALOGUE.operators.items())
        },
        "kinds": {
            name: {"kept": kind.kept, "anchor": kind.anchor}
            for name, kind in sorted(CATALOGUE.kinds.items())
        },
    }


def _signature(function: Any) -> str:
    return str(inspect.signature(function))


def _fields(kind: type) -> dict[str, str]:
    """Fields of a dataclass with type and default; public members of a protocol."""
    if dataclasses.is_dataclass(kind):
        return {field.name: f"{field.type}{_default(field)}" for field in dataclasses.fields(kind)}
    annotated = {name: str(hint) for name, hint in inspect.get_annotations(kind).items()}
    methods = {
        name: _signature(member)
        for name, member in vars(kind).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }
    return dict(sorted({**annotated, **methods}.items()))


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return f" = {getattr(field.default_factory, '__name__', 'made')}()"
    if field.default is dataclasses.MISSING:
        return ""
    shown = field.default.__name__ if inspect.isfunction(field.default) else repr(field.default)
    return f" = {shown}"


def differences(recorded: Any, now: Any, where: str = "") -> list[str]:
    """Where two surfaces differ, one line each."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        lines = []
        for name in sorted({*recorded, *now}):
            lines += differences(recorded.get(name), now.get(name), f"{where} {name}".strip())
        return lines
    return [] if recorded == now else [f"{where}: {recorded} -> {now}"]


def main() -> int:
    """Print the differences, or write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the file")
    parser.add_argument(
        "--unreleased", action="store_true",
        help="the version in types.py was never released, so it may still change",
    )
    options = parser.parse_args()
    recorded = json.loads(PLACE.read_text()) if PLACE.exists() else {}
    now = surface()
    lines = differences(recorded, now)
    print("\n".join(lines) or "the interface is as recorded")
    if not lines or not options.write:
        return 1 if lines else 0
    if recorded.get("api") == now["api"] and not options.unreleased:
        print("the interface changed but API did not: raise it in deepinfer/plugin/types.py")
        return 1
    PLACE.write_text(json.dumps(now, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
