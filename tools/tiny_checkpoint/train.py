"""Train the tiny checkpoint from nothing to exported shards in one timed command.

In: the generator's documents, a time budget. Out: shards, eval.json, log, snapshots.
Does not know: the engine. The schedule is that of tiny_checkpoint.md 3.5.
"""

import argparse
import json
import math
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from . import compiled, engram, items, numerics, tokenizer
from .evaluate import FREE_TASKS, dashboard, measure, take
from .export import read_snapshot, write_checkpoint, write_snapshot
from .optimizer import Optimizer
from .shape import Shape, config_m, shape_of
from .steps import BackboneStep, DraftStep
from .weights import start_values, stored_values

ENGRAM = {"layers": (1, 4), "ngram": 4, "heads": 4, "vocab": 2000}


@dataclass(frozen=True)
class Phase:
    """A stretch of backbone training on one data set; `share` is of the backbone's seconds."""

    data: str
    share: float
    dense: bool
    drop: float


PHASES = (
    Phase("one", 0.05, True, 0.15),
    Phase("two", 0.07, True, 0.15),
    Phase("three", 0.11, True, 0.15),
    Phase("four", 0.20, True, 0.12),
    Phase("four", 0.15, False, 0.10),
    Phase("long", 0.30, False, 0.05),
    Phase("longest", 0.12, False, 0.0),
)
CONTINUED = (Phase("long", 0.75, False, 0.05), Phase("longest", 0.25, False, 0.0))


class Feed:
    """Rows of one data set on the device, shuffled anew each epoch."""

    def __init__(self, folder: Path, name: str, device: str, patience: float):
        file = folder / f"{name}.npz"
        waited = time.monotonic()
        while not file.exists():
            if time.monotonic() - waited > patience:
                raise TimeoutError(f"no data set {file} after {patience:.0f} s")
            time.sleep(0.2)
        held = np.load(file)
        self.ids = torch.from_numpy(held["ids"].astype(np.int32)).to(device)
        self.marks = torch.from_numpy(held["marks"]).to(device)
        self.order = torch.randperm(len(self.ids), device=device)
        self.at = 0
        self.waited = time.monotonic() - waited

    def next(self, rows: int) -> tuple[Tensor, Tensor]:
        """The next `rows` rows: ids and marks [rows, T]."""
        if self.at + rows > len(self.order):
            self.order = torch.randperm(len(self.ids), device=self.ids.device)
            self.at = 0
        chosen = self.order[self.at : self.at + rows]
        self.at += rows
        return self.ids[chosen], self.marks[chosen]


class Trainer:
    """Everything a run owns: masters, data folder, clock, log."""

    def __init__(self, options: argparse.Namespace, began: float):
        self.options, self.began = options, began
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        numerics.STANCE["compile"] = options.compile
        torch.manual_seed(options.seed)
        self.words = tokenizer.load()
        self.compressed = engram.compressed_ids(self.words).to(self.device)
        self.config, self.shape = self._shape()
        if options.resume:
            self.masters = read_snapshot(options.resume, self.device)
        else:
            self.masters = start_values(self.shape, options.seed, self.device)
        for key, value in self.masters.items():
            value.requires_grad_(not key.endswith("gate.bias"))
        self.chosen = [i for i in take(items.load(), min(24, options.items), 2300)
                       if i.task not in FREE_TASKS]
        self.tokens = self.steps = 0
        self.history: list[dict] = []
        self.logged = time.monotonic()
        self.saved = time.monotonic()

    def _shape(self) -> tuple[dict, Shape]:
        sizes = engram.primes(ENGRAM["layers"], ENGRAM["ngram"], ENGRAM["heads"], ENGRAM["vocab"])
        config = config_m([sum(s) for s in sizes.values()], int(self.compressed.max()) + 1,
                          tokenizer.NOISE_ID, self.words.get_vocab_size())
        return config, shape_of(config["text_config"])

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:6.1f}] {text}", flush=True)

    def part(self, draft: bool) -> dict[str, Tensor]:
        """The masters of the draft stages, or all others."""
        return {k: v for k, v in self.masters.items() if k.startswith("mtp.") == draft}

    def optimizer(self, draft: bool) -> Optimizer:
        learned = {k: v for k, v in self.part(draft).items() if v.requires_grad}
        return Optimizer(learned, self.device)

    def backbone(self, until: float) -> None:
        """All phases; the learning rate follows the share of time that is over."""
        optimizer = self.optimizer(False)
        first = time.monotonic() - self.began
        total = until - first
        done = 0.0
        for phase in CONTINUED if self.options.resume else PHASES:
            done += phase.share
            self._phase(phase, optimizer, first, total, first + done * total)
            self.say(f"phase {phase.data} dense={phase.dense} ends, {self.steps} steps, "
                     f"{self.tokens / 1e6:.1f} M tokens")
            self.watch()

    def _phase(
        self, phase: Phase, optimizer: Optimizer, first: float, total: float, end: float
    ) -> None:
        feed = Feed(self.options.data, phase.data, self.device, 300)
        length = feed.ids.shape[1]
        rows = max(1, self.options.batch // length)
        step = BackboneStep(self.part(False), optimizer, self.compressed, self.shape, rows,
                            length, phase.dense)
        step.drop.fill_(phase.drop)
        self.say(f"phase {phase.data}: {rows} x {length}, waited {feed.waited:.1f} s for data")
        here = 0
        while time.monotonic() - self.began < end or here < 3:
            share = (time.monotonic() - self.began - first) / total
            optimizer.rate.fill_(self.rate(share))
            step.speed.fill_(0.002 if share < 0.6 else 0.0005 if share < 0.9 else 0.0)
            step.run(*feed.next(rows))
            here += 1
            self.steps += 1
            self.tokens += rows * length
            if here in (1, 2, 3, 20) or here % 100 == 0:
                self._report(step, optimizer, here, rows * length)
            if self.options.max_steps and here >= self.options.max_steps:
                return

    def rate(self, share: float) -> float:
        """Warm up by steps, hold, then fall to 2 % by the share of time."""
        peak = self.options.rate * (0.5 if self.options.resume else 1.0)
        hold = 0.05 if self.options.resume else 0.40
        fall = min(1.0, max(0.0, (share - hold) / (1 - hold)))
        return peak * min(1.0, (self.steps + 1) / 300) * (1 - 0.98 * fall)

    def _report(self, step: BackboneStep, optimizer: Optimizer, here: int, size: int) -> None:
        loss = step.loss.item()
        now = time.monotonic()
        self.say(f"step {self.steps} loss {loss:.4f} index {step.index_loss.item():.3f} norm "
                 f"{optimizer.norm.item():.2f} load {step.loads.min().item():.3f}.."
                 f"{step.loads.max().item():.3f} rate {optimizer.rate.item():.1e}")
        if here % 100 == 0:
            speed = 100 * size / (now - self.logged)
            self.history.append({"step": self.steps, "tokens": self.tokens, "loss": loss})
            self.say(f"  {speed / 1e6:.3f} M tokens/s")
            if now - self.saved > 60:
                self.watch()
        self.logged = time.monotonic()
        if math.isnan(loss):
            raise ArithmeticError(f"the loss is not a number at step {self.steps}")

    @torch.no_grad()
    def watch(self) -> None:
        """The dashboard: accuracies by task with the masters as they are."""
        self.saved = time.monotonic()
        weights = stored_values(self.shape, self.part(False))
        with numerics.plain():
            shown = dashboard(weights, self.chosen, self.compressed, self.shape)
        self.say("  " + " ".join(f"{k}={v:.2f}" for k, v in shown.items())
                 + f" ({time.monotonic() - self.saved:.1f} s)")

    def draft(self, until: float) -> None:
        """Train the stages on the frozen backbone."""
        with torch.no_grad():
            frozen = stored_values(self.shape, self.part(False))
        optimizer = self.optimizer(True)
        feed = Feed(self.options.data, "four", self.device, 300)
        length = feed.ids.shape[1]
        rows = max(1, self.options.batch // length)
        step = DraftStep(frozen, self.part(True), optimizer, self.compressed, self.shape, rows,
                         length, self.options.batch // 8)
        first = time.monotonic() - self.began
        here = 0
        while time.monotonic() - self.began < until or here < 3:
            share = (time.monotonic() - self.began - first) / max(1.0, until - first)
            fall = min(1.0, max(0.0, (share - 0.3) / 0.7))
            optimizer.rate.fill_(self.options.rate * min(1.0, (here + 1) / 100)
                                 * (1 - 0.98 * fall))
            step.run(*feed.next(rows))
            here += 1
            if here in (1, 3) or here % 100 == 0:
                hits = " ".join(f"{h:.3f}" for h in step.hits.tolist())
                self.say(f"draft step {here} loss {step.loss.item():.4f} hits {hits}")
            if self.options.max_steps and here >= self.options.max_steps:
                return

    def write(self, folder: Path, result: dict) -> None:
        """Shards as files, the small files as one archive, snapshots if asked for."""
        small = folder.parent / "small"
        write_checkpoint(self.masters, self.shape, self.config, small)
        for shard in small.glob("*.safetensors"):
            shard.replace(folder / shard.name)
        (small / "eval.json").write_text(json.dumps(result, indent=1) + "\n")
        with tarfile.open(folder / "small.tar.gz", "w:gz") as archive:
            for file in sorted(small.iterdir()):
                archive.add(file, file.name)
        if self.options.snapshot:
            write_snapshot(self.masters, self.shape, folder)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="folder for the training sets")
    parser.add_argument("--seconds", type=float, default=555)
    parser.add_argument("--draft-seconds", type=float, default=75)
    parser.add_argument("--eval-seconds", type=float, default=45)
    parser.add_argument("--batch", type=int, default=32768, help="tokens per step")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--factor", type=float, default=1.0, help="size of the training sets")
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--max-steps", type=int, default=0, help="per phase, for probes")
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--snapshot", action="store_true")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--compiled", type=Path, help="folder with compiled regions of a run")
    parser.add_argument("--keep-compiled", action="store_true")
    parser.add_argument("--items", type=int, default=200, help="evaluation items per task")
    return parser.parse_args()


def main() -> None:
    began = time.monotonic()
    chosen = options()
    chosen.out.mkdir(parents=True, exist_ok=True)
    maker = subprocess.Popen([
        sys.executable, "-m", "tools.tiny_checkpoint.prepare", str(chosen.data), "--factor",
        str(chosen.factor), "--processes", str(chosen.processes), "--seed", str(chosen.seed)])
    torch._dynamo.config.recompile_limit = 64
    torch.backends.cuda.matmul.allow_tf32 = True
    parts = compiled.load(chosen.compiled) if chosen.compiled else 0
    trainer = Trainer(chosen, began)
    trainer.say(f"{parts} parts of compiled regions loaded")
    trainer.say(f"{sum(v.numel() for v in trainer.masters.values())} parameters")
    trainer.backbone(chosen.seconds - chosen.draft_seconds - chosen.eval_seconds)
    trainer.write(chosen.out, {})
    trainer.draft(chosen.seconds - chosen.eval_seconds)
    trainer.write(chosen.out, {})
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.no_grad(), numerics.plain():
        weights = stored_values(trainer.shape, trainer.masters)
        result = measure(weights, trainer.compressed, trainer.shape, trainer.words,
                         chosen.items, trainer.say)
    result["training"] = {
        "seed": chosen.seed, "tokens": trainer.tokens, "steps": trainer.steps,
        "batch_tokens": chosen.batch, "rate": chosen.rate, "loss": trainer.history[-5:]}
    trainer.write(chosen.out, result)
    trainer.say("written")
    maker.wait()
    if chosen.keep_compiled:
        trainer.say(f"{compiled.save(chosen.out) / 2**20:.1f} MiB of compiled regions")
    trainer.say("done")


if __name__ == "__main__":
    main()
