"""What ranks send: the convention for counting it, and the traffic that belongs to no strategy. No torch.

Bytes sent by one rank: p2p = the tensor; all_to_all = input minus its own chunk; all_gather = (P - 1) x own shard;
reduce_scatter = (P - 1) / P x input; all_reduce = twice that; broadcast = (P - 1) x tensor at the root, 0 elsewhere.
Padding counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hybridgen.plan.plan import FP32, Plan

Phase = Literal["setup", "condition", "denoise", "decode"]
Moment = Literal["", "block", "exchange", "attention", "step"]
Overlap = Literal["", "attention", "next pass"]
PHASES: tuple[Phase, ...] = ("setup", "condition", "denoise", "decode")
MOMENTS: tuple[Moment, ...] = ("block", "exchange", "attention", "step")

STATE = "state"
"""Traffic of the state of a clip that is kept between two steps; no plan declares it."""
SEQUENCE_GATHER = "sequence_gather"
SETUP = "setup"
TOKEN_ID = 8
"""Bytes of one token's number."""


@dataclass(frozen=True)
class Message:
    """A message that one rank sends, `count` times in a request."""

    strategy: str
    axis: str
    """Mesh axis whose group takes part; "sequence", "vae" or "world" for groups laid over the mesh."""
    collective: str
    tensor: str
    """What travels, in a few words, for people."""
    size: int
    """Bytes that this rank sends in one message."""
    count: int
    phase: Phase = "denoise"
    overlaps: Overlap = ""
    """What the runtime computes while it is in flight: the attention over the block that is here already, or the
    next pass of a pipeline's stage; "" when everything waits."""

    @property
    def total(self) -> int:
        return self.size * self.count


class Term(NamedTuple):
    """Memory of one rank, in bytes, and the phases in which it is held.

    The phase "setup" ends when the transformers are loaded; conditioning frames are encoded after that ("condition").
    All messages before denoising count as "setup".
    """

    name: str
    size: int
    phases: tuple[Phase, ...] = ("denoise",)
    moment: Moment = ""
    """The moment of denoising in which the memory is held, if not always: in a block outside its self-attention
    ("block"), while Q, K and V are sent ("exchange"), from then until the output is back ("attention"), or in the
    scheduler's "step". Only the fullest moment counts.
    """


def by_strategy(messages: Iterable[Message]) -> dict[str, int]:
    """Bytes per strategy over a whole request."""
    totals: dict[str, int] = {}
    for message in messages:
        totals[message.strategy] = totals.get(message.strategy, 0) + message.total
    return {name: size for name, size in totals.items() if size}


def shared_messages(plan: Plan, rank: int) -> list[Message]:
    """Traffic that belongs to no strategy: text and images from rank 0, and the final latents to it."""
    others = (plan.world_size - 1) * (rank == 0)
    inputs = _inputs(plan) if plan.world_size > 1 else ()
    messages = [Message(SETUP, "world", "broadcast", what, others * size, 1, "setup") for what, size in inputs]
    if plan.degrees.sequence > 1:
        sends = rank in plan.layout.sequence_group(0)[1:]
        size = plan.tokens.local_size * plan.facts.transformer.prediction_channels * FP32 if sends else 0
        messages.append(Message(SEQUENCE_GATHER, "sequence", "p2p", "final latents", size, 1, "decode"))
    return messages


def _inputs(plan: Plan) -> Iterator[tuple[str, int]]:
    """What every rank gets of the request before denoising, and its bytes."""
    transformer = plan.facts.transformer
    tokens = sum(plan.text_lengths) or plan.branches * plan.facts.text_tokens
    if transformer.text_stream == "own":  # the transformer embeds them itself
        yield "token ids", tokens * TOKEN_ID
    else:
        yield "text embeddings", tokens * transformer.text_dim * plan.itemsize
    if plan.clip.encoded_frames:
        frames = (plan.clip.encoded_frames - 1) // plan.facts.vae.stride_time + 1
        yield "given frames", math.prod(plan.latent_shape) // plan.latent_shape[1] * frames * FP32
    if plan.picture_tokens:
        yield "picture embeddings", plan.picture_tokens * transformer.image_dim * plan.itemsize
