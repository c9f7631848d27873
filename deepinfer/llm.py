"""The front door: prompts go in, answers come out.

In: prompts or conversations, sampling parameters, a platform. Out: one Output per prompt, in order.
Does not know: kernels, caches, how a step is made.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from deepinfer.asking import Asked, Asker, Prompt, Sampling, enumerated, listed
from deepinfer.engine.loop import Loop, Rules
from deepinfer.engine.request import Delta, Request
from deepinfer.engine.trace import Trace
from deepinfer.errors import DeepInferError, RequestError, UsageError
from deepinfer.open import load_model, plan_model
from deepinfer.output import Output, finished, refused
from deepinfer.sample.params import SamplingParams
from deepinfer.serving import Box, Front, Serving
from deepinfer.settings import Settings
from deepinfer.text import chat

AHEAD = 2
"""Jobs that `answers` keeps waiting or running, for each that may run."""
Job = tuple[Any, Any, SamplingParams, bool]


class BadPrompts(RequestError):
    """Some prompts were refused before any work; the message lists all of them."""


class LLM:
    """A loaded model on a platform; use it as a context manager.

    >>> with LLM("tiny", platform="reference") as llm:                     # doctest: +SKIP
    ...     outputs = llm.generate(["Once upon a time"], SamplingParams(max_tokens=24))

    model     "tiny", a folder, or a Hugging Face id
    platform  a platform string such as "reference" or "triton_portable+nvidia_sm90", or "auto"
    settings  keywords of `deepinfer.settings.Settings`

    Methods that take prompts also take `priority` (higher goes first), `timeout_s`, and `salt`:
    cached prefixes are shared inside a salt only. Several threads may use one LLM.
    """

    def __init__(
        self, model: str | Path = "tiny", *, platform: str = "auto", **settings: Any
    ) -> None:
        quiet = bool(settings.pop("quiet", False))
        config = settings.pop("config", None)
        self.settings = Settings.load({"platform": platform, **settings}, file=config)
        logging.getLogger("deepinfer").setLevel(self.settings.log.upper())
        opened = plan_model(model, self.settings, any_devices=True)
        self.shape = opened.shape
        self.max_model_len = opened.max_model_len
        house, self.tokenizer = load_model(opened, quiet)
        self.plan = house.planned.plan
        rules = Rules(
            opened.step_tokens,
            opened.max_model_len,
            self.settings.max_num_seqs,
            self.settings.max_queued,
            self.settings.prefix,
            self.settings.replay,
            self.settings.async_scheduling,
        )
        self._loop = Loop(house, rules)
        if self.settings.trace is not None:
            self._loop.stats.trace = Trace(self.settings.trace)
        self._front = Front(self._loop)
        self._asker = Asker(
            self.tokenizer, self.shape.vocab_size, self.max_model_len, self.settings
        )

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
        **options: Any,
    ) -> list[Output]:
        """Continues raw prompts (texts or token ids); one Output per prompt, in order.

        A text prompt begins with the begin token and is never read for control tokens. All
        prompts are checked first: faults are raised together, or with errors="return" each
        comes back as the Output of its prompt.
        """
        given = _only_one("sampling", sampling, "sampling_params", sampling_params)
        asked = _only_one("prompts", prompts, "prompt_token_ids", prompt_token_ids)
        return self._answer(self._raw(listed(asked), given, options), errors)

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
        **options: Any,
    ) -> list[Output]:
        """Answers conversations: a list of messages, or a list of such lists.

        thinking  lets the model reason first; `effort` is 1..100 or low, high, max. The
                  reasoning comes back as Output.reasoning, calls of `tools` as Output.tool_calls
        """
        given = _only_one("sampling", sampling, "sampling_params", sampling_params)
        talks = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        template = {"thinking": thinking, "effort": effort, "tools": tools}
        return self._answer(self._talks(talks, given, template | options), errors)

    def stream(
        self, prompts: Any, sampling: Sampling = None, *, as_chat: bool = False, **options: Any
    ) -> Iterator[Delta]:
        """Pieces of the answers as they come; closing the iterator ends the requests.

        Takes what `generate` takes or, with as_chat=True, what `chat` takes.
        """
        return iter(self.start(prompts, sampling, as_chat=as_chat, **options))

    async def astream(
        self, prompts: Any, sampling: Sampling = None, *, as_chat: bool = False, **options: Any
    ) -> AsyncIterator[Delta]:
        """As `stream`, for asyncio: steps run in a thread and serve all readers at once."""
        serving = self.start(prompts, sampling, as_chat=as_chat, **options)
        try:
            async for delta in serving:
                yield delta
        finally:
            serving.close()

    def start(
        self, prompts: Any, sampling: Sampling = None, *, as_chat: bool = False, **options: Any
    ) -> Serving:
        """As `stream`, and the iterator also knows the whole outputs when it has ended; it can be
        read with `async for` too."""
        if as_chat:
            one = bool(prompts) and isinstance(prompts[0], Mapping)
            made = self._talks([prompts] if one else list(prompts), sampling, options)
        else:
            made = self._raw(listed(prompts), sampling, options)
        _raise_faults(made)
        return Serving(self._front, _good(made), self._outputs)

    def answers(self, jobs: Iterable[Job]) -> Iterator[tuple[Any, Output | DeepInferError]]:
        """Any number of jobs (key, prompt or messages, parameters, as_chat), as they end.

        Jobs are taken from the iterable only as room comes free; a bad one comes back as its error.
        """
        source, box = iter(jobs), Box(0)
        open_jobs: dict[int, tuple[Any, list[Request]]] = {}
        most, count, ended = AHEAD * self.settings.max_num_seqs, 0, False
        try:
            while open_jobs or not ended:
                while not ended and len(open_jobs) < most:
                    job = next(source, None)
                    if job is None:
                        ended = True
                        break
                    key, prompt, params, as_chat = job
                    make = self._asker.chat if as_chat else self._asker.raw
                    asked = self._asked(make, count, prompt, params)
                    if isinstance(asked, RequestError):
                        yield key, asked
                        continue
                    for request in asked:
                        request.streams = False
                    box.open += len(asked)
                    open_jobs[count] = key, asked
                    count += 1
                    self._front.add(asked, box)
                if open_jobs:
                    self._front.step()
                yield from self._ended(box.deltas, open_jobs)
        finally:
            self._front.abort([one for _, asked in open_jobs.values() for one in asked])

    def stats(self) -> dict[str, Any]:
        """What the engine measures about itself: queue, pools, hit rate, times of steps."""
        return self._front.loop.stats.as_dict()

    def close(self) -> None:
        """Ends what runs, and lets go of weights and caches."""
        self._front.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _raw(self, prompts: list[Any], sampling: Sampling, options: Any) -> list[Asked]:
        make = partial(self._asker.raw, **options)
        return [self._asked(make, *one) for one in enumerated(prompts, sampling)]

    def _talks(self, talks: list[Any], sampling: Sampling, options: Any) -> list[Asked]:
        template = {name: options[name] for name in TEMPLATE if name in options}
        rest = {name: value for name, value in options.items() if name not in TEMPLATE}
        make = partial(self._asker.chat, template=template, **rest)
        return [self._asked(make, *one) for one in enumerated(talks, sampling)]

    def _asked(
        self, make: Callable[..., list[Request]], index: int, prompt: Any, params: SamplingParams
    ) -> Asked:
        """Requests of one prompt, or its error: it fails alone, before any work."""
        try:
            made = make(index, prompt, params)
            self._loop.scheduler.check(made[0])
        except RequestError as error:
            return error
        return made

    def _ended(
        self, deltas: deque[Delta], open_jobs: dict[int, tuple[Any, list[Request]]]
    ) -> Iterator[tuple[Any, Output]]:
        """Jobs of which every sample has its end."""
        while deltas:
            delta = deltas.popleft()
            if delta.finish_reason is None:
                continue
            key, asked = open_jobs[delta.index]
            if all(request.is_finished for request in asked):
                del open_jobs[delta.index]
                yield key, self._output(asked)

    def _answer(self, made: list[Asked], errors: str) -> list[Output]:
        if errors not in ("raise", "return"):
            raise UsageError(f'errors = {errors!r}: must be "raise" or "return"')
        if errors == "raise":
            _raise_faults(made)
        good = _good(made)
        for request in good:
            request.streams = False
        serving = Serving(self._front, good, self._outputs)
        try:
            for _ in serving:
                pass
        finally:
            serving.close()
        outputs = [
            refused(at, one, self.plan_id) if isinstance(one, RequestError) else self._output(one)
            for at, one in enumerate(made)
        ]
        failed = [output.error for output in outputs if output.error is not None]
        if errors == "raise" and failed:
            raise failed[0]
        return outputs

    def _outputs(self, requests: Sequence[Request]) -> list[Output]:
        """One Output for each prompt among the requests."""
        by_prompt: dict[int, list[Request]] = {}
        for request in requests:
            by_prompt.setdefault(request.index, []).append(request)
        return [self._output(asked) for asked in by_prompt.values()]

    def _output(self, asked: Sequence[Request]) -> Output:
        """The Output of the requests of one prompt, with reasoning and calls if it was a chat."""
        outputs = [_spoken(request, finished(request, self.plan_id)) for request in asked]
        if len(outputs) == 1:
            return outputs[0]
        return replace(outputs[0], samples=outputs)


def _good(made: Sequence[Asked]) -> list[Request]:
    return [one for asked in made if not isinstance(asked, RequestError) for one in asked]


TEMPLATE = ("thinking", "effort", "tools")


def _spoken(request: Request, output: Output) -> Output:
    """Reasoning and tool calls of a chat."""
    if not isinstance(request.words, chat.Assembler):
        return output
    message = request.words.message(output.finish_reason)
    usage = replace(output.usage, reasoning_tokens=request.words.reasoning_tokens)
    calls = [
        {"id": call.id, "name": call.name, "arguments": call.arguments, "is_whole": call.is_whole}
        for call in message.tool_calls
    ]
    return replace(output, reasoning=message.reasoning_content, tool_calls=calls, usage=usage)


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
        return llm.chat([_conversation(one) for one in listed(prompts)], sampling, errors=errors)


def _conversation(prompt: Any) -> Any:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def _only_one(name: str, value: Any, other_name: str, other: Any) -> Any:
    if value is not None and other is not None:
        raise UsageError(f"{name} and {other_name} were both given; they mean the same")
    return other if value is None else value


def _raise_faults(made: Sequence[Asked]) -> None:
    """All faults at once; a single one keeps its own class."""
    faults: list[DeepInferError] = [one for one in made if isinstance(one, RequestError)]
    if len(faults) == 1:
        raise faults[0]
    if faults:
        listed = "\n".join(f"  {fault}" for fault in faults)
        raise BadPrompts(f"{len(faults)} of {len(made)} prompts were refused\n{listed}")
