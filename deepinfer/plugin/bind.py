"""Builds every kernel that a plan names, once, and hands the callables to the table.

In: a plan, the declared kernels. Out: the table, made by whoever owns its class.
Does not know: what a kernel computes, or the table's shape.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from deepinfer.plugin.declare import Candidate, Declared, OperatorLike
from deepinfer.plugin.failures import BadAnswer, BadKernel, DamagedPlan
from deepinfer.plugin.find import blamed
from deepinfer.plugin.plan import Plan, Row
from deepinfer.plugin.resolve import layouts_at
from deepinfer.plugin.types import Problem

SCALARS: Final = ("int", "float", "bool", "str", "Any")
COMPOSED: Final = "composed"
T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """One built kernel and the token range it serves."""

    label: str
    distribution: str
    version: str
    tokens: tuple[int, int]
    call: Callable[..., Any]
    graph: str
    became: str
    workspace_bytes: int
    prepare: Callable[[Any], Any] | None


@dataclass(frozen=True)
class Bound:
    """An operator with its built kernels. `counted` is the argument whose rows are the tokens."""

    op: str
    parameters: tuple[str, ...]
    defaults: tuple[Any, ...]
    counted: int
    parts: tuple[Part, ...]


def bind(plan: Plan, declared: Declared, table: Callable[[Sequence[Bound], str], T]) -> T:
    """Build what the plan says, exactly; `table` is `deepinfer.ops.table.Table`."""
    if plan.platform != declared.platform.name:
        raise DamagedPlan(
            f"plan {plan.id} is for {plan.platform}, not for {declared.platform.name}"
        )
    bound = []
    for op in declared.operators:
        runs = _runs(plan.rows_of(op.name))
        if not any(row.kernel for row in runs):
            continue
        parts = tuple(
            _build(plan, declared, op, row) if row.kernel else _gap(row) for row in runs
        )
        _check_packing(op, parts, declared)
        bound.append(Bound(op.name, op.parameters, _defaults(op), _counted(op), parts))
    return table(bound, plan.id)


def _runs(rows: Sequence[Row]) -> list[Row]:
    """Adjacent buckets of one kernel are built as one range."""
    runs: list[Row] = []
    for row in rows:
        last = runs[-1] if runs else None
        if last and (last.layer, last.kernel, last.tokens[1] + 1) == (
            row.layer, row.kernel, row.tokens[0],
        ):
            tokens = (last.tokens[0], row.tokens[1])
            runs[-1] = Row(row.op, tokens, row.layer, row.kernel, composed_of=row.composed_of)
        else:
            runs.append(row)
    return runs


def _build(plan: Plan, declared: Declared, op: OperatorLike, row: Row) -> Part:
    candidate = _candidate(declared, row)
    kernel = candidate.kernel
    # a kernel has one layout per kind, so its own layouts are those settled for all its buckets
    settled = layouts_at(plan.layouts, op, row.tokens)
    problem = declared.problem(
        op.name, row.tokens, settled if settled == candidate.layouts else candidate.layouts,
        plan.modes,
    )
    place = f"{candidate.label} for {op.name} from {candidate.layer}"
    with blamed(f"build of {place}"):
        call = kernel.build(problem)
    _check_call(call, op, place)
    return Part(
        label=candidate.label,
        distribution=candidate.layer.distribution,
        version=candidate.layer.version,
        tokens=row.tokens,
        call=call,
        graph=kernel.graph,
        became=_became(call, place),
        workspace_bytes=_workspace(candidate, problem, place),
        prepare=partial(_prepare, candidate, problem) if kernel.prepare else None,
    )


def _gap(row: Row) -> Part:
    """A range in which an optional operator has no kernel; calling it there is an error."""

    def composed(*args: Any, **named: Any) -> Any:
        raise BadKernel(
            f"{row.op} has no kernel for {row.tokens[0]}-{row.tokens[1]} tokens; ask "
            f"table.serves and compose {', '.join(row.composed_of) or 'it'} instead"
        )

    return Part(COMPOSED, "deepinfer", "", row.tokens, composed, "replay", "", 0, None)


def _candidate(declared: Declared, row: Row) -> Candidate:
    for candidate in declared.candidates.get(row.op, ()):
        if candidate.layer.name == row.layer and candidate.kernel.name == row.kernel:
            return candidate
    raise DamagedPlan(
        f"the plan serves {row.op} by {row.served_by}, which no loaded layer declares"
    )


def _check_call(call: object, op: OperatorLike, place: str) -> None:
    """What was built must take the operator's arguments, by position and by name."""
    if not callable(call):
        raise BadKernel(f"{place} built {call!r}; build(problem) must return a callable")
    try:
        signature = inspect.signature(call)
    except ValueError:
        return  # compiled callables may not tell; a wrong call then fails with the slot's name
    values = dict.fromkeys(op.parameters)
    try:
        signature.bind(*values)
        signature.bind(**values)
    except TypeError as cause:
        raise BadKernel(
            f"{place} built a callable {signature}, which does not fit {op.signature}: {cause}"
        ) from cause


def _became(call: object, place: str) -> str:
    """R6: what a library chose by itself, as the kernel reports it."""
    became = getattr(call, "became", "")
    if not isinstance(became, str):
        raise BadAnswer(f"{place}: .became is {became!r}; it must be a word that the plan prints")
    return became


def _workspace(candidate: Candidate, problem: Problem, place: str) -> int:
    if candidate.kernel.workspace is None:
        return 0
    with blamed(f"workspace of {place}"):
        nbytes = candidate.kernel.workspace(problem)
    if type(nbytes) is not int or nbytes < 0:
        raise BadAnswer(f"workspace of {place} returned {nbytes!r}; answer a number of bytes")
    return nbytes


def _prepare(candidate: Candidate, problem: Problem, weight: Any) -> Any:
    assert candidate.kernel.prepare is not None
    with blamed(f"prepare of {candidate.label} for {problem.op} from {candidate.layer}"):
        return candidate.kernel.prepare(weight, problem)


def _check_packing(op: OperatorLike, parts: Sequence[Part], declared: Declared) -> None:
    """Kernels that take turns on one weight must share its packing, so its layout must be kept."""
    labels = {part.label for part in parts} - {COMPOSED}
    packers = {part.label for part in parts if part.prepare}
    kinds = declared.catalogue.kinds
    has_kept = any(kinds[kind].kept for kind in op.layouts if kind in kinds)
    if packers and len(labels) > 1 and not has_kept:
        raise BadKernel(
            f"{op.name} is served by {' and '.join(sorted(labels))} in "
            f"turns, and {', '.join(sorted(packers))} packs its weight; the operator has no kept "
            "layout kind, so name one of them with ops={...}"
        )


def _defaults(op: OperatorLike) -> tuple[Any, ...]:
    parameters = inspect.signature(op.call).parameters.values()
    return tuple(one.default for one in parameters if one.default is not one.empty)


def _counted(op: OperatorLike) -> int:
    """Place of the first argument that holds rows: the first that is neither a scalar nor Any."""
    for place, parameter in enumerate(inspect.signature(op.call).parameters.values()):
        annotation = parameter.annotation
        name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        if name.split("|")[0].strip() not in SCALARS:
            return place
    return 0
