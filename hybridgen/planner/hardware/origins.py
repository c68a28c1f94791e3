"""Constants and links by where their figures come from: datasheets, fits, assumptions. No torch."""

from __future__ import annotations

from hybridgen.planner.hardware.constants import Constant, Link

GB, TERA, MICRO = 1e9, 1e12, 1e-6


def datasheet(value: float) -> Constant:
    return Constant(value, "datasheet")


def assumed(value: float, why: str) -> Constant:
    return Constant(value, f"assumed: {why}")


def fitted(value: float, to: str) -> Constant:
    return Constant(value, f"fitted to {to}")


def share(of: float, part: float, whose: str) -> Constant:
    """A rate as a share of the datasheet's peak."""
    return Constant(of * part, f"assumed: {part:.0%} of the datasheet's {of / TERA:.0f} TFLOP/s, as on {whose}")


def nvlink(name: str, peak: float) -> Link:
    """A link over an older NVLink; collectives are assumed to reach 40% of it."""
    bandwidth = Constant(0.4 * peak, f"assumed: 40% of the datasheet's {peak / GB:.0f} GB/s, copies included")
    return Link(name, bandwidth, assumed(40 * MICRO, "as NVLink 5"), assumed(500 * MICRO, "as NVLink 5"))


def pcie(name: str, rate: float, why: str = "half of the bus") -> Link:
    """A link over PCIe. GPUs share the host's bridges, and messages often go through its memory.

    The network's adapters hang there as well: shared_bus=True.
    """
    hop, latency = assumed(600 * MICRO, "a little above NVLink"), assumed(60 * MICRO, "a little above NVLink")
    return Link(name, assumed(rate, why), latency, hop)


def network(name: str, peak: float) -> Link:
    """A link over the network, with one adapter per GPU."""
    bandwidth = Constant(0.8 * peak, f"assumed: 80% of the datasheet's {peak / GB:.1f} GB/s a GPU")
    return Link(name, bandwidth, assumed(60 * MICRO, "20 us above NVLink"), assumed(600 * MICRO, "100 us above NVLink"))
