"""What a check of a checkpoint folder found, and the error that stops a start.

In: findings. Out: a report to print, a DamagedCheckpoint that shows the first twenty.
Does not know: how anything is checked.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deepinfer.errors import ModelError
from deepinfer.model.header import Entry, Finding
from deepinfer.model.shape import Shape

SHOWN = 20


class DamagedCheckpoint(ModelError):
    """The checkpoint is incomplete or damaged. `findings` holds all that was found."""

    exit_code = 1

    def __init__(self, message: str, findings: tuple[Finding, ...]) -> None:
        super().__init__(message)
        self.findings = findings


@dataclass(frozen=True)
class CheckReport:
    """Result of one check.

    `entries` says where each tensor lies that the model reads; `shape` is None when the config
    is damaged; `has_draft` is false when the checkpoint has no draft stages at all or they were
    not asked for; `skipped` counts tensors that nobody reads (vision without a vision config).
    """

    folder: Path
    shape: Shape | None
    findings: tuple[Finding, ...] = ()
    entries: Mapping[str, Entry] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    skipped: int = 0
    has_draft: bool = False

    @property
    def ok(self) -> bool:
        return not self.findings

    @property
    def tensors(self) -> int:
        return len(self.entries)

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries.values())

    def __str__(self) -> str:
        if self.ok:
            lines = [f"{self.folder}: {self.tensors} tensors, {self.bytes} bytes, nothing wrong"]
        else:
            count = len(self.findings)
            head = f"{self.folder}: damaged checkpoint, {count} finding{'s' if count > 1 else ''}"
            lines = [head, *(f"  {finding}" for finding in self.findings[:SHOWN])]
            if count > SHOWN:
                lines.append(f"  and {count - SHOWN} more")
            lines.append("Copy or download the checkpoint again; nothing was loaded.")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def raise_if_bad(self) -> None:
        if self.findings:
            raise DamagedCheckpoint(str(self), self.findings)
