"""How a CPU rank's memory comes and goes: freed tensors go back to the system, and huge pages make that cheap.

glibc keeps what was freed, up to 32 MB a block, and how well it is used again is chance: a decoding rank's peak varied
by a third from run to run. With a fixed threshold every larger block is a mapping of its own, which ends when it is
freed; the peak is then within 2% of itself, and a third lower. The page faults that this costs are saved where the
kernel backs a tensor with huge pages, which torch asks for on demand.
"""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path

MMAP_THRESHOLD = 2**20
"""Bytes from which on a block is a mapping of its own."""
M_MMAP_THRESHOLD = -3
"""glibc's number of this parameter of mallopt."""
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def return_freed_memory() -> bool:
    """Set up this process and those that are forked from it, before torch makes its first tensor.

    Only with glibc and where huge pages can be had; elsewhere nothing changes. Whether anything did.
    """
    if platform.libc_ver()[0] != "glibc" or not has_huge_pages():
        return False
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch reads it once, with its first tensor
    return bool(ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD))


def has_huge_pages() -> bool:
    """Whether the kernel backs memory with huge pages, always or on demand."""
    try:
        return "[never]" not in HUGE_PAGES.read_text()
    except OSError:
        return False
