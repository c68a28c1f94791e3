"""Cosmos Predict 2 and 2.5 on tiny checkpoints: equal to diffusers' pipelines, on one rank bit for bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import CosmosTransformer3DModel
from torch import Tensor

from hybridgen.distributed.sequence import Shard
from hybridgen.engine.inputs import open_inputs
from hybridgen.engine.outputs import Outputs
from hybridgen.engine.prepare import make_job, negative_prompt
from hybridgen.errors import RequestError
from hybridgen.models.checkpoint import from_folder
from hybridgen.models.cosmos.denoiser import Condition, Cosmos
from hybridgen.models.cosmos.predict import Predict2, Predict25, VideoToWorld
from hybridgen.models.denoiser import Denoiser
from hybridgen.models.slots import Pass, Step
from hybridgen.recipe.fields import Recipe, Request
from hybridgen.strategies.registry import Degrees
from tests.support import matrix, stock
from tests.support.checkpoints import LAYERS, NEGATIVE, PROMPT, SEED, Case, run_case, stock_latents

LIMIT = 1e-5
CONFIG = "transformer/config.json"

PICTURE = Case("cosmos2-t2i", frames=1, size="80x48", changes=LAYERS)
FROM_PICTURE = Case("cosmos2-v2w", images=1, frames=9, steps=2, changes=LAYERS)
FROM_VIDEO = Case("cosmos2-v2w", video=7, changes=LAYERS)
FROM_LONG_VIDEO = Case("cosmos2-v2w", video=21, frames=25, steps=2, changes=LAYERS)
FLOW = Case("cosmos2.5", changes=LAYERS)
FLOW_PICTURE = Case("cosmos2.5", images=1, size="48x80", frames=9, steps=2, changes=LAYERS)  # 45 tokens
FLOW_VIDEO = Case("cosmos2.5", video=9, changes=LAYERS)
UNGUIDED = replace(FLOW_VIDEO, guidance=1.0)
CASES = [FROM_VIDEO, FROM_LONG_VIDEO, FLOW_PICTURE, FLOW_VIDEO, UNGUIDED]  # the rest: below, and in test_classes


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_rank_is_the_stock_pipeline_bit_for_bit(case: Case) -> None:
    assert torch.equal(run_case(case, case.plan()).latents, stock_latents(case))


@pytest.mark.parametrize("case", [PICTURE, FROM_PICTURE, FLOW_PICTURE], ids=str)
def test_in_half_precision_too(case: Case) -> None:
    assert torch.equal(run_case(case, case.plan(dtype="bfloat16")).latents, stock_latents(case, "bfloat16"))


@pytest.mark.parametrize("degrees", [*matrix.PARTS.values(), *matrix.LEGAL], ids=str)
def test_every_strategy_and_pair_equals_one_process(degrees: Degrees) -> None:
    """45 tokens, of which the first 15 are given: shards are padded, and one may have given tokens only."""
    compare(FLOW_PICTURE, degrees)


OTHERS = [
    (PICTURE, Degrees(cfg=2, ulysses=2)),
    (PICTURE, Degrees(tp=2, ring=2)),
    (FROM_PICTURE, Degrees(cfg=2, attn2d=(2, 1), vae=2)),
    (FROM_VIDEO, Degrees(cfg=2, pipefusion=2, ulysses=2)),
    (FROM_VIDEO, Degrees(tp=2, ulysses=2, vae=4)),
    (FLOW, Degrees(cfg=2, tp=2, ring=2)),
    (FLOW_VIDEO, Degrees(pipefusion=2, ulysses=2, attn2d=(1, 2), vae=3)),
]


@pytest.mark.parametrize(("case", "degrees"), OTHERS, ids=str)
def test_compositions_equal_one_process(case: Case, degrees: Degrees) -> None:
    compare(case, degrees)


def compare(case: Case, degrees: Degrees) -> None:
    """Latents, and bytes: what every rank sent is what the rules declare."""
    if degrees.world == 1:  # the VAE is laid over the others
        degrees = degrees.changed(ulysses=2)
    outcome = run_case(case, case.plan(degrees))
    assert outcome.error(stock_latents(case)) <= LIMIT
    assert outcome.sent == outcome.declared


@pytest.mark.parametrize("case", [FROM_PICTURE, FLOW_PICTURE], ids=str)
def test_the_frames_are_those_of_the_stock_pipeline(case: Case) -> None:
    frames = run_case(case, case.plan(Degrees(ulysses=2, vae=2))).frames
    assert frames is not None
    width, height = map(int, case.size.split("x"))
    request: dict[str, Any] = {"num_frames": case.frames, "num_inference_steps": case.steps, "fps": 8}
    expected = stock.run(
        stock.load(case.folder), PROMPT, SEED, image=stock.opened(case.pictures()[0]), negative_prompt=NEGATIVE,
        width=width, height=height, guidance_scale=case.guidance, output_type="np", **request,
    )  # fmt: skip
    assert (frames - expected[0] * 255).abs().max() <= 1.01  # Predict 2's pipeline cuts levels off; ours are rounded


def per_token(self: Denoiser, q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:
    """In place of attention: something of every token alone, so that nothing can be stale."""
    return q + k + v


@pytest.mark.parametrize("case", [FROM_VIDEO, replace(FLOW_PICTURE, steps=4)], ids=str)
def test_patches_of_pipefusion_have_their_own_masks_times_and_positions(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Denoiser, "local_attention", per_token)
    alone = run_case(case, case.plan()).latents
    patched = run_case(case, case.plan(Degrees(pipefusion=2), patches=3, warmup=1))
    assert patched.error(alone) <= LIMIT
    assert patched.sent == patched.declared


def test_stale_keys_are_the_same_on_another_layout() -> None:
    case = replace(FLOW_VIDEO, steps=4)
    one, other = (
        run_case(case, case.plan(degrees, patches=2, warmup=1))
        for degrees in (Degrees(pipefusion=2), Degrees(cfg=2, pipefusion=2, ulysses=2))
    )
    assert one.error(other.latents) <= LIMIT < 1e-4 < one.error(stock_latents(case)) < 0.5
    assert other.sent == other.declared


# Facts and files


def test_the_facts_are_those_of_the_checkpoint() -> None:
    facts = {
        kind: from_folder(Case(kind, changes=LAYERS).folder) for kind in ("cosmos2-t2i", "cosmos2-v2w", "cosmos2.5")
    }
    for kind, channels, text in (("cosmos2-t2i", 17, 32), ("cosmos2-v2w", 18, 32), ("cosmos2.5", 18, 32)):
        found, config = facts[kind].transformer, json.loads((Path(facts[kind].source) / CONFIG).read_text())
        model = CosmosTransformer3DModel.from_config(config)
        assert found.params == sum(p.numel() for p in model.parameters())
        assert (found.in_channels, found.text_dim, found.ffn, found.max_positions) == (channels, text, 256, 128)
        assert found.head_norm and found.token_time == (kind != "cosmos2-t2i")
    video, flow = facts["cosmos2-v2w"], facts["cosmos2.5"]
    assert (facts["cosmos2-t2i"].image, video.image, flow.image) == ("", "must", "may")
    assert [video.encoded_frames(93, True), *(video.encoded_frames(93, False, n) for n in (1, 7, 300))] == [1, 1, 5, 93]
    assert [flow.encoded_frames(93, False, n) for n in (5, 300)] == [5, 5]


@pytest.mark.parametrize(
    ("pipeline", "change", "says"),
    [
        ("CosmosTextToWorldPipeline", {}, "another autoencoder"),
        ("Cosmos2_5_TransferPipeline", {}, "control videos"),
        ("Cosmos2_5_PredictBasePipeline", {"extra_pos_embed_type": "learnable"}, "extra_pos_embed_type is learnable"),
    ],
)
def test_other_cosmos_models_are_refused_by_name(
    pipeline: str, change: dict[str, str], says: str, tmp_path: Path
) -> None:
    shutil.copytree(FLOW.folder, tmp_path, dirs_exist_ok=True)
    for name, changes in (("model_index.json", {"_class_name": pipeline}), (CONFIG, change)):
        path = tmp_path / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(RequestError, match=says) as refusal:
        from_folder(tmp_path)
    assert refusal.value.rule == "unsupported-pipeline"


def test_a_request_that_says_little_has_the_pipeline_s_negative_prompt_and_wants_a_picture() -> None:
    plan = FROM_PICTURE.plan()
    assert negative_prompt(Request(prompt="x"), plan).startswith("The video captures")
    assert negative_prompt(Request(prompt="x", negative_prompt=""), plan) == ""
    with pytest.raises(RequestError, match="--image: is missing, and .* or a video"):
        make_job(Recipe(request=Request(prompt="x", seed=1)), plan, Outputs())


def test_what_is_no_video_or_too_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.mp4").write_text("text")
    with pytest.raises(RequestError, match="cannot be read as a video"):
        open_inputs(replace(FLOW_VIDEO.request(), video=str(tmp_path / "text.mp4")), FLOW_VIDEO.facts())
    short = Case("cosmos2.5", video=3).given_video()
    with pytest.raises(RequestError, match="has 3 frames, and cosmos2.5 continues 5"):
        open_inputs(replace(FLOW_VIDEO.request(), video=str(short)), FLOW_VIDEO.facts())


# Faults made on purpose

Patch = pytest.MonkeyPatch


def of_the_first_shard(name: str) -> Callable[[Patch], None]:
    """What a method cuts with the sequence is cut for the first rank everywhere."""

    def plant(patch: Patch) -> None:
        cut = getattr(Cosmos, name)

        def wrong(self: Cosmos, *arguments: Any) -> Any:
            own = self.state.shard
            self.state.shard = Shard(own.tokens, 0)
            try:
                return cut(self, *arguments)
            finally:
                self.state.shard = own

        patch.setattr(Cosmos, name, wrong)

    plant.__name__ = f"{name}_of_the_first_shard"
    return plant


def text_of_the_other_branch(patch: Patch) -> None:
    condition = Cosmos.condition

    def wrong(self: Cosmos, step: Step, now: Pass) -> Condition:
        return replace(condition(self, step, now), text=self.inputs.text[1 - now.branch])

    patch.setattr(Cosmos, "condition", wrong)


def clean_from_the_scaled_latents(patch: Patch) -> None:
    clean = Predict2.clean

    def wrong(self: Predict2, prediction: Tensor, x: Tensor, step: Step, now: Pass) -> Tensor:
        return clean(self, prediction, Predict2.transformer_input(self, x, step, now), step, now)

    patch.setattr(Predict2, "clean", wrong)


def guidance_as_wan_has_it(patch: Patch) -> None:
    def wrong(self: Cosmos, branches: list[Tensor], step: Step) -> Tensor:
        return Denoiser.combine(self, branches, branches[0], step, Pass())

    patch.setattr(Cosmos, "guided", wrong)


def noise_before_the_given_frames(patch: Patch) -> None:
    patch.setattr(VideoToWorld, "initial_latents", Predict2.initial_latents)


def velocity_of_given_frames_predicted(patch: Patch) -> None:
    patch.setattr(Predict25, "velocity", lambda self, prediction, now: prediction)


FAULTS: list[tuple[Case, Callable[[Patch], None]]] = [
    (FLOW, of_the_first_shard("rope")),
    (FROM_VIDEO, of_the_first_shard("frames")),
    (FROM_VIDEO, of_the_first_shard("masks")),
    (FLOW_PICTURE, of_the_first_shard("cut_given")),
    (PICTURE, text_of_the_other_branch),
    (PICTURE, clean_from_the_scaled_latents),
    (FROM_PICTURE, guidance_as_wan_has_it),
    (FROM_PICTURE, noise_before_the_given_frames),
    (FLOW_PICTURE, velocity_of_given_frames_predicted),
]


@pytest.mark.parametrize(("case", "plant"), FAULTS, ids=lambda part: getattr(part, "__name__", str(part)))
def test_a_fault_moves_the_result_far(case: Case, plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    assert run_case(case, case.plan(Degrees(ulysses=2))).error(stock_latents(case)) >= 100 * LIMIT
