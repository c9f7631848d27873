"""One training text: a conversation in the official V4.1 spelling, cut at its control tokens.

In: a `Talk` (turns, tools, schema, thinking effort). Out: a `Document` of pieces.
Does not know: what the talk is about, token ids.
"""

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

BEGIN = "<｜begin▁of▁sentence｜>"
END = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
SYSTEM = "<｜System｜>"
THINK = "<think>"
NO_THINK = "</think>"
DSML = "｜DSML｜"


class Piece(NamedTuple):
    """A stretch of text; `special` is one control token, `target` is what the assistant says."""

    text: str
    special: bool
    target: bool


class Call(NamedTuple):
    """One tool call and what the tool gave back."""

    tool: str
    arguments: dict[str, Any]
    result: str


class Turn(NamedTuple):
    """A question and its answer, with the reasoning and the tool calls that lead to it.

    `lead` is the reasoning before the calls, `plan` the reasoning before the answer. Calls
    without an answer end the talk: what follows is the tool's turn.
    """

    question: str
    answer: str
    plan: str = ""
    calls: tuple[Call, ...] = ()
    lead: str = ""


@dataclass(slots=True)
class Talk:
    """A whole conversation. `effort` None is chat mode, else 1 to 100."""

    turns: list[Turn]
    effort: int | None = None
    system: str = ""
    tools: tuple[dict[str, Any], ...] = ()
    schema: dict[str, Any] | None = None


@dataclass(slots=True)
class Document:
    """A rendered text: its task, its pieces, the expected last answer, and where it came from.

    `check` says how an answer is compared: exact, contains, json-equal or dsml-equal. For
    `contains` the words of `mentions` must occur. `talk` has no turns in plain prose.
    """

    task: str
    pieces: tuple[Piece, ...]
    answer: str
    check: str = "exact"
    mentions: tuple[str, ...] = ()
    talk: Talk = field(default_factory=lambda: Talk([]))

    @property
    def text(self) -> str:
        """The spelling of all pieces, control tokens included."""
        return "".join(piece.text for piece in self.pieces)

    def prompt(self) -> tuple[Piece, ...]:
        """The pieces up to the last assistant turn: what a server would send to the model."""
        last = max(i for i, piece in enumerate(self.pieces) if piece.text in (THINK, NO_THINK)
                   and piece.special and not piece.target)
        return self.pieces[: last + 1]


_PROMPT = {text: Piece(text, True, False) for text in
           (BEGIN, END, USER, ASSISTANT, SYSTEM, THINK, NO_THINK, DSML)}
_TARGET = {text: Piece(text, True, True) for text in (END, NO_THINK, DSML)}

_TOOLS_HEAD = f"""

## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by \
writing a "<{DSML} calls>" block like the following:

<{DSML} calls>
<{DSML} invoke name="$TOOL_NAME">
<{DSML} parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML} parameter>
...
</{DSML} invoke>
<{DSML} invoke name="$TOOL_NAME2">
...
</{DSML} invoke>
</{DSML} calls>

String parameters should be specified as is and set `string="true"`. For all other types \
(numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {THINK}), you MUST output your complete reasoning \
inside {THINK}...{NO_THINK} BEFORE any tool calls or final response.

Otherwise, output directly after {NO_THINK} with tool calls or final response.

### Available Tool Schemas

"""
_TOOLS_TAIL = """

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""
_SCHEMA_HEAD = """

## Response Format:

You MUST strictly adhere to the following schema to reply:
"""


def _cut(text: str, markers: tuple[str, ...], target: bool) -> list[Piece]:
    """Splits a text of ours (never a user's) at the control tokens written in it."""
    pieces: list[Piece] = []
    while text:
        found = [(text.find(marker), marker) for marker in markers if marker in text]
        if not found:
            pieces.append(Piece(text, False, target))
            break
        start, marker = min(found)
        if start:
            pieces.append(Piece(text[:start], False, target))
        pieces.append(Piece(marker, True, target))
        text = text[start + len(marker):]
    return pieces


_TOOLS_PIECES = _cut(_TOOLS_HEAD, (DSML, THINK, NO_THINK), False)


def spell_calls(calls: tuple[Call, ...]) -> str:
    """The DSML block of the calls, control tokens spelled out. Chat specification 1.1."""
    lines = [f"\n\n<{DSML} calls>"]
    for call in calls:
        lines.append(f'<{DSML} invoke name="{call.tool}">')
        for name, value in call.arguments.items():
            plain = isinstance(value, str)
            shown = value if plain else json.dumps(value)
            kind = "true" if plain else "false"
            lines.append(f'<{DSML} parameter name="{name}" string="{kind}">{shown}'
                         f"</{DSML} parameter>")
        lines.append(f"</{DSML} invoke>")
    lines.append(f"</{DSML} calls>")
    return "\n".join(lines)


class _Writer:
    """Collects pieces; neighboring plain texts of one kind become one piece."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []

    def plain(self, text: str, target: bool = False) -> None:
        """Adds text, joined to the piece before it when that is plain too."""
        if not text:
            return
        last = self.pieces[-1] if self.pieces else None
        if last is not None and not last.special:
            self.pieces[-1] = Piece(last.text + text, False, last.target or target)
        else:
            self.pieces.append(Piece(text, False, target))

    def token(self, text: str, target: bool = False) -> None:
        """Adds one control token."""
        self.pieces.append(_TARGET[text] if target else _PROMPT[text])

    def cut(self, pieces: list[Piece]) -> None:
        """Adds pieces made elsewhere."""
        for piece in pieces:
            if piece.special:
                self.pieces.append(piece)
            else:
                self.plain(piece.text, piece.target)


def _system(writer: _Writer, talk: Talk) -> None:
    if talk.effort is None and not (talk.system or talk.tools or talk.schema):
        return
    writer.token(SYSTEM)
    if talk.effort is not None:
        writer.plain(f"Reasoning Effort: {talk.effort} (range 1-100, the higher the value, "
                     "the more thorough the reasoning)\n\n")
    writer.plain(talk.system)
    if talk.tools:
        writer.cut(_TOOLS_PIECES)
        writer.plain("\n".join(json.dumps(tool) for tool in talk.tools) + _TOOLS_TAIL)
    if talk.schema:
        writer.plain(_SCHEMA_HEAD + json.dumps(talk.schema))


def _open(writer: _Writer, plan: str, thinks: bool, target: bool) -> None:
    writer.token(ASSISTANT)
    if thinks:
        writer.token(THINK)
        writer.plain(plan, target)
        writer.token(NO_THINK, target)
    else:
        writer.token(NO_THINK)


def pieces_of(talk: Talk) -> tuple[Piece, ...]:
    """The pieces of a talk whose last turn has just been answered.

    Old reasoning is kept only when tools are given (chat specification 1.1); turns that lost
    theirs are no targets, because a thinking model never writes them so.
    """
    writer = _Writer()
    writer.token(BEGIN)
    _system(writer, talk)
    for number, turn in enumerate(talk.turns):
        kept = bool(talk.tools) or number == len(talk.turns) - 1
        thinks = talk.effort is not None and kept
        target = talk.effort is None or kept
        writer.token(USER)
        writer.plain(turn.question)
        if turn.calls:
            _open(writer, turn.lead, thinks, target)
            writer.cut(_cut(spell_calls(turn.calls), (DSML,), target))
            writer.token(END, target)
            if turn.answer:
                writer.token(USER)
                writer.plain("\n\n".join(f"<tool_result>{call.result}</tool_result>"
                                         for call in turn.calls))
        if turn.answer or not turn.calls:
            _open(writer, turn.plan, thinks, target)
            writer.plain(turn.answer, target)
            writer.token(END, target)
    return tuple(writer.pieces)


def render(task: str, talk: Talk, check: str = "exact",
           mentions: tuple[str, ...] = ()) -> Document:
    """The document of a talk; its answer is what the last turn says."""
    return Document(task, pieces_of(talk), talk.turns[-1].answer, check, mentions, talk)


def prose(task: str, text: str) -> Document:
    """A document without any conversation: all of its text is to be learned."""
    return Document(task, (_PROMPT[BEGIN], Piece(text, False, True), _TARGET[END]), text)
