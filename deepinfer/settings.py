"""Settings: what a person can choose, where each choice came from, and the only look at os.environ.

In: arguments, a project file, the environment. Out: a frozen, checked `Settings`.
Does not know: models, devices, requests.
"""

# ruff: noqa: RUF009 (row makes the fields of the dataclass)

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from deepinfer.errors import SettingError
from deepinfer.values import (
    PAIRS,
    PATH,
    SWITCH,
    TEXT,
    BadValue,
    Kind,
    choice,
    number,
    numbers,
    optional,
    whole,
)
from deepinfer.variables import (
    ACCELERATOR,
    ACCELERATORS,
    NEUTRAL,
    PREFIX,
    REPLACED,
    SPELLINGS,
    VARIABLES,
    Variable,
)

AUTO = "auto"
DEFAULT = "default"


def row(
    default: Any, kind: Kind, doc: str, *, later: str = "", ready: Any = (), secret: bool = False
) -> Any:
    """One setting. `later` names the feature that this version lacks: only the default is taken,
    and the values that are `ready`."""
    metadata = {"kind": kind, "doc": doc, "later": later, "default": default, "secret": secret}
    metadata["ready"] = (default, *ready)
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata, hash=False)
    return field(default=default, metadata=metadata, repr=not secret)


_DRAFTS = "speculative decoding with draft tokens"
_REPLAY = "approximate replay of a prefill"
_MIXED = "the choice between mixed and separate prefill steps"
_GRAMMAR = "structured output"
_EPLB = "balancing of experts over ranks"
_RING = "setting a sequence back"


def calm_threads() -> None:
    """Waiting OpenMP threads sleep, unless the caller's environment says how they wait.

    They spin otherwise, and on a busy machine a step then takes twenty times as long. Works only
    before torch is loaded; child processes inherit it. Source: docs/decisions.md, l.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@dataclass(frozen=True)
class Settings:
    """Names follow the engine specification 1.2 and 1.3; `Settings.load` is the usual way in."""

    platform: str = row(AUTO, TEXT, "platform string: layers joined by +, or auto")
    ops: dict[str, str] = row({}, PAIRS, "operator to kernel, over the platform's own choice")
    allow_unverified: bool = row(False, SWITCH, "take kernels that never ran on hardware")
    cache_dir: Path = row(Path("~/.cache/deepinfer"), PATH, "folder for what can be made again")
    log: str = row("warning", choice("debug", "info", "warning", "error"), "log level")
    api_key: str | None = row(None, optional(TEXT), "key that the server asks for", secret=True)
    hf_model_dir: Path | None = row(
        None, optional(PATH), "folder that stands for every Hugging Face id"
    )
    revision: str | None = row(None, optional(TEXT), "branch, tag or commit of a Hugging Face id")
    accumulate: str = row(
        "float32", choice("float32", "float64"), "width of sums; float64 is order-independent"
    )
    rounding: str = row(
        "official", choice("official", "none"), "round as the release does, or nowhere"
    )
    selection: str = row(
        "exact", choice("exact", "release"), "index scores and ties as specified, or as released"
    )
    max_model_len: int | None = row(
        None, optional(whole(1)), "longest prompt plus output; none: what model and memory allow"
    )
    max_num_seqs: int = row(256, whole(1), "most sequences that run at once")
    max_tokens_per_step: int | None = row(
        None, optional(whole(1)), "most rows of one step; none: chosen by the engine"
    )
    kv_blocks: int | None = row(
        None, optional(whole(1)), "cache blocks; none: room for four sequences of full length"
    )
    max_queued: int | None = row(
        None, optional(whole(1)), "requests that may wait; none: any number"
    )
    gpu_memory_utilization: float = row(
        0.9, number(0.0, 1.0), "part of the device memory that the plan may use"
    )
    decode_sequence: bool = row(True, SWITCH, "make text; off returns ids only")

    trace: Path | None = row(
        None, optional(PATH), "file for a trace of steps, for Perfetto or chrome://tracing"
    )

    drafts: int = row(0, whole(0), "largest number of draft tokens per step", later=_DRAFTS)
    verify: str = row(
        "fixed", choice("fixed", "confidence"), "how many drafts are verified", later=_DRAFTS
    )
    confidence_temperature: tuple[float, ...] = row(
        (1.0,), numbers(0.0), "calibration of draft confidences, one or one per draft",
        later=_DRAFTS,
    )
    max_backtracking: int | None = row(
        None, optional(whole(0)), "rows a sequence may be set back; none: drafts + 1", later=_RING
    )
    replay: str = row(
        "exact", choice("off", "exact", "mask", "compact"),
        "leave out prompt rows that cannot reach the last token", later=_REPLAY, ready=("off",),
    )
    replay_keep: int = row(0, whole(0), "rows kept by replay mask and compact", later=_REPLAY)
    prefix: str = row(
        "exact", choice("off", "exact", "fast"), "reuse of equal prompt heads; fast is approximate"
    )
    determinism: str = row(
        "off", choice("off", "batch"), "same bits whatever the batch", later="batch invariance"
    )
    async_scheduling: bool = row(True, SWITCH, "plan a step while one runs")
    mixed: bool = row(True, SWITCH, "prefill and decode in one step", later=_MIXED)
    prefill_attempt_interval: int = row(
        70, whole(1), "decode steps between prefill votes", later=_MIXED
    )
    any_attempt_interval: int = row(
        100, whole(1), "decode steps between votes of any kind", later=_MIXED
    )
    max_prefill_context: int | None = row(
        None, optional(whole(1)), "cap on the summed context of a prefill step", later=_MIXED
    )
    graphs: bool = row(False, SWITCH, "capture steps as graphs", later="graph capture")
    graph_sizes: int = row(8, whole(1), "spacing of captured sizes", later="graph capture")
    grammar_timeout: float = row(20.0, number(0.0), "seconds to compile one", later=_GRAMMAR)
    grammar_cache_bytes: int = row(10 << 30, whole(0), "compiled grammars kept", later=_GRAMMAR)
    grammar_threads: int = row(4, whole(1), "threads that compile grammars", later=_GRAMMAR)
    eplb_interval: int = row(0, whole(0), "steps between rebalancings; 0 is off", later=_EPLB)
    eplb_window: int = row(100, whole(1), "steps that are counted", later=_EPLB)
    eplb_redundant: int = row(0, whole(0), "extra copies of experts", later=_EPLB)
    eplb_count_prefill: bool = row(False, SWITCH, "count prefill rows too", later=_EPLB)
    engram: str = row(
        "auto", choice("auto", "host", "device"), "where Engram tables live",
        later="choosing the place of Engram tables",
    )
    window_slots: float = row(
        1.2, number(1.0), "window slots per running request; at least two more than those"
    )
    collective_timeout: float = row(
        60.0, number(0.0), "seconds before a silent rank ends all", later="running on many ranks"
    )
    origins: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def load(
        cls,
        arguments: Mapping[str, Any],
        *,
        environment: Mapping[str, str] | None = None,
        file: str | Path | None = None,
    ) -> Settings:
        """Argument over project file over environment over default.

        None, and "auto" as platform, say nothing: the next source decides.
        """
        read = os.environ if environment is None else environment
        found, origins, accelerator = _from_environment(read)
        by_file = _from_file(file)
        by_argument = _from_keywords(arguments, "argument")
        found |= by_file | by_argument
        origins |= dict.fromkeys(by_file, f"file {Path(file or '').name}")
        origins |= dict.fromkeys(by_argument, "argument")
        if accelerator:
            origins.setdefault("platform", f"environment {ACCELERATOR}")
            found["platform"] = _agreed(found.get("platform"), accelerator, origins["platform"])
        return cls(**{_row(name).name: value for name, value in found.items()}, origins=origins)

    def __post_init__(self) -> None:
        for name, one in ROWS.items():
            try:
                checked = one.metadata["kind"].checked(self[name])
            except BadValue as bad:
                raise self._refusal(name, f"must be {bad}") from None
            object.__setattr__(self, one.name, checked)
        self._check_backtracking()
        for name in ROWS:
            self._check_version(name)

    def __getitem__(self, name: str) -> Any:
        """A setting by its name; settings of a group have a dot in it (eplb.interval)."""
        return getattr(self, _row(name).name)

    def origin(self, name: str) -> str:
        """Who set it: argument, file NAME, environment VARIABLE, or default."""
        _row(name)  # an unknown name is an error, not a default
        return self.origins.get(name, DEFAULT)

    def said(self) -> list[tuple[str, str, str]]:
        """(name, value, origin) of everything that somebody set; keys are never shown."""
        given = [name for name in ROWS if name in self.origins]
        return [(name, self._shown(name), self.origins[name]) for name in given]

    def modes(self) -> dict[str, str]:
        """The numerics that a plan is asked for."""
        return {name: self[name] for name in ("accumulate", "rounding", "selection")}

    @property
    def backtracking(self) -> int:
        """Rows a sequence may be set back (DSpark and sampling 4.3)."""
        return self.drafts + 1 if self.max_backtracking is None else self.max_backtracking

    def check_model(self, *, window: int, block: int, limit: int | None = None) -> None:
        """The settings that only make sense beside a model: its window, draft block, positions."""
        if self.drafts > block:
            raise self._refusal("drafts", f"this model drafts at most {block} tokens")
        least = window + self.backtracking
        if self.replay in ("mask", "compact") and self.replay_keep < least:
            arithmetic = f"{window} + {self.backtracking} = {least}"
            raise self._refusal(
                "replay_keep", f"must be at least window + max_backtracking = {arithmetic}"
            )
        if limit is not None and (self.max_model_len or 0) > limit:
            raise self._refusal("max_model_len", f"this model has {limit} positions")

    def _check_backtracking(self) -> None:
        least = self.drafts + 1
        if self.max_backtracking is not None and self.max_backtracking < least:
            raise self._refusal(
                "max_backtracking", f"must be at least drafts + 1 = {self.drafts} + 1 = {least}"
            )

    def _check_version(self, name: str) -> None:
        keys = ("default", "later", "ready")
        default, later, ready = (_row(name).metadata[key] for key in keys)
        plain = (default, self.drafts + 1) if name == "max_backtracking" else ready
        if later and self[name] not in plain:
            advice = "" if default is None else f" or set it to {_plain(default)}"
            raise self._refusal(name, f"{later} is not in this version; leave it out{advice}")

    def _shown(self, name: str) -> str:
        return "set" if _row(name).metadata["secret"] else _plain(self[name])

    def _refusal(self, name: str, why: str) -> SettingError:
        origin = self.origins.get(name)
        place = f" ({origin})" if origin else ""
        return SettingError(f"{name} = {self._shown(name)}{place}: {why}")


ROWS: dict[str, Field[Any]] = {
    one.name.replace("eplb_", "eplb."): one for one in fields(Settings) if one.metadata
}


@dataclass(frozen=True)
class Name:
    """What the documentation says about one setting."""

    name: str
    default: str
    takes: str
    doc: str
    variables: tuple[str, ...]
    later: str


def names() -> list[Name]:
    """Every setting there is, for the documentation and `doctor`."""
    return [
        Name(
            name,
            _plain(one.metadata["default"]),
            one.metadata["kind"].words,
            one.metadata["doc"],
            tuple(each.full_name for each in VARIABLES if each.setting == name),
            one.metadata["later"],
        )
        for name, one in ROWS.items()
    ]


def assignments(words: Iterable[str]) -> dict[str, Any]:
    """`key=value` words of a command line as keywords for `Settings.load`."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise SettingError(f"--set {word}: write it as key=value")
        if name in found:
            raise SettingError(f"--set {word}: {name} is set twice")
        if name in NEUTRAL:
            raise SettingError(f"--set {word}: {NEUTRAL[name].why}")
        try:
            found[name] = _row(name).metadata["kind"].from_text(text)
        except BadValue as bad:
            raise SettingError(f"--set {word}: must be {bad}") from None
    return found


def _row(name: str) -> Field[Any]:
    name = SPELLINGS.get(name, name)
    if name not in ROWS:
        raise SettingError(f"{name}: no such setting; {_near(name, [*ROWS, *NEUTRAL])}")
    return ROWS[name]


def _near(name: str, known: Iterable[str]) -> str:
    choices = sorted(known)
    near = difflib.get_close_matches(name.lower(), choices, n=3, cutoff=0.6)
    near = near or difflib.get_close_matches(name.lower(), choices, n=1, cutoff=0.0)
    return f"did you mean {' or '.join(near)}?"


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_plain, value))
    if isinstance(value, dict):
        return ",".join(f"{key}={kernel}" for key, kernel in value.items()) or "none"
    return "none" if value is None else str(value)


def _from_keywords(given: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Named values, groups opened; what says nothing is left out."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name == "eplb" and isinstance(value, Mapping):
            inner = {f"eplb.{key}": one for key, one in value.items()}
            found |= _from_keywords(inner, origin)
        elif name in NEUTRAL:
            _take_neutral(name, value, origin)
        else:
            _row(name)  # an unknown name is an error even where its value says nothing
            if value is not None and (name, value) != ("platform", AUTO):
                own = SPELLINGS.get(name, name)
                if found.setdefault(own, value) is not value and found[own] != value:
                    raise SettingError(f"{name} and {own} ({origin}) mean the same; set one")
    return found


def _take_neutral(name: str, value: Any, origin: str) -> None:
    one = NEUTRAL[name]
    same = value is None or any(type(value) is type(v) and value == v for v in one.values)
    if not same:
        raise SettingError(f"{name} = {value!r} ({origin}): {one.why}")


def _from_file(file: str | Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        content = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as cause:
        reason = cause.strerror or type(cause).__name__
        raise SettingError(f"project file {file}: {reason}") from cause
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as cause:
        raise SettingError(f"project file {file} is not TOML: {cause}") from cause
    return _from_keywords(content, f"file {Path(file).name}")


def _from_environment(environment: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str], str]:
    """Values and origins by setting, and what ACCELERATOR says; any unknown name is an error."""
    known = {one.full_name: one for one in VARIABLES}
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known:
            raise SettingError(_stranger(name))
    found: dict[str, Any] = {}
    origins: dict[str, str] = {}
    accelerator = ""
    for name, one in known.items():
        value = _read(one, environment[name]) if name in environment else None
        if name == ACCELERATOR and value is not None:
            accelerator = value
        elif value is not None and (one.setting, value) != ("platform", AUTO):
            found[one.setting] = value
            origins[one.setting] = f"environment {name}"
    return found, origins, accelerator


def _stranger(name: str) -> str:
    bare = name.removeprefix(PREFIX)
    if bare in REPLACED:
        return f"{name}: {REPLACED[bare]}"
    known = [one.full_name for one in VARIABLES]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
    return f"{name}: no such environment variable; did you mean {near}?"


def _read(one: Variable, text: str) -> Any:
    kind: Kind = ROWS[one.setting].metadata["kind"]
    words = one.words or kind.words
    try:
        value = one.read(text, kind)
        if one.full_name == ACCELERATOR and value not in ACCELERATORS:
            raise BadValue(words)
        # through the check here, so that the message names the variable
        return None if value is None else kind.checked(value)
    except ValueError:
        secret = ROWS[one.setting].metadata["secret"]
        shown = "" if secret else f" = {text!r}"
        raise SettingError(f"{one.full_name}{shown}: must be {words}") from None


def _agreed(platform: str | None, accelerator: str, origin: str) -> str:
    """The platform that ACCELERATOR stands for, or the one that was said, if its ground fits."""
    from deepinfer.plugin.stack import parse

    meant = ACCELERATORS[accelerator]
    if platform is None:
        return meant
    ground = parse(platform)[-1]
    if ground != meant and not ground.startswith(f"{meant}_"):
        raise SettingError(
            f"{ACCELERATOR} = {accelerator} means {meant}, but platform = {platform} ({origin}) "
            f"stands on {ground}; unset one of them"
        )
    return platform
