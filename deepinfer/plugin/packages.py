"""Which packages on this machine get in each other's way.

In: metadata of installed distributions. Out: findings for `doctor`.
Does not know: platforms. Nothing but the look-alike modules is imported.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable, Mapping
from typing import Final

from deepinfer.plugin.failures import HookFailed
from deepinfer.plugin.find import blamed
from deepinfer.plugin.types import Finding

LOOK_ALIKES: Final[Mapping[str, tuple[str, ...]]] = {
    "deep_gemm": ("fp8_gemm_nt", "m_grouped_fp8_gemm_nt_masked"),
    "deep_ep": ("Buffer",),
    "flash_mla": ("flash_mla_with_kvcache", "flash_mla_sparse_fwd"),
}
"""Modules whose name is in use by others, and what the real one has."""

SHARED: Final = frozenset({"tests", "test", "docs", "examples", "benchmarks", "scripts"})
"""Top-level folders that packages drop by accident; noise, not a clash of libraries."""

Distributions = Iterable[importlib.metadata.Distribution]


def package_findings(distributions: Distributions | None = None) -> list[Finding]:
    """Everything about packages, in a fixed order."""
    every = list(importlib.metadata.distributions() if distributions is None else distributions)
    return [
        *_owners(every),
        *_hooks_into_torch(every),
        *_torch(every),
        *_look_alikes(),
    ]


def _top_level(distribution: importlib.metadata.Distribution) -> set[str]:
    """Modules that a distribution puts at the top level, as its own list or its files say."""
    stated = distribution.read_text("top_level.txt")
    if stated is not None:
        return set(stated.split())
    names = set()
    for file in distribution.files or ():
        first = file.parts[0]
        if first.endswith(".py"):
            names.add(first.removesuffix(".py"))
        elif len(file.parts) > 1 and first.isidentifier():
            names.add(first)
    return names


def _owners(every: Distributions) -> list[Finding]:
    owners: dict[str, set[str]] = {}
    for distribution in every:
        for module in _top_level(distribution):
            if not module.startswith("_") and module not in SHARED:
                owners.setdefault(module, set()).add(distribution.name)
    return [
        Finding(
            "warning", f"module {module}", f"owned by {' and '.join(sorted(names))}",
            "they overwrite each other's files; uninstall both, then install the one you mean",
        )
        for module, names in sorted(owners.items())
        if len({_canonical(name) for name in names}) > 1 and _is_library(module, names, every)
    ]


def _is_library(module: str, names: set[str], every: Distributions) -> bool:
    """Whether two of the owners own the same file, not just parts of a namespace package."""
    seen: set[str] = set()
    for distribution in every:
        if distribution.name not in names:
            continue
        files = distribution.files or ()
        own = {str(file) for file in files if file.parts[0] in (module, f"{module}.py")}
        if seen & own:
            return True
        seen |= own
    return False


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _hooks_into_torch(every: Distributions) -> list[Finding]:
    return [
        Finding(
            "warning", f"package {distribution.name}",
            f"runs {entry.value} whenever torch is imported (entry point torch.backends)",
            "installing it changes every process; uninstall it if its device is not in use",
        )
        for distribution in every
        for entry in distribution.entry_points
        if entry.group == "torch.backends"
    ]


def _torch(every: Distributions) -> list[Finding]:
    """The version of torch and the CUDA majors that its libraries and friends were built for."""
    versions = {_canonical(one.name): one.version for one in every if one.name}
    torch = versions.get("torch")
    if torch is None:
        return [Finding("error", "torch", "not installed", "install torch 2.11 or newer")]
    majors = {
        match.group(1)
        for name in versions
        if (match := re.fullmatch(r".+-cu(\d\d)", name)) is not None
    }
    built = re.search(r"\+cu(\d\d)", torch)
    if built is not None:
        majors.add(built.group(1))
    if len(majors) > 1:
        return [Finding(
            "warning", "torch",
            f"{torch}, beside libraries for CUDA {' and '.join(sorted(majors))}",
            "one process can use one CUDA major; reinstall the packages built for the other",
        )]
    built_for = f"CUDA {majors.pop()}" if majors else "no CUDA packages"
    return [Finding("ok", "torch", f"{torch}, {built_for}")]


def _look_alikes() -> list[Finding]:
    findings = []
    for name, attributes in LOOK_ALIKES.items():
        if importlib.util.find_spec(name) is None:
            continue
        try:
            with blamed(f"import of {name}"):
                module = importlib.import_module(name)
        except HookFailed as cause:
            advice = "kernels that need it refuse with this reason"
            findings.append(Finding("warning", f"module {name}", str(cause), advice))
            continue
        missing = [attribute for attribute in attributes if not hasattr(module, attribute)]
        if missing:
            place = getattr(module, "__file__", None) or "an unknown place"
            findings.append(Finding(
                "warning", f"module {name}",
                f"at {place} is not the library that kernels need: it lacks {', '.join(missing)}",
                "uninstall what brought it; your platform's README says where the real one is",
            ))
    return findings
