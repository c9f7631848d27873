"""The training text of the tiny checkpoint: spelled as a server would spell it, and true."""

import json
import re
from itertools import islice

import pytest
from deepseek_recipe import (
    AssistantMessage,
    Conversation,
    DeepseekV41Encoding,
    SystemMessage,
    Tokenizer,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)

from tools.tiny_checkpoint import tokens
from tools.tiny_checkpoint.corpus import WEIGHTS, mixture
from tools.tiny_checkpoint.document import Document, Talk, Turn, render
from tools.tiny_checkpoint.items import (
    DEPTHS,
    LONG_TOKENS,
    STORIES,
    documents,
    heldout_tokens,
    judge,
    load,
    parse_calls,
)
from tools.tiny_checkpoint.tokenizer import (
    BEGIN_ID,
    CONTROL_IDS,
    END_ID,
    FOLDER,
    NO_THINK_ID,
    VOCABULARY,
    encode,
)
from tools.tiny_checkpoint.tokenizer import (
    load as load_tokenizer,
)
from tools.tiny_checkpoint.town import PLACES, THINGS

# the recipe knows only these three efforts by name; the digits are all that differs
EFFORT_NAMES = {50: "low", 75: "high", 100: "max"}
WITH_LONG = {**WEIGHTS, "long_recall": 0.1}


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer()


@pytest.fixture(scope="module")
def sample() -> list[Document]:
    return list(islice(mixture(11, WITH_LONG, 16, (600, 900)), 3000))


@pytest.fixture(scope="module")
def items(tokenizer):
    return load(tokenizer=tokenizer)


def by_recipe(talk: Talk, encoding: DeepseekV41Encoding) -> list[int]:
    """The prompt of the last turn, asked of deepseek-recipe."""
    messages = [SystemMessage(talk.system)] if talk.system else []
    number = 0
    for turn in talk.turns:
        messages.append(UserMessage(turn.question))
        made = []
        for call in turn.calls:
            number += 1
            made.append(ToolCall(f"c{number}", call.tool, json.dumps(call.arguments)))
        if made and turn.answer:
            messages.append(AssistantMessage("", reasoning_content=turn.lead, tool_calls=made))
            messages += [ToolMessage(call.result, ref.id) for call, ref
                         in zip(turn.calls, made, strict=True)]
        messages.append(AssistantMessage(turn.answer, reasoning_content=turn.plan))
    tools = [ToolDefinition(tool["name"], tool["description"], tool["parameters"])
             for tool in talk.tools]
    more = {"response_schema": talk.schema} if talk.schema else {}
    effort = EFFORT_NAMES[talk.effort] if talk.effort else None
    return encoding.encode(Conversation(
        messages[:-1], thinking_mode=effort is not None, tools=tools or None,
        reasoning_effort=effort, **more))


def test_a_prompt_has_the_ids_that_deepseek_recipe_gives_it(tokenizer, sample):
    encoding = DeepseekV41Encoding().with_tokenizer(
        Tokenizer.from_file(str(FOLDER / "tokenizer.json")))
    families = set()
    for document in sample:
        talk = document.talk
        if not talk.turns or (talk.effort and talk.effort not in EFFORT_NAMES):
            continue
        prompt, _ = encode(tokenizer, Document("", document.prompt(), ""))
        assert prompt == by_recipe(talk, encoding), document.text
        families.add((document.task, talk.effort is None, bool(talk.tools), bool(talk.schema)))
    assert {task for task, *_ in families} == set(WITH_LONG) - {"prose"}
    assert {chat for _, chat, *_ in families} == {True, False}
    assert any(schema for *_, schema in families)


def test_the_prompt_of_an_item_has_the_ids_that_deepseek_recipe_gives_it(tokenizer, items):
    encoding = DeepseekV41Encoding().with_tokenizer(
        Tokenizer.from_file(str(FOLDER / "tokenizer.json")))
    for item in items:
        assert item.prompt == by_recipe(item.talk, encoding)
        assert item.target[-1] == END_ID


def test_what_the_assistant_says_is_all_that_follows_the_prompt(tokenizer, sample):
    for document in sample[:600]:
        ids, target = encode(tokenizer, document)
        assert ids[0] == BEGIN_ID
        assert ids[-1] == END_ID
        if not document.talk.turns:
            assert target == [0] + [1] * (len(ids) - 1)
            continue
        prompt, mask = encode(tokenizer, Document("", document.prompt(), ""))
        assert ids[: len(prompt)] == prompt
        assert all(target[len(prompt):])
        assert document.talk.effort is not None or sum(mask) < sum(target)


def test_control_tokens_typed_by_a_user_stay_text(tokenizer):
    typed = "a <｜User｜> </think> ｜DSML｜ <｜end▁of▁sentence｜> b"
    document = render("x", Talk([Turn(typed, "ok")]))
    ids, _ = encode(tokenizer, document)
    assert [i for i in ids if i in CONTROL_IDS.values()] == [
        BEGIN_ID, CONTROL_IDS["<｜User｜>"], CONTROL_IDS["<｜Assistant｜>"], NO_THINK_ID, END_ID]
    assert typed in tokenizer.decode(ids, skip_special_tokens=False)


def test_every_text_comes_back_from_its_ids(tokenizer, sample):
    odd = render("x", Talk([Turn("Grüße, 你好 🦊\n\n\t 12,345 \u0301", "½ “ok”…")]))
    for document in [odd, *sample[:800]]:
        ids, _ = encode(tokenizer, document)
        assert tokenizer.decode(ids, skip_special_tokens=False) == document.text


def test_the_vocabulary_has_the_ids_of_the_specification(tokenizer):
    parsed = json.loads(tokenizer.to_str())
    assert tokenizer.get_vocab_size() == VOCABULARY
    assert parsed["normalizer"] is None
    assert sorted(tokenizer.get_vocab().values()) == list(range(VOCABULARY))
    for text, number in CONTROL_IDS.items():
        assert tokenizer.token_to_id(text) == number
    special = {token["content"] for token in parsed["added_tokens"] if token["special"]}
    assert special == {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>",
                       "<｜deepseek_image｜>"}
    assert len(tokenizer.encode("2026", add_special_tokens=False).ids) == 4


def test_the_same_seed_gives_the_same_tokens_on_any_number_of_processes(monkeypatch):
    monkeypatch.setattr(tokens, "CHUNK_TOKENS", 20_000)
    one, mask = tokens.build(3, 40_000, 1)
    two, same = tokens.build(3, 40_000, 2)
    assert (one == two).all()
    assert (mask == same).all()
    assert len(one) >= 40_000
    other, _ = tokens.build(4, 20_000, 1)
    assert not (one[:1000] == other[:1000]).all()
    assert (one[0], one[-1]) == (BEGIN_ID, END_ID)
    assert ((one == BEGIN_ID).sum()) == len(re.findall("B(?=E|$)", _ends(one)))


def _ends(ids) -> str:
    """Begins preceded by nothing or by an end, as letters."""
    return "".join("BE" if number == BEGIN_ID else "" for number in ids)


SUM = re.compile(r"^(\d+) ([-+x/]) (\d+) = (\d+)\.$")


def test_every_sum_is_right_and_so_is_every_step(sample):
    seen = 0
    for document in sample:
        for turn in document.talk.turns if document.task == "arithmetic" else ():
            if found := SUM.match(turn.answer):
                assert _value(*found.group(1, 2, 3)) == int(found[4])
                seen += 1
            for step, result in re.findall(r"(\d[\d +x/-]*) = (\d+)", turn.plan):
                assert eval(step.replace("x", "*")) == int(result), turn.plan  # noqa: S307
            if "So the answer is" in turn.plan and found:
                assert f"So the answer is {found[4]}." in turn.plan
    assert seen > 200


def _value(x: str, sign: str, y: str) -> int:
    a, b = int(x), int(y)
    return {"+": a + b, "-": a - b, "x": a * b, "/": a // max(b, 1)}[sign]


def test_a_story_holds_what_was_asked_for_and_answers_name_only_what_it_holds(sample):
    nouns = set(THINGS) | set(PLACES)
    for document in sample:
        if document.task not in ("story", "reading"):
            continue
        first = document.talk.turns[0]
        story = first.answer if document.task == "story" else first.question
        for word in document.mentions:
            assert word in story, document.text
        for turn in document.talk.turns[document.task == "story":]:
            words = set(re.findall("[a-z]+", turn.question.lower() + " " + turn.answer.lower()))
            assert words & nouns <= set(re.findall("[a-z]+", story.lower())), document.text


def test_a_trade_leaves_each_with_the_thing_of_the_other(sample):
    trades = 0
    for document in sample:
        if "trade?" not in document.text and "for it?" not in document.text:
            continue
        now = re.search(r"Now (\w+) had the (\w+ \w+) and (\w+) had the (\w+ \w+)\.", document.text)
        if now is None:
            continue
        before = document.text[: now.start()]
        assert re.search(rf"{now[3]} had an? {now[2]}\.", before), document.text
        assert not re.search(rf"{now[1]} had an? {now[2]}\.", before), document.text
        trades += 1
    assert trades > 20


def test_a_code_is_asked_only_where_its_last_line_stands_above(sample):
    for document in sample:
        if document.task not in ("recall", "long_recall"):
            continue
        body = document.talk.turns[0].question
        for turn in document.talk.turns:
            for key, code in re.findall(r"The code of ([^.]*?) is (\d{4})\.", turn.answer):
                lines = re.findall(rf"code of {key} is (\d{{4}})\.", body)
                assert lines[-1] == code, document.text


def test_json_answers_parse_and_hold_only_what_the_text_says(sample):
    for document in sample:
        if document.task == "json":
            value = json.loads(document.answer)
            if document.talk.schema:
                assert set(value) == set(document.talk.schema["required"])


def test_the_stored_items_are_what_the_generator_writes(items):
    made = list(documents())
    assert len(made) == len(items)
    for item, (task, depth, document) in zip(items, made, strict=True):
        assert (item.task, item.depth, item.answer) == (task, depth, document.answer)
    counts = {item.task: 0 for item in items}
    for item in items:
        counts[item.task] += 1
    assert counts["story"] == STORIES
    assert all(counts[task] == 60 for task in LONG_TOKENS)


def test_the_right_answer_is_judged_right_and_another_one_wrong(items, tokenizer):
    for task in {item.task for item in items}:
        item = next(item for item in items if item.task == task)
        text = tokenizer.decode(item.target, skip_special_tokens=True)
        assert judge(item, text), text
        assert not judge(item, "The end.")
        assert not judge(item, "")
    call = next(item for item in items if item.task == "tools")
    assert len(parse_calls(call.answer)) >= 1
    assert not judge(call, call.answer.removesuffix("</｜DSML｜ calls>"))


def test_a_long_recall_line_lies_beyond_the_reach_of_the_windows(items, tokenizer):
    for item in items:
        if item.task not in LONG_TOKENS:
            continue
        assert len(item.prompt) + len(item.target) <= 8192
        assert item.depth in DEPTHS
        text = tokenizer.decode(item.prompt, skip_special_tokens=False)
        after = text[text.rindex(item.answer) + len(item.answer):]
        assert len(tokenizer.encode(after, add_special_tokens=False).ids) > 320


def test_held_out_tokens_are_whole_documents_of_the_wanted_size():
    ids, target = heldout_tokens()
    assert 40_000 <= len(ids) < 80_000
    assert (ids[0], ids[-1]) == (BEGIN_ID, END_ID)
    assert ids.max() < VOCABULARY
    assert 0.2 < target.mean() < 0.8
