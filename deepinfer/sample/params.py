"""Sampling parameters: how one request wants its tokens chosen, checked before anything runs.

In: keywords. Out: a frozen `SamplingParams`, or an error that names field, value and range.
Does not know: tensors, tokenizers; ids are compared with a vocabulary when its size is known.
"""

# ruff: noqa: RUF009 (_field makes the fields of the dataclass)

from __future__ import annotations

import difflib
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

from deepinfer.errors import UsageError
from deepinfer.sample import ranges
from deepinfer.sample.ranges import Bad, Check

GREEDY_BELOW = 1e-5
MOST_LOGPROBS = 1000
MOST_TOP_K = (1 << 31) - 1  # any larger number is beyond every vocabulary
MASK_64 = (1 << 64) - 1
_LOGPROBS = ranges.optional(ranges.whole(-1, MOST_LOGPROBS))


class SamplingError(UsageError):
    """A sampling parameter is unknown, out of its range, or asks for what this version lacks."""


def _field(default: Any, check: Check) -> Any:
    """One parameter: its default and the check that also brings a value into its one form."""
    metadata = {"check": check}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata, hash=False)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, init=False)
class SamplingParams:
    """How to choose tokens (DSpark and sampling 5.1). Every name is a keyword.

    >>> SamplingParams(temperature=0, max_tokens=24).greedy
    True
    """

    temperature: float = _field(1.0, ranges.number(0.0, ranges.LARGEST_F32))
    top_k: int = _field(-1, ranges.whole(-1, MOST_TOP_K))
    top_p: float = _field(1.0, ranges.number(0.0, 1.0, open_low=True))
    min_p: float = _field(0.0, ranges.number(0.0, 1.0))
    presence_penalty: float = _field(0.0, ranges.number(-2.0, 2.0))
    frequency_penalty: float = _field(0.0, ranges.number(-2.0, 2.0))
    repetition_penalty: float = _field(
        1.0, ranges.number(ranges.SMALLEST_F32, ranges.LARGEST_F32)
    )
    logit_bias: dict[int, float] = _field({}, ranges.biases(-100.0, 100.0))
    bad_words: tuple[str, ...] = _field((), ranges.texts)
    allowed_token_ids: tuple[int, ...] | None = _field(None, ranges.optional(ranges.some_ids))
    min_tokens: int = _field(0, ranges.whole(0))
    max_tokens: int | None = _field(None, ranges.optional(ranges.whole(1)))
    stop: tuple[str, ...] = _field((), ranges.texts)
    stop_token_ids: tuple[int, ...] = _field((), ranges.ids)
    ignore_eos: bool = _field(False, ranges.switch)
    include_stop_str_in_output: bool = _field(False, ranges.switch)
    n: int = _field(1, ranges.whole(1))
    seed: int | None = _field(None, ranges.optional(ranges.whole(0, MASK_64)))
    logprobs: int | None = _field(None, _LOGPROBS)
    skip_special_tokens: bool = _field(True, ranges.switch)
    detokenize: bool = _field(True, ranges.switch)

    def __init__(self, **given: Any) -> None:
        wanted = _own_names(given)
        for one in fields(self):
            default = one.default if one.default is not MISSING else {}
            value = _checked(one.name, wanted.get(one.name, default), one.metadata["check"])
            object.__setattr__(self, one.name, value)
        self._check_together()

    def _check_together(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise SamplingError(
                f"min_tokens = {self.min_tokens}: must be at most max_tokens = {self.max_tokens}"
            )
        if self.stop and not self.detokenize:
            raise SamplingError(
                f"stop = {list(self.stop)!r}: stop strings need text, and detokenize is False; "
                "use stop_token_ids"
            )

    @property
    def greedy(self) -> bool:
        """Whether the best token is taken, the lowest id on ties, without any noise."""
        return self.temperature < GREEDY_BELOW

    def seeded(self) -> SamplingParams:
        """These parameters with a seed: their own, or one drawn now (to be reported)."""
        return self if self.seed is not None else replace(self, seed=secrets.randbits(64))

    def with_default_max_tokens(self, count: int) -> SamplingParams:
        """These parameters with a `max_tokens`: their own, or `count`, lifted to `min_tokens`."""
        if self.max_tokens is not None:
            return self
        return replace(self, max_tokens=max(count, self.min_tokens))

    def stream_seed(self, stream: int = 0) -> int:
        """Seed of sample `stream` of `n` (5.3): stream 0 of any n is the stream of n = 1."""
        if self.seed is None:
            raise SamplingError("seed = None: no seed is drawn yet; call seeded() once per request")
        if not 0 <= stream < self.n:
            raise SamplingError(f"stream {stream}: must be from 0 to {self.n - 1} (n = {self.n})")
        return self.seed ^ split_mix(stream) if stream else self.seed

    def alternatives(self, vocabulary: int) -> int | None:
        """How many best tokens to report beside the chosen one; None reports nothing at all."""
        if self.logprobs is None:
            return None
        return vocabulary if self.logprobs < 0 else min(self.logprobs, vocabulary)

    def vocabulary_checks(self, size: int) -> None:
        """Every id that the caller named is one of `size` tokens, or a SamplingError."""
        named: dict[str, Iterable[int]] = {
            "stop_token_ids": self.stop_token_ids,
            "allowed_token_ids": self.allowed_token_ids or (),
            "logit_bias": self.logit_bias,
        }
        for name, token_ids in named.items():
            strangers = [token_id for token_id in token_ids if token_id >= size]
            if strangers:
                raise SamplingError(
                    f"{name} = {strangers[0]}: must be a token id from 0 to {size - 1}, "
                    f"the vocabulary has {size} tokens"
                )


def split_mix(state: int) -> int:
    """Output of SplitMix64 for a state (5.3): decides the seeds of further samples."""
    z = (state + 0x9E3779B97F4A7C15) & MASK_64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK_64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK_64
    return z ^ (z >> 31)


# Names of later steps and of the original: the values that ask for nothing, and what is missing.
_LATER: dict[str, tuple[tuple[Any, ...], str]] = {
    "prompt_logprobs": ((None, False), "log-probabilities of the prompt are"),
    "logprob_token_ids": ((None,), "log-probabilities of given ids are"),
    "logprobs_mode": ((None, "raw"), "log-probabilities after filters and penalties are"),
    "filter_order": ((None, "k_p_min"), "the order top-p before top-k is"),
    "coupling": ((None, "auto", "gumbel"), "rejection and block verification of drafts are"),
    "so_args": ((None,), "structured output is"),
    "golden_token_ids": ((None,), "forcing of tokens is"),
    "first_n_token_no_eos": ((None, 0), "banning the end at first is (min_tokens is)"),
    "eos_id": ((None, 0), "another end token is (stop_token_ids and ignore_eos are)"),
    "spaces_between_special_tokens": ((None, True), "joining special tokens without spaces is"),
    "priority": ((None, 0), "priorities are"),
    "deadline": ((None,), "deadlines are"),
}
_ALIASES = {"seq_seed": "seed", "top_logprobs": "logprobs"}


def _own_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords under this version's names; unknown ones and unmet wishes are errors."""
    own = {one.name for one in fields(SamplingParams)}
    wanted = {name: value for name, value in given.items() if name in own}
    for name, value in given.items():
        if name in own or name in _ALIASES:
            continue
        if name not in _LATER:
            raise _unknown(name, [*own, *_LATER, *_ALIASES])
        neutral, missing = _LATER[name]
        if not any(type(value) is type(same) and value == same for same in neutral):
            raise SamplingError(
                f"{name} = {value!r}: {missing} not in this version; leave {name} out"
            )
    _merge_seeds(wanted, given)
    _merge_logprobs(wanted, given)
    return wanted


def _merge_seeds(wanted: dict[str, Any], given: Mapping[str, Any]) -> None:
    if given.get("seq_seed") is None:
        return
    if wanted.get("seed") not in (None, given["seq_seed"]):
        raise SamplingError(
            f"seq_seed = {given['seq_seed']!r}: is another name of seed, "
            f"and seed = {wanted['seed']!r} says something else"
        )
    wanted["seed"] = given["seq_seed"]


def _merge_logprobs(wanted: dict[str, Any], given: Mapping[str, Any]) -> None:
    """`logprobs` may be a switch with its number in `top_logprobs`, as in the OpenAI interface."""
    said, number = given.get("logprobs"), given.get("top_logprobs")
    if isinstance(said, bool):
        wanted["logprobs"] = 0 if said else None
    number = _checked("top_logprobs", number, _LOGPROBS)
    if number is None or (number == 0 and not said):
        return  # 0 is the original's way to say nothing
    if said is not None and said is not True and said != number:
        raise SamplingError(
            f"top_logprobs = {number!r}: contradicts logprobs = {said!r}; give one of the two"
        )
    wanted["logprobs"] = number


def _checked(name: str, value: Any, check: Check) -> Any:
    try:
        return check(value)
    except Bad as bad:
        written = repr(value)
        shown = written if len(written) <= 80 else f"{written[:80]}..."
        raise SamplingError(f"{name} = {shown}: must be {bad}") from None


def _unknown(name: str, known: Iterable[str]) -> SamplingError:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    advice = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(names)}"
    return SamplingError(f"{name}: no such sampling parameter; {advice}")
