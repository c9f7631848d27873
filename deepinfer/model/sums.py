"""Digests that a checkpoint folder may ship, so that a flipped bit in any file is seen.

In: a folder. Out: SHA256SUMS written, or a finding for every file that differs.
Does not know: what the files mean.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from deepinfer.model.header import Finding

SUMS = "SHA256SUMS"
LINE = re.compile(r"([0-9a-f]{64}) [ *](\S.*)")
# Words for people may be corrected without touching the model.
PROSE = ("*.md", "LICENSE*", "NOTICE*")


def write_sums(folder: str | Path) -> Path:
    """Write the digests of every file of `folder` except prose and hidden files."""
    root = Path(folder)
    lines = []
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        hidden = any(part.startswith((".", "__")) for part in name.parts)
        prose = any(path.match(pattern) for pattern in PROSE)
        if path.is_file() and not hidden and not prose and str(name) != SUMS:
            lines.append(f"{_digest(path)}  {name.as_posix()}\n")
    target = root / SUMS
    target.write_text("".join(lines), encoding="utf-8", newline="\n")
    return target


def check_sums(folder: Path, needed: Iterable[str]) -> Iterator[Finding]:
    """Compare every listed file; the `needed` ones must be listed."""
    try:
        text = (folder / SUMS).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as reason:
        yield Finding(SUMS, None, "a readable text file", str(reason))
        return
    listed: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = LINE.fullmatch(line)
        name = PurePosixPath(match[2]) if match else PurePosixPath("..")
        if match is None or name.is_absolute() or ".." in name.parts or match[2] in listed:
            yield Finding(SUMS, None, f"'digest  file' once per file in line {number}", repr(line))
            continue
        listed[match[2]] = match[1]
    for file, expected in listed.items():
        path = folder / file
        found = _digest(path) if path.is_file() else "no such file"
        if found != expected:
            yield Finding(file, None, f"SHA-256 {expected}", found)
    for file in needed:
        if file not in listed:
            yield Finding(SUMS, None, f"a line for {file}", "none")


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
