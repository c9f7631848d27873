"""Which rows a prefill must compute in which layer, so that the last row is exact.

In: numbers of layers and window tokens, how far cached entries reach. Out: first rows by layer.
Does not know: tensors, requests. A row of a layer reads window keys of the w - 1 rows before it,
so what the last row needs widens by w - 1 rows from each layer to the one below.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer.model.shape import Shape


@dataclass(frozen=True)
class Starts:
    """First positions by layer; a row takes part in a layer from there on.

    into   [layers + 1] rows that enter a layer; into[l + 1] are the rows that leave layer l
    keys   [layers] rows that write a window key; equal to `into` but where a layer only compresses
    fresh  rows from here on write compressed entries; those before are read from the cache
    """

    into: tuple[int, ...]
    keys: tuple[int, ...]
    fresh: int

    @property
    def begin(self) -> int:
        """First row that is computed at all."""
        return self.into[0]

    def cost(self, tokens: int) -> int:
        """Row-layers: how many rows leave each layer, for a sequence of `tokens` tokens."""
        return sum(tokens - first for first in self.into[1:])


@dataclass(frozen=True)
class Cone:
    """`layers` in all, of which those from `decoder` on own no compressor but the first of them.

    Source: engine specification 3.3 and 4; `back` is w - 1.
    """

    layers: int
    decoder: int
    back: int

    @classmethod
    def of(cls, shape: Shape) -> Cone | None:
        """The cone of a model, or None where a decoder layer writes what all rows need (4.2)."""
        decoder = max(shape.kv_source_layer_ids, default=-1)
        late = [layer for layer in shape.engram_layer_ids if layer > decoder]
        early = [layer for layer in shape.dspark_target_layer_ids if layer < decoder]
        if decoder < 0 or late or early:
            return None
        return cls(shape.num_hidden_layers, decoder, shape.sliding_window - 1)

    @property
    def kept(self) -> int:
        """K_x: rows at the end of a prompt that pass the decoder; 2,541 for the official model."""
        return (self.layers - self.decoder) * self.back + 1

    @property
    def reach(self) -> int:
        """R: rows before a position whose loss makes all layers there exact again; 5,080."""
        return self.layers * self.back

    def anchor(self, tokens: int) -> int:
        """a: the first row of a prompt that passes the decoder."""
        return max(0, tokens - self.kept)

    def starts(
        self,
        tokens: int,
        hit: int = 0,
        saved: int = 0,
        replay: bool = True,
        keep: int | None = None,
    ) -> Starts:
        """First rows for a prompt of `tokens` tokens of which `hit` have cached entries.

        saved   windows of the rows before this position were restored from a snapshot
        replay  whether decoder rows that cannot reach the last row are left out
        keep    a position before which the windows of all layers are wanted, for a snapshot
        """
        layers, decoder, back = self.layers, self.decoder, self.back
        last = tokens - 1 if replay else hit
        last = last if keep is None else min(last, keep)
        reached = [last - (layers - layer) * back for layer in range(layers + 1)]
        keys = [
            min(first, hit - (decoder - layer) * back) if layer < decoder else first
            for layer, first in enumerate(reached)
        ]
        keys = [max(first, saved, 0) for first in keys]
        into = list(keys)
        into[decoder] = min(into[decoder], max(hit, saved, 0))
        return Starts(tuple(into), tuple(keys[:layers]), hit)
