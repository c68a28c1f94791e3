"""parallel-vae: strips decode what one process does, send what is declared, and leave the VAE as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d
from torch import Tensor

from hybridgen.distributed.comm import Group, Traffic
from hybridgen.distributed.mesh import Mesh, build_mesh
from hybridgen.distributed.processes import RankContext
from hybridgen.models.autoencoder import to_uint8
from hybridgen.models.catalogue import DEMO_FOLDER, find
from hybridgen.models.wan.denoiser import Wan
from hybridgen.models.wan.vae import WanAutoencoder
from hybridgen.models.wan.vae_facts import WanVae
from hybridgen.plan.plan import Plan
from hybridgen.strategies.parallel_vae import halo, rules, run
from hybridgen.strategies.registry import AXES, Degrees
from tests.support.ranks import run_ranks
from tests.support.tiny_vae import RESIDUAL, TINY, build_vae, noise, plan_for, relative_error

TOLERANCE = 1e-5
FAULT = 100 * TOLERANCE


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As on the ranks; on a busy machine several threads are slower than one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def demo_vae() -> Any:
    return AutoencoderKLWan.from_pretrained(DEMO_FOLDER, subfolder="vae").requires_grad_(False)


def model_of(vae: Any) -> Wan:
    """As much of a model as decoding needs."""
    autoencoder = WanAutoencoder(vae)
    given = {"unnormalise": autoencoder.unnormalise, "slots": SimpleNamespace()}
    return cast(Wan, SimpleNamespace(vae=autoencoder, **given))


@dataclass
class Decoded:
    """What one rank reports."""

    pixels: Tensor | None
    frames: Tensor | None
    sent: int
    restored: bool


def decode_on(mesh: Mesh, plan: Plan, vae: Any) -> Decoded:
    """Decode through the public function, keeping this rank's pixels as they were before rounding."""
    model, pixels = model_of(vae), []
    before = {name: module.__dict__.get("forward") for name, module in vae.named_modules()}

    def keep(x: Tensor) -> Tensor:
        pixels.append(x)
        return to_uint8(x)

    run.to_uint8 = keep  # type: ignore  # a forked rank's own module
    run.apply(model, mesh, plan)
    chunks = list(model.slots.decode(noise(plan) if mesh.rank == 0 else None))
    assert all((chunk is None) == (mesh.rank != 0) for chunk in chunks)
    frames = torch.cat([chunk for chunk in chunks if chunk is not None]) if mesh.rank == 0 else None
    after = {name: module.__dict__.get("forward") for name, module in vae.named_modules()}
    joined = torch.cat(pixels, dim=2) if pixels else None
    return Decoded(joined, frames, mesh.traffic.sent["parallel-vae"], before == after)


def decode_all(cases: list[tuple[Plan, Any]]) -> list[list[Decoded]]:
    """Decode every case on the ranks of its plan (as many in all cases); per case, what each rank reports."""

    def job(context: RankContext) -> list[Decoded]:
        return [decode_on(build_mesh(plan.layout, context.rank, "cpu"), plan, vae) for plan, vae in cases]

    return list(map(list, zip(*run_ranks(cases[0][0].world_size, job), strict=True)))


def whole(plan: Plan, decoded: list[Decoded]) -> Tensor:
    """The strips put together."""
    strips = [decoded[rank].pixels for rank in plan.layout.vae_ranks()]
    return torch.cat([strip for strip in strips if strip is not None], dim=rules.split_dim(plan))


def reference(plan: Plan, vae: Any) -> Tensor:
    return cast(Tensor, vae.decode(WanAutoencoder(vae).unnormalise(noise(plan))).sample)


def split(ranks: int) -> Degrees:
    return Degrees(ulysses=ranks, vae=ranks)


OUTSIDERS = Degrees(cfg=2, ulysses=2, vae=2)
CASES = {
    2: {
        "even rows": plan_for(TINY, 8, 6, 3, split(2)),
        "odd columns": plan_for(TINY, 5, 7, 3, split(2)),
        "one row a rank": plan_for(TINY, 2, 2, 2, split(2)),
        "Wan 2.2 residual": plan_for(RESIDUAL, 5, 4, 3, split(2)),
        "demo": plan_for(find("demo").vae, 8, 8, 3, split(2)),
    },
    3: {
        "uneven rows": plan_for(TINY, 7, 5, 4, split(3)),
        "uneven columns": plan_for(TINY, 4, 8, 2, split(3)),
        "one row a rank": plan_for(TINY, 3, 2, 3, split(3)),
        "Wan 2.2 residual columns": plan_for(RESIDUAL, 3, 4, 3, split(3)),
        "one latent frame": plan_for(TINY, 4, 3, 1, split(3)),
    },
    4: {
        "11 rows": plan_for(TINY, 11, 8, 2, split(4)),
        "one column a rank": plan_for(TINY, 3, 4, 2, split(4)),
        "demo": plan_for(find("demo").vae, 9, 8, 2, split(4)),
        "ranks outside": plan_for(TINY, 5, 4, 2, OUTSIDERS),
        "ranks outside, cfg fastest": plan_for(TINY, 5, 4, 2, OUTSIDERS, (*AXES[1:], "cfg")),
        "whole world over cfg": plan_for(TINY, 4, 5, 2, OUTSIDERS.changed(vae=4), (*AXES[1:], "cfg")),
    },
}
NAMED = [(ranks, name) for ranks, cases in CASES.items() for name in cases]


def vae_of(name: str, plan: Plan) -> Any:
    return demo_vae() if name == "demo" else build_vae(plan.facts.vae)


@pytest.fixture(scope="module")
def decoded() -> Callable[[int, str], tuple[Plan, Any, list[Decoded]]]:
    """Every case decoded once; all cases of a number of ranks share one launch."""
    done: dict[int, dict[str, tuple[Plan, Any, list[Decoded]]]] = {}

    def get(ranks: int, name: str) -> tuple[Plan, Any, list[Decoded]]:
        if ranks not in done:
            cases = [(plan, vae_of(name, plan)) for name, plan in CASES[ranks].items()]
            results = zip(CASES[ranks], cases, decode_all(cases), strict=True)
            done[ranks] = {name: (*case, result) for name, case, result in results}
        return done[ranks][name]

    return get


@pytest.mark.parametrize(("ranks", "name"), NAMED)
def test_strips_equal_one_process(decoded: Any, ranks: int, name: str) -> None:
    plan, vae, result = decoded(ranks, name)
    expected = reference(plan, vae)
    assert relative_error(whole(plan, result), expected) <= TOLERANCE
    assert float((expected.abs() < 1).float().mean()) > 0.9, "clamped pixels compare nothing"
    frames = result[0].frames
    assert frames.dtype == torch.uint8
    assert int((frames.int() - to_uint8(expected).int()).abs().max()) <= 1


@pytest.mark.parametrize(("ranks", "name"), NAMED)
def test_sends_what_is_declared(decoded: Any, ranks: int, name: str) -> None:
    plan, _, result = decoded(ranks, name)
    declared = [sum(m.total for m in rules.traffic(plan, rank)) for rank in range(plan.world_size)]
    assert [report.sent for report in result] == declared
    assert all((declared[rank] > 0) == (rank in plan.layout.vae_ranks()) for rank in range(plan.world_size))


@pytest.mark.parametrize(("ranks", "name"), NAMED)
def test_vae_is_as_before(decoded: Any, ranks: int, name: str) -> None:
    assert all(report.restored for report in decoded(ranks, name)[2])


@pytest.mark.parametrize("vae", [TINY, RESIDUAL], ids=["2.1", "2.2"])
def test_stream_equals_whole_decode_bit_for_bit(vae: WanVae) -> None:
    plan, model = plan_for(vae, 4, 3, 4, Degrees()), build_vae(vae)
    autoencoder = WanAutoencoder(model)
    chunks = list(autoencoder.decode(autoencoder.unnormalise(noise(plan))))
    assert [chunk.shape[2] for chunk in chunks] == [1, 4, 4, 4]
    assert torch.equal(torch.cat(chunks, dim=2), reference(plan, model))


def test_one_rank_takes_the_same_path_with_nothing_replaced() -> None:
    plan, vae = plan_for(TINY, 4, 3, 3, Degrees()), build_vae(TINY)
    model = model_of(vae)
    run.apply(model, Mesh(plan.layout, 0), plan)
    stream = cast(Iterator[Tensor], model.slots.decode(noise(plan)))
    frames = [next(stream)]
    assert not any("forward" in module.__dict__ for module in vae.modules())
    frames += stream
    assert torch.equal(torch.cat(frames), to_uint8(reference(plan, vae)))


def test_uint8_frames_equal_the_stock_postprocessing() -> None:
    from diffusers.video_processor import VideoProcessor

    pixels = torch.linspace(-1.2, 1.2, 3 * 2 * 40 * 24).reshape(1, 3, 2, 40, 24)
    stock = torch.from_numpy(VideoProcessor().postprocess_video(pixels, output_type="np")[0])
    assert torch.equal(to_uint8(pixels), (stock * 255).round().to(torch.uint8))


# Planted faults: each must be seen, by far


def halos_swapped(strip: halo.Strip, x: Tensor) -> tuple[Tensor, Tensor]:
    before, after = EXCHANGE(strip, x)
    return after, before


def no_halos(strip: halo.Strip, x: Tensor) -> tuple[Tensor, Tensor]:
    first, last = strip.edges(x)
    return torch.zeros_like(first), torch.zeros_like(last)


def forget_halos(strip: halo.Strip, frames: Tensor, kept: tuple[Tensor, Tensor]) -> None:
    pass


def attend_padding(shards: Tensor, lengths: list[int]) -> Tensor:
    return shards.transpose(0, 1).flatten(1, 2)


EXCHANGE = halo.exchange_halos
FAULTS: dict[str, tuple[str, Any]] = {
    "halo from the wrong side": ("exchange_halos", halos_swapped),
    "no exchange": ("exchange_halos", no_halos),
    "earlier frames without their halo": ("restore_edges", forget_halos),
    "padded keys attended": ("drop_padding", attend_padding),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, vae = plan_for(TINY, 7, 5, 3, split(3)), build_vae(TINY)
    monkeypatch.setattr(halo, *FAULTS[fault])
    (result,) = decode_all([(plan, vae)])
    assert relative_error(whole(plan, result), reference(plan, vae)) >= FAULT


# What is changed is undone, and no class is touched


def lone_strip(ranks: int) -> halo.Strip:
    """A strip of a group that never communicates."""
    return halo.Strip(Group("parallel-vae", tuple(range(ranks)), 0, Traffic()), -2, (1,) * ranks)


def test_only_this_instance_is_changed_and_gets_its_own_forward_back() -> None:
    vae, other, stock = build_vae(TINY), build_vae(TINY), WanCausalConv3d.forward
    hooked = vae.decoder.conv_in
    hooked.forward = mine = lambda x, cache_x=None: x
    with halo.sharded(WanAutoencoder(vae), "decoder", lone_strip(2)):
        changed = [name for name, module in vae.named_modules() if "forward" in module.__dict__]
        assert WanCausalConv3d.forward is stock
        assert not any("forward" in module.__dict__ for module in other.modules())
        assert not any(name.startswith("encoder") for name in changed)
        assert hooked.forward is not mine
    assert [m for m in vae.modules() if "forward" in m.__dict__] == [hooked] and hooked.forward is mine


def test_an_abandoned_stream_leaves_the_vae_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, vae = plan_for(TINY, 4, 3, 3, split(2)), build_vae(TINY)
    monkeypatch.setattr(Group, "swap", lambda self, sends, receives: [x.zero_() for x in receives.values()])
    monkeypatch.setattr(Group, "all_gather", lambda self, x: torch.stack([x, x]))
    model = model_of(vae)
    run.apply(model, Mesh(plan.layout, 0), plan)
    stream = cast(Any, model.slots.decode(noise(plan)))
    next(stream)
    assert any("forward" in module.__dict__ for module in vae.modules())
    stream.close()
    assert not any("forward" in module.__dict__ for module in vae.modules())
    assert vae._feat_map == [None] * vae._conv_num
