"""CPU time of commands that only read and plan, beside that of importing what draws their screens.

`python -m benchmarks.startup` (some minutes): the median CPU time (user and system) of some runs of each command, and
how many times that of `python -c "import typer, rich.console, rich.table"` it is. All of them take turns, so that what
else the machine does is the same for each. The first turn does not count, since it may write bytecode.
"""

from __future__ import annotations

import os
import subprocess
import sys
from statistics import median

TURNS = 9
YARDSTICK = ["-c", "import typer, rich.console, rich.table"]
COMMANDS = [
    "--version",
    "--help",
    "plan --gpus 72",
    "plan --gpus 72 --json",
    "plan --gpus 4608",
    "plan --gpus 4608 --approximate",
    "run --model demo --cfg 2 --ulysses 2 -p x --dry-run",
    "recipes list",
    "explain",
]


def seconds(words: list[str]) -> float:
    """CPU seconds of a Python process, its children's included; with bytecode, as an installed package has it."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = os.times()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, env=env)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> int:
    runs = [YARDSTICK, *(["-m", "hybridgen", *command.split()] for command in COMMANDS)]
    turns = [[seconds(words) for words in runs] for _ in range(TURNS + 1)][1:]
    unit, *found = (median(taken) for taken in zip(*turns, strict=True))
    print(f"| command | CPU ms | x typer and rich |\n|---|---|---|\n| typer and rich | {unit * 1e3:.0f} | 1.0 |")
    for command, taken in zip(COMMANDS, found, strict=True):
        print(f"| `hybridgen {command}` | {taken * 1e3:.0f} | {taken / unit:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
