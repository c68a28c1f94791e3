"""Clips from Python: one request on different splits gives the same latents. Usage: make_clips.py [FOLDER]"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

import hybridgen


def main(folder: Path) -> None:
    """Make one clip on one rank and on a 2 x 2 grid of ranks; say how long a step took, and how far they differ."""
    latents = {}
    for name, grid in (("alone", "1x1"), ("grid", "2x2")):
        report = hybridgen.generate(
            "a green cross moves left",
            folder / f"{name}.mp4",
            model="demo",
            seed=3,
            latents=folder / f"{name}.safetensors",
            overwrite=True,
            dtype="float32",
            attn2d=grid,
        )
        steps = report.timings_s.steps
        print(f"{report.output}: {report.plan.config}, {sum(steps) / len(steps):.3f} s a step")
        (latents[name],) = load_file(folder / f"{name}.safetensors").values()
    difference = np.linalg.norm(latents["grid"] - latents["alone"]) / np.linalg.norm(latents["alone"])
    print(f"relative difference of the latents: {difference:.1e}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
