"""Collects the kernels that every layer declares, and refuses what breaks the contract.

In: layers, device, model, mesh, the catalogue. Out: candidates of each operator in lookup order.
Does not know: which of them will serve.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, Protocol

from deepinfer.plugin.failures import BadKernel
from deepinfer.plugin.find import Layer
from deepinfer.plugin.specs import FAMILY_HOOKS
from deepinfer.plugin.stack import Ground, Platform
from deepinfer.plugin.types import (
    Device,
    Facts,
    Kernel,
    Layout,
    Mesh,
    Model,
    Problem,
)

ONE_RANK: Final = Mesh()
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_NEVER: Final = re.compile(r"never: *\S.*", re.DOTALL)


class OperatorLike(Protocol):
    """What the plugin core needs of a catalogue row."""

    @property
    def name(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def call(self) -> Any: ...
    @property
    def dims(self) -> tuple[str, ...]: ...
    @property
    def layouts(self) -> tuple[str, ...]: ...
    @property
    def composed_of(self) -> tuple[str, ...]: ...
    @property
    def parameters(self) -> tuple[str, ...]: ...
    @property
    def signature(self) -> str: ...


class KindLike(Protocol):
    """What the plugin core needs of a kind of shared bytes."""

    @property
    def name(self) -> str: ...
    @property
    def kept(self) -> bool: ...
    @property
    def anchor(self) -> str: ...


class CatalogueLike(Protocol):
    """What the plugin core needs of the catalogue."""

    @property
    def operators(self) -> Mapping[str, Any]: ...
    @property
    def kinds(self) -> Mapping[str, Any]: ...
    def needed(self, features: frozenset[str]) -> tuple[Any, ...]: ...


@dataclass(frozen=True)
class Candidate:
    """A kernel and the layer it comes from."""

    layer: Layer
    kernel: Kernel
    layouts: Facts

    @property
    def label(self) -> str:
        """How it is printed: "platform:name"."""
        return f"{self.layer.name}:{self.kernel.name}"

    def offers(self, bucket: tuple[int, int]) -> bool:
        """Whether the kernel is offered for the whole bucket (taste, not ability)."""
        low, high = self.kernel.tokens
        return low <= bucket[0] and (high is None or bucket[1] <= high)

    @property
    def offer_words(self) -> str:
        """The range in which it is offered, in words."""
        low, high = self.kernel.tokens
        if high is None:
            return f"offered from {low}"
        return f"offered up to {high}" if low == 1 else f"offered from {low} to {high}"


@dataclass(frozen=True)
class Declared:
    """All that is known before anything is chosen."""

    platform: Platform
    ground: Ground
    model: Model
    mesh: Mesh
    catalogue: CatalogueLike
    operators: tuple[OperatorLike, ...]
    candidates: Mapping[str, tuple[Candidate, ...]]
    brought: Mapping[tuple[str, str], Layout] = field(default_factory=dict)

    @property
    def device(self) -> Device:
        """The device of the ground."""
        return self.ground.device

    def layout(self, kind: str, name: str) -> Layout:
        """The layout object: a plugin's own if one was brought, else the bare name."""
        return self.brought.get((kind, name), Layout(name))

    def problem(
        self, op: str, tokens: tuple[int, int], layouts: Facts, modes: Facts
    ) -> Problem:
        """The question about one operator in one token range."""
        dims = self.catalogue.operators[op].dims
        missing = [name for name in dims if name not in self.model.dims]
        if missing:
            raise BadKernel(
                f"{op} asks for the dims {', '.join(missing)}, which model {self.model.name} "
                "does not state"
            )
        return Problem(
            op,
            Facts({name: self.model.dims[name] for name in dims}),
            tokens,
            self.device,
            self.model,
            self.mesh,
            modes,
            layouts,
        )


def declare(
    platform: Platform,
    ground: Ground,
    model: Model,
    catalogue: CatalogueLike,
    mesh: Mesh = ONE_RANK,
) -> Declared:
    """Ask every layer for its kernels, left to right; everything yielded is kept and checked."""
    features = model.features | ({"ranks"} if mesh.size > 1 else set())
    needed = catalogue.needed(frozenset(features))
    found: dict[str, list[Candidate]] = {op.name: [] for op in needed}
    brought: dict[tuple[str, str], tuple[Layout, str]] = {}
    for layer in platform.layers:
        for candidate in _of_layer(layer, ground.device, model, catalogue, mesh):
            _note_layouts(candidate, brought)
            found.setdefault(candidate.kernel.op, []).append(candidate)
    return Declared(
        platform,
        ground,
        model,
        mesh,
        catalogue,
        needed,
        {op: tuple(candidates) for op, candidates in found.items()},
        {key: layout for key, (layout, _) in brought.items()},
    )


def _of_layer(
    layer: Layer, device: Device, model: Model, catalogue: CatalogueLike, mesh: Mesh
) -> list[Candidate]:
    arguments: dict[str, Any] = {"device": device, "model": model}
    candidates: list[Candidate] = []
    seen: set[tuple[str, str]] = set()
    for family, hook in FAMILY_HOOKS.items():
        if family == "all_to_all":
            if mesh.size == 1:
                continue
            yielded = layer.ask_all(hook, **arguments, mesh=mesh)
        else:
            yielded = layer.ask_all(hook, **arguments)
        for kernel in yielded:
            _check(kernel, f"{hook} of {layer}", family, catalogue)
            if (kernel.op, kernel.name) in seen:
                raise BadKernel(
                    f"{layer} declares {layer.name}:{kernel.name} for {kernel.op} twice"
                )
            seen.add((kernel.op, kernel.name))
            candidates.append(Candidate(layer, kernel, _names(kernel)))
    return candidates


def _names(kernel: Kernel) -> Facts:
    return Facts({
        kind: layout.name if isinstance(layout, Layout) else layout
        for kind, layout in kernel.layouts.items()
    })


def is_name(text: str) -> bool:
    """Whether platforms, kernels and layouts may be called this."""
    return _NAME.fullmatch(text) is not None


def _check(kernel: object, place: str, family: str, catalogue: CatalogueLike) -> None:
    """Every rule about a declared kernel, each with its own sentence."""
    if not isinstance(kernel, Kernel):
        raise BadKernel(f"{place} yielded {kernel!r}; yield Kernel(...) objects")
    if kernel.op not in catalogue.operators:
        near = get_close_matches(str(kernel.op), catalogue.operators, 1)
        hint = f"; did you mean {near[0]}?" if near else "; docs/operators.md lists them"
        raise BadKernel(f"{place} yielded a kernel for {kernel.op!r}, no such operator{hint}")
    operator: OperatorLike = catalogue.operators[kernel.op]
    if operator.family != family:
        raise BadKernel(
            f"{place} yielded a kernel for {kernel.op}, which belongs to "
            f"{FAMILY_HOOKS.get(operator.family, operator.family)}"
        )
    for fault in (_name_fault(kernel), _tokens_fault(kernel), _graph_fault(kernel),
                  _layouts_fault(kernel, operator), _functions_fault(kernel)):
        if fault:
            raise BadKernel(f"{place} yielded kernel {kernel.name!r} for {kernel.op}: {fault}")


def _name_fault(kernel: Kernel) -> str:
    if isinstance(kernel.name, str) and _NAME.fullmatch(kernel.name):
        return ""
    return 'a name is lower-case letters, digits and "_"'


def _tokens_fault(kernel: Kernel) -> str:
    match kernel.tokens:
        case (int(low), int(high)) if 1 <= low <= high:
            return ""
        case (int(low), None) if low >= 1:
            return ""
    return f"tokens={kernel.tokens!r}; write (first, last) or (first, None), first at least 1"


def _graph_fault(kernel: Kernel) -> str:
    if kernel.graph in ("replay", "update"):
        return ""
    if isinstance(kernel.graph, str) and _NEVER.fullmatch(kernel.graph):
        return ""
    return f'graph={kernel.graph!r}; write "replay", "update" or "never: reason"'


def _layouts_fault(kernel: Kernel, operator: OperatorLike) -> str:
    if not isinstance(kernel.layouts, Mapping):
        return "layouts must map each kind to a layout"
    foreign = sorted(set(kernel.layouts) - set(operator.layouts))
    if foreign:
        return f"layouts names {', '.join(foreign)}, which the operator does not touch"
    missing = [kind for kind in operator.layouts if kind not in kernel.layouts]
    if missing:
        return f"layouts must also say which layout of {', '.join(missing)} it uses"
    for kind, layout in kernel.layouts.items():
        name = layout.name if isinstance(layout, Layout) else layout
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            return f"layout {layout!r} of {kind} is no name and no Layout(...)"
    return ""


def _functions_fault(kernel: Kernel) -> str:
    for field_name in ("build", "supports"):
        if not callable(getattr(kernel, field_name)):
            return f"{field_name} must be a function of the problem"
    for field_name in ("prepare", "workspace"):
        value = getattr(kernel, field_name)
        if value is not None and not callable(value):
            return f"{field_name} must be a function or None"
    if not isinstance(kernel.batch_invariant, bool):
        return "batch_invariant must be True or False"
    return ""


def _note_layouts(candidate: Candidate, brought: dict[tuple[str, str], tuple[Layout, str]]) -> None:
    """A layout that plugins bring has one meaning: two objects under one name are refused."""
    for kind, layout in candidate.kernel.layouts.items():
        if not isinstance(layout, Layout):
            continue
        other, owner = brought.setdefault((kind, layout.name), (layout, candidate.label))
        if other != layout:
            raise BadKernel(
                f"layout {layout.name} of {kind} is brought by {owner} and, differently, by "
                f"{candidate.label}; one of them needs another name"
            )
