"""Replies read back: reasoning, content and calls, the same however the ids are cut."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path

import pytest

from deepinfer.engine.request import Request
from deepinfer.sample.params import SamplingParams
from deepinfer.text.calls import DSML
from deepinfer.text.chat import Assembler, Message, Prompt, render
from deepinfer.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.load(Path(__file__).parents[2] / "checkpoints" / "tiny")
ASK = [{"role": "user", "content": "Weather?"}]
TOOL = {"type": "function", "function": {"name": "w", "parameters": {"type": "object"}}}
PLAIN, THINKING = render(ASK, TOKENIZER), render(ASK, TOKENIZER, thinking=True)
CALLING = render(ASK, TOKENIZER, tools=[TOOL])
BOTH = render(ASK, TOKENIZER, tools=[TOOL], thinking=True)


def call(value: str, kind: str = "true", name: str = "w") -> str:
    return (
        f'<{DSML} invoke name="{name}">\n<{DSML} parameter name="city" string="{kind}">{value}'
        f"</{DSML} parameter>\n</{DSML} invoke>\n"
    )


def calls(*written: str) -> str:
    return f"\n\n<{DSML} calls>\n{''.join(written)}</{DSML} calls>"


PARIS = calls(call("Paris"))
# values that end in what looks like the beginning of a closing marker, and pieces of markers
HARD = ["", "<", "2>&1", "</", "2>&1<", f"<{DSML}", f"<{DSML} x>", "</think"]
HARD += ["a\nb", 'q"uo\\te', "é😀"]
REPLIES = [
    *((CALLING, "Let me see." + calls(call(value))) for value in HARD),
    *((BOTH, "Hmm.</think>" + calls(call(value))) for value in HARD[:4]),
    (BOTH, "I think" + PARIS),
    (CALLING, calls(call("Paris"), call("[1, 2]", "false"))),
    (CALLING, calls(call("notjson", "false", "undeclared"))),
    (CALLING, f"the marker </{DSML} calls> is text here"),
    (CALLING, calls(call(f"x</{DSML} calls>y"))),
    (CALLING, PARIS.replace(" calls", "tool_calls")),
    (CALLING, call("Paris") + "more"),
    (CALLING, f"hm\n\n<{DSML} calls>\ngarbage</{DSML} calls>"),
    (CALLING, ("Hi" + PARIS)[:-30]),
    (CALLING, ("Hi" + PARIS)[:-60]),
    (THINKING, "Long thought"),
    (THINKING, "ends in </thi"),
    (THINKING, "thought</think>\n\nAnswer <b> 😀"),
    (PLAIN, "a<think>b</think>c"),
    (PLAIN, "no tools" + PARIS + " tail"),
    (PLAIN, "Just text. é 😀 日本"),
]


def by_letter(text: str) -> list[int]:
    """Control tokens, and for the rest ids so small that every border of letters is a cut."""
    ids = []
    for one in re.findall(f"{DSML}|</?think>|.", text, re.DOTALL):
        ids += TOKENIZER.encode(one, parse_special=True)
    return ids


def read(prompt: Prompt, pieces: list[list[int]], reason: str = "stop", **options) -> Message:
    reply = Assembler(prompt, TOKENIZER, **options)
    shown = ""
    for piece in pieces:
        shown += reply.push(piece)
    if not reply.stopped:
        shown += reply.finish()
    message = reply.message(reason)
    assert message.content == shown
    parts = reply.parts()
    for kind, whole in (
        ("content", shown),
        ("reasoning", message.reasoning_content or ""),
        ("tool_call", "".join(one.arguments for one in message.tool_calls)),
    ):
        assert "".join(part.text for part in parts if part.kind == kind) == whole
    return message


def seen(message: Message) -> tuple:
    """Everything but the random ids of the calls."""
    made = [(one.name, one.arguments, one.is_whole) for one in message.tool_calls]
    return message.content, message.reasoning_content, made, message.finish_reason


@pytest.mark.parametrize(("prompt", "text"), REPLIES, ids=range(len(REPLIES)))
def test_a_reply_cut_at_every_letter_is_the_same_message(prompt, text):
    """BL-77: and with control tokens as ids, in one push, in two, by twos and threes."""
    ids = TOKENIZER.encode(text, parse_special=True)
    whole = seen(read(prompt, [ids]))
    assert seen(read(prompt, [[one] for one in by_letter(text)])) == whole
    for size in (1, 2, 3):
        pieces = [ids[at : at + size] for at in range(0, len(ids), size)]
        assert seen(read(prompt, pieces)) == whole
    for cut in range(len(ids)):
        assert seen(read(prompt, [ids[:cut], ids[cut:]])) == whole


def test_there_are_thirty_replies_and_all_kinds_occur():
    whole = [read(prompt, [by_letter(text)]) for prompt, text in REPLIES]
    assert len(whole) >= 30
    assert {one.finish_reason for one in whole} == {"stop", "tool_calls"}
    assert any(one.reasoning_content for one in whole)
    assert any(len(one.tool_calls) == 2 for one in whole)


@pytest.mark.parametrize(("value", "thinks"), [*product(HARD, (False, True))])
def test_arguments_are_the_value_that_was_written(value, thinks):
    """BL-77: also a value that ends like a marker, with reasoning before it."""
    text = ("Hmm.</think>" if thinks else "") + calls(call(value))
    message = read(BOTH if thinks else CALLING, [by_letter(text)])
    assert [json.loads(one.arguments) for one in message.tool_calls] == [{"city": value}]
    assert message.finish_reason == "tool_calls"
    assert message.content == ""
    assert message.reasoning_content == ("Hmm." if thinks else None)


@pytest.mark.parametrize("cut", [TOKENIZER.encode, by_letter])
def test_a_marker_that_is_only_spelled_is_part_of_the_value(cut):
    """BL-77, BL-79: the control token opens and closes, its letters do not."""
    value = f"a</{DSML} parameter>\n</{DSML} invoke>\n</{DSML} calls>b"
    letters = [number for one in value for number in TOKENIZER.encode(one)]
    begin, end = calls(call("*")).split("*")
    typed = TOKENIZER.encode(value) if cut is TOKENIZER.encode else letters
    message = read(CALLING, [[*by_letter(begin), *typed, *by_letter(end)]])
    assert json.loads(message.tool_calls[0].arguments) == {"city": value}
    assert message.finish_reason == "tool_calls"


def test_the_reply_stops_at_the_end_of_the_calls_and_takes_no_id_behind_it():
    ids = TOKENIZER.encode("Hi" + PARIS, parse_special=True)
    tail = TOKENIZER.encode(" and on and on" + PARIS, parse_special=True)
    reply = Assembler(CALLING, TOKENIZER)
    assert reply.push([*ids, *tail]) == "Hi"
    assert reply.stopped
    assert reply.ids_through == len(ids)
    assert len(reply.message("stop").tool_calls) == 1


@pytest.mark.parametrize("choice", ["none", None])
def test_without_tools_the_markup_is_content_and_nothing_stops(choice):
    prompt = render(ASK, TOKENIZER, tools=[TOOL] if choice else None, tool_choice=choice)
    text = "Hi" + PARIS + " tail"
    reply = Assembler(prompt, TOKENIZER)
    assert reply.push(by_letter(text)) + reply.finish() == text
    assert not reply.stopped


def test_a_required_call_begins_inside_the_calls():
    prompt = render(ASK, TOKENIZER, tools=[TOOL], tool_choice="required")
    assert prompt.text.endswith(f"</think>\n\n<{DSML} calls>\n")
    message = read(prompt, [by_letter(PARIS.removeprefix(f"\n\n<{DSML} calls>\n"))])
    assert [one.name for one in message.tool_calls] == ["w"]
    assert message.finish_reason == "tool_calls"


def test_a_call_that_was_cut_is_never_given_out_as_a_call_to_make():
    """The cap swept through a call: the reason is what ended the reply, and the call says so."""
    ids = TOKENIZER.encode("Hi" + PARIS, parse_special=True)
    for length, reason in product(range(len(ids)), ("stop", "length")):
        message = read(CALLING, [ids[:length]], reason)
        whole = [json.loads(one.arguments) for one in message.tool_calls if one.is_whole]
        assert whole in ([], [{"city": "Paris"}])
        assert (message.finish_reason == "tool_calls") == (bool(whole) and reason == "stop")
        if not whole:
            assert message.finish_reason == reason


def test_stop_strings_are_looked_for_in_content_only():
    """BL-76: neither in reasoning nor in arguments."""
    stop = {"stop": ["X"]}
    message = read(THINKING, [by_letter("aXb</think>cXd")], **stop)
    assert (message.reasoning_content, message.content) == ("aXb", "c")
    message = read(CALLING, [by_letter("Hi" + calls(call("X")))], **stop)
    assert (message.content, json.loads(message.tool_calls[0].arguments)) == ("Hi", {"city": "X"})
    assert read(PLAIN, [by_letter("aXb")], stop=["X"], include_stop=True).content == "aX"


def test_nothing_behind_a_stop_string_is_read():
    """BL-74: a call in the same push as the stop string is no call."""
    for pieces in ([by_letter("aXb" + PARIS)], [[one] for one in by_letter("aXb" + PARIS)]):
        message = read(CALLING, pieces, stop=["X"])
        assert (message.content, message.tool_calls, message.finish_reason) == ("a", (), "stop")


@pytest.mark.parametrize("text", ["aX" + PARIS, f"aX\n\n<{DSML} calls>\ngarbage</{DSML} calls>"])
def test_what_a_stop_string_held_back_is_shown_before_the_calls(text):
    """BL-76: the flush is not lost when the reply ends at the calls."""
    assert read(CALLING, [by_letter(text)], stop=["XYZ"]).content == "aX"


def test_the_end_token_never_shows():
    """BL-76: not in the stream, not in the message."""
    ids = [*by_letter("Hello"), TOKENIZER.eos_id, TOKENIZER.pad_id]
    assert read(PLAIN, [ids]).content == "Hello"
    assert read(PLAIN, [[one] for one in ids], stop=["X" * 20]).content == "Hello"


def test_reasoning_has_its_own_field_even_when_it_was_cut():
    """BL-80: a budget that ends inside the reasoning."""
    reply = Assembler(THINKING, TOKENIZER)
    ids = TOKENIZER.encode("Let me think about")
    assert reply.push(ids) + reply.finish() == ""
    message = reply.message("length")
    assert message.reasoning_content == "Let me think about"
    assert (message.content, message.finish_reason) == ("", "length")
    assert reply.reasoning_tokens == len(ids)
    assert read(PLAIN, [ids]).reasoning_content is None


def test_reasoning_tokens_are_counted_up_to_the_end_of_the_reasoning():
    reply = Assembler(BOTH, TOKENIZER)
    thought = TOKENIZER.encode("Hmm, well")
    reply.push([*thought, *TOKENIZER.encode("</think>Hi" + PARIS, parse_special=True)])
    reply.message("stop")
    assert reply.reasoning_tokens == len(thought)


def test_looking_at_a_running_reply_does_not_end_it():
    reply = Assembler(THINKING, TOKENIZER)
    reply.push(by_letter("Hm"))
    assert reply.message("abort").reasoning_content == "Hm"
    assert reply.push(by_letter("m</think>Yes")) + reply.finish() == "Yes"
    assert reply.message("stop").reasoning_content == "Hmm"


def test_parts_come_in_the_order_they_were_written():
    reply = Assembler(BOTH, TOKENIZER, stop=["!!"])
    reply.push(by_letter("Hm</think>Hi!" + PARIS))
    kinds = [part.kind for part in reply.parts()]
    assert kinds == sorted(kinds, key=["reasoning", "content", "tool_call"].index)
    assert reply.parts() == []


def test_two_replies_to_one_prompt_do_not_mix():
    first, second = Assembler(CALLING, TOKENIZER), Assembler(CALLING, TOKENIZER)
    for one, other in zip(by_letter("Hi" + PARIS), by_letter("No" + PARIS), strict=True):
        first.push([one])
        second.push([other])
    assert (first.message("stop").content, second.message("stop").content) == ("Hi", "No")


def test_a_request_that_ends_at_its_calls_says_stop_with_the_cap_left():
    words = Assembler(CALLING, TOKENIZER)
    params = SamplingParams(max_tokens=500)
    request = Request(0, [5], params, (TOKENIZER.eos_id,), lambda: words, 600)
    for one in by_letter("Hi" + PARIS + "swallowed"):
        request.take(one, None)
        if request.finish_reason is not None:
            break
    assert (request.finish_reason, request.text) == ("stop", "Hi")
    assert words.message("stop").finish_reason == "tool_calls"
