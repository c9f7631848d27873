"""Rendering of conversations: exact prompts, efforts, tools, and faults with their place."""

from __future__ import annotations

import json
from pathlib import Path

import deepseek_recipe
import pytest

from deepinfer.text.chat import BadConversation, render
from deepinfer.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.load(Path(__file__).parents[2] / "checkpoints" / "tiny")
B, E = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
S, U, A = "<｜System｜>", "<｜User｜>", "<｜Assistant｜>"
D = "｜DSML｜"
R = (
    "Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)"
    "\n\n"
)
SYSTEM = {"role": "system", "content": "You are brief."}
HELLO = {"role": "user", "content": "Hello"}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALLS = f"""<{D} calls>
<{D} invoke name="get_weather">
<{D} parameter name="city" string="true">Paris</{D} parameter>
<{D} parameter name="x" string="false">[1, "a"]</{D} parameter>
</{D} invoke>
<{D} invoke name="get_weather">
<{D} parameter name="city" string="true">Rome</{D} parameter>
</{D} invoke>
</{D} calls>"""


def user(text):
    return {"role": "user", "content": text}


def said(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(number, arguments, name="get_weather"):
    function = {"name": name, "arguments": arguments}
    return {"id": str(number), "type": "function", "function": function}


def result(number, text):
    return {"role": "tool", "tool_call_id": str(number), "content": text}


TWO_CALLS = [call(1, '{"city": "Paris", "x": [1, "a"]}'), call(2, '{"city": "Rome"}')]
WEATHER = [
    user("Weather in Paris and Rome?"),
    said("", reasoning_content="Need both.", tool_calls=TWO_CALLS),
    result(2, "25 C"),
    result(1, "22 C"),
]


def text_of(messages, **options):
    """The prompt as text; its ids are held against the text and the library's own encoder."""
    prompt = render(messages, TOKENIZER, **options)
    assert TOKENIZER.decode(prompt.ids, skip_special=False) == prompt.text
    if not isinstance(options.get("effort"), int):
        library = deepseek_recipe.Tokenizer.from_file(str(TOKENIZER.file))
        encoding = deepseek_recipe.DeepseekV41Encoding().with_tokenizer(library)
        assert list(prompt.ids) == encoding.encode(prompt.request.conversation)
    return prompt.text


def tools_block():
    """The 1 KB of {T}, from the library itself: its strings are the contract."""
    from deepseek_recipe import Conversation, DeepseekV41Encoding, ToolDefinition, UserMessage

    function = TOOL["function"]
    tool = ToolDefinition(function["name"], function["description"], function["parameters"])
    talk = Conversation([UserMessage("x")], thinking_mode=False, tools=[tool])
    prompt = DeepseekV41Encoding().render_conversation(talk).prompt
    return prompt.removeprefix(B + S).removesuffix(f"{U}x{A}</think>")


def test_prompt_1_system_and_user_without_thinking():
    assert text_of([SYSTEM, HELLO]) == f"{B}{S}You are brief.{U}Hello{A}</think>"


def test_prompt_2_the_same_with_thinking():
    expected = f"{B}{S}{R}You are brief.{U}Hello{A}<think>"
    assert text_of([SYSTEM, HELLO], thinking=True) == expected


def test_prompt_3_old_reasoning_is_dropped_without_tools():
    talk = [
        user("1"),
        said("one", reasoning_content="hmm"),
        user("2"),
        said("two", reasoning_content="hmm"),
        user("3"),
    ]
    expected = f"{B}{S}{R}{U}1{A}</think>one{E}{U}2{A}</think>two{E}{U}3{A}<think>"
    assert text_of(talk, thinking=True) == expected


def test_prompt_4_tools_two_calls_and_their_results_in_call_order():
    block = tools_block()
    assert "get_weather" in block
    expected = (
        f"{B}{S}{R}{block}{U}Weather in Paris and Rome?{A}<think>Need both.</think>\n\n{CALLS}{E}"
        f"{U}<tool_result>22 C</tool_result>\n\n<tool_result>25 C</tool_result>{A}<think>"
    )
    assert text_of(WEATHER, thinking=True, tools=[TOOL]) == expected


def test_prompt_5_a_schema_for_the_answer():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    expected = (
        f"{B}{S}Sys\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema "
        f"to reply:\n{json.dumps(schema)}{U}1{A}</think>"
    )
    talk = [{"role": "system", "content": "Sys"}, user("1")]
    assert text_of(talk, response_format=wanted) == expected


def test_prompt_6_a_typed_image_placeholder_is_text():
    typed = "a <｜deepseek_image｜> b"
    prompt = render([user(typed)], TOKENIZER)
    assert prompt.text == f"{B}{U}{typed}{A}</think>"
    assert sum(one in TOKENIZER.control_ids for one in prompt.ids) == 4


def test_prompt_7_a_required_tool_opens_the_calls():
    expected = f"{B}{S}{tools_block()}{U}x{A}</think>\n\n<{D} calls>\n"
    assert text_of([user("x")], tools=[TOOL], tool_choice="required") == expected


def test_prompt_8_a_prefix_is_continued():
    talk = [user("Count"), said("One", reasoning_content="hmm", prefix=True)]
    expected = f"{B}{S}{R}{U}Count{A}<think>hmm</think>One"
    assert text_of(talk, thinking=True) == expected


@pytest.mark.parametrize("number", range(1, 101))
def test_a_number_takes_the_place_of_the_effort(number):
    expected = f"{B}{S}{R.replace('75', str(number))}{U}Hello{A}<think>"
    assert text_of([HELLO], thinking=True, effort=number) == expected


def test_a_typed_effort_line_is_not_touched():
    typed = [{"role": "system", "content": R}, user(R)]
    expected = f"{B}{S}{R.replace('75', '1')}{R}{U}{R}{A}<think>"
    assert text_of(typed, thinking=True, effort=1) == expected


def test_a_developer_is_a_system():
    developer = SYSTEM | {"role": "developer"}
    assert text_of([developer, HELLO]) == text_of([SYSTEM, HELLO])


def test_null_content_beside_calls_is_nothing_and_not_the_word_null():
    """BL-79"""
    empty = [WEATHER[0], said("", tool_calls=TWO_CALLS), *WEATHER[2:]]
    null = [WEATHER[0], said(None, tool_calls=TWO_CALLS), *WEATHER[2:]]
    absent = [WEATHER[0], {"role": "assistant", "tool_calls": TWO_CALLS}, *WEATHER[2:]]
    expected = text_of(empty, tools=[TOOL])
    assert text_of(null, tools=[TOOL]) == text_of(absent, tools=[TOOL]) == expected
    assert "null" not in expected


@pytest.mark.parametrize("text", ["a</tool_result>b", f"</{D} parameter>", f"{E}{U}x", "", "null"])
def test_results_and_arguments_are_rendered_as_the_official_encoder_does(text):
    """BL-79: closers and markers inside them stand as typed, and are text."""
    calls = [call(n, json.dumps({"city": text})) for n in (1, 2, 3)]
    talk = [user("x"), said(None, tool_calls=calls), *(result(n, text) for n in (1, 2, 3))]
    prompt = text_of(talk, tools=[TOOL])
    assert prompt.count(f"<tool_result>{text}</tool_result>") == 3
    assert prompt.count(f'string="true">{text}</{D} parameter>') == 3


@pytest.mark.parametrize("arguments", ['{"city": "Par', "{", "", "[1]", "nonsense"])
def test_cut_arguments_of_the_history_are_rendered_as_they_are(arguments):
    """A client sends back what it got when a call ran into the cap."""
    talk = [user("x"), said(None, tool_calls=[call(1, arguments)]), result(1, "r")]
    assert arguments in text_of(talk, tools=[TOOL])


def test_no_tool_is_offered_with_tool_choice_none():
    assert text_of([HELLO], tools=[TOOL], tool_choice="none") == text_of([HELLO])
    assert text_of([HELLO], tools=[]) == text_of([HELLO])


def test_neighboring_messages_and_parts_are_joined_by_an_empty_line():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert text_of([user(parts), user("c")]) == f"{B}{U}a\n\nb\n\nc{A}</think>"


def tool_named(name, **more):
    function = {"name": name, "parameters": {"type": "object", "properties": {}}, **more}
    return {"type": "function", "function": function}


def nested(depth):
    inner = {}
    for _ in range(depth):
        inner = {"a": inner}
    return inner


def image(url):
    return user([{"type": "image_url", "image_url": {"url": url}}])


AUDIO = user([{"type": "input_audio", "input_audio": {"data": "a", "format": "wav"}}])
BAD_MESSAGES = {
    "one result missing": ([*WEATHER[:3], HELLO], "tool_call"),
    "an image": ([SYSTEM, image("data:image/png;base64,aaaa")], r"messages\[1\].*image"),
    "a file": ([image("file:///etc/passwd")], r"messages\[0\].*image"),
    "audio": ([AUDIO], r"messages\[0\].*audio"),
    "reasoning that is a number": ([HELLO, said("x", reasoning_content=3)], "string"),
}
BAD_OPTIONS = {
    "a schema that is none": ({"tools": [tool_named("f", parameters=3)]}, "schema"),
    "a schema too deep": ({"tools": [tool_named("f", parameters=nested(200))]}, "depth"),
    "endless depth": ({"tools": [tool_named("f", parameters=nested(20_000))]}, "tools"),
    "strict and not": ({"tools": [tool_named("f", strict=True), tool_named("g")]}, "strict"),
    "a format that is a text": ({"response_format": "json"}, "format"),
}


@pytest.mark.parametrize(("messages", "reason"), BAD_MESSAGES.values(), ids=BAD_MESSAGES)
def test_what_a_message_cannot_say_is_refused(messages, reason):
    with pytest.raises(BadConversation, match=reason):
        render(messages, TOKENIZER, tools=[TOOL])


@pytest.mark.parametrize(("options", "reason"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_what_an_option_cannot_mean_is_refused(options, reason):
    with pytest.raises(BadConversation, match=f"(?i){reason}"):
        render([HELLO], TOKENIZER, **options)
