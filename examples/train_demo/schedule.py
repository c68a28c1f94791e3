"""The learning-rate schedule of all stages."""

from __future__ import annotations

import math

import torch


def set_learning_rate(optimiser: torch.optim.Optimizer, peak: float, step: int, steps: int, warm: int) -> None:
    """Linear warm-up over `warm` steps times a cosine from peak to 2% of it."""
    cosine = 0.5 + 0.5 * math.cos(math.pi * step / steps)
    for group in optimiser.param_groups:
        group["lr"] = peak * min(1, (step + 1) / warm) * (0.02 + 0.98 * cosine)
