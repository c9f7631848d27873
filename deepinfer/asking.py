"""Asking: prompts and conversations become requests, each checked alone, before any work.

In: texts, ids or messages, sampling parameters. Out: per prompt its requests, one for each of its
`n` samples, or its error. Does not know: who serves them, when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from deepinfer.engine.request import Request, Words
from deepinfer.errors import RequestError, UsageError
from deepinfer.sample.params import SamplingParams
from deepinfer.settings import Settings
from deepinfer.text import chat
from deepinfer.text.stream import TextStream

RAW_TOKENS = 16
"""Default `max_tokens` of a raw completion; a chat may use the rest of the context."""

Prompt = str | Sequence[int]
Sampling = SamplingParams | Sequence[SamplingParams] | None
Asked = list[Request] | RequestError


class Asker:
    """Makes requests for one model. A model without a tokenizer takes and gives ids only."""

    def __init__(self, tokenizer: Any, vocabulary: int, limit: int, settings: Settings) -> None:
        self.tokenizer, self.vocabulary, self.limit = tokenizer, vocabulary, limit
        self.settings = settings

    def raw(self, index: int, prompt: Any, params: SamplingParams, **options: Any) -> list[Request]:
        """Requests that continue a text or ids. options: priority, timeout_s, salt."""
        ids = self._ids(index, prompt)
        words = None
        if params.detokenize and self.settings.decode_sequence and self.tokenizer is not None:
            words = partial(
                TextStream,
                self.tokenizer,
                params.stop,
                include_stop=params.include_stop_str_in_output,
                skip_special=params.skip_special_tokens,
            )
        made = self._requests(index, ids, params, RAW_TOKENS, words, options)
        for request in made:
            request.ends_by_text = bool(params.stop)
        return made

    def chat(
        self,
        index: int,
        messages: Any,
        params: SamplingParams,
        template: Mapping[str, Any],
        **options: Any,
    ) -> list[Request]:
        """Requests that answer a conversation. template: thinking, effort, tools."""
        self._needs_text(f"conversation {index}")
        try:
            prompt = chat.render(messages, self.tokenizer, **template)
            words = partial(
                chat.Assembler,
                prompt,
                self.tokenizer,
                stop=params.stop,
                include_stop=params.include_stop_str_in_output,
            )
            wanted = words if params.detokenize and self.settings.decode_sequence else None
            made = self._requests(index, list(prompt.ids), params, None, wanted, options)
        except RequestError as error:
            raise type(error)(f"conversation {index}: {error}") from error
        for request in made:
            request.continues = True
        return made

    def _ids(self, index: int, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            self._needs_text(f"prompt {index}")
            return [self.tokenizer.bos_id, *self.tokenizer.encode(prompt)]
        ids = list(prompt)
        wrong = [one for one in ids if type(one) is not int or not 0 <= one < self.vocabulary]
        if wrong:
            raise RequestError(
                f"prompt {index}: {wrong[0]!r} is no token id; ids are whole numbers from 0 to "
                f"{self.vocabulary - 1}"
            )
        return ids or [0 if self.tokenizer is None else self.tokenizer.bos_id]

    def _needs_text(self, what: str) -> None:
        if self.tokenizer is None:
            raise RequestError(f"{what}: this model has no tokenizer; give token ids")

    def _requests(
        self,
        index: int,
        ids: list[int],
        params: SamplingParams,
        default: int | None,
        words: Callable[[], Words] | None,
        options: Mapping[str, Any],
    ) -> list[Request]:
        """Checks one prompt against the context and fills in what was left open."""
        params.vocabulary_checks(self.vocabulary)
        room = self.limit - len(ids)
        if room < 1:
            raise RequestError(
                f"prompt {index} has {len(ids)} tokens, the context holds {self.limit} "
                "and an answer needs at least one; shorten it or raise max_model_len"
            )
        wanted = params.with_default_max_tokens(room if default is None else default)
        assert wanted.max_tokens is not None
        settled = with_most(wanted, min(wanted.max_tokens, room)).seeded()
        make = partial(
            Request,
            index=index,
            tokens=ids,
            params=settled,
            stop_ids=() if self.tokenizer is None else (self.tokenizer.eos_id,),
            make_words=words,
            limit=self.limit,
            bad_words=self._bad_words(params),
            **_placed(options),
        )
        first = make()
        return [first, *(make(sample=number, leader=first) for number in range(1, params.n))]

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        if params.bad_words:
            self._needs_text("bad_words")
        return tuple(
            tuple(self.tokenizer.encode(start + word))
            for word in params.bad_words
            for start in ("", " ")
        )


def _placed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a request as its fields; `timeout_s` counts from now."""
    from time import perf_counter

    known = {"priority": 0, "timeout_s": None, "salt": ""}
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise UsageError(f"{unknown[0]}: no such option; there are {', '.join(known)}")
    priority, timeout, salt = ({**known, **options}[name] for name in known)
    if type(priority) is not int:
        raise UsageError(f"priority = {priority!r}: must be a whole number")
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        raise UsageError(f"timeout_s = {timeout!r}: must be a number of seconds above 0")
    deadline = None if timeout is None else perf_counter() + timeout
    return {"priority": priority, "deadline_s": deadline, "salt": str(salt).encode()}


def with_most(params: SamplingParams, max_tokens: int) -> SamplingParams:
    """The same parameters with another `max_tokens`, never below `min_tokens`."""
    if params.max_tokens == max_tokens:
        return params
    return replace(params, max_tokens=max_tokens, min_tokens=min(params.min_tokens, max_tokens))


def listed(prompts: Any) -> list[Any]:
    """One prompt or several: a text and a list of ids are one."""
    if prompts is None:
        raise UsageError("no prompt was given")
    if isinstance(prompts, str) or (prompts and all(type(one) is int for one in prompts)):
        return [prompts]
    return list(prompts)


def enumerated(
    prompts: list[Any], sampling: Sampling
) -> list[tuple[int, Any, SamplingParams]]:
    """Every prompt with its number and its parameters."""
    if sampling is None or isinstance(sampling, SamplingParams):
        sampling = [sampling or SamplingParams()] * len(prompts)
    if len(sampling) != len(prompts):
        raise UsageError(
            f"{len(sampling)} sampling parameters for {len(prompts)} prompts; give one, or as many"
        )
    return list(zip(range(len(prompts)), prompts, sampling, strict=True))
