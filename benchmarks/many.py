"""Clips an hour on ranks that stay, beside as many starts of the command.

`python -m benchmarks.many --clips 20 --starts 3 --out FILE.md` (a few minutes): one job of many clips of the demo model
on 4 CPU ranks, and some starts of the same command for one clip each, in turns, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

COMMAND = ["-m", "hybridgen", "run", "--model", "demo", "--cfg", "2", "--ulysses", "2", "--quiet"]


def seconds(folder: Path, *words: str) -> float:
    """Wall-clock seconds of the command, in a new folder."""
    began = time.monotonic()
    subprocess.run([sys.executable, *COMMAND, *words], cwd=folder, check=True, capture_output=True)
    return time.monotonic() - began


def measure(clips: int, starts: int) -> tuple[float, float]:
    """Seconds a clip: of a start for each, and of one job for all."""
    alone, together = [], []
    with tempfile.TemporaryDirectory() as name:
        for turn in range(starts):
            folder = Path(name) / str(turn)
            folder.mkdir()
            alone.append(seconds(folder, "-p", "a red circle moves right", "--seed", "1"))
            (folder / "prompts.txt").write_text("a red circle moves right\n" * clips)
            together.append(seconds(folder, "--prompts", "prompts.txt") / clips)
    return median(alone), median(together)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=20)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    alone, together = measure(given.clips, given.starts)
    lines = [
        f"One job of {given.clips} clips of the demo model on 4 CPU ranks, and a start of the command for each clip:",
        f"medians of {given.starts} turns.",
        "",
        "| | seconds a clip | clips an hour |",
        "|---|---|---|",
        f"| a start for every clip | {alone:.2f} | {3600 / alone:.0f} |",
        f"| one job | {together:.2f} | {3600 / together:.0f} |",
        "",
        f"The job makes {alone / together:.1f} times as many.",
    ]
    text = "\n".join(lines) + "\n"
    if given.out:
        given.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
