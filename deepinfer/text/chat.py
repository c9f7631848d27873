"""Conversations to token ids, and replies back to reasoning, content and tool calls.

In: messages in the OpenAI form. Out: a Prompt; pieces of content; a Message.
Does not know: sampling, the engine. The only module that knows `deepseek_recipe` (chat 1, 2).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from deepinfer.text.calls import CALLS, DSML, INVOKE, MARK, REPLY, CallsWatch
from deepinfer.text.conversation import BadConversation as BadConversation
from deepinfer.text.conversation import checked_messages, plain
from deepinfer.text.stream import StopStrings, TextStream
from deepinfer.text.tokenizer import BadTokenizer, Tokenizer

NAME = "deepinfer"  # any name will do; it only picks the V4.1 format
EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max", "ultra")
_EFFORT_LINE = re.compile(r"\AReasoning Effort: (\d+) \(")


@dataclass(frozen=True)
class Prompt:
    """A rendered conversation: its ids, its text, and how the reply is to be read."""

    ids: tuple[int, ...]
    text: str
    request: Any


@dataclass(frozen=True)
class Part:
    """A piece of a reply; `kind` is reasoning, content or tool_call (then a piece of arguments)."""

    kind: str
    text: str


@dataclass(frozen=True)
class ToolCall:
    """A call the model made; `arguments` is JSON text as far as it was written.

    `is_whole` is false for a call that the reply ended in.
    """

    id: str
    name: str
    arguments: str
    is_whole: bool = True


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

    effort  1..100 or one of EFFORTS; only with thinking. Control ids come from the renderer alone:
            whatever a message spells is encoded as plain characters (chat 1.2).
    """
    check_tokenizer(tokenizer)
    level, number = _effort(thinking, effort)
    body: dict[str, Any] = {
        "model": NAME,
        "messages": checked_messages(messages),
        "thinking": {"type": "enabled" if thinking else "disabled"},
    }
    if thinking:
        body["reasoning_effort"] = level
    optional = {"tools": tools, "tool_choice": tool_choice, "response_format": response_format}
    body |= {name: plain(name, value) for name, value in optional.items() if value is not None}
    _check_options(body)
    request, rendered = _rendered(body)
    pieces = _pieces(rendered.prompt, _control_ranges(rendered, tokenizer))
    if number is not None:
        pieces = _with_effort(pieces, number)
    text = "".join(piece for piece, _ in pieces)
    return Prompt(_ids(pieces, tokenizer), text, request)


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


def _check_options(body: dict[str, Any]) -> None:
    """Wishes that the library would drop without a word (chat 1.5)."""
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none") and not body.get("tools"):
        raise BadConversation(f"tool_choice = {choice!r}: there are no tools to choose from")
    wanted = body.get("response_format")
    if isinstance(wanted, dict) and wanted.get("type") == "regex":
        raise BadConversation("response_format: regex needs a grammar, this version has none")


def _rendered(body: dict[str, Any]) -> tuple[Any, Any]:
    """The library's request and rendered prompt; its refusals get the place of the fault."""
    import deepseek_recipe as recipe

    versions = {NAME: recipe.ModelVersion.DeepseekV41Flash}
    options = recipe.ConversionOptions().with_model_versions_by_name(versions)
    try:
        request = recipe.ChatCompletionRequest(body).convert(options)
        return request, recipe.DeepseekV41Encoding().render_conversation(request.conversation)
    except (recipe.ConversionError, ValueError, TypeError, RecursionError) as cause:
        reason = str(cause)
        raise BadConversation(f"{_place(body, reason)}{reason}") from cause


def _place(body: dict[str, Any], reason: str) -> str:
    """Which message the library meant, found by asking again with fewer; most reasons do not say.

    A fault stays when later messages are taken away, so the shortest conversation that is refused
    for the same reason ends at the fault.
    """
    if "messages[" in reason or "tools[" in reason:
        return ""
    messages = body["messages"]
    first, last = 1, len(messages)
    while first < last:
        middle = (first + last) // 2
        if _refusal(body | {"messages": messages[:middle]}) == reason:
            last = middle
        else:
            first = middle + 1
    bare = {"model": NAME, "thinking": body["thinking"], "messages": messages[:first]}
    if _refusal(bare) == reason:
        return f"messages[{first - 1}]: "
    return ""  # the fault is in tools, tool_choice or response_format, which the reason names


def _refusal(body: dict[str, Any]) -> str | None:
    import deepseek_recipe as recipe

    versions = {NAME: recipe.ModelVersion.DeepseekV41Flash}
    options = recipe.ConversionOptions().with_model_versions_by_name(versions)
    try:
        recipe.ChatCompletionRequest(body).convert(options)
    except (recipe.ConversionError, ValueError, TypeError, RecursionError) as cause:
        return str(cause)
    return None


def _control_ranges(rendered: Any, tokenizer: Tokenizer) -> list[tuple[int, int]]:
    """Where the renderer wrote control tokens.

    It also marks grounding tokens such as <｜ref｜> that an assistant message spells; a vocabulary
    without them has only their letters.
    """
    known = tokenizer.control_tokens
    ranges: list[tuple[int, int]] = rendered.special_ranges
    return [(begin, end) for begin, end in ranges if rendered.prompt[begin:end] in known]


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
    names = ["Bos", "Eos", "ThinkingStart", "ThinkingEnd", "System", "User", "Assistant"]
    names += ["Dsml", "LatestReminder"]
    known = tokenizer.control_tokens
    wanted = [tokens.token(getattr(special, name)) for name in names]
    missing = [token for token in wanted if token not in known]
    if missing:
        raise BadTokenizer(f"{tokenizer.file}: the chat format needs {', '.join(missing)}")


@lru_cache(maxsize=4)
def _decoder(tokenizer: Tokenizer) -> Any:
    """The library's own tokenizer, shared by all replies."""
    import deepseek_recipe as recipe

    return recipe.Tokenizer.from_file(str(tokenizer.file))


class Assembler:
    """Words out for one chat reply: `push` ids, get content; at the end the whole Message.

    Ids are taken one by one, so that nothing depends on how they are cut into pushes; ids behind
    the end of the reply are not taken.
    """

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
        self._processor = recipe.StreamProcessor(generator, options, _decoder(tokenizer))
        self._stops = StopStrings(stop, include_stop)  # in content only (chat 1.4)
        self._raw, self._dsml_id = TextStream(tokenizer), tokenizer.id_of(DSML)
        self._watch: CallsWatch | None = None
        if options.parse_tool_calls:
            self._watch = CallsWatch(CALLS if options.starts_in_tool_calls else REPLY)
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, dict[str, str]] = {}
        self._parts: list[Part] = []
        self._thinks = options.thinking_initial_stage is not None
        self.reasoning_tokens = 0  # known when the reply has ended
        self.ids_through = 0
        self._take(self._processor.push(recipe.InferenceChunk.ready()))

    @property
    def stopped(self) -> bool:
        """A stop string was met in the content, or the calls were closed."""
        return self._stops.stopped or (self._watch is not None and self._watch.is_closed)

    def push(self, ids: Sequence[int]) -> str:
        """Content that these ids make final."""
        shown = []
        for one in ids:
            if self.stopped:
                break
            shown.append(self._read(one))
        return "".join(shown)

    def _read(self, token_id: int) -> str:
        self.ids_through += 1
        if self._tokenizer.is_hidden(token_id):
            return ""  # begin, end and pad are no words; the parser would pass them on as text
        text = self._take(self._processor.push(self._recipe.InferenceChunk.tokens([token_id])))
        if self._watch is not None:
            is_mark = token_id == self._dsml_id
            self._watch.push(MARK if is_mark else self._raw.push([token_id]))
            if self._watch.is_closed:
                text += self._show(self._stops.finish())
        return text

    def parts(self) -> list[Part]:
        """Reasoning, content and arguments since the last time this was asked."""
        parts, self._parts = self._parts, []
        return parts

    def finish(self) -> str:
        """The content that was held back."""
        return self._close() + self._show(self._stops.finish())

    def message(self, finish_reason: str) -> Message:
        """The whole reply, or what there is of it so far; a call that was cut stays as it is."""
        if self.stopped:
            self._close()
        read = [self._calls[place] for place in sorted(self._calls)]
        calls = [ToolCall(one["id"], one["name"], one["arguments"]) for one in read]
        reason = "tool_calls" if calls and finish_reason == "stop" else finish_reason
        if calls and self._watch is not None and self._watch.depth >= INVOKE:
            calls[-1] = replace(calls[-1], is_whole=False)
            # ended inside a call: a broken call is nothing to act upon (chat 1.4)
            reason = finish_reason
        reasoning = "".join(self._reasoning) if self._thinks else None
        return Message("".join(self._content), reasoning, tuple(calls), reason)

    def _close(self) -> str:
        """Ends the parser; what it says behind a stop is nobody's."""
        if self._processor.finished:
            return ""
        return self._take(self._processor.finish())

    def _take(self, chunks: Sequence[Any]) -> str:
        shown = []
        for chunk in chunks:
            parsed = json.loads(chunk.to_json())
            for choice in parsed["choices"]:
                shown.append(self._take_delta(choice["delta"]))
            details = (parsed["usage"] or {}).get("completion_tokens_details") or {}
            self.reasoning_tokens = details.get("reasoning_tokens", 0)
        return "".join(shown)

    def _take_delta(self, delta: dict[str, Any]) -> str:
        if self._stops.stopped:
            return ""
        if delta.get("reasoning_content"):
            self._reasoning.append(delta["reasoning_content"])
            self._parts.append(Part("reasoning", delta["reasoning_content"]))
        shown = self._show(self._stops.push(delta.get("content") or ""))
        if delta.get("tool_calls"):
            shown += self._show(self._stops.finish())  # no content follows a call
            for call in delta["tool_calls"]:
                self._take_call(call)
        return shown

    def _show(self, text: str) -> str:
        if text:
            self._content.append(text)
            self._parts.append(Part("content", text))
        return text

    def _take_call(self, call: dict[str, Any]) -> None:
        one = self._calls.setdefault(call["index"], {"id": "", "name": "", "arguments": ""})
        function = call.get("function") or {}
        one["id"] += call.get("id") or ""
        one["name"] += function.get("name") or ""
        if function.get("arguments"):
            one["arguments"] += function["arguments"]
            self._parts.append(Part("tool_call", function["arguments"]))
