"""Where tool calls end: the watch sees what the parser sees, however the text is cut."""

from __future__ import annotations

import deepseek_recipe as recipe
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deepinfer.text.calls import CALLS, DSML, INVOKE, MARK, PARAMETER, REPLY, CallsWatch

TOOL = {"type": "function", "function": {"name": "w", "parameters": {"type": "object"}}}
BLOCK = (
    f'<{DSML} calls>\n<{DSML} invoke name="w">\n<{DSML} parameter name="a" string="true">v'
    f"</{DSML} parameter>\n</{DSML} invoke>\n</{DSML} calls>"
)
PROBE = BLOCK.replace('"w"', '"probe"').removeprefix(f"<{DSML} calls>\n")
SOUP = [
    f"<{DSML} calls>\n",
    f"</{DSML} calls>",
    f"<{DSML}tool_calls>",
    f"</{DSML}tool_calls>",
    f"</{DSML} tool_calls>",
    f"</{DSML}xcalls>",
    f'<{DSML} invoke name="w">\n',
    f'<{DSML}invoke name="a>b">',
    f"<{DSML} invoke>",
    f"</{DSML} invoke>\n",
    f'<{DSML} parameter name="a" string="true">',
    f'<{DSML}parameter name="b<" string="false">',
    f"</{DSML} parameter>\n",
    f"<{DSML} foo>",
    f"</{DSML} foo>",
    f"</{DSML}",
    "x",
    "<",
    "</",
]


def is_read(text: str) -> bool:
    """Whether the parser would still read a call behind this text."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [TOOL]}
    body["thinking"] = {"type": "disabled"}
    versions = {"m": recipe.ModelVersion.DeepseekV41Flash}
    options = recipe.ConversionOptions().with_model_versions_by_name(versions)
    request = recipe.ChatCompletionRequest(body).convert(options)
    generator = recipe.ChatCompletionRequest.chunk_generator(request, "i", "m")
    processor = recipe.StreamProcessor(generator, request.parsing_options)
    chunks = processor.push(recipe.InferenceChunk.ready())
    chunks += processor.push(recipe.InferenceChunk.text(text + PROBE, 1)) + processor.finish()
    return any('"name":"probe"' in one.to_json() for one in chunks)


def watched(pieces: list[str], depth: int = REPLY) -> CallsWatch:
    watch = CallsWatch(depth)
    for piece in pieces:
        watch.push(piece.replace(DSML, MARK))
    return watch


def in_letters(text: str) -> list[str]:
    """A control token cannot be cut."""
    return list(text.replace(DSML, MARK))


@settings(deadline=None, max_examples=400)
@given(st.lists(st.sampled_from(SOUP), max_size=9).map("".join))
@example(BLOCK)
@example(f"the end is </{DSML} calls> they say")
@example(BLOCK.replace(" calls", "tool_calls"))
@example(BLOCK.replace(">v<", f">v</{DSML} calls><"))
def test_the_calls_are_closed_exactly_when_the_parser_swallows_what_follows(text):
    """BL-77: a closing marker of the calls inside a value closes the value, not the calls."""
    watch = watched([text])
    assert is_read(text) == (not watch.is_closed and watch.depth in (REPLY, CALLS))


@settings(deadline=None)
@given(st.lists(st.sampled_from(SOUP), max_size=9).map("".join))
def test_the_watch_does_not_depend_on_the_cut(text):
    whole, letters = watched([text]), watched(in_letters(text))
    assert (whole.depth, whole.is_closed) == (letters.depth, letters.is_closed)


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        ("just text < here", REPLY),
        (f"<{DSML} calls>", CALLS),
        (f'<{DSML} invoke name="w">', INVOKE),
        (BLOCK[: BLOCK.index(">v") + 2], PARAMETER),
        (BLOCK[: BLOCK.index(f"</{DSML} invoke")], INVOKE),
        (BLOCK[: BLOCK.rindex(f"</{DSML} calls")], CALLS),
    ],
)
def test_depth_tells_what_a_reply_ended_in(text, depth):
    assert watched(in_letters(text)).depth == depth


def test_a_prompt_that_opened_the_calls_begins_inside():
    rest = BLOCK.removeprefix(f"<{DSML} calls>\n")
    assert watched(in_letters(rest), CALLS).is_closed


def test_markup_that_is_only_spelled_is_text():
    watch = CallsWatch()
    watch.push(BLOCK)
    assert (watch.depth, watch.is_closed) == (REPLY, False)


def test_long_text_is_not_kept():
    watch = watched([f"<{DSML} calls>", f"<{DSML} ", *["no tag " * 100] * 50])
    assert len(watch._tail) < 5000
