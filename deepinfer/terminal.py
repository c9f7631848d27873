"""Answers on a terminal: streaming, batches of prompts, and a conversation.

In: a loaded LLM and texts. Out: text on stdout, one summary line on stderr.
Does not know: options of the shell.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepinfer.errors import DeepInferError, UsageError
from deepinfer.llm import LLM
from deepinfer.output import Output
from deepinfer.sample.params import SamplingParams

HELP = "/reset forgets, /system TEXT, /think off|on|1..100, /save FILE, /load FILE, /quit"


def read_prompts(words: Sequence[str], file: Path | None) -> list[str]:
    """Prompts of the command line, of stdin (-), or of a file, one a line."""
    texts = [sys.stdin.read() if word == "-" else word for word in words]
    if file is not None:
        try:
            texts += [line for line in file.read_text(encoding="utf-8").splitlines() if line]
        except (OSError, UnicodeDecodeError) as cause:
            raise UsageError(f"{file} cannot be read: {cause}") from cause
    if not texts:
        raise UsageError("no prompt was given; write one, or - to read stdin, or use --file")
    return texts


def thinking_options(word: str) -> dict[str, Any]:
    """Keywords of `LLM.chat` for "off", "on" or an effort from 1 to 100."""
    if word in ("off", "on"):
        return {"thinking": word == "on"}
    if word.isdecimal() and 1 <= int(word) <= 100:
        return {"thinking": True, "effort": int(word)}
    raise UsageError(f"--think {word}: must be off, on, or an effort from 1 to 100")


def _messages(text: str, system: str | None) -> list[dict[str, Any]]:
    begin = [{"role": "system", "content": system}] if system else []
    return [*begin, {"role": "user", "content": text}]


def stream_one(
    llm: LLM,
    text: str,
    params: SamplingParams,
    raw: bool,
    system: str | None,
    options: dict[str, Any],
    quiet: bool,
) -> Output:
    """Writes one answer as it comes."""
    prompt: Any = [text] if raw else _messages(text, system)
    serving = llm.start(prompt, params, as_chat=not raw, **options)
    for delta in serving:
        sys.stdout.write(delta.text)
        sys.stdout.flush()
    output = serving.outputs[0]
    print()
    _after(output, quiet)
    if output.error is not None:
        raise output.error
    return output


def _after(output: Output, quiet: bool) -> None:
    if output.reasoning:
        print(f"[reasoning] {output.reasoning}", file=sys.stderr)
    for call in output.tool_calls:
        print(f"[call] {call['name']} {call['arguments']}", file=sys.stderr)
    if not quiet:
        print(output.summary, file=sys.stderr)


def answer_all(
    llm: LLM,
    texts: Sequence[str],
    params: SamplingParams,
    raw: bool,
    system: str | None,
    options: dict[str, Any],
    as_json: bool,
    quiet: bool,
) -> None:
    """Answers several prompts in one batch; a bad one is reported, the others are answered."""
    if raw:
        outputs = llm.generate(list(texts), params, errors="return")
    else:
        talks = [_messages(text, system) for text in texts]
        outputs = llm.chat(talks, params, errors="return", **options)
    if as_json:
        print(json.dumps([output.to_dict() for output in outputs], indent=2, ensure_ascii=False))
    else:
        for text, output in zip(texts, outputs, strict=True):
            print(f"> {text}\n{output.text}\n")
            if output.error is None:
                _after(output, quiet)
    failed = [output.error for output in outputs if output.error is not None]
    if failed:
        raise failed[0]


class Conversation:
    """A chat that remembers its turns."""

    def __init__(
        self, llm: LLM, params: SamplingParams, options: dict[str, Any], system: str | None
    ) -> None:
        self.llm, self.params, self.options = llm, params, options
        self.messages: list[dict[str, Any]] = []
        self.system = system

    def talk(self) -> None:
        """Reads turns until the end of input."""
        llm = self.llm
        print(f"plan {llm.plan_id} · context {llm.max_model_len} · {HELP}", file=sys.stderr)
        while True:
            try:
                text = input("> ").strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                print(file=sys.stderr)
                return
            if text == "/quit":
                return
            try:
                if text.startswith("/"):
                    print(self.obey(text), file=sys.stderr)
                elif text:
                    self.turn(text)
            except DeepInferError as error:  # a bad turn fails alone
                print(f"deepinfer: {error}", file=sys.stderr)

    def turn(self, text: str) -> None:
        """One question and its answer; Ctrl-C stops the answer and keeps what was said."""
        begin = [{"role": "system", "content": self.system}] if self.system else []
        asked = {"role": "user", "content": text}
        talk = [*begin, *self.messages, asked]
        serving = self.llm.start(talk, self.params, as_chat=True, **self.options)
        try:
            for delta in serving:
                sys.stdout.write(delta.text)
                sys.stdout.flush()
        except KeyboardInterrupt:
            serving.close()
        print()
        output = serving.outputs[0]
        _after(output, quiet=False)
        if output.error is not None:
            raise output.error
        self.messages += [asked, {"role": "assistant", "content": output.text}]

    def obey(self, line: str) -> str:
        """A line that begins with a slash; returns what to tell the person."""
        word, _, rest = line.partition(" ")
        if word == "/reset":
            self.messages = []
            return "forgotten"
        if word == "/system":
            self.system = rest or None
            return f"system message: {self.system}"
        if word == "/think":
            self.options = thinking_options(rest)
            return f"thinking: {rest}"
        if word in ("/save", "/load"):
            return self._keep(word, rest)
        return HELP if word == "/help" else f"{word}: unknown; {HELP}"

    def _keep(self, word: str, file: str) -> str:
        """Writes the turns to a file, or takes them from one."""
        try:
            if word == "/save":
                Path(file).write_text(json.dumps(self.messages, ensure_ascii=False, indent=2))
                return f"saved {len(self.messages)} messages to {file}"
            messages = json.loads(Path(file).read_text())
        except (OSError, ValueError) as cause:
            raise UsageError(f"{word} {file}: {cause}") from cause
        if not isinstance(messages, list):
            raise UsageError(f"{word} {file}: the file holds no list of messages")
        self.messages = messages
        return f"loaded {len(messages)} messages"
