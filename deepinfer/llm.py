"""The front door: prompts go in, answers come out.

In: prompts or conversations, sampling parameters, a platform. Out: one Output per prompt, in order.
Does not know: kernels, caches, how a step is made.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from deepinfer.engine.loop import Loop
from deepinfer.engine.request import Delta, Request, Words
from deepinfer.errors import DeepInferError, RequestError, UsageError
from deepinfer.open import load_model, plan_model
from deepinfer.output import Output, finished, refused
from deepinfer.sample.params import SamplingParams
from deepinfer.settings import Settings
from deepinfer.text import chat
from deepinfer.text.stream import TextStream

RAW_TOKENS = 16
"""Default `max_tokens` of a raw completion; a chat may use the rest of the context."""

Prompt = str | Sequence[int]
Sampling = SamplingParams | Sequence[SamplingParams] | None


class BadPrompts(RequestError):
    """Some prompts were refused before any work; the message lists all of them."""


class Closed(UsageError):
    """The LLM was closed."""


class LLM:
    """A loaded model on a platform; use it as a context manager.

    >>> with LLM("tiny", platform="reference") as llm:                     # doctest: +SKIP
    ...     outputs = llm.generate(["Once upon a time"], SamplingParams(max_tokens=24))

    model     "tiny", a folder, or a Hugging Face id
    platform  a platform string such as "reference" or "triton_portable+nvidia_sm90", or "auto"
    settings  keywords of `deepinfer.settings.Settings`
    """

    def __init__(
        self, model: str | Path = "tiny", *, platform: str = "auto", **settings: Any
    ) -> None:
        quiet = bool(settings.pop("quiet", False))
        config = settings.pop("config", None)
        self.settings = Settings.load({"platform": platform, **settings}, file=config)
        opened = plan_model(model, self.settings)
        self.shape = opened.shape
        self.max_model_len = opened.max_model_len
        self._house, self.tokenizer = load_model(opened, quiet)
        self.plan = self._house.planned.plan
        self._loop: Loop | None = Loop(self._house, opened.step_tokens)

    @property
    def plan_id(self) -> str:
        """Id of the plan that every output names."""
        return self.plan.id

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt] | None = None,
        sampling: Sampling = None,
        *,
        sampling_params: Sampling = None,
        prompt_token_ids: Sequence[Sequence[int]] | None = None,
        errors: str = "raise",
    ) -> list[Output]:
        """Continues raw prompts (texts or token ids); one Output per prompt, in order.

        A text prompt begins with the begin token and is never read for control tokens. All
        prompts are checked first: faults are raised together, or with errors="return" each
        comes back as the Output of its prompt.
        """
        given = _only_one("sampling", sampling, "sampling_params", sampling_params)
        asked = _only_one("prompts", prompts, "prompt_token_ids", prompt_token_ids)
        made = self._raw_requests(_listed(asked), given)
        return self._answer(made, errors)

    def chat(
        self,
        messages: Sequence[Any],
        sampling: Sampling = None,
        *,
        sampling_params: Sampling = None,
        thinking: bool = False,
        effort: int | str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        errors: str = "raise",
    ) -> list[Output]:
        """Answers conversations: a list of messages, or a list of such lists.

        thinking  lets the model reason first; `effort` is 1..100 or low, high, max. The
                  reasoning comes back as Output.reasoning, calls of `tools` as Output.tool_calls
        """
        given = _only_one("sampling", sampling, "sampling_params", sampling_params)
        talks = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        options = {"thinking": thinking, "effort": effort, "tools": tools}
        return self._answer(self._chat_requests(talks, given, options), errors)

    def stream(
        self, prompts: Any, sampling: Sampling = None, *, as_chat: bool = False, **options: Any
    ) -> Iterator[Delta]:
        """Pieces of the answers as they come; closing the iterator ends the requests.

        Takes what `generate` takes or, with as_chat=True, what `chat` takes.
        """
        return iter(self.start(prompts, sampling, as_chat=as_chat, **options))

    def start(
        self, prompts: Any, sampling: Sampling = None, *, as_chat: bool = False, **options: Any
    ) -> Serving:
        """As `stream`, and the iterator also knows the whole outputs when it has ended."""
        if as_chat:
            one = bool(prompts) and isinstance(prompts[0], Mapping)
            made = self._chat_requests([prompts] if one else list(prompts), sampling, options)
        else:
            made = self._raw_requests(_listed(prompts), sampling)
        _raise_faults(made)
        return Serving(self, [request for request in made if isinstance(request, Request)])

    def close(self) -> None:
        """Lets go of weights and caches."""
        self._loop = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _raw_requests(self, prompts: list[Any], sampling: Sampling) -> list[Request | RequestError]:
        made: list[Request | RequestError] = []
        for index, (prompt, params) in enumerate(_paired(prompts, sampling)):
            try:
                ids = self._ids(index, prompt)
                words = TextStream(
                    self.tokenizer,
                    params.stop,
                    include_stop=params.include_stop_str_in_output,
                    skip_special=params.skip_special_tokens,
                )
                made.append(self._request(index, ids, params, RAW_TOKENS, words))
            except RequestError as error:
                made.append(error)
        return made

    def _chat_requests(
        self, talks: list[Any], sampling: Sampling, options: dict[str, Any]
    ) -> list[Request | RequestError]:
        made: list[Request | RequestError] = []
        for index, (messages, params) in enumerate(_paired(talks, sampling)):
            try:
                prompt = chat.render(messages, self.tokenizer, **options)
                words = chat.Assembler(
                    prompt,
                    self.tokenizer,
                    stop=params.stop,
                    include_stop=params.include_stop_str_in_output,
                )
                made.append(self._request(index, list(prompt.ids), params, None, words))
            except RequestError as error:
                made.append(type(error)(f"conversation {index}: {error}"))
        return made

    def _ids(self, index: int, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            return [self.tokenizer.bos_id, *self.tokenizer.encode(prompt)]
        ids = list(prompt)
        wrong = [one for one in ids if type(one) is not int or not 0 <= one < self.shape.vocab_size]
        if wrong:
            raise RequestError(
                f"prompt {index}: {wrong[0]!r} is no token id; ids are whole numbers from 0 to "
                f"{self.shape.vocab_size - 1}"
            )
        return ids or [self.tokenizer.bos_id]

    def _request(
        self, index: int, ids: list[int], params: SamplingParams, default: int | None, words: Words
    ) -> Request:
        """Checks one prompt against the context and fills in what was left open."""
        params.vocabulary_checks(self.shape.vocab_size)
        if params.n != 1:
            raise UsageError(
                f"n = {params.n}: several samples of one prompt are not in this version; "
                "give the prompt several times, with different seeds"
            )
        room = self.max_model_len - len(ids)
        if room < 1:
            raise RequestError(
                f"prompt {index} has {len(ids)} tokens, the context holds {self.max_model_len} "
                "and an answer needs at least one; shorten it or raise max_model_len"
            )
        wanted = params.with_default_max_tokens(room if default is None else default)
        assert wanted.max_tokens is not None
        bad_words = tuple(
            tuple(self.tokenizer.encode(start + word))
            for word in params.bad_words
            for start in ("", " ")
        )
        return Request(
            index=index,
            prompt=ids,
            params=replace_max(wanted, min(wanted.max_tokens, room)).seeded(),
            stop_ids=(self.tokenizer.eos_id,),
            words=words if params.detokenize and self.settings.decode_sequence else None,
            limit=self.max_model_len,
            bad_words=bad_words,
        )

    def _answer(self, made: list[Request | RequestError], errors: str) -> list[Output]:
        if errors not in ("raise", "return"):
            raise UsageError(f'errors = {errors!r}: must be "raise" or "return"')
        if errors == "raise":
            _raise_faults(made)
        for _ in self._serve([one for one in made if isinstance(one, Request)]):
            pass
        outputs = [
            self.output(one) if isinstance(one, Request) else refused(index, one, self.plan_id)
            for index, one in enumerate(made)
        ]
        failed = [output.error for output in outputs if output.error is not None]
        if errors == "raise" and failed:
            raise failed[0]
        return outputs

    def output(self, request: Request) -> Output:
        """The Output of a finished request, with reasoning and calls if it was a chat."""
        output = finished(request, self.plan_id)
        if not isinstance(request.words, chat.Assembler):
            return output
        message = request.words.message(output.finish_reason)
        usage = replace(output.usage, reasoning_tokens=request.words.reasoning_tokens)
        calls = [
            {
                "id": call.id,
                "name": call.name,
                "arguments": call.arguments,
                "is_whole": call.is_whole,
            }
            for call in message.tool_calls
        ]
        return replace(output, reasoning=message.reasoning_content, tool_calls=calls, usage=usage)

    def _serve(self, requests: list[Request]) -> Generator[Delta, None, None]:
        """Runs to the end; whatever stops it earlier gives every slot and block back."""
        if self._loop is None:
            raise Closed("this LLM is closed; make a new one")
        loop = self._loop
        try:
            for request in requests:
                loop.add(request)
            yield from loop.run()
        finally:
            for request in requests:
                loop.abort(request)


class Serving:
    """Running requests: iterate for the deltas; `outputs` are whole at the end or after close."""

    def __init__(self, llm: LLM, requests: list[Request]) -> None:
        self._llm, self._requests = llm, requests
        self._deltas = llm._serve(requests)

    def __iter__(self) -> Iterator[Delta]:
        return self._deltas

    def close(self) -> None:
        """Ends what still runs."""
        self._deltas.close()

    @property
    def outputs(self) -> list[Output]:
        """What there is of every answer."""
        return [self._llm.output(request) for request in self._requests]


def run(
    prompts: str | Sequence[Any],
    *,
    platform: str = "auto",
    model: str | Path = "tiny",
    sampling: Sampling = None,
    errors: str = "raise",
    as_chat: bool = True,
    **settings: Any,
) -> list[Output]:
    """Answers prompts in one call: load, answer, close.

    >>> run(["Tell me a story about a fox."], platform="reference")        # doctest: +SKIP

    Every prompt is the first message of a conversation of its own; as_chat=False continues it as
    raw text. A list of message dicts is a conversation as it is.
    """
    with LLM(model, platform=platform, **settings) as llm:
        if not as_chat:
            return llm.generate(prompts, sampling, errors=errors)
        return llm.chat([_conversation(one) for one in _listed(prompts)], sampling, errors=errors)


def _conversation(prompt: Any) -> Any:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def replace_max(params: SamplingParams, max_tokens: int) -> SamplingParams:
    """The same parameters with another `max_tokens`, never below `min_tokens`."""
    if params.max_tokens == max_tokens:
        return params
    return replace(params, max_tokens=max_tokens, min_tokens=min(params.min_tokens, max_tokens))


def _listed(prompts: Any) -> list[Any]:
    """One prompt or several: a text and a list of ids are one."""
    if prompts is None:
        raise UsageError("no prompt was given")
    if isinstance(prompts, str) or (prompts and all(type(one) is int for one in prompts)):
        return [prompts]
    return list(prompts)


def _paired(prompts: list[Any], sampling: Sampling) -> list[tuple[Any, SamplingParams]]:
    if sampling is None or isinstance(sampling, SamplingParams):
        return [(prompt, sampling or SamplingParams()) for prompt in prompts]
    if len(sampling) != len(prompts):
        raise UsageError(
            f"{len(sampling)} sampling parameters for {len(prompts)} prompts; give one, or as many"
        )
    return list(zip(prompts, sampling, strict=True))


def _only_one(name: str, value: Any, other_name: str, other: Any) -> Any:
    if value is not None and other is not None:
        raise UsageError(f"{name} and {other_name} were both given; they mean the same")
    return other if value is None else value


def _raise_faults(made: Sequence[Request | RequestError]) -> None:
    """All faults at once; a single one keeps its own class."""
    faults: list[DeepInferError] = [one for one in made if isinstance(one, RequestError)]
    if len(faults) == 1:
        raise faults[0]
    if faults:
        listed = "\n".join(f"  {fault}" for fault in faults)
        raise BadPrompts(f"{len(faults)} of {len(made)} prompts were refused\n{listed}")
