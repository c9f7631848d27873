"""Opens a model: settings, folder, checks, tokenizer, plan; then, if wanted, the weights.

In: a model's name and Settings. Out: what is planned, and a house that is ready.
Does not know: requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepinfer.engine import start
from deepinfer.engine.start import House, Planned, Wish
from deepinfer.errors import MemoryShort
from deepinfer.model.hollow import HollowCheckpoint
from deepinfer.model.locate import EMBEDDED, find_model
from deepinfer.model.progress import loading_bar
from deepinfer.model.shape import Shape
from deepinfer.model.shards import check
from deepinfer.model.vocabulary import TOKENIZER
from deepinfer.model.weights import Checkpoint
from deepinfer.settings import Settings
from deepinfer.text import chat
from deepinfer.text.compress import checked
from deepinfer.text.tokenizer import Tokenizer

FULL_LENGTH = 4
"""Sequences of full length that the caches have room for at once; shorter ones are more."""
STEP_TOKENS = 1024
"""Rows of a step where `max_tokens_per_step` does not say."""


@dataclass(frozen=True)
class Opened:
    """A model that was found and planned."""

    name: str
    folder: Path
    shape: Shape
    settings: Settings
    max_model_len: int
    step_tokens: int
    planned: Planned


def plan_model(
    model: str | Path, settings: Settings, drafts: bool = False, any_devices: bool = False
) -> Opened:
    """Everything up to the plan; reads only config.json. `drafts` adds the draft stages;
    `any_devices` lets one process stand for several devices that compute nothing."""
    folder = find_model(
        model,
        hf_model_dir=settings.hf_model_dir,
        revision=settings.revision,
    )
    shape = Shape.load(folder)
    limit = shape.max_position_embeddings
    settings.check_model(window=shape.sliding_window, block=shape.dspark_block_size, limit=limit)
    length = settings.max_model_len or limit
    while True:
        try:
            return _planned(str(model), folder, shape, settings, length, drafts, any_devices)
        except MemoryShort:
            # the model's own limit is only a wish; what the caller asked for is not changed
            if settings.max_model_len is not None or length <= 2 * shape.sliding_window:
                raise
            length //= 2


def _planned(
    name: str,
    folder: Path,
    shape: Shape,
    settings: Settings,
    length: int,
    drafts: bool,
    any_devices: bool,
) -> Opened:
    step_tokens = min(settings.max_tokens_per_step or STEP_TOKENS, length)
    wish = Wish(
        name=name if name == EMBEDDED else folder.name,
        platform=settings.platform,
        slots=max(int(settings.window_slots * settings.max_num_seqs), settings.max_num_seqs + 2),
        tokens=FULL_LENGTH * length,
        blocks=settings.kv_blocks,
        snapshots=settings.prefix != "off",
        step_tokens=step_tokens,
        modes=settings.modes(),
        ops=settings.ops,
        allow_unverified=settings.allow_unverified,
        drafts=drafts,
        utilization=settings.gpu_memory_utilization,
        any_devices=any_devices,
    )
    planned = start.plan(shape, wish)
    return Opened(name, folder, shape, settings, length, step_tokens, planned)


def load_model(opened: Opened, quiet: bool = False) -> tuple[House, Any]:
    """Checks every file, then reads the weights with a progress bar; the house and its Tokenizer.

    A device that says `computes=False` gets weights without bytes; its folder may have no
    tokenizer, and None stands for it.
    """
    if not opened.planned.declared.device.facts.get("computes", True):
        return _load_hollow(opened)
    report = check(opened.folder)
    report.raise_if_bad()
    tokenizer = Tokenizer.load(opened.folder)
    chat.check_tokenizer(tokenizer)
    ids = checked(tokenizer, opened.shape.engram_compressed_vocab_size)
    with Checkpoint(opened.folder, opened.shape, report=report) as checkpoint:
        if quiet:
            return start.build(opened.planned, checkpoint, ids), tokenizer
        total = checkpoint.total_bytes(start.wanted_names(checkpoint, opened.planned.drafts))
        with loading_bar("load", total) as advance:
            house = start.build(opened.planned, checkpoint, ids, advance)
    return house, tokenizer


def _load_hollow(opened: Opened) -> tuple[House, Tokenizer | None]:
    """A house whose weights are shapes only; without a tokenizer, ids are compressed by number."""
    shape = opened.shape
    source: Any = HollowCheckpoint(shape)  # has what a build asks of a Checkpoint
    if (opened.folder / TOKENIZER).is_file():
        tokenizer = Tokenizer.load(opened.folder)
        ids = checked(tokenizer, shape.engram_compressed_vocab_size)
        return start.build(opened.planned, source, ids), tokenizer
    size = max(shape.engram_compressed_vocab_size, 1)
    numbers = [number % size for number in range(shape.vocab_size)]
    return start.build(opened.planned, source, numbers), None
