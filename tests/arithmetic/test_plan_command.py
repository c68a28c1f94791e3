"""hybridgen plan and explain as a user meets them: what is recommended, the pages, the JSON, the refusals."""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from hybridgen.cli.main import call
from hybridgen.errors import RequestError
from hybridgen.models import catalogue
from hybridgen.plan.plan import Clip
from hybridgen.planner.choose import recommend
from hybridgen.planner.choose.ask import ask_for
from hybridgen.planner.hardware.lookup import find
from hybridgen.recipe.check import check
from hybridgen.recipe.compose import compose
from hybridgen.recipe.resolve import resolve

WAN22 = catalogue.find("wan2.2")
PUBLISHED_CLIP = Clip(1280, 720, 77, 40, 4.0)
PUBLISHED = "--cfg 2 --ulysses 4 --attn2d 3x3 --vae 8"


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
    assert re.search(r"ring9 vae8 .* \d\d% .* [\d.]+ s slower: ring \+[\d.]+ s", out)
    assert re.search(r"\d\.\d-\d\.\d .* 6\d% ", first)
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
    assert sum(spent) == pytest.approx(7.04, rel=0.05)
    for name, constant in find("gb200").constants():
        assert re.search(rf"^{re.escape(name)} +\S+ +{re.escape(constant.origin.split()[0])}", out, re.M), name


def test_mesh_order_is_explained(plan: Any) -> None:
    out = plan("--gpus 16 --hardware h200")
    assert "ulysses stays inside a node; cfg crosses nodes" in out


def test_rejected_names_rule_and_neighbour(plan: Any) -> None:
    out = plan("--gpus 72 --rejected")
    assert re.search(r"cfg2 ulysses3 attn2d4x3 +ulysses-heads +cfg2 ulysses4 attn2d3x3 vae8", out)
    assert "--ulysses 3: does not divide the 40 heads" in out
    out = plan("--gpus 8 --hardware h100 --rejected")
    for degrees, rule in (("cfg2 ulysses3", "ulysses-heads"), ("cfg2 ulysses7", "ulysses-heads"), ("cfg3", "cfg-")):
        assert re.search(rf"^{degrees}\b.* {rule}.* +cfg2 ", out, re.M)
    assert "vae17" not in out
    out = plan("--gpus 8 --hardware h100 --attn2d 2x1 --rejected")
    assert all("attn2d2x1" in line for line in out.splitlines() if re.match(r"(cfg|ulysses|tp|ring)\d", line))
    out = plan("--gpus 8 --hardware rtx4090 --rejected")
    assert re.search(r"cfg2 ulysses4 vae8 +memory +tp4 ulysses2 vae8", out)


def test_the_saved_recipe_keeps_what_was_asked(plan: Any, tmp_path: Path) -> None:
    file, words = tmp_path / "r.yaml", "-p boat --negative-prompt blur --seed 5 --fps 24 --guidance 3 --steps 8"
    plan(f"--gpus 8 --hardware h100 {words} --save {file}")
    saved = compose(file, [], {})
    assert (saved.request.prompt, saved.request.negative_prompt) == ("boat", "blur")
    kept = (saved.request.seed, saved.request.fps, saved.request.guidance, saved.request.steps)
    assert kept == (5, 24, 3.0, 8) and saved.request.guidance_2 is None
    given = [item.name for item in fields(saved.request) if getattr(saved.request, item.name) is not None]
    assert len(given) == 8 and not check(file)


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
    found = json.loads(plan("--gpus 16 --hardware h200 --cfg 2 --ulysses 8 --order ulysses,cfg --json"))
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
    assert saved.options == ({"patches": 4, "warmup": 2} if "--patches" in flags else {})
    assert saved.used_options() == first["options"]
    assert plan(f"{flags} --save {file}", code=2).endswith(f"--save {tmp_path / 'r-2.yaml'}\n")


@pytest.mark.parametrize("flags", ["--gpus 72", "--gpus 64 --hardware h200", "--gpus 8 --pipefusion 2 --warmup 3"])
def test_the_printed_command_runs_the_plan(flags: str, plan: Any) -> None:
    line = next(line for line in plan(flags).splitlines() if line.startswith("run "))
    words = shlex.split(line.removeprefix("run"))
    assert call([*words[1:], "--dry-run"]) == 0  # words[0] is hybridgen


def test_a_driver_s_name_finds_its_machine() -> None:
    from hybridgen.planner.hardware.names import machine_of

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
    with pytest.raises(RequestError, match="not a machine that the planner knows"):
        machine_of("NVIDIA Tesla P4")


def test_a_number_that_splits_badly_is_told_a_better_one(plan: Any) -> None:
    assert "64 GPUs are faster than 71" in plan("--gpus 71") and recommend.widths(71)[-3:] == [68, 70, 71]
    assert plan("--gpus 71 --fewer -q") == "cfg2 ulysses8 attn2d2x2 vae8\n"
    assert "fewer!" not in plan("--gpus 72")
    assert "nearest: 64 GPUs as " in plan("--gpus 71 --max-time 11s", code=2)
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


def test_a_saved_recipe_names_no_folder_of_this_machine(
    plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Paths in the working folder are written from there; of others a warning says what recipes check will."""
    monkeypatch.chdir(tmp_path)
    asked = "--gpus 8 --hardware h100 --model wan2.2-i2v"
    plan(f"{asked} --image {tmp_path / 'in/a.png'} --save r.yaml")
    assert compose(Path("r.yaml"), [], {}).request.image == "./in/a.png" and check(Path("r.yaml")) == []
    assert call(["plan", *asked.split(), "--image", "/elsewhere/a.png", "--save", "s.yaml"]) == 0
    (fault,) = check(Path("s.yaml"))
    assert f"warning: {fault.message}; it runs here" in capsys.readouterr().err and fault.rule == "recipe-private"
    assert compose(Path("s.yaml"), [], {}).request.image == "/elsewhere/a.png"
