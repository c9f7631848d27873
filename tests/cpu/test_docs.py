"""Documents are executed: what a page shows is what happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import deepinfer
from deepinfer.cli import app
from deepinfer.reference import records

ROOT = Path(next(iter(deepinfer.__path__))).parent
README = (ROOT / "README.md").read_text()
TUTORIAL = (ROOT / "docs" / "write-a-plugin.md").read_text()
PLAN = ["plan", "--model", "tiny", "--platform"]


def blocks(page: str, kind: str) -> list[str]:
    """The code blocks of one language."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def squeezed(text: str) -> list[str]:
    """Lines with single blanks; the machine's and the build's own words taken out."""
    text = re.sub(r"plan [0-9a-f]{12}", "plan ID", text)
    text = re.sub(r"device  .*?  ", "device  D  ", text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def command(*words: object, path: Path | None = None, folder: Path = ROOT) -> str:
    """Runs Python to its end; its output, or all of it as the failure."""
    known = {name: value for name, value in os.environ.items() if "DEEPINFER" not in name}
    places = ([] if path is None else [str(path)]) + [str(ROOT)]
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**known, "PYTHONPATH": os.pathsep.join(places)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_readme_shows_lines_of_the_real_plan():
    shown = squeezed(blocks(README, "text")[0])
    real = squeezed(command("-m", "deepinfer", *PLAN, "reference"))
    assert [line for line in shown if line not in real] == []


def test_the_python_of_the_readme_runs(capsys):
    (code,) = blocks(README, "python")
    assert len(code.splitlines()) == 3
    exec(compile(code, "README.md", "exec"), {})
    assert "Usage(" in capsys.readouterr().out


def test_the_readme_names_only_commands_and_options_that_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    pages = [README, TUTORIAL, *(page.read_text() for page in (ROOT / "docs").glob("*.md"))]
    known = {one.name or one.callback.__name__: one.callback for one in app.registered_commands}
    for page in pages:
        code = "\n".join([*blocks(page, "sh"), *re.findall(r"`([^`\n]+)`", page)])
        assert set(re.findall(r"(?:^|\s)make ([a-z]+)", code)) <= targets
        assert set(re.findall(r"(?:^|/| )deepinfer ([a-z]+)", code)) <= set(known)
    for line in blocks(README, "sh")[1].splitlines():
        asked = re.findall(r"--([a-z]+)", line)
        assert set(asked) <= {"platform", "model"}


def test_links_of_the_pages_at_the_top_lead_somewhere():
    for name in ("README.md", "CONTRIBUTING.md"):
        links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / name).read_text())
        assert links
        assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.fixture(scope="module")
def acme(tmp_path_factory):
    """The tutorial's package: its source, and a folder into which it can be installed."""
    folder = tmp_path_factory.mktemp("acme")
    source = folder / "source"
    source.mkdir()
    (source / "pyproject.toml").write_text(blocks(TUTORIAL, "toml")[0])
    return source, folder / "site"


def install(source: Path, site: Path, module: str) -> None:
    """What the tutorial's install command does, for one run and without a network."""
    (source / "deepinfer_acme.py").write_text(module)
    command("-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--no-index",
            "--upgrade", "--target", site, source)  # fmt: skip


def test_the_tutorial_builds_a_plugin_from_an_empty_folder(acme):
    source, site = acme
    module, check = blocks(TUTORIAL, "python")
    refused, served = (squeezed(block) for block in blocks(TUTORIAL, "text"))
    for text, shown in ((module, refused), (module.replace("128", "32"), served)):
        install(source, site, text)
        plan = command("-m", "deepinfer", *PLAN, "acme+reference", path=site, folder=source.parent)
        assert shown[0] in squeezed(plan)
    command("-c", check, path=site, folder=source.parent)


def test_the_tutorial_is_as_short_as_it_says():
    lines = "\n".join([blocks(TUTORIAL, "toml")[0], blocks(TUTORIAL, "python")[0]]).splitlines()
    assert "43 lines" in TUTORIAL
    assert len([line for line in lines if line.strip()]) <= 43


def test_the_layouts_page_has_the_sizes_of_the_code():
    page = (ROOT / "docs" / "layouts.md").read_text()
    kinds = {
        "kv": records.packed_kv({"head_dim": 512}),
        "index": records.packed_index({"index_dim": 128}),
    }
    width = {"uint8": 1, "float32": 4}
    for kind, rows in kinds.items():
        for name, record in rows.items():
            size = record.width * width[record.dtype]
            assert re.search(rf"^\| `{kind}` \| {name} \| [^|]+ \| {size} \|", page, re.MULTILINE)
