"""Muon for matrices, AdamW for everything else, both as pure device work that a graph can hold.

In: FP32 masters with gradients. Out: updated masters. Learning rate and decay live on the device.
Does not know: what the tensors are for.
"""

import torch
from torch import Tensor

ADAM_ONLY = ("embed.weight", "head.weight", ".gate.weight", "weights_proj", "markov", "proj.weight",
             "q_weight", "k_weight", "_fn", "_base", "_scale", "norm", "sink")
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Newton-Schulz quintic of the Muon authors


def is_matrix(key: str, value: Tensor) -> bool:
    """Whether Muon updates this stack of matrices."""
    if key.endswith("main_proj.weight"):
        return True
    return value.ndim >= 3 and not any(part in key for part in ADAM_ONLY)


@torch.no_grad()
def orthogonal(matrices: Tensor, steps: int = 5) -> Tensor:
    """Push the singular values of [n, rows, columns] towards one."""
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return (x.mT if tall else x).float()


class Optimizer:
    """Steps on `masters` in place; `rate` is one learning rate for both kinds of update."""

    def __init__(self, masters: dict[str, Tensor], device: str, decay: float = 0.02):
        self.matrices = {k: v for k, v in masters.items() if is_matrix(k, v)}
        self.rest = {k: v for k, v in masters.items() if k not in self.matrices}
        self.momentum = {k: torch.zeros_like(v) for k, v in self.matrices.items()}
        self.first = [torch.zeros_like(v) for v in self.rest.values()]
        self.second = [torch.zeros_like(v) for v in self.rest.values()]
        self.rate = torch.zeros((), device=device)
        self.count = torch.zeros((), device=device)
        self.norm = torch.zeros((), device=device)
        self.decay = decay

    @torch.no_grad()
    def step(self) -> None:
        """One update from the gradients that backward left behind."""
        everything = [*self.matrices.values(), *self.rest.values()]
        grads = [value.grad for value in everything]
        for grad in grads:  # one broken anchor of a draft must not end the run
            torch.nan_to_num_(grad, 0.0, 0.0, 0.0)
        norm = torch.stack(torch._foreach_norm(grads)).norm()
        self.norm.copy_(norm)
        torch._foreach_mul_(grads, 1.0 / norm.clamp(min=1.0))
        self.count += 1
        self._muon()
        self._adam()

    def _muon(self) -> None:
        keep = 1 - self.rate * self.decay
        for key, value in self.matrices.items():
            momentum = self.momentum[key]
            momentum.lerp_(value.grad, 0.05)
            aim = value.grad.lerp(momentum, 0.95).flatten(0, -3)
            update = orthogonal(aim) * (0.2 * max(aim.shape[-2:]) ** 0.5)
            value.mul_(keep).sub_(update.view_as(value) * self.rate)

    def _adam(self, fast: float = 0.9, slow: float = 0.95) -> None:
        values = list(self.rest.values())
        grads = [value.grad for value in values]
        torch._foreach_lerp_(self.first, grads, 1 - fast)
        torch._foreach_mul_(self.second, slow)
        torch._foreach_addcmul_(self.second, grads, grads, 1 - slow)
        denominator = torch._foreach_sqrt(self.second)
        torch._foreach_mul_(denominator, (1 - slow**self.count).rsqrt())
        torch._foreach_add_(denominator, 1e-12)
        update = torch._foreach_div(self.first, denominator)
        torch._foreach_mul_(update, self.rate / (1 - fast**self.count))
        torch._foreach_sub_(values, update)
