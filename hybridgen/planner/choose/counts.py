"""The number of GPUs from the flags that name it. No torch."""

from __future__ import annotations

from hybridgen.errors import Change, RequestError
from hybridgen.planner.hardware.hosts import spread
from hybridgen.recipe.legal import Fixed
from hybridgen.recipe.resolve import MAX_RANKS, check_count
from hybridgen.strategies.registry import OVERLAID, Degrees


def count_gpus(gpus: int | None, nodes: int | None, per_node: int | None, given: Fixed) -> tuple[int, int | None]:
    """Numbers of GPUs, in all and per host: as given, by hosts, or the product of the degrees.

    Raises RequestError (gpus).
    """
    for name, value in (("gpus", gpus), ("nodes", nodes), ("gpus-per-node", per_node)):
        if value is not None:
            check_count(name, value)
    if gpus is None and nodes is not None and per_node is not None:
        gpus = nodes * per_node
    if gpus is None and any(name not in OVERLAID for name in given):
        gpus = Degrees(**given).world
    if gpus is None:
        raise RequestError("gpus", "gpus", None, "is missing; how many GPUs are there?", [8 * (nodes or 1)])
    if gpus > MAX_RANKS:
        raise RequestError("gpus", "gpus", gpus, f"is more than {MAX_RANKS}", [MAX_RANKS])
    return gpus, _per_node(gpus, nodes, per_node)


def _per_node(gpus: int, nodes: int | None, per_node: int | None) -> int | None:
    """GPUs per host; None if nothing says how many. Raises RequestError (gpus) if hosts would differ."""
    if nodes is not None:
        near = nodes * (per_node or max(round(gpus / nodes), 1))
        if gpus != near:
            hosts = f"--nodes {nodes}" + (f" x --gpus-per-node {per_node}" if per_node else "")
            raise RequestError("gpus", "gpus", gpus, f"cannot be spread over {hosts}", [near])
        return gpus // nodes
    if per_node is not None and gpus > per_node:
        share = spread(gpus, per_node)
        if share.even and share.each < per_node:
            raise RequestError("gpus", "gpus-per-node", per_node, f"does not divide {gpus} GPUs", [share.each])
    return per_node


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
