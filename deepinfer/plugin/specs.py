"""The nine questions the core asks a platform; this page is the reference for plugin authors.

In: frozen facts. Out: whatever each docstring says.
Does not know: any platform. Hooks run at start only; see docs/write-a-plugin.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import pluggy

from deepinfer.plugin.types import Absent, Check, Device, Kernel, Mesh, Model, Want

if TYPE_CHECKING:
    from deepinfer.plugin.graphs import Graphs
    from deepinfer.plugin.memory import Memory

PROJECT: Final = "deepinfer"

hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a platform module as the implementation of the hook of the same name.

Use it plain, without options; a function may take fewer arguments than the hook offers.
"""

hookspec = pluggy.HookspecMarker(PROJECT)

FAMILY_HOOKS: Final = {
    "attention": "deepinfer_attention",
    "gemm": "deepinfer_gemm",
    "all_to_all": "deepinfer_all_to_all",
    "sampler": "deepinfer_sampler",
    "tensor": "deepinfer_tensor_ops",
}
"""Which hook yields the kernels of which operator family."""


@hookspec
def deepinfer_device(want: Want) -> Device | Absent:  # type: ignore[empty-body]
    """Describe the device this platform runs on, or say why it is not there.

    Asked of the ground only: the right-most layer that has this hook. Everything in
    `Device.facts` must be equal on all ranks; it enters the plan id.

    Example::

        @hookimpl
        def deepinfer_device(want):
            if not driver_is_loaded():
                return absent("the acme driver is not loaded (lsmod shows no acme)")
            return Device("acme", "Acme One", "acme:0", want.count, facts=Facts(cores=64))
    """


@hookspec
def deepinfer_attention(  # type: ignore[empty-body]
    device: Device, model: Model
) -> Iterable[Kernel]:
    """Yield kernels of the attention family, the preferred one first.

    Caches are bytes that several operators share: every kernel states the layout of each kind
    that its operator touches.

    Example::

        @hookimpl
        def deepinfer_attention(device, model):
            yield Kernel("attention.sparse_decode", "split_k", build, layouts={"kv": "packed"})
    """


@hookspec
def deepinfer_gemm(device: Device, model: Model) -> Iterable[Kernel]:  # type: ignore[empty-body]
    """Yield kernels for matrix products, the preferred one first.

    `prepare` turns a checkpoint weight into the kernel's packing, once after loading.

    Example::

        @hookimpl
        def deepinfer_gemm(device, model):
            layouts = {"expert_weights": "k32", "expert_rows": "masked"}
            yield Kernel("gemm.grouped_mxfp4", "masked", build, tokens=(1, 256), layouts=layouts)
    """


@hookspec
def deepinfer_all_to_all(  # type: ignore[empty-body]
    device: Device, model: Model, mesh: Mesh
) -> Iterable[Kernel]:
    """Yield kernels that move rows between ranks; asked only if there is more than one rank.

    Example::

        @hookimpl
        def deepinfer_all_to_all(device, model, mesh):
            yield Kernel("all_to_all.all_reduce", "ring", build, graph="never: host waits")
    """


@hookspec
def deepinfer_sampler(device: Device, model: Model) -> Iterable[Kernel]:  # type: ignore[empty-body]
    """Yield kernels that turn logits into tokens.

    Example::

        @hookimpl
        def deepinfer_sampler(device, model):
            yield Kernel("sampler.sample", "fused", build, batch_invariant=True)
    """


@hookspec
def deepinfer_tensor_ops(  # type: ignore[empty-body]
    device: Device, model: Model
) -> Iterable[Kernel]:
    """Yield kernels for the small tensor operators: norms, rotations, quantizers, copies.

    Example::

        @hookimpl
        def deepinfer_tensor_ops(device, model):
            yield Kernel("tensor.rms_norm", "acme_norm", build, fits)
    """


@hookspec
def deepinfer_memory(device: Device) -> Memory | None:
    """Offer the one memory object of the process, or None. The first layer that offers one wins.

    Example::

        @hookimpl
        def deepinfer_memory(device):
            from deepinfer_acme.memory import AcmeMemory
            return AcmeMemory(device.torch_device)
    """


@hookspec
def deepinfer_graphs(device: Device, memory: Memory) -> Graphs | None:
    """Offer capture and replay of whole steps, or None. The first layer that offers it wins.

    Example::

        @hookimpl
        def deepinfer_graphs(device, memory):
            from deepinfer_acme.graphs import AcmeGraphs
            return AcmeGraphs(memory)
    """


@hookspec
def deepinfer_checks(device: Device | None) -> Iterable[Check]:  # type: ignore[empty-body]
    """Yield checks for `deepinfer doctor`; `device` is None if none was found. Every one is run.

    Example::

        @hookimpl
        def deepinfer_checks(device):
            yield Check("toolkit", lambda: [Finding("ok", "toolkit", "13.0")])
    """


HOOKS: Final = (*FAMILY_HOOKS.values(), "deepinfer_device", "deepinfer_memory",
                "deepinfer_graphs", "deepinfer_checks")
