"""What core and plugins say to each other: facts, questions, answers and kernels.

In: plain values. Out: frozen objects that can be printed, hashed, sent to workers and faked.
Does not know: torch, devices, files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

API: Final = (1, 0)
"""Version of the interface that this core speaks, (major, minor); see docs/write-a-plugin.md."""

Fact = str | int | float | bool | None | tuple[Any, ...]
"""What a fact may be: a plain value, or a tuple of them."""


class Facts(Mapping[str, Any]):
    """A read-only mapping of plain values, in sorted order; equal facts have equal hashes."""

    __slots__ = ("_items",)

    def __init__(self, values: Mapping[str, Fact] | None = None, /, **more: Fact) -> None:
        merged = dict(values or {}, **more)
        for name, value in merged.items():
            if not _is_plain(value):
                raise TypeError(
                    f"fact {name!r} is {type(value).__name__}; only plain values and tuples of them"
                )
        self._items = {name: merged[name] for name in sorted(merged)}

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(tuple(self._items.items()))

    def __repr__(self) -> str:
        return f"Facts({', '.join(f'{name}={value!r}' for name, value in self._items.items())})"

    def __reduce__(self) -> tuple[type[Facts], tuple[dict[str, Any]]]:
        return Facts, (self._items,)


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, str | int | float | bool)


@dataclass(frozen=True)
class Answer:
    """One of three answers a kernel may give. Made with `YES`, `no(...)`, `unverified(...)`."""

    kind: str
    reason: str = ""

    def __str__(self) -> str:
        return self.kind if not self.reason else f"{self.kind}: {self.reason}"

    def __bool__(self) -> bool:
        raise TypeError('an answer has three values; compare its kind: answer.kind == "yes"')


YES: Final = Answer("yes")


def no(reason: str) -> Answer:
    """This kernel cannot do it, and why. Ability, not taste: "slower below 257" is `tokens`."""
    return Answer("no", _reason("no", reason))


def unverified(reason: str) -> Answer:
    """This kernel should work but nobody has shown it; binds only with `allow_unverified=True`."""
    return Answer("unverified", _reason("unverified", reason))


def _reason(kind: str, reason: object) -> str:
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError(f"{kind}(...) needs a reason in words")
    return reason.strip()


@dataclass(frozen=True)
class Absent:
    """Answer of `deepinfer_device` when the device is not there. Make it with `absent(...)`."""

    reason: str


def absent(reason: str) -> Absent:
    """There is no such device on this machine, and how that was found out."""
    return Absent(_reason("absent", reason))


@dataclass(frozen=True)
class Want:
    """Which devices a start asks for: how many, or exactly which indices."""

    count: int = 1
    indices: tuple[int, ...] = ()


@dataclass(frozen=True)
class Device:
    """Facts about the device(s) of the ground layer.

    `torch_device` is what torch calls it ("cpu", "cuda:0"). `facts` holds whatever kernels ask
    about (compute capability, driver, shared memory ...); bytes and rates carry their unit in
    the name. The core itself reads one of them: `computes=False` says that no kernel here reads
    values, so that weights are given as shapes without bytes.
    """

    kind: str
    name: str
    torch_device: str
    count: int = 1
    memory_bytes: int = 0
    facts: Facts = field(default_factory=Facts)


@dataclass(frozen=True)
class Model:
    """The numbers of a checkpoint as kernels may ask for them.

    `dims` names single numbers and tuples (see docs/operators.md); `features` is a subset of
    {"engram", "candidates", "draft", "ratio1", "ratio2"}.
    """

    name: str
    dims: Facts
    features: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Mesh:
    """How many ranks take part and which one this is."""

    size: int = 1
    rank: int = 0
    expert_ranks: int = 1
    context_ranks: int = 1


@dataclass(frozen=True)
class Problem:
    """The question for `supports`, `build` and `workspace`: one operator in one token range."""

    op: str
    dims: Facts
    tokens: tuple[int, int]
    device: Device
    model: Model
    mesh: Mesh = Mesh()
    modes: Facts = field(default_factory=Facts)
    layouts: Facts = field(default_factory=Facts)


@dataclass(frozen=True)
class Record:
    """Bytes of one cache row in a layout, given the model's dims: `width` elements of `dtype`."""

    dtype: str
    width: int


@dataclass(frozen=True)
class Layout:
    """How bytes that several operators share are arranged.

    A layout that the catalogue does not know may be brought by a plugin: give `Kernel.layouts` this
    object in place of a name. `records` turns the model's dims into one `Record` per cache of the
    kind ("window" and "entry" for `kv`, "index" for `index`); it is empty for weights and
    passing kinds.
    """

    name: str
    records: Callable[[Mapping[str, Any]], Mapping[str, Record]] | None = None


Build = Callable[[Problem], Callable[..., Any]]
Supports = Callable[[Problem], Answer]


def always(problem: Problem) -> Answer:
    """Default of `Kernel.supports`: yes to everything."""
    return YES


@dataclass(frozen=True)
class Kernel:
    """One implementation of one operator, as a plugin declares it.

    op               operator of the catalogue, "attention.sparse_decode"
    name             printed as "platform:name"; lower case
    build            build(problem) -> callable with the operator's signature; heavy imports go
                     here. The callable may carry `.plan(meta)`, `.update(meta)` and, if a
                     library chose something by itself, `.became` (a word that the plan prints)
    supports         supports(problem) -> YES | no("why") | unverified("why")
    tokens           token range in which the kernel is *offered* (taste), apart from ability
    layouts          {"kv": "packed"}: the layout of each kind that this kernel reads or writes
    prepare          prepare(weight, problem) -> the weight in this kernel's packing, once
    workspace        workspace(problem) -> bytes that must be reserved before serving
    graph            "replay" | "update" (has host arguments) | "never: reason"
    batch_invariant  a row's result does not depend on the other rows of the call
    """

    op: str
    name: str
    build: Build
    supports: Supports = always
    tokens: tuple[int, int | None] = (1, None)
    layouts: Mapping[str, str | Layout] = field(default_factory=dict)
    prepare: Callable[[Any, Problem], Any] | None = None
    workspace: Callable[[Problem], int] | None = None
    graph: str = "replay"
    batch_invariant: bool = False


@dataclass(frozen=True)
class Finding:
    """One line of `doctor`: level is "ok", "warning" or "error"; `advice` says what to do."""

    level: str
    subject: str
    message: str
    advice: str = ""


@dataclass(frozen=True)
class Check:
    """A check a plugin contributes to `doctor`; `run()` returns findings."""

    name: str
    run: Callable[[], list[Finding]]
