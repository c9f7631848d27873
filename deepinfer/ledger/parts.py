"""What a memory ledger is made of: rows, the options of its formulas, bytes per unit of a pool.

In: a Shape, bytes of cache records (engine specification 3.1, 8). Out: frozen values.
Does not know: how they are added up (account.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from deepinfer.model.shape import Shape

GRAPH_BYTES = 1_500_000_000
"""G until it is measured (engine specification 8)."""


@dataclass(frozen=True)
class Row:
    """One line: `bytes` on `place` ("device" or "host"); zero has its reason in `note`.

    Where a row is made of equal units, bytes = unit_bytes * count.
    """

    part: str
    name: str
    bytes: int
    unit: str = ""
    unit_bytes: int = 0
    count: int = 0
    place: str = "device"
    note: str = ""

    @classmethod
    def of(
        cls, part: str, name: str, unit: str, unit_bytes: int, count: int, note: str = ""
    ) -> Row:
        """A row of `count` units."""
        return cls(part, name, unit_bytes * count, unit, unit_bytes, count, note=note)


@dataclass(frozen=True)
class Counts:
    """Slots, blocks with block 0, and snapshots F and E, that an engine really reserves."""

    slots: int
    blocks: int
    whole: int = 0
    halves: int = 0


@dataclass(frozen=True)
class Options:
    """What the formulas need beside the Shape. Bytes are exact, `total` is the device's memory.

    `unused` names terms that a platform or a setting does without, and why; they are 0:
    wo_a, head, compressors, draft heads, spare, vision, snapshots, workspace, graphs, exchange.
    `decoded` is the bytes per element of kernels that hold every matrix decoded, else 0.
    `full_requests` of full length must fit at once: 1 by section 8, a start may want more.
    """

    total: int
    others: int = 0
    utilization: float = 0.9
    ranks: int = 1
    max_model_len: int = 0
    max_num_seqs: int = 256
    window_slots: float = 1.2
    step_tokens: int = 8_192
    drafts: bool = True
    redundant: int = 0
    spare: int = 0
    vision: bool = False
    engram: str = "host"
    decoded: int = 0
    skew: float = 1.8
    graphs: int = GRAPH_BYTES
    snapshot_share: float = 0.1
    full_requests: int = 1
    unused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Units:
    """Bytes of one unit of every cache pool (engine 3.1), from the records of the plan's layouts.

    `entries` and `keys` are those of one block; `window`, `draft`, `open` those of one slot.
    `snapshot_f` has the rows of the draft stages in it, `snapshot_draft` of its bytes. `whole` and
    `whole_draft` are what an engine reserves for an F: w - 1 rows of drafts too, and open groups.
    """

    block_tokens: int
    window: int
    draft: int
    open: int
    entries: int
    keys: int
    snapshot_e: int
    snapshot_f: int
    snapshot_draft: int
    whole: int
    whole_draft: int

    @classmethod
    def of(
        cls, shape: Shape, records: Mapping[str, int], block_tokens: int, ring: int, open_rows: int
    ) -> Units:
        """`records`: bytes of a row of window, entry, index and open (528, 288, 68, 4,096)."""
        layers, stages = shape.num_hidden_layers, shape.num_nextn_predict_layers
        sources = [shape.ratio(layer) for layer in shape.kv_source_layer_ids]
        rows = sum(block_tokens // ratio for ratio in sources)
        pooled = sum(ratio > 1 for ratio in sources)
        row, behind = records["window"], shape.sliding_window - 1
        encoder = max(shape.kv_source_layer_ids, default=layers)
        drafted = stages * shape.sliding_window * row
        opened = pooled * open_rows * records["open"] if pooled else 0
        return cls(
            block_tokens=block_tokens,
            window=layers * ring * row,
            draft=stages * ring * row,
            open=opened,
            entries=rows * records["entry"],
            keys=rows * records["index"],
            snapshot_e=encoder * behind * row,
            snapshot_f=layers * behind * row + drafted,
            snapshot_draft=drafted,
            whole=layers * behind * row + opened,
            whole_draft=stages * behind * row,
        )

    @property
    def block(self) -> int:
        """Bytes of a block over all layers."""
        return self.entries + self.keys

    def slot(self, drafts: bool) -> int:
        """Bytes of a slot: rings, open groups and, if they run, the rings of the draft stages."""
        return self.window + self.open + (self.draft if drafts else 0)

    def snapshot(self, drafts: bool) -> int:
        """Bytes of a snapshot F; without drafts it has no rows of the draft stages."""
        return self.snapshot_f - (0 if drafts else self.snapshot_draft)
