"""Named blocks with fixed addresses: who holds which bytes of the device.

In: how many bytes there are, how many each part of the engine needs. Out: arenas, a printed budget.
Does not know: torch. A platform subclasses `Arenas` and adds tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

from deepinfer.errors import MemoryShort
from deepinfer.plugin.failures import ArenaError
from deepinfer.plugin.types import Mesh

ARENAS: Final = ("weights", "kv", "state", "workspace", "exchange", "graph")
"""The names an arena may have."""


def words(nbytes: int) -> str:
    """Bytes as a person reads them, binary units."""
    size, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{nbytes} B" if unit == "B" else f"{size:.2f} {unit}"


@dataclass(frozen=True)
class Budget:
    """Bytes of the device: all, free now, and who holds what."""

    total: int
    free: int
    held: Mapping[str, int] = field(default_factory=dict)

    def lines(self) -> tuple[str, ...]:
        """The budget as a small table; "other" is held by somebody else or not counted."""
        known = sum(self.held.values())
        rows = [("memory", self.total), *self.held.items()]
        other = self.total - self.free - known
        if other > 0:
            rows.append(("other", other))
        rows.append(("free", self.free))
        return tuple(f"{name:<10} {words(nbytes):>12}" for name, nbytes in rows)

    def __str__(self) -> str:
        return "\n".join(self.lines())


@runtime_checkable
class Memory(Protocol):
    """The memory of one process, from the first layer that offers one (architecture section 6).

    An arena keeps its address for life: graphs hold raw addresses. A kernel may not allocate
    inside a captured region nor keep memory of its own.
    """

    def budget(self) -> Budget:
        """Free and total bytes, and who holds what."""

    def arena(self, name: str, nbytes: int) -> Any:
        """Reserve a named block once; a second call or another size is an error."""

    def view(self, arena: str, offset: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """A tensor over part of an arena; `offset` in bytes."""

    def host(self, nbytes: int) -> Any:
        """Host memory that the device copies from and to quickly."""

    def register(self, block: Any) -> Any:
        """Make existing host memory fit for fast copies; returns what to use from now on."""

    def exchange(self, nbytes: int, mesh: Mesh) -> Any:
        """Memory that the other ranks can address."""

    def scratch(self) -> AbstractContextManager[None]:
        """Temporary allocations inside go to a pool that is given back at the end."""


MEMBERS: Final = ("budget", "arena", "view", "host", "register", "exchange", "scratch")


class Arenas:
    """Accounting of named arenas, without a device: names, sizes, bounds and what is left.

    `measure()` returns (total, free) bytes as the device sees them before anything is reserved.
    """

    def __init__(self, measure: Callable[[], tuple[int, int]]) -> None:
        self._total, self._free = measure()
        self._held: dict[str, int] = {}

    def budget(self) -> Budget:
        """What is free is what was free at the start minus what arenas hold."""
        return Budget(self._total, self._free - sum(self._held.values()), dict(self._held))

    def reserve(self, name: str, nbytes: int) -> None:
        """Note that `name` holds `nbytes` from now on, or say why that cannot be."""
        if name not in ARENAS:
            raise ArenaError(f"no arena is called {name!r}; arenas are {', '.join(ARENAS)}")
        if nbytes < 0:
            raise ArenaError(f"arena {name} cannot hold {nbytes} bytes")
        if name in self._held:
            raise ArenaError(
                f"arena {name} already holds {words(self._held[name])} and asked for "
                f"{words(nbytes)}; an arena is reserved once and never grows, because graphs "
                "keep its address. Reserve the largest size at start"
            )
        fit(self.budget(), {name: nbytes})
        self._held[name] = nbytes

    def within(self, name: str, offset: int, nbytes: int) -> None:
        """Raise if `nbytes` at `offset` do not lie inside the arena."""
        if name not in self._held:
            raise ArenaError(f"arena {name} was never reserved; reserved: {self._names()}")
        if offset < 0 or offset + nbytes > self._held[name]:
            raise ArenaError(
                f"bytes {offset} to {offset + nbytes} lie outside arena {name} "
                f"of {self._held[name]} bytes"
            )

    def _names(self) -> str:
        return ", ".join(self._held) or "none"


def fit(budget: Budget, needs: Mapping[str, int]) -> tuple[str, ...]:
    """Lines of the budget with `needs` taken from it; `MemoryShort` if they do not fit.

    The start prints these lines before the first byte is loaded.
    """
    left = budget.free - sum(needs.values())
    if left < 0:
        terms = " - ".join(f"{name} {words(nbytes)}" for name, nbytes in needs.items())
        held = "".join(f"{name} {words(n)}, " for name, n in budget.held.items())
        raise MemoryShort(
            f"memory is short by {words(-left)}: {words(budget.free)} free of "
            f"{words(budget.total)} - {terms} = {words(left)}"
            + (f" ({held.removesuffix(', ')} are held already)" if held else "")
            + ". Use fewer cache rows, a shorter context, more ranks, or a smaller model"
        )
    return Budget(budget.total, left, {**budget.held, **needs}).lines()
