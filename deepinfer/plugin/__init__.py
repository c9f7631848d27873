"""Everything a plugin author imports: `from deepinfer.plugin import YES, Kernel, hookimpl, no`.

In: nothing. Out: the public names of the plugin interface, version `API`.
Does not know: torch, other rooms. A plugin that imports more of deepinfer fails `verify`.
"""

from deepinfer.plugin.graphs import Graphs
from deepinfer.plugin.memory import Memory
from deepinfer.plugin.specs import hookimpl
from deepinfer.plugin.types import (
    API,
    YES,
    Check,
    Device,
    Facts,
    Finding,
    Kernel,
    Layout,
    Mesh,
    Model,
    Problem,
    Record,
    Want,
    absent,
    no,
    unverified,
)

__all__ = [
    "API",
    "YES",
    "Check",
    "Device",
    "Facts",
    "Finding",
    "Graphs",
    "Kernel",
    "Layout",
    "Memory",
    "Mesh",
    "Model",
    "Problem",
    "Record",
    "Want",
    "absent",
    "hookimpl",
    "no",
    "unverified",
]
