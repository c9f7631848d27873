"""One request and its state changes, from the waiting room to its last token.

In: prompt ids and sampling parameters. Out: tokens, text, a finish reason, times.
Does not know: the model, the cache, the other requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from time import perf_counter
from typing import NamedTuple, Protocol

import numpy
from numpy.typing import NDArray

from deepinfer.errors import DeepInferError
from deepinfer.sample.params import SamplingParams


class Words(Protocol):
    """What a request needs of the room "words out": text piece by piece, stop strings."""

    @property
    def stopped(self) -> bool: ...
    def push(self, ids: list[int]) -> str: ...
    def finish(self) -> str: ...


class State(Enum):
    """Where a request is. A parked one waits again and keeps its tokens (engine 2.1)."""

    NEW = "new"
    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    PARKED = "parked"
    FINISHED = "finished"


@dataclass(frozen=True)
class Chosen:
    """Log-probabilities of one token and its alternatives, raw (before penalties and filters)."""

    token_id: int
    logprob: float
    best: tuple[tuple[int, float], ...]


class Delta(NamedTuple):
    """What one step brought for one request. `finish_reason` is None while it runs.

    index  of the prompt; sample  of its `n` answers
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks of a delta
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str | None = None
    error: DeepInferError | None = None
    sample: int = 0


_delta = tuple.__new__  # a third of the time of Delta(...), and one is made for every token


@dataclass(eq=False, slots=True)
class Request:
    """`params` carry a seed and a max_tokens; `stop_ids` end the request (the end token first).

    tokens      the prompt, then what was sampled
    make_words  makes the text; called at the first token, so that waiting requests stay small
    limit       tokens of the context
    priority    higher goes first; deadline_s  on the clock of the loop, None for never
    salt        prefixes are shared inside a salt only
    sample      which of `n` answers to a prompt; those behind `leader` wait for its prompt
    continues   whether another turn may follow, so that its windows are kept at the end
    streams     whether somebody reads along; otherwise only its last delta is made
    ends_by_text  whether its text can end it; otherwise text that nobody reads is made at the end
    """

    index: int
    tokens: list[int]
    params: SamplingParams
    stop_ids: tuple[int, ...]
    make_words: Callable[[], Words] | None
    limit: int
    bad_words: tuple[tuple[int, ...], ...] = ()
    priority: int = 0
    deadline_s: float | None = None
    salt: bytes = b""
    sample: int = 0
    leader: Request | None = None
    continues: bool = False
    streams: bool = True
    ends_by_text: bool = True
    state: State = State.NEW
    arrival: int = -1
    prompt_tokens: int = 0
    cached_tokens: int = 0
    parks: int = 0
    parked_at: int = -1
    words: Words | None = None
    chosen: list[Chosen] = field(default_factory=list)
    text: str = ""
    notes: tuple[str, ...] = ()
    finish_reason: str | None = None
    error: DeepInferError | None = None
    stops: frozenset[int] = frozenset()
    most: int = 0
    arrived_s: float = field(default_factory=perf_counter)
    first_token_s: float | None = None
    finished_s: float | None = None

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)
        ends = () if self.params.ignore_eos else self.stop_ids
        self.stops = frozenset((*ends, *self.params.stop_token_ids))
        assert self.params.max_tokens is not None
        self.most = min(self.prompt_tokens + self.params.max_tokens, self.limit)

    @property
    def prompt(self) -> list[int]:
        """Ids of the prompt."""
        return self.tokens[: self.prompt_tokens]

    @property
    def output(self) -> list[int]:
        """Ids that were sampled."""
        return self.tokens[self.prompt_tokens :]

    @property
    def is_plain(self) -> bool:
        """Whether a token in the middle changes nothing but the list of tokens."""
        texts = self.make_words is not None and self.ends_by_text
        return not (self.streams or texts or self.params.logprobs is not None)

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    def take(self, token: int, chosen: Chosen | None) -> Delta | None:
        """Appends a sampled token; the earliest end wins: stop before length at the same token.
        Returns None where nobody reads along and there is more to come."""
        if self.first_token_s is None:
            self._begin()
        tokens, text = self.tokens, ""
        tokens.append(token)
        if chosen is not None:
            self.chosen.append(chosen)
        ends = token in self.stops
        if self.words is not None and not ends and (self.streams or self.ends_by_text):
            text = self.words.push([token])
            ends = self.words.stopped
            self.text += text
        if ends:
            return self._end(text, (token,), "stop")
        if len(tokens) >= self.most:
            return self._end(text, (token,), "length")
        if not self.streams:
            return None
        return _delta(Delta, (self.index, (token,), text, None, None, self.sample))

    def _begin(self) -> None:
        self.first_token_s = perf_counter()
        if self.make_words is not None:
            self.words = self.make_words()

    def end(self, reason: str, error: DeepInferError | None = None) -> Delta:
        """Ends without a further token: abort, deadline or error."""
        self.error = error
        return self._end("", (), reason)

    def _end(self, text: str, ids: tuple[int, ...], reason: str) -> Delta:
        if self.words is not None and not self.words.stopped:
            rest = ""
            if not (self.streams or self.ends_by_text):
                spoken = self.output
                rest = self.words.push(spoken[:-1] if reason == "stop" else spoken)
            rest += self.words.finish()
            text += rest
            self.text += rest
        self.finish_reason, self.finished_s = reason, perf_counter()
        return Delta(self.index, ids, text, reason, self.error, self.sample)


def counts(ids: list[int], size: int) -> NDArray[numpy.int64]:
    """How often each id occurs: [size]."""
    return numpy.bincount(numpy.asarray(ids, dtype=numpy.int64), minlength=size)
