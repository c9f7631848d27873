"""The ledger as a person reads it, as JSON, and as a refusal.

In: a Ledger, a title. Out: plain text or plain values; `MemoryShort` where nothing would fit.
Does not know: how a byte was counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from deepinfer.errors import MemoryShort
from deepinfer.ledger.account import Ledger, advice
from deepinfer.ledger.parts import Row
from deepinfer.plugin.display import aligned

HEADINGS = ("part", "what", "units", "bytes per unit", "bytes", "GB", "")
RIGHT = (2, 3, 4, 5)
PARTS = ("weights", "engram", "cache", "workspace", "graphs", "exchange")


def checked(ledger: Ledger, title: str = "") -> Ledger:
    """Itself, or `MemoryShort` with the table, the arithmetic and what to change."""
    if not ledger.short:
        return ledger
    lines = [f"memory is short by {ledger.short:,} bytes ({_gb(ledger.short)} GB)", text(ledger)]
    if title:
        lines.insert(1, title)
    lines += [arithmetic(ledger), "What to change:", *(f"  {one}" for one in advice(ledger))]
    raise MemoryShort("\n".join(lines))


def text(ledger: Ledger) -> str:
    """A table with one line per row, sums per part, and how many requests there is room for."""
    cells: list[tuple[str, ...]] = [HEADINGS]
    for part in PARTS:
        rows = [row for row in ledger.rows if row.part == part]
        cells += [_cells(row, at == 0) for at, row in enumerate(rows)]
        device = [row for row in rows if row.place == "device"]
        if len(device) > 1:
            cells.append(_sum(part, sum(row.bytes for row in device)))
    cells += _last(ledger)
    return "\n".join([*aligned(_justified(cells)), "", *_room(ledger)])


def arithmetic(ledger: Ledger) -> str:
    """C of section 8 and what requests of full length need, in bytes."""
    options, units = ledger.options, ledger.units
    terms = " - ".join(f"{part} {ledger.part(part):,}" for part in PARTS if part != "cache")
    slots = ledger.counts.slots * units.slot(options.drafts)
    wanted = ledger.blocks_wanted * units.block
    kept = sum(row.bytes for row in ledger.rows if row.name.startswith("snapshots"))
    snapshots = f"snapshots {kept:,}, " if kept else ""
    one = options.full_requests == 1
    requests = "one request" if one else f"{options.full_requests} requests"
    return (
        f"caches: usable {ledger.usable:,} - {terms} = {ledger.cache_room:,} bytes; "
        f"{ledger.counts.slots} slots take {slots:,}, {snapshots}and {requests} of "
        f"{ledger.length} tokens {'takes' if one else 'take'} "
        f"{ledger.blocks_wanted} blocks x {units.block:,} = {wanted:,}"
    )


def values(ledger: Ledger) -> dict[str, Any]:
    """The same for machines: exact bytes, one object per row."""
    options = {**asdict(ledger.options), "unused": dict(ledger.options.unused)}
    return {
        "total_bytes": ledger.options.total,
        "usable_bytes": ledger.usable,
        "device_bytes": ledger.device,
        "host_bytes": ledger.host,
        "cache_room_bytes": ledger.cache_room,
        "remainder_bytes": ledger.remainder,
        "short_bytes": ledger.short,
        "slots": ledger.counts.slots,
        "slot_bytes": ledger.units.slot(ledger.options.drafts),
        "blocks": ledger.counts.blocks,
        "block_bytes": ledger.units.block,
        "block_tokens": ledger.units.block_tokens,
        "requests": [{"tokens": n, "requests": count} for n, count in ledger.requests()],
        "parts": {part: ledger.part(part) for part in PARTS},
        "rows": [{**asdict(row), "name": row.name.strip()} for row in ledger.rows],
        "options": options,
    }


def _cells(row: Row, first: bool) -> tuple[str, ...]:
    units = f"{row.count:,} {row.unit}{'' if row.count == 1 else 's'}" if row.unit else ""
    note = f"in host memory; {row.note}".removesuffix("; ") if row.place == "host" else row.note
    if row.unit and not row.bytes and row.unit_bytes and row.count:  # only a comparison
        size, billions = "", ""
    else:
        size, billions = f"{row.bytes:,}", _gb(row.bytes)
    each = f"{row.unit_bytes:,}" if row.unit else ""
    return (row.part if first else "", row.name, units, each, size, billions, note)


def _sum(part: str, nbytes: int) -> tuple[str, ...]:
    return ("", f"= {part}", "", "", f"{nbytes:,}", _gb(nbytes), "")


def _last(ledger: Ledger) -> list[tuple[str, ...]]:
    options = ledger.options
    lines = [
        ("device", options.total, "memory of one rank's device"),
        ("others", options.others, "held by others, or not counted") if options.others else None,
        ("usable", ledger.usable, f"{options.utilization} x device - others"),
        ("planned", ledger.device, "all parts on the device"),
        ("remainder", ledger.remainder, "usable - planned"),
    ]
    return [
        (name, "", "", "", f"{nbytes:,}", _gb(nbytes), note)
        for name, nbytes, note in filter(None, lines)
    ]


def _room(ledger: Ledger) -> list[str]:
    tokens = max(ledger.counts.blocks - 1, 0) * ledger.units.block_tokens
    cells = [("tokens each", "requests"), *((f"{n:,}", f"{c:,}") for n, c in ledger.requests())]
    return [
        f"room for {tokens:,} tokens per rank in {ledger.counts.slots:,} slots "
        f"(block 0 is handed to nobody)",
        *aligned(_justified(cells, (0, 1))),
    ]


def _justified(
    cells: Sequence[tuple[str, ...]], right: tuple[int, ...] = RIGHT
) -> list[tuple[str, ...]]:
    """Numbers end in one column; `aligned` does the rest."""
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    return [
        tuple(
            cell.rjust(widths[at]) if at in right and cell else cell for at, cell in enumerate(row)
        )
        for row in cells
    ]


def _gb(nbytes: int) -> str:
    """Decimal GB."""
    return f"{nbytes / 1e9:.3f}"
