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
from dataclasses import dataclass, fields
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
class Result:
    """Seconds of both contenders by [turn][rank], and how far apart what they made was."""

    first: list[list[float]]
    second: list[list[float]]
    difference: float
    split: bool
    """Whether the second contender's ranks shared the work; else each did all of it, as the first's always do."""

    def alone(self) -> list[float]:
        return [sum(turn) / len(turn) for turn in self.first]

    def together(self) -> list[float]:
        """Until the last rank was done, where the work was shared."""
        return [max(turn) if self.split else sum(turn) / len(turn) for turn in self.second]

    def ratios(self) -> list[float]:
        return [one / two for one, two in zip(self.alone(), self.together(), strict=True)]


def timed(run: Run) -> tuple[float, Tensor]:
    dist.barrier()
    start = time.perf_counter()
    found = run()
    return time.perf_counter() - start, found


def difference(whole: Tensor, part: Tensor, shard: Shard) -> float:
    """||a - b|| / ||b|| of the two results on this rank, which may hold only a shard of the second, or nothing."""
    if part.dim() == 3:
        whole = shard.take(patchify(whole, (1, 2, 2)))
    return float((part.double() - whole.double()).norm() / whole.double().norm()) if part.numel() else 0.0


def measure(case: Case, size: Size, repeat: int) -> Result:
    """Fork two ranks and let the contenders take turns."""
    cores = sorted(os.sched_getaffinity(0))
    assert len(cores) >= 2, "two ranks need two cores"

    def main(context: RankContext) -> tuple[list[float], list[float], float]:
        os.sched_setaffinity(0, {cores[context.rank]})
        shard = Shard(size.plan(case.degrees).tokens, context.rank)
        with torch.no_grad():
            first, second = case.contenders(context, size)
            apart = difference(timed(first())[1], timed(second())[1], shard)
            turns = [(timed(first())[0], timed(second())[0]) for _ in range(repeat)]
        dist.barrier()
        return [turn[0] for turn in turns], [turn[1] for turn in turns], apart

    ranks = run_local(2, main, deadline=3600.0)
    firsts, seconds = ([list(turn) for turn in zip(*(rank[i] for rank in ranks), strict=True)] for i in (0, 1))
    return Result(firsts, seconds, max(rank[2] for rank in ranks), case.degrees.world > 1)


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
| | one rank, s | two ranks, s | speed-up | lowest - highest | target | | difference |
|---|---|---|---|---|---|---|---|"""
WHOLE = """
| | stock pipeline, s | hybridgen, s | cost | lowest - highest | target | | difference |
|---|---|---|---|---|---|---|---|"""


def row(name: str, case: Case, result: Result) -> str:
    """A line of the table: medians over the turns, and of the ratio its range as well."""
    found, limits = median(result.ratios()), (min(result.ratios()), max(result.ratios()))
    times = f"{median(result.alone()):.3f} | {median(result.together()):.3f}"
    verdict = "met" if found >= case.target else "missed"
    if result.split:
        numbers = f"{found:.2f} | {limits[0]:.2f} - {limits[1]:.2f} | >= {case.target:.1f}"
    else:
        costs = [f"{1 / ratio - 1:+.1%}" for ratio in (found, *reversed(limits), case.target)]
        numbers = f"{costs[0]} | {costs[1]} - {costs[2]} | <= {costs[3]}"
    return f"| {name} | {times} | {numbers} | {verdict} | {result.difference:.0e} |"


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
        result = measure(CASES[name], size, args.repeat)
        lines = row(name, CASES[name], result)
        if header != (header := SPLIT if result.split else WHOLE):
            lines = f"{header}\n{lines}"
        text += f"\n{lines}"
        print(lines, flush=True)
    if args.out:
        args.out.write_text(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
