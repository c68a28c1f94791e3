"""GPUs that a faster link joins within a domain: bridged pairs, sockets, switches."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from benchmarks.published import rows
from hybridgen.errors import RequestError
from hybridgen.plan.layout import Layout
from hybridgen.plan.plan import Plan
from hybridgen.planner.choose import anchor
from hybridgen.planner.choose.orders import best_order
from hybridgen.planner.hardware.constants import Constant, Hardware, Near
from hybridgen.planner.hardware.hosts import Borders, borders
from hybridgen.planner.hardware.lookup import find
from hybridgen.planner.hardware.topology import Span, exchange_seconds, link, span
from hybridgen.planner.price import cost
from hybridgen.strategies.registry import AXES, Degrees
from tests.support.published import PUBLISHED_CLIP, WAN22

COLLECTIVES = ("all_to_all", "all_gather", "all_reduce", "broadcast", "p2p")


def grouped(name: str, size: int, faster: float, shared_bus: bool = False) -> Hardware:
    """A machine with near groups, whose link is so many times as fast as the inside link."""
    box = find(name)
    same = {field: getattr(box.inside, field) for field in ("latency", "hop", "gather", "reduce", "neighbour")}
    bandwidth = box.inside.bandwidth.times(faster, "")
    return replace(box, near=Near(name="bridge", bandwidth=bandwidth, size=size, shared_bus=shared_bus, **same))


# Where ranks stand


@pytest.mark.parametrize("places", [Borders(8, 2), Borders(8, 4), Borders(6, 4), Borders(10, 3, (0, 10, 14))], ids=str)
@pytest.mark.parametrize(
    "degrees", [Degrees(cfg=2, ulysses=4, ring=3), Degrees(tp=2, attn2d=(2, 3), ulysses=2)], ids=str
)
def test_spans_are_those_of_the_groups(degrees: Degrees, places: Borders) -> None:
    """By domain and by near group, for every group of every axis in three orders."""
    starts = places.starts or tuple(range(0, 24, places.domain))
    domain_of = [max(n for n, start in enumerate(starts) if start <= rank) for rank in range(24)]
    near_of = [(n, (rank - starts[n]) // places.near) for rank, n in enumerate(domain_of)]
    for order in (AXES, AXES[::-1], ("ulysses", "cfg", "col", "row", "tp", "ring", "pipefusion")):
        layout = Layout(degrees, order)
        for axis in (name for name in AXES if degrees.size(name) > 1):
            groups = layout.groups(axis)
            found = span(layout, axis, places)
            assert found.together == min(min(Counter(domain_of[r] for r in group).values()) for group in groups)
            nearest = [min(Counter(near_of[r] for r in group).values()) for group in groups]
            assert found.near in nearest and (found.near == min(nearest) or places.starts), (order, axis)


def test_hosts_keep_their_near_groups() -> None:
    pairs = grouped("h100-pcie", 2, 4)
    assert borders(8, pairs) == Borders(8, 2) and borders(12, pairs) == Borders(6, 2)
    assert borders(12, pairs.joined((8, 4))) == Borders(8, 2, (0, 8))
    assert not borders(8, pairs).are_alike(8) and borders(2, pairs).are_alike(2)


# What messages cost


@pytest.mark.parametrize("shared_bus", [False, True])
@pytest.mark.parametrize("name", ["h100-pcie", "l40s", "h100"])
def test_no_group_gets_cheaper_by_spreading(name: str, shared_bus: bool) -> None:
    box = grouped(name, 4, 3, shared_bus)
    for collective in COLLECTIVES:
        for size in (0.0, 1e6, 1e9):
            spans = (Span(4, 4, 4), Span(4, 4, 2), Span(4, 4, 1), Span(4, 2, 2), Span(4, 2, 1), Span(4, 1, 1))
            seconds = [exchange_seconds(box, collective, size, where) for where in spans]
            pairs = [(0, 1), (1, 2), (0, 3), (1, 3), (2, 4), (3, 4), (4, 5)]
            assert all(seconds[less] <= seconds[more] * (1 + 1e-12) for less, more in pairs), (collective, seconds)


def test_bytes_go_over_the_link_that_joins_both_ends() -> None:
    """1 GB a rank among 8, joined in pairs: a seventh of an all-to-all stays on the bridge, and the rest does not."""
    box = grouped("h100-pcie", 2, 4)
    slow, fast, late = box.inside.bandwidth.value, 4 * box.inside.bandwidth.value, box.inside.latency.value
    taken = exchange_seconds(box, "all_to_all", 1e9, Span(8, 8, 2)) - late
    assert taken == pytest.approx(max(6 / 7 * 1e9 / slow, 1 / 7 * 1e9 / fast))
    assert exchange_seconds(box, "all_to_all", 1e9, Span(2, 2, 2)) - late == pytest.approx(1e9 / fast)
    gather = box.inside.gather.value
    taken = exchange_seconds(box, "all_gather", 1e9, Span(8, 8, 2)) - late
    assert taken == pytest.approx(max(1e9 * 6 / 7 / 2 / slow, 1e9 / fast) / gather)  # each byte once a pair
    switch = grouped("h100-pcie", 4, 1.1)
    taken = exchange_seconds(switch, "all_to_all", 1e9, Span(8, 8, 4)) - late
    assert taken == pytest.approx(4 / 7 * 1e9 / slow)  # three sevenths stay on the switch
    socket = grouped("h100-pcie", 4, 1.1, shared_bus=True)
    taken = exchange_seconds(socket, "all_to_all", 1e9, Span(8, 8, 4)) - late
    assert taken == pytest.approx(max(1e9 / slow / 1.1, 4 / 7 * 1e9 / slow))  # all of it crosses the socket's own bus
    assert link(box, Span(2, 2, 2)).name == "bridge" and link(box, Span(4, 4, 2)).name == box.inside.name


def test_a_near_group_that_is_no_faster_changes_nothing() -> None:
    for degrees in (Degrees(cfg=2, ulysses=4), Degrees(ring=2, ulysses=4, vae=8), Degrees(tp=4, cfg=2)):
        plan = Plan(WAN22, PUBLISHED_CLIP, degrees)
        assert cost.cost(plan, grouped("l40s", 8, 1)).clip == pytest.approx(cost.cost(plan, find("l40s")).clip)


def test_bytes_over_the_slowest_link_are_those_that_it_carries() -> None:
    """Pairs: ulysses 2 stays on the bridge, so that only cfg and ring are counted; over nodes only cfg."""
    box, degrees = grouped("h100-pcie", 2, 4), Degrees(cfg=2, ring=4, ulysses=2)
    far = {n: _far(replace(box, domain=n, per_node=n), degrees) for n in (16, 8)}
    assert far[16].keys() == {"cfg", "ring"} and far[8].keys() == {"cfg"}
    assert _far(find("h100").joined((16,)), degrees).keys() == {"cfg", "ring", "ulysses"}


def _far(box: Hardware, degrees: Degrees) -> dict[str, int]:
    items = cost.cost(Plan(WAN22, PUBLISHED_CLIP, degrees), box).items
    return {item.axis: item.far for item in items if item.far}


# Which order is chosen


@pytest.mark.parametrize(
    "degrees", [Degrees(cfg=2, ulysses=2, ring=2), Degrees(tp=2, ulysses=4), Degrees(cfg=2, attn2d=(2, 2))], ids=str
)
def test_the_chosen_order_is_the_fastest_of_all(degrees: Degrees) -> None:
    box, plan = grouped("h100-pcie", 2, 8), Plan(WAN22, PUBLISHED_CLIP, degrees)
    axes = [axis for axis in AXES if degrees.size(axis) > 1]
    rest = [axis for axis in AXES if axis not in axes]
    every = [cost.cost(replace(plan, order=(*order, *rest)), box).denoise for order in permutations(axes)]
    found = cost.cost(best_order(plan, box), box)
    assert found.denoise <= min(every) + 0.011 * found.communication * found.denoise
    assert max(every) > min(every)


def test_what_exchanges_most_stays_on_the_bridge(plan: Any, tmp_path: Path) -> None:
    file = tmp_path / "box.yaml"
    file.write_text("base: h100-pcie\nnear: {name: bridge, size: 2, bandwidth: 240GB/s}\n")
    out = plan(f"--gpus 8 --hardware {file} --cfg 2 --ulysses 2 --ring 2")
    assert "ulysses stays inside a bridge; cfg and ring cross bridges" in out and "between bridges of 2" in out
    out = plan(f"--gpus 8 --hardware {file} --cfg 2 --ulysses 2 --ring 2 --explain 1")
    assert "inside a bridge: ulysses; across bridges: cfg, ring" in out and "near.bandwidth" in out
    assert "where every mesh order costs the same" in plan(f"--gpus 2 --hardware {file}")


# What was published


def test_published_times_over_two_sockets() -> None:
    """CogVideoX 1.5 on 4 x L40: ulysses 4, of which one GPU stands on the other socket, gained nothing over ulysses 3.

    The bandwidth between the sockets is chosen for ulysses 4. Ring hides its bytes, and is predicted.
    """
    taken = {row.config: row for row in rows() if row.model == "cogvideox1.5-5b"}
    alone = taken["cfg1"]
    denoise = alone.seconds - cost.cost(alone.plan(), find("l40")).end
    box = anchor.anchored(find("l40"), anchor.read(denoise, alone.plan(), find("l40"), {}))
    socket = {
        field: getattr(box.inside, field) for field in ("bandwidth", "latency", "hop", "gather", "reduce", "neighbour")
    }
    near = Near(name="socket", size=3, shared_bus=True, **socket)
    sockets = replace(box, near=near, inside=replace(box.inside, bandwidth=Constant(4e9, "chosen for ulysses 4")))
    found = {config: cost.cost(row.plan(), sockets).clip / row.seconds for config, row in taken.items()}
    assert found["cfg1 ul3"] == pytest.approx(1, abs=0.1) and found["cfg1 ul4"] == pytest.approx(1, abs=0.1)
    assert found["cfg1 ring4"] == pytest.approx(1, abs=0.15)
    flat = cost.cost(taken["cfg1 ul4"].plan(), box).clip
    assert flat < 0.85 * taken["cfg1 ul4"].seconds


# Files


def test_a_file_names_a_near_group(tmp_path: Path) -> None:
    file = tmp_path / "box.yaml"
    file.write_text(
        "base: l40s\nnear: {size: 4, bandwidth: {value: 16GB/s, origin: measured here}, shared_bus: true}\n"
    )
    box, usual = find(str(file)), find("l40s")
    assert box.near is not None and (box.near.size, box.near.shared_bus, box.near.name) == (4, True, "near group")
    assert box.near.bandwidth == Constant(16e9, "measured here") and box.near.latency == usual.inside.latency
    assert ("near.bandwidth", box.near.bandwidth) in list(box.constants()) and usual.near is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("near: {size: 2}", ":2:1: near: needs bandwidth"),
        ("near: {bandwidth: 1e9}", ":2:1: near: needs size"),
        ("near: {size: 0, bandwidth: 1e9}", "near.size 0: must be 1 or more"),
        ("near: {size: 2, bandwith: 1e9}", "near.bandwith: is not known; nearest: bandwidth"),
        ("near: 2", "near 2: must hold keys of its own"),
    ],
)
def test_half_a_near_group_is_refused(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "box.yaml"
    file.write_text(f"base: l40s\n{text}\n")
    with pytest.raises(RequestError, match=says):
        find(str(file))


def test_hosts_of_a_file_differ_in_size(tmp_path: Path, plan: Any) -> None:
    file = tmp_path / "box.yaml"
    file.write_text("base: h100\nhosts: [8, 4]\n")
    assert find(str(file)).hosts == (8, 4)
    assert "in 2 nodes of 8 and 4" in plan(f"--hardware {file} --gpus 12")
