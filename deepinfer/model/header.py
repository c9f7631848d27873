"""Reads the header of one safetensors shard and holds it against the size of the file.

In: a path. Out: where each tensor lies, or a finding for everything that is wrong.
Does not know: which tensors a model needs, torch.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepinfer.model.inventory import DTYPE_BYTES

# Limits of the format itself: 8 bytes of length, at least "{}", at most 100 MB.
PREFIX_BYTES = 8
SMALLEST_BYTES = 2
LARGEST_BYTES = 100_000_000
ENTRY_KEYS = {"dtype", "shape", "data_offsets"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a checkpoint."""

    file: str
    tensor: str | None
    expected: str
    found: str

    def __str__(self) -> str:
        where = f"{self.file}: {self.tensor}" if self.tensor else self.file
        return f"{where}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor lies: bytes `start` to `end` of `file`, counted from its first byte."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def bytes(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Header:
    """What a shard says about itself. `sound`: its bytes may be mapped and read."""

    entries: Mapping[str, Entry]
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        return not self.findings


class _Unreadable(Exception):
    """Carries (expected, found) out of the parser; never leaves this module."""


def read_header(path: Path) -> Header:
    """Everything of engine specification 9.3 that one file can show."""
    file = path.name
    try:
        size = path.stat().st_size
        length, parsed = _parse(path, size)
    except _Unreadable as reason:
        expected, found = reason.args
        return Header({}, (Finding(file, None, expected, found),))
    except OSError as reason:
        found = reason.strerror or str(reason)
        return Header({}, (Finding(file, None, "a readable shard", found),))
    findings: list[Finding] = []
    entries: dict[str, Entry] = {}
    base = PREFIX_BYTES + length
    for name, value in parsed.items():
        if name == "__metadata__":
            findings += _check_metadata(file, value)
            continue
        entry = _entry(file, base, value)
        if isinstance(entry, Entry):
            entries[name] = entry
        else:
            findings.append(Finding(file, name, *entry))
    if not findings:
        findings += _check_layout(file, base, size, entries)
    return Header(entries, tuple(findings))


def _parse(path: Path, size: int) -> tuple[int, dict[str, Any]]:
    with path.open("rb") as stream:
        prefix = stream.read(PREFIX_BYTES)
        if len(prefix) < PREFIX_BYTES:
            raise _Unreadable("a safetensors file", f"a file of {size} bytes, cut or empty")
        length = int.from_bytes(prefix, "little")
        room = min(LARGEST_BYTES, size - PREFIX_BYTES)
        if not SMALLEST_BYTES <= length <= room:
            raise _Unreadable(
                f"a header length of {SMALLEST_BYTES} to {room} bytes",
                f"{length} in a file of {size} bytes: the header is cut or its length damaged",
            )
        text = stream.read(length)
    try:
        parsed = json.loads(text.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as reason:
        raise _Unreadable("a header of valid JSON", f"a damaged header ({reason})") from reason
    # Only spaces may fill up a header; JSON alone would also take other blanks.
    if not isinstance(parsed, dict) or not text.startswith(b"{") or text.rstrip(b" ")[-1:] != b"}":
        raise _Unreadable("a header that is one JSON object", "something else: damaged header")
    return length, parsed


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Unreadable("every name once", f"{key} twice in one header")
        found[key] = value
    return found


def _check_metadata(file: str, value: Any) -> Iterator[Finding]:
    texts = isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
    if not texts:
        yield Finding(file, "__metadata__", "an object of texts", repr(value))


def _entry(file: str, base: int, value: Any) -> Entry | tuple[str, str]:
    """The entry, or (expected, found)."""
    if not isinstance(value, dict) or set(value) != ENTRY_KEYS:
        return "dtype, shape and data_offsets", _short(value)
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        return "one of the dtypes " + ", ".join(DTYPE_BYTES), _short(dtype)
    if not _counts(shape):
        return "a shape of whole numbers", _short(shape)
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        return "data_offsets [begin, end]", _short(offsets)
    begin, end = offsets
    stored = math.prod(shape) * DTYPE_BYTES[dtype]
    if end - begin != stored:
        return f"{stored} bytes for {dtype} {shape}", f"data_offsets of {end - begin} bytes"
    return Entry(file, dtype, tuple(shape), base + begin, base + end)


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _check_layout(
    file: str, base: int, size: int, entries: Mapping[str, Entry]
) -> Iterator[Finding]:
    """Tensors lie side by side from the first byte behind the header to the end of the file."""
    place = base
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != place:
            kind = "overlaps the tensor before it" if entry.start < place else "a hole before it"
            at = f"begin at byte {entry.start - base}: {kind}"
            yield Finding(file, name, f"begin at byte {place - base} of the data", at)
            return
        place = entry.end
        if place > size:
            expected = f"a file of {max(e.end for e in entries.values())} bytes"
            cut = f"{size} bytes: the file is cut inside this tensor"
            yield Finding(file, name, expected, cut)
            return
    if place != size:
        extra = f"{size} bytes: {size - place} more behind the last tensor"
        yield Finding(file, None, f"a file of {place} bytes", extra)
