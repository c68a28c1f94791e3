"""How much faster two CPU ranks are than one, strategy by strategy, and what hybridgen costs when nothing is split.

    python -m benchmarks.scaling --out benchmarks/results/scaling-cpu.md       (in the root of the repository)

Two ranks of one thread, each pinned to a core of its own, take turns: first both make the same clip, each alone
(a rank that shares the machine with a copy of itself), then both make it together. Ranks are forked once per line
of the table; a first turn warms up and is not kept. Random weights; how to read the table: benchmarks/README.md.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.contenders import Size, decoder, denoiser, stock
from benchmarks.turns import Match, Result, machine, parser, play
from hybridgen.distributed.processes import RankContext, run_local
from hybridgen.distributed.rendezvous import init_process_group
from hybridgen.distributed.sequence import Shard, patchify
from hybridgen.engine.rank import quiet_libraries
from hybridgen.strategies.registry import Degrees


@dataclass(frozen=True)
class Case:
    """One line of a table: two contenders and what is expected of their times' ratio, first to second."""

    degrees: Degrees
    target: float
    what: str = "denoise"

    size: Size | None = None
    """Of this line alone, whatever the options say."""

    def match(self, context: RankContext, size: Size) -> Match:
        size = self.size or size
        together = False, self.degrees.world > 1
        if self.what == "decode":
            alone, split = size.decode_plan(Degrees()), size.decode_plan(self.degrees)
            return Match(decoder(context, alone), decoder(context, split), together, apart)
        alone, split = size.plan(Degrees()), size.plan(self.degrees)
        if self.what == "stock":
            init_process_group(context, torch.device("cpu"))
            return Match(stock(alone), denoiser(context, split), together, apart)
        shard = Shard(split.tokens, split.layout.sequence_index(context.rank))
        return Match(denoiser(context, alone), denoiser(context, split), together, lambda a, b: apart(a, b, shard))


MATRICES = Size(tokens=512, layers=2, heads=12, head_dim=128, steps=3)
"""Where matrix products dominate: few tokens, the width of Wan 2.1 1.3B."""
MANY_STEPS = Size(tokens=2048, layers=2, steps=20)
"""Enough steps to fill a pipeline."""
CASES = {
    "cfg": Case(Degrees(cfg=2), 1.9),
    "ulysses": Case(Degrees(ulysses=2), 1.8),
    "ring": Case(Degrees(ring=2), 1.8),
    "attention2d-2x1": Case(Degrees(attn2d=(2, 1)), 1.8),
    "attention2d-1x2": Case(Degrees(attn2d=(1, 2)), 1.8),
    "tp": Case(Degrees(tp=2), 1.6, size=MATRICES),
    "pipefusion": Case(Degrees(pipefusion=2), 1.7, size=MANY_STEPS),
    "vae-decode": Case(Degrees(ulysses=2, vae=2), 1.7, "decode"),
    "world-size-1": Case(Degrees(), 1 / 1.02, "stock"),
}


def apart(whole: Tensor, part: Tensor, shard: Shard | None = None) -> list[float]:
    """||a - b|| / ||b|| of the two results on this rank, which may hold only a shard of the second, or nothing."""
    if shard is not None and part.dim() == 3:
        whole = shard.take(patchify(whole, (1, 2, 2)))
    return [float((part.double() - whole.double()).norm() / whole.double().norm()) if part.numel() else 0.0]


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
            run = denoiser(context, replace(size, steps=1).plan(Degrees()))()
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
    found, low, high = result.ratios
    if case.degrees.world > 1:
        numbers = f"{result.span} | >= {case.target:.1f}"
    else:
        costs = [f"{1 / ratio - 1:+.1%}" for ratio in (found, high, low, case.target)]
        numbers = f"{costs[0]} | {costs[1]} - {costs[2]} | <= {costs[3]}"
    verdict = "met" if found >= case.target else "missed"
    return f"| {name} | {result.times} | {numbers} | {verdict} | {result.judged[0]:.0e} | {result.others:.0%} |"


def shape(size: Size) -> str:
    """What is denoised, in words."""
    steps = "1 step" if size.steps == 1 else f"{size.steps} steps"
    return (
        f"{size.tokens} tokens, {size.layers} layers, {size.heads} heads of {size.head_dim}, {steps}, 2 guidance "
        f"branches; attention takes {attention_share(size):.0%} of one rank's time"
    )


def describe(size: Size, names: list[str], repeat: int) -> str:
    """The machine and what was made."""
    own = [f"- Denoised for {name}: {shape(case.size)}" for name in names if (case := CASES[name]).size]
    return "\n".join(
        [
            "Written by benchmarks/scaling.py; how to read and repeat it: benchmarks/README.md.",
            "",
            f"- {machine()}",
            f"- Denoised: {shape(size)}",
            *own,
            f"- Decoded: {size.decode_side}x{size.decode_side}, {size.decode_frames} frames, Wan 2.1's autoencoder in "
            "full width",
            f"- Every number is the median of {repeat} turns, after one that warms up",
        ]
    )


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--only", choices=CASES, nargs="+", default=list(CASES), help="lines to measure")
    for item in fields(Size):
        options.add_argument(f"--{item.name.replace('_', '-')}", type=int, default=item.default)
    args = options.parse_args()
    size = Size(**{item.name: getattr(args, item.name) for item in fields(Size)})
    torch.set_num_threads(1)  # before the fork: a pool of threads would not survive it
    quiet_libraries()
    text = describe(size, args.only, args.repeat)
    print(text, flush=True)
    header = ""
    for name in args.only:
        case = CASES[name]
        result = play(lambda context: case.match(context, size), args.repeat, args.patience)
        lines = row(name, case, result)
        if header != (header := SPLIT if case.degrees.world > 1 else WHOLE):
            lines = f"{header}\n{lines}"
        text += f"\n{lines}"
        print(lines, flush=True)
    if args.out:
        args.out.write_text(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
