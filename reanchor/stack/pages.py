"""Pages of a checkpoint file that is mapped into memory, given back once what they held has been copied. It knows no
model.

transformers maps a checkpoint's file where no conversion is asked for, and a page that was read stays resident as long
as any tensor of the file lives.
"""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

from torch import Tensor

SMAPS = Path("/proc/self/smaps")
Range = tuple[int, int]  # first address, the one behind the last


def clean_files() -> list[Range]:
    """Ranges of this process that hold nothing but what their file holds; none where the system does not say.

    A range with a page of its own was written to since: dropping that page would undo what was written.
    """
    try:
        lines = SMAPS.read_text().splitlines()
    except OSError:
        return []
    found: list[Range] = []
    for line in lines:
        name, *words = line.split()
        if not name.endswith(":"):  # address permissions offset device inode path
            start, end = (int(each, 16) for each in name.split("-"))
            from_file = len(words) > 3 and words[3] != "0"
            found += [(start, end)] if from_file else [(0, 0)]
        elif name in ("Anonymous:", "Swap:") and words[0] != "0":
            found[-1] = (0, 0)
    return [each for each in found if each[1]]


def give_back(tensor: Tensor, clean: list[Range]) -> None:
    """Drop the whole pages under a tensor nobody reads any more, if they lie in a clean range; else do nothing.
    Whoever reads them after all reads them from the file.
    """
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        return
    page = mmap.PAGESIZE
    start = -(-tensor.data_ptr() // page) * page
    end = (tensor.data_ptr() + tensor.nbytes) // page * page
    if start < end and any(low <= start and end <= high for low, high in clean):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)
