"""Clips from Python: one request on different layouts gives the same latents. Usage: make_clips.py [FOLDER]"""

from __future__ import annotations

import sys
from pathlib import Path

import hybridgen


def main(folder: Path) -> None:
    """Make one clip on one rank and on a 2 x 2 grid of ranks, and say how long a step took on each."""
    for name, grid in (("alone", "1x1"), ("grid", "2x2")):
        report = hybridgen.generate(
            "a green cross moves left",
            folder / f"{name}.mp4",
            model="demo",
            seed=3,
            latents=folder / f"{name}.safetensors",
            overwrite=True,
            attn2d=grid,
        )
        steps = report.timings_s.steps
        print(f"{report.output}: {report.plan.config}, {sum(steps) / len(steps):.3f} s a step")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
