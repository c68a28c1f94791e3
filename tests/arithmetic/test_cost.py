"""What the planner predicts: against published latencies, against arithmetic by hand, and in order."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from benchmarks import planner_accuracy as accuracy
from benchmarks.published import rows
from hybridgen.errors import RequestError
from hybridgen.models import catalogue
from hybridgen.plan.degrees import AXES, Degrees
from hybridgen.plan.layout import Layout
from hybridgen.plan.plan import Clip, Plan
from hybridgen.planner.choose.orders import best_order, vae_span
from hybridgen.planner.hardware.known import MACHINES
from hybridgen.planner.hardware.lookup import find
from hybridgen.planner.hardware.topology import Span, exchange_seconds, span, span_of_axis
from hybridgen.planner.price import compute, cost, memory
from hybridgen.planner.price import vae as vae_price
from hybridgen.strategies import registry

ROOT = Path(__file__).parents[2]
WAN22 = catalogue.find("wan2.2")
COSMOS3 = catalogue.find("cosmos3-super")
PUBLISHED_CLIP = Clip(1280, 720, 77, 40, 4.0)
"""The published 80 frames: 20 latent frames."""
RACK = find("gb200-nvl72")


def wan(**degrees: Any) -> Plan:
    return Plan(WAN22, PUBLISHED_CLIP, Degrees(**degrees))


# Against what is published


def test_wan_on_gb200_is_within_the_model_s_error() -> None:
    fitted, others = accuracy.gb200_lines(rows())
    assert len(fitted) == 4 and len(others) == 6
    errors = [abs(line.error) for line in others]
    assert mean(errors) <= 0.05 and max(errors) <= 0.10
    assert all(abs(line.error) <= 0.05 for line in fitted)


def test_cosmos3_follows_from_constants_of_wan() -> None:
    """Published: one B200 373.1 s, 383.1 s end to end; 72 GB200 6.79 s, 11.78 s. None of them was fitted to."""
    lines = accuracy.unseen_lines(rows())
    assert [line.row.seconds for line in lines] == [373.1, 383.1, 6.79, 11.78]
    assert all(abs(line.error) <= 0.10 for line in lines)
    assert not any(row.model == "cosmos3-super" for row in rows() if (row.config, row.seconds) in accuracy.CALIBRATION)


def test_other_nvlink_machines_are_within_their_error() -> None:
    lines = accuracy.anchored_lines(rows(), pcie=False)
    assert len(lines) == 22 and mean(abs(line.error) for line in lines) <= 0.08


def test_most_pcie_rows_are_within_their_range() -> None:
    lines = accuracy.anchored_lines(rows(), pcie=True)
    assert len(lines) == 14 and all(abs(line.error) <= line.share for line in lines)


def test_ring_costs_what_is_published_against_attention2d() -> None:
    """3, 13 and 83% more at cp 2, 4 and 9 (TensorRT-LLM VisualGen on GB200 NVL72, cfg 2)."""
    for ulysses, grid, published in ((8, (2, 1), 1.03), (8, (2, 2), 1.13), (4, (3, 3), 1.83)):
        ring = wan(cfg=2, ulysses=ulysses, ring=math.prod(grid))
        other = wan(cfg=2, ulysses=ulysses, attn2d=grid)
        ratio = cost.cost(ring, RACK).denoise / cost.cost(other, RACK).denoise
        assert ratio == pytest.approx(published, rel=0.03)


def test_the_vae_is_fastest_on_8_of_the_published_widths() -> None:
    seconds = {v: vae_price.decode_seconds(wan(cfg=2, ulysses=4, attn2d=(3, 3), vae=v), RACK) for v in (1, 2, 4, 8, 16)}
    assert min(seconds, key=lambda v: seconds[v]) == 8
    assert mean(abs(line.error) for line in accuracy.vae_lines(rows())) <= 0.05


def test_the_accuracy_page_is_up_to_date() -> None:
    assert accuracy.page(rows()) == (ROOT / "docs" / "planner-accuracy.md").read_text()


def test_fitted_constants_follow_from_their_rows() -> None:
    found = accuracy.calibrate(rows())
    known = dict(RACK.constants())
    for name, value in found.items():
        assert value == pytest.approx(known[name].value, rel=0.05), name


# By hand


def test_attention_flops_of_wan_at_720p() -> None:
    """4 S^2 d a layer for self-attention over 72000 tokens, a 144th of them on each of 72 ranks and 2 branches."""
    alone = wan()
    assert alone.tokens.tokens == 72000
    assert compute.attention_flops(alone) == 4 * 72000**2 * 5120
    split = wan(cfg=2, ulysses=4, attn2d=(3, 3))
    assert compute.attention_flops(split) * 36 == compute.attention_flops(alone)
    assert compute.cross_attention_flops(alone) == 4 * 72000 * 512 * 5120


@pytest.mark.parametrize("degrees", [{"ring": 4}, {"attn2d": (2, 2)}, {"ulysses": 4}, {"tp": 4}], ids=str)
def test_every_split_shares_the_same_operations(degrees: dict[str, Any]) -> None:
    alone, split = wan(), wan(**degrees)
    assert compute.attention_flops(split) * 4 == compute.attention_flops(alone)
    assert compute.matmul_flops(split) * 4 == compute.matmul_flops(alone)


def test_matrix_products_of_wan() -> None:
    """q, k, v, out; q, out of the cross-attention; two feed-forward matrices."""
    assert WAN22.transformer.matrix_params == 6 * 5120**2 + 2 * 5120 * 13824
    assert compute.matmul_flops(wan()) == 2 * 72000 * WAN22.transformer.matrix_params


def test_grouped_heads_and_own_text_weights() -> None:
    """Cosmos3-Super: 8 K/V heads, three feed-forward matrices, text that is computed once and attended to."""
    facts = COSMOS3.transformer
    assert facts.matrix_params == 2 * 5120 * 8192 + 2 * 5120 * 1024 + 3 * 5120 * 25600
    assert 2 * facts.layers * facts.matrix_params == pytest.approx(62.5e9, rel=0.02)  # 64.0 B with embeddings
    plan = Plan(COSMOS3, Clip(1280, 720, 189, 35, 6.0))
    queries, keys, heads, key_heads = compute.attention_shape(plan)
    assert (keys - queries, heads, key_heads) == (COSMOS3.text_tokens, 64, 8)
    assert compute.text_seconds(plan, RACK) > 0


def test_passes_follow_the_shape_of_a_block() -> None:
    """Wan: 13 of the hidden state, 6 over its heads, 2 over the feed-forward layer; Cosmos3 has one layer less, 64
    heads of 128 on a hidden state of 5120, 8 K/V heads that are joined with the text's, and a gate."""
    assert compute.channel_passes(WAN22.transformer) == (13 * 5120, 6 * 5120 + 2 * 13824)
    assert compute.channel_passes(COSMOS3.transformer) == (9 * 5120, 2 * 8192 + 2 * 1024 + 4 * 1024 + 3 * 25600)
    assert compute.channel_passes(catalogue.find("wan2.2-5b").transformer).hidden == (13 + 9) * 3072  # own timesteps
    whole, halves = wan(), wan(tp=2)
    split = compute.channel_passes(WAN22.transformer).split * whole.tokens.tokens * 2 * compute.STRAY
    assert compute.other_bytes(whole) - compute.other_bytes(halves) == pytest.approx(split / 2)


def test_a_collective_on_one_link() -> None:
    latency, bandwidth = RACK.inside.latency.value, RACK.inside.bandwidth.value
    assert exchange_seconds(RACK, "all_to_all", 1e9, Span(4, 4)) == latency + 1e9 / bandwidth


def test_what_leaves_a_node_is_priced_on_the_network() -> None:
    machine = find("h200")
    network = machine.outside.bandwidth.value
    spread, half = Span(4, 1), Span(4, 2)
    assert exchange_seconds(machine, "all_to_all", 1e9, spread) - machine.outside.latency.value == 1e9 / network
    leaving = 1e9 * 2 / 3  # two of three peers are elsewhere
    assert exchange_seconds(machine, "all_to_all", 1e9, half) == pytest.approx(
        machine.outside.latency.value + leaving / network
    )
    # A gather sends it once for both ranks that stand together, through two adapters.
    gathered = exchange_seconds(machine, "all_gather", 1e9, half) - machine.outside.latency.value
    assert gathered == pytest.approx(leaving / 2 / network)


def test_branches_without_cfg_run_one_after_another() -> None:
    two, one = wan(ulysses=4), replace(wan(ulysses=4), clip=replace(PUBLISHED_CLIP, guidance=1.0))
    steps = PUBLISHED_CLIP.steps * RACK.step.value  # once a step, whatever the branches
    both, single = (cost.cost(plan, RACK).denoise - steps for plan in (two, one))
    assert both == pytest.approx(2 * single, rel=1e-9)


def test_only_ring_hides_bytes_behind_attention() -> None:
    """Twice the bandwidth changes nothing for a ring whose hops are hidden, and halves what others wait for."""
    fast = replace(RACK, inside=replace(RACK.inside, bandwidth=RACK.inside.bandwidth.times(2, "")))
    for degrees, hidden in (({"ring": 4}, True), ({"ulysses": 4}, False), ({"attn2d": (2, 2)}, False)):
        before, after = (cost.cost(wan(**degrees), machine).denoise for machine in (RACK, fast))
        assert (before == after) == hidden, degrees


def test_few_tokens_are_bound_by_memory_and_launches() -> None:
    """At 4608 ranks a block takes as long as its launches, and reading its weights more than multiplying."""
    plan = wan(cfg=2, ulysses=8, attn2d=(16, 18))
    block = compute.block_seconds(plan, RACK)
    weights = WAN22.transformer.matrix_params * 2 / RACK.bandwidth.value
    assert block.matmul >= weights > compute.matmul_flops(plan) / RACK.matmul.value
    assert block.total >= compute.KERNELS * RACK.launch.value


def test_cost_reads_the_declared_messages() -> None:
    """Every byte that strategies declare for denoising is in the cost, and nothing else."""
    for degrees in (Degrees(cfg=2, tp=2, ulysses=2, ring=2), Degrees(cfg=2, ulysses=4, attn2d=(3, 3), vae=8)):
        plan = Plan(WAN22, PUBLISHED_CLIP, degrees)
        declared = {m.strategy for m in registry.traffic(plan, 0) if m.phase == "denoise"}
        total = sum(m.total for m in registry.traffic(plan, 0) if m.phase == "denoise")
        items = [item for item in cost.cost(plan, RACK).items if item.communication]
        assert {item.name for item in items} == declared and sum(item.size for item in items) == total


def test_pipefusion_needs_patches_to_keep_its_stages_busy() -> None:
    def seconds(**changes: Any) -> float:
        return cost.cost(replace(wan(pipefusion=4), **changes), RACK).denoise

    assert seconds(patches=2, warmup=1) > 1.5 * seconds(patches=4, warmup=1)
    assert seconds(patches=4, warmup=40) > 2 * seconds(patches=4, warmup=1)  # synchronous steps leave stages idle


def test_streaming_hides_the_writing() -> None:
    plan = wan(vae=1)
    seconds = vae_price.decode_seconds(plan, RACK)
    written = vae_price.writing_seconds(plan, RACK)
    streamed, waited = (vae_price.tail_seconds(plan, RACK, seconds, s) for s in (True, False))
    assert waited == pytest.approx(RACK.fixed.value + seconds + written)
    assert streamed == pytest.approx(RACK.fixed.value + seconds + written / 20)
    slow = replace(RACK, writing=RACK.writing.times(0.01, ""))  # then the writing is what is waited for
    assert vae_price.tail_seconds(plan, slow, seconds) == pytest.approx(RACK.fixed.value + 100 * written)


# Topology and mesh order


@pytest.mark.parametrize("domain", [4, 6, 8, 72])
@pytest.mark.parametrize(
    "degrees",
    [Degrees(cfg=2, ulysses=4, attn2d=(3, 3), vae=8), Degrees(cfg=2, tp=2, ring=3, ulysses=2, vae=5)],
    ids=str,
)
def test_spans_are_those_of_the_groups(degrees: Degrees, domain: int) -> None:
    """The formula for an axis against every group of the layout, in several orders."""
    for order in (AXES, AXES[::-1], ("ulysses", "cfg", "col", "row", "tp", "ring", "pipefusion")):
        layout = Layout(degrees, order)
        for axis in (a for a in AXES if degrees.size(a) > 1):
            crossing = any(len({rank // domain for rank in group}) > 1 for group in layout.groups(axis))
            assert crossing == span(layout, axis, domain).crosses, (order, axis)
        assert vae_span(degrees.vae, layout.stride("cfg"), domain) == span(layout, "vae", domain)


def test_a_domain_that_holds_all_has_one_order() -> None:
    plan = wan(cfg=2, ulysses=4, attn2d=(3, 3), vae=8)
    assert best_order(plan, RACK).order == AXES
    assert span_of_axis(4, 3, 72, 72) == Span(3, 3)


@pytest.mark.parametrize("start", [AXES, AXES[::-1]], ids=["usual", "reversed"])
def test_cfg_crosses_nodes_and_ulysses_does_not(start: tuple[str, ...]) -> None:
    plan = best_order(replace(wan(cfg=2, ulysses=8, vae=8), order=start), find("h200"))
    assert not span(plan.layout, "ulysses", 8).crosses and span(plan.layout, "cfg", 8).crosses


@pytest.mark.parametrize(
    ("hardware", "degrees"),
    [
        ("h100", Degrees(cfg=2, tp=2, ulysses=2, ring=3, vae=8)),
        ("gb200-nvl72", Degrees(cfg=2, ulysses=8, attn2d=(36, 8), vae=8)),  # two axes of one size
        ("h200", Degrees(pipefusion=2, ulysses=4, attn2d=(4, 3), vae=16)),
    ],
    ids=str,
)
def test_the_chosen_order_is_the_fastest_of_all(hardware: str, degrees: Degrees) -> None:
    from itertools import permutations

    machine, plan = find(hardware), Plan(WAN22, PUBLISHED_CLIP, degrees)
    axes = [axis for axis in AXES if degrees.size(axis) > 1]

    def seconds(order: tuple[str, ...]) -> float:
        found = cost.cost(replace(plan, order=order), machine)
        return found.denoise + found.decode

    rest = [axis for axis in AXES if axis not in axes]
    every = [seconds((*order, *rest)) for order in permutations(axes)]
    assert seconds(best_order(plan, machine).order) == pytest.approx(min(every), rel=1e-12)
    assert max(every) > 1.05 * min(every)


# Machines


def test_every_constant_has_an_origin() -> None:
    for machine in MACHINES.values():
        for name, constant in machine.constants():
            first = constant.origin.split()[0].strip(":;")
            assert first in ("measured", "fitted", "datasheet", "assumed", "mean", "the"), (machine.name, name)
            assert math.isfinite(constant.value) and constant.value >= 0
    assert len(MACHINES) == 11


def test_a_file_describes_a_machine(tmp_path: Path) -> None:
    file = tmp_path / "box.yaml"
    file.write_text(
        "base: cpu\nmatmul: {value: 75e9, origin: measured here}\nattention: 50000000000\ndomain: 4\n"
        "inside: {bandwidth: {value: 2.5e9, origin: measured here}}\n"
    )
    machine = find(str(file))
    assert (machine.name, machine.matmul.value, machine.matmul.origin) == ("box", 75e9, "measured here")
    assert machine.attention.origin == "given in box.yaml" and machine.inside.bandwidth.value == 2.5e9
    assert machine.domain == 4 and machine.inside.latency == find("cpu").inside.latency


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("matmul: 1e12\n", "needs base"),
        ("base: h100\nmatmull: 1\n", "unknown key matmull; did you mean matmul?"),
        ("base: h100\ninside: {bandwith: 1}\n", "unknown key inside.bandwith; did you mean bandwidth?"),
        ("base: h100\nmatmul: fast\n", "must be a number"),
        ("base: h100\nmatmul: -1\n", "1 or more"),
        ("base: h100\nmatmul: {value: 1, from: x}\n", "unknown key matmul.from"),
        ("base: h100\ndomain: 0\n", "a whole number above 0"),
        ("base: h10\n", "nearest: h100"),
        ("a: [\n", "not YAML"),
    ],
)
def test_a_wrong_machine_file_is_refused(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "box.yaml"
    file.write_text(text)
    with pytest.raises(RequestError, match=says.replace("?", r"\?").replace(".", r"\.")):
        find(str(file))


@pytest.mark.parametrize("stages", [(), (2, 2, 30, 2, 4), (2, 2, 2, 4, 30), (8, 8, 8, 8, 8)], ids=str)
@pytest.mark.parametrize("order", [AXES, AXES[::-1]], ids=["usual", "reversed"])
def test_the_fullest_rank_is_that_of_all_stages(stages: tuple[int, ...], order: tuple[str, ...]) -> None:
    degrees = Degrees(cfg=2, pipefusion=5, ulysses=2, vae=8)
    plan = Plan(WAN22, PUBLISHED_CLIP, degrees, order, stages=stages)
    ranks = [plan.layout.rank({"pipefusion": stage}) for stage in range(degrees.pipefusion)]
    fullest = max(ranks, key=lambda rank: memory.peak(plan, rank))
    assert memory.fullest(plan)[1] == memory.terms(plan, fullest)
    assert not stages or fullest == ranks[stages.index(max(stages))]
