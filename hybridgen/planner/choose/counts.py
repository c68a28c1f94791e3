"""The number of GPUs from the flags that name it. No torch."""

from __future__ import annotations

import re

from hybridgen.errors import Change, RequestError, counted
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.hardware.hosts import filled, spread
from hybridgen.recipe.legal import Fixed
from hybridgen.recipe.resolve import MAX_RANKS, check_count
from hybridgen.strategies.registry import OVERLAID, Degrees


def count_gpus(
    gpus: int | None, nodes: int | None, per_node: str | int | None, given: Fixed, machine: Hardware
) -> tuple[int, tuple[int, ...]]:
    """The number of GPUs, and those of each host: one number for all hosts, or one for each; none if no flag says it.

    The number is as given, that of the hosts or cards, or the product of the degrees. Raises RequestError (gpus).
    """
    hosts = _hosts(per_node)
    if machine.cards or (machine.hosts and not hosts and nodes is None):
        gpus = _of_machine(gpus, machine)
    for name, value in (("gpus", gpus), ("nodes", nodes)):
        if value is not None:
            check_count(name, value)
    if len(hosts) > 1:
        return _of_list(gpus, nodes, hosts)
    each = hosts[0] if hosts else None
    if gpus is None and nodes is not None and each is not None:
        gpus = nodes * each
    if gpus is None and any(name not in OVERLAID for name in given):
        gpus = Degrees(**given).world
    if gpus is None:
        raise RequestError("gpus", "gpus", None, "is missing; how many GPUs are there?", [8 * (nodes or 1)])
    if gpus > MAX_RANKS:
        raise RequestError("gpus", "gpus", gpus, f"is more than {MAX_RANKS}", [MAX_RANKS])
    return gpus, _alike(gpus, nodes, each)


def _hosts(per_node: str | int | None) -> tuple[int, ...]:
    """GPUs of a host, or of every host, from "8" or "8,8,4". Raises RequestError (gpus)."""
    if per_node is None:
        return ()
    words = str(per_node).split(",")
    if not all(re.fullmatch(r"\s*\d{1,9}\s*", word) for word in words):
        problem = "is not a number of GPUs, or one number for every host"
        raise RequestError("gpus", "gpus-per-node", per_node, problem, [8, "8,8,4"])
    for word in words:
        if not 1 <= int(word) <= MAX_RANKS:
            near = ",".join(str(min(max(int(one), 1), MAX_RANKS)) for one in words)
            raise RequestError("gpus", "gpus-per-node", per_node, f"a host has 1 to {MAX_RANKS} GPUs", [near])
    return tuple(map(int, words))


def _of_machine(gpus: int | None, machine: Hardware) -> int:
    """The number of GPUs of a machine that names its hosts; of several kinds of cards all are used."""
    total = sum(machine.hosts)
    if gpus is not None and (gpus > total or (machine.cards and gpus != total)):
        problem = f"--hardware names {counted(total, 'GPU')}" + (
            ": " + " and ".join(machine.cards) if machine.cards else ""
        )
        raise RequestError("gpus", "gpus", gpus, problem, [total])
    return gpus or total


def _of_list(gpus: int | None, nodes: int | None, hosts: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """The number of GPUs where each host is named: all of them unless fewer are asked for, which fill hosts."""
    named, total = ",".join(map(str, hosts)), sum(hosts)
    if nodes is not None and nodes != len(hosts):
        problem = f"--gpus-per-node {named} names {counted(len(hosts), 'host')}"
        raise RequestError("gpus", "nodes", nodes, problem, [len(hosts)])
    if total > MAX_RANKS:
        raise RequestError("gpus", "gpus-per-node", named, f"makes {total} GPUs, more than {MAX_RANKS}")
    if gpus is not None and gpus > total:
        raise RequestError("gpus", "gpus", gpus, f"--gpus-per-node {named} makes {counted(total, 'GPU')}", [total])
    is_part = gpus is not None and len({*hosts}) == 1  # spread evenly, a part could take more hosts than there are
    return gpus or total, filled(gpus or total, hosts).sizes if is_part else hosts


def _alike(gpus: int, nodes: int | None, per_node: int | None) -> tuple[int, ...]:
    """GPUs of each of several hosts of one size; none if nothing says how many. Raises RequestError (gpus)."""
    if nodes is not None:
        near = nodes * (per_node or max(round(gpus / nodes), 1))
        if gpus != near:
            hosts = f"--nodes {nodes}" + (f" x --gpus-per-node {per_node}" if per_node else "")
            raise RequestError("gpus", "gpus", gpus, f"cannot be spread over {hosts}", [near])
        return (gpus // nodes,)
    if per_node is not None and gpus > per_node:
        share = spread(gpus, per_node)
        if share.even and share.each < per_node:
            raise RequestError("gpus", "gpus-per-node", per_node, f"does not divide {gpus} GPUs", [share.each])
    return () if per_node is None else (per_node,)


def with_counts(error: RequestError, count: int, gpus: int | None, nodes: int | None) -> RequestError:
    """The error with changes that name the number of GPUs, where degrees or hosts implied it."""
    tries: list[Change | str] = []
    for change in error.tries:
        if isinstance(change, str) or (gpus is not None and nodes is None):
            tries.append(change)
        elif "gpus" not in change:
            tries.append({**change, **({} if nodes else {"gpus": str(count)})})
        else:
            tries.append({**change, **({"nodes": None, "gpus-per-node": str(count // nodes)} if nodes else {})})
    return error.changed(tries=tries)
