"""The `null` platform: every operator and no arithmetic, to measure and test all that is around it.

In: the hooks of `deepinfer.plugin`. Out: kernels that answer with shapes, memory that is counted.
Does not know: numbers. Like the reference it is used only when written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from deepinfer.plugin import (
    YES,
    Device,
    Facts,
    Kernel,
    Layout,
    Mesh,
    Model,
    Problem,
    Record,
    Want,
    hookimpl,
    no,
)
from deepinfer.plugin.types import Answer

DEEPINFER_API = (1, 0)


def _packed_kv(dims: Mapping[str, Any]) -> dict[str, Record]:
    """Rows as long as the official format's: 528 and 288 bytes at V4.1's widths."""
    dim = dims["head_dim"]
    return {
        "window": Record("uint8", dim + dim // 32),
        "entry": Record("uint8", dim // 2 + dim // 16),
        "open": Record("float32", 2 * dim),
    }


def _packed_index(dims: Mapping[str, Any]) -> dict[str, Record]:
    dim = dims["index_dim"]
    return {"index": Record("uint8", dim // 2 + dim // 32)}


_LAYOUTS: Final[Mapping[str, str | Layout]] = {
    "kv": Layout("packed", _packed_kv),
    "index": Layout("packed", _packed_index),
    "activations": "rows",
    "expert_rows": "sorted",
    "dense_weights": "stored",
    "expert_weights": "stored",
}
_PACKS = ("gemm.", "tensor.embed", "tensor.gather_rows")


def _build(problem: Problem) -> Callable[..., Any]:
    from deepinfer.null import kernels

    call: Callable[..., Any] = getattr(kernels, problem.op.split(".")[1])
    return call


def _prepare(weight: Any, problem: Problem) -> Any:
    """The weight as it is stored: kernels read its shape only."""
    return weight


def _fits(problem: Problem) -> Answer:
    """Results have the types of the official rounding; the other modes change numbers only."""
    if problem.modes.get("rounding", "official") != "official":
        return no("results have the types of official rounding, this run does not round")
    if problem.modes.get("selection", "exact") != "exact":
        return no("score rows have the width of exact selection, this run selects otherwise")
    return YES


def _kernels(family: str) -> Iterator[Kernel]:
    from deepinfer.ops.catalogue import CATALOGUE

    for name, operator in CATALOGUE.operators.items():
        if operator.family != family:
            continue
        yield Kernel(
            name,
            "hollow",
            _build,
            _fits,
            layouts={kind: _LAYOUTS[kind] for kind in operator.layouts},
            prepare=_prepare if name.startswith(_PACKS) else None,
            batch_invariant=True,
        )


@hookimpl
def deepinfer_device(want: Want) -> Device:
    from deepinfer.null.memory import DEVICE_BYTES

    count = len(want.indices) or want.count
    name = "a device that computes nothing"
    # the fact `computes` tells the core that nobody here will read a weight's values
    facts = Facts(computes=False)
    return Device("null", name, "cpu", count, memory_bytes=count * DEVICE_BYTES, facts=facts)


@hookimpl
def deepinfer_attention(device: Device, model: Model) -> Iterator[Kernel]:
    return _kernels("attention")


@hookimpl
def deepinfer_gemm(device: Device, model: Model) -> Iterator[Kernel]:
    return _kernels("gemm")


@hookimpl
def deepinfer_all_to_all(device: Device, model: Model, mesh: Mesh) -> Iterator[Kernel]:
    return _kernels("all_to_all")


@hookimpl
def deepinfer_sampler(device: Device, model: Model) -> Iterator[Kernel]:
    return _kernels("sampler")


@hookimpl
def deepinfer_tensor_ops(device: Device, model: Model) -> Iterator[Kernel]:
    return _kernels("tensor")


@hookimpl
def deepinfer_memory(device: Device) -> Any:
    from deepinfer.null.memory import NullMemory

    return NullMemory(device.memory_bytes)
