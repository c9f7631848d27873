"""Platform strings: "a+b" reads "a over b", looked up from left to right.

In: the string a person wrote. Out: loaded layers in that order, and the device of the ground.
Does not know: kernels. There are no priorities and nothing is detected unless "auto" is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from deepinfer.plugin.failures import BadAnswer, BadPlatform, NoAutomaticChoice, NoDevice
from deepinfer.plugin.find import BUILT_IN, PATIENCE_S, Layer, Offer, installed, load
from deepinfer.plugin.types import Absent, Device, Want

ALIASES: Final[Mapping[str, str]] = {
    "h20": "triton_portable+nvidia_sm90",
}
"""Short names for strings; always printed expanded."""

ONE_DEVICE: Final = Want()
AUTO: Final = "auto"
REFERENCE: Final = "reference"
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Platform:
    """Loaded layers, left-most first."""

    layers: tuple[Layer, ...]

    @property
    def name(self) -> str:
        """The string, expanded."""
        return spell([layer.name for layer in self.layers])

    def seal(self) -> None:
        """After this, registering anything is an error."""
        for layer in self.layers:
            layer.manager.sealed = True


@dataclass(frozen=True)
class Ground:
    """Who describes the device: the right-most layer that can. `others` could, but are overlays."""

    device: Device
    layer: str
    others: tuple[str, ...] = ()


def spell(names: Sequence[str]) -> str:
    """The platform string of these names."""
    return "+".join(names)


def parse(text: str, aliases: Mapping[str, str] = ALIASES) -> tuple[str, ...]:
    """Names of a platform string: `name ("+" name)*`, aliases expanded, each name once."""
    if not text.strip():
        raise BadPlatform('the platform string is empty; write for example "reference"')
    names: list[str] = []
    for part in text.split("+"):
        name = part.strip()
        if not _NAME.fullmatch(name):
            raise BadPlatform(
                f"{name!r} in platform {text!r} is not a name; a platform string is names of "
                'lower-case letters, digits and "_", joined by "+", for example "acme+reference"'
            )
        names += aliases[name].split("+") if name in aliases else [name]
    if AUTO in names and len(names) > 1:
        raise BadPlatform(f"auto stands alone; {text!r} mixes it with names")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadPlatform(f"platform {spell(names)!r} names {', '.join(twice)} more than once")
    return tuple(names)


def load_platform(
    text: str,
    want: Want = ONE_DEVICE,
    *,
    aliases: Mapping[str, str] = ALIASES,
    offers: Mapping[str, Sequence[Offer]] | None = None,
    patience: float = PATIENCE_S,
) -> Platform:
    """Parse, find, check and register; "auto" asks the installed grounds."""
    names = parse(text, aliases)
    offers = installed() if offers is None else offers
    if names == (AUTO,):
        return Platform((_automatic(want, offers, patience),))
    return Platform(tuple(load(names, offers, patience)))


def _automatic(want: Want, offers: Mapping[str, Sequence[Offer]], patience: float) -> Layer:
    """The one installed ground whose device is here; no overlay, no platform of the core."""
    names = [name for name in offers if name not in BUILT_IN]
    willing: list[tuple[Layer, Device]] = []
    reasons: list[str] = []
    for layer in load(names, offers, patience):
        if not layer.has("deepinfer_device"):
            reasons.append(f"{layer.name} describes no device (an overlay)")
            continue
        answer = describe(layer, want)
        if isinstance(answer, Absent):
            reasons.append(f"{layer.name}: {answer.reason}")
        else:
            willing.append((layer, answer))
    if len(willing) == 1:
        return willing[0][0]
    if willing:
        found = ", ".join(f"{layer.name} ({device.name})" for layer, device in willing)
        choose = " or ".join(f"--platform {layer.name}" for layer, _ in willing)
        raise NoAutomaticChoice(
            f"several platforms have a device here: {found}. auto never chooses between them; "
            f"write {choose}, an overlay like {spell([layer.name for layer, _ in willing])}, "
            "or --platform reference for the slow, exact one"
        )
    raise NoAutomaticChoice(
        "no installed platform has a device here"
        + (f" ({'; '.join(reasons)})" if reasons else "")
        + "; to run on the CPU, slowly and exactly, write --platform reference"
    )


def ground(platform: Platform, want: Want = ONE_DEVICE) -> Ground:
    """Ask the right-most layer that describes devices; if its device is absent, that is a stop."""
    able = [layer for layer in platform.layers if layer.has("deepinfer_device")]
    if not able:
        raise NoDevice(
            f"no layer of {platform.name} describes a device; put a ground to its right, "
            f"for example {platform.name}+reference"
        )
    *others, layer = able
    answer = describe(layer, want)
    if isinstance(answer, Absent):
        raise NoDevice(
            f"{layer.name} has no device here: {answer.reason}. Run it where the device is, or "
            "name another platform (reference runs anywhere); deepinfer doctor lists them"
        )
    return Ground(answer, layer.name, tuple(other.name for other in others))


def describe(layer: Layer, want: Want) -> Device | Absent:
    """The layer's device, or why it is not there."""
    answer = layer.ask("deepinfer_device", want=want)
    if not isinstance(answer, Device | Absent):
        raise BadAnswer(
            f"deepinfer_device of {layer} returned {answer!r}; "
            'answer Device(...) or absent("why")'
        )
    wanted = len(want.indices) or want.count
    if isinstance(answer, Device) and answer.count != wanted:
        raise BadAnswer(
            f"deepinfer_device of {layer} described {answer.count} devices where {wanted} were "
            "asked for; describe as many, or answer absent(...) with what is there"
        )
    return answer
