"""PipeFusion with stale K/V is what a simulation in one process says, on any number of stages and beside anything."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hybridgen.distributed.sequence import patchify, unpatchify
from hybridgen.errors import RunFailed
from hybridgen.models.slots import Pass
from hybridgen.plan.plan import Clip
from hybridgen.recipe.compose import compose
from hybridgen.recipe.resolve import resolve
from hybridgen.strategies.pipefusion import rules
from hybridgen.strategies.pipefusion.run import Buffers, Pipeline
from hybridgen.strategies.registry import AXES, Degrees
from tests.support import matrix
from tests.support.patchwise import Key, Remembering
from tests.support.tiny import (
    FACTS,
    SEED,
    TRANSFORMER,
    experts,
    prompt_embeds,
    run_plan,
    scheduler,
    stock_latents,
    tiny_job,
    tiny_plan,
)

LIMIT = 1e-5
CLIP = Clip(64, 64, 17, 7, 4.0, 3.0)  # 80 tokens
UNEVEN = Clip(48, 80, 5, 7, 4.0, 3.0)  # 30 tokens


def forward(expert: Any, tokens: Tensor, time: Tensor, branch: int, span: slice, shape: Any) -> Tensor:
    """One pass of tokens [1, n, C] that stand at `span` of the sequence; diffusers' modules, called one by one."""
    cos, sin = expert.rope(torch.empty(1, *shape, device="meta"))
    conv, embedder = expert.patch_embedding, expert.condition_embedder
    hidden = F.linear(tokens, conv.weight.permute(0, 2, 3, 4, 1).flatten(1), conv.bias)
    temb, modulation, text, _ = embedder(time.expand(1), prompt_embeds()[branch])
    for block in expert.blocks:
        block.attn1.processor.branch, block.attn1.processor.span = branch, span
        hidden = block(hidden, text, modulation.unflatten(1, (6, -1)), (cos[:, span], sin[:, span]))
    shift, scale = (expert.scale_shift_table + temb.unsqueeze(1)).chunk(2, dim=1)
    return expert.proj_out(expert.norm_out(hidden) * (1 + scale) + shift)  # type: ignore[no-any-return]


@lru_cache
@torch.no_grad()
def simulated(clip: Clip, patch_size: int, warmup: int, layers: int = TRANSFORMER.layers) -> Tensor:
    """The final latents of PipeFusion in one process, patches of so many tokens."""
    shape = FACTS.latent_shape(clip.width, clip.height, clip.frames)
    x = patchify(torch.randn((1, *shape), generator=torch.Generator().manual_seed(SEED)), TRANSFORMER.patch)
    models, kept = copy.deepcopy(experts(layers=layers)), dict[Key, tuple[Tensor, Tensor]]()
    for model in models:
        for layer, block in enumerate(model.blocks):
            block.attn1.set_processor(Remembering(kept, layer))
    spans = [slice(start, min(start + patch_size, x.shape[1])) for start in range(0, x.shape[1], patch_size)]
    steppers = [scheduler() for _ in spans]
    for stepper in steppers:
        stepper.set_timesteps(clip.steps)
        stepper.set_begin_index(0)
    sync, last = 0, -1
    for time in steppers[0].timesteps:
        which = 0 if time >= 875 else 1
        if which != last:
            last, sync = which, max(warmup, 1)
        rounds = [slice(None)] if sync else spans
        sync = max(sync - 1, 0)
        for span in rounds:
            cond, uncond = (forward(models[which], x[:, span], time, b, span, shape) for b in (0, 1))
            prediction = uncond + clip.guidances[which] * (cond - uncond)
            for stepper, own in zip(steppers, spans, strict=True):
                if span == slice(None) or span == own:
                    part = prediction[:, own] if span == slice(None) else prediction
                    x[:, own] = stepper.step(part, time, x[:, own].clone(), return_dict=False)[0]
    return unpatchify(x, shape, TRANSFORMER.patch)


STALE = [
    (Degrees(pipefusion=2), 2, 1),
    (Degrees(pipefusion=2), 4, 1),
    (Degrees(pipefusion=2), 3, 2),
    (Degrees(pipefusion=2, attn2d=(1, 2)), 4, 1),
    (Degrees(pipefusion=2, tp=2), 4, 1),
]
COMPOSED = [(degrees, 2, 1) for degrees in matrix.LEGAL + matrix.TRIPLES + matrix.FULL if degrees.pipefusion > 1]
CASES = [(*case, clip) for case in STALE for clip in (CLIP, UNEVEN)]
CASES += [(*case, UNEVEN if case[0].world > 2 else CLIP) for case in COMPOSED]


@pytest.mark.parametrize(("degrees", "patches", "warmup", "clip"), CASES, ids=str)
def test_stale_steps_equal_the_simulation(degrees: Degrees, patches: int, warmup: int, clip: Clip) -> None:
    plan = tiny_plan(degrees, clip, patches=patches, warmup=warmup)
    assert not plan.exact
    outcome = run_plan(plan)
    assert outcome.error(simulated(clip, plan.tokens.patch_size, warmup)) <= LIMIT
    assert outcome.sent == outcome.declared


DEEP = replace(FACTS, transformer=replace(TRANSFORMER, layers=4))


@pytest.mark.parametrize(
    ("stages", "degrees"),
    [
        ((1, 1, 1, 1), Degrees(pipefusion=4)),
        ((1, 2, 1), Degrees(pipefusion=3)),
        ((3, 1), Degrees(pipefusion=2, tp=2, ulysses=2)),
        ((1, 3), Degrees(pipefusion=2, attn2d=(2, 2))),
        ((3, 1), Degrees(pipefusion=2, ring=2)),
    ],
    ids=str,
)
def test_stages_of_any_size(stages: tuple[int, ...], degrees: Degrees) -> None:
    plan = tiny_plan(degrees, CLIP, facts=DEEP, warmup=1, patches=4, stages=stages)
    outcome = run_plan(plan)
    assert outcome.error(simulated(CLIP, plan.tokens.patch_size, 1, layers=4)) <= LIMIT
    assert outcome.sent == outcome.declared
    assert [len(plan.blocks(plan.layout.rank({"pipefusion": stage}))) for stage in range(len(stages))] == list(stages)


@pytest.mark.parametrize("order", [("tp", "ulysses", "pipefusion"), ("pipefusion", "ulysses", "tp")], ids=",".join)
def test_any_mesh_order_is_the_same(order: tuple[str, ...]) -> None:
    rest = tuple(axis for axis in AXES if axis not in order)
    plan = tiny_plan(Degrees(pipefusion=2, tp=2, ulysses=2), CLIP, patches=2, warmup=1, order=order + rest)
    outcome = run_plan(plan)
    assert outcome.error(simulated(CLIP, plan.tokens.patch_size, 1)) <= LIMIT
    assert outcome.sent == outcome.declared


def test_what_is_exact_says_so() -> None:
    def exact(patches: int, warmup: int) -> bool:
        return tiny_plan(Degrees(pipefusion=2), CLIP, patches=patches, warmup=warmup).exact

    assert exact(2, CLIP.steps) and not exact(2, CLIP.steps - 1) and exact(1, 1)
    assert run_plan(tiny_plan(Degrees(pipefusion=2), CLIP, patches=1, warmup=1)).error(stock_latents(CLIP)) <= LIMIT
    assert tiny_plan(Degrees(ulysses=2), warmup=0).exact


@pytest.mark.parametrize(("flags", "word"), [({}, "approximate"), ({"warmup": 20}, "exact"), ({"patches": 1}, "exact")])
def test_approximate_is_said_wherever_a_plan_is_shown(flags: dict[str, int], word: str, capsys: Any) -> None:
    from hybridgen.cli.main import call
    from hybridgen.cli.run import summary

    words = ["--model", "demo", "--pipefusion", "2"]
    words += [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    assert call(["run", *words, "--dry-run"]) == 0
    page = capsys.readouterr().out
    assert f"plan    pipefusion2     2 ranks     {word}\n" in page
    assert call(["plan", *words, "--hardware", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["candidates"][0]["exact"] is (word == "exact")
    assert call(["plan", *words, "--hardware", "cpu"]) == 0
    assert ("approximate" in capsys.readouterr().out) == (word != "exact")
    plan = resolve(compose(None, [], {"model": "demo", "pipefusion": 2, **flags}))
    report = tiny_job(plan).report({}, [], [{"traffic": {}, "memory": 1}], "")
    patches, warmup = flags.get("patches", 2), flags.get("warmup", 1)
    assert report.plan.exact is (word == "exact")
    assert report.plan.stages == (2, 2) and report.plan.options == {"patches": patches, "warmup": warmup}
    assert any("approximate" in line for line in summary(report, 6.0, "")) == (word != "exact")


def test_buffers_take_the_memory_that_is_declared() -> None:
    """Of every branch and layer of the stage, for the heads and keys that the rank attends to."""
    for degrees in (
        Degrees(pipefusion=2),
        Degrees(pipefusion=2, tp=2, attn2d=(1, 2)),
        Degrees(pipefusion=2, ulysses=2),
    ):
        plan = tiny_plan(degrees, CLIP, facts=DEEP, warmup=1, patches=2, stages=(3, 1))
        for stage, layers in enumerate(plan.stages):
            terms = {term.name: term.size for term in rules.memory(plan, plan.layout.rank({"pipefusion": stage}))}
            keys = plan.tokens.padded // degrees.attn2d[1]
            heads = TRANSFORMER.heads // degrees.tp // degrees.ulysses
            assert terms.pop("K/V buffers") == 2 * layers * 2 * keys * heads * TRANSFORMER.head_dim * plan.itemsize
            (on_their_way,) = terms.values()
            assert on_their_way == 2 * plan.tokens.local_size * (TRANSFORMER.prediction_channels if stage else 128) * 4


def test_no_more_hidden_states_are_on_their_way_than_declared() -> None:
    """The oldest is waited for as soon as more than all patches twice would be on their way."""
    plan = tiny_plan(Degrees(pipefusion=2), CLIP, facts=DEEP, warmup=2, patches=4)
    model = SimpleNamespace(scheduler=None)
    pipeline = Pipeline(model, plan, *[SimpleNamespace(rank=0, size=2)] * 2)  # type: ignore[arg-type]
    arrived: list[int] = []
    seen = []
    for index, patches in enumerate([4, 4, 4, 1, 1, 1, 1, 1]):
        pipeline.sent(patches, partial(arrived.append, index))
        seen.append(len(arrived))
    assert arrived == [0, 1, 2] and seen == [0, 0, 1, 2, 2, 2, 2, 3]


def test_staleness_is_real() -> None:
    """One patch is exact; more are not, or the tests above would prove nothing."""
    exact = stock_latents(CLIP)
    errors = [
        ((simulated(CLIP, size, warmup) - exact).norm() / exact.norm()).item() for size, warmup in ((80, 1), (40, 1))
    ]
    assert errors[0] <= LIMIT and errors[1] >= 100 * LIMIT


def stale_before_warm_up(patch: pytest.MonkeyPatch) -> None:
    """The second expert reads the first one's buffers."""
    predict = Pipeline.predict

    def never_again(self: Pipeline, x: Tensor, step: Any) -> list[Tensor]:
        if step.index:
            self.expert = step.expert
        return predict(self, x, step)

    patch.setattr(Pipeline, "predict", never_again)


def patches_swapped(patch: pytest.MonkeyPatch) -> None:
    remember = Buffers.remember

    def other(self: Buffers, k: Tensor, v: Tensor, blocks: Any, now: Pass) -> tuple[Tensor, Tensor]:
        patch = None if now.patch is None else self.patches - 1 - now.patch
        return remember(self, k, v, blocks, replace(now, patch=patch))

    patch.setattr(Buffers, "remember", other)


def buffer_of_the_other_branch(patch: pytest.MonkeyPatch) -> None:
    remember = Buffers.remember

    def one_for_both(self: Buffers, k: Tensor, v: Tensor, blocks: Any, now: Pass) -> tuple[Tensor, Tensor]:
        return remember(self, k, v, blocks, replace(now, branch=0))

    patch.setattr(Buffers, "remember", one_for_both)


def one_scheduler_for_all_patches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(copy, "deepcopy", lambda x: x)


@pytest.mark.parametrize(
    "plant", [stale_before_warm_up, patches_swapped, buffer_of_the_other_branch, one_scheduler_for_all_patches]
)
def test_a_fault_is_seen(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tiny_plan(Degrees(pipefusion=2), CLIP, patches=2, warmup=1)
    reference = simulated(CLIP, plan.tokens.patch_size, 1)
    plant(monkeypatch)
    try:
        found = run_plan(plan).error(reference)
    except RunFailed:
        return  # it failed outright, which is seen, too
    assert found >= 100 * LIMIT
