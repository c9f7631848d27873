"""The environment variables and keywords of the original that work here: a closed list.

In: nothing. Out: rows that map a variable or keyword to a setting.
Does not know: the environment itself; `settings.py` alone reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deepinfer.values import Kind, read_switch

PREFIX = "DEEPINFER_"
ACCELERATOR = PREFIX + "ACCELERATOR"
# What ACCELERATOR may say, and the platform it stands for; conflicts are judged by the ground.
ACCELERATORS = {"nvidia": "nvidia", "ascend": "ascend", "cpu": "reference"}

Read = Callable[[str, Kind], Any]


def plain(text: str, kind: Kind) -> Any:
    """Read as the setting's own kind."""
    return kind.from_text(text)


def switching(on: Any, off: Any) -> Read:
    """A switch of the original that became one of several words here."""
    return lambda text, kind: on if read_switch(text) else off


@dataclass(frozen=True)
class Variable:
    """One environment variable: the setting it gives a value to, and how its text is read."""

    name: str
    setting: str
    read: Read = plain
    words: str = ""

    @property
    def full_name(self) -> str:
        """As it stands in the environment."""
        return PREFIX + self.name


_SWITCH = "one of 0, 1, true, false, yes, no, on, off"

# Engine specification 1.3, in its order.
VARIABLES = (
    Variable("ACCELERATOR", "platform", words="nvidia, ascend or cpu"),
    Variable("PLATFORM", "platform"),
    Variable("CACHE", "cache_dir"),
    Variable("LOG", "log"),
    Variable("API_KEY", "api_key"),
    Variable("HF_MODEL_DIR", "hf_model_dir"),
    Variable("USE_NEXTN_DECODE", "drafts"),
    Variable("ENABLE_MTP_VARLEN", "verify", switching("confidence", "fixed"), _SWITCH),
    Variable("DFLASH_CONFIDENCE_HEAD_TEMPERATURE", "confidence_temperature"),
    Variable("MAX_BACKTRACKING_TOKENS", "max_backtracking"),
    Variable("YOCO_PREFILL_TRUNCATION_MODE", "replay"),
    Variable("YOCO_PREFILL_KEEP_TOKENS", "replay_keep"),
    Variable("BATCH_INVARIANT", "determinism", switching("batch", "off"), _SWITCH),
    Variable("ZERO_OVERHEAD_SCHEDULING", "async_scheduling"),
    Variable("PREFILL_ATTEMPT_INTERVAL", "prefill_attempt_interval"),
    Variable("ANY_ATTEMPT_INTERVAL", "any_attempt_interval"),
    Variable("PREFILL_MAX_SUM_SEQLEN_K", "max_prefill_context"),
    # eager enforced = no graphs; not enforced = as by default
    Variable("ENFORCE_EAGER", "graphs", switching(False, None), _SWITCH),
    Variable("CUDAGRAPH_BATCH_SIZE_INTERVAL", "graph_sizes"),
    Variable("XGRAMMAR_TIMEOUT", "grammar_timeout"),
    Variable("XGRAMMAR_CACHE_LIMIT_BYTES", "grammar_cache_bytes"),
    Variable("XGRAMMAR_SO_BUILDER_CPUS", "grammar_threads"),
    Variable("EXPERT_REARRANGEMENT_STEP_INTERVAL", "eplb.interval"),
    Variable("EXPERT_COUNT_WINDOW_SIZE", "eplb.window"),
    Variable("OVERRIDE_NUM_EXTRA_EXPERTS", "eplb.redundant"),
    Variable("REARRANGE_AFTER_PREFILL_IN_NORMAL_ENGINE", "eplb.count_prefill"),
    Variable("ENGRAM_FORCE_GPU_STORAGE", "engram", switching("device", None), _SWITCH),
    Variable("NUM_STATE_SLOTS_RATIO", "window_slots"),
    Variable("GLOO_TIMEOUT", "collective_timeout"),
)

# Known to users of the original, replaced here: what to use instead.
REPLACED = {
    "JIT_CACHE_DIR": "compiled kernels are kept in the cache folder; set DEEPINFER_CACHE",
    "DECODE_PERF_CACHE_DIR": "measured step times are kept in the cache folder; "
    "set DEEPINFER_CACHE",
    "DECODE_PERF_CACHE_TTL_SEC": "measured step times do not expire; "
    "empty the folder DEEPINFER_CACHE to measure again",
}


@dataclass(frozen=True)
class Neutral:
    """A keyword of the original (engine specification 1.1), taken where it asks for nothing."""

    values: tuple[Any, ...]
    why: str


_RANKS = "running on many ranks is not in this version"
NEUTRAL = {
    "tokenizer": Neutral((), "the tokenizer is the checkpoint's own"),
    "tokenizer_revision": Neutral((), "the tokenizer is the checkpoint's own; use revision"),
    "trust_remote_code": Neutral((False,), "code that lies in a checkpoint is never run"),
    "seed": Neutral((0,), "a seed belongs to a request; use SamplingParams(seed=...)"),
    "expert_parallel_size": Neutral((1,), _RANKS),
    "data_parallel_size": Neutral((0, 1), _RANKS),
    "context_parallel_size": Neutral((1,), _RANKS),
    "engram_parallel_size": Neutral((0, 1), _RANKS),
    "engine_rank": Neutral((0,), _RANKS),
    "engine_group_rank": Neutral((0,), _RANKS),
    "engine_type": Neutral(("NORMAL",), "separate prompt and completion engines are not in "
                           "this version"),
    "load_format": Neutral(("auto",), "weights always come from the checkpoint"),
    "chunked_prefill": Neutral((False,), "chunks follow from max_tokens_per_step"),
    "stop_preempted_request": Neutral((False,), "a preempted request is resumed, never ended"),
    "lookahead_tokens": Neutral((0,), "the engine finds its own look-ahead"),
}

# names of the original that mean a setting of ours
SPELLINGS = {"max_num_batched_tokens": "max_tokens_per_step"}
