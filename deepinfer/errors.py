"""Everything that can go wrong and has a name: one class per cause.

In: what happened, where, what to do. Out: one sentence for a person, an exit code for a shell.
Does not know: any other room.
"""


class DeepInferError(Exception):
    """A failure with a cause, a place and an answer. The command line returns `exit_code`."""

    exit_code = 2


class UsageError(DeepInferError):
    """An argument, option or file given by the caller is wrong."""


class SettingError(UsageError):
    """A setting or environment variable is unknown or out of range."""


class RequestError(DeepInferError):
    """One request cannot be served; the others are not touched."""

    exit_code = 1


class ModelError(DeepInferError):
    """The checkpoint is missing, incomplete or damaged."""


class CheckFailed(DeepInferError):
    """A comparison or check ran to its end and found a difference."""

    exit_code = 1


class PlatformError(DeepInferError):
    """A platform cannot be used as asked."""


class MemoryShort(DeepInferError):
    """What was asked for does not fit the memory there is."""
