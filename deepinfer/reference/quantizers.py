"""The three activation quantizers and the decoders of all checkpoint formats.

In: tensors. Out: codes with scales, or the values that codes stand for.
Does not know: caches, operators.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.ops.values import Weight

E4M3_MAX = 448.0
# Code table of E2M1: bit 3 is the sign, the low three bits pick a magnitude (backbone 2.2).
_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def pow2ceil(value: Tensor) -> Tensor:
    """Next power of two at or above positive f32 values, by the bits (backbone 3.1)."""
    bits = value.float().contiguous().view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).int()
    return (exponent << 23).view(torch.float32)


def e8m0(scale: Tensor) -> Tensor:
    """Exact powers of two as E8M0: the exponent byte, never a numeric cast."""
    return (scale.view(torch.int32) >> 23).to(torch.uint8).view(torch.float8_e8m0fnu)


def from_e8m0(scale: Tensor) -> Tensor:
    """E8M0 bytes as f32: byte b is 2^(b - 127), byte 0 a subnormal."""
    byte = scale.view(torch.uint8).int()
    return torch.where(byte == 0, torch.full_like(byte, 1 << 22), byte << 23).view(torch.float32)


def _groups(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    groups = x.float().unflatten(-1, (-1, size))  # [..., groups, size]
    return groups, groups.abs().amax(-1)


def q8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Q8: codes [..., k] e4m3 and power-of-two scales [..., k / 32] f32."""
    groups, amax = _groups(x, 32)
    scale = pow2ceil(amax.clamp(min=1e-4) * _f32(1 / E4M3_MAX))
    codes = (groups / scale[..., None]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return codes.flatten(-2), scale


def q4_index(x: Tensor) -> tuple[Tensor, Tensor]:
    """Q4i: E2M1 codes [..., k] uint8 and power-of-two scales [..., k / 32] f32."""
    groups, amax = _groups(x, 32)
    scale = pow2ceil(amax.clamp(min=6 * 2.0**-126) * _f32(1 / 6))
    return to_e2m1(groups / scale[..., None]).flatten(-2), scale


def q4_entry(x: Tensor) -> tuple[Tensor, Tensor]:
    """Q4k: E2M1 codes [..., k] uint8 and E4M3 scales [..., k / 16]; the division is a true one."""
    groups, amax = _groups(x, 16)
    ratio = amax.clamp(min=6 * 2.0**-9) / 6
    scale = ratio.clamp(max=E4M3_MAX).to(torch.float8_e4m3fn)
    return to_e2m1(groups / scale.float()[..., None]).flatten(-2), scale


def to_e2m1(v: Tensor) -> Tensor:
    """Nearest E2M1 code, ties to the even code, clamp at 6 (backbone 3.1); uint8 codes."""
    a = v.abs().clamp(max=6)
    step = torch.where(a < 2, 0.5, torch.where(a < 4, 1.0, 2.0))
    rounded = step * torch.round(a / step)  # torch.round is round-half-even
    code = torch.bucketize(rounded, _E2M1[:8].to(v.device))
    return (code + 8 * torch.signbit(v)).to(torch.uint8)


def from_e2m1(codes: Tensor) -> Tensor:
    """E2M1 codes as f32 values."""
    return _E2M1.to(codes.device)[codes.long()]


def pack_pairs(codes: Tensor) -> Tensor:
    """Two codes a byte, even element in the low nibble: [..., k] -> [..., k / 2] uint8."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_pairs(pairs: Tensor) -> Tensor:
    """[..., k / 2] bytes -> [..., k] uint8 codes."""
    byte = pairs.view(torch.uint8)
    return torch.stack([byte & 15, byte >> 4], -1).flatten(-2)


def scaled(values: Tensor, scale: Tensor, size: int) -> Tensor:
    """values [..., k] times scale [..., k / size], exact in f32: both mantissas are short."""
    return (values.float().unflatten(-1, (-1, size)) * scale.float()[..., None]).flatten(-2)


def dequantize(weight: Weight) -> Tensor:
    """A checkpoint weight as f32, whatever its format (backbone 2.2)."""
    values, scale = weight
    if scale is None:
        return values.float()
    if values.dtype == torch.int8:
        return scaled(from_e2m1(unpack_pairs(values)), from_e8m0(scale), 32)
    factor = from_e8m0(scale)
    if scale.shape[0] != values.shape[0]:
        factor = factor.repeat_interleave(32, 0)[: values.shape[0]]  # one row of scales per 32 rows
    return values.float() * factor.repeat_interleave(32, 1)[:, : values.shape[1]]


def _f32(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32)
