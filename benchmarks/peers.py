"""hybridgen beside two other implementations, on the same two CPU ranks, in turns: DistVAE and diffusers' Ulysses.

    python -m benchmarks.peers --out benchmarks/results/peers-cpu.md       (in the root of the repository)

Two ranks of one thread each, each pinned to a core of its own; how to read the tables: benchmarks/README.md.
DistVAE is in the dev extra (pip install distvae==0.1.0); without it, its lines are left out, with a message.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.contenders import Size, decoder, denoiser, stock, vae
from benchmarks.rivals import Errors, decoding_errors, diffusers_ulysses, distvae_decoder, tiny_errors
from benchmarks.turns import Match, Result, machine, parser, play
from hybridgen.distributed.mesh import build_mesh
from hybridgen.distributed.processes import RankContext, run_local
from hybridgen.distributed.rendezvous import init_process_group
from hybridgen.engine.rank import quiet_libraries
from hybridgen.models.wan.vae_facts import WanVae
from hybridgen.strategies.registry import Degrees
from tests.support.tiny_vae import RESIDUAL, TINY, relative_error

ULYSSES = Degrees(ulysses=2)
VAE = Degrees(ulysses=2, vae=2)
SHAPES: dict[str, tuple[WanVae, int, int]] = {
    "Wan 2.1, 8x6": (TINY, 8, 6),
    "Wan 2.1, 7x5: uneven strips": (TINY, 7, 5),
    "Wan 2.1, 1x8: one row": (TINY, 1, 8),
    "Wan 2.2, 6x4": (RESIDUAL, 6, 4),
    "Wan 2.2, 5x4: odd rows": (RESIDUAL, 5, 4),
    "Wan 2.2, 6x5: odd columns": (RESIDUAL, 6, 5),
}
"""Latent rows x columns that two ranks share."""
TIMES = """
| | peer, s | hybridgen, s | ratio | lowest - highest | target | | peer's error | hybridgen's error | others |
|---|---|---|---|---|---|---|---|---|---|"""
ACCEPTED = """
Both with a tiny VAE of unit-scale weights, two latent frames: error against vae.decode in one process.

| latent rows x columns | DistVAE | hybridgen |
|---|---|---|"""


def decoding(context: RankContext, size: Size) -> Match:
    """DistVAE and parallel-vae on Wan 2.1's autoencoder in full width."""
    plan = size.decode_plan(VAE)
    ours, theirs = decoder(context, plan), distvae_decoder(plan)

    def judge(peer: Tensor, mine: Tensor) -> list[float]:
        """Errors before the rounding to uint8, of one more decoding each."""
        error, peer_error = decoding_errors(vae(), vae(), build_mesh(plan.layout, context.rank, "cpu"), plan)
        assert isinstance(peer_error, float) and peer.shape == mine.shape
        return [peer_error, error]

    return Match(theirs, ours, (True, True), judge)


def ulysses(context: RankContext, size: Size) -> Match:
    """diffusers' pipeline with its own Ulysses, and hybridgen's."""
    plan = size.plan(ULYSSES)
    ours, theirs = denoiser(context, plan, whole=True), diffusers_ulysses(plan)

    def judge(peer: Tensor, mine: Tensor) -> list[float]:
        alone = stock(size.plan(Degrees()))()()
        return [relative_error(x, alone) if x.numel() else 0.0 for x in (peer, mine)]

    return Match(theirs, ours, (True, True), judge)


def accepted() -> list[Errors]:
    """Per shape, hybridgen's error and DistVAE's or the reason why it refuses."""

    def main(context: RankContext) -> list[Errors]:
        init_process_group(context, torch.device("cpu"))
        with torch.no_grad():
            found = [tiny_errors(context.rank, *shape) for shape in SHAPES.values()]
        dist.barrier()
        return found

    results: list[Any] = run_local(2, main)
    return list(results[0])


def row(name: str, result: Result) -> str:
    verdict = "met" if result.ratios[0] >= 1 else "missed"
    errors = " | ".join(f"{error:.1e}" for error in result.judged)
    return f"| {name} | {result.times} | {result.span} | >= 1.0 | {verdict} | {errors} | {result.others:.0%} |"


def main() -> int:
    args, size, lines = parser(__doc__).parse_args(), Size(), list[str]()
    torch.set_num_threads(1)  # before the fork: a pool of threads would not survive it
    quiet_libraries()

    def say(text: str) -> None:
        print(text, flush=True)
        lines.append(text)

    say("Written by benchmarks/peers.py; how to read and repeat it: benchmarks/README.md.\n")
    say(f"- {machine()}")
    say(
        f"- Denoised: {size.tokens} tokens, {size.layers} layers, {size.heads} heads of {size.head_dim}, "
        f"{size.steps} step, 2 guidance branches, up to all the latents on the first rank"
    )
    say(
        f"- Decoded: {size.decode_side}x{size.decode_side}, {size.decode_frames} frames, Wan 2.1's autoencoder in full "
        "width, up to all the frames on the first rank"
    )
    say(f"- Every time is the median of {args.repeat} turns, after one that warms up")
    say(TIMES)
    say(
        row(
            "ulysses 2, peer: diffusers' context parallelism",
            play(lambda context: ulysses(context, size), args.repeat, args.patience),
        )
    )
    if find_spec("distvae") is None:
        say("\nDistVAE is not installed (pip install distvae==0.1.0): its lines are left out.")
    else:
        say(
            row(
                "parallel VAE 2, peer: DistVAE",
                play(lambda context: decoding(context, size), args.repeat, args.patience),
            )
        )
        say(ACCEPTED)
        for name, (ours, theirs) in zip(SHAPES, accepted(), strict=True):
            say(f"| {name} | {theirs if isinstance(theirs, str) else f'{theirs:.1e}'} | {ours:.1e} |")
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
