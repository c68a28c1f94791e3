"""Links between GPUs: what the bus gives, and what collectives reach of it. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import NamedTuple

from hybridgen.planner.hardware.constants import Constant, Link, Near
from hybridgen.planner.hardware.origins import GB, MICRO, assumed, fitted, share


class Bus(NamedTuple):
    """A bus as its datasheet gives it."""

    title: str
    peak: float
    """Bandwidth of one GPU in one direction (GB/s)."""
    kind: str
    """Whose share of the peak collectives reach: "nvlink", "pcie", or "host" where GPUs reach each other through the
    host's memory only."""


BUSES = {
    "nvlink5": Bus("NVLink 5", 900, "nvlink"),
    "nvlink4": Bus("NVLink 4", 450, "nvlink"),
    "nvlink3": Bus("NVLink 3", 300, "nvlink"),
    "nvlink-400": Bus("NVLink, 400 GB/s", 200, "nvlink"),
    "fabric3": Bus("Infinity Fabric 3", 7 * 64, "nvlink"),
    "fabric4": Bus("Infinity Fabric 4", 7 * 76.8, "nvlink"),
    "bridge-600": Bus("bridge", 300, "nvlink"),
    "bridge-900": Bus("bridge", 450, "nvlink"),
    "pcie5": Bus("PCIe 5", 64, "pcie"),
    "pcie4": Bus("PCIe 4", 32, "pcie"),
    "pcie5-host": Bus("PCIe 5, no peer to peer", 64, "host"),
    "pcie4-host": Bus("PCIe 4, no peer to peer", 32, "host"),
}
"""Buses by name."""
SWITCH = "switches add up in an all-reduce (NVLink SHARP), which sends less than a ring would"
LARGER = "fewer and larger messages than an all-to-all"


def link(name: str, values: Mapping[str, float]) -> Link:
    """The link over a bus, with the shares and times of a fit. Messages over PCIe share the host's bridges."""
    bus = BUSES[name]
    bandwidth = share(bus.peak * GB, values[bus.kind], f"{bus.peak:g} GB/s")
    latency, hop = fitted(values["latency"]), fitted(values["hop"])
    if bus.kind == "nvlink":
        larger = assumed(1.2, LARGER)
        return Link(bus.title, bandwidth, latency, hop, larger, assumed(1.6, SWITCH), larger)
    if bus.kind == "host":
        return Link(bus.title, bandwidth, latency, hop)
    neighbour = assumed(1.3, "a ring sends to one neighbour, over fewer bridges than an all-to-all")
    return Link(bus.title, bandwidth, latency, hop, neighbour, neighbour, neighbour)


def bridge(name: str, size: int, values: Mapping[str, float]) -> Near:
    """The link over a bridge that joins so many neighbours; it is no part of the bus that joins all."""
    found = link(name, values)
    return Near(**{item.name: getattr(found, item.name) for item in fields(found)}, size=size)


def network(rate: float, inside: Link) -> Link:
    """The link over the network, with one adapter per GPU; rate in Gb/s."""
    peak = rate / 8 * GB
    bandwidth = Constant(0.8 * peak, f"assumed: 80% of the adapter's {peak / GB:.1f} GB/s")
    latency = assumed(inside.latency.value + 20 * MICRO, "20 us above the link inside")
    hop = assumed(inside.hop.value + 80 * MICRO, "80 us above the link inside")
    return Link(f"{rate:.0f} Gb/s network", bandwidth, latency, hop)
