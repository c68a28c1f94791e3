"""Ranks over hosts: how many each gets, what crossing hosts costs, and what starts them. No ranks."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hybridgen.cli.main import call
from hybridgen.engine import machine
from hybridgen.errors import RequestError
from hybridgen.models import catalogue
from hybridgen.plan.layout import Layout
from hybridgen.plan.plan import Clip, Plan
from hybridgen.planner.choose.orders import best_order
from hybridgen.planner.hardware.constants import Constant, Hardware
from hybridgen.planner.hardware.hosts import Borders, borders, hosts_of, spread
from hybridgen.planner.hardware.known import MACHINES
from hybridgen.planner.hardware.lookup import find
from hybridgen.planner.hardware.topology import Span, exchange_seconds, link, span, span_of_axis, span_of_ranks
from hybridgen.planner.price import cost
from hybridgen.strategies.registry import AXES, Degrees

WAN22 = catalogue.find("wan2.2")
CLIP = Clip(1280, 720, 77, 40, 4.0)
PCIE = ("h100-pcie", "l40s", "rtx4090", "rtx5090")
COLLECTIVES = ("all_to_all", "all_gather", "all_reduce", "broadcast", "p2p")


# What crossing costs


def late(machine: Hardware) -> Hardware:
    """A machine whose inside link was measured, and is later than what is assumed of the network."""
    inside = machine.inside
    return replace(machine, inside=replace(inside, latency=inside.latency.times(3, ""), hop=inside.hop.times(3, "")))


@pytest.mark.parametrize("measured", [False, True], ids=["known", "measured"])
@pytest.mark.parametrize("name", sorted(MACHINES))
def test_no_group_gets_cheaper_by_crossing_nodes(name: str, measured: bool) -> None:
    box = late(find(name)) if measured else find(name)
    for size in (2, 3, 4, 8, 9, 72):
        whole = Span(size, size)
        for together in range(1, size // 2 + 1):
            split = Span(size, together)
            for sent in (0.0, 1e3, 1e6, 1e9):
                for collective in COLLECTIVES:
                    inside, across = (exchange_seconds(box, collective, sent, where) for where in (whole, split))
                    assert across >= inside, (collective, sent, split)
    near, far = link(box, Span(2, 2)), link(box, Span(2, 1))
    assert far.bandwidth.value <= near.bandwidth.value and far.hop.value >= near.hop.value


def test_what_leaves_a_node_crosses_a_shared_bus_as_well() -> None:
    """16 GB/s of PCIe, beside a network of 20: all bytes of an all-to-all cross the bus, wherever the peers are."""
    box = find("l40s")
    inside, outside = (
        replace(one, bandwidth=Constant(rate, "")) for one, rate in ((box.inside, 16e9), (box.outside, 20e9))
    )
    box = replace(box, inside=inside, outside=outside)
    latency = box.outside.latency.value
    assert exchange_seconds(box, "all_to_all", 1e9, Span(4, 2)) == pytest.approx(latency + 1e9 / 16e9)
    alone, hop = replace(box, shared_bus=False), box.outside.hop.value
    assert exchange_seconds(box, "p2p", 1e9, Span(2, 1)) == pytest.approx(hop + 1e9 / 16e9)
    assert exchange_seconds(alone, "p2p", 1e9, Span(2, 1)) == pytest.approx(hop + 1e9 / 20e9)
    slow = replace(box, outside=replace(box.outside, bandwidth=box.outside.bandwidth.times(0.1, "")))
    assert exchange_seconds(slow, "all_to_all", 1e9, Span(4, 2)) == pytest.approx(latency + 2e9 / 3 / 2e9)


@pytest.mark.parametrize("name", PCIE)
@pytest.mark.parametrize("degrees", [Degrees(cfg=2, ulysses=8), Degrees(cfg=2, ring=2, ulysses=4)], ids=str)
def test_cfg_crosses_nodes_on_pcie_as_on_nvlink(name: str, degrees: Degrees) -> None:
    found = best_order(Plan(WAN22, CLIP, degrees), find(name))
    assert found.order == AXES and span(found.layout, "cfg", Borders(8)).crosses
    rest = [axis for axis in AXES if axis not in ("ulysses", "ring", "cfg")]
    turned = replace(found, order=("ulysses", "ring", "cfg", *rest))
    usual, upside_down = (cost.cost(one, find(name)).denoise for one in (found, turned))
    assert usual <= upside_down


def test_a_file_says_whether_the_bus_is_shared(tmp_path: Path) -> None:
    file = tmp_path / "box.yaml"
    file.write_text("base: h100\nshared_bus: true\n")
    assert find(str(file)).shared_bus and not find("h100").shared_bus
    file.write_text("base: h100\nshared_bus: 1\n")
    with pytest.raises(RequestError, match=":2:1: shared_bus 1: must be true or false"):
        find(str(file))


def test_spans_are_those_of_the_group_that_lies_worst() -> None:
    """The domain with fewest of a group's ranks decides: they send most, through fewest adapters."""
    assert span_of_ranks(range(8), Borders(7)) == Span(8, 1)
    for world, stride, size in ((12, 1, 4), (24, 3, 4), (30, 2, 5), (36, 6, 3), (48, 4, 12)):
        for domain in range(1, 14):
            blocks = range(0, world, stride * size)
            groups = [range(b + i, b + i + stride * size, stride) for b in blocks for i in range(stride)]
            fewest = min(span_of_ranks(group, Borders(domain)).together for group in groups)
            assert span_of_axis(stride, size, world, Borders(domain)) == Span(size, fewest), (
                world,
                stride,
                size,
                domain,
            )


# How many each host gets


@pytest.mark.parametrize(
    ("ranks", "per_node", "hosts"),
    [
        (8, 8, (8,)),
        (3, 8, (3,)),
        (16, 8, (8, 8)),
        (12, 8, (6, 6)),
        (9, 8, (3, 3, 3)),
        (10, 4, (2,) * 5),
        (3, 1, (1, 1, 1)),
        (7, 4, (4, 3)),
        (11, 8, (8, 3)),
        (13, 4, (4, 4, 4, 1)),
    ],
)
def test_hosts_get_the_largest_even_share(ranks: int, per_node: int, hosts: tuple[int, ...]) -> None:
    assert spread(ranks, per_node) == (hosts,)


def test_a_wider_domain_has_so_many_hosts() -> None:
    """18 hosts of 4: 34 ranks are 2 each on 17 of them, 38 would need 19 and fill 10 instead."""
    rack = find("gb200-nvl72")
    assert spread(34, 4, 72) == ((2,) * 17,) and borders(34, rack) == Borders(36)
    assert spread(38, 4, 72) == ((4,) * 9 + (2,),) and borders(38, rack) == Borders(72)
    assert spread(78, 4, 72) == ((3,) * 26,) and borders(78, rack) == Borders(54)
    assert borders(144, rack) == borders(100, rack) == Borders(72)
    pairs = replace(find("h100-pcie"), domain=2)  # bridges of NVLink between two cards each
    assert [borders(n, pairs).domain for n in (5, 12, 9)] == [2, 2, 1]


def test_prices_are_those_of_an_even_share() -> None:
    """12 GPUs on nodes of 8: with 6 on each, only cfg crosses."""
    box = find("h100")
    found = best_order(Plan(WAN22, CLIP, Degrees(cfg=2, ring=3, ulysses=2)), box)
    sixes, fours = (replace(box, domain=n, per_node=n) for n in (6, 4))
    assert found.order == AXES and _exchanges(found, box) == _exchanges(found, sixes)
    assert sum(_exchanges(found, box).values()) < sum(_exchanges(found, fours).values())


def _exchanges(plan: Plan, box: Hardware) -> dict[str, float]:
    """Seconds of a plan's exchanges by axis."""
    return {item.axis: item.seconds for item in cost.cost(plan, box).items if item.communication}


# Hosts that differ in size


@pytest.mark.parametrize("hosts", [(8, 8, 4), (4, 8, 8), (6, 2, 8, 4), (1, 19)], ids=str)
@pytest.mark.parametrize("degrees", [Degrees(cfg=2, ulysses=5, ring=2), Degrees(attn2d=(2, 5), tp=2)], ids=str)
def test_groups_over_unequal_hosts_are_priced_where_their_ranks_stand(degrees: Degrees, hosts: tuple[int, ...]) -> None:
    """Host by host: a rank's own host, counted by hand, for every group of every axis in two orders."""
    box = find("h100").joined(hosts)
    host_of = [number for number, size in enumerate(hosts) for _ in range(size)]
    for order in (AXES, AXES[::-1]):
        layout = Layout(degrees, order)
        for axis in (name for name in AXES if degrees.size(name) > 1):
            counts = [Counter(host_of[rank] for rank in group) for group in layout.groups(axis)]
            fewest = min(min(count.values()) for count in counts)
            assert span(layout, axis, borders(20, box)) == Span(degrees.size(axis), fewest), (order, axis)


def test_unequal_hosts_are_filled_in_order() -> None:
    box = find("h100").joined((8, 8, 4))
    assert [hosts_of(n, box).sizes for n in (4, 8, 12, 20)] == [(4,), (8,), (8, 4), (8, 8, 4)]
    assert [borders(n, box).sizes(n) for n in (4, 12, 20)] == [[4], [8, 4], [8, 8, 4]]
    assert find("h100").joined((8, 8)) == find("h100")
    rack = find("gb200-nvl72").joined((4,) * 20 + (2,))
    assert borders(82, rack).sizes(82) == [72, 10]  # 18 hosts to a domain


def test_a_group_that_crosses_unequal_hosts_costs_more() -> None:
    """8 and 4 GPUs: ulysses 4 stays on one host in every group, and on 6 and 6 it would not."""
    plan = Plan(WAN22, CLIP, Degrees(ulysses=4, ring=3))
    seconds = [cost.cost(plan, find("h100").joined(hosts)).denoise for hosts in ((8, 4), (6, 6), (2, 10))]
    assert seconds[0] < seconds[1] <= seconds[2]


# What is printed


@pytest.mark.parametrize(
    ("flags", "gpus", "place"),
    [
        ("--gpus 10", 10, "10 x GB200, NVLink 5 ("),
        ("--gpus 7", 7, "7 x GB200, NVLink 5 ("),
        ("--gpus 144", 144, "in 2 domains of 72"),
        ("--gpus 11 --hardware h100", 11, "in 2 nodes of 8 and 3"),
        ("--gpus 12 --hardware h100", 12, "in 2 nodes of 6"),
        ("--gpus 9 --hardware l40s --model wan2.1-1.3b", 9, "in 3 nodes of 3"),
        ("--gpus 7 --gpus-per-node 4 --hardware h100", 7, "in 2 nodes of 4 and 3"),
        ("--gpus 12 --hardware h100 --nodes 3", 12, "in 3 nodes of 4"),
        ("--hardware h100 --gpus-per-node 8,4", 12, "in 2 nodes of 8 and 4"),
        ("--hardware h100 --nodes 2 --gpus 8 --gpus-per-node 6,4", 8, "in 2 nodes of 6 and 2"),
    ],
)
def test_the_launcher_starts_as_many_ranks_as_the_plan_has(flags: str, gpus: int, place: str, plan: Any) -> None:
    out = plan(flags)
    assert place in out
    pattern = r"torchrun --nnodes (\d+) --nproc-per-node (\d+) \.\.\. -m hybridgen run \.\.\."
    found = re.search(pattern + r"(?: \(.*; on host 1 --nproc-per-node (\d+)\))?, or under srun", out)
    assert found
    count, each, last = int(found[1]), int(found[2]), int(found[3] or found[2])
    assert (count - 1) * each + last == gpus


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--gpus 16 --gpus-per-node 3", "--gpus-per-node 3: does not divide 16 GPUs; nearest: 2"),
        ("--cfg 2 --ulysses 8 --gpus-per-node 6", "--gpus-per-node 6: does not divide 16 GPUs; nearest: 4"),
        ("--gpus 24 --gpus-per-node 8,8,4", "--gpus 24: --gpus-per-node 8,8,4 makes 20 GPUs; nearest: 20"),
        ("--nodes 2 --gpus-per-node 8,8,4", "--nodes 2: --gpus-per-node 8,8,4 names 3 hosts; nearest: 3"),
        ("--gpus-per-node 8,0,4", "--gpus-per-node 8,0,4: a host has 1 to 65536 GPUs; nearest: 8,1,4"),
        ("--gpus 9 --gpus-per-node 8,x", "--gpus-per-node 8,x: is not a number of GPUs, or one number for every host"),
    ],
)
def test_hosts_that_do_not_divide_the_gpus_are_refused(flags: str, says: str, plan: Any) -> None:
    first, last = plan(flags, code=2).splitlines()
    assert first.startswith(f"error[gpus]: {says}")
    assert "nodes of" in plan(f"{last.removeprefix('  try:  hybridgen plan ')} --hardware h100")


def test_more_gpus_than_a_machine_has_are_started_on_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "count_gpus", lambda: 8)
    machine.check_machine(Plan(WAN22, CLIP, Degrees(ulysses=8)), "cuda")
    with pytest.raises(RequestError, match="--gpus 12: this machine has 8") as refusal:
        machine.check_machine(Plan(WAN22, CLIP, Degrees(cfg=2, ring=6)), "cuda")
    assert refusal.value.tries == ("torchrun --nnodes 2 --nproc-per-node 6 ... -m hybridgen run ...",)
    machine.check_machine(Plan(WAN22, CLIP, Degrees(ring=3)), "cuda", replicas=2)
    with pytest.raises(RequestError, match=r"--replicas 3: of 3 GPUs each are more than .* \(8\); nearest: 2"):
        machine.check_machine(Plan(WAN22, CLIP, Degrees(ring=3)), "cuda", replicas=3)


@pytest.mark.parametrize(
    ("words", "has", "started"),
    [
        ("--ring 3", 3, 4),
        ("--gpus 3", 3, 4),
        ("--usp 1x3", 3, 4),
        ("--attn2d 3x1 --order row,col --vae 3", 3, 4),
        ("--recipe r.yaml", 6, 2),  # degrees that no flag gave have to go as well
    ],
)
def test_a_launcher_with_other_ranks_is_told_both_ways_out(
    words: str,
    has: int,
    started: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "r.yaml").write_text("parallel: {cfg: 2, ring: 3}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(started))
    assert call(["run", "--model", "demo", "--device", "cpu", "-p", "x", *words.split()]) == 2
    *_, first, last = capsys.readouterr().err.splitlines()
    assert first.startswith(f"error[world-size]: the launcher started {started} ranks and the plan has {has} (")
    assert f"nearest: start {has}, or " in first and first.endswith(f" on {started}")
    assert call([*shlex.split(last.removeprefix("  try:  hybridgen ")), "--dry-run"]) == 0
    assert f"{started} ranks" in capsys.readouterr().out
