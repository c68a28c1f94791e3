"""Cosmos 3 on ranks is diffusers' Cosmos3OmniPipeline in one process: text read once, GQA, padding, a first picture."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from hybridgen.distributed.sequence import Shard
from hybridgen.errors import RequestError
from hybridgen.models.autoencoder import to_uint8
from hybridgen.models.checkpoint import from_folder
from hybridgen.models.cosmos3.denoiser import Cosmos3
from hybridgen.models.files import Folder
from hybridgen.models.load import empty_experts, fill, load_scheduler
from hybridgen.models.slots import Pass, Step
from hybridgen.models.wan.vae import WanAutoencoder
from hybridgen.plan.kernels import select
from hybridgen.planner.price.memory import terms
from hybridgen.recipe.clip import clip_of
from hybridgen.recipe.fields import Request
from hybridgen.strategies import registry
from hybridgen.strategies.pipefusion.run import Buffers
from hybridgen.strategies.registry import Degrees
from tests.support import checkpoints, matrix, stock
from tests.support.checkpoints import LAYERS, SEED, Case, run_case, stock_latents

LIMIT = 1e-5

HARD = Case("cosmos3", images=1, size="48x144", frames=9, steps=2, changes=LAYERS)
"""3 x 9 x 3 latent cells: padded to 2 x 5 x 3 = 30 tokens, of which 10 are a given frame's; two K/V heads."""
TEXT = Case("cosmos3", size="48x80", frames=9, steps=3, changes=LAYERS)
IMAGE = Case("cosmos3", size="80x48", frames=1, steps=2, changes=LAYERS)
STOCK = [
    TEXT,
    IMAGE,
    HARD,
    replace(TEXT, size="64x64", guidance=0.5),
    replace(TEXT, guidance=1.0, index=(("use_native_flow_schedule", True), ("default_use_system_prompt", False))),
    replace(
        IMAGE,
        changes=(*LAYERS, ("hidden_act", "relu2"), ("qk_norm_for_text", False), ("use_und_k_norm_for_gen", True)),
    ),
]


@pytest.mark.parametrize("case", STOCK, ids=str)
def test_one_rank_is_the_stock_pipeline_bit_for_bit(case: Case) -> None:
    assert torch.equal(run_case(case, case.plan()).latents, stock_latents(case))


def test_bfloat16_is_the_stock_pipeline_bit_for_bit() -> None:
    assert torch.equal(run_case(TEXT, TEXT.plan(dtype="bfloat16")).latents, stock_latents(TEXT, "bfloat16"))


@pytest.mark.parametrize("degrees", [Degrees(attn2d=(1, 2)), Degrees(pipefusion=2, tp=2)], ids=str)
def test_bfloat16_is_no_less_exact_than_one_process(degrees: Degrees) -> None:
    exact = stock_latents(TEXT)
    alone = ((stock_latents(TEXT, "bfloat16") - exact).norm() / exact.norm()).item()
    assert run_case(TEXT, TEXT.plan(degrees, dtype="bfloat16")).error(exact) <= 1.5 * alone


LISTED = dict.fromkeys([*matrix.PARTS.values(), Degrees(ulysses=4), Degrees(ring=3), *matrix.LEGAL])
ONCE = [d for d in LISTED if not registry.violations(HARD.plan(d))]  # all but tp 4: there are two K/V heads
MORE = [
    (TEXT, Degrees(cfg=2, attn2d=(2, 2))),
    (TEXT, Degrees(cfg=2, pipefusion=2, tp=2)),
    (TEXT, Degrees(pipefusion=2, ulysses=2, attn2d=(1, 2))),
    (TEXT, Degrees(ulysses=4, ring=2)),
    (IMAGE, Degrees(tp=2, ulysses=2, ring=2)),
    (IMAGE, Degrees(pipefusion=2, vae=2)),
    (replace(TEXT, guidance=0.5), Degrees(cfg=2)),
    (replace(TEXT, changes=(*LAYERS, ("kv_heads", 4))), Degrees(tp=4)),
]


@pytest.mark.parametrize(("case", "degrees"), [*((HARD, degrees) for degrees in ONCE), *MORE], ids=str)
def test_equals_one_process_and_sends_what_is_declared(case: Case, degrees: Degrees) -> None:
    outcome = run_case(case, case.plan(degrees))
    assert outcome.error(stock_latents(case)) <= LIMIT
    assert outcome.sent == outcome.declared


def decoded(case: Case) -> Tensor:
    """The stock latents as one process decodes them, uint8 [T, H, W, 3]."""
    vae = stock.load(case.folder).vae
    with torch.no_grad():
        return to_uint8(vae.decode(WanAutoencoder(vae).unnormalise(stock_latents(case))).sample)


def test_the_published_composition_on_72_ranks() -> None:
    """TensorRT-LLM's for Cosmos3-Super on GB200 NVL72: 64 query heads, 8 K/V heads."""
    shape = (*LAYERS, ("heads", 64), ("kv_heads", 8), ("head_dim", 8))
    case = Case("cosmos3", size="224x144", frames=5, steps=2, changes=shape)  # 70 tokens over 36 ranks
    outcome = run_case(case, case.plan(Degrees(cfg=2, ulysses=4, attn2d=(3, 3), vae=8)))
    assert outcome.error(stock_latents(case)) <= LIMIT
    assert outcome.sent == outcome.declared and len(outcome.sent) == 72
    assert outcome.frames is not None and (outcome.frames.int() - decoded(case).int()).abs().max() <= 1


# PipeFusion with stale K/V


def empty(case: Case, **fields: Any) -> Cosmos3:
    """The whole model in this process, without weights."""
    plan = case.plan(**fields)
    kernel = select("sdpa", "cpu", plan.dtype, plan.facts.transformer.head_dim, False)
    one = Shard(replace(plan.tokens, shards=1), 0)
    return Cosmos3(plan, empty_experts(plan, case.folder), load_scheduler(case.folder), kernel, one)


def read(model: Cosmos3, case: Case, **wanted: Any) -> None:
    fill(model.experts, model.plan, case.folder, torch.device("cpu"), **wanted)


@lru_cache
@torch.no_grad()
def simulated(case: Case, patches: int) -> Tensor:
    """The final latents of PipeFusion in one process, after one step of warm-up."""
    model = empty(case, degrees=Degrees(pipefusion=2), patches=patches)
    read(model, case)
    model.slots.remember = Buffers(patches).remember
    model.set_inputs(checkpoints._inputs(case, "float32"))
    x = model.state.cut(model.initial_latents(torch.Generator().manual_seed(SEED)))
    steps = model.schedule()
    schedulers = [copy.deepcopy(model.scheduler) for _ in range(patches)]
    for step in steps:
        for now in range(patches) if step.index else [None]:
            part = model.state.here(x, now)
            whole = model.combine(predictions(model, part, step, now), part, step, Pass(patch=now))
            for patch in range(patches) if now is None else [now]:
                prediction = model.state.piece(whole, patch) if now is None else whole
                piece = model.state.piece(x, patch)
                piece.copy_(schedulers[patch].step(prediction, step.timestep, piece.clone(), return_dict=False)[0])
    return model.state.assemble([x])


def predictions(model: Cosmos3, part: Tensor, step: Step, patch: int | None) -> list[Tensor]:
    """Of every branch, for one patch or all together."""
    found = []
    for now in (Pass(branch, patch) for branch in model.slots.branches):
        condition = model.condition(step, now)
        found.append(model.head(model.run_blocks(model.embed(part, step, now), step, condition, now), step, condition))
    return found


@pytest.mark.parametrize("degrees", [Degrees(pipefusion=2), Degrees(cfg=2, pipefusion=2, tp=2)], ids=str)
def test_stale_steps_equal_the_simulation(degrees: Degrees) -> None:
    plan = TEXT.plan(degrees, patches=2, warmup=1)
    assert not plan.exact
    outcome = run_case(TEXT, plan)
    assert outcome.error(simulated(TEXT, 2)) <= LIMIT
    assert outcome.sent == outcome.declared
    assert outcome.error(stock_latents(TEXT)) >= 100 * LIMIT


# What a checkpoint is, and what of it is held


def test_facts_are_those_of_the_checkpoint() -> None:
    facts = from_folder(TEXT.folder)
    transformer = facts.transformer
    assert (transformer.layers, transformer.heads, transformer.key_heads, transformer.hidden) == (2, 8, 2, 128)
    assert transformer.patch == (1, 2, 2) and transformer.in_channels == transformer.out_channels == 48
    assert transformer.params == Folder(TEXT.folder).params("transformer")
    assert facts.size_multiple == (16, 16) and not facts.guarded and not facts.native_flow
    assert [facts.branches(g) for g in (6.0, 1.0, 0.5)] == [2, 1, 2]
    said = replace(TEXT, index=(("enable_safety_checker", True), ("use_native_flow_schedule", True)))
    assert from_folder(said.folder).guarded and from_folder(said.folder).native_flow


def test_sound_and_actions_are_not_read() -> None:
    more = (("sound_gen", True), ("sound_dim", 8), ("action_gen", True), ("action_dim", 4))
    case = replace(TEXT, changes=(*LAYERS, *more))
    parts = {name.split(".")[0] for name, _ in empty_experts(case.plan(), case.folder)[0].named_parameters()}
    assert parts == {"embed_tokens", "layers", "norm_moe_gen", "proj_in", "proj_out", "time_embedder"}


@torch.no_grad()
def test_weights_that_read_the_text_are_given_up_before_the_others_come() -> None:
    model = empty(TEXT)
    size = {term.name: term.size for term in terms(model.plan)}

    def held() -> int:
        return sum(p.numel() * p.element_size() for p in model.expert.parameters() if not p.is_meta)

    read(model, TEXT, wanted=model.needed_for_inputs)
    assert held() == size["weights that read text"]
    model.set_inputs(checkpoints._inputs(TEXT, "float32"))
    assert held() == 0
    read(model, TEXT)
    assert held() == size["weights"]
    kept = sum(x.numel() * x.element_size() for pair in model.text.kept.values() for x in pair)
    assert 0 < kept <= size["text K/V"]  # planned for more tokens
    with pytest.raises(AssertionError, match="new request"):
        model.set_inputs(model.inputs)


def test_a_picture_is_no_use_for_one_frame() -> None:
    facts = from_folder(TEXT.folder)
    with pytest.raises(RequestError, match="--frames 1 leaves nothing to make; nearest: --frames 5") as caught:
        clip_of(Request(image="x.png", size="64x64", frames=1), facts)
    assert caught.value.rule == "image-unused"
    assert clip_of(Request(image="x.png", size="48x64", frames=5), facts).encoded_frames == 1


def test_set_up_sends_what_is_declared() -> None:
    plan = HARD.plan(Degrees(ulysses=2))
    lengths = tuple(ids.shape[1] for ids in checkpoints._inputs(HARD, "float32").text)
    assert len(set(lengths)) == 2  # or a fault with lengths would not be seen
    sent = [m.size for m in registry.traffic(replace(plan, text_lengths=lengths), 0) if m.strategy == "setup"]
    assert sent == [8 * sum(lengths), 4 * 48 * 3 * 9]
