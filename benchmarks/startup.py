"""CPU time of commands that only read and plan, beside that of importing what draws their screens.

`python -m benchmarks.startup` (half a minute): the least CPU time of some runs of each command, and how many times that
of `python -c "import typer, rich.console, rich.table"` it is.
"""

from __future__ import annotations

import os
import subprocess
import sys

RUNS = 7
YARDSTICK = ["-c", "import typer, rich.console, rich.table"]
COMMANDS = [
    "--version",
    "--help",
    "plan --gpus 72",
    "plan --gpus 72 --json",
    "plan --gpus 4608",
    "run --model demo --cfg 2 --ulysses 2 -p x --dry-run",
    "recipes list",
    "explain",
]


def seconds(words: list[str]) -> float:
    """CPU seconds of a Python process, its children's included: the least of some runs."""
    return min(_once(words) for _ in range(RUNS))


def _once(words: list[str]) -> float:
    before = os.times()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> int:
    unit = seconds(YARDSTICK)
    print(f"| command | CPU ms | x typer and rich |\n|---|---|---|\n| typer and rich | {unit * 1e3:.0f} | 1.0 |")
    for command in COMMANDS:
        found = seconds(["-m", "hybridgen", *command.split()])
        print(f"| `hybridgen {command}` | {found * 1e3:.0f} | {found / unit:.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
