"""Rotary frequencies: plain for window-only layers, YaRN for every layer with compressed keys.

In: a Shape and a layer. Out: frequencies [rope_dim / 2] f32.
Does not know: positions; the operator forms the angle.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepinfer.model.shape import Shape


def frequencies(shape: Shape, layer: int) -> Tensor:
    """[rope_dim / 2] f32 of one layer (backbone 3.4). One table serves everything in the layer."""
    dim = shape.qk_rope_head_dim
    exponent = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    if shape.ratio(layer) == 0:
        return 1.0 / shape.rope_theta**exponent
    base = shape.compress_rope_theta
    plain = 1.0 / base**exponent

    def channel(rotations: float) -> float:
        turns = shape.rope_original_positions / (2 * math.pi * rotations)
        return dim * math.log(turns) / (2 * math.log(base))

    low = max(math.floor(channel(shape.rope_beta_fast)), 0)
    high = min(math.ceil(channel(shape.rope_beta_slow)), dim - 1)
    place = torch.arange(dim // 2, dtype=torch.float32)
    # low == high would divide by zero; a hair's width makes the ramp a step
    ramp = ((place - low) / (high - low or 0.001)).clamp(0, 1)
    keep = 1 - ramp
    return plain / shape.rope_factor * (1 - keep) + plain * keep
