"""Settles the layouts of shared bytes before any kernel is chosen.

In: verdicts. Out: one layout per kept kind, one per bucket for a passing kind; verdicts narrowed.
Does not know: what a layout looks like. Architecture 3.3: deterministic, no search.
"""

from __future__ import annotations

from deepinfer.plugin.declare import KindLike, OperatorLike
from deepinfer.plugin.failures import NoLayout
from deepinfer.plugin.plan import Settled
from deepinfer.plugin.verdicts import Bucket, Verdicts


def settle(verdicts: Verdicts) -> tuple[Settled, ...]:
    """Fix kept kinds for the whole run, then passing kinds bucket by bucket.

    Kernels of another layout are refused in `verdicts`, with the reason.
    """
    declared, buckets = verdicts.declared, verdicts.buckets
    kinds: list[KindLike] = sorted(
        declared.catalogue.kinds.values(), key=lambda kind: not kind.kept
    )
    settled: list[Settled] = []
    for kind in kinds:
        touching = [op for op in declared.operators if kind.name in op.layouts]
        if not any(declared.candidates[op.name] for op in touching):
            continue
        every = list(range(len(buckets)))
        for places in [every] if kind.kept else [[place] for place in every]:
            layout = _accept(kind, touching, places, verdicts)
            if layout is None:
                continue
            _narrow(kind, touching, places, layout, verdicts)
            tokens = (buckets[places[0]][0], buckets[places[-1]][1])
            settled.append(Settled(kind.name, tokens, layout))
    return tuple(_merged(settled))


def _anchor(kind: KindLike, touching: list[OperatorLike]) -> OperatorLike:
    """The kind's anchor; if this model does not call it, the first needed operator that touches."""
    required = [op for op in touching if not op.composed_of] or touching
    return next((op for op in touching if op.name == kind.anchor), required[0])


def _accept(
    kind: KindLike, touching: list[OperatorLike], places: list[int], verdicts: Verdicts
) -> str | None:
    """The first layout, going down the anchor's kernels, that every operator can use."""
    required = [op for op in touching if not op.composed_of]
    faults: dict[str, list[str]] = {}
    for layout in _layouts_of_anchor(kind, _anchor(kind, touching), places, verdicts):
        if layout in faults:
            continue
        faults[layout] = _missing(kind, layout, required, places, verdicts)
        if not faults[layout]:
            return layout
    if not required:
        return None
    raise NoLayout(_explain(kind, places, faults, verdicts))


def _layouts_of_anchor(
    kind: KindLike, anchor: OperatorLike, places: list[int], verdicts: Verdicts
) -> list[str]:
    """Layouts in the order of the anchor's kernels; kernels offered here come first."""
    offered: list[str] = []
    able: list[str] = []
    for at, candidate in enumerate(verdicts.candidates(anchor.name)):
        willing = [place for place in places if verdicts[anchor.name, at, place].willing]
        if any(candidate.offers(verdicts.buckets[place]) for place in willing):
            offered.append(candidate.layouts[kind.name])
        elif willing:
            able.append(candidate.layouts[kind.name])
    return offered + able


def _missing(
    kind: KindLike,
    layout: str,
    required: list[OperatorLike],
    places: list[int],
    verdicts: Verdicts,
) -> list[str]:
    """Operators and buckets that have no willing kernel with this layout."""
    faults = []
    for op in required:
        candidates = verdicts.candidates(op.name)
        holes = [
            _words(verdicts.buckets[place])
            for place in places
            if not any(
                candidates[at].layouts[kind.name] == layout
                for at in verdicts.willing(op.name, place)
            )
        ]
        if holes:
            faults.append(f"{op.name} ({', '.join(holes)} tokens)")
    return faults


def _narrow(
    kind: KindLike,
    touching: list[OperatorLike],
    places: list[int],
    layout: str,
    verdicts: Verdicts,
) -> None:
    for op in touching:
        for at, candidate in enumerate(verdicts.candidates(op.name)):
            own = candidate.layouts[kind.name]
            if own == layout:
                continue
            for place in places:
                verdicts.refuse(
                    op.name, at, place, f"{kind.name} layout {own}, plan uses {layout}"
                )


def _explain(
    kind: KindLike, places: list[int], faults: dict[str, list[str]], verdicts: Verdicts
) -> str:
    tokens = (verdicts.buckets[places[0]][0], verdicts.buckets[places[-1]][1])
    platform = verdicts.declared.platform.name
    start = f"no layout of {kind.name} is served by every operator that touches it"
    lines = [
        f"{start}, {_words(tokens)} tokens",
        f"  platform  {platform.replace('+', ' + ')}",
    ]
    for layout, holes in faults.items():
        lines.append(f"  {layout:<20} no kernel for {'; '.join(holes)}")
        for op in [hole.split(" (")[0] for hole in holes]:
            lines += _others(op, kind, places, verdicts)
    lines.append(
        f"Add a layer whose kernels share one layout of {kind.name}, "
        f"or remove the layer that brings the odd one; deepinfer explain {kind.anchor}"
    )
    return "\n".join(lines)


def _others(op: str, kind: KindLike, places: list[int], verdicts: Verdicts) -> list[str]:
    return [
        f"    {op}: {candidate.label} uses {candidate.layouts[kind.name]}, "
        f"{verdicts[op, at, places[0]]}"
        for at, candidate in enumerate(verdicts.candidates(op))
    ]


def _merged(settled: list[Settled]) -> list[Settled]:
    """Adjacent buckets with one layout become one line."""
    merged: list[Settled] = []
    for one in settled:
        last = merged[-1] if merged else None
        if last and (last.kind, last.layout) == (one.kind, one.layout):
            merged[-1] = Settled(one.kind, (last.tokens[0], one.tokens[1]), one.layout)
        else:
            merged.append(one)
    return merged


def _words(bucket: Bucket) -> str:
    return str(bucket[0]) if bucket[0] == bucket[1] else f"{bucket[0]}-{bucket[1]}"
