"""What every kernel answers for every token bucket, asked once.

In: candidates, buckets, modes. Out: one `Verdict` per (operator, kernel, bucket).
Does not know: layouts that others use, or what is chosen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from deepinfer.plugin.declare import Candidate, Declared
from deepinfer.plugin.failures import BadAnswer
from deepinfer.plugin.find import blamed
from deepinfer.plugin.types import Answer, Facts

Bucket = tuple[int, int]
KINDS: Final = ("yes", "no", "unverified")


@dataclass(frozen=True)
class Verdict:
    """An answer as the core uses it. `mark` is "?" for a kernel nobody has shown to work."""

    willing: bool
    reason: str = ""
    mark: str = ""

    def __str__(self) -> str:
        return ("yes" if self.willing else "no") + (f": {self.reason}" if self.reason else "")

    def refuse(self, reason: str) -> Verdict:
        """No, for a reason outside the kernel; an earlier no keeps its own reason."""
        return replace(self, willing=False, reason=reason) if self.willing else self


class Verdicts:
    """All answers, by operator, place of the candidate and place of the bucket."""

    def __init__(self, declared: Declared, buckets: tuple[Bucket, ...]) -> None:
        self.declared = declared
        self.buckets = buckets
        self._rows: dict[tuple[str, int, int], Verdict] = {}

    def __getitem__(self, key: tuple[str, int, int]) -> Verdict:
        return self._rows[key]

    def __setitem__(self, key: tuple[str, int, int], verdict: Verdict) -> None:
        self._rows[key] = verdict

    def candidates(self, op: str) -> tuple[Candidate, ...]:
        """Kernels of the operator in lookup order."""
        return self.declared.candidates[op]

    def willing(self, op: str, bucket: int) -> list[int]:
        """Places of the candidates that would serve this bucket."""
        places = range(len(self.candidates(op)))
        return [place for place in places if self[op, place, bucket].willing]

    def refuse(self, op: str, place: int, bucket: int, reason: str) -> None:
        """Take a candidate out of the choice for one bucket."""
        self[op, place, bucket] = self[op, place, bucket].refuse(reason)


def cut(declared: Declared, tokens: Bucket, borders: Iterable[int]) -> tuple[Bucket, ...]:
    """The token buckets of the whole plan: the core's borders and every kernel's offer.

    `borders` are last tokens of a bucket. All operators use the same list, because operators
    that share passing bytes must agree in every bucket.
    """
    first, last = tokens
    ends = {border for border in borders if first <= border < last} | {last}
    for op in declared.operators:
        for candidate in declared.candidates[op.name]:
            low, high = candidate.kernel.tokens
            ends |= {end for end in (low - 1, high) if end is not None and first <= end < last}
    ordered = sorted(ends)
    starts = [first, *(end + 1 for end in ordered[:-1])]
    return tuple(zip(starts, ordered, strict=True))


def ask_all(
    declared: Declared, buckets: tuple[Bucket, ...], modes: Facts, allow_unverified: bool
) -> Verdicts:
    """Ask `supports` of every kernel once per bucket, also outside its offer."""
    verdicts = Verdicts(declared, buckets)
    for op in declared.operators:
        for place, candidate in enumerate(declared.candidates[op.name]):
            for at, bucket in enumerate(buckets):
                verdict = _ask(declared, candidate, bucket, modes, allow_unverified)
                verdicts[op.name, place, at] = verdict
    return verdicts


def _ask(
    declared: Declared, candidate: Candidate, bucket: Bucket, modes: Facts, allow_unverified: bool
) -> Verdict:
    kernel = candidate.kernel
    if modes.get("batch_invariant") and not kernel.batch_invariant:
        return Verdict(False, "not batch-invariant, and batch_invariant is on")
    problem = declared.problem(kernel.op, bucket, candidate.layouts, modes)
    place = f"{candidate.label} ({kernel.op}, {bucket[0]}-{bucket[1]} tokens)"
    with blamed(f"supports of {place} from {candidate.layer}"):
        answer = kernel.supports(problem)
    if not isinstance(answer, Answer) or answer.kind not in KINDS:
        raise BadAnswer(
            f"{place} from {candidate.layer} returned {answer!r}; "
            "answer YES, no(...) or unverified(...)"
        )
    if answer.kind == "yes":
        return Verdict(True)
    if not answer.reason:
        raise BadAnswer(f"{place} from {candidate.layer} answered {answer.kind} without a reason")
    if answer.kind == "no":
        return Verdict(False, answer.reason)
    if allow_unverified:
        return Verdict(True, answer.reason, "?")
    return Verdict(
        False, f"unverified: {answer.reason} (allow_unverified binds it)", "?"
    )
