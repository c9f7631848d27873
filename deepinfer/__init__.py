"""DeepInfer: DeepSeek-V4.1 inference whose hardware support is made of plugins.

In: nothing. Out: the public names, loaded when they are first used.
Does not know: torch, until a name that needs it is asked for (plugins import this package too).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepinfer.errors import DeepInferError as DeepInferError
    from deepinfer.llm import LLM as LLM
    from deepinfer.llm import run as run
    from deepinfer.output import Output as Output
    from deepinfer.sample.params import SamplingParams as SamplingParams

__version__ = "0.2.0"

_HOMES = {
    "LLM": "deepinfer.llm",
    "run": "deepinfer.llm",
    "Output": "deepinfer.output",
    "SamplingParams": "deepinfer.sample.params",
    "DeepInferError": "deepinfer.errors",
}
__all__ = ["LLM", "DeepInferError", "Output", "SamplingParams", "__version__", "run"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"deepinfer has no public name {name!r}; it has {', '.join(_HOMES)}")
    if name in ("LLM", "run"):
        import_module("deepinfer.settings").calm_threads()  # before torch is loaded
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
