"""The most that a block holds at once: diffusers' blocks in eager execution, counted tensor by tensor in tests.

A caller keeps the hidden state it gave to a block until the block is done, and a block what it has a name for: its
last norm, what attention gave. In a model of 16 bits some steps make copies in fp32, in one of fp32 they make none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hybridgen.plan.plan import FP32, Plan
from hybridgen.plan.traffic import Term


class Sizes(NamedTuple):
    """Numbers of one token on a rank; tp divides a, k and f."""

    d: int
    """Of the hidden state."""
    a: int
    """Of this rank's heads: of Q, and of attention's output."""
    k: int
    """Of its K/V heads: of K, and of V."""
    f: int
    """Of its part of the feed-forward layer."""
    sides: int
    """How many of these stand around its activation: three where it is gated."""
    wide: int
    """Size of fp32 in units of the plan's dtype."""


def activations(plan: Plan) -> Iterator[Term]:
    """Bytes on one rank at each moment of a block, beside rope's tables and what is kept of the text."""
    transformer = plan.facts.transformer
    family = cosmos3 if transformer.text_stream == "own" else cosmos if transformer.adaln else wan
    s = sizes(plan)
    most, time = family(s, transformer.token_time)
    attending = time + 2 * s.d + s.a + 2 * s.k  # hidden state and norm; Q, K and V
    token = plan.tokens.local_size * plan.itemsize
    yield Term("activations", token * most, moment="block")
    yield Term("activations", token * attending, moment="exchange")
    yield Term("activations", token * attending, moment="attention")


def sizes(plan: Plan) -> Sizes:
    """Of the plan's model and dtype."""
    transformer, tp = plan.facts.transformer, plan.degrees.tp
    a, k = (heads * transformer.head_dim // tp for heads in (transformer.heads, transformer.key_heads))
    sides = 3 if transformer.gated else 2
    return Sizes(transformer.hidden, a, k, transformer.ffn // tp, sides, FP32 // plan.itemsize)


def wan(s: Sizes, token_time: bool) -> tuple[int, int]:
    """Numbers a token at the fullest, and those of the times among them, where every token has one of its own."""
    copies = s.wide if s.wide > 1 else 0
    # The embedding of the time and six modulations; the block's own six, in fp32.
    time = (7 + 6 * s.wide) * s.d * token_time
    # While these are made: the hidden state, and the modulations in fp32.
    start = s.d + time + 6 * copies * s.d if token_time else 0
    # Hidden state and norm; Q, K, V and the one that is rotated; two products and their sum, each of half the channels.
    rope = 2 * s.d + 4 * s.a + 3 * s.wide * s.a // 2
    # The given hidden state, the one with attention's output, that output, the norm; both sides of the activation.
    feed_forward = 4 * s.d + 2 * s.f
    # The same four and the layer's output; hidden state, gated output and sum in fp32, of which fp32 has the first.
    gate = 5 * s.d + (3 * copies if copies else 2) * s.d
    return max(start, time + max(rope, feed_forward, gate)), time


def cosmos(s: Sizes, token_time: bool) -> tuple[int, int]:
    """Numbers a token at the fullest, and those of the times among them, where every token has one of its own."""
    # The embedding of the time and its three modulations; the last norm's three, of which the gate is kept.
    time = 7 * s.d * token_time
    # Hidden state and norm; Q, K, V and the norm of the one that is rotated; four halves of the rotated in fp32.
    rope = 2 * s.d + (4 + 2 * s.wide) * s.a
    # The given hidden state, the one with attention's output, that output, the norm; both sides of the activation.
    feed_forward = 4 * s.d + 2 * s.f
    # The same four, where the norm is that of the attention before; the next one, scaled, and shifted; its modulations.
    norm = 7 * s.d + 3 * s.d * token_time
    return time + max(rope, feed_forward, norm), time


def cosmos3(s: Sizes, token_time: bool) -> tuple[int, int]:
    """Numbers a token of the video's stream at the fullest; times are in the tokens."""
    # Hidden state and norm; Q, K and V; of the Q that is rotated the norm, its turned halves, and a product of each.
    rope = 2 * s.d + s.a + 2 * s.k + 4 * s.a
    # The given hidden state, the one with attention's output, the norm; gate, up and their product, or product and sum.
    feed_forward = 3 * s.d + max(s.sides * s.f, s.f + s.d)
    # The two hidden states; two copies in fp32.
    norm = 2 * s.d + 2 * s.wide * s.d
    return max(rope, feed_forward, norm), 0
