"""Checks a checkpoint folder before anything is loaded: index, shards and config must agree.

In: a folder. Out: a CheckReport with every fault found and the place of every tensor.
Does not know: torch, devices, how weights are used.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepinfer.errors import ModelError
from deepinfer.model.config import ConfigError, read_json
from deepinfer.model.contents import check_values
from deepinfer.model.header import Entry, Finding, Header, read_header
from deepinfer.model.inventory import TensorSpec, inventory, is_draft, is_image_only
from deepinfer.model.report import CheckReport, DamagedCheckpoint
from deepinfer.model.shape import Shape
from deepinfer.model.sums import SUMS, check_sums, write_sums
from deepinfer.model.vocabulary import TOKENIZER, check_tokenizer

__all__ = ["CheckReport", "DamagedCheckpoint", "Finding", "check", "read_index", "write_sums"]

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
# Golden folders carry expected numbers beside the shards; they are no part of the model.
COMPANIONS = frozenset({"expected.safetensors"})
ONE_OF_SEVERAL = re.compile(r".*-of-0*([2-9]|[1-9][0-9]+)\.safetensors")
# Up to this size every value and digest is looked at, even without `verify_values`.
SMALL_BYTES = 100_000_000
NAMED = 10
DOWNLOAD_HINT = "an interrupted download or copy? fetch it again"


@dataclass(frozen=True)
class Index:
    """The index file: which shard holds which tensor. `weight_map` is None without one."""

    weight_map: Mapping[str, str] | None = None
    total_size: int | None = None
    findings: tuple[Finding, ...] = ()


@dataclass
class _Check:
    """What one check has seen so far."""

    folder: Path
    shape: Shape | None = None
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    index: Index = field(default_factory=Index)
    headers: dict[str, Header] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)
    # Names that a finding about their file or about the index already speaks of.
    reported: set[str] = field(default_factory=set)
    skipped: int = 0
    has_draft: bool = False

    def find(self, file: str, tensor: str | None, expected: str, found: str) -> None:
        self.findings.append(Finding(file, tensor, expected, found))
        if tensor:
            self.reported.add(tensor)


def check(
    folder: str | Path,
    *,
    verify_values: bool = False,
    tokenizer: bool = True,
    draft: bool = True,
) -> CheckReport:
    """Everything of engine specification 9, items 1 to 5, that needs no model.

    `verify_values` reads every value and digest of a large checkpoint, not a sample.
    `tokenizer=False` is for folders that have none, `draft=False` leaves `mtp.*` out.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ModelError(f"{root} is no folder; give the folder of a checkpoint")
    seen = _Check(root)
    _check_config(seen)
    _read_shards(seen)
    _compare_with_index(seen)
    if seen.shape is not None:
        _compare_with_inventory(seen, inventory(seen.shape), draft)
    stored = sum(entry.bytes for entry in seen.entries.values())
    every = verify_values or stored < SMALL_BYTES
    sound = {n: e for n, e in seen.entries.items() if seen.headers[e.file].sound}
    seen.findings += check_values(root, sound, every=every)
    _check_side_files(seen, tokenizer=tokenizer, every=every)
    return CheckReport(
        folder=root,
        shape=seen.shape,
        findings=tuple(seen.findings),
        entries=seen.entries,
        notes=tuple(seen.notes),
        skipped=seen.skipped,
        has_draft=seen.has_draft,
    )


def read_index(folder: Path) -> Index:
    """The index file with every entry checked; an empty Index where there is no file."""
    if not (folder / INDEX).is_file():
        return Index()
    try:
        parsed = read_json(folder / INDEX)
    except ConfigError as reason:
        return Index(findings=(Finding(INDEX, None, "an index of valid JSON", str(reason)),))
    weights = parsed.get("weight_map") if isinstance(parsed, dict) else None
    if not isinstance(weights, dict) or not weights:
        return Index(findings=(Finding(INDEX, None, "a weight_map of names", "none"),))
    metadata = parsed.get("metadata", {})
    findings = list(_check_names(weights))
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not (total is None or type(total) is int):
        findings.append(Finding(INDEX, None, "metadata.total_size in bytes", repr(metadata)))
        total = None
    plain = {name: file for name, file in weights.items() if _is_plain(file)}
    return Index(plain, total, tuple(findings))


def _check_names(weights: Mapping[str, Any]) -> Iterator[Finding]:
    for name, file in weights.items():
        if not _is_plain(file):
            yield Finding(INDEX, name, "a shard inside the folder", f"{file!r}, outside or no file")


def _is_plain(file: Any) -> bool:
    """A bare file name: a path could lead out of the folder."""
    return isinstance(file, str) and re.fullmatch(r"[\w.-]+\.safetensors", file) is not None


def _check_config(seen: _Check) -> None:
    try:
        seen.shape = Shape.load(seen.folder)
    except ConfigError as reason:
        seen.find(CONFIG, None, "a DeepSeek-V4.1 configuration", str(reason))


def _read_shards(seen: _Check) -> None:
    """Headers of all shards there are; a shard that is missing or a stray is a finding."""
    seen.index = index = read_index(seen.folder)
    seen.findings += index.findings
    there = {path.name for path in seen.folder.glob("*.safetensors") if path.is_file()}
    there -= COMPANIONS
    if index.weight_map is None:
        several = len(there) > 1 or any(ONE_OF_SEVERAL.fullmatch(file) for file in there)
        if several and not index.findings:
            seen.find(INDEX, None, f"an index of the {len(there)} shards", "no such file")
        if not there:
            seen.find("*.safetensors", None, "the shards of a checkpoint", f"none; {DOWNLOAD_HINT}")
    else:
        listed = set(index.weight_map.values())
        for file in sorted(listed - there):
            names = [name for name, home in index.weight_map.items() if home == file]
            seen.reported.update(names)
            promised = f"a shard with {len(names)} tensors ({_some(names)})"
            seen.find(file, None, promised, f"no such file; {DOWNLOAD_HINT}")
        for file in sorted(there - listed):
            seen.find(file, None, f"only shards that {INDEX} names", "a stray file")
        there &= listed
    for file in sorted(there):
        _read_shard(seen, file)


def _read_shard(seen: _Check, file: str) -> None:
    header = seen.headers[file] = read_header(seen.folder / file)
    seen.findings += header.findings
    seen.reported.update(f.tensor for f in header.findings if f.tensor)
    if not header.entries:
        weights = seen.index.weight_map or {}
        seen.reported.update(name for name, home in weights.items() if home == file)
    for name, entry in header.entries.items():
        if name in seen.entries:
            seen.find(file, name, "every tensor in one shard", f"also in {seen.entries[name].file}")
        else:
            seen.entries[name] = entry


def _compare_with_index(seen: _Check) -> None:
    """Both directions, and the total."""
    weights = seen.index.weight_map
    if weights is None:
        return
    for name, file in weights.items():
        entry = seen.entries.get(name)
        if name in seen.reported or (entry is not None and entry.file == file):
            continue
        place = f"in {entry.file}" if entry else "in no shard"
        seen.find(file, name, f"the tensor that {INDEX} places here", place)
    for name, entry in seen.entries.items():
        if name not in weights:
            seen.find(entry.file, name, f"a name that {INDEX} lists", "a tensor it does not list")
    stored = sum(entry.bytes for entry in seen.entries.values())
    whole = all(header.sound for header in seen.headers.values())
    if seen.index.total_size not in (None, stored) and whole:
        seen.find(INDEX, None, f"metadata.total_size {stored}", str(seen.index.total_size))


def _compare_with_inventory(
    seen: _Check, expected: dict[str, TensorSpec], draft: bool
) -> None:
    assert seen.shape is not None
    names = [*seen.entries, *(seen.index.weight_map or {})]
    seen.has_draft = draft and any(is_draft(name) for name in names)
    if not seen.has_draft:
        seen.notes.append("no draft stages: the model runs without drafts")
        expected = {name: spec for name, spec in expected.items() if not is_draft(name)}
    weights = seen.index.weight_map or {}
    missing = [name for name in expected if name not in seen.entries]
    unexpected = [name for name in seen.entries if name not in expected]
    if seen.has_draft:
        _check_draft(seen, missing, unexpected)
    for name in missing:
        if not is_draft(name) and name not in seen.reported:
            file = weights.get(name, INDEX if weights else CONFIG)
            seen.find(file, name, _describe(name, expected[name]), "no such tensor")
    for name in unexpected:
        unread = is_image_only(name) and not seen.shape.has_vision
        unread = unread or (is_draft(name) and not draft)
        seen.skipped += unread
        if not unread and not is_draft(name):
            known = "a tensor of this configuration"
            seen.find(seen.entries[name].file, name, known, "an unknown tensor")
        if unread:
            del seen.entries[name]
    if seen.skipped:
        seen.notes.append(f"{seen.skipped} tensors that this configuration does not read")
    for name, entry in seen.entries.items():
        spec = expected.get(name)
        if spec is not None and (entry.dtype, entry.shape) != (spec.dtype, spec.shape):
            seen.find(entry.file, name, _describe(name, spec), str(entry))


def _check_draft(seen: _Check, missing: list[str], unexpected: list[str]) -> None:
    """A half-loaded drafter costs speed and says nothing, so it is complete or absent (9.4)."""
    lost = [name for name in missing if is_draft(name) and name not in seen.reported]
    strange = [name for name in unexpected if is_draft(name)]
    if lost or strange:
        seen.find(
            "mtp.*",
            None,
            "all draft tensors of the configuration, or none",
            f"missing: {_some(lost)}; unexpected: {_some(strange)} "
            "(drafts can be switched off to run without them)",
        )


def _describe(name: str, spec: TensorSpec) -> str:
    if name.endswith(".scale"):
        return f"{spec}, the scale of {name.removesuffix('scale')}weight"
    return str(spec)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more or "none"


def _check_side_files(seen: _Check, *, tokenizer: bool, every: bool) -> None:
    """Tokenizer, other JSON files, and digests where the folder ships them."""
    needed = [CONFIG, *seen.headers]
    if seen.index.weight_map is not None:
        needed.append(INDEX)
    if tokenizer:
        needed.append(TOKENIZER)
        vocab_size = seen.shape.vocab_size if seen.shape else None
        seen.findings += check_tokenizer(seen.folder, vocab_size)
    for path in sorted(seen.folder.glob("*.json")):
        if path.name not in (CONFIG, INDEX, TOKENIZER):
            _check_json(seen, path)
    if (seen.folder / SUMS).exists():
        if every:
            seen.findings += check_sums(seen.folder, needed)
        else:
            seen.notes.append(f"{SUMS} not compared; verify the values to do so")


def _check_json(seen: _Check, path: Path) -> None:
    try:
        read_json(path)
    except ConfigError as reason:
        seen.find(path.name, None, "valid JSON", str(reason))
