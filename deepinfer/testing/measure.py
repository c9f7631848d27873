"""Errors against recorded results: which limit holds for which kind, and the worst that was seen.

In: pairs of tensors. Out: a report with one line per kind.
Does not know: how either of them was made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from deepinfer.ops.operator import Tolerance

FLOAT32_HALF_ULP = 2.0**-24


@dataclass(frozen=True)
class Line:
    """One kind of tensor in one variant. `worst` and `limit` are in the words of `unit`."""

    variant: str
    kind: str
    tensors: int
    worst: float
    limit: float | None
    unit: str
    where: str
    plan_id: str
    failed: int

    @property
    def verdict(self) -> str:
        """ "ok", "FAIL", or "reported" for figures without a limit."""
        if self.limit is None:
            return "reported"
        return "FAIL" if self.failed else "ok"


@dataclass(frozen=True)
class Report:
    """All lines of one comparison."""

    folder: str
    platform: str
    lines: tuple[Line, ...]

    @property
    def is_good(self) -> bool:
        """No tensor beyond its tolerance, and at least one was compared."""
        return bool(self.lines) and not any(line.failed for line in self.lines)

    def to_json(self) -> str:
        """The same as a document."""
        whole = {"folder": self.folder, "platform": self.platform, "good": self.is_good}
        return json.dumps(whole | {"lines": [asdict(line) for line in self.lines]}, indent=2)

    def __str__(self) -> str:
        head = f"{'':2}{'kind':<22}{'tensors':>8}  {'worst':>10} {'limit':>10}  {'unit':<24} where"
        rows = [
            f"{line.variant:<2}{line.kind:<22}{line.tensors:>8}  {line.worst:>10.2e} "
            f"{'-' if line.limit is None else f'{line.limit:.2e}':>10}  {line.unit:<24} "
            f"{line.where}  {line.verdict}"
            for line in self.lines
        ]
        compared = sum(line.tensors for line in self.lines)
        failed = sum(line.failed for line in self.lines)
        where = f"{self.folder} on {self.platform}"
        end = f"{where}: {compared} tensors compared, {failed} beyond tolerance"
        return "\n".join([head, *rows, end])


class Measure:
    """Collects the worst error of each kind. Limits are those of the golden data's README."""

    def __init__(self, variant: str, accumulate: str) -> None:
        self.variant, self.accumulate = variant, accumulate
        self._still: tuple[str, ...] | None = None
        self._kinds: dict[str, list[tuple[float, float | None, str, str]]] = {}

    def close(self, kind: str, where: str, found: Tensor, want: Tensor) -> None:
        """Numbers within the tolerance of this variant."""
        if found.shape != want.shape:
            shapes = f"shape {tuple(found.shape)}, expected {tuple(want.shape)}"
            self._add(kind, float("inf"), 0.0, shapes, where)
            return
        if not want.numel():  # no group has closed yet: equal shapes are all there is
            self._add(kind, 0.0, 0.0, "empty", where)
            return
        a, b = found.double(), want.double()
        if not bool(torch.isfinite(a).all()):
            self._add(kind, float("inf"), 0.0, "not finite", where)
            return
        if self.variant == "f":
            self._unrounded(kind, where, a, b)
        elif want.dtype == torch.bfloat16:
            self._rounded(kind, where, found, want)
        elif kind.startswith(("draft", "logits")):
            self._add(kind, float((a - b).abs().max()), 5e-3, "absolute", where)
        else:
            self._add(kind, _to_rms(a, b), 1e-2, "of the RMS", where)

    def _unrounded(self, kind: str, where: str, a: Tensor, b: Tensor) -> None:
        if self.accumulate == "float64":
            # expected values are stored in f32: their own rounding is not our error
            error = ((a - b).abs() - b.abs() * FLOAT32_HALF_ULP).clamp(min=0)
            scale = b.abs().max().clamp(min=1e-30)
            self._add(kind, float(error.max() / scale), 1e-9, "relative beyond f32", where)
        elif "logits" in kind or kind == "draft.confidence":
            self._add(kind, float((a - b).abs().max()), 2e-5, "absolute", where)
        else:
            self._add(kind, _to_rms(a, b), 1e-5, "of the RMS", where)

    def _rounded(self, kind: str, where: str, found: Tensor, want: Tensor) -> None:
        unequal = found != want
        far = (_ordered(found) - _ordered(want)).abs() > 2
        # two ulp near zero are less than a rounding of the sum that made the value
        small = (
            found.double() - want.double()
        ).abs() <= 2e-2 * want.double().square().mean().sqrt()
        share = float(unequal.double().mean())
        self._add(kind, share, 5e-3, "share of unequal values", where)
        self._add(kind + " far", float((far & ~small).sum()), 0.0, "values off by > 2 ulp", where)

    def equal(self, kind: str, where: str, found: Tensor, want: Tensor) -> None:
        """Choices: every one must be the same."""
        if found.shape != want.shape:
            shapes = f"shape {tuple(found.shape)}, expected {tuple(want.shape)}"
            self._add(kind, float("inf"), 0.0, shapes, where)
            return
        self._add(kind, float((found.long() != want.long()).sum()), 0.0, "unequal values", where)

    @contextmanager
    def reporting(self, *still: str) -> Iterator[None]:
        """Inside, figures have no limit, except for the kinds in `still`."""
        before, self._still = self._still, still
        yield
        self._still = before

    def left_out(self, key: str) -> None:
        """An expected tensor that nothing was compared with: a failure, never a silence."""
        self._add("not compared", float("inf"), 0.0, "unknown key", key)

    def _add(self, kind: str, worst: float, limit: float | None, unit: str, where: str) -> None:
        if self._still is not None and kind not in self._still:
            kind, limit = kind + " end to end", None
        self._kinds.setdefault(kind, []).append((worst, limit, unit, where))

    def lines(self, plan_id: str) -> list[Line]:
        """One line per kind, the worst of each."""
        lines = []
        for kind, seen in self._kinds.items():
            worst, limit, unit, where = max(seen, key=lambda one: one[0])
            failed = sum(lim is not None and not error <= lim for error, lim, _, _ in seen)
            lines.append(
                Line(self.variant, kind, len(seen), worst, limit, unit, where, plan_id, failed)
            )
        return lines


def within(found: Tensor, want: Tensor, tolerance: Tolerance) -> bool:
    """Whether one result of a kernel is within an operator's tolerance of the reference's.

    NaN equals NaN (poison that was left alone), infinities must be equal. Codes of one byte and
    integers have no ulp: at most `share` of them may differ.
    """
    if found.shape != want.shape or found.dtype != want.dtype:
        return False
    if not found.numel():
        return True
    if found.dtype.itemsize == 1 or not found.is_floating_point():
        a, b = (t.view(torch.uint8) if t.dtype.itemsize == 1 else t for t in (found, want))
        allowed = tolerance.share if tolerance.kind == "ulp" else 0.0
        return float((a != b).double().mean()) <= allowed
    a, b = found.double(), want.double()
    same = (a == b) | (a.isnan() & b.isnan())
    if bool((~same & ~(a.isfinite() & b.isfinite())).any()):
        return False
    a, b = a.masked_fill(same, 0), b.masked_fill(same | ~b.isfinite(), 0)
    if tolerance.kind == "exact":
        return bool(same.all())
    size = want.double().masked_fill(~want.isfinite(), 0)
    if tolerance.kind == "relative":
        return float((a - b).norm()) <= tolerance.value * float(size.norm()) + 1e-30
    ulp = torch.finfo(want.dtype).eps * size.abs() * tolerance.value
    near = (a - b).abs() <= torch.maximum(ulp, 1e-6 * size.square().mean().sqrt())
    few = float((~same).double().mean()) <= tolerance.share
    return few and bool((near | same).all())


def _to_rms(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.square().mean().sqrt().clamp(min=1e-30))


def _ordered(x: Tensor) -> Tensor:
    """BF16 values as integers in the order of the numbers: neighbors differ by one."""
    bits = x.contiguous().view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)
