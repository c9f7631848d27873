"""A toy catalogue and platforms made in memory, for tests of the plugin core.

In: a few words. Out: layers, kernels, plans.
Does not know: torch, the real catalogue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from deepinfer.ops.operator import EXACT, Catalogue, Kind, Operator
from deepinfer.ops.table import Table
from deepinfer.plugin import Device, Facts, Kernel, Mesh, Model, Want, hookimpl
from deepinfer.plugin.bind import bind
from deepinfer.plugin.declare import ONE_RANK, Declared, declare
from deepinfer.plugin.find import Layer, Offer, layer_of
from deepinfer.plugin.resolve import resolve
from deepinfer.plugin.specs import FAMILY_HOOKS
from deepinfer.plugin.stack import Platform, ground

DEVICE = Device("toy", "Toy One", "cpu", facts=Facts(compute_capability="9.0"))
MODEL = Model("toy", Facts(hidden=256, heads=4))
READ, WRITE = "attention.read", "attention.write"
PERMUTE, GROUPED = "tensor.permute", "gemm.grouped"
NORM, FUSED, REDUCE = "tensor.norm", "attention.fused", "all_to_all.reduce"


class Rows:
    """Stands for a tensor: a shape, and a value to look at."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


def norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:  # noqa: F821
    """A norm."""


def write(cache: Any, rows: Tensor) -> None:  # noqa: F821
    """Writes the cache."""


def read(q: Tensor, cache: Any) -> Tensor:  # noqa: F821
    """Reads the cache."""


def permute(x: Quantized) -> Any:  # noqa: F821
    """Brings rows into the order of experts."""


def grouped(rows: Quantized, weight: Any) -> Tensor:  # noqa: F821
    """Multiplies rows of experts."""


def reduce(x: Tensor, group: Any) -> Tensor:  # noqa: F821
    """Sums over ranks."""


def row(
    name: str,
    call: Callable[..., Any],
    layouts: tuple[str, ...] = (),
    needs: str | None = None,
    composed_of: tuple[str, ...] = (),
) -> Operator:
    """A catalogue row without inputs."""
    return Operator(name, call, ("hidden",), EXACT, dict, (), layouts, needs, composed_of)


CATALOGUE = Catalogue(
    {
        one.name: one
        for one in (
            row(NORM, norm),
            row(WRITE, write, ("kv",)),
            row(READ, read, ("kv",)),
            row(FUSED, read, ("kv",), None, (WRITE, READ)),
            row(PERMUTE, permute, ("rows",)),
            row(GROUPED, grouped, ("weights", "rows")),
            row(REDUCE, reduce, (), "ranks"),
        )
    },
    {
        "kv": Kind("kv", True, READ, "the cache"),
        "weights": Kind("weights", True, GROUPED, "packed experts"),
        "rows": Kind("rows", False, GROUPED, "rows by expert"),
    },
)


def catalogue(*names: str) -> Catalogue:
    """The toy catalogue with these operators only."""
    return Catalogue({name: CATALOGUE.operators[name] for name in names}, CATALOGUE.kinds)


def build(problem: Any) -> Callable[..., Any]:
    """Builds a function with the parameters of the operator, which returns its first argument."""
    parameters = ", ".join(CATALOGUE[problem.op].parameters)
    made: Callable[..., Any] = eval(f"lambda {parameters}: {parameters.split(', ')[0]}")
    return made


def kernel(op: str, name: str, **more: Any) -> Kernel:
    """A kernel; layouts may be given as "kv=plain"."""
    return Kernel(op, name, more.pop("build", build), **more)


def module(name: str, kernels: Iterable[Any] = (), **names: Any) -> ModuleType:
    """A platform module that yields these kernels; other hooks and names as given."""
    made = ModuleType(f"toy_{name}")
    made.DEEPINFER_API = (1, 0)  # type: ignore[attr-defined]
    declared = list(kernels)
    for family, hook in FAMILY_HOOKS.items():
        mine = [one for one in declared if str(getattr(one, "op", "tensor.")).startswith(family)]
        if mine:
            setattr(made, hook, _yielding(hook, mine))
    for key, value in names.items():
        if callable(value) and key.startswith("deepinfer_"):
            value.__name__ = key
            value = value if hasattr(value, "deepinfer_impl") else hookimpl(value)
        setattr(made, key, value)
    return made


def _yielding(hook: str, kernels: Sequence[Any]) -> Callable[..., Any]:
    def implementation(device: Device, model: Model) -> Any:
        yield from kernels

    implementation.__name__ = hook
    return hookimpl(implementation)


def layer(name: str, kernels: Iterable[Any] = (), **names: Any) -> Layer:
    """A loaded layer from distribution toy-<name> 0.1."""
    offer = Offer(name, f"toy_{name}", f"toy-{name}", "0.1")
    return layer_of(module(name, kernels, **names), offer)


def device_here(want: Want) -> Device:
    """Implementation of deepinfer_device for a ground."""
    return DEVICE


def floor(name: str, kernels: Iterable[Any] = ()) -> Layer:
    """A layer that is the ground."""
    return layer(name, kernels, deepinfer_device=lambda want: DEVICE)


def declared(
    *layers: Layer, catalogue: Catalogue = CATALOGUE, mesh: Mesh = ONE_RANK, model: Model = MODEL
) -> Declared:
    """What these layers declare; a ground without kernels is added if none is there."""
    if not any(one.has("deepinfer_device") for one in layers):
        layers = (*layers, floor("floor"))
    platform = Platform(tuple(layers))
    return declare(platform, ground(platform), model, catalogue, mesh)


def plan_of(*layers: Layer, catalogue: Catalogue = CATALOGUE, **options: Any) -> Any:
    """The plan of these layers."""
    return resolve(declared(*layers, catalogue=catalogue), **options)


def table_of(*layers: Layer, catalogue: Catalogue = CATALOGUE, **options: Any) -> Table:
    """The table of these layers."""
    known = declared(*layers, catalogue=catalogue)
    return bind(resolve(known, **options), known, Table)


def served(plan: Any, op: str) -> list[tuple[tuple[int, int], str]]:
    """Who serves an operator, by tokens."""
    return [(one.tokens, one.served_by) for one in plan.rows_of(op)]


def reasons(plan: Any, op: str) -> dict[str, str]:
    """Why the others do not serve its first bucket."""
    return dict(plan.rows_of(op)[0].passed_over)


def distribution(
    folder: Path, name: str, source: str, platform: str | None = None, group: str = ""
) -> Path:
    """An installed distribution on disk: a module, its metadata, one entry point."""
    package = f"toy_{name}"
    (folder / f"{package}.py").write_text(source)
    info = folder / f"toy_{name}-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: toy-{name}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(
        f"[{group or 'deepinfer.platforms'}]\n{platform or name} = {package}\n"
    )
    (info / "top_level.txt").write_text(f"{package}\n")
    (info / "RECORD").write_text(f"{package}.py,,\n")
    return folder
