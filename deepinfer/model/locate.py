"""Finds the folder of a model: an embedded one, a folder, or an id of the Hugging Face Hub.

In: a name as a person writes it. Out: a folder with every shard there, or one sentence.
Does not know: what is in the shards, environment variables (settings pass their values).
"""

import re
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from deepinfer.errors import ModelError
from deepinfer.model.progress import in_words
from deepinfer.model.shards import CONFIG, INDEX, read_index
from deepinfer.model.vocabulary import TOKENIZER

EMBEDDED = "tiny"
OFFICIAL = "official"
"""The numbers of the official model, without a tensor: for plans, and devices that hold nothing."""
DEFAULT_ID = "deepseek-ai/DeepSeek-V4.1-Flash-1017"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# What the engine reads; the repository also holds a report, pictures and example code.
WANTED = ("*.safetensors", "*.json", "LICENSE*")
# Room beside the shards for the files that a download keeps open.
SPARE_BYTES = 1_000_000_000


class ModelNotFound(ModelError):
    """No folder belongs to the name, or not all of its files are there."""


class DiskShort(ModelError):
    """A download would not fit the disk."""


def _announce(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def find_model(
    name: str | Path = EMBEDDED,
    *,
    hf_model_dir: str | Path | None = None,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    announce: Callable[[str], None] = _announce,
) -> Path:
    """Engine specification 1.2: a folder as given, then `hf_model_dir`, then the Hub.

    `tiny` and `official` are embedded. `hf_model_dir` stands for every Hub id, whatever its name.
    """
    if str(name) in (EMBEDDED, OFFICIAL):
        return embedded_folder(name=str(name))
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if not HUB_ID.fullmatch(str(name)):
        raise ModelNotFound(
            f"{name}: no such folder; give a folder, '{EMBEDDED}', or a Hugging Face id such as "
            f"{DEFAULT_ID}"
        )
    if hf_model_dir is not None:
        return _given_folder(Path(hf_model_dir).expanduser())
    return _from_hub(str(name), revision, cache_dir, announce)


def embedded_folder(package: Path | None = None, name: str = EMBEDDED) -> Path:
    """An embedded model: package data of a wheel, or the repository of an editable install."""
    inside = Path(__file__).resolve().parents[1] if package is None else package
    places = [inside / "checkpoints" / name, inside.parent / "checkpoints" / name]
    for place in places:
        if (place / CONFIG).is_file():
            return place
    raise ModelNotFound(
        f"the embedded model '{name}' is neither in {places[0]} nor in {places[1]}; "
        "install the package again or give the folder of a checkpoint"
    )


def missing_files(folder: Path) -> list[str]:
    """Files that a complete checkpoint has and `folder` does not: every shard of the index."""
    index = read_index(folder)
    if index.weight_map is None:
        shards: Iterable[str] = ["model.safetensors"]
        if not (folder / "model.safetensors").is_file():
            shards = [INDEX]
    else:
        shards = sorted(set(index.weight_map.values()))
    return [file for file in [CONFIG, TOKENIZER, *shards] if not (folder / file).is_file()]


def _given_folder(folder: Path) -> Path:
    if not folder.is_dir():
        raise ModelNotFound(f"the model folder {folder} (hf_model_dir) does not exist")
    return folder


def _from_hub(
    name: str, revision: str | None, cache_dir: str | Path | None, announce: Callable[[str], None]
) -> Path:
    import huggingface_hub as hub
    import huggingface_hub.constants  # noqa: F401  the package loads its parts only when imported
    import huggingface_hub.errors  # noqa: F401

    cache = Path(cache_dir or hub.constants.HF_HUB_CACHE)
    cached = _cached(hub, name, revision, cache)
    if cached is not None and not missing_files(cached):
        return cached
    if hub.constants.HF_HUB_OFFLINE:
        state = "only in part" if cached else "not"
        raise ModelNotFound(
            f"{name} is {state} in {cache} and HF_HUB_OFFLINE forbids a download; "
            "unset it, or give the folder of a checkpoint"
        )
    folder = _download(hub, name, revision, cache, announce)
    missing = missing_files(folder)
    if missing:
        raise ModelNotFound(
            f"{name}: {len(missing)} files still missing after the download "
            f"({', '.join(missing[:3])}); start again to resume it"
        )
    return folder


def _cached(hub: ModuleType, name: str, revision: str | None, cache: Path) -> Path | None:
    try:
        found = hub.snapshot_download(
            name,
            revision=revision,
            cache_dir=cache,
            allow_patterns=list(WANTED),
            local_files_only=True,
        )
    except hub.errors.LocalEntryNotFoundError:
        return None
    return Path(found)


def _download(
    hub: ModuleType,
    name: str,
    revision: str | None,
    cache: Path,
    announce: Callable[[str], None],
) -> Path:
    """Announce the size, refuse what does not fit, then fetch; the Hub's client resumes."""
    try:
        planned = hub.snapshot_download(
            name, revision=revision, cache_dir=cache, allow_patterns=list(WANTED), dry_run=True
        )
        _check_disk(name, planned, cache, announce)
        # the commit of the plan, so that a push in between cannot mix two versions
        commit = planned[0].commit_hash if planned else revision
        found = hub.snapshot_download(
            name, revision=commit, cache_dir=cache, allow_patterns=list(WANTED)
        )
    except (
        hub.errors.HTTPError,
        hub.errors.RevisionResolutionError,
        hub.errors.HFValidationError,
        OSError,
    ) as reason:
        said = str(reason).strip().splitlines() or [type(reason).__name__]
        raise ModelNotFound(
            f"{name} cannot be had from the Hugging Face Hub ({said[0]}); check the name and the "
            "network, or give the folder of a checkpoint"
        ) from reason
    return Path(found)


def _check_disk(
    name: str, planned: list[Any], cache: Path, announce: Callable[[str], None]
) -> None:
    if not any(file.filename == INDEX or file.filename == "model.safetensors" for file in planned):
        raise ModelNotFound(f"{name} holds no {INDEX}: it is no checkpoint for this engine")
    needed = sum(file.file_size or 0 for file in planned if file.will_download)
    free = shutil.disk_usage(_existing(cache)).free
    size = f"{name}: {in_words(needed)} to download, {in_words(free)} free in {cache}"
    if needed + SPARE_BYTES > free:
        raise DiskShort(f"{size}; free some space or point HF_HOME to a larger disk")
    announce(size)


def _existing(path: Path) -> Path:
    """The nearest folder that exists: a first download makes the cache folder."""
    while not path.exists():
        path = path.parent
    return path
