"""Predicted against measured on this machine's CPU: step time of one and two ranks.

`python -m benchmarks.planner_cpu --out benchmarks/results/planner-cpu.md` (some minutes on two idle cores). First the
machine is calibrated with one block of the model, as `hybridgen calibrate` does; then clips are denoised on every split
of two ranks, and the median of some runs stands beside the prediction.

`python -m benchmarks.planner_cpu --command` measures the planner itself: the CPU time of `hybridgen plan`, beside that
of importing what any such command imports.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from benchmarks.contenders import Size, denoiser
from benchmarks.turns import CALM, machine, taken_by_others
from hybridgen.distributed.processes import RankContext, run_local
from hybridgen.engine.calibrate import Settings, run
from hybridgen.engine.rank import quiet_libraries
from hybridgen.plan.plan import Plan
from hybridgen.planner.hardware import calibration
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.hardware.lookup import find
from hybridgen.planner.price.cost import cost
from hybridgen.strategies.registry import Degrees

SIZES = {
    "attention": Size(tokens=3072, layers=2, heads=8, head_dim=64, steps=2),
    "matrices": Size(tokens=1024, layers=2, heads=12, head_dim=128, steps=2),
}
SPLITS = [
    Degrees(),
    Degrees(cfg=2),
    Degrees(ulysses=2),
    Degrees(ring=2),
    Degrees(attn2d=(2, 1)),
    Degrees(attn2d=(1, 2)),
    Degrees(tp=2),
]
RUNS, TRIES = 5, 20


def calibrated(plan: Plan, tokens: int) -> Hardware:
    """This machine, measured with a block of the plan's model."""
    settings = Settings(plan.facts, plan.dtype, "cpu", 2, tokens)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "machine.yaml"
        calibration.write(file, "cpu", "this machine", run(settings))
        return find(str(file))


def measured(plan: Plan) -> float:
    """Seconds of one denoising step, the slower rank's: the median of some runs that nothing else disturbed."""
    cores = sorted(os.sched_getaffinity(0))

    def main(context: RankContext) -> list[tuple[float, float]]:
        core = cores[context.rank]
        os.sched_setaffinity(0, {core})
        runs: list[tuple[float, float]] = []
        with torch.no_grad():
            contender = denoiser(context, plan)
            while len(runs) <= TRIES and sum(others <= CALM for _, others in runs[1:]) < RUNS:
                work = contender()
                if dist.is_initialized():
                    dist.barrier()
                start, before = time.perf_counter(), taken_by_others(core)
                work()
                seconds = time.perf_counter() - start
                found = torch.tensor([seconds, (taken_by_others(core) - before) / seconds], dtype=torch.float64)
                if dist.is_initialized():
                    dist.all_reduce(found, dist.ReduceOp.MAX)
                runs.append((found[0].item(), found[1].item()))
        return runs[1:]

    runs = run_local(plan.world_size, main)[0]
    calm = [seconds for seconds, others in runs if others <= CALM] or [min(seconds for seconds, _ in runs)]
    return float(median(calm)) / plan.clip.steps


HEAD = """
| model | split | predicted, s a step | measured, s a step | error |
|---|---|---|---|---|"""


def times() -> list[str]:
    """The section on step times, printed as it grows."""
    lines = shown(f"## Step time\n\n- {machine()}", HEAD)
    for name, size in SIZES.items():
        hardware = calibrated(size.plan(Degrees()), size.tokens)
        for degrees in SPLITS:
            plan = replace(size.plan(degrees), dtype="float32")
            predicted, found = cost(plan, hardware).denoise / plan.clip.steps, measured(plan)
            error = f"{predicted / found - 1:+.0%}"
            lines += shown(f"| {name} | {degrees} | {predicted:.3f} | {found:.3f} | {error} |")
    return lines


IMPORTS = ("-c", "import typer, rich.console, rich.table")
COMMANDS = {"--gpus 72": 7, "--gpus 4608": 3, "--gpus 4608 --approximate": 1}
"""Flags of `hybridgen plan`, and how often each is run."""


def cpu_seconds(words: Sequence[str], runs: int) -> float:
    """The least CPU seconds of a command of this Python, which other work disturbs less than the median."""
    found = []
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


def command_times() -> list[str]:
    """The section on the planner's own time."""
    usual = cpu_seconds(IMPORTS, 7)
    head = "| command | CPU s | times that of the imports |\n|---|---|---|"
    lines = shown(f"## The planner's own time\n\n- {machine()}\n\n{head}", f"| imports | {usual:.2f} | 1 |")
    for flags, runs in COMMANDS.items():
        taken = cpu_seconds(("-m", "hybridgen", "plan", *flags.split()), runs)
        lines += shown(f"| plan {flags} | {taken:.2f} | {taken / usual:.1f} |")
    return lines


def shown(*lines: str) -> list[str]:
    print("\n".join(lines), flush=True)
    return list(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file to write the table to")
    parser.add_argument("--command", action="store_true", help="measure the planner's own time instead")
    args = parser.parse_args()
    torch.set_num_threads(1)  # before the fork: a pool of threads would not survive it
    quiet_libraries()
    lines = command_times() if args.command else times()
    if args.out:
        args.out.write_text("\n".join(["Written by benchmarks/planner_cpu.py.\n", *lines]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
