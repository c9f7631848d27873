"""Gives out the tensors of a checked checkpoint by name, reading every byte at most once.

In: a folder and its Shape. Out: torch tensors as stored (FP8, packed E2M1, raw E8M0 scales).
Does not know: how a kernel packs them, devices.
"""

import mmap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from deepinfer.errors import ModelError
from deepinfer.model.header import Entry
from deepinfer.model.report import CheckReport
from deepinfer.model.shape import Shape
from deepinfer.model.shards import check

# Chosen by the kind of tensor, never by its values: an E8M0 byte is an exponent, not a number,
# and a numeric cast of it destroys the weights without a sign (bug case BL-18).
DTYPES = {
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
}
CHUNK_BYTES = 16 * 1024 * 1024


class Checkpoint:
    """Tensors by name. `tensor` maps the file, `read` copies it into memory in file order.

    >>> with Checkpoint(folder, Shape.load(folder)) as checkpoint:        # doctest: +SKIP
    ...     head = checkpoint.tensor("head.weight")                       # [vocab, hidden] bf16
    """

    def __init__(
        self, folder: str | Path, shape: Shape, *, report: CheckReport | None = None
    ) -> None:
        """Without the report of a `check` made before, the folder is checked here."""
        self.folder, self.shape = Path(folder), shape
        self.report = check(folder, tokenizer=False) if report is None else report
        self.report.raise_if_bad()
        if self.report.shape != shape:
            raise ModelError(f"{folder}: the config has other numbers than the shape given")
        self.bytes_read = 0
        self._maps: dict[str, mmap.mmap] = {}
        self._views: dict[str, torch.Tensor] = {}
        self._copied: set[str] = set()
        self._open = True

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.report.entries)

    @property
    def has_draft(self) -> bool:
        return self.report.has_draft

    def __contains__(self, name: str) -> bool:
        return name in self.report.entries

    def total_bytes(self, names: Iterable[str] | None = None) -> int:
        """Stored bytes of `names`, or of everything."""
        return sum(self._entry(name).bytes for name in (self.names if names is None else names))

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor mapped from its file: no copy, pages arrive when they are touched."""
        if name not in self._views:
            entry = self._entry(name)
            self._claim(name, entry)
            self._views[name] = self._view(entry)
        return self._views[name]

    def read(
        self,
        names: Iterable[str] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Tensors copied into memory, file by file from front to back.

        `progress` is told every number of bytes that has arrived (`progress.loading_bar`).
        """
        wanted = [(self._entry(name), name) for name in (self.names if names is None else names)]
        wanted.sort(key=lambda item: (item[0].file, item[0].start))
        for entry, name in wanted:
            if name in self._views:
                if progress:
                    progress(entry.bytes)
                yield name, self._views[name]
            else:
                self._claim(name, entry)
                self._copied.add(name)
                yield name, self._copy(name, entry, progress)

    def close(self) -> None:
        """Let go of the files; a tensor that is still held keeps its own mapping alive."""
        self._views.clear()
        self._maps.clear()
        self._open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _entry(self, name: str) -> Entry:
        if not self._open:
            raise ModelError(f"{self.folder}: {name} asked for after the checkpoint was closed")
        if name not in self.report.entries:
            raise ModelError(f"{self.folder}: the checkpoint holds no tensor {name}")
        return self.report.entries[name]

    def _claim(self, name: str, entry: Entry) -> None:
        if name in self._copied:
            raise ModelError(f"{self.folder}: {name} was read before; keep it instead")
        self.bytes_read += entry.bytes

    def _view(self, entry: Entry) -> torch.Tensor:
        dtype = DTYPES[entry.dtype]
        if entry.bytes == 0:
            return torch.empty(entry.shape, dtype=dtype)
        if entry.file not in self._maps:
            self._maps[entry.file] = self._map(entry.file)
        mapped, count = self._maps[entry.file], entry.bytes // dtype.itemsize
        if entry.start % dtype.itemsize:
            # a header of odd length shifts all tensors; such a one is copied to an even place
            bytes_ = bytearray(mapped[entry.start : entry.end])
            flat = torch.frombuffer(bytes_, dtype=dtype)
        else:
            flat = torch.frombuffer(mapped, dtype=dtype, count=count, offset=entry.start)
        return flat.view(entry.shape)

    def _map(self, file: str) -> mmap.mmap:
        path = self.folder / file
        end = max(entry.end for entry in self.report.entries.values() if entry.file == file)
        with path.open("rb") as stream:
            # private and writable, for torch: what is written there never reaches the file
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        if len(mapped) < end:
            raise ModelError(f"{path}: shrank to {len(mapped)} bytes after it was checked")
        return mapped

    def _copy(
        self, name: str, entry: Entry, progress: Callable[[int], None] | None
    ) -> torch.Tensor:
        flat = torch.empty(entry.bytes, dtype=torch.uint8)
        window = memoryview(flat.numpy().data)
        with (self.folder / entry.file).open("rb", buffering=0) as stream:
            stream.seek(entry.start)
            place = 0
            while place < entry.bytes:
                size = stream.readinto(window[place : place + CHUNK_BYTES]) or 0
                if size == 0:
                    raise ModelError(f"{entry.file}: {name} is shorter than when it was checked")
                place += size
                if progress:
                    progress(size)
        return flat.view(DTYPES[entry.dtype]).view(entry.shape)
