"""The command on the demo model, and how to compare what it wrote."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from hybridgen.models.catalogue import find
from hybridgen.plan.plan import Plan
from hybridgen.plan.traffic import by_strategy
from hybridgen.strategies import registry
from tests.support import command

PROMPT = "a red circle moves right"
STEPS = 6
"""Of the clip that runs are compared with."""
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def hybridgen(folder: Path, *words: str, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder, with a launcher as a program; it must succeed."""
    words = ("run", "-p", PROMPT, "--seed", "1", *words)
    if launcher:
        line = [*launcher, "hybridgen", *words]
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, env=ENVIRONMENT, timeout=400)
    else:
        done = command.hybridgen(folder, *words)
    assert done.returncode == 0, done.stderr
    return done


def files(name: str) -> list[str]:
    """Flags for every file a run can write."""
    return ["--out", f"{name}.mp4", "--latents", f"{name}.safetensors", "--report", f"{name}.json",
            "--preview", f"{name}.png"]  # fmt: skip


def latents(path: Path) -> Tensor:
    return load_file(path)["latents"]


def error(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def pixels(path: Path) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.asarray(Image.open(path)).astype(np.int64)


@lru_cache
def stock(folder: Path, dtype: str, steps: int) -> Tensor:
    """What diffusers' own pipeline makes of the request."""
    from diffusers import WanPipeline

    defaults = find("demo").defaults
    pipe = WanPipeline.from_pretrained(folder, dtype=getattr(torch, dtype))
    pipe.set_progress_bar_config(disable=True)
    found: Tensor = pipe(
        PROMPT,
        negative_prompt="",
        width=64,
        height=64,
        num_frames=17,
        num_inference_steps=steps,
        guidance_scale=defaults.guidance,
        generator=torch.Generator().manual_seed(1),
        output_type="latent",
    ).frames
    return found


def assert_declared(plan: Plan, report: dict[str, Any]) -> None:
    """Sent bytes are declared bytes, of every strategy, set-up and the gather included."""
    for rank, sent in enumerate(report["traffic_bytes"]):
        assert {k: n for k, n in sent.items() if n} == by_strategy(registry.traffic(plan, rank))
