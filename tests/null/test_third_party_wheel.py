"""A vendor's wheel: built, installed into a fresh environment, seen by the plan."""

from __future__ import annotations

import json
import site
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import pytest

import deepinfer

REPOSITORY = Path(next(iter(deepinfer.__path__))).parent

PROJECT = """
    [build-system]
    requires = ["setuptools>=77"]
    build-backend = "setuptools.build_meta"

    [project]
    name = "deepinfer-acme"
    version = "0.1.0"
    requires-python = ">=3.11"

    [project.entry-points."deepinfer.platforms"]
    acme = "deepinfer_acme"

    [tool.setuptools]
    py-modules = ["deepinfer_acme"]
"""

MODULE = '''
    """Acme: one faster RMS norm, to be layered over any platform that has a device."""

    from deepinfer.plugin import YES, Kernel, hookimpl, no

    DEEPINFER_API = (1, 0)      # the interface this plugin was written against


    def fits(problem):
        """Say yes, or say why not. Answers are about ability, never about taste."""
        hidden = problem.dims["hidden"]
        if hidden % 128:
            return no(f"hidden must be a multiple of 128, got {hidden}")
        return YES


    def build(problem):
        """Runs once at start. Heavy imports go here; what it returns is called per layer."""
        import math

        def rms_norm(x, weight, eps):
            scale = 1 / math.sqrt(sum(v * v for v in x) / len(x) + eps)
            return [v * scale * w for v, w in zip(x, weight)]

        return rms_norm


    @hookimpl
    def deepinfer_tensor_ops(device, model):
        yield Kernel("tensor.rms_norm", "acme_norm", build, fits)
'''

BASE = '''
    """A ground for the test, with the second best norm."""

    from deepinfer.plugin import Device, Kernel, hookimpl

    DEEPINFER_API = (1, 0)


    @hookimpl
    def deepinfer_device(want):
        return Device("cpu", "a CPU", "cpu")


    @hookimpl
    def deepinfer_tensor_ops(device, model):
        yield Kernel("tensor.rms_norm", "eager", lambda problem: lambda x, weight, eps: x)
'''

SCRIPT = '''
    """Prints who serves the norm, as JSON; argument: the width of the model."""

    import sys

    from deepinfer.ops.operator import EXACT, Catalogue, Operator
    from deepinfer.ops.table import Table
    from deepinfer.plugin import Facts, Model
    from deepinfer.plugin.bind import bind
    from deepinfer.plugin.declare import declare
    from deepinfer.plugin.find import Offer, installed
    from deepinfer.plugin.resolve import resolve
    from deepinfer.plugin.stack import ground, load_platform


    def rms_norm(x, weight, eps):
        """A norm."""


    row = Operator("tensor.rms_norm", rms_norm, ("hidden",), EXACT, dict)
    offers = {**installed(), "base": (Offer("base", "base_platform", "test", "0"),)}
    platform = load_platform("acme+base", offers=offers)
    model = Model("narrow", Facts(hidden=int(sys.argv[1])))
    known = declare(platform, ground(platform), model, Catalogue({row.name: row}, {}))
    plan = resolve(known)
    table = bind(plan, known, Table)
    assert len(table.tensor_rms_norm([3.0, 4.0], [1.0, 1.0], 0.0)) == 2
    print(plan.to_json())
'''


def command(*words: object) -> str:
    """Run a command to its end; its output, or all of it as the failure."""
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of a fresh environment into which the vendor's wheel was installed."""
    folder = tmp_path_factory.mktemp("vendor")
    source = folder / "source"
    source.mkdir()
    (source / "pyproject.toml").write_text(textwrap.dedent(PROJECT))
    (source / "deepinfer_acme.py").write_text(textwrap.dedent(MODULE).lstrip())
    command(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps",
            "--no-index", "--wheel-dir", folder, source)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "fresh", system_site_packages=True, with_pip=False)
    python = folder / "fresh" / "bin" / "python"
    command(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps",
            "--no-index", wheel)
    (packages,) = (folder / "fresh" / "lib").glob("python*/site-packages")
    # the running environment's packages, and the core from this tree
    paths = [str(REPOSITORY), *site.getsitepackages()]
    (packages / "running.pth").write_text("\n".join(paths) + "\n")
    (folder / "base_platform.py").write_text(textwrap.dedent(BASE).lstrip())
    (folder / "show.py").write_text(textwrap.dedent(SCRIPT).lstrip())
    return python, folder / "show.py"


@pytest.mark.parametrize(
    ("hidden", "served_by", "passed_over"),
    [
        (256, "acme:acme_norm", ["base:eager", "lower layer"]),
        (200, "base:eager", ["acme:acme_norm", "hidden must be a multiple of 128, got 200"]),
    ],
)
def test_the_wheel_of_a_third_party_is_seen_by_the_plan(python, hidden, served_by, passed_over):
    plan = json.loads(command(*python, hidden))
    assert plan["platform"] == "acme+base"
    assert (plan["layers"][0]["distribution"], plan["layers"][0]["version"]) == (
        "deepinfer-acme", "0.1.0")
    (row,) = plan["rows"]
    assert row["served_by"] == served_by
    assert row["passed_over"] == [passed_over]


def test_the_plugin_is_as_short_as_the_readme_says():
    lines = (PROJECT.strip() + "\n" + MODULE.strip()).splitlines()
    assert sum(1 for line in lines if line.strip()) <= 43
