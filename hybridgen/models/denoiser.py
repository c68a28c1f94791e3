"""One rank's model, whatever the family: what a family provides, and how a step is made of passes.

The state x and predictions have the form that state.py describes. With nothing split, every operation is the stock
pipeline's, so the result equals it bit for bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from hybridgen.distributed.attention import attend, attend_plain
from hybridgen.distributed.sequence import Shard
from hybridgen.models.autoencoder import Autoencoder, to_uint8
from hybridgen.models.history import remembered
from hybridgen.models.inputs import Encoder, Inputs
from hybridgen.models.slots import Cuts, KeyValue, Partial, Pass, Slots, Step
from hybridgen.models.state import State
from hybridgen.plan.kernels import Kernel
from hybridgen.plan.plan import Plan


class Denoiser(ABC):
    """One rank's model; strategies change its slots."""

    stack: ClassVar[str] = "blocks"
    """The attribute of a transformer that holds its blocks."""
    cuts: Cuts
    """The parts of a block that tensor parallelism cuts."""
    vae: Autoencoder
    """The autoencoder; set on the ranks that decode."""
    stays: bool = False
    """Whether further clips will be made with the same weights, so that all of them are kept."""

    def __init__(self, plan: Plan, experts: list[Any], scheduler: Any, kernel: Kernel, shard: Shard) -> None:
        self.plan, self.experts, self.scheduler, self.kernel = plan, experts, scheduler, kernel
        self.state = State(plan, shard)
        self.inputs = Inputs([])
        self.slots = Slots(
            norm=lambda *pairs: [norm(x) for norm, x in pairs],
            attention=self.local_attention,
            remember=lambda k, v, blocks, now: (k, v),
            layers=range(plan.facts.transformer.layers),
            relay=relay_alone,
            predict=self.predict_branches,
            advance=self.guided_step,
            settle=lambda x: None,
            history=lambda x: remembered(self.scheduler, x),
            branches=list(range(plan.branches)),
            guide=self.combine,
            encode=self.encode_alone,
            decode=self.decode_alone,
        )

    @property
    def device(self) -> torch.device:
        return next(self.experts[0].parameters()).device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        return self.experts[0].dtype  # type: ignore[no-any-return]

    # What a family provides

    @classmethod
    @abstractmethod
    def encoder(cls, plan: Plan, folder: Path, device: torch.device) -> Encoder:
        """Load the encoders of the request's text and images, on rank 0 only, which also frees them."""

    @classmethod
    def prune(cls, expert: Any) -> None:
        """Take out of a transformer without weights what is never run, so that it is not read."""

    @abstractmethod
    def condition(self, step: Step, now: Pass) -> Any:
        """Inputs of the blocks and the head in addition to the tokens that run now; values that repeat are computed
        once.
        """

    @abstractmethod
    def embed(self, x: Tensor, step: Step, now: Pass) -> Tensor:
        """Embed the part of state x that runs now: hidden state [1, n, D] in the transformer's dtype."""

    @abstractmethod
    def run_block(self, block: Any, hidden: Tensor, condition: Any, now: Pass) -> Tensor:
        """Run one block on the hidden state [1, n, D]."""

    @abstractmethod
    def head(self, hidden: Tensor, step: Step, condition: Any) -> Tensor:
        """Turn the hidden state [1, n, D] into the transformer's prediction, in the form of x."""

    def combine(self, predictions: list[Tensor], x: Tensor, step: Step, now: Pass) -> Tensor:
        """Combine the branches' predictions, in their order, for a part x of the state into what the scheduler takes.

        By default uncond + g * (cond - uncond), in the predictions' dtype. It acts on every number alone.
        """
        if len(predictions) == 1:
            return predictions[0]
        cond, uncond = predictions
        return uncond + step.guidance * (cond - uncond)

    def frames_to_encode(self, pictures: list[Any]) -> Tensor:
        """Frames that the autoencoder encodes, as the stock pipeline makes them from PIL images (first frame first):
        [1, 3, F, H, W] fp32 in [-1, 1], F the plan's encoded_frames.
        """
        raise NotImplementedError

    def condition_latents(self, moments: Tensor, generator: torch.Generator) -> Tensor:
        """Moments of given frames, [1, 2 z, T, h, w] -> Inputs.condition [1, z, T, h, w] fp32.

        By default the distribution's mode, so nothing is drawn.
        """
        return self.vae.normalise(moments.chunk(2, dim=1)[0])

    def needed_for_inputs(self, key: str) -> bool:
        """Whether set_inputs() needs this parameter of a transformer; others are read when it is done."""
        return True

    def set_inputs(self, inputs: Inputs) -> None:
        """Take a request's inputs, and forget what was computed for earlier ones."""
        self.inputs = inputs

    # Attention

    def attend_blocks(self, q: Tensor, k: Tensor, v: Tensor, blocks: Sequence[int], now: Pass) -> Partial:
        """Attend to the real tokens of some cp blocks: (out, lse). Padding comes last and is left out."""
        k, v = self.slots.remember(k, v, blocks, now)
        width = self.plan.degrees.ulysses
        num_keys = sum(self.plan.tokens.valid_local(block * width, width) for block in blocks)
        return attend(self.kernel, q, k[:, :num_keys], v[:, :num_keys])

    def attend_text(self, q: Tensor, text: KeyValue | None) -> list[Partial]:
        """Attention of a rank's own queries to the text beside the sequence: one more part to merge, or none."""
        return [] if text is None else [attend(self.kernel, q, *text)]

    def local_attention(self, q: Tensor, k: Tensor, v: Tensor, text: KeyValue | None, now: Pass) -> Tensor:
        """Attention where all keys are here. Padding at their end is left out; text stands before them."""
        k, v = self.slots.remember(k, v, [0], now)
        valid = self.plan.tokens.tokens
        k, v = k[:, :valid], v[:, :valid]
        if text is not None:
            k, v = torch.cat([text[0], k], 1), torch.cat([text[1], v], 1)
        return attend_plain(self.kernel, q, k, v)

    # Blocks

    def blocks(self) -> Iterator[Any]:
        """The blocks that this rank has, of every expert."""
        return (block for expert in self.experts for block in self.blocks_of(expert))

    def blocks_of(self, expert: Any) -> Iterator[Any]:
        """The blocks that this rank has of one expert."""
        return (block for block in getattr(expert, self.stack) if not isinstance(block, torch.nn.Identity))

    def run_blocks(self, hidden: Tensor, step: Step, condition: Any, now: Pass) -> Tensor:
        """Run this rank's blocks on the hidden state [1, n, D]."""
        blocks = getattr(self.experts[step.expert], self.stack)
        for layer in self.slots.layers:
            hidden = self.run_block(blocks[layer], hidden, condition, replace(now, layer=layer))
        return hidden

    def keep_layers(self, layers: range) -> None:
        """Keep only these blocks, and free the others."""
        self.slots.layers = layers
        for expert in self.experts:
            blocks = getattr(expert, self.stack)
            for index in set(range(len(blocks))) - set(layers):
                blocks[index] = torch.nn.Identity()

    # One step

    def predict_branches(self, x: Tensor, step: Step) -> list[Tensor]:
        """The predictions of this rank's branches, one pass after the other."""
        predictions = []
        for now in (Pass(branch) for branch in self.slots.branches):
            condition = self.condition(step, now)
            # The hidden state has no name here, so that it is gone when the next branch runs.
            predictions.append(
                self.head(self.run_blocks(self.embed(x, step, now), step, condition, now), step, condition)
            )
        return predictions

    def guided_step(self, x: Tensor, predictions: list[Tensor], step: Step) -> Tensor:
        """Take the scheduler's step; it acts on every element alone, so it runs on whatever part of x is here."""
        prediction = self.slots.guide(predictions, x, step, Pass())
        return self.scheduler.step(prediction, step.timestep, x, return_dict=False)[0]  # type: ignore[no-any-return]

    def schedule(self) -> list[Step]:
        """All steps of the request; steps with noise above the boundary go to the first expert."""
        self.set_timesteps()
        boundary, clip = self.plan.facts.boundary, self.plan.clip
        limit = 0.0 if boundary is None else boundary * self.scheduler.config.num_train_timesteps
        steps = []
        for index, timestep in enumerate(self.scheduler.timesteps):
            expert = 0 if boundary is None or timestep >= limit else 1
            steps.append(Step(index, timestep, expert, clip.guidances[expert]))
        return steps

    def set_timesteps(self) -> None:
        """Give the scheduler its timesteps, as the stock pipeline does."""
        self.scheduler.set_timesteps(self.plan.clip.steps, device=self.device)
        self.scheduler.set_begin_index(0)

    # Start and end

    def initial_latents(self, generator: torch.Generator) -> Tensor:
        """Full latents before the first step, [1, C, T, H, W] fp32, from noise drawn on the CPU."""
        from diffusers.utils.torch_utils import randn_tensor

        noise: Tensor = randn_tensor(
            (1, *self.plan.latent_shape), generator=generator, device=self.device, dtype=torch.float32
        )
        return noise

    def final_latents(self, latents_BCTHW: Tensor) -> Tensor:
        """Turn the full latents after the last step into what is kept and decoded."""
        return latents_BCTHW

    def unnormalise(self, latents_BCTHW: Tensor) -> Tensor:
        """Turn the transformer's latents into the autoencoder's."""
        return self.vae.unnormalise(latents_BCTHW)

    def encode_alone(self, pixels_BCTHW: Tensor | None) -> Tensor | None:
        """Encode on one rank, as Slots.encode by default."""
        assert pixels_BCTHW is not None
        return self.vae.encode(pixels_BCTHW)

    def decode_alone(self, latents_BCTHW: Tensor | None) -> Iterator[Tensor | None]:
        """Decode on one rank, as Slots.decode by default."""
        assert latents_BCTHW is not None
        for pixels in self.vae.decode(self.unnormalise(latents_BCTHW)):
            yield to_uint8(pixels)


def relay_alone(length: int, start: Callable[[], Tensor], run: Callable[[Tensor], Tensor]) -> None:
    """Run through all blocks on this rank, as Slots.relay by default."""
    run(start())
