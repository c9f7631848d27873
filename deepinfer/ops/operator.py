"""The shape of a catalogue row: what an operator promises, whoever computes it.

In: a contract in words and data. Out: `Operator` rows, `Kind` rows for shared bytes.
Does not know: kernels, plugins, the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tolerance:
    """How far a kernel may be from the reference. `kind` is "exact", "relative" or "ulp".

    relative  norm of the difference over norm of the reference, at most `value`
    ulp       at most `share` of the elements unequal, each by at most `value` ulp of its dtype, or
              by less than 1e-6 of the tensor's RMS where terms cancel
    """

    kind: str
    value: float = 0.0
    share: float = 1.0

    def __str__(self) -> str:
        if self.kind == "exact":
            return "equal"
        if self.kind == "relative":
            return f"{self.value:g} of the norm"
        return f"{self.value:g} ulp on at most {self.share:.2%} of the values"


EXACT = Tolerance("exact")


def relative(value: float) -> Tolerance:
    """At most `value` of the reference's norm."""
    return Tolerance("relative", value)


def ulp(value: float, share: float) -> Tolerance:
    """At most `share` of the elements differ, each by at most `value` ulp."""
    return Tolerance("ulp", value, share)


@dataclass(frozen=True)
class Kind:
    """Bytes that several operators share, so that they must agree on a layout.

    A kept kind has one layout for the whole run; a passing kind one per token bucket. The anchor is
    the operator whose kernels are asked first.
    """

    name: str
    kept: bool
    anchor: str
    doc: str


Inputs = Callable[..., Mapping[str, Any]]
"""inputs(dims, tokens, seed, edge) -> arguments of one call; `Operator.edges` names the edges."""


@dataclass(frozen=True)
class Operator:
    """One row of the catalogue. `call` has no body: parameters and docstring are the contract."""

    name: str
    call: Callable[..., Any]
    dims: tuple[str, ...]
    tolerance: Tolerance
    inputs: Inputs
    edges: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    needs: str | None = None
    composed_of: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """The hook that serves it: attention, gemm, all_to_all, sampler or tensor."""
        return self.name.split(".")[0]

    @property
    def doc(self) -> str:
        """The contract: shapes, dtypes, rounding, source."""
        return inspect.cleandoc(self.call.__doc__ or "")

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the arguments in order."""
        return tuple(inspect.signature(self.call).parameters)

    @property
    def signature(self) -> str:
        """The signature as a kernel's callable must offer it."""
        text = str(inspect.signature(self.call))
        return self.name + text.replace("'", "")  # annotations are kept as words


@dataclass(frozen=True)
class Catalogue:
    """All operators and kinds; the resolver, the plan, the kit and the docs read it."""

    operators: Mapping[str, Operator]
    kinds: Mapping[str, Kind]

    def __getitem__(self, name: str) -> Operator:
        return self.operators[name]

    def needed(self, features: frozenset[str]) -> tuple[Operator, ...]:
        """Operators that a model with these features calls, in catalogue order.

        `features` are those of `plugin.Model` plus "ranks" when more than one rank takes part.
        """
        return tuple(
            op for op in self.operators.values() if op.needs is None or op.needs in features
        )
