"""Predicted seconds of a plan, by what they are spent on. No torch.

Compute is a roofline (compute.py). Messages are those that the strategies declare, priced on the link that their
group spans under the plan's mesh order (topology.py). Nothing is hidden but what the runtime hides: the bytes of ring's
hops behind the attention over the block before, those of PipeFusion's hidden states behind the next pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import NamedTuple

from hybridgen.plan.plan import Plan
from hybridgen.plan.traffic import Message
from hybridgen.planner.hardware.constants import Hardware, Link
from hybridgen.planner.hardware.hosts import borders, spread
from hybridgen.planner.hardware.topology import Span, exchange_seconds, farthest, link, sent_over, span
from hybridgen.planner.price import compute, ranges
from hybridgen.planner.price import vae as vae_price
from hybridgen.planner.price.compute import BlockSeconds
from hybridgen.planner.price.kinds import kinds
from hybridgen.planner.price.settings import computed
from hybridgen.planner.price.vae import Tail
from hybridgen.strategies import registry
from hybridgen.strategies.registry import Degrees

WHOLE = ("text", "steps")
"""Items that steps without computing have as well."""


class Item(NamedTuple):
    """One item of the denoise time over the whole clip."""

    name: str
    seconds: float
    bound: str
    """The limit of this item: compute, memory, host, link, latency, or fitted."""
    axis: str = ""
    size: int = 0
    """Bytes that a rank sends for this item."""
    link: str = ""
    far: int = 0
    """Bytes of these that go over the slowest link between any two ranks."""

    @property
    def communication(self) -> bool:
        return bool(self.axis)


@dataclass(frozen=True)
class Cost:
    """Predicted seconds of a clip."""

    items: tuple[Item, ...]
    """All items of the denoise time."""
    decode: float
    """Seconds of the VAE's decoder."""
    end: float
    """Seconds of everything but denoising: text, encode, decode, writing."""
    error: float
    """Possible error of the prediction, as a share."""

    @cached_property
    def denoise(self) -> float:
        return sum(item.seconds for item in self.items)

    @cached_property
    def clip(self) -> float:
        """Seconds end to end, without loading the model."""
        return self.denoise + self.end

    @property
    def communication(self) -> float:
        """Share of the denoise time that is spent in exchanges, or waiting in them."""
        return sum(item.seconds for item in self.items if item.communication) / self.denoise

    @property
    def range(self) -> tuple[float, float]:
        """Lowest and highest denoise time within the error."""
        return self.denoise * (1 - self.error), self.denoise * (1 + self.error)


def cost(
    plan: Plan,
    hardware: Hardware,
    streamed: bool = True,
    tail: Tail | None = None,
    exchanges: Exchanges | None = None,
) -> Cost:
    """The whole prediction for one plan under its mesh order.

    tail, exchanges: what vae.tail() and Exchanges() give, if they are known; exchanges are those of any order.
    """
    decode, end = tail or vae_price.tail(plan, hardware, streamed=streamed)
    items = denoise_items(plan, hardware, exchanges or Exchanges(plan, hardware))
    return Cost(tuple(items), decode, end, ranges.share(plan, hardware))


def denoise_messages(plan: Plan) -> list[Message]:
    """Messages of a rank while denoising; each as the rank sends it that sends most of it."""
    ranks = kinds(plan, decoding=False)
    if len(ranks) == 1:
        return _messages(plan, ranks[0])
    found: dict[tuple[object, ...], Message] = {}
    for rank in ranks:
        sent = Counter[tuple[str, ...]]()
        for message in _messages(plan, rank):
            same = message.strategy, message.axis, message.collective, message.tensor
            sent[same] += 1
            key = (*same, sent[same])
            if key not in found or message.total > found[key].total:
                found[key] = message
    return list(found.values())


def _messages(plan: Plan, rank: int) -> list[Message]:
    own = (m for s in registry.STRATEGIES if not s.is_overlaid for m in s.traffic(plan, rank))
    return [m for m in own if m.phase == "denoise"]


def denoise_items(plan: Plan, hardware: Hardware, exchanges: Exchanges) -> list[Item]:
    """Items of the denoise time; equal for every rank but for padding."""
    items, places = _computing(plan, hardware, exchanges.block), borders(plan.world_size, hardware)
    slowest = farthest(hardware, places, plan.world_size)
    for axis, messages in exchanges.by_axis.items():
        where = span(plan.layout, axis, places)
        for message, item in zip(messages, exchanges.items(axis, where), strict=True):
            far = message.count * sent_over(slowest, hardware, message.collective, message.size, where)
            items.append(item._replace(far=round(far)))
    share = computed(plan).value
    return [_part(item, share) for item in _joined(items) if item.seconds or item.size]


def _part(item: Item, share: float) -> Item:
    """An item of the clip where only a share of the steps is computed; text and the scheduler's steps stay whole."""
    if share == 1 or item.name in WHOLE:
        return item
    return item._replace(seconds=item.seconds * share, size=round(item.size * share), far=round(item.far * share))


def _computing(plan: Plan, hardware: Hardware, block: BlockSeconds) -> list[Item]:
    layers = max(plan.stage_sizes)
    count = plan.passes * layers
    items = [
        Item("attention", count * block.attention, "compute"),
        Item("matrix products", count * block.matmul, "compute"),
        Item("norms, rope, residuals", count * block.other, "memory"),
        Item("launches", count * block.launch, "host"),
        Item("text", compute.text_seconds(plan, hardware), "compute"),
        Item("steps", plan.clip.steps * hardware.step.value, "host"),
    ]
    if plan.degrees.pipefusion > 1:
        items.append(Item("pipeline bubbles", _bubbles(plan, block.total * layers), "compute"))
    if plan.world_size > 1:
        computing = sum(item.seconds for item in items if item.bound in ("compute", "memory"))
        lost = waiting_share(plan.world_size, hardware) * computing
        items.append(Item("waiting for the slowest GPU", lost, "fitted"))
    return items


def waiting_share(ranks: int, hardware: Hardware) -> float:
    """Share by which computing is longer where so many work together: the slowest is waited for, hosts are shared."""
    beside = spread(ranks, hardware.per_node, hardware.domain).each - 1
    return hardware.slowdown.value * slowest(ranks) + hardware.crowd.value * beside


@lru_cache(maxsize=1024)
def slowest(ranks: int) -> float:
    """How many standard deviations the slowest of so many is expected to lie from the mean (Blom's formula)."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def _bubbles(plan: Plan, stage: float) -> float:
    """Idle time of a stage that needs `stage` seconds for one pass of the whole sequence.

    In a synchronous step the branches keep the stages busy. Otherwise the patches do, and a patch of the next step must
    have come back from the last stage.
    """
    stages, branches, steps = plan.degrees.pipefusion, plan.own_branches, plan.clip.steps
    sync = min(plan.option("warmup") * plan.facts.experts, steps)
    missing = max(stages - plan.tokens.patches, 0) / plan.tokens.patches
    return stage * (sync * (stages - 1) + (steps - sync) * branches * missing)


class Exchanges:
    """The exchanges of a plan's axes, priced by the span of an axis, which is all that the mesh order decides.

    Every span is priced once, so that mesh orders are compared, and the chosen one is priced, without repetition.
    """

    def __init__(self, plan: Plan, hardware: Hardware) -> None:
        self.plan, self.hardware = plan, hardware
        self.block = compute.block_seconds(plan, hardware)
        self.by_axis: dict[str, list[Message]] = {}
        for message in denoise_messages(plan):
            self.by_axis.setdefault(message.axis, []).append(message)
        self._known: dict[tuple[str, Span], list[Item]] = {}

    def seconds(self, axis: str, where: Span) -> float:
        """Seconds of all exchanges of an axis that has this span."""
        return sum([item.seconds for item in self.items(axis, where)])

    def items(self, axis: str, where: Span) -> list[Item]:
        """An item for every message of an axis that has this span."""
        if (axis, where) not in self._known:
            self._known[axis, where] = [self._item(message, where) for message in self.by_axis.get(axis, ())]
        return self._known[axis, where]

    def _item(self, message: Message, where: Span) -> Item:
        by, patches = link(self.hardware, where), self.plan.tokens.patches
        if message.overlaps == "attention":
            seconds, bound = self._ring(message, by), "latency"
        else:
            count, size = message.count * patches, message.size / patches  # patch by patch: as many bytes in all
            each = exchange_seconds(self.hardware, message.collective, size, where)
            if message.overlaps == "next pass":
                busy = self.block.total * len(self.plan.blocks(0)) / patches
                each -= min(size / by.bandwidth.value, busy)
            seconds = count * each
            bound = "link" if size / by.bandwidth.value > each / 2 else "latency"
        return Item(message.strategy, seconds, bound, message.axis, message.total, by.name)

    def _ring(self, message: Message, by: Link) -> float:
        """Seconds that a ring takes longer than its attention: per step a merge, the bytes that are not hidden, the
        wait of an exchange with a neighbour, and in all at least `hardware.ring`.
        """
        ring, patches = self.plan.degrees.ring, self.plan.tokens.patches
        block = self.block.attention / ring / patches
        uncovered = max(message.size / patches / by.rate("p2p") - block, 0.0)
        step = block + compute.merge_seconds(self.plan, self.hardware) / patches + by.hop.value
        longer = max(step, self.hardware.ring.value) - block
        return message.count * patches * (uncovered + longer * ring / (ring - 1))  # counts hops, one fewer than steps


def _joined(items: Iterable[Item]) -> list[Item]:
    """Add up the items of each strategy and axis, with the limit of the larger one."""
    found: dict[tuple[str, str], Item] = {}
    for item in items:
        key = item.name, item.axis
        if key in found:
            old = found[key]
            bound = item.bound if item.seconds > old.seconds else old.bound
            size, far = old.size + item.size, old.far + item.far
            item = old._replace(seconds=old.seconds + item.seconds, size=size, bound=bound, far=far)
        found[key] = item
    return list(found.values())


def one_gpu_seconds(plan: Plan, hardware: Hardware) -> float:
    """Denoising seconds of the same clip on one GPU, whether it fits there or not."""
    alone = replace(plan, degrees=Degrees(), order=plan.order)
    return cost(alone, hardware).denoise
