"""What is composed with what in the tests.

`python -m tests.support.matrix` runs it all and writes docs/compositions.md.

Pairs have 4 ranks (2 where both are laid over the same ones), triples 8, the full stack 32. Everything that
decodes in parallel is compared down to the pixels. Compositions with PipeFusion run twice: with full warm-up against
the stock pipeline, and with stale K/V against a simulation in one process (tests/ranks/test_pipefusion.py).
"""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path

from hybridgen.plan.plan import Plan
from hybridgen.strategies import registry
from hybridgen.strategies.registry import Degrees
from tests.support.tiny import CLIP, FACTS, run_plan, stock_latents, tiny_plan

DOCUMENT = Path(__file__).parents[2] / "docs" / "compositions.md"

PARTS = {
    "cfg": Degrees(cfg=2),
    "pipefusion": Degrees(pipefusion=2),
    "tp": Degrees(tp=2),
    "ulysses": Degrees(ulysses=2),
    "ring": Degrees(ring=2),
    "attn2d 1x2": Degrees(attn2d=(1, 2)),
    "attn2d 2x1": Degrees(attn2d=(2, 1)),
    "vae": Degrees(vae=2),
}
"""Every strategy at its smallest; --usp is ulysses with ring."""


def together(a: str, b: str) -> Degrees:
    """Two strategies at once. The VAE is laid over the other's ranks: four where the tiny model allows it."""
    if b == "vae":
        return VAE_OVER[a]
    found = Degrees()
    for one in (PARTS[a], PARTS[b]):
        found = found.changed(**{degree.name: one.value(degree) for degree in one.used()})
    return found


VAE_OVER = {
    "cfg": Degrees(cfg=2, vae=2),
    "pipefusion": Degrees(pipefusion=2, vae=2),
    "tp": Degrees(tp=4, vae=4),
    "ulysses": Degrees(ulysses=4, vae=4),
    "ring": Degrees(ring=4, vae=4),
    "attn2d 1x2": Degrees(attn2d=(1, 4), vae=4),
    "attn2d 2x1": Degrees(attn2d=(4, 1), vae=3),
}


def rule(degrees: Degrees) -> str:
    """The rule that a composition breaks; empty when it is legal."""
    broken = registry.violations(Plan(FACTS, CLIP, degrees, dtype="float32"))
    return broken[0].rule if broken else ""


PAIRS = {(a, b): together(a, b) for a, b in combinations(PARTS, 2) if a.split()[0] != b.split()[0]}
LEGAL = [degrees for degrees in PAIRS.values() if not rule(degrees)]
TRIPLES = [
    Degrees(cfg=2, ulysses=2, ring=2),
    Degrees(cfg=2, ulysses=2, attn2d=(2, 1)),
    Degrees(cfg=2, attn2d=(2, 2), vae=4),
    Degrees(cfg=2, tp=2, ulysses=2),
    Degrees(cfg=2, tp=2, ring=2),
    Degrees(tp=2, ulysses=2, attn2d=(2, 1)),
    Degrees(ulysses=2, attn2d=(2, 2), vae=8),
    Degrees(cfg=2, pipefusion=2, ulysses=2),
    Degrees(cfg=2, pipefusion=2, tp=2),
    Degrees(pipefusion=2, tp=2, ring=2),
    Degrees(pipefusion=2, tp=2, ulysses=2),
    Degrees(pipefusion=2, ulysses=2, attn2d=(1, 2)),
]
FULL = [
    Degrees(cfg=2, pipefusion=2, tp=2, ring=2, ulysses=2, vae=8),
    Degrees(cfg=2, pipefusion=2, tp=2, attn2d=(2, 1), ulysses=2, vae=8),
]
REFUSED = {
    "ring-attn2d": Degrees(ring=2, attn2d=(1, 2)),
    "cfg-degree": Degrees(cfg=3),
    "tp-heads": Degrees(tp=3),
    "ulysses-heads": Degrees(tp=2, ulysses=8),
    "pipefusion-layers": Degrees(pipefusion=3),
    "vae-width": Degrees(cfg=2, ulysses=2, vae=3),
    "vae-rows": Degrees(ulysses=4, ring=4, vae=16),
}
"""Compositions that break a rule, by the rule."""


def table(measured: dict[Degrees, float]) -> str:
    """The document: what composes with what, and what the comparison gave."""
    names = list(PARTS)
    lines = [HEAD, "| | " + " | ".join(names[1:]) + " |", "|---" * len(names) + "|"]
    for a in names[:-1]:
        cells = [_cell(a, b, measured) for b in names[1:]]
        lines.append(f"| **{a}** | " + " | ".join(cells) + " |")
    lines += [TRIPLE_HEAD, *(f"| `{d}` | {d.world} | {measured[d]:.0e} |" for d in TRIPLES + FULL)]
    lines += [REFUSED_HEAD]
    for name, degrees in REFUSED.items():
        found = next(v for v in registry.violations(tiny_plan(degrees)) if v.rule == name)
        lines.append(f"| `{degrees}` | `{name}` | {found.message} |")
    return "\n".join(lines) + "\n"


def _cell(a: str, b: str, measured: dict[Degrees, float]) -> str:
    degrees = PAIRS.get((a, b))
    if degrees is None:
        return ""
    return f"{measured[degrees]:.0e}" if degrees in measured else f"`{rule(degrees)}`"


HEAD = """\
# What composes with what

Written by `python -m tests.support.matrix` from the data that the tests run; do not edit.

Every composition below runs in the tests on CPU ranks with a tiny Wan of two experts and two branches. Its final latents
are compared with those of diffusers' WanPipeline in one process. The figure is ||a - b|| / ||b|| in fp32, and must be at
most 1e-5. Each run also checks that every rank sent the bytes that the strategies' rules declare. With a parallel VAE it
checks that the pixels are those of one process.

The same pairs run for Wan from images, Cosmos Predict and Cosmos 3 (test_wan_image.py, test_cosmos.py and
test_cosmos3.py in tests/ranks), each against its own pipeline and to the same limit.

PipeFusion is exact while every step is synchronous, which means that no patch uses K/V of the step before (`--warmup` at
the number of steps). Those figures are shown. With old K/V the same compositions are compared with a simulation of
PipeFusion in one process, to the same limit.

The largest compositions have 72 ranks: a test runs one of a tiny Cosmos 3 (test_cosmos3.py). The demo model was run by
hand, with `--cfg 2 --ulysses 4 --attn2d 3x3 --vae 8`, and its latents differ from those of one rank by 3e-6.

## Pairs

All pairs have 4 ranks, except those of the VAE with cfg and pipefusion, which have 2. `usp` is ulysses with ring.
"""
TRIPLE_HEAD = """
## Three and more

| composition | ranks | difference |
|---|---|---|"""
REFUSED_HEAD = """
## Refused

What cannot be is refused before anything starts. Some examples, on the tiny model:

| composition | rule | message |
|---|---|---|"""


def main() -> int:
    measured = {}
    for degrees in LEGAL + TRIPLES + FULL:
        measured[degrees] = run_plan(tiny_plan(degrees)).error(stock_latents())
        print(f"{degrees}: {measured[degrees]:.1e}", flush=True)
    DOCUMENT.write_text(table(measured), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
