"""Hyper-connections: four copies of the residual, mixed at every site with a lag of one site.

In: the stream [tokens, copies, hidden], a site's parameters. Out: a sublayer's input, the stream.
Does not know: what the sublayer computes.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from deepinfer.model.shape import Shape
from deepinfer.ops.table import Table


@dataclass(frozen=True)
class Site:
    """One site: fn [24, 4 * hidden], scale [3], base [24], and the norm [hidden] of its input."""

    fn: Tensor
    scale: Tensor
    base: Tensor
    norm: Tensor


@dataclass(frozen=True)
class Mixes:
    """What a site computes from the stream at its entry; pre is for the *next* site (3.3)."""

    pre: Tensor
    post: Tensor
    mix: Tensor


def mixes(site: Site, stream: Tensor, shape: Shape, ops: Table) -> Mixes:
    """The three mixes of a site."""
    eps, steps = shape.rms_norm_eps, shape.hc_sinkhorn_iters
    return Mixes(
        *ops.tensor_hyper_pre(stream, site.fn, site.scale, site.base, eps, shape.hc_eps, steps)
    )


def enter(site: Site, stream: Tensor, pre: Tensor, shape: Shape, ops: Table) -> Tensor:
    """The sublayer's input [tokens, hidden]: collapse with the mix of the site before, norm."""
    return ops.tensor_rms_norm(
        ops.tensor_hyper_collapse(stream, pre), site.norm, shape.rms_norm_eps
    )


def leave(stream: Tensor, y: Tensor, own: Mixes, ops: Table) -> Tensor:
    """The stream behind the site, with the site's own post and mix."""
    return ops.tensor_hyper_post(stream, y, own.post, own.mix)
