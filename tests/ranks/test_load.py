"""A rank reads what it runs, and reads it as from_pretrained does."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hybridgen.distributed import peak_memory
from hybridgen.distributed.mesh import Mesh
from hybridgen.distributed.processes import RankContext
from hybridgen.distributed.sequence import Shard
from hybridgen.errors import RequestError
from hybridgen.models import catalogue
from hybridgen.models.load import EXPERTS, Part, empty_experts, fill, load_scheduler, local_folder
from hybridgen.models.wan import random as wan_random
from hybridgen.models.wan.denoiser import Wan
from hybridgen.models.wan.facts import WanTransformer
from hybridgen.plan.plan import FP32, Clip, Plan
from hybridgen.recipe import library
from hybridgen.recipe.compose import compose
from hybridgen.recipe.fields import Checkpoint
from hybridgen.recipe.resolve import resolve
from hybridgen.strategies import registry
from hybridgen.strategies.registry import Degrees
from tests.support.ranks import run_ranks
from tests.support.tiny import tiny_job

CPU = torch.device("cpu")


def demo_plan(degrees: Degrees = Degrees(), dtype: str = "float32") -> Plan:
    return Plan(catalogue.find("demo"), Clip(64, 64, 17, 20, 3.0), degrees, dtype=dtype).with_options(warmup=20)


def loaded(plan: Plan, rank: int = 0, folder: Path = catalogue.DEMO_FOLDER) -> Wan:
    """This rank's part of the demo, without a process group: loading talks to nobody."""
    shard = Shard(plan.tokens, plan.layout.sequence_index(rank))
    model = Wan(plan, empty_experts(plan, folder), load_scheduler(folder), tiny_job(plan).kernel, shard)
    for strategy in registry.active(plan):
        if strategy.name in ("tp", "pipefusion"):
            strategy.apply(model, Mesh(plan.layout, rank), plan)
    fill(model.experts, plan, folder, CPU)
    return model


def stock(name: str, dtype: str, folder: Path = catalogue.DEMO_FOLDER) -> dict[str, torch.Tensor]:
    from diffusers import WanTransformer3DModel

    model = WanTransformer3DModel.from_pretrained(folder, subfolder=name, dtype=getattr(torch, dtype))
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_rank_loads_what_from_pretrained_loads(dtype: str) -> None:
    model = loaded(demo_plan(dtype=dtype))
    for name, expert in zip(EXPERTS, model.experts, strict=True):
        found = {**dict(expert.named_parameters()), **dict(expert.named_buffers())}
        wanted = stock(name, dtype)
        assert found.keys() == wanted.keys()
        for key in wanted:
            assert found[key].dtype == wanted[key].dtype and torch.equal(found[key], wanted[key]), key


def test_a_checkpoint_in_several_files_is_read_through_its_index(tmp_path: Path) -> None:
    from diffusers import WanTransformer3DModel

    for name in EXPERTS:
        whole = WanTransformer3DModel.from_pretrained(catalogue.DEMO_FOLDER, subfolder=name)
        whole.save_pretrained(tmp_path / name, max_shard_size="1MB")
    assert len(list((tmp_path / "transformer").glob("*.safetensors"))) > 2
    (tmp_path / "scheduler").symlink_to(catalogue.DEMO_FOLDER / "scheduler")
    (tmp_path / "model_index.json").symlink_to(catalogue.DEMO_FOLDER / "model_index.json")
    model = loaded(demo_plan(Degrees(tp=2)), 1, tmp_path)
    weight = stock("transformer", "float32")["blocks.1.attn1.to_q.weight"]
    assert torch.equal(model.experts[0].blocks[1].attn1.to_q.weight, weight[64:])


def test_tp_ranks_together_hold_the_model_once() -> None:
    parts = [dict(loaded(demo_plan(Degrees(tp=2)), rank).experts[1].named_parameters()) for rank in range(2)]
    for key, whole in stock("transformer_2", "float32").items():
        if key not in parts[0]:
            continue  # a buffer
        a, b = parts[0][key], parts[1][key]
        if a.shape == whole.shape:
            assert torch.equal(a, whole) and torch.equal(b, whole), key
        else:
            dim = next(d for d in range(whole.dim()) if a.shape[d] != whole.shape[d])
            assert torch.equal(torch.cat([a, b], dim), whole), key


@pytest.mark.parametrize("degrees", [Degrees(tp=4), Degrees(pipefusion=4), Degrees(tp=2, pipefusion=2)], ids=str)
def test_no_rank_reads_more_than_its_share(degrees: Degrees, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are shared out; what is left of the model is read by every rank."""
    from hybridgen.models.load import _Weights

    read, counted = _Weights.read, [0]

    def counting(self: Any, key: str, part: Part | None) -> torch.Tensor:
        value = read(self, key, part)
        counted[0] += value.numel()
        return value

    monkeypatch.setattr(_Weights, "read", counting)
    plan = demo_plan(degrees)
    model = loaded(plan, plan.world_size - 1)
    facts = plan.facts.transformer
    blocks, rest = facts.layers * facts.block_params, facts.params - facts.layers * facts.block_params
    assert counted[0] == sum(p.numel() for expert in model.experts for p in expert.parameters())
    assert counted[0] <= 2 * (1.02 * blocks / plan.world_size + rest)


MID_SIZE = WanTransformer(layers=8, heads=8, head_dim=96, ffn=3072, text_dim=64)  # 308 MB in fp32


@pytest.fixture(scope="module")
def mid_size(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of one expert in bf16, in several files; what is read is copied to fp32 by whoever loads it."""
    folder = tmp_path_factory.mktemp("mid-size")
    wan_random.transformer(MID_SIZE).bfloat16().save_pretrained(folder / "transformer", max_shard_size="50MB")
    os.sync()  # pages of a mapped file that are not on disk yet would count as written by who reads them
    (folder / "scheduler").symlink_to(catalogue.DEMO_FOLDER / "scheduler")
    (folder / "model_index.json").symlink_to(catalogue.DEMO_FOLDER / "model_index.json")
    return folder


def load_peaks(plan: Plan, folder: Path, load: Callable[..., Wan]) -> list[tuple[int, int]]:
    """(peak of private memory while loading, bytes of its parameters) of every rank, loading all at once."""

    def measure(context: RankContext) -> tuple[int, int]:
        load(demo_plan(), 0)  # what a first load imports and touches is no weight
        gc.collect()
        peak_memory.SECONDS, peak_memory.SHARE = 0.002, 0.5
        watch = peak_memory.PeakMemory(CPU)
        model = load(plan, context.rank, folder)
        watch.sample(mapped=True)
        return watch.close(), sum(p.numel() * p.element_size() for p in model.experts[0].parameters())

    return run_ranks(plan.world_size, measure, group=False, kept=False)


def mid_size_plan(degrees: Degrees) -> Plan:
    facts = replace(catalogue.find("demo"), transformer=MID_SIZE, experts=1, boundary=None)
    return replace(demo_plan(degrees), facts=facts)


@pytest.mark.parametrize("degrees", [Degrees(tp=4), Degrees(pipefusion=4), Degrees(tp=2, pipefusion=2)], ids=str)
def test_the_peak_of_loading_is_the_share(degrees: Degrees, mid_size: Path) -> None:
    """At most 1.2 times what the rank keeps, and one block."""
    plan = mid_size_plan(degrees)
    whole, block = MID_SIZE.params * FP32, MID_SIZE.block_params * FP32
    for peak, share in load_peaks(plan, mid_size, loaded):
        assert share < whole / 3
        assert 0.9 * share <= peak <= 1.2 * share + block


def test_loading_the_whole_model_first_is_seen(mid_size: Path) -> None:
    """Or the test above would prove nothing."""

    def greedy(plan: Plan, rank: int = 0, folder: Path = catalogue.DEMO_FOLDER) -> Wan:
        everything = loaded(replace(plan, degrees=Degrees()), 0, folder)
        model = loaded(plan, rank, folder)
        del everything
        return model

    plan = mid_size_plan(Degrees(tp=2))
    for peak, share in load_peaks(plan, mid_size, greedy):
        assert peak > 1.2 * share + MID_SIZE.block_params * FP32


def test_the_revision_is_what_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def download(source: str, revision: str | None, **_: Any) -> str:
        asked.append((source, revision))
        return str(catalogue.DEMO_FOLDER)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    file = library.located(Path("wan22-t2v-720p-1gpu"))
    recipe = compose(file, [], {})
    with pytest.raises(RequestError, match="another shape than wan2.2-t2v-a14b"):
        local_folder(resolve(recipe).facts)
    assert asked == [("Wan-AI/Wan2.2-T2V-A14B-Diffusers", recipe.checkpoint.revision)]
    assert compose(file, [], {"revision": "ab"}).checkpoint == Checkpoint("ab", "Apache-2.0")
    assert compose(file, [], {"model": "wan2.1"}).checkpoint == Checkpoint()
    assert compose(file, ["model=wan2.1"], {"revision": "ab"}).checkpoint == Checkpoint("ab")
