"""hybridgen plan and explain as a user meets them: what is recommended, the pages, the JSON, the refusals."""

from __future__ import annotations

import json
import re
import resource
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hybridgen.cli.explanations import rules
from hybridgen.cli.main import call
from hybridgen.errors import RequestError
from hybridgen.models import catalogue
from hybridgen.plan.degrees import AXES
from hybridgen.plan.plan import Clip, Plan
from hybridgen.planner.choose import recommend
from hybridgen.planner.choose.ask import Ask, ask_for
from hybridgen.planner.choose.ranking import oblong
from hybridgen.planner.hardware.constants import Constant
from hybridgen.planner.hardware.known import MACHINES
from hybridgen.planner.hardware.lookup import find
from hybridgen.recipe.fields import compose
from hybridgen.recipe.resolve import resolve

ROOT = Path(__file__).parents[2]
WAN22 = catalogue.find("wan2.2")
PUBLISHED_CLIP = Clip(1280, 720, 77, 40, 4.0)
CLIP_480P = Clip(832, 480, 81, 50, 5.0)
BAD_ANCHORS = ("0", "-300", "nan", "inf", "-inf")
PUBLISHED = "--cfg 2 --ulysses 4 --attn2d 3x3 --vae 8"


def ask(gpus: int, hardware: str = "gb200-nvl72", **changes: Any) -> Ask:
    return Ask(Plan(WAN22, PUBLISHED_CLIP), gpus, find(hardware), **changes)


# What is recommended


@pytest.mark.parametrize(
    ("gpus", "config"),
    [(72, "cfg2 ulysses4 attn2d3x3 vae8"), (16, "cfg2 ulysses8 vae8"), (8, "cfg2 ulysses4 vae8"), (1, "one rank")],
)
@pytest.mark.parametrize("frames", [77, 81])
def test_the_published_splits_are_recommended(gpus: int, config: str, frames: int) -> None:
    template = Plan(WAN22, Clip(1280, 720, frames, 40, 4.0))
    assert recommend.recommend(Ask(template, gpus, find("gb200-nvl72"))).best.config == config


def test_ring_is_never_above_attention2d_at_cp_9() -> None:
    order = [c.plan.degrees for c in recommend.recommend(ask(72)).candidates]
    rings = [d for d in order if d.ring == 9]
    assert len(rings) > 3
    for ring in rings:
        twin = replace(ring, ring=1, attn2d=(3, 3))
        assert order.index(twin) < order.index(ring)


@pytest.mark.parametrize("hardware", sorted(MACHINES))
@pytest.mark.parametrize("gpus", [2, 12, 72])
def test_every_machine_gets_ranked_plans(hardware: str, gpus: int) -> None:
    template = Plan(catalogue.find("wan2.1-1.3b"), CLIP_480P)
    found = recommend.recommend(Ask(template, gpus, find(hardware)))
    first, *rest = found.candidates
    assert rest == sorted(rest, key=lambda c: c.cost.clip)
    assert first.cost.clip <= rest[0].cost.clip or first.tie and rest[0].tie
    assert all(c.plan.exact and c.plan.world_size == gpus and c.peak <= found.ask.limit for c in found.candidates)


def test_ties_prefer_cfg_then_ulysses_then_a_square() -> None:
    for gpus, hardware in ((16, "gb200-nvl72"), (8, "h200"), (24, "gb200-nvl72"), (64, "h200")):
        found = recommend.recommend(ask(gpus, hardware))
        tied = [c.plan.degrees for c in found.candidates if c.tie]
        assert len(tied) > 1 and tied[0] == found.best.plan.degrees
        widest = max(d.ulysses for d in tied if d.cfg == 2)
        assert (tied[0].cfg, tied[0].ulysses) == (2, widest)
        alike = [d for d in tied if (d.cfg, d.ulysses) == (2, widest)]
        assert oblong(tied[0]) == min(map(oblong, alike))


def test_approximate_plans_never_win_unasked() -> None:
    exact = recommend.recommend(ask(8, "l40s"))
    assert all(c.plan.degrees.pipefusion == 1 for c in exact.candidates)
    asked = recommend.recommend(ask(8, "l40s", approximate=True))
    assert any(not c.plan.exact for c in asked.candidates)
    assert asked.best.cost.clip < exact.best.cost.clip  # on PCIe it sends least


def test_fewer_gpus_where_more_are_no_faster() -> None:
    machine = find("rtx4090")
    slow = replace(machine.inside, bandwidth=Constant(1e8, "made up"), hop=Constant(0.05, "made up"))
    many = Ask(Plan(catalogue.find("wan2.1-1.3b"), CLIP_480P), 8, replace(machine, inside=slow))
    found, everything = recommend.fewer(many), recommend.recommend(many)
    assert found.ask.gpus == 2 and found.best.config.startswith("cfg2")
    assert found.best.cost.clip < everything.best.cost.clip
    assert recommend.fewer(ask(8)).ask.gpus == 8


def test_fewer_says_what_the_rest_could_do(plan: Any) -> None:
    out = plan("--gpus 5 --hardware rtx4090 --model demo --fewer")
    assert (
        "5 GPUs would be no faster than 2" in out and "the other 3 make 1 more clip" in out and "1 GPU is free" in out
    )
    assert "hybridgen plan --gpus 5 --model demo --hardware rtx4090 --fewer" in out


def test_an_anchor_sets_one_gpu_s_time_and_narrows_the_range() -> None:
    template = Plan(WAN22, PUBLISHED_CLIP)
    machine = recommend.anchored(find("h200"), template, 500)
    before, found = (recommend.recommend(Ask(template, 8, m)) for m in (find("h200"), machine))
    assert found.one_gpu == pytest.approx(500) and before.one_gpu > 1000
    assert recommend.doubts(find("h200"), template, 500) == []
    (low, high), (wide_low, wide_high) = found.best.cost.range, before.best.cost.range
    assert high / low < wide_high / wide_low


def test_an_anchor_far_from_the_prediction_is_doubted(plan: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for seconds, far in ((5.7, True), (130, False), (1000, False), (1200, True)):
        assert call(["plan", "--gpus", "8", "--anchor", str(seconds), "-q"]) == 0
        said = capsys.readouterr().err
        assert said.startswith(f"warning: --anchor {seconds:g} s is far from the 372 s predicted") == far
        assert said.count("\n") == far


def test_planning_is_quick() -> None:
    """CPU seconds, start-up included for 72; twice what it takes: a busy machine passes, torch's import does not."""
    started = time.process_time()
    assert recommend.recommend(ask(4608)).candidates
    assert time.process_time() - started < 2
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "hybridgen", "plan", "--gpus", "72"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


# The pages


def test_small_figures_are_written_out(plan: Any) -> None:
    pages = [plan(f"--model demo --hardware rtx4090 --gpus 8 --steps 1 {more}") for more in ("", "--scaling")]
    pages.append(plan("--model demo --hardware rtx4090 --gpus 8 --steps 1 --explain 1").split("constants of")[0])
    for page in pages:
        assert not re.search(r"\d[eE][+-]?\d", page) and "1 step," in page and "1 steps" not in page
        assert all(low != high for low, high in re.findall(r"(\d+\.\d+)-(\d+\.\d+)", page))
    assert "1 step of" in pages[2]


@pytest.mark.parametrize("page", ["", "--scaling", "--rejected", "--explain 1"])
def test_every_page_ends_with_the_files_written(page: str, plan: Any, tmp_path: Path) -> None:
    recipe, picture = tmp_path / "r.yaml", tmp_path / "p.png"
    out = plan(f"--gpus 2 {page} --save {recipe} --plot {picture}")
    assert out.endswith(f"wrote    {recipe}\nwrote    {picture}\n") and recipe.exists() and picture.exists()


def test_the_table_says_what_and_why(plan: Any) -> None:
    out = plan("--gpus 72 --heads 40 --frames 80")
    first = next(line for line in out.splitlines() if line.startswith("1  "))
    assert "cfg2 ulysses4 attn2d3x3 vae8" in first and "recommended" in first and "cfg row col ulysses" in first
    assert re.search(r"ring9 vae8 .* 6[01]% .* ring \+7\.\d s", out)
    assert re.search(r"6\.7-7\.4 .* 67% ", first)
    assert any("ring9" in line for line in out.splitlines()) and "why 1 " in out and "fewer? " in out
    assert (
        f"hybridgen run --frames 77 {PUBLISHED.replace('--ulysses 4 --attn2d 3x3', '--attn2d 3x3 --ulysses 4')}" in out
    )
    assert "parallel: {cfg: 2, ulysses: 4, attn2d: 3x3, vae: 8}" in out


@pytest.mark.parametrize("width", [79, 100, 140])
@pytest.mark.parametrize("flags", ["", "--scaling", "--rejected", "--explain 1", "--hardware h200"])
def test_pages_fit_the_width(width: int, flags: str, plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = plan(f"--gpus 72 --frames 80 {flags}").splitlines()
    commands = [
        line for line in lines if "hybridgen run --" in line or "hybridgen plan --" in line or "torchrun" in line
    ]
    assert all(map(str.isascii, lines)) and max(len(line) for line in lines if line not in commands) <= width
    if "--hardware" in flags or not flags:
        assert [line.split()[0] for line in commands] == ["run", "on", "recipe", "more"]  # not folded: they are copied


def test_kinds_differ_and_ring_is_among_them(plan: Any) -> None:
    for gpus in (8, 72):
        lines = [line for line in plan(f"--gpus {gpus}").splitlines() if re.match(r"\d  ", line)]
        names = [frozenset(re.sub(r"[\dx]+", "", word) for word in line.split("  ")[1].split()) for line in lines]
        assert len(names) == len(set(names)) and any("ring" in name for name in names)
    for count in (1, 2):
        shown = [line for line in plan(f"--gpus 72 --top {count}").splitlines() if re.match(r"\d  ", line)]
        assert len(shown) == count and ("ring9" in shown[-1]) == (count == 2)
    assert (
        len([line for line in plan("--gpus 72 --all").splitlines() if re.match(r"\d+ +(cfg|tp|ul|ri|at)", line)]) == 106
    )


def test_explain_adds_up(plan: Any) -> None:
    out = plan("--gpus 72 --frames 80 --explain 1")
    spent = [float(x) for x in re.findall(r"^\S.*?  +(\d+\.\d+) +\d+%", out, re.M)]
    assert sum(spent) == pytest.approx(7.04, abs=0.05)
    for name, constant in find("gb200").constants():
        assert re.search(rf"^{re.escape(name)} +\S+ +{re.escape(constant.origin.split()[0])}", out, re.M), name


def test_mesh_order_is_explained(plan: Any) -> None:
    out = plan("--gpus 16 --hardware h200")
    assert "ulysses stays inside a node; cfg crosses nodes" in out


def test_rejected_names_rule_and_neighbour(plan: Any) -> None:
    out = plan("--gpus 72 --rejected")
    assert re.search(r"cfg2 ulysses3 attn2d4x3 +ulysses-heads +cfg2 ulysses4 attn2d3x3 vae8", out)
    assert "--ulysses 3 does not divide the 40 heads" in out
    out = plan("--gpus 8 --hardware rtx4090 --rejected")
    assert re.search(r"cfg2 ulysses4 vae8 +memory +tp4 ulysses2 vae8", out)


def test_scaling_lists_every_width(plan: Any) -> None:
    out = plan("--gpus 72 --scaling")
    assert [int(n) for n in re.findall(r"^ +(\d+)  ", out, re.M)] == [1, 2, 4, 8, 16, 18, 24, 32, 36, 64, 72]
    assert re.search(r"^  72  cfg2 ulysses4 attn2d3x3 vae8", out, re.M)


def test_an_unusual_order_says_what_it_is_worth(plan: Any) -> None:
    assert re.search(
        r"order ulysses, cfg: .*; \d+% slower than in the usual order",
        plan("--gpus 16 --hardware h200 --cfg 2 --ulysses 8 --order ulysses,cfg"),
    )
    assert "usual order" not in plan("--gpus 16 --hardware h200 --cfg 2 --ulysses 8")


def test_hosts_set_the_domain(plan: Any) -> None:
    """Four GPUs a host: ulysses 4 stays inside, which a rack of one domain does not care about."""
    out = plan("--gpus 16 --nodes 4 --hardware h200 --cfg 2 --ulysses 4 --ring 2")
    assert "in 4 nodes of 4" in out and "ulysses stays inside a node" in out
    assert plan("--nodes 4 --gpus-per-node 4 --hardware h200 -q") == plan("--gpus 16 --nodes 4 --hardware h200 -q")
    assert "one domain (NVLink 5)" in plan("--nodes 18 --gpus-per-node 4")


def test_what_a_recipe_leaves_open_is_planned() -> None:
    recipe = compose(None, ["parallel.ulysses=4", "parallel.order=[ulysses, cfg]"], {"model": "wan2.1-1.3b"})
    best = recommend.recommend(ask_for(recipe, 16, find("h200"))).best.plan
    assert best.degrees.ulysses == 4 and best.order[:2] == ("ulysses", "cfg") and best.world_size == 16
    assert best.facts.name == "wan2.1-t2v-1.3b"


def test_a_given_order_is_kept(plan: Any) -> None:
    found = json.loads(plan("--gpus 16 --hardware h200 --order ulysses,cfg --json"))
    assert found["candidates"][0]["order"][:2] == ["ulysses", "cfg"]
    free = json.loads(plan("--gpus 16 --hardware h200 --json"))["candidates"][0]
    assert free["order"] == ["cfg", "ulysses"] and free["denoise_s"] < found["candidates"][0]["denoise_s"]


def test_few_tokens_are_advice_and_no_error(plan: Any) -> None:
    assert "tokens a rank" in plan("--gpus 4608") and "tokens a rank" not in plan("--gpus 72")
    assert json.loads(plan("--gpus 4608 --cfg 1 --ulysses 8 --attn2d 24x24 --size 64x64 --json"))["candidates"]


def test_quiet_prints_the_plan_alone(plan: Any) -> None:
    assert plan("--gpus 72 -q") == "cfg2 ulysses4 attn2d3x3 vae8\n"


def test_a_picture_is_drawn(plan: Any, tmp_path: Path) -> None:
    from PIL import Image

    picture = tmp_path / "p.png"
    plan(f"--gpus 8 --plot {picture}")
    assert Image.open(picture).size[0] > 1500
    assert f"nearest: {tmp_path / 'p-2.png'}" in plan(f"--gpus 8 --plot {picture}", code=2)
    refused = plan(f"--gpus 8 --plot {tmp_path / 'x.jpgx'}", code=2)
    assert f"nearest: {tmp_path / 'x.png'}" in refused and refused.endswith(f"--plot {tmp_path / 'x.png'}\n")


def test_the_picture_names_the_clip_and_promises_no_more_than_ideal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    bands, titles = [], []
    monkeypatch.setattr(Axes, "fill_between", lambda self, *band, **_: bands.append(band))
    monkeypatch.setattr(Figure, "suptitle", lambda self, title, **_: titles.append(title))
    words = f"plan --gpus 8 --hardware rtx4090 --model wan2.1-1.3b --frames 80 -q --plot {tmp_path / 'p.png'}"
    assert call(shlex.split(words)) == 0
    ((gpus, low, high),) = bands
    assert (
        gpus == [1, 2, 4, 8]
        and high[1:3] == [2, 4]
        and all(a <= b <= n for n, a, b in zip(gpus, low, high, strict=True))
    )
    assert titles == ["wan2.1-t2v-1.3b, 832x480, 80 frames, 50 steps, on RTX 4090 (predicted)"]


def test_a_picture_needs_matplotlib(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    assert plan("--gpus 8 --plot p.png", code=2).startswith("error[plot]: ")


@pytest.mark.parametrize(
    "flags",
    [
        "--gpus 72 --frames 80",
        "--gpus 64 --hardware h200 --guidance 6",
        "--gpus 8 --pipefusion 2 --patches 4 --warmup 2",
        "--gpus 4 --model demo --hardware cpu --dtype bfloat16",
    ],
)
def test_the_saved_recipe_is_the_plan(flags: str, plan: Any, tmp_path: Path) -> None:
    """Degrees, order, clip and dtype come back from the file."""
    file = tmp_path / "r.yaml"
    plan(f"{flags} --save {file}")
    found = json.loads(plan(f"{flags} --json"))
    saved, first = resolve(compose(file, [], {})), found["candidates"][0]
    assert str(saved.degrees) == first["config"] and saved.dtype == found["request"]["dtype"]
    assert [axis for axis in saved.order if saved.degrees.size(axis) > 1] == first["order"]
    assert saved.clip.guidance == found["request"]["guidance"]
    assert saved.latent_shape[1] == found["request"]["latent_frames"]
    assert (saved.patches, saved.warmup) == ((4, 2) if "--patches" in flags else (0, 1))
    assert plan(f"{flags} --save {file}", code=2).endswith(f"--save {tmp_path / 'r-2.yaml'}\n")


@pytest.mark.parametrize("flags", ["--gpus 72", "--gpus 64 --hardware h200", "--gpus 8 --pipefusion 2 --warmup 3"])
def test_the_printed_command_runs_the_plan(flags: str, plan: Any) -> None:
    line = next(line for line in plan(flags).splitlines() if line.startswith("run "))
    words = shlex.split(line.removeprefix("run"))
    assert call([*words[1:], "--dry-run"]) == 0  # words[0] is hybridgen


# JSON


def test_json_has_the_documented_form(plan: Any) -> None:
    found = json.loads(plan("--gpus 72 --heads 40 --frames 80 --json"))
    assert list(found) == [
        "schema", "request", "model", "hardware", "world_size", "one_gpu_denoise_s", "candidates", "rejected",
    ]  # fmt: skip
    assert found["world_size"] == 72 and found["model"] == "wan2.2-t2v-a14b"
    assert found["request"]["frames"] == 80 and found["request"]["latent_frames"] == 20
    first = found["candidates"][0]
    assert first["config"] == "cfg2 ulysses4 attn2d3x3 vae8" and first["exact"] is True and first["tie"] is False
    degrees = {"cfg": 2, "pipefusion": 1, "tp": 1, "ring": 1, "attn2d": [3, 3], "ulysses": 4, "vae": 8}
    assert first["degrees"] == degrees and first["order"] == ["cfg", "row", "col", "ulysses"]
    low, high = first["range_s"]
    assert low < first["denoise_s"] < high and first["denoise_s"] == pytest.approx(7.04, rel=0.05)
    assert first["end_to_end_s"] == pytest.approx(9.20, rel=0.05)
    assert first["speedup"] == pytest.approx(found["one_gpu_denoise_s"] / first["denoise_s"], rel=1e-3)
    assert first["efficiency"] == pytest.approx(first["speedup"] / 72, rel=1e-3)
    assert 57 < first["memory_gb"]["weights"] < first["memory_gb"]["peak"] < 80
    assert set(first["bytes_per_step"]) == {"cfg", "row", "col", "ulysses"} <= set(AXES)
    assert sum(first["seconds"].values()) == pytest.approx(first["denoise_s"], rel=1e-3)
    assert all(isinstance(why, str) for c in found["candidates"] for why in c["why"])
    rejected = found["rejected"][0]
    assert set(rejected) == {"config", "rule", "message", "nearest"} and rejected["rule"] in rules()
    configs = [c["config"] for c in found["candidates"]]
    assert rejected["nearest"] in configs and len(configs) == len(set(configs)) == 106


def test_docs_name_every_key_of_the_json(plan: Any) -> None:
    text = (ROOT / "docs" / "planner-reference.md").read_text()
    found = json.loads(plan("--gpus 8 --json"))
    keys = {
        *found,
        *found["request"],
        *found["candidates"][0],
        *found["rejected"][0],
        *found["candidates"][0]["degrees"],
    }
    assert not [key for key in keys if f"`{key}`" not in text]


def test_heads_change_legality_and_not_the_hidden_size(plan: Any) -> None:
    sent = {}
    for heads in (40, 32):
        found = json.loads(plan(f"--gpus 8 --heads {heads} --json"))["candidates"]
        sent[heads] = {c["config"]: c["bytes_per_step"] for c in found}
        wide = json.loads(plan(f"--gpus 64 --heads {heads} --json"))["candidates"]
        assert max(c["degrees"]["ulysses"] for c in wide) == {40: 8, 32: 32}[heads]
    assert sent[40]["cfg2 ulysses4 vae8"] == sent[32]["cfg2 ulysses4 vae8"]


def test_all_axes_fixed_price_exactly_that_plan(plan: Any) -> None:
    for flags in (f"--gpus 72 {PUBLISHED}", PUBLISHED, "--gpus 16 --tp 2 --ulysses 4 --ring 2 --vae 4"):
        found = json.loads(plan(f"{flags} --json"))
        assert len(found["candidates"]) == 1
        degrees = found["candidates"][0]["degrees"]
        assert all(
            str(degrees[name]) == value for name, value in re.findall(r"--(cfg|ulysses|tp|ring|vae) (\d+)", flags)
        )
    assert "error[ulysses-heads]" in plan("--gpus 72 --cfg 2 --ulysses 36", code=2)
    assert "error[cfg-guidance]" in plan("--gpus 8 --cfg 2 --ulysses 4 --guidance 1", code=2)


def test_a_model_of_one_s_own(plan: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "name: mine\nlayers: 48\nheads: 32\nkv_heads: 8\nhead_dim: 128\nffn: 14336\ngated: true\nparams: 14e9\n"
        "text_tokens: 256\nsize: 832x480\nstride_time: 4\npatch: [1, 2, 2]\n"
    )
    found = json.loads(plan(f"--model-facts {file} --gpus 8 --hardware h100 --json"))
    assert found["model"] == "mine" and found["request"]["tokens"] == 21 * 30 * 52
    assert found["candidates"][0]["memory_gb"]["weights"] == 28.0
    assert all(8 % c["degrees"]["ulysses"] == 0 for c in found["candidates"])
    assert "run      nothing: mine is known from" in plan(f"--model-facts {file} --gpus 8")
    file.write_text("layers: 4\nhead: 8\n")
    assert "unknown key head; did you mean heads?" in plan(f"--model-facts {file} --gpus 8", code=2)
    file.write_text("layers: 4\nheads: 8\n")
    assert "does not say head_dim, ffn" in plan(f"--model-facts {file} --gpus 8", code=2)


def test_an_example_of_such_a_model(plan: Any) -> None:
    out = plan(f"--model-facts {ROOT}/examples/hunyuanvideo.yaml --gpus 8 --hardware h100")
    assert "hunyuanvideo  1280x720, 129 frames, 50 steps, no guidance" in out and "1  ulysses8 vae8" in out


def test_a_mixture_of_transformers(plan: Any) -> None:
    """Cosmos3-Super on 72 GPUs: published 6.79 s with a 3x3 grid, and 11.78 s end to end."""
    flags = "--model cosmos3-super --gpus 72 --hardware gb200-nvl72"
    published = json.loads(plan(f"{flags} {PUBLISHED} --json"))["candidates"][0]
    assert published["denoise_s"] == pytest.approx(6.79, rel=0.10)
    assert published["end_to_end_s"] == pytest.approx(11.78, rel=0.10)
    assert published["memory_gb"]["weights"] == pytest.approx(128 / 2, rel=0.05)  # of 64 B parameters, the video's
    best = json.loads(plan(f"{flags} --json"))["candidates"][0]
    rows, cols = best["degrees"]["attn2d"]
    assert rows > cols  # 8 K/V heads of 64: gathering them costs an eighth of gathering queries
    assert (best["degrees"]["cfg"], best["degrees"]["ulysses"]) == (2, 4)
    assert best["denoise_s"] < published["denoise_s"]
    assert "taller than square: 8 K/V heads against 64" in best["why"][1]
    assert "taller than square" not in plan("--gpus 32 --cfg 2 --ulysses 8 --attn2d 2x1")  # Wan's heads all have K/V


# Refusals


@pytest.mark.parametrize(
    ("flags", "rule", "says"),
    [
        ("--gpus 8 --ulysses 6 --cfg 2", "ulysses-heads", "of wan2.2-t2v-a14b; nearest: cfg2 ulysses4 vae8, "),
        ("--gpus 8 --ulysses 5", "no-plan", "no legal plan has 8 GPUs with --ulysses 5"),
        ("--gpus 8 --vae 9", "vae-width", "nearest: 8"),
        ("--gpus 3 --cfg 2 --vae 8", "no-plan", "with --cfg 2 --vae 8"),
        ("--gpus 8 --patches 4", "pipefusion-only", "--patches 4"),
        ("--gpus 72 --max-time 5s", "max-time", "288 GPUs as cfg2 ulysses8"),
        ("--gpus 2 --memory 40GB --cfg 2", "memory", "nearest: 8 GPUs as cfg2 tp2 ulysses2 vae8"),
        ("--gpus 8 --memory 15GB", "memory", "needs 19.5 GB on a GPU, more than --memory 15GB; nearest: 32 GPUs"),
        ("--gpus 8 --memory 10GB", "memory", "none for up to 128 GPUs will: the text encoder alone takes 11.4 GB"),
        ("--gpus 8 --memory 13GB", "memory", "the text encoder and the context alone take 13.4 GB, which no split"),
        ("--gpus 8 --ulysses 3", "ulysses-heads", "nearest: ulysses8 vae8, "),
        ("--gpus 8 --cfg 1 --max-time 1s", "max-time", "no plan for 8 x GB200 will do: "),
        ("--gpus 8 --hardware rtx4090 --ulysses 8", "memory", "with --ulysses 8 will do: "),
        (
            "--model cosmos2.5-14b --gpus 3 --hardware rtx4090 --frames 17 --ring 2 --dtype float32",
            "memory",
            "no legal plan has 3 GPUs with --ring 2; no plan for 3 x RTX 4090 will do: ",
        ),
        (
            "--model cosmos3 --gpus 9 --frames 80 --ulysses 3 --ring 3 --hardware rtx4090",
            "memory",
            "nearest: 8 GPUs as cfg2 tp4 vae8",
        ),
        ("--gpus 8 --plot /nonexistent/x.png", "output-folder", "x.png cannot be written: No such file or directory"),
        ("--gpus 8 --memory much", "quantity", "--memory 40GB"),
        ("--gpus 8 --memory 40", "quantity", "--memory 40GB"),
        ("--gpus 8 --max-time 0s", "quantity", "--max-time 90s"),
        ("--gpus 8 --hardware h20000", "unknown-hardware", "nearest: h200"),
        ("--gpus 8 --anchor 0.001", "anchor", "is no denoise time of one GB200; predicted: 372"),
        *((f"--gpus 8 --anchor={value}", "anchor", f"--anchor {value} must be a number") for value in BAD_ANCHORS),
        ("--gpus 8 --explain 99", "explain", "nearest: 6"),
        ("--gpus 8 --top 0", "top", "nearest: 1"),
        ("--gpus 9 --nodes 2 --gpus-per-node 4", "gpus", "nearest: 8"),
        ("--gpus 8 --nodes 0", "gpus", "nearest: 1"),
        ("--gpus 8 --heads 32 --save x.yaml", "save", "has 40"),
        ("--gpus 9 --nodes 2", "gpus", "cannot be spread over --nodes 2; nearest: 8"),
        ("--model-facts nothere.yaml --gpus 8", "model-facts", "No such file"),
        ("--model demo --model-facts x.yaml --gpus 8", "model-facts", "two models"),
    ],
)
def test_a_request_that_cannot_be_planned_is_refused(flags: str, rule: str, says: str, plan: Any) -> None:
    first, *rest = plan(flags, code=2).splitlines()
    assert first.startswith(f"error[{rule}]: ") and says in first and rule in rules()
    for line in rest:
        if line.startswith("  try:  hybridgen plan "):  # what is suggested works
            plan(line.removeprefix("  try:  hybridgen plan "))


def test_every_rule_can_be_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """Every id that the source raises, and those that --rejected shows."""
    pattern = re.compile(r"(?:RequestError(?:\.told)?|RunFailed|Violation|not_legal)\(\s*\"([a-z0-9-]+)\"")
    files = [file for room in ("hybridgen", "cli", "strategies") for file in (ROOT / room).rglob("*.py")]
    raised = {rule for file in files for rule in pattern.findall(file.read_text())}
    assert len(raised) > 40 and not raised - rules().keys()
    for rule in ("ulysses-heads", "memory"):
        assert call(["explain", rule.upper()]) == 0
        assert capsys.readouterr().out == f"{rule}  {rules()[rule]}\n"
    assert call(["explain", "ulysses-head"]) == 2
    assert "nearest: ulysses-heads" in capsys.readouterr().err
    assert call(["explain"]) == 0
    assert all(rule in capsys.readouterr().out for rule in [*rules()][:1])


@pytest.mark.parametrize(
    ("words", "plan"),
    [
        ("--model wan2.2 --gpus 8 --hardware h100", "cfg2 ulysses4 vae8"),
        ("--model wan2.2 --gpus 72 --hardware gb200-nvl72", "cfg2 ulysses4 attn2d3x3 vae8"),
        ("--model wan2.2 --gpus 8 --auto --ring 2 --hardware h100", "cfg2 ulysses2 ring2 vae8"),
        ("--model wan2.2 --gpus 4 --auto --pipefusion 4:9,9,11,11 --hardware h100", "pipefusion4 vae4"),
        ("--model demo --gpus 2 --device cpu", "cfg2"),
        ("--model demo --gpus 2 --cfg 2 --vae 2", "cfg2 vae2"),
    ],
)
def test_run_lets_the_planner_choose_what_is_open(words: str, plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", *words.split(), "--dry-run"]) == 0
    out, said = capsys.readouterr()
    assert f"plan    {plan}     " in out
    chosen = said.startswith(f"planner {plan} on ") and "of denoising predicted" in said
    assert chosen == ("--auto" in words or "--cfg" not in words)


def test_a_driver_s_name_finds_its_machine() -> None:
    from hybridgen.planner.choose.fill import machine_of

    names = {
        "NVIDIA H100 80GB HBM3": "h100",
        "NVIDIA H100 PCIe": "h100-pcie",
        "NVIDIA GB200": "gb200-nvl72",
        "NVIDIA B200": "b200",
        "NVIDIA A100-SXM4-80GB": "a100",
        "NVIDIA GeForce RTX 4090": "rtx4090",
        "NVIDIA L40S": "l40s",
        "cpu": "cpu",
    }
    assert {device: machine_of(device).name for device in names} == names
    with pytest.raises(RequestError, match="no machine that the planner knows"):
        machine_of("NVIDIA Tesla P4")


def test_a_number_that_splits_badly_is_told_a_better_one(plan: Any) -> None:
    assert "64 GPUs are faster than 71" in plan("--gpus 71") and recommend.widths(71)[-3:] == [68, 70, 71]
    assert plan("--gpus 71 --fewer -q") == "cfg2 ulysses8 attn2d2x2 vae8\n"
    assert "fewer!" not in plan("--gpus 72")
    assert "nearest: 64 GPUs as " in plan("--gpus 71 --max-time 10s", code=2)
    assert "nearest: 8 GPUs as " in plan("--gpus 7 --max-time 60s", code=2)


def test_several_hosts_are_started_by_a_launcher(plan: Any) -> None:
    assert "torchrun --nnodes 2 --nproc-per-node 8 ... -m hybridgen run" in plan("--gpus 16 --hardware h100")
    assert "torchrun" not in plan("--gpus 8 --hardware h100")


def test_what_others_measured_of_the_request_stands_beside_the_prediction(plan: Any) -> None:
    """Of the same clip, machine and number of GPUs, in whatever split."""
    took = r"^known +cfg2 ulysses4 attn2d3x3 vae8 took {} s \(published, TensorRT-LLM VisualGen\), predicted (\S+) s"
    cosmos = plan("--model cosmos3-super --gpus 72 --hardware gb200-nvl72")
    assert 0.9 <= float(re.search(took.format("6.79"), cosmos, re.MULTILINE)[1]) / 6.79 <= 1.1  # type: ignore[index]
    assert re.search(took.format("7.04"), plan("--gpus 72 --frames 80"), re.MULTILINE)
    for other in (
        "--gpus 72",
        "--gpus 72 --frames 80 --steps 50",
        "--gpus 36 --frames 80",
        "--gpus 72 --hardware b200",
    ):
        assert "known " not in plan(other)
