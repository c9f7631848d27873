"""What a caller gets back for one prompt.

In: a finished request. Out: text, ids, finish reason, usage, times, plan id.
Does not know: the engine.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from deepinfer.engine.request import Chosen, Request
from deepinfer.errors import DeepInferError


@dataclass(frozen=True)
class Usage:
    """Tokens, counted as they were computed and sampled; reasoning is part of completion."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Timings:
    """Seconds since the request arrived; None where it never came so far."""

    first_token_s: float | None
    total_s: float | None

    def tokens_per_s(self, tokens: int) -> float | None:
        """Tokens after the first, per second."""
        if self.first_token_s is None or self.total_s is None or tokens < 2:
            return None
        return (tokens - 1) / max(self.total_s - self.first_token_s, 1e-9)


@dataclass(frozen=True)
class Output:
    """One answer. `finish_reason` is stop, length, abort or error; `error` then says why.

    `reasoning` and `tool_calls` are filled by `chat`. `notes` names every setting that was changed
    for this request. `seed` reproduces it. With n > 1 `samples` holds all n answers, of which this
    is the first.
    """

    index: int
    prompt_token_ids: list[int]
    text: str
    token_ids: list[int]
    finish_reason: str
    usage: Usage
    timings: Timings
    plan_id: str
    seed: int | None = None
    logprobs: list[Chosen] | None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    error: DeepInferError | None = None
    samples: list[Output] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for `--json`."""
        whole = asdict(replace(self, samples=[], error=None))
        whole["error"] = None if self.error is None else str(self.error)
        whole["samples"] = [sample.to_dict() for sample in self.samples]
        whole["usage"]["total_tokens"] = self.usage.total_tokens
        return whole

    @property
    def summary(self) -> str:
        """One line for a person."""
        speed = self.timings.tokens_per_s(self.usage.completion_tokens)
        first = self.timings.first_token_s
        parts = [
            f"{self.usage.completion_tokens} tokens",
            f"{speed:.1f} tok/s" if speed else "",
            f"first token {first:.2f} s" if first is not None else "",
            f"finish {self.finish_reason}",
            f"plan {self.plan_id}",
        ]
        return " · ".join(part for part in parts if part)


def refused(index: int, error: DeepInferError, plan_id: str) -> Output:
    """The output of a request that never ran."""
    return Output(
        index, [], "", [], "error", Usage(0, 0), Timings(None, None), plan_id, error=error
    )


def finished(request: Request, plan_id: str) -> Output:
    """The output of a request that reached its end."""
    first, last = request.first_token_s, request.finished_s
    return Output(
        index=request.index,
        prompt_token_ids=list(request.prompt),
        text=request.text,
        token_ids=list(request.output),
        finish_reason=request.finish_reason or "abort",
        usage=Usage(request.prompt_tokens, len(request.output), request.cached_tokens),
        timings=Timings(
            None if first is None else first - request.arrived_s,
            None if last is None else last - request.arrived_s,
        ),
        plan_id=plan_id,
        seed=request.params.seed,
        logprobs=request.chosen if request.params.logprobs is not None else None,
        notes=request.notes,
        error=request.error,
    )
