"""A vendor's wheel: built, installed into a fresh environment, seen by the plan."""

from __future__ import annotations

import json
import site
import subprocess
import sys
import textwrap
import venv
from pathlib import Path
from typing import Any

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
        import torch

        def rms_norm(x, weight, eps):
            wide = x.float()
            scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
            return (weight.float() * wide * scale).to(x.dtype)

        return rms_norm


    @hookimpl
    def deepinfer_tensor_ops(device, model):
        yield Kernel("tensor.rms_norm", "acme_norm", build, fits)
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
    return python


def planned(python: Path, platform: str) -> dict[str, Any]:
    words = ("-m", "deepinfer", "plan", "--platform", platform, "--model", "tiny", "--json")
    plan: dict[str, Any] = json.loads(command(python, *words))
    return plan


def test_the_wheel_of_a_third_party_is_seen_by_the_plan(python):
    plan = planned(python, "acme+reference")
    assert plan["platform"] == "acme+reference"
    assert (plan["layers"][0]["distribution"], plan["layers"][0]["version"]) == (
        "deepinfer-acme",
        "0.1.0",
    )
    for row in plan["rows"]:  # one per operator and token bucket
        norm = row["op"] == "tensor.rms_norm"
        assert row["layer"] == ("acme" if norm else "reference")
        if norm:
            assert row["passed_over"] == [["reference:eager", "lower layer"]]


def test_the_order_of_the_string_decides(python):
    plan = planned(python, "reference+acme")
    assert {row["served_by"] for row in plan["rows"] if row["op"] == "tensor.rms_norm"} == {
        "reference:eager"
    }


def test_the_model_answers_the_same_through_the_vendors_kernel(python):
    words = ("-m", "deepinfer", "run", "--temperature", "0", "--max-tokens", "12", "--quiet")
    answers = {
        platform: command(python, *words, "--platform", platform, "Hello!")
        for platform in ("reference", "acme+reference")
    }
    assert answers["reference"] == answers["acme+reference"] != ""


def test_the_plugin_is_as_short_as_the_readme_says():
    lines = (PROJECT.strip() + "\n" + MODULE.strip()).splitlines()
    assert sum(1 for line in lines if line.strip()) <= 43
