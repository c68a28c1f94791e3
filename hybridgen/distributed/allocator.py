"""How a CPU rank's memory comes and goes: huge pages for tensors, and while decoding no keeping of what was freed.

glibc keeps freed blocks of up to 32 MB, and how well they are used again is chance: the peak of a rank that decoded
alone varied by a third from run to run. With a fixed threshold every larger block is a mapping of its own, which ends
when it is freed. The page faults that this costs are saved where the kernel backs tensors with huge pages; the blocks
of a transformer are mostly too small for those, so denoising keeps glibc's ways.
"""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path

MMAP_THRESHOLD = 2**22
"""Bytes from which on a block is a mapping of its own: two huge pages. With 1 MiB strips took a quarter longer."""
M_MMAP_THRESHOLD = -3
"""glibc's number of this parameter of mallopt."""
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def ask_for_huge_pages() -> None:
    """Let torch ask the kernel for huge pages; it looks once, with its first tensor, and its forks look no more."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def return_freed_memory() -> bool:
    """From now on large blocks go back to the system when they are freed; what is free already goes now.

    Only with glibc and where huge pages can be had; elsewhere nothing changes. Whether anything did.
    """
    if platform.libc_ver()[0] != "glibc" or not has_huge_pages():
        return False
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    return bool(libc.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD))


def has_huge_pages() -> bool:
    """Whether the kernel backs memory with huge pages, always or on demand."""
    try:
        return "[never]" not in HUGE_PAGES.read_text()
    except OSError:
        return False
