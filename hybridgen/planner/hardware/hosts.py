"""How many ranks are started on every host, and how many of them then share a domain. No torch."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from hybridgen.planner.hardware.constants import Hardware


class Hosts(NamedTuple):
    """Ranks over hosts: `each` on all of them but the last, which takes the rest."""

    number: int
    each: int
    last: int

    @property
    def even(self) -> bool:
        return self.last == self.each

    @property
    def torchrun(self) -> str:
        """The torchrun options to type on every host."""
        last = "" if self.even else f" (on the last host --nproc-per-node {self.last})"
        return f"torchrun --nnodes {self.number} --nproc-per-node {self.each} ... -m hybridgen run ...{last}"


@lru_cache(maxsize=1024)
def spread(ranks: int, per_node: int, domain: int = 1) -> Hosts:
    """Spread ranks evenly over hosts, so that one command starts them all: the largest share that divides them.

    Hosts of a wider domain must fit into as many domains as full ones would take. Where an even spread would leave one
    rank per host, hosts are filled.
    """
    most = -(-ranks // domain) * (domain // per_node) if domain > per_node else ranks
    full = min(ranks, per_node)
    even = (share for share in range(full, 1, -1) if ranks % share == 0 and ranks // share <= most)
    each = next(even, full)
    number = -(-ranks // each)
    return Hosts(number, each, ranks - (number - 1) * each)


def ranks_of_domain(ranks: int, hardware: Hardware) -> int:
    """Number of ranks per domain, when they are spread over hosts."""
    domain, per_node = hardware.domain, hardware.per_node
    hosts = spread(ranks, per_node, domain)
    if hosts.number == 1 or not hosts.even:
        return domain
    return domain // per_node * hosts.each if domain >= per_node else math.gcd(domain, hosts.each)
