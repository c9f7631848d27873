"""One request and its state changes, from the waiting room to its last token.

In: prompt ids and sampling parameters. Out: tokens, text, a finish reason, times.
Does not know: the model, the other requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

import numpy
from numpy.typing import NDArray

from deepinfer.engine.sequence import Sequence
from deepinfer.errors import DeepInferError
from deepinfer.sample.params import SamplingParams


class Words(Protocol):
    """What a request needs of the room "words out": text piece by piece, stop strings."""

    @property
    def stopped(self) -> bool: ...
    def push(self, ids: list[int]) -> str: ...
    def finish(self) -> str: ...


@dataclass(frozen=True)
class Chosen:
    """Log-probabilities of one token and its alternatives, raw (before penalties and filters)."""

    token_id: int
    logprob: float
    best: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Delta:
    """What one step brought for one request. `finish_reason` is None while it runs."""

    index: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str | None = None
    error: DeepInferError | None = None


@dataclass(eq=False)
class Request:
    """`params` carry a seed and a max_tokens; `stop_ids` end the request (the end token first)."""

    index: int
    prompt: list[int]
    params: SamplingParams
    stop_ids: tuple[int, ...]
    words: Words | None
    limit: int
    bad_words: tuple[tuple[int, ...], ...] = ()
    output: list[int] = field(default_factory=list)
    chosen: list[Chosen] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    error: DeepInferError | None = None
    sequence: Sequence | None = None
    arrived_s: float = field(default_factory=perf_counter)
    first_token_s: float | None = None
    finished_s: float | None = None

    @property
    def longest(self) -> int:
        """Tokens that its cache must hold: prompt and output, but never the very last token."""
        assert self.params.max_tokens is not None
        return min(len(self.prompt) + self.params.max_tokens, self.limit)

    def take(self, token: int, chosen: Chosen | None) -> Delta:
        """Appends a sampled token; the earliest end wins: stop before length at the same token."""
        if self.first_token_s is None:
            self.first_token_s = perf_counter()
        self.output.append(token)
        if chosen is not None:
            self.chosen.append(chosen)
        ends = token in self.params.stop_token_ids or (
            token in self.stop_ids and not self.params.ignore_eos
        )
        text = ""
        if self.words is not None and not ends:
            text = self.words.push([token])
            ends = self.words.stopped
        reason = "stop" if ends else None
        assert self.params.max_tokens is not None
        full = len(self.prompt) + len(self.output) >= self.limit
        if reason is None and (len(self.output) >= self.params.max_tokens or full):
            reason = "length"
        return self._grow(text, (token,), reason)

    def end(self, reason: str, error: DeepInferError | None = None) -> Delta:
        """Ends without a further token: abort or error."""
        self.error = error
        return self._grow("", (), reason)

    def _grow(self, text: str, ids: tuple[int, ...], reason: str | None) -> Delta:
        if reason is not None:
            if self.words is not None and not self.words.stopped:
                text += self.words.finish()
            self.finish_reason, self.finished_s = reason, perf_counter()
        self.text += text
        return Delta(self.index, ids, text, reason, self.error)

    def counts(self, size: int) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
        """How often each id occurs in the prompt and in the output: [size] each."""
        prompt = numpy.bincount(self.prompt, minlength=size)
        return prompt, numpy.bincount(numpy.asarray(self.output, dtype=numpy.int64), minlength=size)
