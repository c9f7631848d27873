"""One training step of the backbone and one of the draft, each held in a GPU graph.

In: packed rows with marks. Out: updated masters, losses on the device.
Does not know: schedules, files.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from . import drafter, network
from .network import Packed
from .numerics import Numerics, plain, region
from .optimizer import Optimizer
from .packing import CONTEXT, TARGET
from .shape import Shape
from .weights import stored_values

CONTEXT_WEIGHT = 0.2  # prompts hold random names and digits: worth less than answers
SLOT_WEIGHTS = (1.0, 0.8, 0.64, 0.51, 0.41)
WARM = 2
UPDATES = 3  # of the draft per forward pass of its teacher
TRAINING = Numerics(exact=False)


class Captured:
    """Runs `body` on fixed input tensors: twice as it is, then as a recorded graph."""

    def __init__(self, body: Callable[[], None], inputs: list[Tensor]):
        self.body, self.inputs = body, inputs
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.is_gpu = inputs[0].is_cuda

    def __call__(self, *values: Tensor) -> None:
        for slot, value in zip(self.inputs, values, strict=True):
            slot.copy_(value)
        self.calls += 1
        if not self.is_gpu:
            self.body()
            return
        if self.graph is not None:
            self.graph.replay()
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.body()
        torch.cuda.current_stream().wait_stream(side)
        if self.calls >= WARM:
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.body()


class BackboneStep:
    """Cross-entropy plus the indexer's loss; balances the router's biases after each update."""

    def __init__(
        self, masters: dict[str, Tensor], optimizer: Optimizer, compressed: Tensor, shape: Shape,
        rows: int, length: int, dense: bool,
    ):
        self.masters, self.optimizer, self.compressed = masters, optimizer, compressed
        self.shape, self.dense = shape, dense
        device = compressed.device
        self.ids = torch.zeros(rows, length, dtype=torch.int64, device=device)
        self.marks = torch.zeros(rows, length, dtype=torch.int64, device=device)
        self.drop = torch.zeros((), device=device)  # share of rows without Engram
        self.speed = torch.zeros((), device=device)  # of the router's biases
        self.loss = torch.zeros((), device=device)
        self.index_loss = torch.zeros((), device=device)
        self.loads = torch.zeros(shape.layers, shape.experts, device=device)
        self.run = Captured(self._body, [self.ids, self.marks])

    def _body(self) -> None:
        for value in self.masters.values():
            value.grad = None
        weights = stored_values(self.shape, self.masters)
        packed = network.pack(self.ids, self.compressed, self.shape)
        rows, length = self.ids.shape
        keep = (torch.rand(rows, device=self.ids.device) >= self.drop).float()
        result = network.forward(weights, packed, self.shape, TRAINING,
                                 keep.repeat_interleave(length), True, dense=self.dense)
        targets = self.ids.roll(-1, 1).flatten()
        ahead = self.marks.roll(-1, 1)
        weight = torch.where(ahead == TARGET, 1.0, torch.where(ahead == CONTEXT, CONTEXT_WEIGHT, 0))
        weight[:, -1] = 0
        loss = network.token_loss(result.hidden, weights["head.weight"][0], targets,
                                  weight.flatten())
        (loss + result.index_loss).backward()
        self.optimizer.step()
        with torch.no_grad():
            ideal = self.shape.top_experts / self.shape.experts
            bias = self.masters["ffn.gate.bias"]
            bias.add_(torch.sign(ideal - result.loads.detach()) * self.speed)
            self.loss.copy_(loss.detach())
            self.index_loss.copy_(result.index_loss.detach())
            self.loads.copy_(result.loads.detach())


@region
def draft_loss(
    base: Tensor, term: Tensor, sure: Tensor, teacher: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """KL and hard loss against the backbone, confidence against the overlap of both laws.

    All [anchors, block, vocab] except sure and weight [anchors, block]. Also returns the share
    of slots whose best token is the backbone's, [block].
    """
    log_q = torch.log_softmax((base + term).float(), -1)
    log_p = torch.log_softmax(teacher.float(), -1)
    p = log_p.exp()
    best = teacher.argmax(-1)
    soft = (p * (log_p - log_q)).sum(-1)
    hard = -log_q.gather(-1, best.unsqueeze(-1)).squeeze(-1)
    overlap = torch.minimum(p, log_q.exp()).sum(-1).detach()
    honest = F.binary_cross_entropy_with_logits(sure.float(), overlap.clamp(0, 1),
                                                reduction="none")
    total = ((soft + 0.5 * hard + 0.1 * honest) * weight).sum() / weight.sum().clamp(min=1)
    hit = ((log_q.argmax(-1) == best).float() * (weight > 0)).sum(0) / (weight > 0).sum(0)
    return total, hit


class DraftStep:
    """Teaches the stages what the frozen, quantized backbone says along its own greedy path."""

    def __init__(
        self, frozen: dict[str, Tensor], masters: dict[str, Tensor], optimizer: Optimizer,
        compressed: Tensor, shape: Shape, rows: int, length: int, anchors: int,
    ):
        self.frozen, self.masters, self.optimizer = frozen, masters, optimizer
        self.compressed, self.shape, self.anchors = compressed, shape, anchors
        device = compressed.device
        self.ids = torch.zeros(rows, length, dtype=torch.int64, device=device)
        self.marks = torch.zeros(rows, length, dtype=torch.int64, device=device)
        self.loss = torch.zeros((), device=device)
        self.hits = torch.zeros(shape.block, device=device)
        self.broken = torch.zeros((), device=device)  # share of tokens without a finite teacher
        self.slots = torch.tensor(SLOT_WEIGHTS[: shape.block], device=device)
        self.run = Captured(self._body, [self.ids, self.marks])

    def _slots(self, packed: Packed, teacher: Tensor, at: Tensor, anchor: Tensor) -> Tensor:
        """Weights [anchors, block]: a slot counts while the text is the backbone's greedy one."""
        ids, marks, start = self.ids.flatten(), self.marks.flatten(), packed.start.flatten()
        given = ids[at]  # the token each slot follows, [anchors, block]
        greedy = teacher.argmax(-1)
        same = (given[:, 1:] == greedy[:, :-1]).cumprod(1)
        same = F.pad(same, (1, 0), value=1)
        inside = (start[at] == start[anchor][:, None]) & (marks[at] > 0)
        answer = torch.where(marks[at] == TARGET, 1.0, 0.1)
        return same * inside.long().cumprod(1) * answer * self.slots

    def _teach(self) -> tuple[Packed, Tensor, Tensor]:
        """The backbone's features and hidden states, each step's anchors draw from them.

        Uncompiled: forward-only regions cost half a minute of compilation, and in a probe with
        torch 2.11 their output was not always finite (cause not found).
        """
        with torch.no_grad(), plain():
            packed = network.pack(self.ids, self.compressed, self.shape)
            result = network.forward(self.frozen, packed, self.shape, TRAINING)
            self.broken.copy_((~torch.isfinite(result.hidden)).any(-1).float().mean())
            return packed, result.features.nan_to_num(), result.hidden

    def _body(self) -> None:
        packed, features, hidden = self._teach()
        for _ in range(UPDATES):
            self._update(packed, features, hidden)

    def _update(self, packed: Packed, features: Tensor, hidden: Tensor) -> None:
        shape, n = self.shape, TRAINING
        for value in self.masters.values():
            value.grad = None
        with torch.no_grad():
            rows, length = self.ids.shape
            room = length - shape.block - 1
            drawn = (torch.rand(self.anchors, device=self.ids.device) * (rows * room)).long()
            anchor = drawn // room * length + drawn % room
            at = anchor[:, None] + 1 + torch.arange(shape.block, device=anchor.device)
            head = self.frozen["head.weight"][0].to(n.storage)
            sound = torch.isfinite(hidden[at]).all(-1).all(-1)
            teacher = F.linear(hidden[at].nan_to_num(), head)
            weight = self._slots(packed, teacher, at, anchor) * sound[:, None]
            given = self.ids.flatten()[at]
        weights = self.frozen | stored_values(shape, self.masters)
        h = drafter.draft_hidden(weights, features, packed, anchor, given[:, 0], shape, n)
        base = drafter.base_logits(weights, h, shape, n)
        term, row = drafter.markov(weights, given, n)
        sure = drafter.confidence(weights, h.detach(), row.detach(), n)
        loss, hits = draft_loss(base, term, sure, teacher, weight)
        loss.backward()
        self.optimizer.step()
        self.loss.copy_(loss.detach())
        self.hits.copy_(hits.detach())
