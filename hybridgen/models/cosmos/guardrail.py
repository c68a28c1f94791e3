"""The guardrail that NVIDIA's licence asks of Cosmos: CosmosSafetyChecker of the package cosmos_guardrail.

It is the one that diffusers' pipelines run. No torch until it is loaded.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hybridgen.errors import RequestError
from hybridgen.models.guardrail import RULE, Guardrail

if TYPE_CHECKING:
    import torch

    from hybridgen.models.guardrail import Frames

PACKAGE = "cosmos_guardrail"


class CosmosGuardrail(Guardrail):
    """The checker: on the device while it checks, in the host's memory in between."""

    def __init__(self, device: torch.device) -> None:
        from cosmos_guardrail import CosmosSafetyChecker

        self.checker: Any = CosmosSafetyChecker()
        self.device = device

    @staticmethod
    def check_installed(model: str) -> None:
        if find_spec(PACKAGE) is None:
            problem = f"it is run with NVIDIA's guardrail, and the package {PACKAGE} is not installed"
            raise RequestError(RULE, "model", model, problem, tries=["pip install 'hybridgen[cosmos]'"])

    def allows(self, prompt: str) -> bool:
        self.checker.to(self.device)
        try:
            return bool(self.checker.check_text_safety(prompt))
        finally:
            self.checker.to("cpu")

    def checked(self, frames: Frames) -> Frames | None:
        """The frames with faces blurred, or None. Raises ValueError for an answer of another length or form."""
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
