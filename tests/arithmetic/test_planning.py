"""Facts, rules, candidates, recipes, drawings: everything that needs no ranks, and no torch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hybridgen.cli import draw
from hybridgen.cli.main import call
from hybridgen.engine.environment import first_host
from hybridgen.errors import RequestError
from hybridgen.models import catalogue
from hybridgen.models.files import Folder
from hybridgen.models.registry import MODELS
from hybridgen.models.wan.facts import WanTransformer
from hybridgen.plan.autoencoder import VaeFacts
from hybridgen.plan.facts import TransformerFacts
from hybridgen.plan.numbers import divisors
from hybridgen.plan.plan import Clip, Plan
from hybridgen.recipe.compose import compose
from hybridgen.recipe.fields import Recipe, options
from hybridgen.recipe.legal import degree_sets, legal_plans
from hybridgen.recipe.resolve import resolve
from hybridgen.strategies import registry
from hybridgen.strategies.registry import Degrees
from hybridgen.strategies.ulysses.rules import legal_degrees

ROOT = Path(__file__).parents[2]
WAN22 = catalogue.find("wan2.2")
PUBLISHED = Degrees(cfg=2, ulysses=4, attn2d=(3, 3), vae=8)
CLIP = Clip(1280, 720, 81, 40, 4.0)


def grouped(heads: int, kv_heads: int) -> Plan:
    facts = WanTransformer(layers=4, heads=heads, kv_heads=kv_heads, head_dim=64, ffn=1024, text_dim=64)
    return Plan(replace(WAN22, transformer=facts), CLIP, Degrees())


# Models


def test_a_model_is_found_by_any_of_its_names() -> None:
    assert catalogue.find("Wan-AI/Wan2.2-T2V-A14B-Diffusers") is WAN22
    for model in MODELS:
        assert all(catalogue.find(name) is model for name in (model.name, *model.aliases))
    demo = catalogue.find("demo")
    assert (demo.experts, demo.boundary, demo.transformer.heads) == (2, 0.875, 8)
    assert demo.transformer.params == Folder(catalogue.DEMO_FOLDER).params("transformer")


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="model_index.json"):
        catalogue.find(str(tmp_path))
    (tmp_path / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    with pytest.raises(RequestError, match="FluxPipeline"):
        catalogue.find(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model_index.json", "[]"),
        ("model_index.json", '{"_class_name": "WanPipeline"}'),
        ("transformer/config.json", "{}"),
        ("vae/config.json", "{}"),
        ("vae/diffusion_pytorch_model.safetensors", "x"),
    ],
)
def test_a_checkpoint_with_a_broken_file_is_refused(name: str, content: str, tmp_path: Path) -> None:
    shutil.copytree(catalogue.DEMO_FOLDER, tmp_path, dirs_exist_ok=True)
    (tmp_path / name).write_text(content)
    with pytest.raises(RequestError, match=str(tmp_path)) as refusal:
        catalogue.find(str(tmp_path))
    assert refusal.value.rule in ("unreadable-model", "incomplete-model")


def test_facts_of_no_family_have_no_price() -> None:
    """Nothing is silently counted as the blocks, or the autoencoder, of a family that it is not of."""
    with pytest.raises(TypeError, match="block_params.*most_held.*outer_params"):
        TransformerFacts(layers=4, heads=4, head_dim=64, ffn=1024, text_dim=64)  # type: ignore[abstract]
    with pytest.raises(TypeError, match="decoder.*encoder"):
        VaeFacts()  # type: ignore[abstract]


def test_token_counts_are_the_known_ones() -> None:
    assert WAN22.token_count(1280, 720, 81) == 75600
    assert catalogue.find("wan2.1-1.3b").token_count(832, 480, 81) == 32760


# Rules


def test_ulysses_with_grouped_heads() -> None:
    assert legal_degrees(grouped(64, 8)) == [1, 2, 4, 8, 16, 32, 64]
    assert legal_degrees(grouped(12, 4)) == [1, 2, 4, 12]
    broken = registry.violations(replace(grouped(12, 4), degrees=Degrees(ulysses=6)))
    assert [v.rule for v in broken] == ["ulysses-kv-heads"]


def test_tp_leaves_ulysses_fewer_heads() -> None:
    plan = Plan(WAN22, CLIP, Degrees(tp=2, ulysses=8))
    assert [v.rule for v in registry.violations(plan)] == ["ulysses-heads"]
    assert not registry.violations(Plan(WAN22, CLIP, Degrees(tp=2, ulysses=4)))


def test_every_violation_has_an_explanation() -> None:
    known = registry.explanations()
    for degrees in (
        Degrees(cfg=3),
        Degrees(ulysses=7),
        Degrees(tp=7),
        Degrees(ring=2, attn2d=(2, 2)),
        Degrees(pipefusion=41),
        Degrees(vae=3),
        Degrees(ulysses=40, ring=8, vae=200),
    ):
        broken = registry.violations(Plan(WAN22, CLIP, degrees).with_options(warmup=40))
        assert broken and all(v.rule in known and v.nearest for v in broken), degrees


def test_published_volumes() -> None:
    """Ulysses moves four tensors a layer (323 MiB for Wan 720p at U = 8, bf16), ring keeps (R - 1) blocks moving."""
    ulysses = Plan(WAN22, Clip(1280, 720, 81, 1, 1.0), Degrees(ulysses=8))
    per_layer = sum(m.size for m in registry.traffic(ulysses, 0) if m.strategy == "ulysses")
    assert per_layer / 2**20 == pytest.approx(323, abs=2)
    ring = Plan(WAN22, Clip(1280, 720, 81, 1, 1.0), Degrees(ring=4))
    message = next(m for m in registry.traffic(ring, 0) if m.strategy == "ring")
    assert message.size == 2 * 75600 // 4 * 5120 * 2 and message.count == 40 * 3


# Candidates


def factorisations(world: int) -> Iterator[Degrees]:
    """Every way to write a number of ranks as a product of the axes, legal or not."""
    names = ("cfg", "pipefusion", "tp", "ring", "ulysses")
    for sizes in products(world, len(names) + 2):
        yield Degrees(**dict(zip(names, sizes, strict=False)), attn2d=sizes[-2:])


def products(number: int, factors: int) -> Iterator[tuple[Any, ...]]:
    if factors == 1:
        yield (number,)
        return
    for first in divisors(number):
        yield from ((first, *rest) for rest in products(number // first, factors - 1))


def test_candidates_cover_every_factorisation_once() -> None:
    sets = list(degree_sets(Plan(WAN22, CLIP, Degrees()), 72))
    assert len(sets) == len(set(sets)) and all(d.world == 72 for d in sets)
    assert Degrees(cfg=2, ulysses=4, attn2d=(3, 3)) in sets and Degrees(cfg=2, ulysses=4, ring=9) in sets


def test_a_template_leaves_out_what_its_heads_forbid_and_nothing_else() -> None:
    plan = Plan(WAN22, CLIP, Degrees())
    legal = {d for d in factorisations(72) if not registry.violations(replace(plan, degrees=d))}
    assert {d for d in degree_sets(plan, 72) if d.pipefusion <= 40} == legal
    assert all(d.ulysses == 4 for d in degree_sets(plan, 72, {"ulysses": 4, "cfg": 2}))


@pytest.mark.parametrize("world", [1, 2, 8, 72])
def test_candidates_are_legal(world: int) -> None:
    plans = legal_plans(Plan(WAN22, CLIP, Degrees()), world)
    assert plans and all(p.world_size == world and not registry.violations(p) for p in plans)


# Recipes


def test_flag_wins_over_set_wins_over_file(tmp_path: Path) -> None:
    """For every key of the recipe."""
    samples = {
        "size": ("32x32", "48x48", "64x64"),
        "order": ("cfg", "row", "col"),
        "usp": ("1x1", "1x2", "2x1"),
        "pipefusion": (2, "3:1,1,2", "4"),
    }
    for section, name, item in options():
        kind = str(item.type)
        kinds = {"int": (1, 2, 3), "float": (1.5, 2.5, 3.5), "bool": (True, False, True)}
        default = next((values for one, values in kinds.items() if one in kind), ("a", "b", "c"))
        first, second, third = samples.get(name, default)
        file = tmp_path / "r.yaml"
        file.write_text(f"{section}:\n  {name}: {first}\n" if section else f"{name}: {first}\n")
        path = f"{section}.{name}" if section else name

        def value(recipe: Recipe) -> object:
            found = getattr(getattr(recipe, section) if section else recipe, name)
            return found[0] if isinstance(found, list) else found

        assert value(compose(file, [], {})) == first
        assert value(compose(file, [f"{path}={second}"], {})) == second
        assert value(compose(file, [f"{path}={second}"], {name: third})) == third


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.yaml")), ids=lambda p: p.name)
def test_every_recipe_plans(path: Path) -> None:
    assert resolve(compose(path, [], {})).world_size >= 1


def test_environment_variables_change_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "--model", "demo", "--cfg", "2", "--dry-run"]
    call(words)
    before = capsys.readouterr().out
    for name in (
        "HYBRIDGEN_STEPS",
        "HYBRIDGEN_MODEL",
        "HYBRIDGEN_SEED",
        "SEED",
        "STEPS",
        "MODEL",
        "ULYSSES",
        "COLUMNS",
    ):
        monkeypatch.setenv(name, "3")
    call(words)
    assert capsys.readouterr().out == before


# Drawings


def test_the_owners_line_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    words = "run --model wan2.2 --cfg 2 --ulysses 4 --attn2d 3x3 --vae 8 --dry-run"
    assert call(words.split()) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "mesh: cfg 2 x row 3 x col 3 x ulysses 4 = 72 ranks, ulysses fastest" in out
    assert "row 2  24-27  28-31  32-35    row 2  60-63  64-67  68-71" in out
    sends = sum(m.total for m in registry.traffic(Plan(WAN22, CLIP, PUBLISHED), 0) if m.axis == "ulysses")
    assert f"{sends / 1e9:.0f} GB" in out


@pytest.mark.parametrize("world", [1, 2, 8, 72])
def test_legal_plans_can_be_drawn(world: int) -> None:
    for plan in legal_plans(Plan(WAN22, CLIP, Degrees()), world)[::3]:
        lines = draw.whole(plan)
        text = "\n".join(lines)
        assert text.isascii() and (world == 1 or f"{world} ranks" in text)


def test_a_grid_shows_every_rank_in_any_order() -> None:
    order = ("col", "row", "cfg", "pipefusion", "tp", "ring", "ulysses")
    grid = [line for line in draw.mesh(Plan(WAN22, CLIP, Degrees(cfg=2, attn2d=(2, 3)), order)) if line[:3] == "row"]
    ranks = [int(word) for line in grid for cells in line.split("row") for word in cells.split()[1:]]
    assert sorted(ranks) == list(range(12))


def test_large_grids_are_cut_with_a_rule() -> None:
    plan = Plan(WAN22, CLIP, Degrees(attn2d=(32, 32)))
    assert any("more groups by the same rule" in line for line in draw.mesh(plan))


# Imports and hosts


def test_plan_and_help_do_not_import_torch() -> None:
    program = (
        "import sys; from hybridgen.cli.main import call;"
        "codes = [call(w.split()) for w in ('plan --gpus 72', 'plan --gpus 8 --scaling', 'explain ring-attn2d', "
        "'run --help', 'run --model wan2.2 --cfg 2 --dry-run')];"
        "sys.exit(any(codes) or any(m in sys.modules for m in ('torch', 'diffusers', 'transformers', 'numpy')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize(
    ("nodes", "first"), [("gpu[03-07,11],login", "gpu03"), ("node1,node2", "node1"), ("n-a[1,3]", "n-a1"), ("h", "h")]
)
def test_the_first_host_of_a_slurm_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first
