"""The plugin interface does not change without its version."""

from __future__ import annotations

import inspect
import json
import runpy
from pathlib import Path

from deepinfer import plugin
from deepinfer.plugin import specs

HERE = Path(__file__).parent
TOOL = runpy.run_path(str(HERE.parent.parent / "tools" / "interface_snapshot.py"))


def test_the_interface_is_the_recorded_one():
    recorded = json.loads((HERE / "interface.json").read_text())
    lines = TOOL["differences"](recorded, TOOL["surface"]())
    told = "" if recorded["api"] != list(plugin.API) else " and raise API in plugin/types.py first"
    assert not lines, (
        "the plugin interface changed; if that is meant, run tools/interface_snapshot.py --write"
        f"{told}:\n" + "\n".join(lines)
    )


def test_a_removed_field_is_a_difference():
    now = TOOL["surface"]()
    del now["classes"]["Kernel"]["graph"]
    assert TOOL["differences"](TOOL["surface"](), now) == [
        "classes Kernel graph: str = 'replay' -> None"
    ]


def test_nine_hooks_are_specified_and_each_is_documented_with_an_example():
    assert len(specs.HOOKS) == 9
    marked = {name for name, value in vars(specs).items() if hasattr(value, "deepinfer_spec")}
    assert marked == set(specs.HOOKS)
    for hook in specs.HOOKS:
        function = getattr(specs, hook)
        assert "Example::" in inspect.getdoc(function)
        assert function.deepinfer_spec["firstresult"] is False
        assert function.deepinfer_spec["historic"] is False


def test_plugin_authors_see_exactly_the_public_names():
    assert sorted(plugin.__all__) == sorted([
        "API", "YES", "Check", "Device", "Facts", "Finding", "Graphs", "Kernel", "Layout",
        "Memory", "Mesh", "Model", "Problem", "Record", "Want", "absent", "hookimpl", "no",
        "unverified",
    ])


def test_facts_are_plain_sorted_hashable_and_survive_pickling():
    import pickle

    facts = plugin.Facts({"b": 1}, a=(1, "x"))
    assert list(facts) == ["a", "b"]
    assert pickle.loads(pickle.dumps(facts)) == facts
    assert hash(facts) == hash(plugin.Facts(a=(1, "x"), b=1))
    assert repr(facts) == "Facts(a=(1, 'x'), b=1)"
