"""Recipe files: one schema, one canonical text, a check that names lines, and evidence that is typed. No torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from hybridgen.cli.main import call
from hybridgen.errors import RequestError
from hybridgen.models.catalogue import DEFAULT_MODEL
from hybridgen.recipe import library
from hybridgen.recipe.check import check
from hybridgen.recipe.fields import CLASSES, Hardware, Measured, Recipe, Request, compose, held_by
from hybridgen.recipe.resolve import resolve
from hybridgen.recipe.results import mismatch
from hybridgen.recipe.text import dumps, json_schema, plain

ROOT = Path(__file__).parents[2]
SHELF = sorted((ROOT / "recipes").glob("*.yaml"))
GOOD = "schema: 1\nlicense: MIT\nmodel: demo\n"
RESULT = "measured:\n  - status: "


@pytest.mark.parametrize("path", SHELF, ids=lambda path: path.stem)
def test_every_recipe_is_checked_and_canonical(path: Path) -> None:
    assert check(path) == []
    recipe = compose(path, [], {})
    assert dumps(recipe) == path.read_text(encoding="utf-8")
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


# Check

FAULTS = [
    ("model: demo\nrequest: {stesp: 3}\n", "2:11: recipe-key: unknown key request.stesp; did you mean steps?"),
    ("model: demo\nmodel: wan2.2\n", "2:1: recipe-key: model is given twice"),
    (RESULT + "planned\n    denois_s: 3\n", "3:5: recipe-key: unknown key measured.denois_s; did you mean denoise_s?"),
    ("parallel: {cfg: two}\n", "1:12: recipe-value: parallel.cfg is 'two' and must be a whole number"),
    (RESULT + "planned\n    denoise_s: fast\n", "3:5: recipe-value: measured.0.denoise_s is 'fast'"),
    ("hardware: h100\n", "1:1: recipe-value: hardware is 'h100' and must hold keys of its own"),
    ("measured: 7.04\n", "1:1: recipe-value: measured is 7.04 and must be a list of entries"),
    (RESULT + "planned\n    software: {torch: 2.9}\n", "recipe-value: measured.0.software must hold names and text"),
    ("model: dmo\n", "1:1: unknown-model: --model dmo"),
    ("model: demo\nparallel: {ulysses: 3}\n", "2:12: ulysses-heads: --ulysses 3 does not divide"),
    ("model: demo\nhardware: {gpus: 3}\n", "2:12: recipe-hardware: hardware.gpus is 3, and the degrees make 1"),
    ("checkpoint: {revision: main}\n", "1:14: recipe-revision: main is no commit"),
    ("notes: see /home/ann/clip.mp4\n", "1:1: recipe-private: notes carries an absolute path: /home/ann/clip.mp4"),
    ("notes: ran on gpu-04.corp\n", "recipe-private: notes carries a host name: gpu-04.corp"),
    ("notes: at 10.0.0.7\n", "recipe-private: notes carries an address: 10.0.0.7"),
    ("request: {prompt: hf_abcdefghijklmnopqrst}\n", "recipe-private: request.prompt carries a token"),
    ("model: demo # mine\n", "1:1: recipe-comment: a comment here is lost"),
    (
        "parallel: {vae: 1,   cfg: 1}\n",
        "1:1: recipe-form: not canonical; recipes check --fix writes: parallel: {cfg: 1",
    ),
    (RESULT + "guessed\n    denoise_s: 3\n", "2:5: recipe-measured: status guessed is unknown; nearest: verified"),
    (RESULT + "published\n    denoise_s: 3\n", "an entry that is published needs source"),
    (RESULT + "verified\n    denoise_s: 3\n", "an entry that is verified needs date and n and software"),
    (RESULT + "planned\n    denoise_s: 3\n    n: 2\n", "4:5: recipe-measured: an entry that is planned has no n"),
    (RESULT + "planned\n    n: 2\n", "the entry has no figure"),
    (RESULT + "planned\n    denoise_s: -3\n", "denoise_s is -3 and must be above 0"),
    (RESULT + "planned\n    denoise_s: 3\n    date: 30.11.2026\n", "date is 30.11.2026 and must be YYYY-MM-DD"),
    (RESULT + "planned\n    denoise_s: 3\n    request: {frames: 0}\n", "4:15: recipe-measured: request.frames is 0"),
    (RESULT + "planned\n    denoise_s: 3\n    request: {guidance: .nan}\n", "request.guidance is nan and must be a"),
    (RESULT + "planned\n    denoise_s: 3\n    request: {size: big}\n", "write it as in request.size: 1280x720"),
    (RESULT + "planned\n    denoise_s: 3\n    software: {a: '1', a: '2'}\n", "software.a is given twice"),
    ("1: 2\n", "1:1: recipe-key: unknown key 1; known: schema"),
    (
        "model: demo\nrequest: {steps: 1" + 400 * "0" + "}\n",
        "request.steps has 401 digits; nearest: 1844",
    ),
    ("model: demo\nrequest: {guidance: 1" + 400 * "0" + "}\n", "recipe-value: request.guidance has 401 digits"),
]


@pytest.mark.parametrize(("text", "says"), FAULTS, ids=[says for _, says in FAULTS])
def test_a_fault_is_found_where_it_stands(text: str, says: str, tmp_path: Path) -> None:
    """`text` follows a good start, so that the fault is the file's only one; lines count from there."""
    start = GOOD.replace("model: demo\n", "") if "model:" in text else GOOD
    file = tmp_path / "r.yaml"
    file.write_text(start + text, encoding="utf-8")
    found = [str(fault).removeprefix(f"{file}:") for fault in check(file)]
    line, rest = says.split(":", 1) if says[0].isdigit() else ("", says)
    wanted = f"{int(line) + start.count(chr(10))}:{rest}" if line else rest
    assert any(fault.startswith(wanted) if line else wanted in fault for fault in found), found
    others = [fault for fault in found if wanted not in fault and "recipe-form" not in fault]
    assert len(others) <= 1, others


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "1:1: recipe-unreadable: holds no keys"),
        ("model: [\n", "2:1: recipe-unreadable: is not YAML"),
        ("notes: " + 600 * "[", "1:1: recipe-unreadable: is nested too deep"),
        ("notes: &a [*a]\n", "1:1: recipe-unreadable: is nested too deep, or an alias in it stands for what holds it"),
        ("notes: 2026-13-45\n", "1:1: recipe-unreadable: is not YAML: month must be in 1..12"),
        ("model: demo\n", "1:1: recipe-schema: has no key schema; this version reads 1"),
        ("model: demo\nschema: 2\n", "2:1: recipe-schema: has schema 2; this version reads 1"),
        ("schema: 1\nmodel: demo\n", "1:1: recipe-license: the file has no license"),
    ],
)
def test_a_file_that_is_no_recipe(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(text)
    (found,) = check(file)
    assert str(found).startswith(f"{file}:{says}")


def test_every_broken_rule_of_a_plan_is_found(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(f"{GOOD}parallel: {{cfg: 3, ulysses: 5, tp: 3}}\n")
    found = {fault.rule: (fault.line, fault.column) for fault in check(file)}
    assert found == {"cfg-degree": (4, 12), "ulysses-heads": (4, 20), "tp-heads": (4, 32)}


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "true", "x", "[]"])
def test_a_field_with_any_value_is_refused_or_read(value: str, tmp_path: Path) -> None:
    """A fault that check finds makes no traceback, and what compose and resolve refuse is one of its faults."""
    file = tmp_path / "r.yaml"
    for path in _keys(Recipe):
        first, *rest = path
        body = "".join(f"{{{name}: " for name in rest) + value + "}" * len(rest)
        body = f"[{body}]" if first == "measured" and rest else body
        content = {"schema": "1", "license": "MIT", "model": "wan2.1-1.3b", first: body}
        file.write_text("".join(f"{name}: {given}\n" for name, given in content.items()))
        faults = {fault.rule for fault in check(file)}
        try:
            resolve(compose(file, [], {}))
        except RequestError as error:
            assert error.rule in faults, (path, error)
            assert path[-1] in error.message.replace("-", "_"), (path, error)


def _keys(kind: Any) -> Iterator[tuple[str, ...]]:
    """Every key of a recipe, with those that lead to it."""
    for item in fields(kind):
        yield (item.name,)
        if (inner := held_by(item)) is not None:
            yield from ((item.name, *path) for path in _keys(inner))


def test_check_ends_with_1_and_fix_rewrites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("# mine\n\nmodel: demo\nschema: 1\nlicense: MIT\nparallel: {ulysses: 2, cfg: 2}\n")
    assert call(["recipes", "check", str(file)]) == 1
    out, err = capsys.readouterr()
    assert out.startswith(f"{file}:3:1: recipe-form: ") and err == "1 file, 1 fault\n"
    assert call(["recipes", "check", "--fix", str(file)]) == 0
    fixed = "# mine\n\nschema: 1\nlicense: MIT\nmodel: demo\nparallel: {cfg: 2, ulysses: 2}\n"
    assert file.read_text() == fixed
    assert call(["recipes", "check", "--fix", str(file)]) == 0 and file.read_text() == fixed


def test_fix_loses_no_comment(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    text = "schema: 1\nlicense: MIT\nmodel: demo\nparallel: {ulysses: 2, cfg: 2} # why\n"
    file.write_text(text)
    assert call(["recipes", "check", "--fix", str(file)]) == 1 and file.read_text() == text


def test_check_speaks_to_machines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(GOOD + "notes: 100% /home/ann/x\n")
    assert call(["recipes", "check", "--json", str(file)]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["line"], found["column"], found["rule"]) == (4, 1, "recipe-private")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert call(["recipes", "check", str(file)]) == 1
    wanted = f"::error file={file},line=4,col=1,title=recipe-private::notes carries an absolute path: /home/ann/x\n"
    assert capsys.readouterr().out == wanted


# Schema


def test_the_schema_is_the_typed_object() -> None:
    schema = json_schema()

    def compare(kind: Any, found: dict[str, Any]) -> None:
        assert list(found["properties"]) == [item.name for item in fields(kind)]
        assert found["additionalProperties"] is False
        for item in fields(kind):
            part = found["properties"][item.name]
            assert part["description"] == item.metadata["help"]
            if (inner := held_by(item)) is not None:
                compare(inner, part.get("items", part))

    compare(Recipe, schema)
    assert schema["properties"]["measured"]["items"]["properties"]["status"]["enum"] == [
        "verified",
        "published",
        "planned",
    ]
    assert schema["properties"]["request"]["properties"]["guidance"]["type"] == "number"
    assert len(CLASSES) == 6


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
    monkeypatch.setattr("hybridgen.engine.launch.launch", lambda job: None)
    monkeypatch.chdir(tmp_path)
    words = ["run", "--recipe", "demo", "--device", "cpu", "-p", "x"]
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
    assert "--recipe wan22-i2v-720p-8gpu --image picture.png -p" in capsys.readouterr().out


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
