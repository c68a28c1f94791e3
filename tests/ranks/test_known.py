"""The models known by name: their shapes against diffusers' classes, and that the planner answers for each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hybridgen.cli.main import call
from hybridgen.models import catalogue
from hybridgen.models.registry import MODELS
from hybridgen.plan.facts import ModelFacts
from hybridgen.plan.plan import Plan
from hybridgen.planner.price import compute, memory
from hybridgen.recipe.clip import clip_of
from hybridgen.recipe.fields import Request
from hybridgen.strategies import registry
from hybridgen.strategies.registry import Degrees

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BILLIONS = {
    "wan2.1-1.3b": 1.42,
    "wan2.1-14b": 14.29,
    "wan2.1-i2v-14b-480p": 16.39,
    "wan2.2": 14.29,
    "wan2.2-5b": 5.00,
    "cosmos-predict2-2b-text2image": 1.96,
    "cosmos-predict2-14b-video2world": 14.27,
    "cosmos2.5": 2.06,
    "cosmos3-nano": 15.16,
    "cosmos3": 64.00,
}
"""Parameters of one transformer, as counted from the checkpoints' configurations."""


def plan_of(name: str, **degrees: Any) -> Plan:
    """A model's own clip."""
    facts = catalogue.find(name)
    return Plan(facts, clip_of(Request(), facts), Degrees(**degrees))


def transformer(model: ModelFacts) -> Any:
    """diffusers' class with the shape of these facts and one block, on the meta device."""
    import diffusers

    facts = model.transformer
    size = {"num_attention_heads": facts.heads, "in_channels": facts.in_channels, "out_channels": facts.out_channels}
    with torch.device("meta"):
        if model.pipeline.startswith("Wan"):
            picture = {"image_dim": facts.image_dim, "added_kv_proj_dim": facts.hidden} if facts.image_dim else {}
            return diffusers.WanTransformer3DModel(
                **size,
                **picture,
                attention_head_dim=facts.head_dim,
                num_layers=1,
                ffn_dim=facts.ffn,
                text_dim=facts.text_dim,
                pos_embed_seq_len=facts.image_positions or None,
            )
        if model.pipeline == "Cosmos3OmniPipeline":
            return diffusers.Cosmos3OmniTransformer(
                num_attention_heads=facts.heads,
                num_key_value_heads=facts.kv_heads,
                head_dim=facts.head_dim,
                hidden_size=facts.hidden,
                intermediate_size=facts.ffn,
                num_hidden_layers=1,
                vocab_size=facts.vocabulary,
                latent_channel=facts.in_channels,
                patch_latent_dim=facts.patch_channels,
            )
        return diffusers.CosmosTransformer3DModel(
            **{**size, "in_channels": facts.in_channels - 1},  # the padding mask comes on top
            attention_head_dim=facts.head_dim,
            num_layers=1,
            mlp_ratio=facts.ffn / facts.hidden,
            adaln_lora_dim=facts.adaln,
            text_embed_dim=facts.text_width,
            extra_pos_embed_type=None,
            use_crossattn_projection=facts.text_dim != facts.text_width,
            crossattn_proj_in_channels=facts.text_dim,
            encoder_hidden_states_channels=facts.text_width,
        )


def blocks(found: Any) -> Any:
    return next(getattr(found, name) for name in ("blocks", "layers", "transformer_blocks") if hasattr(found, name))


@pytest.mark.parametrize("name", BILLIONS)
def test_parameters_are_the_published_ones(name: str) -> None:
    assert catalogue.find(name).transformer.params / 1e9 == pytest.approx(BILLIONS[name], abs=0.0051)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_parameters_are_those_of_the_class(model: ModelFacts) -> None:
    found, facts = transformer(model), replace(model.transformer, layers=1)
    assert sum(p.numel() for p in found.parameters()) == facts.params
    assert sum(p.numel() for p in blocks(found)[0].parameters()) == facts.block_params


def test_autoencoders_are_as_large_as_they_are_said_to_be() -> None:
    from diffusers import AutoencoderKLWan

    normal = {"latents_mean": [0.0] * 48, "latents_std": [1.0] * 48}
    layout = {"is_residual": True, "patch_size": 2, "in_channels": 12, "out_channels": 12, "scale_factor_spatial": 16}
    with torch.device("meta"):
        first = AutoencoderKLWan()
        second = AutoencoderKLWan(base_dim=160, decoder_base_dim=256, z_dim=48, **layout, **normal)
    for name, vae in (("wan2.2", first), ("wan2.2-5b", second)):
        params = sum(p.numel() for p in vae.parameters())
        assert catalogue.find(name).vae.params == pytest.approx(params, rel=0.001)


# Memory


def test_what_a_picture_needs_is_held_where_one_is_given() -> None:
    def held(name: str, **given: Any) -> dict[str, int]:
        facts = catalogue.find(name)
        return {term.name: term.size for term in memory.terms(Plan(facts, clip_of(Request(**given), facts), Degrees()))}

    none, first = held("wan2.1-14b"), held("wan2.1-i2v")
    assert first["image encoder"] == 4 * 630_766_080 and "image encoder" not in none
    assert first["text K/V"] / none["text K/V"] == (512 + 257) / 512
    assert held("wan2.1-flf2v", last_image="b.png")["text K/V"] / none["text K/V"] == (512 + 2 * 257) / 512
    whole, more = 4 * 16 * 21 * 90 * 160, 4 * 20 * 4 * 75600  # latents; 20 more channels of each token's 4 cells
    assert first["latents"] - none["latents"] == whole + more


def test_text_is_kept_as_its_model_reads_it() -> None:
    def kept(name: str, **given: Any) -> int:
        facts = catalogue.find(name)
        return memory.text_states(Plan(facts, clip_of(Request(**given), facts), Degrees()))

    text = 512 * (2 * 4096 + 2 * 5120) * 2  # tokens, embeddings and projections of two branches, bf16
    assert kept("wan2.1-14b") == text and kept("wan2.1-i2v") == text + 257 * (1280 + 5120) * 2
    assert kept("wan2.2") == text + 512 * 2 * 5120 * 2  # the second expert has projections of its own
    assert kept("cosmos2.5-2b") == 512 * 2 * 1024 * 2  # projected once, and then the embeddings go
    assert memory.text_states(plan_of("cosmos3")) == 2 * 300 * 8  # ids


def test_one_tower_of_a_mixture_is_held_once_the_text_is_read() -> None:
    terms = memory.terms(plan_of("cosmos3"))
    held = {term.name: term.size for term in terms}
    words = 2 * 151936 * 5120  # their embedding; the layer that would write them is never read
    assert held["weights"] + held["weights that read text"] == pytest.approx(128e9 - words, rel=0.001)
    assert held["weights that read text"] - words == pytest.approx(held["weights"], rel=0.01)
    assert [t.phases for t in terms if t.name == "weights that read text"] == [("condition",)]
    assert "text encoder" not in held
    assert held["text K/V"] == 2 * 2 * 300 * 8 * 128 * 64 * 2  # branches, K and V, tokens, channels, layers, bf16


# Planning


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_the_page_lists_every_model(model: ModelFacts) -> None:
    names = ", ".join(f"`{name}`" for name in (model.name, *model.aliases))
    (row,) = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {names} | ")]
    facts, defaults = model.transformer, model.defaults
    clip = f"{defaults.width}x{defaults.height}, {defaults.frames} | {defaults.steps} | {defaults.guidance:g} |"
    assert f"| {facts.heads}" in row and f"{facts.params / 1e9:.1f} | {clip}" in row


@pytest.mark.parametrize("name", [model.name for model in MODELS])
def test_the_planner_answers_for_every_model(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["plan", "--model", name, "--gpus", "8", "--hardware", "h200", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == name and found["candidates"]
    facts = catalogue.find(name).transformer
    for degrees in (candidate["degrees"] for candidate in found["candidates"]):
        assert facts.key_heads % degrees["tp"] == 0 and facts.heads % (degrees["tp"] * degrees["ulysses"]) == 0


def test_few_key_value_heads_bound_tp_and_ulysses() -> None:
    assert [v.rule for v in registry.violations(plan_of("cosmos3", tp=16))] == ["tp-heads"]
    assert [v.rule for v in registry.violations(plan_of("cosmos3", tp=2, ulysses=5))] == ["ulysses-heads"]
    assert not registry.violations(plan_of("cosmos3", tp=2, ulysses=4))
    assert compute.attention_shape(plan_of("cosmos3", ulysses=16))[2:] == (4, 1)  # one K/V head, twice


def test_clips_are_those_of_the_pipelines() -> None:
    """Cosmos 3's 45 rows of latents are padded to 46; an image is one frame; the 5B model's VAE folds 16 pixels."""
    tokens = {"cosmos3": 48 * 23 * 40, "cosmos-predict2-2b-text2image": 48 * 85, "wan2.2-5b": 31 * 22 * 40}
    assert {name: plan_of(name).tokens.tokens for name in tokens} == tokens
    assert plan_of("cosmos3").facts.size_multiple == (16, 16)
    facts = catalogue.find("cosmos3-nano")
    assert [facts.branches(g) for g in (0.5, 1.0, 6.0)] == [2, 1, 2]


def test_models_from_pictures_are_planned_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan --model wan2.2-i2v --gpus 8 --hardware h200".split()) == 0
    assert "--image image.png -p" in capsys.readouterr().out
    assert call("plan --model wan2.2-i2v --gpus 8 --hardware h200 --image cat.jpg".split()) == 0
    out = capsys.readouterr().out
    assert "--image cat.jpg" in out and "image.png" not in out
    assert plan_of("wan2.2-i2v").clip.encoded_frames == 81
