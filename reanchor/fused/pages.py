"""Pages of a checkpoint file that is mapped into memory, given back once what they held has been copied, and watched
for writing. It knows no model.

transformers maps a checkpoint's file where no conversion is asked for, and a page that was read stays resident as long
as any tensor of the file lives.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

SMAPS, PAGEMAP = Path("/proc/self/smaps"), Path("/proc/self/pagemap")
PRESENT, SWAPPED, OF_FILE = (np.uint64(1 << bit) for bit in (63, 62, 61))  # bits of an entry of the page map
Range = tuple[int, int]  # first address, the one behind the last


def clean_files() -> list[Range]:
    """Private ranges of this process that hold nothing but what their file holds; none where the system does not say,
    or not what is written to later.

    A range with a page of its own was written to since: dropping that page would undo what was written.
    """
    try:
        lines = SMAPS.read_text().splitlines()
    except OSError:
        return []
    if not os.access(PAGEMAP, os.R_OK):
        return []
    found: list[Range] = []
    for line in lines:
        name, *words = line.split()
        if not name.endswith(":"):  # address permissions offset device inode path
            start, end = (int(each, 16) for each in name.split("-"))
            from_file = len(words) > 3 and words[3] != "0" and words[0].endswith("p")
            found += [(start, end)] if from_file else [(0, 0)]
        elif name in ("Anonymous:", "Swap:") and words[0] != "0":
            found[-1] = (0, 0)
    return [each for each in found if each[1]]


def pages_of(tensor: Tensor) -> Range:
    """All pages that hold something of a contiguous tensor."""
    page, start = mmap.PAGESIZE, tensor.data_ptr()
    return start // page * page, -(-(start + tensor.nbytes) // page) * page


def within(pages: Range, ranges: Iterable[Range]) -> bool:
    return any(low <= pages[0] and pages[1] <= high for low, high in ranges)


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same pages in as few ranges as there can be."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def drop(pages: Range) -> None:
    """Give back pages of `clean_files` that nobody wrote to; who reads them after all reads them from the file."""
    size = ctypes.c_size_t(pages[1] - pages[0])
    ctypes.CDLL(None).madvise(ctypes.c_void_p(pages[0]), size, mmap.MADV_DONTNEED)


def written(pages: Sequence[Range]) -> bool:
    """Whether one of these pages of `clean_files` was written to since: it is this process's own then."""
    if not pages:
        return False
    with PAGEMAP.open("rb", buffering=0) as entries:
        for start, end in pages:
            entries.seek(start // mmap.PAGESIZE * 8)
            held = np.frombuffer(entries.read((end - start) // mmap.PAGESIZE * 8), np.uint64)
            if bool((((held & (PRESENT | SWAPPED)) != 0) & ((held & OF_FILE) == 0)).any()):
                return True
    return False


def give_back(tensor: Tensor, clean: list[Range]) -> None:
    """Drop the whole pages under a tensor nobody reads any more, if they lie in a clean range; else do nothing."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        return
    page = mmap.PAGESIZE
    start = -(-tensor.data_ptr() // page) * page
    end = (tensor.data_ptr() + tensor.nbytes) // page * page
    if start < end and within((start, end), clean):
        drop((start, end))
