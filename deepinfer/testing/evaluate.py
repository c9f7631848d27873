"""Repeats a checkpoint's recorded evaluation with the engine and prints both columns.

In: a model folder with `eval_items.jsonl.xz` and `eval.json`, a platform. Out: a report with gates.
Does not know: how the model was trained.
"""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from deepinfer.engine.sequence import Entry
from deepinfer.engine.sequence import Sequence as Tokens
from deepinfer.engine.start import House
from deepinfer.errors import ModelError, UsageError
from deepinfer.model import drafter
from deepinfer.open import Opened, load_model, plan_model
from deepinfer.settings import Settings
from deepinfer.text import chat
from deepinfer.text.tokenizer import Tokenizer

ITEMS, RECORDED, HELDOUT = "eval_items.jsonl.xz", "eval.json", "heldout.json.xz"
SHORT = (
    "reading",
    "arithmetic_direct",
    "arithmetic_think",
    "json",
    "tools",
    "definitions",
    "recall_short",
    "recall_1k",
)
# points that an engine may lose against the record (tiny checkpoint specification, section 4)
POINTS = {"reading": 2, "json": 2, "recall_short": 2, "story": 2}
QUICK_ITEMS, QUICK_TASKS = 6, ("story", *SHORT[:7])
STORY_TOKENS = 320


class NoEvaluation(ModelError):
    """The model ships no evaluation set."""


@dataclass(frozen=True)
class Score:
    """One figure: what the record says, what this engine found on `items` items, and the gate."""

    task: str
    unit: str
    items: int
    recorded: float | None
    found: float
    gate: float | None

    @property
    def is_good(self) -> bool:
        """Within the gate; without one a figure is only reported."""
        return self.gate is None or self.found >= self.gate


@dataclass(frozen=True)
class Report:
    """All figures of one run."""

    model: str
    platform: str
    plan_id: str
    scores: tuple[Score, ...]

    @property
    def is_good(self) -> bool:
        """Every figure within its gate."""
        return bool(self.scores) and all(score.is_good for score in self.scores)

    def to_json(self) -> str:
        """The same as a document."""
        whole = {"model": self.model, "platform": self.platform, "plan": self.plan_id}
        scores = [asdict(score) | {"good": score.is_good} for score in self.scores]
        return json.dumps(whole | {"good": self.is_good, "scores": scores}, indent=2)

    def __str__(self) -> str:
        rows = [f"{'task':<20}{'items':>6}{'recorded':>10}{'engine':>10}{'gate':>8}  unit"]
        for score in self.scores:
            recorded = "-" if score.recorded is None else f"{score.recorded:.3f}"
            gate = "-" if score.gate is None else f"{score.gate:.3f}"
            rows.append(
                f"{score.task:<20}{score.items:>6}{recorded:>10}{score.found:>10.3f}{gate:>8}  "
                f"{score.unit}{'' if score.is_good else '  BELOW'}"
            )
        verdict = "good" if self.is_good else "below a gate"
        return "\n".join(
            [*rows, f"{self.model} on {self.platform} · plan {self.plan_id} · {verdict}"]
        )


def evaluate(
    model: str, platform: str, tasks: Sequence[str], limit: int | None, quick: bool
) -> Report:
    """Runs the chosen tasks; `quick` takes a few items of the short ones."""
    settings = Settings.load({"platform": platform, "max_num_seqs": 16})
    opened = plan_model(model, settings, drafts=True)
    items = _items(opened.folder)
    recorded = _recorded(opened.folder)
    known = {item["task"] for item in items}
    unknown = sorted(set(tasks) - known)
    if unknown:
        raise UsageError(f"{unknown[0]}: no such task; there are {', '.join(sorted(known))}")
    wanted = list(tasks) or [t for t in known if not quick or t in QUICK_TASKS]
    count = limit or (QUICK_ITEMS if quick else None)
    house, tokenizer = load_model(opened)
    bench = Bench(opened, house, tokenizer)
    scores = []
    for task in sorted(wanted, key=lambda one: (one != "story", one.startswith("recall"), one)):
        chosen = _spread([item for item in items if item["task"] == task], count)
        scores += (
            bench.stories(chosen, recorded)
            if task == "story"
            else [bench.exact(task, chosen, recorded)]
        )
    if not tasks and (opened.folder / HELDOUT).is_file():
        scores.append(bench.heldout(recorded, 2000 if quick else None))
    return Report(str(model), platform, opened.planned.plan.id, tuple(scores))


def _items(folder: Path) -> list[dict[str, Any]]:
    file = folder / ITEMS
    if not file.is_file():
        raise NoEvaluation(f"{folder}: no {ITEMS}; this model ships no evaluation set")
    with lzma.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _recorded(folder: Path) -> dict[str, Any]:
    file = folder / RECORDED
    found: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return found


def _spread(items: list[dict[str, Any]], count: int | None) -> list[dict[str, Any]]:
    """`count` items at equal distances: the set is sorted by kind of question."""
    if count is None or count >= len(items):
        return items
    return [items[place * len(items) // count] for place in range(count)]


class Bench:
    """Measures on a house: teacher-forced answers, generated stories, drafts, held-out loss."""

    def __init__(self, opened: Opened, house: House, tokenizer: Tokenizer) -> None:
        self.opened, self.house, self.tokenizer = opened, house, tokenizer
        self._blocks = house.planned.geometry.blocks

    def exact(self, task: str, items: list[dict[str, Any]], recorded: dict[str, Any]) -> Score:
        """Share of items whose whole answer is the argmax at every place: what greedy would say."""
        hits = 0
        for item in _shown(items, task):
            prompt, whole = self._ids(item)
            logits = self._logits(whole[:-1], len(whole) - len(prompt))
            hits += int(logits.argmax(-1).tolist() == whole[len(prompt) :])
        found = hits / max(len(items), 1)
        was = recorded.get("exact", {}).get(task)
        return Score(
            task, "share of answers exact", len(items), was, found, _gate(task, was, items)
        )

    def _ids(self, item: dict[str, Any]) -> tuple[list[int], list[int]]:
        options: dict[str, Any] = {"thinking": item.get("thinking", False)}
        options["effort"] = item.get("reasoning_effort")
        options["tools"] = item.get("tools")
        if item.get("schema") is not None:
            options["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": item["schema"]},
            }
        prompt = chat.render(item["messages"], self.tokenizer, **options)
        answer = self._answer(item)
        return list(prompt.ids), [*prompt.ids, *answer, self.tokenizer.eos_id]

    def _answer(self, item: dict[str, Any]) -> list[int]:
        """Ids of the expected reply: reasoning, its end, content or calls (chat 1.1)."""
        ids: list[int] = []
        if item.get("thinking"):
            ids += self.tokenizer.encode(item.get("reasoning", ""))
            ids.append(self.tokenizer.id_of("</think>"))
        if item.get("calls"):
            return ids + self._calls(item["calls"])
        return ids + self.tokenizer.encode(item["answer"])

    def _calls(self, calls: list[dict[str, Any]]) -> list[int]:
        mark = self.tokenizer.id_of("｜DSML｜")
        lines = ["\n\n<\0 calls>\n"]
        for call in calls:
            lines.append(f'<\0 invoke name="{call["name"]}">\n')
            for name, value in call["arguments"].items():
                text = value if isinstance(value, str) else json.dumps(value)
                kind = str(isinstance(value, str)).lower()
                lines.append(f'<\0 parameter name="{name}" string="{kind}">{text}</\0 parameter>\n')
            lines.append("</\0 invoke>\n")
        lines.append("</\0 calls>")
        ids: list[int] = []
        for place, piece in enumerate("".join(lines).split("\0")):
            ids += [mark] * (place > 0) + self.tokenizer.encode(piece)
        return ids

    def _logits(self, ids: list[int], wanted: int) -> torch.Tensor:
        """Logits of the last `wanted` places of a sequence, in chunks: [wanted, vocabulary]."""
        sequence = Tokens(ids, 0, list(range(1, self._blocks)))
        step, parts = self.opened.step_tokens, []
        for first in range(0, len(ids), step):
            rows = min(step, len(ids) - first)
            inside = max(0, first + rows - max(first, len(ids) - wanted))
            parts.append(self._forward([Entry(sequence, first, rows, inside)]))
        return torch.cat(parts)

    def _forward(self, entries: list[Entry]) -> torch.Tensor:
        rows = sum(entry.rows for entry in entries)
        with torch.inference_mode(), self.house.table.blaming():
            batch = self.house.tray.batch(entries)
            return self.house.model.at(rows).forward(batch, self.house.caches).logits

    def stories(self, items: list[dict[str, Any]], recorded: dict[str, Any]) -> list[Score]:
        """Greedy stories: whether names and nouns of the prompt occur; drafts accepted a step."""
        kept, ended, accepted, steps = 0, 0, 0, 0
        for item in _shown(items, "story"):
            prompt = list(chat.render(item["messages"], self.tokenizer).ids)
            ids, runs = self._speculate(prompt)
            text = self.tokenizer.decode(ids).lower()
            kept += all(word.lower() in text for word in item["mentions"])
            ended += ids[-1] == self.tokenizer.eos_id
            accepted, steps = accepted + sum(runs), steps + len(runs)
        was = recorded.get("generated", {}).get("stories", {})
        share, rate = kept / max(len(items), 1), accepted / max(steps, 1)
        drafts = was.get("accepted_per_step")
        return [
            Score(
                "story",
                "share that keeps names and nouns",
                len(items),
                was.get("judged_right"),
                share,
                _gate("story", was.get("judged_right"), items),
            ),
            Score(
                "story ends",
                "share that ends by itself",
                len(items),
                None if "reached_limit" not in was else 1 - was["reached_limit"],
                ended / max(len(items), 1),
                None,
            ),
            Score(
                "drafts",
                "accepted per step of 5",
                steps,
                drafts,
                rate,
                None if drafts is None else 0.9 * drafts,
            ),
        ]

    def _speculate(self, prompt: list[int]) -> tuple[list[int], list[int]]:
        """Greedy text, one token a step, and how many drafts each verification would accept."""
        house, noise = self.house, self.opened.shape.dspark_noise_token_id
        assert house.drafter is not None
        sequence = Tokens(list(prompt), 0, list(range(1, self._blocks)))
        output: list[int] = []
        proposals: dict[int, list[int]] = {}
        first = 0
        with torch.inference_mode(), house.table.blaming():
            while len(output) < STORY_TOKENS:
                rows = len(sequence.tokens) - first
                batch = house.tray.batch([Entry(sequence, first, rows, 1)])
                passed = house.model.at(rows).forward(batch, house.caches, features=True)
                assert passed.features is not None
                drafter.keep_context(
                    house.drafter, house.model, passed.features, batch, house.caches
                )
                first = len(sequence.tokens)
                output.append(int(passed.logits[0].argmax()))
                sequence.tokens.append(output[-1])
                if output[-1] == self.tokenizer.eos_id:
                    break
                block = house.tray.draft_batch([Entry(sequence, first, 1, 0)], noise)
                drafts = drafter.draft(house.drafter, house.model, block, house.caches)
                proposals[len(output)] = drafts.ids[0].tolist()
        return output, _accepted(output, proposals)

    def heldout(self, recorded: dict[str, Any], count: int | None) -> Score:
        """Bits per byte over held-out documents, each from its begin token."""
        with lzma.open(self.opened.folder / HELDOUT, "rt") as file:
            documents: list[list[int]] = json.load(file)
        nats, size, tokens = 0.0, 0, 0
        for ids in _shown(documents, "heldout"):
            if count is not None and tokens >= count:
                break
            logits = self._logits(ids[:-1], len(ids) - 1).double()
            want = torch.tensor(ids[1:])
            nats += float(torch.nn.functional.cross_entropy(logits, want, reduction="sum"))
            size += len(self.tokenizer.decode(ids).encode())
            tokens += len(ids)
        was = recorded.get("heldout", {}).get("bits_per_byte")
        found = nats / math.log(2) / max(size, 1)
        # bits per byte are better when lower: the gate is on their negative
        return Score(
            "bits per byte",
            "negative, all tokens",
            tokens,
            None if was is None else -was,
            -found,
            None if was is None or count is not None else -1.005 * was,
        )


def _accepted(output: list[int], proposals: dict[int, list[int]]) -> list[int]:
    """Length of the accepted run of each verification, jumping as a drafting engine would."""
    runs, place = [], 1
    while place in proposals:
        left = output[place:]
        run = 0
        for draft, token in zip(proposals[place], left, strict=False):
            if draft != token:
                break
            run += 1
        runs.append(run)
        place += run + 1
    return runs


def _gate(task: str, recorded: float | None, items: list[Any]) -> float | None:
    """The record minus the allowed points, and minus two deviations of so few items."""
    if recorded is None:
        return None
    noise = 2 * math.sqrt(max(recorded * (1 - recorded), 0.01) / max(len(items), 1))
    return max(
        0.0, recorded - POINTS.get(task, 5 if task.startswith("recall") else 3) / 100 - noise
    )


def _shown(items: Sequence[Any], name: str) -> Iterable[Any]:
    console = Console(stderr=True)
    return track(items, name, console=console, disable=not console.is_terminal)
