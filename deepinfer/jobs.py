"""Answers a file of requests, one JSON object a line; a killed run goes on where it was.

In: prompts.jsonl, an LLM. Out: answers.jsonl, one whole line per request as it ends, counts.
Does not know: options of the shell, how answers are made, in which order they come.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from time import perf_counter
from typing import Any, BinaryIO, Protocol

from deepinfer.errors import CheckFailed, DeepInferError, RequestError, UsageError
from deepinfer.output import Output
from deepinfer.sample.params import SamplingParams

BEGIN = b'{"id": '  # of every line that is written here
LONGEST = 1 << 26  # bytes of a request; a longer line is refused, so that memory stays bounded
URLS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}

Key = str | int
Fields = dict[str, Any]
Job = tuple[Key, Any, SamplingParams, bool]


class BadLine(RequestError):
    """A line of the input is no request; it fails alone."""


class Answerer(Protocol):
    """What is needed of an LLM: it takes jobs as it can and answers in any order."""

    def answers(self, jobs: Iterable[Job]) -> Iterator[tuple[Key, Output | DeepInferError]]: ...


@dataclass(frozen=True)
class Line:
    """A line of the input: (prompt or messages, sampling, whether it is a chat), or its fault."""

    number: int
    id: Key
    digest: str
    job: tuple[Any, SamplingParams, bool] | None = None
    error: DeepInferError | None = None


def stated(params: SamplingParams) -> Fields:
    """What differs from the defaults: it holds for every line that does not say its own."""
    values = {one.name: getattr(params, one.name) for one in fields(params)}
    return {k: v for k, v in values.items() if v != getattr(SamplingParams(), k)}


def read_line(number: int, raw: bytes, defaults: Fields) -> Line:
    """One line of the input; whatever is wrong with it becomes its `error`."""
    key: Key = number
    digest = _digest(raw)
    try:
        if len(raw) > LONGEST:
            raise BadLine(f"the line has more than {LONGEST} bytes")
        record = json.loads(raw.decode("utf-8"))
        if not isinstance(record, dict):
            raise BadLine("the line must be a JSON object, {...}")
        digest = _digest(record)
        name = "custom_id" if "body" in record else "id"
        if type(record.get(name, number)) not in (str, int):
            raise BadLine(f"{name} must be a text or an integer")
        key = record.get(name, number)
        prompt, given, is_chat = _parts(record)
        filled = {name: value for name, value in defaults.items() if name not in given}
        if filled:
            digest = _digest([record, filled])
        return Line(number, key, digest, (prompt, SamplingParams(**filled, **given), is_chat))
    except DeepInferError as error:
        return Line(number, key, digest, error=error)
    except (ValueError, TypeError, OverflowError, RecursionError) as cause:
        return Line(number, key, digest, error=BadLine(f"the line cannot be read: {cause}"))


def _digest(value: Any) -> str:
    """Of bytes, or of JSON in the one form of all its spellings (a half surrogate has none)."""
    if not isinstance(value, bytes):
        value = json.dumps(value, sort_keys=True, ensure_ascii=False).encode()
    return hashlib.blake2b(value, digest_size=8).hexdigest()


def _mark(digest: str, key: Key) -> bytes:
    """16 bytes that tell a request from every other: its content, its id."""
    return bytes.fromhex(digest + _digest(json.dumps(key).encode()))


def _parts(record: Fields) -> tuple[Any, Fields, bool]:
    """Prompt or messages, sampling fields, whether it is a chat."""
    given = _batch_fields(record) if "body" in record else {**record}
    if "body" not in record:
        given.pop("id", None)
    if ("prompt" in given) == ("messages" in given):
        raise BadLine("a request has either prompt or messages")
    is_chat = "messages" in given
    prompt = given.pop("messages" if is_chat else "prompt")
    items = prompt if isinstance(prompt, list) else [None]
    if is_chat and not all(isinstance(one, dict) for one in items):
        raise BadLine("messages must be a list of objects")
    is_ids = all(type(one) is int and one >= 0 for one in items)
    if not (is_chat or is_ids or isinstance(prompt, str)):
        raise BadLine("prompt must be a text or a list of token ids")
    bias = given.get("logit_bias")
    if isinstance(bias, dict):  # names in JSON are always texts
        given["logit_bias"] = {int(k) if k.isdecimal() else k: v for k, v in bias.items()}
    return prompt, given, is_chat


def _batch_fields(record: Fields) -> Fields:
    """The body of a line of the OpenAI batch form, under the names of SamplingParams."""
    strange = sorted(set(record) - {"custom_id", "method", "url", "body"})
    body, url = record["body"], record.get("url")
    if strange:
        raise BadLine(f"{strange[0]}: only custom_id, method and url may stand beside body")
    if not isinstance(body, dict):
        raise BadLine("body must be an object")
    if record.get("method", "POST") != "POST" or (url is not None and URLS.get(url) not in body):
        raise BadLine(f"method must be POST, and url {' or '.join(URLS)}, as fits the body")
    given = {**body}
    if not isinstance(given.pop("model", ""), str):
        raise BadLine("model must be a text")
    if given.pop("stream", None) not in (False, None):
        raise BadLine("stream: answers in a file come whole; leave it out")
    if "max_completion_tokens" in given:
        if "max_tokens" in given:
            raise BadLine("max_completion_tokens is another name of max_tokens; give one")
        given["max_tokens"] = given.pop("max_completion_tokens")
    return given


class OutFile:
    """Where answers go: stdout, or a locked file that knows its lines and has no cut one."""

    def __init__(self, path: Path | None, handle: int, source: os.stat_result) -> None:
        self.path, self._handle = path, handle
        self.done: dict[int, bytes] = {}
        self.failed = 0
        if path is None:
            return
        here = os.fstat(handle)
        if os.path.samestat(here, source):
            raise UsageError(f"{path} is the file with the requests; choose another --out")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as cause:
            busy = isinstance(cause, BlockingIOError)
            why = "another run is writing it" if busy else f"it cannot be locked ({cause})"
            raise UsageError(f"{path}: {why}; choose another --out") from cause
        if stat.S_ISREG(here.st_mode):
            self._read(path)

    def _read(self, path: Path) -> None:
        with path.open("rb") as stream:
            for count, raw in enumerate(iter(stream.readline, b"")):
                whole = self._take(raw)
                if whole is None or (not whole and stream.read(1)):
                    raise UsageError(f"{path}: line {count} is no answer; choose another --out")
                if not whole:
                    os.ftruncate(self._handle, stream.tell() - len(raw))

    def _take(self, raw: bytes) -> bool | None:
        """Notes a line; False if it was cut, None if it cannot come from here."""
        try:
            record = json.loads(raw)
        except (ValueError, RecursionError):
            return False if raw[: len(BEGIN)] == BEGIN[: len(raw)] else None
        try:
            mark, number = _mark(record["digest"], record["id"]), record["line"]
            error, reason = record["error"], record.get("finish_reason")
        except (KeyError, TypeError, ValueError):
            return None
        if type(number) is not int or len(mark) != 16:
            return None
        if not raw.endswith(b"\n"):
            return False
        kind = error.get("type") if isinstance(error, dict) else None
        if "abort" not in (kind, reason):  # an aborted one is done again
            self.failed += error is not None and number not in self.done
            self.done[number] = mark
        return True

    def compare(self, line: Line, file: Path) -> None:
        """Raises if what the file has for this line answers another one."""
        mark, found = _mark(line.digest, line.id), self.done[line.number]
        if found == mark:
            return
        what = f"prompt or sampling of line {line.number} (id {line.id!r}) differ"
        if found[8:] != mark[8:]:
            with open(str(self.path), "rb") as stream:
                records = (json.loads(raw) for raw in stream)
                other = next(one["id"] for one in records if one["line"] == line.number)
            what = f"line {line.number} has the id {other!r} there and {line.id!r} in {file}"
        raise UsageError(f"{self.path} belongs to another input: {what}; choose another --out")

    def write(self, record: Fields) -> None:
        """Appends a line; after a kill there is all of it or its beginning."""
        try:
            text = json.dumps(record, ensure_ascii=False, allow_nan=False)
        except ValueError:  # a number that JSON cannot write becomes null
            plain = json.loads(json.dumps(record), parse_constant=lambda word: None)
            text = json.dumps(plain, ensure_ascii=False)
        content = f"{text}\n".encode(errors="backslashreplace")  # half a pair stays an escape
        try:
            while content:
                content = content[os.write(self._handle, content) :]
        except BrokenPipeError:
            raise
        except OSError as cause:
            raise UsageError(f"{self.path or 'stdout'} cannot be written: {cause}") from cause


@contextmanager
def opened(file: Path, out: Path | None, defaults: Fields) -> Iterator[JobFile]:
    """The requests of a file that have no answer yet.

    out       the file of answers; None writes to stdout, where nothing can be resumed
    defaults  sampling fields of lines that do not have them
    """
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(file.open("rb"))
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
            handle = os.open(out, flags, 0o666) if out else os.dup(sys.stdout.fileno())
        except OSError as cause:
            raise UsageError(f"{cause.filename} cannot be opened: {cause.strerror}") from cause
        stack.callback(os.close, handle)
        sink = OutFile(out, handle, os.fstat(stream.fileno()))
        yield JobFile(file, stream, sink, defaults)


class JobFile:
    """A file of requests and what became of them; `left` is None if nobody can know."""

    def __init__(self, file: Path, stream: BinaryIO, out: OutFile, defaults: Fields) -> None:
        self.file, self.out, self.defaults, self._stream = file, out, defaults, stream
        self.answered = self.ended = self.tokens = self.missing = 0
        self.failed, self._begin = out.failed, perf_counter()
        self._pending: dict[Key, Line] = {}
        self._lock = threading.Lock()  # jobs may be taken by another thread than the answers
        self._told: Callable[[JobFile], None] = lambda jobs: None
        if not stream.seekable() and out.done:
            raise UsageError(f"{file} must be a file on disk, to go on with {out.path}")
        self.left = self._survey() if stream.seekable() else None

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Number and content of every line that is not blank; one line at a time in memory."""
        number, skips = 0, False
        try:
            while raw := self._stream.readline(LONGEST + 1):
                if not skips:
                    whole = raw.removeprefix(b"\xef\xbb\xbf") if number == 0 else raw
                    if whole.strip():
                        yield number, whole if len(whole) > LONGEST else whole.strip()
                skips = not raw.endswith(b"\n")  # what follows is the rest of a line
                number += not skips
        except OSError as cause:
            raise UsageError(f"{self.file} cannot be read: {cause}") from cause

    def _survey(self) -> int:
        """How many lines wait; every answer that is there must belong to its line."""
        left = found = 0
        for number, raw in self._lines():
            if number in self.out.done:
                self.out.compare(read_line(number, raw, self.defaults), self.file)
                found += 1
            else:
                left += 1
        self._stream.seek(0)
        if found < len(self.out.done):
            raise UsageError(
                f"{self.out.path} belongs to another input: it has {len(self.out.done)} answers, "
                f"{self.file} has only {found} of their lines; choose another --out"
            )
        return left

    def _jobs(self) -> Iterator[Job]:
        """What waits, one by one as somebody takes it; a bad line is written at once."""
        seen: set[bytes] = set()
        for number, raw in self._lines():
            line = read_line(number, raw, self.defaults)
            error = line.error
            mark = hashlib.blake2b(json.dumps(line.id).encode()).digest()[:16]
            if error is None and mark in seen:
                error = BadLine(f"the id {line.id!r} is the id of an earlier line too")
            if line.error is None or line.id != number:  # a broken line's number is nobody's id
                seen.add(mark)
            if number in self.out.done:
                continue
            if line.job is None or error is not None:
                self._end(line, error)
            else:
                self._pending[line.id] = line
                yield line.id, *line.job

    def _end(self, line: Line, answer: Output | DeepInferError | None) -> None:
        """Writes what became of a line, and counts it."""
        values = answer.to_dict() if isinstance(answer, Output) else {}
        values.pop("index", None)  # a place in a batch, and there is none here
        error = answer.error if isinstance(answer, Output) else answer
        is_aborted = values.get("finish_reason") == "abort"
        values["error"] = error and {"type": type(error).__name__, "message": str(error)}
        begin = {"id": line.id, "line": line.number, "digest": line.digest}
        with self._lock:
            if not is_aborted or self.out.path is None:  # not in a file: it will be done again
                self.out.write(begin | values)
            self.missing += is_aborted
            self.failed += error is not None and not is_aborted
            self.answered += error is None and not is_aborted
            self.tokens += values.get("usage", {}).get("completion_tokens", 0)
            self.ended += 1
            self._told(self)

    def answer(self, llm: Answerer, told: Callable[[JobFile], None]) -> None:
        """Answers what waits; `told` is called after every line that ended."""
        self._told, self._begin = told, perf_counter()
        for key, answer in llm.answers(self._jobs()):
            line = self._pending.pop(key, None)
            if line is None:
                raise CheckFailed(f"an answer came for {key!r}, for which nobody waits")
            self._end(line, answer)
        self.missing += max((self.left or 0) - self.ended, len(self._pending))

    @property
    def rates(self) -> str:
        """Lines and tokens of this run per second."""
        seconds = max(perf_counter() - self._begin, 1e-9)
        return f"{self.ended / seconds:.1f} requests/s · {self.tokens / seconds:.1f} tokens/s"

    @property
    def summary(self) -> str:
        """One line for a person."""
        before = len(self.out.done) - self.out.failed
        words = [f"{self.answered} answered now", f"{before} before", f"{self.failed} failed"]
        if self.missing:
            words.append(f"{self.missing} without an answer")
        return f"{', '.join(words)} · {self.rates}"
