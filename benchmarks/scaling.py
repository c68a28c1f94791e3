"""How much faster two CPU ranks are than one, strategy by strategy, and what hybridgen costs when nothing is split.

    python -m benchmarks.scaling --out benchmarks/results/scaling-cpu.md       (in the root of the repository)

Two ranks of one thread, each pinned to a core of its own, take turns: first both make the same clip, each alone
(a rank that shares the machine with a copy of itself), then both make it together. Ranks are forked once per line
of the table; a first turn warms up and is not kept. Random weights; how to read the table: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.contenders import Contender, Run, Size, decoder, denoiser, stock
from hybridgen.degrees import Degrees
from hybridgen.job import versions
from hybridgen.runtime.join import init_process_group
from hybridgen.runtime.rank import quiet_libraries
from hybridgen.runtime.ranks import RankContext, run_local
from hybridgen.runtime.sequence import Shard, patchify

CALM = 0.03
"""Share of a core that other processes may have during a turn before it counts as disturbed."""


@dataclass(frozen=True)
class Case:
    """One line of a table: two contenders and what is expected of their times' ratio, first to second."""

    degrees: Degrees
    target: float
    what: str = "denoise"

    def contenders(self, context: RankContext, size: Size) -> tuple[Contender, Contender]:
        if self.what == "stock":
            init_process_group(context, torch.device("cpu"))
            plan = size.plan(Degrees())
            return stock(plan), denoiser(context, plan)
        if self.what == "decode":
            return decoder(context, size.decode_plan(Degrees())), decoder(context, size.decode_plan(self.degrees))
        return denoiser(context, size.plan(Degrees())), denoiser(context, size.plan(self.degrees))


CASES = {
    "cfg": Case(Degrees(cfg=2), 1.9),
    "ulysses": Case(Degrees(ulysses=2), 1.8),
    "ring": Case(Degrees(ring=2), 1.8),
    "attention2d-2x1": Case(Degrees(attn2d=(2, 1)), 1.8),
    "attention2d-1x2": Case(Degrees(attn2d=(1, 2)), 1.8),
    "vae-decode": Case(Degrees(ulysses=2, vae=2), 1.7, "decode"),
    "world-size-1": Case(Degrees(), 1 / 1.02, "stock"),
}


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
    """The turns of one line, and how far apart what the two contenders made was."""

    turns: list[Turn]
    difference: float

    def median(self, what: str) -> float:
        return float(median(getattr(turn, what) for turn in self.turns))


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


def take_turn(first: Contender, second: Contender, core: int, split: bool) -> Turn:
    """Time alone is the mean of the copies; time together ends with the last rank."""
    runs, start, before = (first(), second()), time.perf_counter(), taken_by_others(core)
    times = [timed(run)[0] for run in runs]
    mine = torch.tensor([*times, (taken_by_others(core) - before) / (time.perf_counter() - start)])
    ranks = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(ranks, mine)
    (alone, together, _), (_, last, others) = torch.stack(ranks).mean(0).tolist(), torch.stack(ranks).amax(0).tolist()
    return Turn(alone, last if split else together, others)


def difference(whole: Tensor, part: Tensor, shard: Shard) -> float:
    """||a - b|| / ||b|| of the two results on this rank, which may hold only a shard of the second, or nothing."""
    if part.dim() == 3:
        whole = shard.take(patchify(whole, (1, 2, 2)))
    return float((part.double() - whole.double()).norm() / whole.double().norm()) if part.numel() else 0.0


def measure(case: Case, size: Size, repeat: int, patience: int) -> Result:
    """Fork two ranks and let the contenders take turns; a first one warms up."""
    cores = sorted(os.sched_getaffinity(0))
    assert len(cores) >= 2, "two ranks need two cores"

    def main(context: RankContext) -> tuple[list[tuple[float, ...]], float]:
        core, split = cores[context.rank], case.degrees.world > 1
        os.sched_setaffinity(0, {core})
        shard, tries = Shard(size.plan(case.degrees).tokens, context.rank), 0
        turns: list[Turn] = []
        with torch.no_grad():
            first, second = case.contenders(context, size)
            apart = difference(timed(first())[1], timed(second())[1], shard)
            while len(turns) < repeat:
                turn, tries = take_turn(first, second, core, split), tries + 1
                if turn.others <= CALM or tries > patience:
                    turns.append(turn)
        dist.barrier()
        return [astuple(turn) for turn in turns], apart  # ranks know no class of this script, nor send one

    ranks = run_local(2, main)
    return Result([Turn(*turn) for turn in ranks[0][0]], max(apart for _, apart in ranks))


def attention_share(size: Size) -> float:
    """Share of one rank's time that is spent inside torch's attention."""

    def main(context: RankContext) -> float:
        attend, inside = torch.nn.functional.scaled_dot_product_attention, [0.0]

        def counted(*args: Any, **kwargs: Any) -> Tensor:
            start = time.perf_counter()
            out = attend(*args, **kwargs)
            inside[0] += time.perf_counter() - start
            return out

        torch.nn.functional.scaled_dot_product_attention = counted  # in this process, which ends with it
        with torch.no_grad():
            run = denoiser(context, size.plan(Degrees()))()
            start = time.perf_counter()
            run()
        return inside[0] / (time.perf_counter() - start)

    return float(run_local(1, main)[0])


SPLIT = """
| | one rank, s | two ranks, s | speed-up | lowest - highest | target | | difference | others |
|---|---|---|---|---|---|---|---|---|"""
WHOLE = """
| | stock pipeline, s | hybridgen, s | cost | lowest - highest | target | | difference | others |
|---|---|---|---|---|---|---|---|---|"""


def row(name: str, case: Case, result: Result) -> str:
    """A line of the table: medians over the turns, and of the ratio its range as well."""
    ratios = [turn.ratio for turn in result.turns]
    found, low, high = median(ratios), min(ratios), max(ratios)
    if case.degrees.world > 1:
        numbers = f"{found:.2f} | {low:.2f} - {high:.2f} | >= {case.target:.1f}"
    else:
        costs = [f"{1 / ratio - 1:+.1%}" for ratio in (found, high, low, case.target)]
        numbers = f"{costs[0]} | {costs[1]} - {costs[2]} | <= {costs[3]}"
    verdict = "met" if found >= case.target else "missed"
    times = f"{result.median('first'):.3f} | {result.median('second'):.3f}"
    others = max(turn.others for turn in result.turns)
    return f"| {name} | {times} | {numbers} | {verdict} | {result.difference:.0e} | {others:.0%} |"


def describe(size: Size, repeat: int) -> str:
    """The machine and what was made, without names or paths."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(": ")[1] for line in info if line.startswith("model name")), platform.machine())
    library, load, share = versions(), os.getloadavg()[0], attention_share(size)
    return f"""\
Written by benchmarks/scaling.py; how to read and repeat it: benchmarks/README.md.

- Machine: {len(os.sched_getaffinity(0))} cores ({model}, {torch.backends.cpu.get_cpu_capability()}), \
load {load:.1f} at the start; torch {library["torch"]}, diffusers {library["diffusers"]}, float32
- Denoised: {size.tokens} tokens, {size.layers} layers, {size.heads} heads of {size.head_dim}, {size.steps} steps, \
2 guidance branches; attention takes {share:.0%} of one rank's time
- Decoded: {size.decode_side}x{size.decode_side}, {size.decode_frames} frames, Wan 2.1's autoencoder in full width
- Every number is the median of {repeat} turns, after one that warms up"""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES, nargs="+", default=list(CASES), help="lines to measure")
    parser.add_argument("--repeat", type=int, default=5, help="turns that count")
    parser.add_argument("--patience", type=int, default=0, help="turns to repeat while other processes disturb them")
    parser.add_argument("--out", type=Path, help="file to write the table to")
    for item in fields(Size):
        parser.add_argument(f"--{item.name.replace('_', '-')}", type=int, default=item.default)
    return parser.parse_args()


def main() -> int:
    args = options()
    size = Size(**{item.name: getattr(args, item.name) for item in fields(Size)})
    torch.set_num_threads(1)  # before the fork: a pool of threads would not survive it
    quiet_libraries()
    text = describe(size, args.repeat)
    print(text, flush=True)
    header = ""
    for name in args.only:
        result = measure(CASES[name], size, args.repeat, args.patience)
        lines = row(name, CASES[name], result)
        if header != (header := SPLIT if CASES[name].degrees.world > 1 else WHOLE):
            lines = f"{header}\n{lines}"
        text += f"\n{lines}"
        print(lines, flush=True)
    if args.out:
        args.out.write_text(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
