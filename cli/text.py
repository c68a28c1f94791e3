"""Words and numbers for people: units, tables, and where output goes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress

UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def size(count: float) -> str:
    """Bytes with three digits or fewer and a unit: 61 MB, 1.9 TB, 0 B."""
    unit = 0
    while abs(count) >= 999.5 and unit < len(UNITS) - 1:
        count, unit = count / 1000, unit + 1
    return f"{count:.0f} {UNITS[unit]}" if count >= 9.95 or unit == 0 else f"{count:.1f} {UNITS[unit]}"


def ranks(count: int) -> str:
    """1 rank, 2 ranks."""
    return counted(count, "rank")


def counted(count: int, noun: str) -> str:
    """1 file, 2 files."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """Columns padded to their widest entry; the first `left` to the left, the others to the right. Never cut."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return [
        "  ".join(
            c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def say(*lines: str) -> None:
    """To stderr, where everything goes that is not the answer."""
    with suppress(OSError):  # nobody listens any more, which is no reason to end a run
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()


def answer(*lines: str) -> None:
    """To stdout: the answer."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
