"""The switchboard: one plain callable per operator, fixed at start.

In: built kernels with names and token ranges. Out: `table.tensor_rms_norm(x, weight, eps)`.
Does not know: plugins, plans, tensors beyond `shape`.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, Self, cast

from deepinfer.errors import DeepInferError

Call = Callable[..., Any]
COMPOSED: Final = "composed"
"""Label of a range in which an optional operator has no kernel."""


class KernelFailed(DeepInferError):
    """A kernel raised while serving (R5); the original is `__cause__`. No other one steps in."""


class TableSealed(DeepInferError):
    """Something tried to change the table; kernels are bound once."""


class NoOperator(DeepInferError):
    """An operator was asked for that has no slot."""


class PartLike(Protocol):
    """One built kernel and the token range it serves."""

    @property
    def label(self) -> str: ...
    @property
    def distribution(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def tokens(self) -> tuple[int, int]: ...
    @property
    def call(self) -> Call: ...
    @property
    def graph(self) -> str: ...
    @property
    def became(self) -> str: ...
    @property
    def workspace_bytes(self) -> int: ...
    @property
    def prepare(self) -> Callable[[Any], Any] | None: ...


class BoundLike(Protocol):
    """An operator with its built kernels, ordered by tokens."""

    @property
    def op(self) -> str: ...
    @property
    def parameters(self) -> tuple[str, ...]: ...
    @property
    def defaults(self) -> tuple[Any, ...]: ...
    @property
    def counted(self) -> int: ...
    @property
    def parts(self) -> Sequence[PartLike]: ...


@dataclass(frozen=True)
class _Single:
    """An operator with the one kernel of a step."""

    op: str
    parameters: tuple[str, ...]
    defaults: tuple[Any, ...]
    counted: int
    parts: Sequence[PartLike]


@dataclass(frozen=True)
class Traced:
    """One call of a slot, as `Table.traced` reports it."""

    op: str
    kernel: str
    args: tuple[Any, ...]
    named: dict[str, Any]
    result: Any
    seconds: float


def attribute(op: str) -> str:
    """Name of the slot: "tensor.rms_norm" is `table.tensor_rms_norm`."""
    return op.replace(".", "_")


class Table:
    """Frozen; a slot is the kernel's own function, or a chooser if token buckets differ.

    A slot costs what a plain call costs. To know who raised without guarding every call, each
    slot's function has a code object of its own; `blame` finds it in the traceback.
    """

    __slots__ = ("_bound", "_calls", "_codes", "_sealed", "_starts", "_steps", "plan_id")

    plan_id: str
    _bound: dict[str, BoundLike]
    _calls: dict[str, tuple[Call, ...]]
    _codes: dict[int, tuple[str, PartLike]]
    _sealed: bool
    _starts: list[int]
    _steps: dict[int, Table]

    if TYPE_CHECKING:
        # a real __getattr__ would take the interpreter's fast path away from every slot
        def __getattr__(self, name: str) -> Call: ...

    def __new__(cls, bound: Sequence[BoundLike], plan_id: str = "") -> Self:
        """A table has exactly the slots of its operators."""
        names = tuple(attribute(one.op) for one in bound)
        return object.__new__(type("Table", (cls,), {"__slots__": names}))

    def __init__(self, bound: Sequence[BoundLike], plan_id: str = "") -> None:
        self._fill(bound, plan_id, {})
        for one in bound:
            calls = tuple(_own(part.call, f"{one.op}[{part.label}]") for part in one.parts)
            for call, part in zip(calls, one.parts, strict=True):
                self._codes[id(call.__code__)] = (one.op, part)
            self._install(one, calls)

    def _fill(
        self, bound: Sequence[BoundLike], plan_id: str, codes: dict[int, tuple[str, PartLike]]
    ) -> None:
        starts = {part.tokens[0] for one in bound for part in one.parts}
        known = {
            "plan_id": plan_id,
            "_sealed": False,
            "_bound": {one.op: one for one in bound},
            "_calls": {},
            "_codes": codes,
            "_starts": sorted(starts),
            "_steps": {},
        }
        for name, value in known.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object = None) -> NoReturn:
        raise TableSealed(
            f"the table of plan {self.plan_id} is fixed; {name} cannot be set. Kernels are "
            "declared by platforms and chosen by the plan (ops={...} forces one)"
        )

    __delattr__ = __setattr__

    def __getitem__(self, op: str) -> Call:
        """The slot of an operator by its catalogue name."""
        self._of(op)
        slot: Call = getattr(self, attribute(op))
        return slot

    def __contains__(self, op: object) -> bool:
        """Whether the operator has a slot; an optional one may have none, see `serves`."""
        return op in self._bound

    def __iter__(self) -> Iterator[str]:
        return iter(self._bound)

    def __len__(self) -> int:
        return len(self._bound)

    def step(self, tokens: int) -> Table:
        """The table for a step of this many tokens: the same kernels, no chooser in any slot.

        Operators on expert rows get more rows than the step has tokens, yet must use the kernels
        of the step's bucket, or writer and reader of a passing layout would not agree. An
        optional operator that is composed at this size has no slot here.
        """
        place = bisect_right(self._starts, tokens)
        found = self._steps.get(place)
        if found is None:
            found = self._steps[place] = self._step(tokens)
        return found

    def _step(self, tokens: int) -> Table:
        singles: list[tuple[BoundLike, Call]] = []
        for op, whole in self._bound.items():
            place, part = self._part(op, tokens)
            if part.label != COMPOSED:
                single = _Single(op, whole.parameters, whole.defaults, whole.counted, (part,))
                singles.append((single, self._calls[op][place]))
        bound = [single for single, _ in singles]
        table = Table.__new__(Table, bound)
        table._fill(bound, self.plan_id, self._codes)
        for one, call in singles:
            table._install(one, (call,))
        table.seal()
        return table

    def serves(self, op: str, tokens: int) -> bool:
        """Whether a kernel serves an optional operator at this size; if not, compose it."""
        return op in self._bound and self._part(op, tokens)[1].label != COMPOSED

    def at(self, op: str, tokens: int) -> Call:
        """The kernel that serves this many tokens, without a chooser; has `.plan` and `.update`."""
        return self._calls[op][self._part(op, tokens)[0]]

    def kernels(self, tokens: int) -> tuple[tuple[str, str], ...]:
        """("platform:name", graph) of every kernel a step of this many tokens may run."""
        parts = [self._part(op, tokens)[1] for op in self._bound]
        kernels = [(part.label, part.graph) for part in parts if part.label != COMPOSED]
        return tuple(dict.fromkeys(kernels))

    def prepare(self, op: str, weight: Any) -> Any:
        """The weight in the packing of the operator's kernels; once, before `seal`."""
        if self._sealed:
            raise TableSealed(f"{op} cannot pack a weight: the start is finished")
        for part in self._of(op).parts:
            if part.prepare is not None:
                return part.prepare(weight)
        return weight

    @property
    def workspace_bytes(self) -> int:
        """The largest workspace any kernel declared; one block serves all, one after the other."""
        return max((p.workspace_bytes for b in self._bound.values() for p in b.parts), default=0)

    @property
    def became(self) -> dict[tuple[str, str], str]:
        """What libraries chose by themselves (R6): (operator, kernel) -> word."""
        return {
            (op, part.label): part.became
            for op, one in self._bound.items()
            for part in one.parts
            if part.became
        }

    @property
    def is_sealed(self) -> bool:
        """Whether the start is finished."""
        return self._sealed

    def seal(self) -> None:
        """The start is finished: weights are packed, nothing changes any more."""
        object.__setattr__(self, "_sealed", True)

    @contextmanager
    def traced(self, callback: Callable[[Traced], None]) -> Iterator[None]:
        """Report every call inside to `callback`; slots are wrapped and unwrapped."""
        before = dict(self._calls)
        for op, calls in before.items():
            one = self._bound[op]
            wrapped = tuple(
                _reporting(op, part.label, call, callback)
                for part, call in zip(one.parts, calls, strict=True)
            )
            self._install(one, wrapped)
        self._steps.clear()
        try:
            yield
        finally:
            self._steps.clear()
            for op, calls in before.items():
                self._install(self._bound[op], calls)

    @contextmanager
    def blaming(self) -> Iterator[None]:
        """Around one step: what a kernel raises leaves as `KernelFailed`."""
        try:
            yield
        except KernelFailed:
            raise
        except Exception as cause:
            failure = self.blame(cause)
            if failure is None:
                raise
            raise failure from cause

    def blame(self, cause: BaseException) -> KernelFailed | None:
        """The failure that names the kernel in whose slot `cause` was raised; None if in none."""
        found: KernelFailed | None = None
        trace: TracebackType | None = cause.__traceback__
        while trace is not None:
            owner = self._codes.get(id(trace.tb_frame.f_code))
            if owner is not None:
                found = self._failure(*owner, trace, cause)
            trace = trace.tb_next
        return found

    def _failure(
        self, op: str, part: PartLike, trace: TracebackType, cause: BaseException
    ) -> KernelFailed:
        code, values = trace.tb_frame.f_code, trace.tb_frame.f_locals
        count = code.co_argcount + code.co_kwonlyargcount + 2
        named = [n for n in code.co_varnames[:count] if n in values]
        known = self._bound[op].parameters
        arguments = ", ".join(
            f"{name} {_shape(values[name])}" for name in named if name in (*known, "args", "named")
        )
        return KernelFailed(
            f"{op} failed in {part.label} ({part.distribution} {part.version}), "
            f"{part.tokens[0]}-{part.tokens[1]} tokens, plan {self.plan_id}\n"
            f"  {type(cause).__name__}: {cause}\n"
            f"  {arguments or 'no arguments'}\n"
            f"No other kernel takes its place. Report it to {part.distribution}; until then, "
            f"name another kernel with ops={{{op!r}: ...}} (deepinfer explain {op})"
        )

    def _part(self, op: str, tokens: int) -> tuple[int, PartLike]:
        parts = self._of(op).parts
        place = max(bisect_right([part.tokens[0] for part in parts], tokens) - 1, 0)
        return place, parts[place]

    def _of(self, op: str) -> BoundLike:
        if op not in self._bound:
            near = get_close_matches(op, self._bound, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise NoOperator(f"the table of plan {self.plan_id} has no slot for {op!r}{hint}")
        return self._bound[op]

    def _install(self, one: BoundLike, calls: tuple[Call, ...]) -> None:
        self._calls[one.op] = calls
        object.__setattr__(self, attribute(one.op), _slot(one, calls))


def _slot(one: BoundLike, calls: tuple[Call, ...]) -> Call:
    """The kernel itself, or a chooser by the rows of one argument."""
    starts = [part.tokens[0] for part in one.parts]
    if len(calls) == 1:
        return calls[0]
    return _chooser(one, calls, starts[1:])


def _chooser(one: BoundLike, calls: tuple[Call, ...], borders: list[int]) -> Call:
    """A function with the operator's own parameters that picks the kernel by the rows it gets.

    Written as text and compiled once, like a dataclass's constructor: passing `*args, **named`
    on would double the cost of the call (bench/dispatch.py).
    """
    names = ", ".join(one.parameters)
    first = one.parameters[one.counted]
    count = f"({first}.shape[0] if not isinstance({first}, tuple) else _rows({first}))"
    pick = f"(_low if {count} < _border else _high)"
    if len(calls) > 2:
        pick = f"_calls[_place(_borders, {count})]"
    known = {
        "_low": calls[0],
        "_high": calls[1],
        "_border": borders[0],
        "_calls": calls,
        "_borders": borders,
        "_place": bisect_right,
        "_rows": _rows,
    }
    choose: Any = eval(f"lambda {names}: {pick}({names})", known)
    choose.__defaults__ = one.defaults
    return cast("Call", choose)


def _rows(value: Any) -> int:
    """Rows of a named tuple of tensors: those of its first tensor."""
    while isinstance(value, tuple):
        value = value[0]
    rows: int = value.shape[0]
    return rows


def _nothing(meta: Any = None) -> None:
    """Default of `.plan` and `.update`: this kernel has no host arguments."""


def _own(call: Call, name: str) -> Any:
    """The same function with a code object of its own, which tracebacks and `blame` show."""
    if type(call) is FunctionType:
        code = call.__code__.replace(co_name=name, co_qualname=name)
        own = FunctionType(
            code, call.__globals__, call.__name__, call.__defaults__, call.__closure__
        )
        own.__kwdefaults__ = call.__kwdefaults__
        own.__annotations__ = dict(call.__annotations__)
        own.__doc__, own.__module__ = call.__doc__, call.__module__
        own.__dict__.update(call.__dict__)
    else:

        def slot(*args: Any, **named: Any) -> Any:
            return call(*args, **named)

        slot.__code__ = slot.__code__.replace(co_name=name, co_qualname=name)
        own = slot  # type: ignore[assignment]
    for hook in ("plan", "update"):
        setattr(own, hook, getattr(call, hook, _nothing))
    return own


def _reporting(op: str, kernel: str, call: Call, callback: Callable[[Traced], None]) -> Call:
    def traced(*args: Any, **named: Any) -> Any:
        start = time.perf_counter()
        result = call(*args, **named)
        callback(Traced(op, kernel, args, named, result, time.perf_counter() - start))
        return result

    for hook in ("plan", "update"):
        setattr(traced, hook, getattr(call, hook, _nothing))
    return traced


def _shape(value: Any) -> str:
    """An argument in a word: shape and type of a tensor, a scalar as it is, else the type."""
    if hasattr(value, "shape"):
        kind = str(getattr(value, "dtype", "")).removeprefix("torch.")
        return f"{list(value.shape)} {kind}".rstrip()
    if isinstance(value, tuple):
        return "(" + ", ".join(_shape(part) for part in value) + ")"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} {_shape(part)}" for name, part in value.items()) + "}"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return type(value).__name__
