"""parallel-vae: strips encode what one process does, send what is declared, and hold what is planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from diffusers import AutoencoderKLWan
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from hybridgen.distributed.comm import Group, Traffic
from hybridgen.distributed.mesh import Mesh, build_mesh
from hybridgen.distributed.processes import RankContext
from hybridgen.models.catalogue import find
from hybridgen.models.wan.denoiser import Wan
from hybridgen.models.wan.vae import WanAutoencoder
from hybridgen.models.wan.vae_facts import WanVae
from hybridgen.plan.plan import Plan
from hybridgen.planner.hardware.lookup import find as machine
from hybridgen.planner.price import vae as price
from hybridgen.planner.price.cost import cost
from hybridgen.planner.price.memory import phase_sizes, terms
from hybridgen.strategies.parallel_vae import halo, rules, run
from hybridgen.strategies.registry import AXES, Degrees
from tests.support.live_bytes import LiveBytes
from tests.support.ranks import run_ranks
from tests.support.tiny_vae import RESIDUAL, TINY, WAN22_5B, build_vae, config, plan_for, relative_error

TOLERANCE = 1e-5
FAULT = 100 * TOLERANCE


def conditioned(plan: Plan, frames: int) -> Plan:
    """The plan of a request that gives so many frames."""
    return replace(plan, clip=replace(plan.clip, encoded_frames=frames))


def case(vae: WanVae, rows: int, columns: int, frames: int, ranks: int) -> Plan:
    return conditioned(plan_for(vae, rows, columns, 3, Degrees(ulysses=ranks, vae=ranks)), frames)


OUTSIDERS = plan_for(TINY, 5, 4, 3, Degrees(cfg=2, ulysses=2, vae=2), (*AXES[1:], "cfg"))
CASES = {
    2: {
        "uneven rows": case(TINY, 5, 3, 9, 2),
        "odd columns, one frame": case(TINY, 2, 3, 1, 2),
        "one row a rank": case(TINY, 2, 2, 5, 2),
        "Wan 2.2 residual": case(RESIDUAL, 5, 4, 5, 2),
    },
    3: {
        "uneven columns": case(TINY, 4, 8, 9, 3),
        "one row a rank": case(TINY, 3, 2, 5, 3),
        "Wan 2.2 residual columns": case(RESIDUAL, 3, 4, 9, 3),
        "Wan 2.2 residual, one frame": case(RESIDUAL, 4, 3, 1, 3),
    },
    4: {
        "11 rows": case(TINY, 11, 3, 5, 4),
        "one column a rank": case(RESIDUAL, 3, 4, 5, 4),
        "ranks outside, cfg fastest": conditioned(OUTSIDERS, 5),
    },
}
NAMED = [(ranks, name) for ranks, cases in CASES.items() for name in cases]


def pixels_of(plan: Plan) -> Tensor:
    return torch.rand(1, *rules.pixel_shape(plan), generator=torch.Generator().manual_seed(1)) * 2 - 1


def reference(plan: Plan) -> Tensor:
    """What diffusers encodes in one process."""
    with torch.no_grad():
        return cast(Tensor, build_vae(plan.facts.vae).encode(pixels_of(plan)).latent_dist.parameters)


@dataclass
class Encoded:
    """What one rank reports."""

    moments: Tensor | None
    sent: int
    restored: bool


def encode_on(mesh: Mesh, plan: Plan) -> Encoded:
    vae = build_vae(plan.facts.vae)
    model = cast(Wan, SimpleNamespace(vae=WanAutoencoder(vae), device=torch.device("cpu"), slots=SimpleNamespace()))
    run.apply(model, mesh, plan)
    moments = model.slots.encode(pixels_of(plan) if mesh.rank == 0 else None)
    restored = not any("forward" in module.__dict__ for module in vae.modules())
    return Encoded(moments, mesh.traffic.sent["parallel-vae"], restored)


@pytest.fixture(scope="module")
def encoded() -> Callable[[int, str], tuple[Plan, list[Encoded]]]:
    """Every case encoded once; all cases of a number of ranks share one launch."""
    done: dict[int, list[list[Encoded]]] = {}

    def get(ranks: int, name: str) -> tuple[Plan, list[Encoded]]:
        def job(context: RankContext) -> list[Encoded]:
            plans = CASES[ranks].values()
            return [encode_on(build_mesh(plan.layout, context.rank, "cpu"), plan) for plan in plans]

        if ranks not in done:
            done[ranks] = run_ranks(ranks, job)
        return CASES[ranks][name], [reports[list(CASES[ranks]).index(name)] for reports in done[ranks]]

    return get


@pytest.mark.parametrize(("ranks", "name"), NAMED)
def test_strips_equal_one_process(encoded: Any, ranks: int, name: str) -> None:
    plan, (first, *others) = encoded(ranks, name)
    assert relative_error(first.moments, reference(plan)) <= TOLERANCE
    assert all(report.moments is None for report in others)
    assert first.restored and all(report.restored for report in others)


@pytest.mark.parametrize(("ranks", "name"), NAMED)
def test_sends_what_is_declared(encoded: Any, ranks: int, name: str) -> None:
    plan, reports = encoded(ranks, name)
    declared = [[m for m in rules.traffic(plan, rank) if m.phase == "setup"] for rank in range(ranks)]
    assert [report.sent for report in reports] == [sum(m.total for m in messages) for messages in declared]
    assert all(bool(declared[rank]) == (rank in plan.layout.vae_ranks()) for rank in range(ranks))


@pytest.mark.parametrize("frames", [1, 5, 9])
@pytest.mark.parametrize("vae", [TINY, RESIDUAL], ids=["2.1", "2.2"])
def test_one_rank_equals_the_stock_encoder_bit_for_bit(vae: WanVae, frames: int) -> None:
    plan, model = case(vae, 3, 4, frames, 1), build_vae(vae)
    assert torch.equal(WanAutoencoder(model).encode(pixels_of(plan)), reference(plan))
    assert encode_on(Mesh(plan.layout, 0), plan).sent == 0
    assert model._enc_feat_map == [None] * model._enc_conv_num


# Planted faults: each must be seen, by far


def nothing_after(strip: halo.Strip, x: Tensor) -> Tensor:
    return torch.zeros_like(strip.edges(x)[0])


def own_row_after(strip: halo.Strip, x: Tensor) -> Tensor:
    FETCH(strip, x)
    return strip.edges(x)[1]


def frames_late(strip: halo.Strip, x: Tensor) -> tuple[Tensor, Tensor]:
    """The edges of every frame but the first are those of the frame before."""
    before, after = EXCHANGE(strip, x)
    return before.roll(1, 2), after.roll(1, 2)


def own_keys(attention: halo.StripAttention, tokens: Tensor, per_row: int) -> Tensor:
    return tokens


EXCHANGE, FETCH = halo.exchange_halos, halo.fetch_after
FAULTS: dict[str, tuple[Any, str, Any]] = {
    "none": (halo, "fetch_after", FETCH),
    "no row from the next strip": (halo, "fetch_after", nothing_after),
    "own row in its place": (halo, "fetch_after", own_row_after),
    "halo of the wrong frame": (halo, "exchange_halos", frames_late),
    "earlier frames without their halo": (halo, "restore_edges", lambda strip, frames, kept: None),
    "keys and values not gathered": (halo.StripAttention, "gather", own_keys),
}


@pytest.mark.parametrize("vae", [TINY, RESIDUAL], ids=["2.1", "2.2"])
def test_faults_are_caught(vae: WanVae) -> None:
    plan = case(vae, 5, 4, 9, 2)
    expected = reference(plan)

    def job(context: RankContext) -> list[Tensor | None]:
        mesh, found = build_mesh(plan.layout, context.rank, "cpu"), []
        for owner, name, fault in FAULTS.values():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(owner, name, fault)
                found.append(encode_on(mesh, plan).moments)
        return found

    found = cast(list[Tensor], run_ranks(2, job)[0])
    errors = {name: relative_error(moments, expected) for name, moments in zip(FAULTS, found, strict=True)}
    assert errors.pop("none") <= TOLERANCE
    assert min(errors.values()) >= FAULT, errors


def test_only_the_half_that_is_asked_for_is_changed() -> None:
    vae = build_vae(RESIDUAL)
    strip = halo.Strip(Group("parallel-vae", (0, 1), 0, Traffic()), -2, (1, 1))
    with halo.sharded(WanAutoencoder(vae), "encoder", strip):
        changed = [name for name, module in vae.named_modules() if "forward" in module.__dict__]
        assert changed and all(name.startswith("encoder") for name in changed)
    assert not any("forward" in module.__dict__ for module in vae.modules())


# Rules and price


@pytest.mark.parametrize("vae", [WanVae(), WAN22_5B, find("demo").vae], ids=["2.1", "2.2 5B", "demo"])
def test_rules_know_the_encoder(vae: WanVae) -> None:
    with torch.device("meta"):
        encoder = AutoencoderKLWan(**config(vae)).encoder
    convs = [m for m in encoder.modules() if getattr(m, "kernel_size", ())[-2:] == (3, 3)]
    layers = [(x.channels, x.strided) for x in vae.encoder.layers]
    assert sorted((m.in_channels, m.stride[-1] == 2) for m in convs) == sorted(layers)


@pytest.fixture
def no_exchange(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Groups that never communicate, and attention that makes its output and nothing else."""
    monkeypatch.setattr(Group, "swap", lambda self, sends, receives: None)
    monkeypatch.setattr(Group, "all_gather", lambda self, x: x.new_empty(self.size, *x.shape))
    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", lambda q, k, v: torch.empty_like(q))
    yield


@pytest.mark.parametrize(("vae", "ranks"), [(WanVae(), 1), (WAN22_5B, 2)], ids=["2.1 alone", "2.2 on two ranks"])
def test_memory_and_operations_are_those_of_the_encoder(vae: WanVae, ranks: int, no_exchange: None) -> None:
    """Wan's autoencoders in full size at 1280x720, 17 frames, on the meta device."""
    plan = case(vae, 720 // vae.stride_space, 1280 // vae.stride_space, 17, ranks)
    with torch.device("meta"):
        autoencoder = WanAutoencoder(AutoencoderKLWan(**config(vae)).requires_grad_(False))
        pixels = torch.empty(1, *rules.pixel_shape(plan))
    strip = halo.Strip(Group("parallel-vae", tuple(range(ranks)), 0, Traffic()), -1, rules.strip_sizes(plan))
    own = pixels.chunk(ranks, dim=-1)[0]
    with (
        halo.sharded(autoencoder, "encoder", strip),
        LiveBytes([own]) as held,
        FlopCounterMode(display=False) as operations,
    ):
        autoencoder.encode(own)
    declared = sum(term.size for term in rules.memory(plan, 0) if term.phases == ("condition",))
    assert declared == pytest.approx(held.peak, rel=0.05)
    assert price.encoder_flops(plan) / ranks == pytest.approx(operations.get_total_flops(), rel=0.01)


def test_the_planner_does_not_forget_what_is_given() -> None:
    """Its seconds come on top of the clip's, its memory beside weights and VAE, before denoising."""
    plan = plan_for(WanVae(), 90, 160, 21, Degrees(ulysses=8, vae=8))
    given, rack = conditioned(plan, 81), machine("gb200-nvl72")
    assert price.encode_seconds(plan, rack) == 0 < price.encode_seconds(given, rack)
    assert cost(given, rack).clip - cost(plan, rack).clip == pytest.approx(price.encode_seconds(given, rack))
    assert cost(given, rack).denoise == cost(plan, rack).denoise
    widths = [price.encode_seconds(replace(given, degrees=Degrees(ulysses=8, vae=v)), rack) for v in (1, 2, 4, 8)]
    assert widths == sorted(widths, reverse=True) and widths[0] / 8 < widths[-1] < widths[0] / 3
    loaded = sum(t.size for t in terms(given) if t.name in ("weights", "vae"))
    assert phase_sizes(terms(plan))["condition"] == loaded > 0
    more = phase_sizes(terms(given))["condition"] - phase_sizes(terms(plan))["condition"]
    assert more == sum(t.size for t in terms(given) if t.phases == ("condition",)) > 3 * 81 * 1280 * 720 * 4
