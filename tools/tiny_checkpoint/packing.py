"""Pack whole documents into rows of one length, without splitting what fits.

In: concatenated documents (each begins with id 0) and their target marks. Out: rows, marks.
Does not know: tokens' meaning, the network.
"""

import numpy as np

OPEN_ROWS = 24
PAD_ID = 2
IGNORED, CONTEXT, TARGET = 0, 1, 2


def spans(ids: np.ndarray, length: int) -> list[tuple[int, int]]:
    """Begin and end of every document, cut to `length`."""
    begins = np.flatnonzero(ids == 0)
    ends = np.append(begins[1:], len(ids))
    ends = np.minimum(ends, begins + length)
    return list(zip(begins.tolist(), ends.tolist(), strict=True))


def pack_rows(
    ids: np.ndarray, target: np.ndarray, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows [n, length] uint16 and marks uint8: 0 ignored, 1 context, 2 to be answered.

    Documents begin at even positions, so that ratio-2 groups fall as they do at inference.
    """
    marks = np.where(target > 0, TARGET, CONTEXT).astype(np.uint8)
    marks[ids == 0] = IGNORED
    places: list[tuple[int, int, int, int]] = []  # row, offset, begin, end
    free: dict[int, int] = {}  # row -> first free position
    rows = 0
    for begin, end in spans(ids, length):
        size = end - begin
        row = next((r for r, used in free.items() if used + size <= length), -1)
        if row < 0:
            if len(free) == OPEN_ROWS:
                free.pop(max(free, key=free.__getitem__))
            row, rows = rows, rows + 1
            free[row] = 0
        places.append((row, free[row], begin, end))
        free[row] += size + size % 2
        if free[row] >= length - 16:
            free.pop(row)
    packed = np.full((rows, length), PAD_ID, np.uint16)
    packed_marks = np.zeros((rows, length), np.uint8)
    for row, offset, begin, end in places:
        packed[row, offset : offset + end - begin] = ids[begin:end]
        packed_marks[row, offset : offset + end - begin] = marks[begin:end]
    return packed, packed_marks
