"""The evaluation set: questions with held-out content, the right answers, and how to judge.

In: the tokenizer; eval_items.jsonl.xz of the checkpoint. Out: items; whether an answer is right.
Does not know: the network, the engine.
"""

import argparse
import json
import lzma
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer

from . import arithmetic, calls, facts, reading, recall, records, stories
from .document import Call, Document, Talk, Turn, render
from .tokenizer import FOLDER, encode
from .tokenizer import load as load_tokenizer
from .tokens import Ids, Mask, build

NAME = "eval_items.jsonl.xz"
SEED = 20_261_017
EFFORTS = {50: "low", 75: "high", 100: "max"}
PER_TASK = 200
STORIES = 60
SHORT_TOKENS = 600
DEPTHS = (0.1, 0.5, 0.9)
LONG_TOKENS = {"recall_1k": 1000, "recall_2k": 2000, "recall_4k": 4000, "recall_8k": 7900}
LONG_TEXTS, LONG_EACH = 4, 5


@dataclass(slots=True)
class Item:
    """One question: the ids before it is answered, the ids and the text of the right answer.

    `target` holds the reasoning of a thinking item, and the end of sentence. `check` is exact,
    contains (the words of `mentions`), json-equal or dsml-equal. `depth` is that of a long text.
    """

    task: str
    talk: Talk
    prompt: list[int]
    target: list[int]
    answer: str
    check: str
    mentions: tuple[str, ...]
    depth: float | None


def _direct(rng: Random) -> Document:
    while True:
        document = arithmetic.write(rng, "heldout", 0.0)
        if "step" not in document.talk.turns[0].question:
            return document


def _definition(rng: Random) -> Document:
    capitals = tuple(fact for fact in facts.general() if "capital" in fact.answer)
    known = facts.meanings() if rng.random() < 0.9 else capitals
    return facts.write(rng, "heldout", "facts", known)


WRITERS: dict[str, Callable[[Random], Document]] = {
    "story": lambda rng: stories.write(rng, "heldout"),
    "reading": lambda rng: reading.write(rng, "heldout"),
    "arithmetic_direct": _direct,
    "arithmetic_think": lambda rng: arithmetic.write(rng, "heldout", 1.0),
    "json": lambda rng: records.write(rng, "heldout"),
    "tools": lambda rng: calls.write_call(rng, "heldout"),
    # definitions and capitals are learned by heart: the fact was trained, this wording was not
    "definitions": _definition,
    "recall_short": lambda rng: recall.write(rng, "heldout", 16),
}


def _is_fit(task: str, document: Document) -> bool:
    talk = document.talk
    if talk.effort is not None and talk.effort not in EFFORTS:
        return False
    if task == "story":
        return len(document.mentions) >= 2
    return task != "recall_short" or len(document.text) < SHORT_TOKENS * 3


def documents() -> Iterator[tuple[str, float | None, Document]]:
    """All items as documents: task, depth, document; no question twice."""
    for task, write in WRITERS.items():
        rng = Random(f"{SEED} {task}")
        asked: set[str] = set()
        while len(asked) < (STORIES if task == "story" else PER_TASK):
            document = write(rng)
            question = document.talk.turns[0].question
            if question not in asked and _is_fit(task, document):
                asked.add(question)
                yield task, None, document
    for task, tokens in LONG_TOKENS.items():
        rng = Random(f"{SEED} {task}")
        for _ in range(LONG_TEXTS):
            for depth, document in recall.write_at_depths(rng, tokens, DEPTHS, LONG_EACH):
                yield task, depth, document


def record(task: str, depth: float | None, document: Document) -> dict[str, Any]:
    """One line of the file; messages and tools are spelled as a chat request has them."""
    talk, turn = document.talk, document.talk.turns[-1]
    messages = [{"role": "system", "content": talk.system}] if talk.system else []
    messages.append({"role": "user", "content": turn.question})
    row: dict[str, Any] = {"task": task, "messages": messages, "thinking": talk.effort is not None}
    if talk.effort is not None:
        row |= {"reasoning_effort": EFFORTS[talk.effort],
                "reasoning": turn.lead if turn.calls else turn.plan}
    if talk.tools:
        row |= {"tools": [{"type": "function", "function": tool} for tool in talk.tools],
                "calls": [{"name": call.tool, "arguments": call.arguments} for call in turn.calls]}
    if talk.schema:
        row["schema"] = talk.schema
    row |= {"answer": document.answer, "check": document.check}
    if document.mentions:
        row["mentions"] = list(document.mentions)
    if depth is not None:
        row["depth"] = depth
    return row


def item_of(row: dict[str, Any], tokenizer: Tokenizer) -> Item:
    """The item of one line of the file."""
    *before, user = row["messages"]
    effort = None
    if row["thinking"]:
        effort = next(number for number, name in EFFORTS.items() if name == row["reasoning_effort"])
    made = tuple(Call(call["name"], call["arguments"], "") for call in row.get("calls", ()))
    thought = row.get("reasoning", "")
    turn = Turn(user["content"], "" if made else row["answer"], "" if made else thought, made,
                thought if made else "")
    talk = Talk([turn], effort, before[0]["content"] if before else "",
                tuple(tool["function"] for tool in row.get("tools", ())), row.get("schema"))
    document = render(row["task"], talk)
    ids, _ = encode(tokenizer, document)
    prompt, _ = encode(tokenizer, Document(row["task"], document.prompt(), ""))
    return Item(row["task"], talk, prompt, ids[len(prompt):], row["answer"], row["check"],
                tuple(row.get("mentions", ())), row.get("depth"))


def load(path: Path | None = None, tokenizer: Tokenizer | None = None) -> list[Item]:
    """All items of the file, encoded."""
    tokenizer = tokenizer or load_tokenizer()
    with lzma.open(path or FOLDER / NAME, "rt", encoding="utf-8") as file:
        return [item_of(json.loads(line), tokenizer) for line in file]


def judge(item: Item, text: str) -> bool:
    """Whether a generated text, reasoning and `</think>` included, ends in the right answer."""
    final = text.rsplit("</think>", 1)[-1].strip()
    if item.check == "contains":
        words = set(re.findall(r"[a-z]+", final.lower()))
        return all(word.lower() in words or word.lower() in final.lower()
                   for word in item.mentions)
    if item.check == "json-equal":
        return is_json_equal(final, item.answer)
    if item.check == "dsml-equal":
        return parse_calls(final) == parse_calls(item.answer) != []
    return final == item.answer.strip()


def is_json_equal(text: str, wanted: str) -> bool:
    """Both are JSON and mean the same; 1 and true, or 1 and 1.0, do not."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return False
    return json.dumps(found, sort_keys=True) == json.dumps(json.loads(wanted), sort_keys=True)


_INVOKE = re.compile(r'<｜DSML｜ invoke name="([^"]*)">\n(.*?)</｜DSML｜ invoke>', re.DOTALL)
_PARAMETER = re.compile(r'<｜DSML｜ parameter name="([^"]*)" string="(true|false)">(.*?)'
                        r"</｜DSML｜ parameter>\n", re.DOTALL)


def parse_calls(text: str) -> list[tuple[str, dict[str, tuple[str, str]]]]:
    """The calls of a complete DSML block, else none."""
    text = text.strip()
    if not (text.startswith("<｜DSML｜ calls>\n") and text.endswith("\n</｜DSML｜ calls>")):
        return []
    return [(name, {key: (kind, value) for key, kind, value in _PARAMETER.findall(body)})
            for name, body in _INVOKE.findall(text)]


def heldout_tokens(seed: int = 7, tokens: int = 40_000) -> tuple[Ids, Mask]:
    """Held-out documents of the default mixture, for the loss of section 4."""
    return build(seed, tokens, 1, split="heldout")


def main() -> None:
    """Writes eval_items.jsonl.xz."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER / NAME)
    options = parser.parse_args()
    rows = [json.dumps(record(*entry), ensure_ascii=False) for entry in documents()]
    options.out.write_bytes(lzma.compress("".join(row + "\n" for row in rows).encode(),
                                          preset=9 | lzma.PRESET_EXTREME))
    print(f"{len(rows)} items, {options.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
