"""What can be wrong with a platform, one class per cause.

In: the place and the cause in words. Out: errors that say what to do.
Does not know: how any of them is found.
"""

from __future__ import annotations

from deepinfer.errors import PlatformError, UsageError


class BadPlatform(UsageError):
    """The platform string itself is wrong, or names something twice."""


class NoPlatform(PlatformError):
    """A named platform is not installed."""


class OfferedTwice(PlatformError):
    """Two distributions offer a platform under one name."""


class ImportFailed(PlatformError):
    """A platform is installed but its module cannot be imported; the reason is in `__cause__`."""


class WrongInterface(PlatformError):
    """A platform was written against an interface that this core does not speak."""


class BadPlugin(PlatformError):
    """A platform's hooks are not well formed: unknown name, unknown argument, forbidden option."""


class HookFailed(PlatformError):
    """A hook or a function of a kernel raised at start; the reason is in `__cause__`."""


class BadAnswer(PlatformError):
    """A plugin answered something that is not one of the answers it may give."""


class BadKernel(PlatformError):
    """A declared kernel breaks the contract: operator, name, tokens, layouts or signature."""


class NoDevice(PlatformError):
    """The ground layer says that its device is not there, or no layer can describe one."""


class NoAutomaticChoice(PlatformError):
    """`auto` found no ground, or more than one; it never chooses between two (R2)."""


class NoMemoryLayer(PlatformError):
    """No layer offers memory."""


class NoKernel(PlatformError):
    """Operators without a willing kernel (R3). `holes` holds them as data."""

    def __init__(self, message: str, holes: tuple[dict[str, object], ...] = ()) -> None:
        super().__init__(message)
        self.holes = holes


class NoLayout(PlatformError):
    """No layout of a kind is served by every operator that touches it."""


class BadOverride(UsageError):
    """An entry of `ops={...}` names no operator or kernel, or one that says no."""


class PlanMismatch(PlatformError):
    """Ranks have different plans (R8)."""


class DamagedPlan(PlatformError):
    """A plan read from JSON is not what its id says."""


class ArenaError(PlatformError):
    """An arena was reserved twice, grown, or read outside its bounds."""


class Sealed(PlatformError):
    """Something tried to change the platform after the start was finished."""
