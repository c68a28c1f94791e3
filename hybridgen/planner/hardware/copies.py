"""How many copies of a plan stand side by side on the GPUs there are. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.hardware.hosts import filled, hosts_of


def copies(width: int, gpus: int, hardware: Hardware) -> int:
    """How many plans of `width` ranks have room on `gpus` GPUs, each on hosts as its price takes for granted.

    A plan that fits into a host, or into a domain of several hosts, never lies across two. A wider one begins with a
    domain of its own.
    """
    if width == gpus:
        return 1
    shape = hosts_of(width, hardware).sizes
    full = (hardware.per_node,) * -(-gpus // hardware.per_node)
    hosts = filled(gpus, hardware.hosts).sizes if hardware.hosts else full
    domain = max(hardware.domain // hardware.per_node, 1)  # hosts of one
    if len(shape) <= domain:
        parts = (hosts[first : first + domain] for first in range(0, len(hosts), domain))
        found = sum(_placed(shape, part, len(shape), 1) for part in parts)
    else:
        found = _placed(shape, hosts, -(-len(shape) // domain) * domain, domain)
    return min(found, gpus // width)


def _placed(shape: Sequence[int], hosts: Sequence[int], taken: int, step: int) -> int:
    """How often ranks per host have room on consecutive hosts; `taken` hosts are passed over after a place, `step`
    hosts where there is none."""
    found = first = 0
    while first + len(shape) <= len(hosts):
        room = min(there // ranks for there, ranks in zip(hosts[first:], shape, strict=False))
        found += room
        first += taken if room else step
    return found
