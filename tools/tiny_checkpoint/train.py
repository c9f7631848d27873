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
from .export import write_checkpoint
from .optimizer import Optimizer
from .shape import Shape, config_m, shape_of
from .steps import BackboneStep, DraftStep
from .weights import read_checkpoint, start_values, stored_values

ENGRAM = {"layers": (1, 4), "ngram": 4, "heads": 4, "vocab": 2000}


@dataclass(frozen=True)
class Phase:
    """A stretch of backbone training; `pattern` is how many steps of which set take turns."""

    pattern: tuple[tuple[str, int], ...]
    share: float  # of the backbone's training seconds
    dense: bool  # every visible entry instead of the top-k
    drop: float  # share of rows without Engram


PHASES = (
    Phase((("one", 1),), 0.04, True, 0.15),
    Phase((("two", 1),), 0.06, True, 0.15),
    Phase((("three", 1),), 0.10, True, 0.15),
    Phase((("four", 1),), 0.22, True, 0.12),
    Phase((("four", 1),), 0.16, False, 0.10),
    Phase((("four", 2), ("longest", 1)), 0.42, False, 0.03),
)
CONTINUED = (Phase((("four", 3), ("longest", 1)), 1.0, False, 0.03),)


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
            held = read_checkpoint(options.resume, self.shape)
            self.masters = {k: v.to(self.device) for k, v in held.items()}
        else:
            self.masters = start_values(self.shape, options.seed, self.device)
        for key, value in self.masters.items():
            value.requires_grad_(not key.endswith("gate.bias"))
        self.chosen = [i for i in take(items.load(), min(24, options.items), 2300)
                       if i.task not in FREE_TASKS]
        self.tokens = self.steps = 0
        self.history: list[dict] = []
        self.logged, self.counted = time.monotonic(), 0
        self.trained = self.total = 0.0  # seconds
        self.feeds: dict[str, Feed] = {}

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
        """All phases; the learning rate follows the share of training seconds that is over."""
        optimizer = self.optimizer(False)
        phases = CONTINUED if self.options.resume else PHASES
        for phase in phases:
            self._phase(phase, optimizer, until)
            self.say(f"phase {phase.pattern} ends, {self.steps} steps, "
                     f"{self.tokens / 1e6:.1f} M tokens")
            self.watch()

    def _phase(self, phase: Phase, optimizer: Optimizer, until: float) -> None:
        turns: list[tuple[Feed, BackboneStep]] = []
        for name, count in phase.pattern:
            feed = self.feed(name)
            length = feed.ids.shape[1]
            rows = max(1, self.options.batch // length)
            step = BackboneStep(self.part(False), optimizer, self.compressed, self.shape, rows,
                                length, phase.dense)
            step.drop.fill_(phase.drop)
            for _ in range(3):  # compile and record before the clock of this phase runs
                self._step(feed, step, optimizer)
            self._report(step, optimizer)
            turns += [(feed, step)] * count
        began = time.monotonic()
        if self.total == 0:  # the first phase is compiled: what is left is for training
            self.total = until - (began - self.began) - self.options.compile_seconds
        before, here = self.trained, 0
        while self.trained - before < phase.share * self.total:
            self._step(*turns[here % len(turns)], optimizer)
            here += 1
            if here % 100 == 0:
                self._report(turns[here % len(turns)][1], optimizer)
            self.trained = before + time.monotonic() - began
            late = time.monotonic() - self.began > until
            if late or 0 < self.options.max_steps <= here:
                break
        if self.options.profile and phase is PHASES[0]:
            self.profile(turns[0][1])

    def feed(self, name: str) -> "Feed":
        """One data set, loaded once."""
        if name not in self.feeds:
            self.feeds[name] = Feed(self.options.data, name, self.device, 300)
            self.say(f"data {name}: waited {self.feeds[name].waited:.1f} s")
        return self.feeds[name]

    def _step(self, feed: "Feed", step: BackboneStep, optimizer: Optimizer) -> None:
        share = self.trained / self.total if self.total else 0.0
        optimizer.rate.fill_(self.rate(share))
        step.speed.fill_(0.002 if share < 0.6 else 0.0005 if share < 0.9 else 0.0)
        rows, length = step.ids.shape
        step.run(*feed.next(rows))
        self.steps += 1
        self.tokens += rows * length
        if self.steps % 8 == 0 and self.device == "cuda":
            torch.cuda.synchronize()  # the clock counts finished steps, not queued ones

    def profile(self, step: BackboneStep) -> None:
        """Which kernels one uncaptured step spends its time in."""
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CUDA]
        ) as seen:
            step.run.body()
            torch.cuda.synchronize()
        events = sorted(seen.key_averages(), key=lambda e: -e.self_device_time_total)
        self.say(f"{sum(e.self_device_time_total for e in events) / 1e3:.1f} ms on the device")
        for event in events[:45]:
            print(f"{event.self_device_time_total / 1e3:8.2f} ms {event.count:5d} x "
                  f"{event.key[:110]}", flush=True)

    def rate(self, share: float) -> float:
        """Warm up by steps, hold, then fall to 2 % by the share of training seconds."""
        hold = 0.05 if self.options.resume else 0.35
        fall = min(1.0, max(0.0, (share - hold) / (1 - hold)))
        return self.options.rate * min(1.0, (self.steps + 1) / 300) * (1 - 0.98 * fall)

    def _report(self, step: BackboneStep, optimizer: Optimizer) -> None:
        loss = step.loss.item()
        now = time.monotonic()
        speed = (self.tokens - self.counted) / (now - self.logged)
        self.say(f"step {self.steps} {step.ids.shape[1]} loss {loss:.4f} index "
                 f"{step.index_loss.item():.3f} norm {optimizer.norm.item():.2f} load "
                 f"{step.loads.min().item():.3f}..{step.loads.max().item():.3f} rate "
                 f"{optimizer.rate.item():.1e} {speed / 1e6:.3f} M tokens/s")
        self.history.append({"step": self.steps, "tokens": self.tokens, "loss": loss})
        self.logged, self.counted = now, self.tokens
        if math.isnan(loss):
            raise ArithmeticError(f"the loss is not a number at step {self.steps}")

    @torch.no_grad()
    def watch(self) -> None:
        """The dashboard: accuracies by task with the masters as they are."""
        began = time.monotonic()
        weights = stored_values(self.shape, self.part(False))
        with numerics.plain():
            shown = dashboard(weights, self.chosen, self.compressed, self.shape)
        self.say("  " + " ".join(f"{k}={v:.2f}" for k, v in shown.items())
                 + f" ({time.monotonic() - began:.1f} s)")

    def draft(self, until: float) -> None:
        """Train the stages on the frozen backbone."""
        with torch.no_grad():
            frozen = stored_values(self.shape, self.part(False))
        optimizer = self.optimizer(True)
        feed = self.feed("four")
        length = feed.ids.shape[1]
        rows = max(1, self.options.batch // length)
        step = DraftStep(frozen, self.part(True), optimizer, self.compressed, self.shape, rows,
                         length, self.options.batch // 8)
        first = time.monotonic() - self.began
        here = 0
        while time.monotonic() - self.began < until:
            share = (time.monotonic() - self.began - first) / max(1.0, until - first)
            fall = min(1.0, max(0.0, (share - 0.3) / 0.7))
            optimizer.rate.fill_(self.options.rate * min(1.0, (here + 1) / 30)
                                 * (1 - 0.98 * fall))
            step.run(*feed.next(rows))
            here += 1
            if here in (1, 2, 3, 10) or here % 40 == 0:
                hits = " ".join(f"{h:.3f}" for h in step.hits.tolist())
                self.say(f"draft step {here} loss {step.loss.item():.4f} hits {hits} norm "
                         f"{optimizer.norm.item():.2f} broken {step.broken.item():.4f}")
            if 0 < self.options.max_steps <= here:
                return

    def write(self, folder: Path, result: dict) -> None:
        """Shards as files, the small files as one archive."""
        small = folder.parent / "small"
        write_checkpoint(self.masters, self.shape, self.config, small)
        for shard in small.glob("*.safetensors"):
            shard.replace(folder / shard.name)
        (small / "eval.json").write_text(json.dumps(result, indent=1) + "\n")
        with tarfile.open(folder / "small.tar.gz", "w:gz") as archive:
            for file in sorted(small.iterdir()):
                archive.add(file, file.name)


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
    parser.add_argument("--sets", nargs="*", default=[], help="NAME=FACTOR, see prepare.py")
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--max-steps", type=int, default=0, help="per phase, for probes")
    parser.add_argument("--resume", type=Path, help="checkpoint to continue from")
    parser.add_argument("--compile-seconds", type=float, default=50, help="for later phases")
    parser.add_argument("--profile", action="store_true")
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
        sys.executable, "-m", "tools.tiny_checkpoint.prepare", str(chosen.data), *chosen.sets,
        "--processes", str(chosen.processes), "--seed", str(chosen.seed)])
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
                         chosen.items, trainer.say,
                         lambda found: trainer.write(chosen.out, found))
    result["training"] = {
        "seed": chosen.seed, "tokens": trainer.tokens, "steps": trainer.steps,
        "batch_tokens": chosen.batch, "rate": chosen.rate, "is_continued": bool(chosen.resume),
        "seconds": chosen.seconds, "loss": trainer.history[-5:]}
    trainer.write(chosen.out, result)
    trainer.say("written")
    maker.wait()
    if chosen.keep_compiled:
        trainer.say(f"{compiled.save(chosen.out) / 2**20:.1f} MiB of compiled regions")
    trainer.say("done")


if __name__ == "__main__":
    main()
