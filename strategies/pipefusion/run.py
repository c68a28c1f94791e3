"""PipeFusion at work: every stage runs its blocks; after the warm-up one patch of tokens at a time.

A synchronous step sends the hidden state [1, local, D] of every branch through the stages and fills the K/V buffers.
In the others a patch [1, local / patches, D] attends to fresh K/V of itself and of the patches before it, and to K/V
of the step before for the rest; a patch of the next step starts while others of this one are still under way.
The last stage guides and steps x and sends it back to the first. Source: arXiv 2405.14430.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hybridgen.distributed.comm import Group
from hybridgen.distributed.data import packed, unpacked
from hybridgen.distributed.mesh import Mesh
from hybridgen.models.denoiser import Denoiser
from hybridgen.models.history import remember, remembered
from hybridgen.models.slots import Pass, Step
from hybridgen.plan.plan import Plan
from hybridgen.plan.traffic import STATE
from hybridgen.strategies.pipefusion.rules import IN_FLIGHT


class Buffers:
    """K and V of all patches, by branch, layer and cp blocks; fresh ones replace those of the step before.

    The buffers belong to one expert; its first steps are synchronous and fill them anew, in the same memory.
    """

    def __init__(self, patches: int) -> None:
        self.patches = patches
        self.kept: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def remember(self, k: Tensor, v: Tensor, blocks: Sequence[int], now: Pass) -> tuple[Tensor, Tensor]:
        """Keep k, v [B, n, H, D] of all patches or of the one that runs; returns those of all, patch by patch."""
        key = (now.branch, now.layer, *blocks)
        if now.patch is None:
            if key in self.kept:
                for kept, fresh in zip(self.kept[key], (k, v), strict=True):
                    kept.copy_(fresh)
            else:
                self.kept[key] = k.clone(), v.clone()
            return k, v
        for kept, fresh in zip(self.kept[key], (k, v), strict=True):
            kept.unflatten(1, (self.patches, -1))[:, now.patch] = fresh  # type: ignore[no-untyped-call]
        return self.kept[key]


class Pipeline:
    """One stage at work: the model's predict and advance while PipeFusion is on."""

    def __init__(self, model: Denoiser, plan: Plan, forward: Group, back: Group) -> None:
        self.model, self.plan, self.forward, self.back = model, plan, forward, back
        self.stage, self.last = forward.rank, forward.size - 1
        self.patches = plan.tokens.patches
        self.buffers = Buffers(self.patches)
        self.schedulers: list[Any] = []
        """One scheduler per patch, on the last stage: a multistep scheduler keeps a history of what it steps."""
        self.owed = 0
        """Number of patches at the end of the sequence that the first stage has not fetched yet."""
        self.in_flight: list[tuple[int, Callable[[], None]]] = []
        """Messages under way in the order of sending: patches in each, and the function that waits for it."""
        self.sync_left, self.expert = 0, -1

    def predict(self, x: Tensor, step: Step) -> list[Tensor]:
        """Run a whole step; x becomes its successor at once on the last stage, and when fetched on the first."""
        if step.expert != self.expert:  # buffers of the other expert say nothing
            self.expert, self.sync_left = step.expert, self.plan.option("warmup")
        if self.stage == self.last and not self.schedulers:
            self.schedulers = [self.scheduler_of(x, patch) for patch in range(self.patches)]
        if self.sync_left:
            self.sync_left -= 1
            self.fetch_all(x)
            self.run(x, step, None)
        else:
            for patch in range(self.patches):
                self.fetch(x, patch)
                self.run(x, step, patch)
        self.owed = self.patches if self.stage == 0 else 0
        return []

    def scheduler_of(self, x: Tensor, patch: int) -> Any:
        """The model's scheduler for one patch, with what it remembers of it from an earlier run."""
        tensors, plain = remembered(self.model.scheduler, x)
        own = copy.deepcopy(self.model.scheduler)
        remember(own, {name: self.model.state.piece(y, patch).clone() for name, y in tensors.items()}, plain)
        return own

    def run(self, x: Tensor, step: Step, patch: int | None) -> None:
        """Send all patches together, or one, through this stage, branch by branch, and step them on the last."""
        part = self.model.state.here(x, patch)
        predictions = []
        for now in (Pass(branch, patch) for branch in self.model.slots.branches):
            condition = self.model.condition(step, now)
            # No name keeps a hidden state while the next branch runs.
            if self.stage == self.last:
                predictions.append(self.model.head(self.through(part, step, condition, now), step, condition))
            else:
                wait = self.forward.send(self.through(part, step, condition, now), self.stage + 1)
                self.sent(self.patches if patch is None else 1, wait)
        if self.stage == self.last:
            prediction = self.model.slots.guide(predictions, part, step, Pass(patch=patch))
            for index in range(self.patches) if patch is None else [patch]:
                own = self.model.state.piece(prediction, index) if patch is None else prediction
                self.step_patch(x, own, step, index)

    def through(self, part: Tensor, step: Step, condition: Any, now: Pass) -> Tensor:
        """Hidden state of a part of x after this stage's blocks."""
        if self.stage == 0:
            return self.model.run_blocks(self.model.embed(part, step, now), step, condition, now)
        tokens = self.plan.tokens
        length = tokens.local_size if now.patch is None else tokens.shard_size
        return self.model.run_blocks(self.receive(length), step, condition, now)

    def step_patch(self, x: Tensor, prediction: Tensor, step: Step, patch: int) -> None:
        """Step one patch by the scheduler, in place, and send it to the first stage."""
        piece = self.model.state.piece(x, patch)
        scheduler = self.schedulers[patch]
        piece.copy_(scheduler.step(prediction, step.timestep, piece.clone(), return_dict=False)[0])
        self.sent(1, self.back.send(piece.clone(), 0))

    def relay(self, length: int, start: Callable[[], Tensor], run: Callable[[Tensor], Tensor]) -> None:
        """Pass what runs through all blocks once, [1, length, D], from the stage before to the next."""
        hidden = run(start() if self.stage == 0 else self.receive(length))
        if self.stage < self.last:
            self.forward.send(hidden, self.stage + 1)()

    def fetch(self, x: Tensor, patch: int) -> None:
        """Take, on the first stage, what the last stage made of a patch in the step before."""
        if self.owed:
            piece = self.model.state.piece(x, patch)
            piece.copy_(self.back.receive(torch.empty_like(piece, memory_format=torch.contiguous_format), self.last))
            self.owed -= 1

    def fetch_all(self, x: Tensor) -> None:
        for patch in range(self.patches - self.owed, self.patches):
            self.fetch(x, patch)

    def receive(self, length: int) -> Tensor:
        """The hidden state of `length` tokens from the stage before."""
        shape = (1, length, self.plan.facts.transformer.hidden)
        buffer = torch.empty(shape, dtype=self.model.dtype, device=self.model.device)
        return self.forward.receive(buffer, self.stage - 1)

    def sent(self, patches: int, wait: Callable[[], None]) -> None:
        """Note a message of `patches` patches on its way, and wait while more than all patches twice are."""
        self.in_flight.append((patches, wait))
        while sum(patches for patches, _ in self.in_flight) > IN_FLIGHT * self.patches:
            self.in_flight.pop(0)[1]()

    def advance(self, x: Tensor, predictions: list[Tensor], step: Step) -> Tensor:
        """End a step whose patches were stepped already; after the last step nothing stays in flight."""
        if step.index == self.plan.clip.steps - 1:
            self.settle(x)
        return x

    def settle(self, x: Tensor) -> None:
        """Fetch and wait for all that is under way, so that a message of this clip never meets one of the next."""
        self.fetch_all(x)
        for _, wait in self.in_flight:
            wait()
        self.in_flight.clear()
        self.owed = 0

    def history(self, x: Tensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What the last stage's schedulers remember of all patches, on the first stage; nothing on the others."""
        self.settle(x)
        group = replace(self.back, strategy=STATE)
        tensors: dict[str, Tensor] = {}
        if self.stage == self.last:
            found = [remembered(one, self.model.state.piece(x, patch)) for patch, one in enumerate(self.schedulers)]
            tensors = {name: torch.cat([parts[name] for parts, _ in found], 1) for name in found[0][0]}
            kinds = {name: str(y.dtype).removeprefix("torch.") for name, y in tensors.items()}
            about = torch.frombuffer(bytearray(packed([kinds, found[0][1]])), dtype=torch.uint8).to(x.device)
            for sent in (torch.tensor([len(about)], device=x.device), about, *tensors.values()):
                group.send(sent, 0)()
        if self.stage:
            return {}, {}
        size = group.receive(torch.zeros(1, dtype=torch.int64, device=x.device), self.last)
        about = group.receive(torch.empty(int(size), dtype=torch.uint8, device=x.device), self.last)
        kinds, plain = unpacked(about.cpu().numpy().tobytes(), like=())
        for name, kind in kinds.items():
            tensors[name] = group.receive(torch.empty(x.shape, dtype=getattr(torch, kind), device=x.device), self.last)
        return tensors, plain


def apply(model: Denoiser, mesh: Mesh, plan: Plan) -> None:
    """Keep this stage's blocks, and replace how a step is made."""
    model.keep_layers(plan.blocks(mesh.rank))
    forward, back = mesh.group("pipefusion", "pipefusion"), mesh.way_back("pipefusion", "pipefusion")
    pipeline = Pipeline(model, plan, forward, back)
    model.slots.predict, model.slots.advance, model.slots.relay = pipeline.predict, pipeline.advance, pipeline.relay
    model.slots.settle, model.slots.history = pipeline.settle, pipeline.history
    if not plan.exact_split:
        model.slots.remember = pipeline.buffers.remember
