"""Conversations to token ids, and replies back to reasoning, content and tool calls.

In: messages in the OpenAI form. Out: a Prompt; pieces of content; a Message.
Does not know: sampling, the engine. The only module that knows `deepseek_recipe` (chat 1, 2).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from deepinfer.errors import RequestError
from deepinfer.text.stream import StopStrings, TextStream
from deepinfer.text.tokenizer import BadTokenizer, Tokenizer

NAME = "deepinfer"  # any name will do; it only picks the V4.1 format
EFFORTS = ("low", "high", "max")
DSML = "｜DSML｜"
CALLS_END = f"</{DSML} calls>"
_EFFORT_LINE = re.compile(r"\AReasoning Effort: (\d+) \(")


class BadConversation(RequestError):
    """A conversation cannot be rendered; the message says where and why."""


@dataclass(frozen=True)
class Prompt:
    """A rendered conversation: its ids, its text, and how the reply is to be read."""

    ids: tuple[int, ...]
    text: str
    request: Any
    has_tools: bool


@dataclass(frozen=True)
class ToolCall:
    """A call the model made; `arguments` is JSON text as far as it was written."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """A whole reply."""

    content: str
    reasoning_content: str | None
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str


def render(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    *,
    thinking: bool = False,
    effort: int | str | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: Any = None,
    response_format: Mapping[str, Any] | None = None,
) -> Prompt:
    """The prompt of a conversation (chat 1.1).

    effort  1..100 or low, high, max; only with thinking. Control ids come from the renderer alone:
            whatever a message spells is encoded as plain characters (chat 1.2).
    """
    import deepseek_recipe as recipe

    level, number = _effort(thinking, effort)
    body: dict[str, Any] = {
        "model": NAME,
        "messages": _openai_messages(messages),
        "thinking": {"type": "enabled" if thinking else "disabled"},
    }
    if thinking:
        body["reasoning_effort"] = level
    optional = {"tools": tools, "tool_choice": tool_choice, "response_format": response_format}
    body |= {name: value for name, value in optional.items() if value is not None}
    versions = {NAME: recipe.ModelVersion.DeepseekV41Flash}
    options = recipe.ConversionOptions().with_model_versions_by_name(versions)
    try:
        request = recipe.ChatCompletionRequest(_plain(body)).convert(options)
        rendered = recipe.DeepseekV41Encoding().render_conversation(request.conversation)
    except (recipe.ConversionError, ValueError, TypeError, UnicodeError, RecursionError) as cause:
        raise BadConversation(f"the conversation cannot be rendered: {cause}") from cause
    pieces = _pieces(rendered.prompt, rendered.special_ranges)
    if number is not None:
        pieces = _with_effort(pieces, number)
    text = "".join(piece for piece, _ in pieces)
    return Prompt(_ids(pieces, tokenizer), text, request, bool(tools))


def _effort(thinking: bool, effort: int | str | None) -> tuple[str, int | None]:
    """The recipe's word for an effort, and the number to put in its place."""
    if effort is None:
        return "high", None
    if not thinking:
        raise BadConversation(f"effort = {effort!r}: only with thinking=True")
    if isinstance(effort, str) and effort in EFFORTS:
        return effort, None
    if type(effort) is int and 1 <= effort <= 100:
        return "high", effort
    raise BadConversation(f"effort = {effort!r}: must be from 1 to 100, or {', '.join(EFFORTS)}")


def _openai_messages(messages: Any) -> list[dict[str, Any]]:
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence) or not messages:
        raise BadConversation("a conversation is a list of messages with at least one in it")
    made = []
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise BadConversation(f"message {place}: must be a mapping with a role and content")
        one = dict(message)
        if one["role"] == "developer":
            one["role"] = "system"
        if one["role"] == "assistant" and one.get("content") is None and one.get("tool_calls"):
            one["content"] = ""  # null content beside calls is nothing, not the word null
        made.append(one)
    if all(one["role"] == "system" for one in made):
        raise BadConversation("a conversation needs a message of the user; there is only system")
    return made


def _plain(body: dict[str, Any]) -> dict[str, Any]:
    """Plain JSON values; the library answers foreign objects with less clear words."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(body))
    except (TypeError, ValueError, RecursionError) as cause:
        raise BadConversation(f"the conversation holds values that are no JSON: {cause}") from cause
    return plain


def _pieces(prompt: str, ranges: Sequence[tuple[int, int]]) -> list[tuple[str, bool]]:
    """The prompt cut at control tokens: (text, is control)."""
    pieces, done = [], 0
    for begin, end in ranges:
        if begin > done:
            pieces.append((prompt[done:begin], False))
        pieces.append((prompt[begin:end], True))
        done = end
    if done < len(prompt):
        pieces.append((prompt[done:], False))
    return pieces


def _with_effort(pieces: list[tuple[str, bool]], number: int) -> list[tuple[str, bool]]:
    """The effort line, written behind the second control token, with our number."""
    place = next((at for at, (_, control) in enumerate(pieces) if not control), None)
    if place != 2 or not _EFFORT_LINE.match(pieces[2][0]):
        raise BadConversation(f"effort = {number}: the prompt has no effort line to put it in")
    line = _EFFORT_LINE.sub(f"Reasoning Effort: {number} (", pieces[2][0])
    return [*pieces[:2], (line, False), *pieces[3:]]


def _ids(pieces: Sequence[tuple[str, bool]], tokenizer: Tokenizer) -> tuple[int, ...]:
    ids: list[int] = []
    for text, control in pieces:
        ids += [tokenizer.id_of(text)] if control else tokenizer.encode(text)
    return tuple(ids)


def check_tokenizer(tokenizer: Tokenizer) -> None:
    """Every control token that a prompt may need exists; told at load, not at the first request."""
    import deepseek_recipe as recipe

    tokens, special = recipe.SpecialTokens(), recipe.SpecialToken
    names = ("Bos", "Eos", "ThinkingStart", "ThinkingEnd", "System", "User", "Assistant", "Dsml")
    known = tokenizer.control_tokens
    wanted = [tokens.token(getattr(special, name)) for name in names]
    missing = [token for token in wanted if token not in known]
    if missing:
        raise BadTokenizer(f"{tokenizer.file}: the chat format needs {', '.join(missing)}")


@lru_cache(maxsize=4)
def _decoder(file: str) -> Any:
    """The library's own tokenizer, shared by all replies."""
    import deepseek_recipe as recipe

    return recipe.Tokenizer.from_file(file)


class Assembler:
    """Words out for one chat reply: `push` ids, get content; at the end the whole Message."""

    def __init__(
        self,
        prompt: Prompt,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        include_stop: bool = False,
    ) -> None:
        import deepseek_recipe as recipe

        generator = recipe.ChatCompletionRequest.chunk_generator(prompt.request, "reply", NAME)
        options = prompt.request.parsing_options
        self._recipe, self._tokenizer = recipe, tokenizer
        self._processor = recipe.StreamProcessor(
            generator, options, _decoder(str(tokenizer.file))
        )
        self._stops = StopStrings(stop, include_stop)  # in content only (chat 1.4)
        # behind the calls block the parser swallows everything, so generation must end there
        self._raw = TextStream(tokenizer, (CALLS_END,) if prompt.has_tools else (), True, False)
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, dict[str, str]] = {}
        self._thinks = options.thinking_initial_stage is not None
        self.reasoning_tokens = 0
        self._take(self._processor.push(recipe.InferenceChunk.ready()))

    @property
    def stopped(self) -> bool:
        """A stop string was met in the content, or the calls block was closed."""
        return self._stops.stopped or self._raw.stopped

    def push(self, ids: Sequence[int]) -> str:
        """Content that these ids make final."""
        if self._processor.finished:
            return ""
        self._raw.push(ids)
        before = len(self._content)
        # begin, end and pad are no words; the parser would pass them on as text
        shown = [one for one in ids if not self._tokenizer.is_hidden(one)]
        self._take(self._processor.push(self._recipe.InferenceChunk.tokens(shown)))
        if self._thinks and len(self._content) == before:
            self.reasoning_tokens += len(ids)
        return self._fresh(before)

    def finish(self) -> str:
        """The content that was held back."""
        before = len(self._content)
        self._close()
        return self._fresh(before) + self._stops.finish()

    def message(self, finish_reason: str) -> Message:
        """The whole reply; arguments of a call that was cut stay as they are."""
        self._close()
        calls = tuple(ToolCall(**self._calls[place]) for place in sorted(self._calls))
        reason = "tool_calls" if calls and finish_reason == "stop" else finish_reason
        if calls and reason == "tool_calls" and not self._raw.stopped:
            reason = "stop"  # the block was never closed: a broken call is no call (chat 1.4)
        content = _cut(self._stops, "".join(self._content))
        return Message(content, "".join(self._reasoning) if self._thinks else None, calls, reason)

    def _close(self) -> None:
        if not self._processor.finished:
            self._take(self._processor.finish())

    def _fresh(self, before: int) -> str:
        return self._stops.push("".join(self._content[before:]))

    def _take(self, chunks: Sequence[Any]) -> None:
        for chunk in chunks:
            for choice in json.loads(chunk.to_json())["choices"]:
                delta = choice["delta"]
                if delta.get("content"):
                    self._content.append(delta["content"])
                if delta.get("reasoning_content"):
                    self._reasoning.append(delta["reasoning_content"])
                for call in delta.get("tool_calls") or ():
                    self._take_call(call)

    def _take_call(self, call: dict[str, Any]) -> None:
        one = self._calls.setdefault(call["index"], {"id": "", "name": "", "arguments": ""})
        function = call.get("function") or {}
        one["id"] += call.get("id") or ""
        one["name"] += function.get("name") or ""
        one["arguments"] += function.get("arguments") or ""


def _cut(stops: StopStrings, content: str) -> str:
    """The content up to the stop string that was met."""
    again = StopStrings(stops.words, stops.includes)
    return again.push(content) + again.finish()
