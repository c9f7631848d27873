"""The number formats of the checkpoint and of the caches, as bytes and as differentiable fakes.

In: float tensors. Out: packed bytes with their scales, or the float values those bytes stand for.
Does not know: layers, names, training.
"""

from collections.abc import Callable

import torch
from torch import Tensor

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
WEIGHT_FLOOR = 2.0**-60  # a tile of zeros still needs a scale that E8M0 can hold


def pow2ceil(value: Tensor) -> Tensor:
    """2^ceil(log2 v) of positive FP32 values by integer arithmetic (specification 3.1)."""
    bits = value.float().contiguous().view(torch.int32)
    return ((bits + 0x7FFFFF) & 0x7F800000).view(torch.float32)


def round_e4m3(value: Tensor) -> Tensor:
    """Nearest E4M3 value, ties to even, saturating at 448."""
    return value.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).to(torch.float32)


def round_e2m1(value: Tensor) -> Tensor:
    """Nearest E2M1 value, ties to the even code, saturating at 6."""
    size = value.abs().clamp(max=6.0)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return torch.copysign(step * torch.round(size / step), value)


def groups(value: Tensor, size: int) -> Tensor:
    """Split the last axis into groups of `size`: [..., n] -> [..., n / size, size] f32."""
    return value.float().unflatten(-1, (value.shape[-1] // size, size))


def q8(value: Tensor) -> Tensor:
    """Q8 round trip: E4M3 with one power-of-two scale per 32 elements."""
    parts = groups(value, 32)
    scale = pow2ceil(parts.abs().amax(-1, keepdim=True).clamp(min=1e-4) * (1 / 448))
    return (round_e4m3(parts / scale) * scale).flatten(-2)


def q4i(value: Tensor) -> Tensor:
    """Q4i round trip: E2M1 with one power-of-two scale per 32 elements."""
    parts = groups(value, 32)
    scale = pow2ceil(parts.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-126) * (1 / 6))
    return (round_e2m1(parts / scale) * scale).flatten(-2)


def q4k(value: Tensor) -> Tensor:
    """Q4k round trip: E2M1 with one E4M3 scale per 16 elements."""
    parts = groups(value, 16)
    scale = round_e4m3(parts.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-9) / 6)
    return (round_e2m1(parts / scale) * scale).flatten(-2)


def tiles(weight: Tensor) -> Tensor:
    """View of [..., rows, columns] as [..., rows / 32, 32, columns / 32, 32] f32."""
    rows, columns = weight.shape[-2:]
    return weight.float().unflatten(-1, (columns // 32, 32)).unflatten(-3, (rows // 32, 32))


def tile_scale(weight: Tensor) -> Tensor:
    """Power-of-two scale of every 32x32 tile: [..., rows / 32, 1, columns / 32, 1]."""
    amax = tiles(weight).abs().amax((-3, -1), keepdim=True)
    return pow2ceil(amax.clamp(min=WEIGHT_FLOOR) * (1 / 448))


def fp8_tiles(weight: Tensor) -> Tensor:
    """Values of a dense FP8 weight after its round trip."""
    scale = tile_scale(weight)
    return (round_e4m3(tiles(weight) / scale) * scale).reshape(weight.shape)


def row_scale(weight: Tensor, largest: float) -> Tensor:
    """Power-of-two scale per row and 32 columns: [..., columns / 32, 1]."""
    amax = groups(weight, 32).abs().amax(-1, keepdim=True)
    return pow2ceil(amax.clamp(min=WEIGHT_FLOOR) * (1 / largest))


def fp8_rows(weight: Tensor) -> Tensor:
    """Values of an Engram table after its round trip: one scale per row and 32 columns."""
    scale = row_scale(weight, 448.0)
    return (round_e4m3(groups(weight, 32) / scale) * scale).flatten(-2)


def mxfp4(weight: Tensor) -> Tensor:
    """Values of a routed expert after its round trip."""
    scale = row_scale(weight, 6.0)
    return (round_e2m1(groups(weight, 32) / scale) * scale).flatten(-2)


def bf16(weight: Tensor) -> Tensor:
    """Values of a tensor that is stored in BF16."""
    return weight.bfloat16().float()


def straight_through(value: Tensor, quantizer: Callable[[Tensor], Tensor]) -> Tensor:
    """Exactly the quantized values forward, the identity backward."""
    with torch.no_grad():
        rounded = quantizer(value.detach()).to(value.dtype)
    # x - x is an exact zero that carries the gradient; q + (x - x) keeps every bit of q
    return rounded + (value - value.detach())


def e8m0_bytes(scale: Tensor) -> Tensor:
    """Powers of two as E8M0: the exponent field, copied raw."""
    exponent = (scale.float().contiguous().view(torch.int32) >> 23) & 0xFF
    return exponent.to(torch.uint8).view(torch.float8_e8m0fnu)


def pack_fp8_tiles(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[O, I] -> E4M3 [O, I] and E8M0 [O / 32, I / 32]."""
    scale = tile_scale(weight)
    codes = (tiles(weight) / scale).clamp(-448.0, 448.0).reshape(weight.shape)
    return codes.to(torch.float8_e4m3fn), e8m0_bytes(scale[..., 0, :, 0])


def pack_fp8_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[rows, columns] -> E4M3 of the same shape and E8M0 [rows, columns / 32]."""
    scale = row_scale(weight, 448.0)
    codes = (groups(weight, 32) / scale).clamp(-448.0, 448.0).flatten(-2)
    return codes.to(torch.float8_e4m3fn), e8m0_bytes(scale[..., 0])


def pack_mxfp4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[O, I] -> int8 [O, I / 2], low nibble first, and E8M0 [O, I / 32]."""
    scale = row_scale(weight, 6.0)
    rounded = round_e2m1(groups(weight, 32) / scale).flatten(-2)
    edges = torch.tensor([(a + b) / 2 for a, b in zip(E2M1, E2M1[1:], strict=False)])
    code = torch.bucketize(rounded.abs(), edges.to(rounded.device)).to(torch.uint8)
    code = code | (torch.signbit(rounded).to(torch.uint8) << 3)
    return (code[..., 0::2] | (code[..., 1::2] << 4)).view(torch.int8), e8m0_bytes(scale[..., 0])


def unpack_e8m0(scale: Tensor) -> Tensor:
    """E8M0 bytes as FP32 values."""
    return (scale.view(torch.uint8).to(torch.int32) << 23).view(torch.float32)


def unpack(weight: Tensor, scale: Tensor) -> Tensor:
    """The FP32 values of a stored weight; the format follows from dtype and scale shape."""
    factor = unpack_e8m0(scale)
    if weight.dtype == torch.int8:
        raw = weight.view(torch.uint8)
        code = torch.stack((raw & 15, raw >> 4), -1).flatten(-2).to(torch.int64)
        table = torch.tensor(E2M1 + tuple(-v for v in E2M1))
        return table[code] * factor.repeat_interleave(32, -1)
    if scale.shape[0] != weight.shape[0]:
        factor = factor.repeat_interleave(32, 0)
    return weight.float() * factor.repeat_interleave(32, -1)
