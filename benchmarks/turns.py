"""Two contenders on two ranks of one thread each, turn by turn, so that both have the same clock, memory and noise.

Ranks are forked for each match and pinned to a core of their own. A first run of both warms up and is judged; then
they take turns. A turn that other processes disturbed can be repeated.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hybridgen.distributed.processes import RankContext, run_local
from hybridgen.engine.report import versions

CALM = 0.03
"""Share of a core that other processes may have during a turn before it counts as disturbed."""
Run = Callable[[], Tensor]
"""What is timed."""
Contender = Callable[[], Run]
"""Gets ready, which is not timed, and returns what is."""


@dataclass(frozen=True)
class Match:
    """Two contenders on this rank, and what the ranks do with them."""

    first: Contender
    second: Contender
    together: tuple[bool, bool]
    """Whether the ranks make one thing together, or each one a whole one of its own."""
    judge: Callable[[Tensor, Tensor], list[float]]
    """Errors of what the two have made, or how far apart it is; collective, and not timed."""


@dataclass(frozen=True)
class Turn:
    """One turn: seconds of both contenders, and the share of a core that other processes had meanwhile."""

    first: float
    second: float
    others: float

    @property
    def ratio(self) -> float:
        return self.first / self.second


@dataclass(frozen=True)
class Result:
    """The turns of one match, and the judge's numbers (the largest of the ranks')."""

    turns: list[Turn]
    judged: list[float]

    def median(self, what: str) -> float:
        return float(median(getattr(turn, what) for turn in self.turns))

    @property
    def ratios(self) -> tuple[float, float, float]:
        """Median, lowest and highest of first / second."""
        ratios = [turn.ratio for turn in self.turns]
        return median(ratios), min(ratios), max(ratios)

    @property
    def span(self) -> str:
        """Cells of a table: first / second, median and range."""
        found, low, high = self.ratios
        return f"{found:.2f} | {low:.2f} - {high:.2f}"

    @property
    def times(self) -> str:
        """Cells of a table: seconds of both."""
        return f"{self.median('first'):.3f} | {self.median('second'):.3f}"

    @property
    def others(self) -> float:
        return max(turn.others for turn in self.turns)


def timed(run: Run) -> tuple[float, Tensor]:
    dist.barrier()
    start = time.perf_counter()
    found = run()
    return time.perf_counter() - start, found


def taken_by_others(core: int) -> float:
    """Seconds that `core`, to which this process is pinned, has worked for anything else (Linux)."""
    line = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith(f"cpu{core} "))
    user, nice, system, _, _, *interrupts = map(int, line.split()[1:9])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK") - time.process_time()


def take_turn(match: Match, core: int) -> Turn:
    """Time alone is the mean of the copies; time together ends with the last rank."""
    runs, start, before = (match.first(), match.second()), time.perf_counter(), taken_by_others(core)
    times = [timed(run)[0] for run in runs]
    mine = torch.tensor([*times, (taken_by_others(core) - before) / (time.perf_counter() - start)])
    ranks = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(ranks, mine)
    mean, last = torch.stack(ranks).mean(0).tolist(), torch.stack(ranks).amax(0).tolist()
    first, second = (last[i] if match.together[i] else mean[i] for i in range(2))
    return Turn(first, second, last[2])


def play(ready: Callable[[RankContext], Match], repeat: int, patience: int = 0) -> Result:
    """Fork two ranks and let what `ready` gives take turns; up to `patience` disturbed ones are repeated."""
    cores = sorted(os.sched_getaffinity(0))
    assert len(cores) >= 2, "two ranks need two cores"

    def main(context: RankContext) -> tuple[list[tuple[float, ...]], list[float]]:
        core, tries = cores[context.rank], 0
        os.sched_setaffinity(0, {core})
        turns: list[Turn] = []
        with torch.no_grad():
            match = ready(context)
            judged = match.judge(timed(match.first())[1], timed(match.second())[1])
            while len(turns) < repeat:
                turn, tries = take_turn(match, core), tries + 1
                if turn.others <= CALM or tries > patience:
                    turns.append(turn)
        dist.barrier()
        return [astuple(turn) for turn in turns], judged  # a script's own classes cannot be sent

    ranks: list[Any] = run_local(2, main)
    judged = [max(numbers) for numbers in zip(*(judged for _, judged in ranks), strict=True)]
    return Result([Turn(*turn) for turn in ranks[0][0]], judged)


def parser(about: str | None) -> argparse.ArgumentParser:
    """The options of every script that plays."""
    found = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--repeat", type=int, default=5, help="turns that count")
    found.add_argument("--patience", type=int, default=0, help="turns to repeat while other processes disturb them")
    found.add_argument("--out", type=Path, help="file to write the tables to")
    return found


def machine() -> str:
    """The machine and the libraries, without names or paths."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(": ")[1] for line in info if line.startswith("model name")), platform.machine())
    library = versions()
    return (
        f"Machine: {len(os.sched_getaffinity(0))} cores ({model}, {torch.backends.cpu.get_cpu_capability()}), load "
        f"{os.getloadavg()[0]:.1f} at the start; torch {library['torch']}, diffusers {library['diffusers']}, float32"
    )
