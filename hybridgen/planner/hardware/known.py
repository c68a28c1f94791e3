"""The machines known by name: cards.py as the planner sees them. No torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hybridgen.planner.hardware.cards import CARDS, GB200, Card
from hybridgen.planner.hardware.constants import Constant, Hardware, Link
from hybridgen.planner.hardware.fitted import FITTED, MEASURED
from hybridgen.planner.hardware.links import BUSES, bridge, link, network
from hybridgen.planner.hardware.origins import GB, MICRO, TERA, assumed, datasheet, fitted
from hybridgen.planner.hardware.rates import CAST, GENERATIONS, best_product, products

LEFT_OUT = "nine of ten rows whose source was left out are so near"
MEASURED_CARD = fitted(0.15, LEFT_OUT)
MEASURED_KIND = assumed(0.22, "half as much again as for a GPU that was measured, for others of its generation")
UNMEASURED = assumed(0.35, "nothing was published for this generation")
ANCHORED = fitted(0.08, f"given one GPU's time, {LEFT_OUT}")
PCIE = fitted(0.22, f"given one GPU's time, {LEFT_OUT}; PCIe boxes differ")


def machine(card: Card, values: Mapping[str, float] = FITTED, measured: Collection[str] = MEASURED) -> Hardware:
    """The machine of a card, with the values of a fit (by default the committed one) to these measured cards."""
    generation, best, inside = GENERATIONS[card.generation], best_product(card), link(card.link, values)
    alone, is_nvlink = generation.published, BUSES[card.link].kind == "nvlink"
    like, alike = generation.like or card.generation, f"as {generation.like}: " if generation.like else ""
    sheet = f"{card.maker}'s {card.title}"

    def reached(kind: str, of: float, what: str) -> Constant:
        """A share of a rate as fitted, or as assumed to be that of a generation that was."""
        part = values[kind]
        words = f"{part:.0%} of {what}"
        return assumed(of * part, alike + words) if alike else fitted(of * part, words)

    return Hardware(
        name=card.name,
        title=card.title,
        generation=card.generation,
        memory=datasheet(card.memory * GB, sheet),
        reserve=assumed((1 if card.memory < 40 else 2) * GB, "CUDA context and NCCL buffers"),
        attention=reached(
            f"attention.{like}",
            best.value * alone.value / generation.sustained.value,
            f"what {generation.usual} reaches alone; {alone.origin}",
        ),
        matmul=reached(f"matmul.{like}", best.value, f"the best matrix product; {best.origin}"),
        fp8=products(card)["fp8"],
        int8=products(card)["int8"],
        nvfp4=products(card)["nvfp4"],
        float32=Constant(card.float32 / card.peak, "datasheet: fp32 without tensor cores against bf16 with them"),
        bandwidth=datasheet(card.bandwidth * TERA, sheet),
        passes=fitted(values["passes"]),
        eager=fitted(values["eager"]),
        launch=assumed(3 * MICRO, "compiled blocks, or replayed as a graph"),
        step=assumed(1e-3, "scheduler and time embedding"),
        ring=fitted(values["ring"]),
        slowdown=fitted(values["slowdown"]),
        crowd=fitted(values["crowd"]),
        decoder=reached("decoder", best.value, f"the best matrix product; {best.origin}"),
        decoder32=datasheet(0.5),
        decoder_passes=fitted(values["decoder_passes"]),
        pixels=fitted(values["pixels"]),
        fixed=fitted(values["fixed"]),
        writing=assumed(230e6, "720p at 250 frames a second"),
        inside=inside,
        outside=network(card.network, inside),
        shared_bus=not is_nvlink,
        domain=card.domain,
        per_node=card.per_node,
        near=bridge(*card.bridge, values) if card.bridge else None,
        error=_error(card, like, measured),
        anchored=ANCHORED if is_nvlink else PCIE,
    )


def _error(card: Card, kind: str, measured: Collection[str]) -> Constant:
    """How far off the one-GPU time of a card may be: one that was measured, one of the same kind, or another."""
    if card.name in measured:
        return MEASURED_CARD
    is_alike = any(other.name in measured and other.generation == kind == card.generation for other in CARDS)
    return MEASURED_KIND if is_alike else UNMEASURED


GUESS = "one core of a recent server; calibrate this machine instead"
LOOPBACK = Link("gloo", assumed(1.5 * GB, GUESS), assumed(300 * MICRO, GUESS), assumed(300 * MICRO, GUESS))

CPU = Hardware(
    name="cpu",
    title="CPU core",
    generation="cpu",
    memory=Constant(0, "the machine's own"),
    reserve=Constant(0.029 * GB, "measured: what a rank of the demo holds beside its tensors"),
    attention=assumed(40 * GB, GUESS),
    matmul=assumed(60 * GB, GUESS),
    fp8=CAST,
    int8=CAST,
    nvfp4=assumed(0, "no such numbers"),
    float32=Constant(1.0, "assumed: these rates are for fp32, and bf16 is no faster on most CPUs"),
    bandwidth=assumed(8 * GB, GUESS),
    passes=assumed(3.7, GUESS),
    eager=assumed(1.0, GUESS),
    launch=assumed(8 * MICRO, GUESS),
    step=assumed(1e-3, GUESS),
    ring=assumed(500 * MICRO, GUESS),
    slowdown=assumed(0.05, GUESS),
    crowd=assumed(0, "part of the slowdown"),
    decoder=assumed(50 * GB, GUESS),
    decoder32=Constant(1.0, "assumed: bf16 is no faster on most CPUs"),
    decoder_passes=assumed(0, "part of the rate"),
    pixels=assumed(1e-4, GUESS),
    fixed=assumed(0.3, GUESS),
    writing=assumed(20e6, GUESS),
    inside=LOOPBACK,
    outside=Link("TCP", assumed(1 * GB, GUESS), assumed(500 * MICRO, GUESS), assumed(500 * MICRO, GUESS)),
    shared_bus=True,  # the cores send
    domain=64,
    per_node=64,
    error=assumed(0.5, "not calibrated"),
    anchored=assumed(0.25, "not calibrated"),
)

MACHINES = {**{card.name: machine(card) for card in CARDS}, CPU.name: CPU}
"""The machines by name, in the order of cards.py."""
DEFAULT = GB200.name
"""The machine to plan for if none is named."""
ALIASES = {alias: card.name for card in CARDS for alias in card.aliases}
