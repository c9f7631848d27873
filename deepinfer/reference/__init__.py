"""The `reference` platform: every operator in eager torch on the CPU, the oracle of the others.

In: the hooks of `deepinfer.plugin`. Out: one kernel per operator and cache layout.
Does not know: speed. It is a layer like any other and is used only when written.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from importlib import import_module
from types import FunctionType
from typing import Any

from deepinfer.plugin import (
    YES,
    Device,
    Kernel,
    Layout,
    Mesh,
    Model,
    Problem,
    Want,
    absent,
    hookimpl,
    no,
)
from deepinfer.plugin.types import Absent, Answer

DEEPINFER_API = (1, 0)

# operator -> kinds of shared bytes; a kernel exists for each layout of kv and index
_OPERATORS: dict[str, dict[str, tuple[str, ...]]] = {
    "attention": {
        "store_window": ("kv",),
        "load_window": ("kv",),
        "store_entries": ("kv",),
        "load_entries": ("kv",),
        "store_index": ("index",),
        "load_index": ("index",),
        "store_open": ("kv",),
        "compress": ("kv",),
        "index_logits": ("index",),
        "index_topk": (),
        "candidate_blocks": (),
        "sparse_prefill": ("kv",),
        "sparse_decode": ("kv",),
    },
    "gemm": {
        "dense_mxfp8": ("activations", "dense_weights"),
        "dense_bf16": (),
        "dense_f32": (),
        "logits": (),
        "batched": (),
        "grouped_mxfp4": ("activations", "expert_rows", "expert_weights"),
    },
    "all_to_all": {
        "dispatch": ("activations", "expert_rows"),
        "combine": ("expert_rows",),
        "all_reduce": (),
        "all_gather": (),
        "reduce_scatter": (),
    },
    "sampler": {"penalize": (), "sample": (), "top_logprobs": ()},
    "tensor": {
        "embed": (),
        "rms_norm": (),
        "rope": (),
        "quantize": ("activations",),
        "swiglu_quantize": ("activations",),
        "route": (),
        "permute_rows": ("activations", "expert_rows"),
        "unpermute_rows": ("expert_rows",),
        "hyper_pre": (),
        "hyper_collapse": (),
        "hyper_post": (),
        "mean_copies": (),
        "hash_lookup": (),
        "gather_rows": ("activations",),
        "engram_gate": (),
        "entry_rows": (),
        "pick_rows": (),
    },
}
_MODULES = {"all_to_all": "exchange"}
_PLAIN = {
    "activations": "rows",
    "expert_rows": "sorted",
    "dense_weights": "eager",
    "expert_weights": "eager",
}
_GRAPH = "never: eager torch"
_CACHES = ("packed", "bf16", "float32", "float64")


def _function(problem: Problem) -> FunctionType:
    family, name = problem.op.split(".")
    module = import_module(f"deepinfer.reference.{_MODULES.get(family, family)}")
    function: FunctionType = getattr(module, name)
    return function


def _build(problem: Problem) -> Callable[..., Any]:
    """The module's function with the plan's numerics as its default."""
    from deepinfer.reference.numerics import Numerics

    plain = _function(problem)
    bound = FunctionType(
        plain.__code__, plain.__globals__, plain.__name__, plain.__defaults__, plain.__closure__
    )
    bound.__kwdefaults__ = {"n": Numerics.of(problem.modes)} if plain.__kwdefaults__ else None
    bound.__annotations__ = plain.__annotations__
    return bound


def _prepare(weight: Any, problem: Problem) -> Any:
    from deepinfer.reference import gemm
    from deepinfer.reference.numerics import Numerics

    numerics = Numerics.of(problem.modes)
    if problem.op == "tensor.embed":
        return numerics.bf(weight.values)
    if problem.op == "gemm.batched":
        return gemm.prepare_batched(weight, numerics)
    return gemm.prepare(weight, numerics)


def _fits(problem: Problem) -> Answer:
    """The modes this platform knows; an unknown value is refused, not ignored."""
    known = {
        "accumulate": ("float32", "float64"),
        "rounding": ("official", "none"),
        "selection": ("exact", "release"),
    }
    for mode, values in known.items():
        value = problem.modes.get(mode, values[0])
        if value not in values:
            return no(f"{mode} is {value!r}, this kernel knows {' and '.join(values)}")
    return YES


def _fits_cache(layout: str) -> Callable[[Problem], Answer]:
    def fits(problem: Problem) -> Answer:
        rounded = problem.modes.get("rounding", "official") == "official"
        wide = problem.modes.get("accumulate", "float32")
        if rounded and layout in ("float32", "float64"):
            return no(f"{layout} caches hold unrounded values, this run rounds")
        if not rounded and layout != wide:
            return no(f"{layout} caches would round, this run keeps {wide}")
        return _fits(problem)

    return fits


def _kernels(family: str) -> Iterator[Kernel]:
    from deepinfer.reference.records import INDEX, KV

    caches: dict[str, dict[str, Layout]] = {"kv": KV, "index": INDEX}
    packs = ("gemm.", "tensor.embed")
    for name, kinds in _OPERATORS[family].items():
        op = f"{family}.{name}"
        prepare = _prepare if op.startswith(packs) else None
        plain: dict[str, str | Layout] = {kind: _PLAIN[kind] for kind in kinds if kind in _PLAIN}
        cached = [kind for kind in kinds if kind in caches]
        if not cached:
            yield Kernel(op, "eager", _build, _fits, layouts=plain, prepare=prepare, graph=_GRAPH)
        for layout in _CACHES if cached else ():
            word = "eager" if layout == "packed" else f"eager_{layout}"
            shared = {kind: caches[kind][layout] for kind in cached}
            fits = _fits_cache(layout)
            yield Kernel(op, word, _build, fits, layouts=plain | shared, graph=_GRAPH)


@hookimpl
def deepinfer_device(want: Want) -> Device | Absent:
    from deepinfer.reference.memory import measure

    if want.count != 1:
        return absent(f"reference runs on one CPU, {want.count} devices were asked for")
    name = f"CPU, {platform.machine() or 'unknown machine'}"
    return Device("cpu", name, "cpu", memory_bytes=measure()[0])


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
    from deepinfer.reference.memory import CpuMemory

    return CpuMemory()
