"""Checks the messages of a conversation and brings them into the form that is rendered.

In: messages in the OpenAI form. Out: plain copies, or a fault with its place and reason.
Does not know: tokens, the renderer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deepinfer.errors import RequestError


class BadConversation(RequestError):
    """A conversation cannot be rendered; the message says where and why."""


def checked_messages(messages: Any) -> list[dict[str, Any]]:
    """Plain copies of the messages; what only the renderer can judge is left to it (chat 1.5)."""
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence) or not messages:
        raise BadConversation("a conversation is a list of messages with at least one in it")
    made = [_message(f"messages[{at}]", message) for at, message in enumerate(messages)]
    if all(one["role"] == "system" for one in made):
        raise BadConversation("a conversation needs a message of the user; there is only system")
    return made


def plain(place: str, value: Any) -> Any:
    """A copy of plain JSON values; the renderer answers foreign objects with less clear words."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as cause:
        raise BadConversation(f"{place}: holds a value that is no JSON: {cause}") from cause


def _message(place: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise BadConversation(f"{place}: must be a mapping with a role and content")
    one: dict[str, Any] = plain(place, dict(message))
    if one["role"] == "developer":
        one["role"] = "system"
    calls = one.get("tool_calls")
    if one["role"] == "assistant" and one.get("content") is None and calls:
        one["content"] = ""  # null content beside calls is nothing, not the word null (BL-79)
    if isinstance(one.get("content"), list):
        _check_parts(f"{place}.content", one["content"])
    if isinstance(calls, list):
        for at, call in enumerate(calls):
            _check_call(f"{place}.tool_calls[{at}].function", call)
    return one


def _check_parts(place: str, parts: list[Any]) -> None:
    for at, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise BadConversation(f"{place}[{at}]: a part of type {kind!r}; only text is read")


def _check_call(place: str, call: Any) -> None:
    """The markup has no way to write a quotation mark inside a name: it would end the name."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return
    for name in _names(function):
        if '"' in name:
            raise BadConversation(f"{place}: the name {name!r} cannot be written in a prompt")


def _names(function: dict[str, Any]) -> Iterator[str]:
    if isinstance(function.get("name"), str):
        yield function["name"]
    try:
        arguments = json.loads(function.get("arguments", ""))
    except (TypeError, ValueError, RecursionError):
        return  # cut arguments are rendered as one text (chat 1.1), they have no names
    if isinstance(arguments, dict):
        yield from arguments
