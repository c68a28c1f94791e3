"""Recipe files: one schema, one canonical text, a check that names lines, and evidence that is typed. No torch."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from hybridgen.cli.main import call
from hybridgen.models.catalogue import DEFAULT_MODEL
from hybridgen.recipe import library
from hybridgen.recipe.check import check
from hybridgen.recipe.compose import compose, read
from hybridgen.recipe.fields import Hardware, Measured, Recipe, Request
from hybridgen.recipe.resolve import resolve
from hybridgen.recipe.results import mismatch
from hybridgen.recipe.text import dumps, json_schema, plain
from hybridgen.recipe.typed import hints, trusted
from tests.support.recipes import declared_in

ROOT = Path(__file__).parents[2]
SHELF = sorted((ROOT / "recipes").glob("*.yaml"))
GOOD = "schema: 1\nlicense: MIT\nmodel: demo\n"


@pytest.mark.parametrize("path", SHELF, ids=lambda path: path.stem)
def test_every_recipe_is_checked_and_canonical(path: Path) -> None:
    assert check(path) == []
    recipe = compose(path, [], {})
    assert dumps(recipe) == path.read_text(encoding="utf-8")
    assert trusted(Recipe, read(path).content) == recipe
    assert resolve(recipe).world_size == recipe.hardware.gpus


def test_the_shelf_holds_what_it_should() -> None:
    recipes = [compose(path, [], {}) for path in SHELF]
    worlds = {(recipe.model, recipe.hardware.gpus) for recipe in recipes}
    assert worlds >= {(model, gpus) for model in ("wan2.2", "wan2.1-1.3b") for gpus in (1, 2, 4, 8)} | {("demo", 4)}
    assert worlds >= {("cosmos3-super", gpus) for gpus in (4, 8, 72)} | {("wan2.2-i2v", 8)}
    assert worlds >= {("cosmos-predict2.5-2b", gpus) for gpus in (1, 8)}
    rack = compose(library.located(Path("wan22-t2v-720p-gb200-nvl72")), [], {})
    (published,) = rack.measured
    assert (published.status, published.denoise_s, published.end_to_end_s) == ("published", 7.04, 9.2)
    assert str(published.source).startswith("https://") and published.request.frames == 80
    assert str(resolve(rack).degrees) == "cfg2 ulysses4 attn2d3x3 vae8"


@pytest.mark.parametrize(
    "notes",
    ["a: b", "# no comment", "two\nlines", "x" * 300, "many words " * 30, "1e3", "null", " lead", "-", "2026-11-30"],
)
def test_what_is_written_is_read_back(notes: str, tmp_path: Path) -> None:
    result = Measured("verified", request=Request(steps=3), denoise_s=3.0, software={"torch": "2.9"}, notes=notes)
    recipe = Recipe(license=notes, notes=notes, hardware=Hardware(notes, 2), measured=[result, Measured("planned")])
    file = tmp_path / "r.yaml"
    file.write_text(dumps(recipe), encoding="utf-8")
    assert compose(file, [], {}) == recipe


@pytest.mark.parametrize("stages", ["2", "'2:1,3'"])
def test_stages_are_a_number_or_text(stages: str, tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(f"{GOOD}parallel: {{pipefusion: {stages}}}\n")
    assert check(file) == []


# Schema


def test_the_schema_is_the_typed_object() -> None:
    schema = json_schema()

    def compare(kind: Any, found: dict[str, Any]) -> None:
        assert list(found["properties"]) == [item.name for item in fields(kind)]
        assert found["additionalProperties"] is False
        for item in fields(kind):
            part = found["properties"][item.name]
            assert part["description"] == item.metadata["description"]
            if (inner := declared_in(hints(kind)[item.name])) is not None:
                compare(inner, part.get("items", part))

    compare(Recipe, schema)
    assert schema["properties"]["measured"]["items"]["properties"]["status"]["enum"] == [
        "verified",
        "published",
        "planned",
    ]
    assert schema["properties"]["request"]["properties"]["guidance"]["type"] == "number"


# Evidence


@pytest.mark.parametrize(
    ("hardware", "measured_on", "device", "ranks", "says"),
    [
        (Hardware("gb200-nvl72", 72), None, "NVIDIA GB200", 72, None),
        (Hardware("gb200-nvl72", 72), None, "NVIDIA B200", 72, "is for gb200-nvl72; here: NVIDIA B200"),
        (Hardware("b200", 8), None, "NVIDIA GB200", 8, "is for b200"),
        (Hardware("h100", 8), None, "NVIDIA H100 80GB HBM3", 4, "is for 8 ranks; here: 4"),
        (Hardware(None, 1), "rtx-4090", "NVIDIA GeForce RTX 4090", 1, None),
        (Hardware(None, 1), "rtx-4090", "NVIDIA GeForce RTX 3090", 1, "was measured on rtx-4090; here: NVIDIA GeForce"),
        (Hardware("h100", 1), "gb200", "NVIDIA H100 PCIe", 1, "was measured on gb200"),
        (Hardware(None, 1), None, "NVIDIA H100 PCIe", 1, None),
        (Hardware("cpu", 4), None, "cpu", 4, None),
        (Hardware(), None, "cpu", 3, None),
    ],
)
def test_other_hardware_is_named(
    hardware: Hardware, measured_on: str | None, device: str, ranks: int, says: str | None
) -> None:
    measured = [Measured("published", hardware=measured_on, denoise_s=1.0)] if measured_on else []
    found = mismatch(Recipe(hardware=hardware, measured=measured), device, ranks)
    assert found is None if says is None else found is not None and says in found


def test_run_warns_on_other_hardware(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridgen.engine.launch.launch", lambda job, *_: job.report({}, [], [], ""))
    monkeypatch.chdir(tmp_path)
    words = ["run", "--recipe", "demo", "--device", "cpu", "-p", "a red circle moves right"]
    warning = "warning: this recipe is for h100; here: cpu"
    assert call(words) == 0 and "warning" not in capsys.readouterr().err
    assert call([*words, "--set", "hardware.name=h100"]) == 0 and warning in capsys.readouterr().err
    assert call([*words, "--set", "hardware.name=h100", "-q"]) == 0 and capsys.readouterr().err == ""


# Verbs


def test_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["recipes", "list"]) == 0
    out = capsys.readouterr().out
    assert all(path.stem in out for path in SHELF)
    (row,) = [line.split() for line in out.splitlines() if "wan22-t2v-720p-gb200" in line]
    assert row[-5:] == ["published", "gb200-nvl72", "72", "7.04", "9.2"]
    assert call(["recipes", "list", "--json", "demo"]) == 0
    (demo,) = json.loads(capsys.readouterr().out)
    assert (demo["gpus"], demo["split"], demo["measured"]) == (4, "cfg2 ulysses2 vae2", [])
    assert call(["recipes", "show", "wan22-t2v-720p-2gpu"]) == 0
    out = capsys.readouterr().out
    assert "published  denoise 179.96 s; on gb200 with TensorRT-LLM VisualGen" in out
    assert "run        hybridgen run --recipe wan22-t2v-720p-2gpu -p" in out
    assert call(["recipes", "show", "wan22-i2v-720p-8gpu"]) == 0
    assert "--recipe wan22-i2v-720p-8gpu --image image.png -p" in capsys.readouterr().out


def test_an_error_is_data_for_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("schema: 1\nmodle: demo\n")
    assert call(["recipes", "show", "--json", str(file)]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["rule"], error["flag"], error["nearest"]) == ("recipe-key", "modle", ["model"])
    assert error["place"] == {"file": str(file), "line": 2, "column": 1}


def test_a_result_without_words_is_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(GOOD + "measured: [{status: null, denoise_s: 3, software: null}]\n")
    assert call(["recipes", "show", str(file)]) == 0
    assert "-          denoise 3 s; on " in capsys.readouterr().out


def test_the_model_s_licence_is_shown_and_saved(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The recipe's own word for it, or what the facts say."""
    assert call(["recipes", "show", "demo"]) == 0  # names none
    assert ", Apache-2.0\n" in capsys.readouterr().out
    file = tmp_path / "r.yaml"
    for model, licence in (("wan2.1", "Apache-2.0"), ("cosmos3", "LicenseRef-NVIDIA-Open-Model-License")):
        assert call(["plan", "--model", model, "--gpus", "8", "--hardware", "b200", "--save", str(file)]) == 0
        assert compose(file, [], {}).checkpoint.license == licence
        capsys.readouterr()
        assert call(["recipes", "show", str(file)]) == 0
        assert licence in capsys.readouterr().out
        file.unlink()


def test_a_recipe_is_found_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("wan21-t2v-1.3b-480p-1gpu", "demo"):
        assert library.located(Path(name)).name == f"{name}.yaml"
    assert call(["run", "--recipe", "720p-gb200-nvl72", "--dry-run"]) == 2
    assert "nearest: cosmos3-super-720p-gb200-nvl72, wan22-t2v-720p-gb200-nvl72" in capsys.readouterr().err
    assert call(["recipes", "show", str(tmp_path / "nothere.yaml")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_a_flag_wins_over_set_and_set_over_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("model: demo\nrequest: {steps: 9, frames: 5}\nparallel: {usp: 2x1}\n")
    settings = "--set request.frames=9 --set request.steps=4 --steps 2 --dry-run".split()
    assert call(["run", "--recipe", str(file), *settings]) == 0
    out = capsys.readouterr().out
    assert "9 frames" in out and " 2 steps" in out and "ulysses2" in out


def test_the_verbs_do_not_import_torch() -> None:
    program = (
        "import sys; from hybridgen.cli.main import call;"
        "words = ('list', 'check', 'schema', 'show demo', 'export wan22-t2v-720p-8gpu --to trtllm');"
        "codes = [call(['recipes', *w.split()]) for w in words];"
        "sys.exit(any(codes) or any(m in sys.modules for m in ('torch', 'diffusers', 'transformers', 'numpy')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr.decode()


def test_the_defaults_of_an_empty_recipe() -> None:
    assert plain(Recipe()) == {"schema": 1} and yaml.safe_load(dumps(Recipe())) == {"schema": 1}
    assert resolve(Recipe()).facts.name == DEFAULT_MODEL
