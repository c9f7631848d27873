"""The plan as a person reads it: a table, and one operator in full.

In: a `Plan`. Out: plain text that looks the same in a terminal, a file and a bug report.
Does not know: who asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Final

from deepinfer.errors import UsageError
from deepinfer.plugin.plan import Plan, Row, device_words
from deepinfer.plugin.stack import REFERENCE

NOTHING: Final = "–"
SHOWN: Final = 2
"""Reasons that a row of the table shows; `explanation` shows all."""
HEADINGS: Final = ("operator", "tokens", "served by", "graph", "passed over")


def table(plan: Plan) -> str:
    """The whole plan; adjacent buckets with the same outcome are one row."""
    lines = [_header(plan), *_layers(plan)]
    if plan.layouts:
        lines.append(_layouts(plan))
    if plan.modes:
        lines.append("modes     " + "  ".join(f"{k}={v}" for k, v in plan.modes.items()))
    lines.append("")
    cells: list[tuple[str, ...]] = [HEADINGS]
    for row in merged(plan.rows):
        cells += _cells(row)
    lines += aligned(cells)
    lines += [f"memory    {line}" if at == 0 else f"          {line}"
              for at, line in enumerate(plan.memory)]
    lines.append(summary(plan))
    return "\n".join(lines)


def summary(plan: Plan) -> str:
    """The last line: the id and what to watch for."""
    operators = {row.op for row in plan.rows}
    unverified = {row.op for row in plan.rows if row.mark}
    eager = {row.op for row in plan.rows if row.layer == REFERENCE}
    layers = f"{len(plan.layers)} layer" + ("s" if len(plan.layers) != 1 else "")
    return (
        f"plan {plan.id} · {len(operators)} operators, {layers}, "
        f"{len(unverified)} unverified, {len(eager)} reference"
    )


def explanation(plan: Plan, op: str) -> str:
    """Everything the plan knows about one operator."""
    rows = merged(plan.rows_of(op))
    if not rows:
        near = get_close_matches(op, {row.op for row in plan.rows}, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"the plan has no operator {op!r}{hint}")
    lines = [f"{op}   plan {plan.id}", _header(plan)]
    for row in rows:
        lines.append(f"{words(row.tokens)} tokens   {_served(row)}")
        if row.composed_of:
            lines.append(f"  composed of {', '.join(row.composed_of)}")
        if row.graph:
            lines.append(f"  graph {row.graph}")
        if row.unverified:
            lines.append(f"  unverified: {row.unverified}")
        if row.note:
            lines.append(f"  {row.note}")
        lines += [f"  passed over  {label}: {reason}" for label, reason in row.passed_over]
    return "\n".join(lines)


def merged(rows: Sequence[Row]) -> list[Row]:
    """Rows with adjacent buckets of the same outcome joined."""
    joined: list[Row] = []
    for row in rows:
        last = joined[-1] if joined else None
        if last and last.op == row.op and replace(last, tokens=row.tokens) == row:
            joined[-1] = replace(row, tokens=(last.tokens[0], row.tokens[1]))
        else:
            joined.append(row)
    return joined


def aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Cells in columns, two blanks between them, nothing at the end of a line."""
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def words(tokens: tuple[int, int]) -> str:
    """A token range: "1-256", or "1" alone."""
    return str(tokens[0]) if tokens[0] == tokens[1] else f"{tokens[0]}-{tokens[1]}"


def _served(row: Row) -> str:
    return row.served_by + (f" ({row.became})" if row.became else "")


def _cells(row: Row) -> list[tuple[str, ...]]:
    reasons = [f"{label} {NOTHING} {reason}" for label, reason in row.passed_over]
    if len(reasons) > SHOWN:
        more = len(reasons) - SHOWN + 1
        reasons[SHOWN - 1 :] = [f"{more} more: deepinfer explain {row.op}"]
    if row.note:
        reasons.insert(0, f"({row.note})")
    graph = "eager" if row.graph.startswith("never") else row.graph or NOTHING
    first = (row.op, words(row.tokens), _served(row), graph, reasons[0] if reasons else NOTHING)
    return [first, *(("", "", "", "", reason) for reason in reasons[1:])]


def _header(plan: Plan) -> str:
    ranks = f"      ranks  {plan.mesh.size}" if plan.mesh.size > 1 else ""
    return (
        f"platform  {plan.platform.replace('+', ' + ')}      device  {device_words(plan.device)}"
        f"      model  {plan.model.name}{ranks}"
    )


def _layers(plan: Plan) -> list[str]:
    return [
        f"{'layers' if at == 0 else '':<8}  {layer.name} ({layer.distribution} {layer.version}, "
        f"interface {layer.api[0]}.{layer.api[1]}, {layer.role})"
        for at, layer in enumerate(plan.layers)
    ]


def _layouts(plan: Plan) -> str:
    names: dict[str, list[str]] = {}
    for one in plan.layouts:
        names.setdefault(one.kind, []).append(one.layout)
    return "layouts   " + "  ".join(f"{kind}={'|'.join(all_)}" for kind, all_ in names.items())
