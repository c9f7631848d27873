"""Chooses one kernel for every operator and token bucket, or says why there is none.

In: what layers declared. Out: a `Plan`, which is what will be executed.
Does not know: how kernels are built, or tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from deepinfer.plugin.declare import Declared, OperatorLike
from deepinfer.plugin.failures import BadOverride, NoKernel
from deepinfer.plugin.layouts import settle
from deepinfer.plugin.plan import LayerFacts, Plan, Row, Settled, device_words
from deepinfer.plugin.stack import REFERENCE
from deepinfer.plugin.types import Fact, Facts
from deepinfer.plugin.verdicts import Bucket, Verdicts, ask_all, cut

DEFAULT_TOKENS: Final = (1, 8192)


def resolve(
    declared: Declared,
    *,
    tokens: Bucket = DEFAULT_TOKENS,
    borders: Iterable[int] = (),
    ops: Mapping[str, str] | None = None,
    allow_unverified: bool = False,
    modes: Mapping[str, Fact] | None = None,
    memory: tuple[str, ...] = (),
) -> Plan:
    """Ask, settle layouts, choose.

    tokens    first and last number of tokens of a step
    borders   last tokens of the core's own buckets; kernels' offers add more
    ops       {"gemm.grouped_mxfp4": "nvidia_sm90:masked"}: this kernel or a stop
    modes     facts every kernel is told, such as batch_invariant=True
    memory    lines of the printed budget
    """
    facts = Facts(modes)
    buckets = cut(declared, tokens, borders)
    verdicts = ask_all(declared, buckets, facts, allow_unverified)
    _force(verdicts, ops or {})
    _stop_at_holes(verdicts)
    settled = settle(verdicts)
    rows = tuple(
        _choose(op, place, verdicts) for op in declared.operators for place in range(len(buckets))
    )
    return Plan(
        platform=declared.platform.name,
        layers=_layers(declared),
        device=declared.device,
        model=declared.model,
        mesh=declared.mesh,
        layouts=settled,
        modes=facts,
        rows=rows,
        memory=memory,
    )


def _layers(declared: Declared) -> tuple[LayerFacts, ...]:
    def role(name: str) -> str:
        if name == declared.ground.layer:
            return "ground"
        return "not ground" if name in declared.ground.others else "overlay"

    return tuple(
        LayerFacts(layer.name, layer.distribution, layer.version, layer.api, role(layer.name))
        for layer in declared.platform.layers
    )


def layouts_at(settled: Iterable[Settled], op: OperatorLike, tokens: Bucket) -> Facts:
    """The settled layouts that an operator sees in a token range."""
    return Facts({
        one.kind: one.layout
        for one in settled
        if one.kind in op.layouts and one.tokens[0] <= tokens[0] and tokens[1] <= one.tokens[1]
    })


def _force(verdicts: Verdicts, ops: Mapping[str, str]) -> None:
    """Apply overrides: every other kernel of the operator steps back."""
    names = [op.name for op in verdicts.declared.operators]
    for op, label in ops.items():
        if op not in names:
            near = get_close_matches(op, names, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise BadOverride(f"ops names {op!r}, which this model does not call{hint}")
        candidates = verdicts.candidates(op)
        labels = [candidate.label for candidate in candidates]
        if label not in labels:
            near = get_close_matches(label, labels, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise BadOverride(
                f"ops asks for {label!r} to serve {op}, but no layer declares it{hint}. "
                f"Declared: {', '.join(labels) or 'none'}"
            )
        _force_one(verdicts, op, labels.index(label), label)


def _force_one(verdicts: Verdicts, op: str, chosen: int, label: str) -> None:
    for place, bucket in enumerate(verdicts.buckets):
        verdict = verdicts[op, chosen, place]
        if not verdict.willing:
            raise BadOverride(
                f"ops asks for {label} to serve {op}, but for {bucket[0]}-{bucket[1]} tokens "
                f"it says no: {verdict.reason}"
            )
        for other in range(len(verdicts.candidates(op))):
            if other != chosen:
                verdicts.refuse(op, other, place, f"ops names {label}")


def _stop_at_holes(verdicts: Verdicts) -> None:
    """R3: an operator without a willing kernel stops the start, with every candidate's reason."""
    holes: list[tuple[str, Bucket, int]] = []
    for op in verdicts.declared.operators:
        if op.composed_of:
            continue
        for place, bucket in enumerate(verdicts.buckets):
            if verdicts.willing(op.name, place):
                continue
            last = holes[-1] if holes else None
            if last and last[0] == op.name and _same(verdicts, op.name, last[2], place):
                holes[-1] = (op.name, (last[1][0], bucket[1]), place)
            else:
                holes.append((op.name, bucket, place))
    if holes:
        raise NoKernel(_explain_holes(verdicts, holes), tuple(
            {"op": op, "tokens": list(bucket), "candidates": _reasons(verdicts, op, place)}
            for op, bucket, place in holes
        ))


def _same(verdicts: Verdicts, op: str, left: int, right: int) -> bool:
    return left + 1 == right and _reasons(verdicts, op, left) == _reasons(verdicts, op, right)


def _reasons(verdicts: Verdicts, op: str, place: int) -> dict[str, str]:
    return {
        candidate.label: str(verdicts[op, at, place])
        for at, candidate in enumerate(verdicts.candidates(op))
    }


def _explain_holes(verdicts: Verdicts, holes: list[tuple[str, Bucket, int]]) -> str:
    declared = verdicts.declared
    platform = declared.platform.name
    place_line = (
        f"  platform  {platform.replace('+', ' + ')}      device  {device_words(declared.device)}"
    )
    lines: list[str] = []
    for number, (op, bucket, place) in enumerate(holes):
        lines.append(f"no kernel for {op}, {bucket[0]}-{bucket[1]} tokens")
        if number == 0:
            lines.append(place_line)
        reasons = _reasons(verdicts, op, place)
        width = max((len(label) for label in reasons), default=0)
        lines += [f"  {label:<{width}}    {reason}" for label, reason in reasons.items()]
        if not reasons:
            lines.append("  no layer declares one")
    has_eager = REFERENCE in platform.split("+")
    lines.append(
        "Install one of them or add a layer that serves it"
        if has_eager
        else "Install one of them, add a layer that serves it, "
        f"or name the eager one: {platform}+{REFERENCE}"
    )
    return "\n".join(lines)


def _choose(op: OperatorLike, place: int, verdicts: Verdicts) -> Row:
    """Left to right, yield order inside a layer; kernels offered here before the merely able."""
    bucket = verdicts.buckets[place]
    candidates = verdicts.candidates(op.name)
    willing = verdicts.willing(op.name, place)
    offered = [at for at in willing if candidates[at].offers(bucket)]
    if not willing:
        reasons = tuple(_reasons(verdicts, op.name, place).items())
        return Row(op.name, bucket, composed_of=op.composed_of, passed_over=tuple(
            (label, reason.removeprefix("no: ")) for label, reason in reasons
        ))
    chosen = (offered or willing)[0]
    kernel, verdict = candidates[chosen], verdicts[op.name, chosen, place]
    passed = []
    for at, candidate in enumerate(candidates):
        if at == chosen:
            continue
        other = verdicts[op.name, at, place]
        if not other.willing:
            reason = other.reason
        elif not candidate.offers(bucket):
            reason = candidate.offer_words
        else:
            reason = "lower layer" if candidate.layer is not kernel.layer else "declared later"
        passed.append((candidate.label, reason))
    return Row(
        op.name,
        bucket,
        layer=kernel.layer.name,
        kernel=kernel.kernel.name,
        mark=verdict.mark,
        unverified=verdict.reason,
        graph=kernel.kernel.graph,
        note="" if offered else f"{kernel.offer_words}; here because no other is willing",
        passed_over=tuple(passed),
    )
