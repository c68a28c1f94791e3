"""The guardrail that NVIDIA's licence asks of Cosmos: prompts and frames are checked, and there is no way around it.

The checker is CosmosSafetyChecker of the package cosmos_guardrail, as in diffusers. It is heavy, so one rank has it.
Nothing is written before the frames have been checked, and latents, which would show what it has blurred, never are.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridgen.errors import RequestError, RunFailed

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    Frames = NDArray[np.uint8]

RULE = "guardrail"
WHY = (
    "NVIDIA's licence asks that Cosmos models run with a guardrail. It checks the prompt before anything is encoded, "
    "and the frames before anything is written; it may blur faces. What it blocks leaves no file."
)
PACKAGE = "cosmos_guardrail"


def check_installed(model: str) -> None:
    """Raise RequestError (guardrail) where the checker's package is missing; nothing is imported."""
    if find_spec(PACKAGE) is None:
        problem = f"it is run with NVIDIA's guardrail, and the package {PACKAGE} is not installed"
        raise RequestError(RULE, "model", model, problem, tries=["pip install 'hybridgen[cosmos]'"])


def check_outputs(model: str, latents: Path | None) -> None:
    """Raise RequestError (guardrail) for files that it cannot check."""
    if latents is not None:
        problem = f"the guardrail of {model} checks and blurs frames only, so latents cannot be kept"
        raise RequestError(RULE, "latents", latents, problem, tries=[{"latents": None}])


class Guardrail:
    """The checker on the one rank that has it: on the device while it checks, in the host's memory in between."""

    def __init__(self, device: torch.device) -> None:
        from cosmos_guardrail import CosmosSafetyChecker

        self.checker: Any = CosmosSafetyChecker()
        self.device = device

    def allows(self, prompt: str) -> bool:
        """Whether a clip of this prompt may be made."""
        self.checker.to(self.device)
        try:
            return bool(self.checker.check_text_safety(prompt))
        finally:
            self.checker.to("cpu")

    def checked(self, frames: Frames) -> Frames | None:
        """Check frames [T, H, W, 3] uint8: what may be shown of them, with faces blurred; None if nothing may.

        Raises ValueError if the checker returns neither None nor the same number of frames in the same form.
        """
        import numpy as np

        self.checker.to(self.device)
        try:
            answer = self.checker.check_video_safety(frames)
        finally:
            self.checker.to("cpu")
        if answer is None:
            return None
        found: Frames = np.asarray(answer)
        if (found.shape, found.dtype) != (frames.shape, frames.dtype):
            raise ValueError("the guardrail did not return as many frames in the same form")
        return found


def blocked(what: str) -> RunFailed:
    """The error with which every rank ends when the guardrail has said no to the prompt or the frames."""
    return RunFailed(RULE, f"the guardrail of Cosmos blocked {what}; nothing was written")
