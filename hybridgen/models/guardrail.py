"""The guardrail that the licence of a model asks for: prompts and frames are checked, and there is no way around it.

A family names its checker (Family.guardrail). It may be heavy, so one rank has it. Nothing is written before the frames
have been checked, and latents, which would show what it has blurred, never are. No torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from hybridgen.errors import RequestError, RunFailed

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    Frames = NDArray[np.uint8]

RULE = "guardrail"
RULES = {
    RULE: "The licences of some models, such as NVIDIA's of Cosmos, ask for a guardrail. It checks the prompt before "
    "anything is encoded, and the frames before anything is written; it may blur faces. What it blocks leaves no file."
}


class Guardrail(ABC):
    """The checker of a family, on the one rank that has it."""

    @abstractmethod
    def __init__(self, device: torch.device) -> None:
        """Load the checker, which works on this device."""

    @staticmethod
    @abstractmethod
    def check_installed(model: str) -> None:
        """Raise RequestError (guardrail) where a package of the checker is missing; nothing is imported."""

    @abstractmethod
    def allows(self, prompt: str) -> bool:
        """Whether a clip of this prompt may be made."""

    @abstractmethod
    def checked(self, frames: Frames) -> Frames | None:
        """Check frames [T, H, W, 3] uint8: what may be shown of them, in the same form; None if nothing may."""


def check_outputs(model: str, latents: Path | None, preview_every: int | None = None) -> None:
    """Raise RequestError (guardrail) for files that no guardrail can check."""
    if preview_every is not None:
        problem = f"the guardrail of {model} checks whole clips, so no frame is shown before"
        raise RequestError(RULE, "preview-every", preview_every, problem, tries=[{"preview-every": None}])
    if latents is not None:
        problem = f"the guardrail of {model} checks and blurs frames only, so latents cannot be kept"
        raise RequestError(RULE, "latents", latents, problem, tries=[{"latents": None}])


def blocked(model: str, what: str) -> RunFailed:
    """The error with which every rank ends when the guardrail has said no to the prompt or the frames."""
    return RunFailed(RULE, f"the guardrail of {model} blocked {what}; nothing was written")
