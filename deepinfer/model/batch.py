"""What the model must know about the rows of one step: arrays, already on the device.

In: nothing (the engine's tray fills it). Out: `Batch`, read by every layer.
Does not know: requests, texts, how blocks are handed out.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Window:
    """Where window keys go and what each row reads.

    rows     [tokens] int64 ring rows to write; -1 where the ring will not need the key
    index    [tokens, w] int32, increasing position, -1 empty: rows of the ring cache, or of the
             linear workspace (earlier keys, then this step's) if `earlier` is given
    earlier  [m] int64 ring rows read before they may be overwritten, or None: read the ring
    """

    rows: Tensor
    index: Tensor
    earlier: Tensor | None


@dataclass(frozen=True)
class Groups:
    """Compressed groups of one ratio: those that close in this step, and what is visible.

    sources    [groups, ratio] int64 for `attention.compress`
    positions  [groups] int64 position of each group's first token
    numbers    [groups] int32 entry number inside its sequence; sequence [groups] int64
    open_rows  [tokens] int64 open-group rows to keep; -1 not needed
    visible    [tokens] int32 entries that exist for the row; count the largest of them
    per_block  entries of this ratio in one block
    """

    sources: Tensor
    positions: Tensor
    numbers: Tensor
    sequence: Tensor
    open_rows: Tensor
    visible: Tensor
    count: int
    per_block: int


@dataclass(frozen=True)
class Batch:
    """Rows of one step, sequence after sequence.

    ids, positions [tokens] int64; sequence [tokens] int64 is a row of block_table
    history        [tokens, ngram] int64 compressed ids at p, p-1, ...; -1 blocked
    dead           [tokens] bool, tokens without n-grams (image spans)
    block_table    [sequences, blocks] int32
    groups         by ratio; only ratios the model uses
    wanted         [n] int64 rows whose logits are wanted
    """

    ids: Tensor
    positions: Tensor
    sequence: Tensor
    history: Tensor
    dead: Tensor
    window: Window
    block_table: Tensor
    groups: dict[int, Groups]
    wanted: Tensor


@dataclass(frozen=True)
class Caches:
    """Cache tensors by layer, in the layouts of the plan.

    window  [slots * ring, record] for every backbone layer, draft stages behind them
    entries, index, opened  by source layer: [blocks * per_block, record] / [slots * ring, record]
    """

    window: tuple[Tensor, ...]
    entries: dict[int, Tensor]
    index: dict[int, Tensor]
    opened: dict[int, Tensor]
