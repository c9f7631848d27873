"""Recording a step once and replaying it: what a platform with graphs offers.

In: a step without arguments, a named arena. Out: a `Recording` to replay.
Does not know: buckets, padding, the order of capture; those are the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from deepinfer.plugin.types import YES, Answer, no


@runtime_checkable
class Recording(Protocol):
    """A captured step. `update` rewrites host arguments of kernels with graph="update"."""

    nbytes: int

    def replay(self) -> None:
        """Run the recorded step on whatever its static buffers hold now."""

    def update(self, meta: Any) -> None:
        """Rewrite host arguments before the next replay; empty where a device needs none."""


@runtime_checkable
class Graphs(Protocol):
    """Capture of whole steps. `warmups` is how many eager runs a step needs before capture."""

    warmups: int

    def can_capture(self, kernels: Sequence[tuple[str, str]]) -> Answer:
        """YES, or no(...) with the names of the kernels that refuse.

        `kernels` holds ("platform:name", graph) pairs; `graph` is the field of `Kernel`.
        """

    def capture(self, step: Callable[[], None], arena: str) -> Recording:
        """Record one run of `step`; what it allocates comes from the named arena."""


def willing(kernels: Sequence[tuple[str, str]]) -> Answer:
    """The usual `can_capture`: no, naming every kernel that says "never: reason"."""
    refusals = [
        f"{name} ({graph.removeprefix('never:').strip()})"
        for name, graph in kernels
        if graph.startswith("never")
    ]
    return no("; ".join(refusals)) if refusals else YES
