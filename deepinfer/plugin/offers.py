"""The two things a process has once: memory and graphs, from the first layer that offers them.

In: layers and the device. Out: the object and who else would have offered one.
Does not know: how either of them works.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from deepinfer.plugin.failures import BadAnswer, NoMemoryLayer
from deepinfer.plugin.find import Layer
from deepinfer.plugin.memory import MEMBERS, Memory
from deepinfer.plugin.stack import Platform
from deepinfer.plugin.types import Device

GRAPH_MEMBERS: Final = ("warmups", "can_capture", "capture")


@dataclass(frozen=True)
class Offered:
    """An offered object, its layer, and the layers below that have the same hook."""

    value: Any
    layer: str
    others: tuple[str, ...] = ()


def choose_memory(platform: Platform, device: Device) -> Offered:
    """The memory object of the first layer that offers one."""
    offered = _first(platform, "deepinfer_memory", MEMBERS, device=device)
    if offered is None:
        raise NoMemoryLayer(
            f"no layer of {platform.name} offers memory; "
            "the ground must implement deepinfer_memory"
        )
    return offered


def choose_graphs(platform: Platform, device: Device, memory: Memory) -> Offered | None:
    """The graphs object of the first layer that offers one; without one, every step is eager."""
    return _first(
        platform, "deepinfer_graphs", GRAPH_MEMBERS, device=device, memory=memory
    )


def _first(
    platform: Platform, hook: str, members: tuple[str, ...], **arguments: Any
) -> Offered | None:
    able = [layer for layer in platform.layers if layer.has(hook)]
    for at, layer in enumerate(able):
        value = layer.ask(hook, **arguments)
        if value is not None:
            _check_members(layer, hook, value, members)
            return Offered(value, layer.name, tuple(other.name for other in able[at + 1 :]))
    return None


def _check_members(layer: Layer, hook: str, value: object, members: tuple[str, ...]) -> None:
    missing = [member for member in members if not hasattr(value, member)]
    if missing:
        raise BadAnswer(
            f"{hook} of {layer} returned {type(value).__name__} without {', '.join(missing)}"
        )
