"""Finds installed platforms and loads exactly those that are named.

In: names. Out: `Layer` objects, one plugin manager each, checked before any hook is called.
Does not know: devices, kernels, the order of layers.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from types import ModuleType
from typing import Any, Final

import pluggy

from deepinfer.plugin import specs
from deepinfer.plugin.failures import (
    BadPlugin,
    HookFailed,
    ImportFailed,
    NoPlatform,
    OfferedTwice,
    Sealed,
)
from deepinfer.plugin.interface import check_interface, check_source

GROUP: Final = "deepinfer.platforms"
BUILT_IN: Final = {"reference": "deepinfer.reference", "null": "deepinfer.null"}
PATIENCE_S: Final = 10.0
"""Seconds after which a platform that is still importing is named on stderr."""


@dataclass(frozen=True)
class Offer:
    """What a distribution says about a platform before anything is imported."""

    name: str
    module: str
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"platform {self.name} ({self.distribution} {self.version}, module {self.module})"


class LayerManager(pluggy.PluginManager):
    """The hooks of one layer. One manager per layer, so the sender of an answer is known."""

    def __init__(self) -> None:
        super().__init__(specs.PROJECT)
        self.sealed = False
        self.add_hookspecs(specs)

    def register(self, plugin: object, name: str | None = None) -> str | None:
        """Register a module; an error after `seal`."""
        if self.sealed:
            raise Sealed(
                f"{name or repr(plugin)} tried to register after the start was finished; "
                "kernels are bound once. Declare it in a hook of the platform module"
            )
        return super().register(plugin, name)


@dataclass(frozen=True)
class Layer:
    """A loaded platform."""

    name: str
    distribution: str
    version: str
    module: ModuleType
    api: tuple[int, int]
    manager: LayerManager

    def __str__(self) -> str:
        return f"{self.name} ({self.distribution} {self.version})"

    def has(self, hook: str) -> bool:
        """Whether the layer implements the hook."""
        return bool(getattr(self.manager.hook, hook).get_hookimpls())

    def ask(self, hook: str, **arguments: Any) -> Any:
        """The layer's answer to a hook, None if it has none."""
        with blamed(f"{hook} of {self}"):
            answers = getattr(self.manager.hook, hook)(**arguments)
        return answers[0] if answers else None

    def ask_all(self, hook: str, **arguments: Any) -> list[Any]:
        """Everything that the layer's hook yields."""
        answer = self.ask(hook, **arguments)
        if answer is None:
            return []
        if not isinstance(answer, Iterable):
            raise BadPlugin(
                f"{hook} of {self} returned {type(answer).__name__}; yield each one instead"
            )
        with blamed(f"{hook} of {self}"):
            return list(answer)


@contextmanager
def blamed(place: str) -> Iterator[None]:
    """Turn whatever plugin code raises into `HookFailed` that names the place."""
    try:
        yield
    except (Exception, SystemExit) as cause:
        raise HookFailed(f"{place} raised {described(cause)}") from cause


def described(cause: BaseException) -> str:
    """An exception in one line: type and message."""
    text = " ".join(str(cause).split())
    return f"{type(cause).__name__}: {text}" if text else type(cause).__name__


def installed(built_in: Mapping[str, str] = BUILT_IN) -> dict[str, tuple[Offer, ...]]:
    """Every platform on this machine by name, nothing imported; two offers are two entries."""
    found: dict[str, list[Offer]] = {}
    for name, module in built_in.items():
        found.setdefault(name, []).append(Offer(name, module, "deepinfer", _own_version()))
    for entry in importlib.metadata.entry_points(group=GROUP):
        owner = entry.dist
        distribution = owner.name if owner else "unknown distribution"
        version = owner.version if owner else "unknown version"
        found.setdefault(entry.name, []).append(
            Offer(entry.name, entry.value.strip(), distribution, version)
        )
    return {
        name: tuple(sorted(found[name], key=lambda offer: offer.distribution))
        for name in sorted(found)
    }


def _own_version() -> str:
    try:
        return importlib.metadata.version("deepinfer")
    except importlib.metadata.PackageNotFoundError:
        return "source tree"


def load(
    names: Sequence[str],
    offers: Mapping[str, Sequence[Offer]] | None = None,
    patience: float = PATIENCE_S,
) -> list[Layer]:
    """Load the named platforms, in this order, and no other (R1: anything wrong is a stop)."""
    offers = installed() if offers is None else offers
    chosen = [one_offer(name, offers) for name in names]
    return [load_offer(offer, patience) for offer in chosen]


def one_offer(name: str, offers: Mapping[str, Sequence[Offer]]) -> Offer:
    """The only offer of this name."""
    found = offers.get(name, ())
    if not found:
        near = get_close_matches(name, offers, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise NoPlatform(
            f"platform {name} is not installed{hint}. Installed: {', '.join(offers) or 'none'}. "
            "Install its package, or name another with --platform (reference runs anywhere)"
        )
    if len(found) > 1:
        owners = " and ".join(f"{offer.distribution} {offer.version}" for offer in found)
        raise OfferedTwice(
            f"platform {name} is offered by {owners}; uninstall all but one of them"
        )
    return found[0]


def load_offer(offer: Offer, patience: float = PATIENCE_S) -> Layer:
    """Import one platform, check its interface, register it."""
    if offer.distribution != "deepinfer":
        check_source(str(offer), offer.module)
    with _watched(offer, patience):
        module = _import(offer)
    return layer_of(module, offer)


def _import(offer: Offer) -> ModuleType:
    if ":" in offer.module:
        raise BadPlugin(f"{offer}: the entry point must name a module, without a colon")
    try:
        return importlib.import_module(offer.module)
    except (Exception, SystemExit) as cause:
        # A compiled dependency may raise anything here, OSError and SystemExit included; whatever
        # it is, a platform that was named and cannot be imported stops the start.
        raise ImportFailed(
            f"{offer} cannot be imported: {described(cause)}. "
            f"Repair or reinstall {offer.distribution}, or name another platform; "
            "--debug shows where it failed"
        ) from cause


@contextmanager
def _watched(offer: Offer, patience: float) -> Iterator[None]:
    """Names a platform whose import does not come back; the import itself is left alone."""

    def speak() -> None:
        print(
            f"deepinfer: {offer} is still importing after {patience:g} s; "
            "if it hangs, interrupt (Ctrl-C) and name another platform",
            file=sys.stderr,
            flush=True,
        )

    timer = threading.Timer(patience, speak)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def layer_of(module: ModuleType, offer: Offer) -> Layer:
    """Check a module's interface and hooks, and give it its own manager."""
    api = check_interface(str(offer), getattr(module, "DEEPINFER_API", None))
    manager = LayerManager()
    _check_marks(module, offer)
    try:
        manager.register(module, offer.name)
        manager.check_pending()
    except pluggy.PluginValidationError as cause:
        raise BadPlugin(f"{offer}: {_explained(cause)}") from cause
    return Layer(offer.name, offer.distribution, offer.version, module, api, manager)


def _explained(cause: pluggy.PluginValidationError) -> str:
    """pluggy's own words in one line, with the nearest hook if one was misspelt."""
    text = " ".join(str(cause).split())
    unknown = text.partition("unknown hook '")[2].partition("'")[0]
    near = get_close_matches(unknown, specs.HOOKS, 1) if unknown else []
    return f"{text} (did you mean {near[0]}?)" if near else text


def _check_marks(module: ModuleType, offer: Offer) -> None:
    """Hooks must be marked plainly: wrappers and optional hooks hide who answered."""
    for name, value in vars(module).items():
        if isinstance(value, type) or not callable(value):
            continue
        if hasattr(value, f"{specs.PROJECT}_spec"):
            raise BadPlugin(f"{offer}: {name} is a hook specification; platforms only implement")
        options: Mapping[str, Any] | None = getattr(value, f"{specs.PROJECT}_impl", None)
        if options is None:
            if name in specs.HOOKS:
                raise BadPlugin(f"{offer}: {name} is not marked; write @hookimpl above it")
            continue
        used = sorted(option for option, setting in options.items() if setting)
        if used:
            raise BadPlugin(
                f"{offer}: {name} uses @hookimpl({', '.join(used)}); plain @hookimpl only, "
                "order comes from the platform string"
            )
