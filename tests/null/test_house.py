"""The rules of the house, read from the syntax tree: arrows, sizes, names, words, documents."""

from __future__ import annotations

import ast
import inspect
import io
import re
import runpy
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import deepinfer
from deepinfer.ops.catalogue import CATALOGUE
from deepinfer.plugin import specs

ROOT = Path(next(iter(deepinfer.__path__))).parent
FOLDERS = ("deepinfer", "plugins", "tools", "bench", "examples", "tests", "docs", "changes", ".ci")
MADE = {"__pycache__", "build", "dist", ".ruff_cache", ".mypy_cache", ".pytest_cache"}
WRITTEN = {".py", ".md", ".toml", ".txt", ".sh", ""}

# who a room may import, besides itself and the errors; "*" is everybody
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "plugin": set(),
    "ops": set(),
    "text": set(),
    "sample": set(),
    "model": {"ops"},
    "engine": {"model", "ops", "plugin", "sample", "text"},
    "reference": {"ops", "plugin", "sample"},
    "null": {"ops", "plugin", "sample"},
    "values": set(),
    "variables": {"values"},
    "settings": {"plugin", "values", "variables"},
    "output": {"engine"},
    "asking": {"engine", "sample", "settings", "text"},
    "serving": {"engine", "output"},
    "jobs": {"output", "sample"},
    "open": {"engine", "model", "settings", "text"},
    "ledger": {"engine", "model", "open", "ops", "plugin", "settings"},
    "testing": {"engine", "model", "open", "ops", "plugin", "sample", "settings", "text"},
    "llm": {"*"},
    "terminal": {"*"},
    "cli": {"*"},
    "__init__": {"*"},
    "__main__": {"*"},
}
PLUGINS_MAY_IMPORT = ("deepinfer.plugin", "deepinfer.ops", "deepinfer.testing", "deepinfer_")

FORBIDDEN_STEMS = {"utils", "common", "helpers", "misc", "base", "manager"}
FILE, CLASS, FUNCTION, COLUMNS, NESTING, HEADING = 500, 250, 60, 100, 4, 5
PRAGMA = re.compile(r"\s*# (type: ignore|noqa)\b.*$")

VENDORS = re.compile(
    r"(?<![a-z])(cuda|npu|hip|rocm|xpu|nvidia|amd|ascend|hopper|blackwell|sm_?90|sm_?100|h20|h100|"
    r"h200|b200|triton|tilelang|nccl|hccl|cutlass|deep_gemm|flash_mla|deep_ep)(?![a-z])",
    re.IGNORECASE,
)
MAY_NAME_VENDORS = {
    "plugin/stack.py": "the table of aliases, always printed expanded",
    "plugin/packages.py": "names of packages that doctor looks for",
    "variables.py": "names of environment variables that the original has",
}
BRITISH = re.compile(
    r"\b(colour|behaviour|favour|neighbour|honour|centre[sd]?\b|licence|grey\b|artefact|"
    r"(normal|initial|quant|optim|serial|token|summar|recogn|organ|real|util)is(e[sd]?|ing|ation)\b"
    r"|analys(e[sd]?|ing)\b|modell|labell)",
    re.IGNORECASE,
)
# built from parts, so that this file keeps its own rule
MACHINE = re.compile("|".join(("/" + "work/", "/" + "root/", "/" + "tmp/", "/" + "home/")))
INDEX = re.compile("|".join(("pypi" + r"\.org", "python" + "hosted", r"download\.pytorch")))
LOOK_ALIKE = re.compile(r"pip3? install.*(?<![\w-])(deep[-_]gemm|deep[-_]ep|flash[-_]mla)(?![\w-])")
FROM_INDEX = re.compile(r"pip3? install(?!.*--find-links).*[\s\"']deepinfer(?![\w.])")
LEFT_OUT = re.compile(r"pytest\.(mark\.)?(skip|skipif|importorskip|xfail)")
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)) + r")\b")


@cache
def files() -> tuple[Path, ...]:
    """Every written file of the project; data, caches and environments left out."""
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    return tuple(
        sorted(
            path
            for path in found
            if path.suffix in WRITTEN
            and not path.name.startswith(("LICENSE", ".git"))
            and not MADE & {part for part in path.parts}
            and not any(part.endswith(".egg-info") for part in path.parts)
        )
    )


def python(*tops: str) -> list[Path]:
    """Python files below these folders."""
    return [path for path in files() if path.suffix == ".py" and named(path).split("/")[0] in tops]


def named(path: Path) -> str:
    """The path as it is seen from the repository."""
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(), filename=str(path))


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything of deepinfer that a file imports."""
    for node in ast.walk(tree(path)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{named(path)}:{node.lineno} imports by dots"
            whole = node.module == "deepinfer"
            names = [f"deepinfer.{a.name}" for a in node.names] if whole else [str(node.module)]
        for name in names:
            if name.split(".")[0].startswith("deepinfer"):
                yield node.lineno, name


def good(violations: list[str]) -> None:
    """Fails with one violation a line."""
    assert not violations, "\n" + "\n".join(violations)


def test_arrows_between_rooms_only_point_down():
    wrong = []
    for path in python("deepinfer"):
        parts = path.relative_to(ROOT / "deepinfer").parts
        room = parts[0] if len(parts) > 1 else path.stem
        assert room in ARROWS, f"{named(path)}: a new room; say in ARROWS whom it may know"
        allowed = ARROWS[room] | {room, "errors"}
        for line, name in imported(path):
            other = name.split(".")[1] if "." in name else "__init__"
            if "*" not in allowed and other not in allowed:
                wrong.append(f"{named(path)}:{line} imports {name}; {room} may not know {other}")
    good(wrong)


def test_a_plugin_imports_only_the_public_interface():
    good(
        [
            f"{named(path)}:{line} imports {name}"
            for path in python("plugins")
            for line, name in imported(path)
            if not name.startswith(PLUGINS_MAY_IMPORT)
        ]
    )


@pytest.mark.parametrize("top", ["deepinfer", "plugins", "tools", "bench", "examples", "tests"])
def test_no_file_class_function_or_line_is_too_long(top):
    wrong = []
    for path in python(top):
        lines = path.read_text().splitlines()
        if len(lines) > FILE:
            wrong.append(f"{named(path)}: {len(lines)} lines, a file has at most {FILE}")
        for number, line in enumerate(lines, 1):
            # as ruff does: what only speaks to a checker may stand behind the limit
            if len(PRAGMA.sub("", line)) > COLUMNS:
                wrong.append(f"{named(path)}:{number} has more than {COLUMNS} columns")
        wrong += oversized(path)
    good(wrong)


def oversized(path: Path) -> Iterator[str]:
    """Classes and functions above their limit."""
    for node in ast.walk(tree(path)):
        where = f"{named(path)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ClassDef) and length(node) > CLASS:
            yield f"{where} class {node.name} has {length(node)} lines, at most {CLASS}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if length(node) > FUNCTION:
                yield f"{where} {node.name} has {length(node)} lines, at most {FUNCTION}"
            if nesting(node) > NESTING:
                yield f"{where} {node.name} is nested {nesting(node)} deep, at most {NESTING}"


def length(node: ast.stmt) -> int:
    """Lines of a definition."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match, ast.AsyncFor, ast.AsyncWith)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def nesting(node: ast.AST) -> int:
    """Blocks inside blocks; an elif is as deep as its if, an inner function counts for itself."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, SCOPES):
            continue
        is_elif = isinstance(node, ast.If) and node.orelse == [child] and isinstance(child, ast.If)
        deepest = max(deepest, nesting(child) + (isinstance(child, BLOCKS) and not is_elif))
    return deepest


def test_no_file_or_folder_has_a_name_that_says_nothing():
    good(
        [
            named(path)
            for path in files()
            if FORBIDDEN_STEMS & {Path(part).stem for part in path.relative_to(ROOT).parts}
        ]
    )


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Names and texts that a program acts on: everything but comments and docstrings."""
    texts = {
        id(node.body[0].value)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree(path)):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            yield line, node.value
        elif isinstance(node, ast.Name):
            yield line, node.id
        elif isinstance(node, ast.Attribute):
            yield line, node.attr
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield line, " ".join([getattr(node, "module", "") or "", *(a.name for a in node.names)])


def test_the_core_names_no_vendor_outside_the_listed_tables():
    known = {f"deepinfer/{name}" for name in MAY_NAME_VENDORS}
    assert known <= {named(path) for path in files()}, "a listed table is gone; unlist it"
    good(
        [
            f"{named(path)}:{line} names {VENDORS.search(text).group()!r} in {text[:60]!r}"
            for path in python("deepinfer")
            if named(path) not in known
            for line, text in strings(path)
            if VENDORS.search(text)
        ]
    )


def test_only_the_settings_look_at_the_environment():
    wrong = []
    for path in python("deepinfer", "plugins"):
        for node in ast.walk(tree(path)):
            word = getattr(node, "attr", getattr(node, "id", getattr(node, "name", "")))
            if word in ("environ", "environb", "getenv", "putenv"):
                wrong.append(f"{named(path)}:{node.lineno} {word}")
    good([line for line in wrong if not line.startswith("deepinfer/settings.py:")])


def test_whoever_catches_everything_raises_again():
    wrong = []
    for path in python("deepinfer", "plugins", "tools", "bench", "examples"):
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.ExceptHandler):
                continue
            kind = ast.unparse(node.type) if node.type else "everything"
            blind = kind == "everything" or re.search(r"\b(Base)?Exception\b", kind)
            if blind and not any(isinstance(inner, ast.Raise) for inner in ast.walk(node)):
                wrong.append(f"{named(path)}:{node.lineno} swallows {kind}")
    good(wrong)


def test_nothing_is_unfinished_left_out_or_waited_for():
    wrong = []
    for path in python("deepinfer", "plugins", "tools", "bench", "examples", "tests"):
        for node in ast.walk(tree(path)):
            word = ast.unparse(node) if isinstance(node, ast.Attribute | ast.Name) else ""
            waits = word.endswith("sleep") and named(path).startswith("tests/")
            if waits or word == "NotImplementedError" or LEFT_OUT.fullmatch(word):
                wrong.append(f"{named(path)}:{node.lineno} {word}")
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type == tokenize.COMMENT and UNFINISHED.search(token.string):
                wrong.append(f"{named(path)}:{token.start[0]} {token.string}")
    good(wrong)


def test_every_module_of_the_core_says_what_it_does_not_know():
    wrong = []
    for path in python("deepinfer"):
        said = (ast.get_docstring(tree(path)) or "").splitlines()
        if len(said) > HEADING:
            wrong.append(f"{named(path)}: the docstring has {len(said)} lines, at most {HEADING}")
        if not any("Does not know:" in line for line in said):
            wrong.append(f"{named(path)}: no line 'Does not know:'")
    good(wrong)


def found(pattern: re.Pattern[str]) -> list[str]:
    """Every line of the project in which a pattern is found."""
    return [
        f"{named(path)}:{number} {line.strip()[:100]}"
        for path in files()
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]


def test_spelling_is_american():
    good(found(BRITISH))


def test_no_file_knows_the_machine_on_which_it_was_written():
    good(found(MACHINE))


def test_no_file_names_the_host_of_a_package_index():
    good(found(INDEX))


def test_no_install_hint_names_a_package_that_is_somebody_elses():
    good(found(LOOK_ALIKE) + found(FROM_INDEX))


def test_every_hook_is_documented_with_its_arguments():
    page = (ROOT / "docs" / "write-a-plugin.md").read_text()
    missing = []
    for hook in specs.HOOKS:
        arguments = ", ".join(inspect.signature(getattr(specs, hook)).parameters)
        if f"`{hook}({arguments})`" not in page:
            missing.append(f"docs/write-a-plugin.md does not show `{hook}({arguments})`")
    good(missing)


def test_every_operator_is_documented_and_the_page_is_fresh():
    tool = runpy.run_path(str(ROOT / "tools" / "operators_page.py"))
    page = (ROOT / "docs" / "operators.md").read_text()
    assert page == tool["page"](), "docs/operators.md is stale; run `make docs`"
    assert all(f"### {name}\n" in page for name in CATALOGUE.operators)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_a_page_names_only_files_that_exist(page):
    text = page.read_text()
    words = set(re.findall(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|md|json|toml))`", text))
    links = {link for link in re.findall(r"\]\(([^)#:]+)\)", text)}
    places = (ROOT, ROOT / "deepinfer", ROOT / "checkpoints" / "tiny")
    own = {"pyproject.toml", "deepinfer_acme.py", "test_conformance.py", "config.json"}
    good(
        [f"{word}: no such file" for word in sorted(words - own)
         if not any((place / word).exists() for place in places)]
        + [f"{link}: broken link" for link in sorted(links) if not (page.parent / link).exists()]
    )  # fmt: skip


def test_every_change_has_its_news():
    news = sorted((ROOT / "changes").glob("*.md"))
    assert news, "changes/ holds one file per change"
    good([path.name for path in news if not re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", path.name)])
