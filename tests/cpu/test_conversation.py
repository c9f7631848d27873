"""Faults of a conversation: each is refused with its place and its reason, none is dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer.errors import RequestError
from deepinfer.text.chat import EFFORTS, BadConversation, render
from deepinfer.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.load(Path(__file__).parents[2] / "checkpoints" / "tiny")
HELLO = {"role": "user", "content": "Hello"}
TOOL = {"type": "function", "function": {"name": "w", "parameters": {"type": "object"}}}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "22"}


def user(content: object) -> dict:
    return {"role": "user", "content": content}


def called(name: str = "w", arguments: object = '{"city": "Rome"}') -> dict:
    function = {"name": name, "arguments": arguments}
    calls = [{"id": "c1", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "at least one"),
        ("Hello", "is a list of messages"),
        (None, "is a list of messages"),
        ([{"role": "system", "content": "x"}], "there is only system"),
        ([HELLO, "Hello"], r"messages\[1\]: must be a mapping with a role"),
        ([HELLO, {"content": "x"}], r"messages\[1\]: must be a mapping with a role"),
        ([HELLO, {"role": "user"}], r"messages\[1\]: .*missing field `content`"),
        ([HELLO, user(None)], r"messages\[1\]: .*content should be"),
        ([HELLO, user(5)], r"messages\[1\]: .*content should be"),
        ([HELLO, user(b"x")], r"messages\[1\]: holds a value that is no JSON"),
        ([HELLO, user("a\ud800"), HELLO], r"messages\[1\]: .*surrogate"),
        ([HELLO, {"role": "bob", "content": "x"}, HELLO], r"messages\[1\]: .*variant `bob`"),
        ([HELLO, {"role": "assistant", "content": None}], r"messages\[1\]: .*tool_calls must be"),
        ([HELLO, RESULT], r"messages\[1\]: .*role 'tool' must be"),
        ([HELLO, called(), HELLO], r"messages\[1\]: .*must be followed by tool messages"),
        ([HELLO, called(), RESULT | {"content": None}], r"messages\[2\]: .*content should be"),
        ([HELLO, called() | {"tool_calls": []}], r"messages\[1\]"),
        ([HELLO, {"role": "assistant", "content": "a", "prefix": True}, HELLO], r"messages\[2\]: "),
        ([user([{"type": "text", "text": "a"}, {"type": "image_url"}])],
         r"messages\[0\]\.content\[1\]: a part of type 'image_url'; only text is read"),
        ([user(["a"])], r"messages\[0\]\.content\[0\]: a part of type None"),
    ],
)
def test_a_bad_message_is_refused_with_its_place_and_the_reason(messages, said):
    with pytest.raises(BadConversation, match=said):
        render(messages, TOKENIZER, tools=[TOOL])
    assert issubclass(BadConversation, RequestError)


def test_the_place_is_found_in_a_long_history_too():
    history = [HELLO, {"role": "assistant", "content": "Hi"}] * 40
    for place in (0, 1, 38, 79):
        spoiled = [*history[:place], user(None), *history[place:]]
        with pytest.raises(BadConversation, match=rf"^messages\[{place}\]: "):
            render(spoiled, TOKENIZER)


@pytest.mark.parametrize("call", [called('a"b'), called(arguments='{"ci\\"ty": "Rome"}')])
def test_a_name_that_the_markup_cannot_hold_is_refused(call):
    """BL-79: a quotation mark would end the name and the rest would be read as markup."""
    said = r"messages\[1\]\.tool_calls\[0\]\.function: the name"
    with pytest.raises(BadConversation, match=said):
        render([HELLO, call, RESULT], TOKENIZER, tools=[TOOL])


@pytest.mark.parametrize("arguments", ["{", "", "not json", "[1]", '"a"', '{"a": 1'])
def test_arguments_that_were_cut_can_be_sent_back(arguments):
    """BL-79: a reply that ended inside a call must not poison the rest of the conversation."""
    prompt = render([HELLO, called(arguments=arguments), RESULT], TOKENIZER, tools=[TOOL])
    assert "<tool_result>22</tool_result>" in prompt.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tools": [TOOL, TOOL]}, "Tool names must be unique"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, r"tools\[0\].function"),
        ({"tools": "w"}, "expected a sequence"),
        ({"tools": [5]}, "invalid type: integer"),
        ({"tools": [TOOL], "tool_choice": "some"}, "expected one of `none`, `auto`, `required`"),
        ({"tools": [TOOL], "tool_choice": "required", "thinking": True}, "Thinking mode"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "z"}}}, "'z'"),
        ({"tool_choice": "required"}, "there are no tools to choose from"),
        ({"response_format": {"type": "json_object"}}, "the word 'json'"),
        ({"response_format": {"type": "xml"}}, "unknown variant `xml`"),
        ({"response_format": {"type": "regex", "regex": "a+"}}, "regex needs a grammar"),
        ({"response_format": {"type": "text", "x": float("nan")}}, "response_format: .*no JSON"),
    ],
)
def test_a_bad_option_is_refused_and_no_message_is_blamed(options, said):
    with pytest.raises(BadConversation, match=said) as caught:
        render([HELLO, {"role": "assistant", "content": "Hi"}, HELLO], TOKENIZER, **options)
    assert "messages[" not in str(caught.value)


@pytest.mark.parametrize("effort", [0, 101, -1, "25", "", "none", "HIGH", 25.0, True, [25]])
def test_a_bad_effort_is_refused_with_the_allowed_values(effort):
    """BL-80."""
    with pytest.raises(BadConversation, match="from 1 to 100, or minimal, low, medium, high"):
        render([HELLO], TOKENIZER, thinking=True, effort=effort)


def test_an_effort_without_thinking_is_refused():
    with pytest.raises(BadConversation, match="only with thinking=True"):
        render([HELLO], TOKENIZER, effort=25)


def test_words_for_efforts_mean_the_numbers_of_the_specification():
    """BL-80; chat 1.1: low 50, high 75, max 100, and the words of other protocols for them."""
    numbers = dict(zip(EFFORTS, (50, 50, 75, 75, 75, 100, 100), strict=True))
    for word, number in numbers.items():
        named = render([HELLO], TOKENIZER, thinking=True, effort=word)
        assert f"Reasoning Effort: {number} (" in named.text
        assert named.ids == render([HELLO], TOKENIZER, thinking=True, effort=number).ids


def test_the_callers_messages_are_not_changed():
    talk = [{"role": "developer", "content": "Be kind."}, HELLO, called(), RESULT]
    before = [dict(one) for one in talk]
    render(talk, TOKENIZER, tools=[TOOL])
    assert talk == before
