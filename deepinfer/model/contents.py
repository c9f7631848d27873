"""Looks at stored bytes for values that no sound checkpoint has.

In: a folder and where its tensors lie. Out: a finding per tensor with such a value.
Does not know: torch, what a tensor is for.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy

from deepinfer.model.header import Entry, Finding

# A scale outside [2^-60, 2^60] is a byte read as something else (engine specification 9.5).
LOWEST_EXPONENT, HIGHEST_EXPONENT = -60, 60
E8M0_BIAS, E8M0_NAN = 127, 255
# Samples: small tensors whole (norms, biases, sinks), of the others every 32nd, its two ends.
SMALL_TENSOR_BYTES = 64 * 1024
STRIDE = 32
CHUNK_BYTES = 16 * 1024 * 1024


def check_values(
    folder: Path, entries: Mapping[str, Entry], *, every: bool
) -> Iterator[Finding]:
    """Scan tensors in file order: all of every tensor, or a sample spread over all files."""
    by_file: dict[str, list[tuple[str, Entry]]] = {}
    for name, entry in sorted(entries.items(), key=lambda item: item[1].start):
        if entry.dtype != "I8":  # every byte is a pair of valid E2M1 codes
            by_file.setdefault(entry.file, []).append((name, entry))
    for file, tensors in sorted(by_file.items()):
        with (folder / file).open("rb") as stream:
            for place, (name, entry) in enumerate(tensors):
                last = place == len(tensors) - 1
                spans = _spans(entry, every, last or place % STRIDE == 0)
                fault = _first_fault(stream, entry.dtype, spans)
                if fault:
                    yield Finding(file, name, *fault)


def _first_fault(
    stream: BinaryIO, dtype: str, spans: Iterator[tuple[int, int]]
) -> tuple[str, str] | None:
    for start, end in spans:
        stream.seek(start)
        fault = fault_of(dtype, stream.read(end - start))
        if fault:
            return fault
    return None


def _spans(entry: Entry, every: bool, sampled: bool) -> Iterator[tuple[int, int]]:
    if every or entry.bytes <= SMALL_TENSOR_BYTES:
        if every or sampled or entry.dtype in ("BF16", "F32"):
            for start in range(entry.start, entry.end, CHUNK_BYTES):
                yield start, min(start + CHUNK_BYTES, entry.end)
    elif sampled:
        yield entry.start, entry.start + SMALL_TENSOR_BYTES
        yield entry.end - SMALL_TENSOR_BYTES, entry.end


def fault_of(dtype: str, data: bytes) -> tuple[str, str] | None:
    """(expected, found) for the first kind of impossible value in `data`."""
    if dtype == "F8_E8M0":
        codes = numpy.frombuffer(data, numpy.uint8)
        if (codes == E8M0_NAN).any():
            return "scales that are numbers", "E8M0 byte 255, which is NaN"
        low, high = int(codes.min(initial=E8M0_BIAS)), int(codes.max(initial=E8M0_BIAS))
        worst = low if E8M0_BIAS - low > high - E8M0_BIAS else high
        if not LOWEST_EXPONENT <= worst - E8M0_BIAS <= HIGHEST_EXPONENT:
            return "scales within [2^-60, 2^60]", f"2^{worst - E8M0_BIAS} (byte {worst})"
    elif dtype == "F8_E4M3":
        if ((numpy.frombuffer(data, numpy.uint8) & 0x7F) == 0x7F).any():
            return "weights that are numbers", "E4M3 byte 0x7F or 0xFF, which is NaN"
    elif dtype == "BF16":
        if ((numpy.frombuffer(data, "<u2") & 0x7F80) == 0x7F80).any():
            return "finite values", "infinity or NaN"
    elif dtype == "F32" and not numpy.isfinite(numpy.frombuffer(data, "<f4")).all():
        return "finite values", "infinity or NaN"
    return None
