"""What the model must know about the rows of one step: arrays, already on the device.

In: nothing (the engine's tray fills it). Out: `Batch`, read by every layer.
Does not know: requests, texts, how blocks are handed out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Tap:
    """Window keys of this step that a snapshot wants too (engine 3.5), for the first `layers`.

    rows      [keys] int64 snapshot rows to write; -1 none
    earlier   [m] int64 ring rows that are copied as they are; copies [m] int64 where to
    """

    rows: Tensor
    earlier: Tensor
    copies: Tensor
    layers: int


@dataclass(frozen=True)
class Window:
    """Where window keys go and what each row reads.

    rows     [keys] int64 ring rows to write; -1 where the ring will not need the key
    index    [leaving, w] int32, increasing position, -1 empty: rows of the ring cache, or of the
             linear workspace (earlier keys, then this step's) if `earlier` is given
    earlier  [m] int64 ring rows read before they may be overwritten, or None: read the ring
    taps     copies that snapshots take of this step's keys
    """

    rows: Tensor
    index: Tensor
    earlier: Tensor | None
    taps: tuple[Tap, ...] = ()


@dataclass(frozen=True)
class Groups:
    """Compressed groups of one ratio: those that close in this step, and what is visible.

    fresh      [n] int64 entering rows that are compressed, or None: all of them
    sources    [groups, ratio] int64 for `attention.compress`, counted in fresh rows
    positions  [groups] int64 position of each group's first token
    numbers    [groups] int32 entry number inside its sequence; sequence [groups] int64
    open_rows  [fresh] int64 open-group rows to keep; -1 not needed
    visible    [leaving] int32 entries that exist for the row; count the largest of them
    per_block  entries of this ratio in one block
    """

    fresh: Tensor | None
    sources: Tensor
    positions: Tensor
    numbers: Tensor
    sequence: Tensor
    open_rows: Tensor
    visible: Tensor
    count: int
    per_block: int


@dataclass(frozen=True)
class Rows:
    """Rows of one layer: those that enter, those that write keys, those that leave.

    positions    [entering] int64; history [entering, ngram] int64 compressed ids at p, p - 1, ...,
                 -1 blocked; dead [entering] bool, tokens without n-grams (image spans)
    keys         [keys] int64 of the entering rows; out [leaving] of the rows with keys; leave
                 [leaving] of the entering rows. None: all of them
    at_keys      [keys] int64 positions; at_out [leaving] int64 positions
    sequence     [leaving] int64, a row of block_table
    groups       by ratio; only ratios the model uses
    """

    positions: Tensor
    history: Tensor
    dead: Tensor
    keys: Tensor | None
    out: Tensor | None
    leave: Tensor | None
    at_keys: Tensor
    at_out: Tensor
    sequence: Tensor
    window: Window
    groups: dict[int, Groups]

    @property
    def leaving(self) -> int:
        """How many rows leave the layer."""
        return self.at_out.shape[0]


@dataclass(frozen=True)
class Batch:
    """Rows of one step, sequence after sequence.

    ids          [tokens] int64
    layers       per backbone layer its rows; one object serves all layers with the same rows
    block_table  [sequences, blocks] int32
    wanted       [n] int64 rows leaving the last layer whose logits are wanted
    """

    ids: Tensor
    layers: tuple[Rows, ...]
    block_table: Tensor
    wanted: Tensor

    def at(self, layer: int) -> Rows:
        """Rows of a layer; draft stages, which lie behind, take those of the last."""
        return self.layers[min(layer, len(self.layers) - 1)]


@dataclass(frozen=True)
class Caches:
    """Cache tensors by layer, in the layouts of the plan.

    window  [slots * ring, record] for every backbone layer, draft stages behind them
    entries, index, opened  by source layer: [blocks * per_block, record] / [slots * ring, record]
    saved   per layer the windows of snapshots: [snapshots * (w - 1), record]
    saved_opened  by source layer: [whole snapshots * ring, record]
    """

    window: tuple[Tensor, ...]
    entries: dict[int, Tensor]
    index: dict[int, Tensor]
    opened: dict[int, Tensor]
    saved: tuple[Tensor, ...] = ()
    saved_opened: dict[int, Tensor] = field(default_factory=dict)


def copy_rows(to: Tensor, at: Tensor, of: Tensor, rows: Tensor) -> None:
    """to[at] = of[rows], records as they are; at, rows [n] int64.

    A cache of a device that computes nothing has no bytes to copy: all its rows are one.
    """
    if to.stride(0):
        to[at] = of[rows]
