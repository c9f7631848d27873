"""The gates of the checkpoint, measured with the training code's own quantized forward pass.

In: stored weights, evaluation items. Out: a dictionary that becomes eval.json.
Does not know: how the weights came about. Specification tiny_checkpoint.md section 4.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from . import items, network
from .generate import Answer, speculate
from .items import Item
from .numerics import Numerics
from .packing import pack_rows
from .shape import Shape
from .steps import TRAINING

EXACT = Numerics()
FREE_TASKS = ("story",)  # many right answers: judged by what is generated
STORY_LIMIT = 320
ANSWER_LIMIT = 160
DEFINITIONS = {
    "bits_per_byte": "cross-entropy of every token after the first of each held-out document, "
                     "prompts included, over the UTF-8 bytes of the decoded documents without "
                     "special tokens",
    "exact": "share of items whose whole answer, thinking and end token included, is the argmax "
             "at every position given the right tokens before (equals greedy exact match)",
    "ablation": "the same with every layer attending to its window only",
    "accepted_per_step": "drafts accepted per verification, greedy, block of 5, until the end "
                         "token",
}

Weights = dict[str, Tensor]


def batches(chosen: list[Item], shape: Shape, tokens: int) -> Iterable[tuple[list[Item], int]]:
    """Items of similar length together, with the padded length."""
    chosen = sorted(chosen, key=lambda item: len(item.prompt) + len(item.target))
    held: list[Item] = []
    length = 0
    for item in chosen:
        need = len(item.prompt) + len(item.target)
        padded = -(-need // shape.window) * shape.window
        # dense scores grow with the square of the length
        if held and (len(held) + 1) * padded * max(1, padded // 1024) > tokens:
            yield held, length
            held = []
        held.append(item)
        length = padded
    if held:
        yield held, length


@torch.no_grad()
def exact_match(
    weights: Weights, chosen: list[Item], compressed: Tensor, shape: Shape, n: Numerics,
    tokens: int = 65536,
) -> dict[str, list[bool]]:
    """Whether each item's answer is the argmax everywhere, by task."""
    device = compressed.device
    found = defaultdict(list)
    for held, length in batches(chosen, shape, tokens):
        rows = torch.full((len(held), length), 2, dtype=torch.int64)
        places, wanted, owner = [], [], []
        for row, item in enumerate(held):
            whole = torch.tensor([*item.prompt, *item.target])
            rows[row, : len(whole)] = whole
            first = row * length + len(item.prompt) - 1
            places += range(first, first + len(item.target))
            wanted += item.target
            owner += [row] * len(item.target)
        packed = network.pack(rows.to(device), compressed, shape)
        result = network.forward(weights, packed, shape, n)
        hidden = result.hidden[torch.tensor(places, device=device)]
        wrong = network.logits(weights, hidden, n).argmax(-1).cpu() != torch.tensor(wanted)
        missed = torch.zeros(len(held)).index_add_(0, torch.tensor(owner), wrong.float())
        for item, misses in zip(held, missed.tolist(), strict=True):
            found[item.task].append(misses == 0)
    return dict(found)


def take(chosen: list[Item], count: int, longest: int = 10**9) -> list[Item]:
    """The first `count` items of every task, none longer than `longest` tokens."""
    held = defaultdict(list)
    for item in chosen:
        if len(held[item.task]) < count and len(item.prompt) + len(item.target) <= longest:
            held[item.task].append(item)
    return [item for group in held.values() for item in group]


def shares(found: dict[str, list[bool]]) -> dict[str, float]:
    return {task: sum(hits) / len(hits) for task, hits in sorted(found.items())}


def dashboard(
    weights: Weights, chosen: list[Item], compressed: Tensor, shape: Shape
) -> dict[str, float]:
    """A quick look while training, with fast numerics."""
    return shares(exact_match(weights, chosen, compressed, shape, TRAINING))


@torch.no_grad()
def bits_per_byte(
    weights: Weights, compressed: Tensor, shape: Shape, words: Tokenizer, n: Numerics,
    count: int = 40_000,
) -> dict[str, float]:
    """Held-out loss over packed documents (see DEFINITIONS)."""
    ids, target = items.heldout_tokens(tokens=count)
    rows, marks = pack_rows(ids, target, 1024)
    size = sum(len(words.decode(row[mark > 0].tolist()).encode())
               for row, mark in zip(rows.astype(int), marks, strict=True))
    nats, tokens, answered, answer_nats = 0.0, 0, 0, 0.0
    for first in range(0, len(rows), 16):
        part = torch.from_numpy(rows[first : first + 16].astype("int64")).to(compressed.device)
        mark = torch.from_numpy(marks[first : first + 16]).to(compressed.device)
        packed = network.pack(part, compressed, shape)
        result = network.forward(weights, packed, shape, n)
        scores = network.logits(weights, result.hidden, n)
        loss = F.cross_entropy(scores, part.roll(-1, 1).flatten(), reduction="none")
        ahead = mark.roll(-1, 1)
        ahead[:, -1] = 0
        ahead = ahead.flatten()
        nats += loss[ahead > 0].sum().item()
        tokens += int((ahead > 0).sum())
        answer_nats += loss[ahead == 2].sum().item()
        answered += int((ahead == 2).sum())
    return {"bits_per_byte": nats / math.log(2) / size, "nats_per_token": nats / tokens,
            "nats_per_answer_token": answer_nats / answered, "tokens": tokens, "bytes": size}


def write_answers(
    weights: Weights, chosen: list[Item], limit: int, compressed: Tensor, shape: Shape,
    n: Numerics,
) -> list[Answer]:
    """Greedy answers with drafts, in batches of prompts of similar length."""
    order = sorted(range(len(chosen)), key=lambda i: len(chosen[i].prompt))
    answers: list[Answer | None] = [None] * len(chosen)
    for first in range(0, len(order), 64):
        part = order[first : first + 64]
        prompts = [list(chosen[i].prompt) for i in part]
        for i, answer in zip(part, speculate(weights, prompts, limit, compressed, shape, n),
                             strict=True):
            answers[i] = answer
    return [answer for answer in answers if answer is not None]


def generated(
    weights: Weights, chosen: list[Item], compressed: Tensor, shape: Shape, words: Tokenizer,
    n: Numerics,
) -> dict:
    """Stories that keep their nouns, drafts accepted per step, answers that never end."""
    result: dict = {}
    accepted: list[int] = []
    unended = total = 0
    stories = [i for i in chosen if i.task in FREE_TASKS]
    others = [i for i in chosen if i.task not in FREE_TASKS and len(i.prompt) < 700]
    groups = (("stories", stories, STORY_LIMIT), ("answers", others, ANSWER_LIMIT))
    for name, group, limit in groups:
        answers = write_answers(weights, group, limit, compressed, shape, n)
        texts = [words.decode(a.ids, skip_special_tokens=True) for a in answers]
        good = [items.judge(i, t) for i, t in zip(group, texts, strict=True)]
        steps = [count for a in answers for count in a.accepted]
        by_task = defaultdict(list)
        for item, is_right in zip(group, good, strict=True):
            by_task[item.task].append(is_right)
        result[name] = {
            "items": len(group), "judged_right": sum(good) / max(1, len(good)),
            "accepted_per_step": sum(steps) / max(1, len(steps)), "steps": len(steps),
            "by_task": shares(by_task),
            "reached_limit": sum(not a.ended for a in answers) / max(1, len(answers)),
            "samples": [words.decode(list(i.prompt) + a.ids, skip_special_tokens=False)
                        for i, a in list(zip(group, answers, strict=True))[:6]],
        }
        accepted += steps
        unended += sum(not a.ended for a in answers)
        total += len(answers)
    result["accepted_per_step"] = sum(accepted) / max(1, len(accepted))
    result["reached_limit"] = unended / max(1, total)
    return result


def measure(
    weights: Weights, compressed: Tensor, shape: Shape, words: Tokenizer, count: int,
    say: Callable[[str], None], save: Callable[[dict], None],
) -> dict:
    """All figures of eval.json; `save` gets what is known after each part."""
    result: dict = {"definitions": DEFINITIONS}
    result["heldout"] = bits_per_byte(weights, compressed, shape, words, EXACT)
    say(f"held out: {result['heldout']}")
    chosen = take(items.load(), count)
    graded = [i for i in chosen if i.task not in FREE_TASKS]
    short = [i for i in graded if len(i.prompt) < 3000]
    result["exact"] = shares(exact_match(weights, short, compressed, shape, EXACT))
    say(f"exact: {result['exact']}")
    recall = [i for i in graded if i.task.startswith("recall") and len(i.prompt) > 330]
    lone = replace(EXACT, compressed=False)
    result["ablation"] = shares(
        exact_match(weights, [i for i in recall if len(i.prompt) < 3000], compressed, shape, lone))
    say(f"without compressed attention: {result['ablation']}")
    save(result)
    few = take([i for i in chosen if i.task in FREE_TASKS], min(count, 128))
    few += take([i for i in graded if len(i.prompt) < 700], min(count, 24))
    result["generated"] = generated(weights, few, compressed, shape, words, EXACT)
    brief = {k: v for k, v in result["generated"].items() if not isinstance(v, dict)}
    say(f"generated: {brief} " + " ".join(
        f"{name}: right {part['judged_right']:.3f} accepted {part['accepted_per_step']:.2f}"
        for name, part in result["generated"].items() if isinstance(part, dict)))
    save(result)
    long = [i for i in graded if len(i.prompt) >= 3000]
    result["exact"] |= shares(exact_match(weights, long, compressed, shape, EXACT))
    result["ablation"] |= shares(exact_match(weights, long, compressed, shape, lone))
    say(f"long: { {k: v for k, v in result['exact'].items() if k.startswith('recall')} }")
    result["items"] = {task: sum(i.task == task for i in chosen)
                       for task in sorted({i.task for i in chosen})}
    return result
