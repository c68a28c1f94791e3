"""Text for people: units, tables, and where output goes."""

from __future__ import annotations

import io
import os
import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from decimal import Decimal

from hybridgen.errors import counted

UNLIMITED = 10_000
"""Width of a page on which no table is folded."""
UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def size(count: float) -> str:
    """Bytes with three digits or fewer and a unit: 61 MB, 1.9 TB, 0 B."""
    unit = 0
    while abs(count) >= 999.5 and unit < len(UNITS) - 1:
        count, unit = count / 1000, unit + 1
    return f"{count:.0f} {UNITS[unit]}" if count >= 9.95 or unit == 0 else f"{count:.1f} {UNITS[unit]}"


def ranks(count: int) -> str:
    """A number of ranks in words: 1 rank, 2 ranks."""
    return counted(count, "rank")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[str] = ()) -> list[str]:
    """Lines of a table whose columns are as wide as their widest entry; nothing is cut.

    numbers: titles of the columns that stand to the right.
    """
    return _render(head, rows, numbers)[0]


def fitting(
    head: Sequence[str], rows: Sequence[Sequence[str]], drop: Sequence[str], numbers: Collection[str] = ()
) -> list[str]:
    """A table that leaves out columns, in the order of `drop`, until it fits the width of the page."""
    kept, limit = list(range(len(head))), width()
    lines, wide = _render(head, rows, numbers)
    for name in drop:
        if limit is None or wide <= limit:
            break
        kept = [i for i in kept if head[i] != name]
        lines, wide = _render([head[i] for i in kept], [[row[i] for i in kept] for row in rows], numbers)
    return lines


def _render(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[str]) -> tuple[list[str], int]:
    """Lines of a table, and the columns that it takes."""
    from rich.console import Console
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in head:
        made.add_column(title, justify="right" if title in numbers else "left", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    console = Console(
        file=io.StringIO(), width=UNLIMITED, color_system=None, markup=False, emoji=False, highlight=False
    )
    with console.capture() as captured:
        console.print(made)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    return lines, max(map(len, lines))


def width() -> int | None:
    """Width of the output in columns: the terminal's, else COLUMNS, else None for no limit."""
    if sys.stdout.isatty():
        with suppress(OSError):
            return os.get_terminal_size(sys.stdout.fileno()).columns
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) > 0 else None


def paragraph(label: str, words: str, indent: int = 9) -> list[str]:
    """A label and its text, folded to the width; a single line if there is no width."""
    first = f"{label:<{indent}}"
    limit = width()
    if limit is None or limit < indent + 20:
        return [first + words]
    folded = textwrap.wrap(words, limit - indent, break_long_words=False, break_on_hyphens=False)
    return [(first if i == 0 else " " * indent) + line for i, line in enumerate(folded)]


def command(label: str, words: str, indent: int = 9) -> list[str]:
    """A label and a command, never folded, so that it can be copied."""
    return [f"{label:<{indent}}{words}"]


def seconds(value: float) -> str:
    """Seconds with three digits: 7.04, 48.1, 342, 10900."""
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f}"


def short(value: float) -> str:
    """A number with three digits and no exponent, however small: 5590, 57.4, 0.000131."""
    return f"{Decimal(f'{value:.3g}'):f}"


def span(low: float, high: float) -> str:
    """A range in as few digits as tell its ends apart: 6.7-7.4, 325-359, 0.0102-0.0108."""
    digits = 0 if high >= 99.5 else 1 if high >= 2 else 2 if high >= 0.1 else 3
    while low < high and f"{low:.{digits}f}" == f"{high:.{digits}f}":
        digits += 1
    return f"{low:.{digits}f}-{high:.{digits}f}"


def gigabytes(count: float) -> str:
    """Bytes in GB, three digits at most: 63, 1.2, 0.05."""
    value = count / 1e9
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.95 else f"{value:.2f}"


def lasting(low: float, high: float) -> str:
    """A range of seconds in the unit that people read: "6.7-7.4 s", "9 to 27 days"."""
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if low >= 2 * size:
            return f"{low / size:.0f} to {high / size:.0f} {unit}"
    return f"{span(low, high)} s"


CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Characters that steer a terminal, or turn the direction of text; line ends and tabs are not among them."""


def clean(line: str) -> str:
    """A line that shows and does nothing else: control characters escaped, and no command of GitHub's runners.

    Much of what is printed comes from files of others: recipes, checkpoints, names.
    """
    line = CONTROLS.sub(lambda one: repr(one[0])[1:-1], line)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        line = re.sub(r"^(\s*)(::|##\[)", r"\1\\\2", line, flags=re.MULTILINE)
    return line


def say(*lines: str) -> None:
    """Print to stderr everything that is not the answer."""
    with suppress(OSError):  # nobody listens any more, which is no reason to end a run
        sys.stderr.write("".join(f"{clean(line)}\n" for line in lines))
        sys.stderr.flush()


def answer(*lines: str) -> None:
    """Print the answer to stdout."""
    sys.stdout.write("".join(f"{clean(line)}\n" for line in lines))
    sys.stdout.flush()


def annotate(file: str, line: int, column: int, title: str, message: str) -> None:
    """Print an error for GitHub's runners to show beside a line of a file."""
    values = {"file": file, "line": line, "col": column, "title": title}
    where = ",".join(f"{name}={_percent(str(value), ':,')}" for name, value in values.items())
    sys.stdout.write(f"::error {where}::{_percent(message)}\n")


def _percent(value: str, special: str = "") -> str:
    """A value with %, line ends and special characters as %XX; other control characters escaped."""
    found = "".join(f"%{ord(one):02X}" if one in f"%\r\n{special}" else one for one in value)
    return CONTROLS.sub(lambda one: repr(one[0])[1:-1], found)
