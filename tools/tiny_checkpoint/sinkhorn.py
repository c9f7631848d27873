"""The twenty Sinkhorn steps of a hyper-connection as one GPU kernel each way.

In: mixing logits [tokens, 4, 4] f32. Out: the doubly stochastic matrices; gradients.
Does not know: streams, layers. Imported only where a GPU is used.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64


@triton.jit
def _forward(logits, out, sums, rows, eps, rounds: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0) * block + tl.arange(0, block)
    i = tl.arange(0, 4)
    cell = row[:, None, None] * 16 + i[None, :, None] * 4 + i[None, None, :]
    live = row[:, None, None] < rows
    side = row[:, None] * (4 * (2 * rounds - 1)) + i[None, :]
    alive = row[:, None] < rows
    x = tl.load(logits + cell, mask=live, other=0.0)
    e = tl.exp(x - tl.max(x, 2)[:, :, None])
    c = e / tl.sum(e, 2)[:, :, None] + eps
    s = tl.sum(c, 1) + eps
    tl.store(sums + side, s, mask=alive)
    c = c / s[:, None, :]
    for step in range(rounds - 1):
        s = tl.sum(c, 2) + eps
        tl.store(sums + side + 4 * (2 * step + 1), s, mask=alive)
        c = c / s[:, :, None]
        s = tl.sum(c, 1) + eps
        tl.store(sums + side + 4 * (2 * step + 2), s, mask=alive)
        c = c / s[:, None, :]
    tl.store(out + cell, c, mask=live)


@triton.jit
def _backward(logits, out, sums, grad, result, rows, rounds: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0) * block + tl.arange(0, block)
    i = tl.arange(0, 4)
    cell = row[:, None, None] * 16 + i[None, :, None] * 4 + i[None, None, :]
    live = row[:, None, None] < rows
    side = row[:, None] * (4 * (2 * rounds - 1)) + i[None, :]
    alive = row[:, None] < rows
    c = tl.load(out + cell, mask=live, other=0.0)
    g = tl.load(grad + cell, mask=live, other=0.0)
    for back in range(rounds - 1):
        step = rounds - 2 - back
        s = tl.load(sums + side + 4 * (2 * step + 2), mask=alive, other=1.0)
        g = (g - tl.sum(g * c, 1)[:, None, :]) / s[:, None, :]
        c = c * s[:, None, :]
        s = tl.load(sums + side + 4 * (2 * step + 1), mask=alive, other=1.0)
        g = (g - tl.sum(g * c, 2)[:, :, None]) / s[:, :, None]
        c = c * s[:, :, None]
    s = tl.load(sums + side, mask=alive, other=1.0)
    g = (g - tl.sum(g * c, 1)[:, None, :]) / s[:, None, :]
    x = tl.load(logits + cell, mask=live, other=0.0)
    e = tl.exp(x - tl.max(x, 2)[:, :, None])
    p = e / tl.sum(e, 2)[:, :, None]
    tl.store(result + cell, p * (g - tl.sum(g * p, 2)[:, :, None]), mask=live)


@torch.library.custom_op("tiny_checkpoint::sinkhorn", mutates_args=())
def fused(logits: Tensor, eps: float, rounds: int) -> tuple[Tensor, Tensor]:
    """Doubly stochastic matrices and every divisor on the way, which the gradient needs."""
    logits = logits.contiguous()
    rows = logits.numel() // 16
    out = torch.empty_like(logits)
    sums = logits.new_empty(rows, 2 * rounds - 1, 4)
    _forward[(triton.cdiv(rows, BLOCK),)](logits, out, sums, rows, eps, rounds, BLOCK)
    return out, sums


@fused.register_fake
def _(logits: Tensor, eps: float, rounds: int) -> tuple[Tensor, Tensor]:
    rows = logits.numel() // 16
    empty = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    return empty, logits.new_empty(rows, 2 * rounds - 1, 4)


@torch.library.custom_op("tiny_checkpoint::sinkhorn_gradient", mutates_args=())
def fused_gradient(logits: Tensor, out: Tensor, sums: Tensor, grad: Tensor, rounds: int) -> Tensor:
    """Walk the normalizations backwards: each input is its output times its divisor."""
    logits, grad = logits.contiguous(), grad.contiguous()
    rows = logits.numel() // 16
    result = torch.empty_like(logits)
    grid = (triton.cdiv(rows, BLOCK),)
    _backward[grid](logits, out, sums, grad, result, rows, rounds, BLOCK)
    return result


@fused_gradient.register_fake
def _(logits: Tensor, out: Tensor, sums: Tensor, grad: Tensor, rounds: int) -> Tensor:
    return torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)


def _save(ctx, inputs, output):  # noqa: ANN001
    logits, _, rounds = inputs
    ctx.save_for_backward(logits, *output)
    ctx.rounds = rounds


def _gradient(ctx, grad: Tensor, _: Tensor):  # noqa: ANN001
    logits, out, sums = ctx.saved_tensors
    return fused_gradient(logits, out, sums, grad, ctx.rounds), None, None


fused.register_autograd(_gradient, setup_context=_save)
