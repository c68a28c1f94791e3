"""Several kinds of cards as one machine: every figure is that of the worst of them. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from hybridgen.planner.hardware.constants import Constant, Hardware, Link, Near
from hybridgen.planner.hardware.hosts import filled

MORE_IS_BETTER = (
    *(
        "memory",
        "attention",
        "matmul",
        "fp8",
        "int8",
        "nvfp4",
        "float32",
        "bandwidth",
        "decoder",
        "decoder32",
        "writing",
    ),
    *("gather", "reduce", "neighbour"),
)
"""Constants of which the worst is the smallest; of the others it is the largest."""


def mixed(name: str, parts: Sequence[tuple[Hardware, int]]) -> Hardware:
    """The machine of some cards of each kind, in the order in which ranks fill them; each kind has hosts of its own.

    Every rank has an equal share of the work, so that the slowest card sets the pace, and the smallest memory the
    limit. A domain has as many hosts as that of the kind that joins fewest.
    """
    machines = [machine for machine, _ in parts]
    hosts = tuple(size for machine, count in parts for size in _hosts(machine, count))
    together = min(max(machine.domain // machine.per_node, 1) for machine in machines)
    worst: Hardware = _worst(machines)
    slowest = min(machines, key=lambda machine: machine.attention.value)
    return replace(
        worst,
        name=name,
        title=" and ".join(dict.fromkeys(machine.title for machine in machines)),
        generation=slowest.generation,
        shared_bus=any(machine.shared_bus for machine in machines),
        per_node=max(hosts),
        domain=max(hosts) * together,
        hosts=hosts,
        cards=tuple(f"{count} x {machine.title}" for machine, count in parts) if len({*machines}) > 1 else (),
    )


def _hosts(machine: Hardware, count: int) -> tuple[int, ...]:
    """The hosts of so many GPUs of a kind, filled one after the other."""
    return filled(count, (machine.per_node,) * -(-count // machine.per_node)).sizes


def _worst(parts: Sequence[Any]) -> Any:
    """A machine or link with the worst constant of several; of what is no constant the first one's."""
    first, changes = parts[0], {}
    for item in fields(first):
        values = [getattr(part, item.name) for part in parts]
        if all(isinstance(value, Constant) for value in values):
            pick = min if item.name in MORE_IS_BETTER else max
            changes[item.name] = pick(values, key=lambda constant: constant.value)
        elif all(isinstance(value, Near) for value in values) and len({value.size for value in values}) == 1:
            changes[item.name] = _worst(values)
        elif any(isinstance(value, Near) for value in values):
            changes[item.name] = None  # groups that not all cards have help none
        elif all(isinstance(value, Link) for value in values):
            names = " and ".join(dict.fromkeys(value.name for value in values))
            changes[item.name] = replace(_worst(values), name=names)
    return replace(first, **changes)
