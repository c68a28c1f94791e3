"""The inputs of a request besides the noise: text and images, encoded on rank 0."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hybridgen.plan.plan import Plan


@dataclass
class Inputs:
    """Encoded text and images of one request, equal on every rank."""

    text: list[Tensor]
    """Text of every branch: embeddings [1, tokens, text_dim] or token ids [1, tokens]; lengths may differ."""
    image: Tensor | None = None
    """Embedding of the first (and last) image, [n, tokens, image_dim]."""
    condition: Tensor | None = None
    """Latents of the given frames, normalised: [1, C, T, H, W] fp32."""

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that are present, by name."""
        named = {f"text {branch}": text for branch, text in enumerate(self.text)}
        more = {"image": self.image, "condition": self.condition}
        return {**named, **{name: x for name, x in more.items() if x is not None}}

    @classmethod
    def of(cls, tensors: dict[str, Tensor]) -> Inputs:
        """Inputs from the tensors that tensors() gave."""
        text = [x for name, x in tensors.items() if name.startswith("text ")]
        return cls(text, tensors.get("image"), tensors.get("condition"))


class Encoder:
    """The encoders of a checkpoint, for as long as they are needed; a family's class loads them."""

    pipe: Any
    """diffusers' pipeline, with these components alone."""
    cuts = True
    """Whether text beyond the model's text tokens is cut off."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.plan, self.device, self.dtype = plan, device, getattr(torch, plan.dtype)

    def encode(self, prompt: str, negative_prompt: str, pictures: Sequence[Any] = ()) -> Inputs:
        """Inputs of a request without the condition (here text only); pictures are PIL images, first frame first."""
        found = self.pipe.encode_prompt(
            prompt,
            negative_prompt,
            do_classifier_free_guidance=self.plan.branches == 2,
            max_sequence_length=self.plan.facts.text_tokens,
            device=self.device,
        )
        return Inputs([e.to(self.dtype) for e in found[: self.plan.branches]])

    def left_out(self, text: str) -> str:
        """The end of a text that is beyond the tokens that the model reads; "" where all is read."""
        if not self.cuts:
            return ""
        whole, kept = self.token_ids(text), self.token_ids(text, self.plan.facts.text_tokens)
        same = next((at for at, pair in enumerate(zip(whole, kept, strict=False)) if pair[0] != pair[1]), len(kept))
        return str(self.pipe.tokenizer.decode(whole[same:], skip_special_tokens=True)).strip()

    def token_ids(self, text: str, limit: int | None = None) -> list[int]:
        """The tokens of a text as the pipeline makes them, cut off after `limit`."""
        return list(self.pipe.tokenizer(text, truncation=limit is not None, max_length=limit).input_ids)

    def wake(self, plan: Plan) -> None:
        """Make ready for the request of a plan, after rest()."""
        self.plan = plan
        if self.device.type == "cuda":
            self.pipe.to(self.device)

    def rest(self) -> None:
        """Give the device's memory up until the next request: the weights wait in that of the host."""
        if self.device.type == "cuda":
            self.pipe.to("cpu")
            torch.cuda.empty_cache()

    def free(self) -> None:
        """Free the encoders' memory."""
        del self.pipe
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
