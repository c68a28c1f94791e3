"""recipes check finds every fault, where it stands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from hybridgen.cli.main import call
from hybridgen.errors import RequestError
from hybridgen.recipe.check import check
from hybridgen.recipe.compose import compose
from hybridgen.recipe.fields import Recipe
from hybridgen.recipe.resolve import resolve
from hybridgen.recipe.typed import hints
from tests.support.recipes import declared_in

GOOD = "schema: 1\nlicense: MIT\nmodel: demo\n"
RESULT = "measured:\n  - status: "
FAULTS = [
    ("model: demo\nrequest: {stesp: 3}\n", "2:11: recipe-key: request.stesp: is not known; nearest: steps"),
    ("model: demo\nmodel: wan2.2\n", "2:1: recipe-key: model: is given twice"),
    (RESULT + "planned\n    denois_s: 3\n", "3:5: recipe-key: measured.0.denois_s: is not known; nearest: denoise_s"),
    ("parallel: {cfg: two}\n", "1:12: recipe-value: parallel.cfg 'two': must be a whole number"),
    (RESULT + "planned\n    denoise_s: fast\n", "3:5: recipe-value: measured.0.denoise_s 'fast': must be a number"),
    ("hardware: h100\n", "1:1: recipe-value: hardware 'h100': must hold keys of its own"),
    ("measured: 7.04\n", "1:1: recipe-value: measured 7.04: must be a list"),
    (
        RESULT + "planned\n    software: {torch: 2.9}\n",
        "3:16: recipe-value: measured.0.software.torch 2.9: must be text; what looks like a number needs quotes",
    ),
    ("model: dmo\n", "1:1: unknown-model: model dmo"),
    ("model: demo\nparallel: {ulysses: 3}\n", "2:12: ulysses-heads: parallel.ulysses 3: does not divide"),
    ("model: demo\nhardware: {gpus: 3}\n", "2:12: recipe-hardware: hardware.gpus 3: the degrees make 1"),
    ("checkpoint: {revision: main}\n", "1:14: recipe-revision: checkpoint.revision main: is not a commit"),
    ("notes: see /home/ann/clip.mp4\n", "1:1: recipe-private: notes: carries an absolute path: /home/ann/clip.mp4"),
    ("notes: ran on gpu-04.corp\n", "recipe-private: notes: carries a host name: gpu-04.corp"),
    ("notes: at 10.0.0.7\n", "recipe-private: notes: carries an address: 10.0.0.7"),
    ("request: {prompt: hf_abcdefghijklmnopqrst}\n", "recipe-private: request.prompt: carries a token"),
    ("model: demo # mine\n", "1:1: recipe-comment: a comment here is lost"),
    (
        "parallel: {vae: 1,   cfg: 1}\n",
        "1:1: recipe-form: not canonical; recipes check --fix writes: parallel: {cfg: 1",
    ),
    (
        RESULT + "guessed\n    denoise_s: 3\n",
        "2:5: recipe-measured: measured.0.status guessed: is not known; nearest: verified",
    ),
    (RESULT + "published\n    denoise_s: 3\n", "an entry that is published needs source"),
    (RESULT + "verified\n    denoise_s: 3\n", "an entry that is verified needs date and n and software"),
    (
        RESULT + "planned\n    denoise_s: 3\n    n: 2\n",
        "4:5: recipe-measured: measured.0.n: an entry that is planned does not have it",
    ),
    (RESULT + "planned\n    n: 2\n", "the entry has no figure"),
    (RESULT + "planned\n    denoise_s: -3\n", "denoise_s -3: must be above 0"),
    (RESULT + "planned\n    denoise_s: 3\n    date: 30.11.2026\n", "date 30.11.2026: must be a day, YYYY-MM-DD"),
    (
        RESULT + "planned\n    denoise_s: 3\n    request: {frames: 0}\n",
        "4:15: recipe-measured: measured.0.request.frames 0: must",
    ),
    (RESULT + "planned\n    denoise_s: 3\n    request: {guidance: .nan}\n", "request.guidance nan: must be a"),
    (
        RESULT + "planned\n    denoise_s: 3\n    request: {size: big}\n",
        "request.size 'big': must be width x height, as in 1280x720",
    ),
    (RESULT + "planned\n    denoise_s: 3\n    software: {a: '1', a: '2'}\n", "software.a: is given twice"),
    ("1: 2\n", "1:1: recipe-key: 1: is not known; keys here: schema, license"),
    (
        "model: demo\nrequest: {steps: 1" + 400 * "0" + "}\n",
        "recipe-value: request.steps '1000",
    ),
    ("model: demo\nrequest: {guidance: 1" + 400 * "0" + "}\n", "recipe-value: request.guidance '1000"),
]


def _line(fault: RequestError) -> str:
    """A fault as `recipes check` prints it."""
    return f"{fault.place}: {fault.rule}: {fault.remark}"


@pytest.mark.parametrize(("text", "says"), FAULTS, ids=[says for _, says in FAULTS])
def test_a_fault_is_found_where_it_stands(text: str, says: str, tmp_path: Path) -> None:
    """`text` follows a good start, so that the fault is the file's only one; lines count from there."""
    start = GOOD.replace("model: demo\n", "") if "model:" in text else GOOD
    file = tmp_path / "r.yaml"
    file.write_text(start + text, encoding="utf-8")
    found = [_line(fault).removeprefix(f"{file}:") for fault in check(file)]
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
        ("notes: " + 2000 * "[", "recipe-unreadable: "),
        ("notes: &a [*a]\n", "1:1: recipe-unreadable: is nested too deeply, or holds itself by an alias"),
        ("notes: \0\n", "1:1: recipe-unreadable: cannot be used: "),
        ("model: demo\n", "1:1: recipe-schema: schema: is missing; this version reads schema 1"),
        ("model: demo\nschema: 2\n", "2:1: recipe-schema: schema 2: is another version; this version reads schema 1"),
        ("schema: 1\nmodel: demo\n", "1:1: recipe-license: license: is missing"),
    ],
)
def test_a_file_that_is_no_recipe(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(text)
    (found,) = check(file)
    assert says in _line(found) and _line(found).startswith(f"{file}:")


def test_every_broken_rule_of_a_plan_is_found(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(f"{GOOD}parallel: {{cfg: 3, ulysses: 5, tp: 3}}\n")
    found = {fault.rule: fault.place[1:] for fault in check(file) if fault.place}
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
        if (inner := declared_in(hints(kind)[item.name])) is not None:
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
    wanted = f"::error file={file},line=4,col=1,title=recipe-private::notes: carries an absolute path: /home/ann/x\n"
    assert capsys.readouterr().out == wanted


BROKEN = """\
schema: 1
license: MIT
model: demo
request: {frames: 80, size: 100x64, setps: 3}
parallel: {cfg: 3, ulysses: 7, ring: two}
runtime: {dtype: fp8}
"""


@pytest.mark.parametrize("verb", ["run --dry-run --recipe", "recipes check"])
def test_all_faults_are_told_at_once(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(BROKEN)
    assert call([*verb.split(), str(file)]) in (1, 2)
    told = "".join(capsys.readouterr())
    faulty = ("frames 80", "size 100x64", "setps", "cfg 3", "ulysses 7", "ring 'two'", "dtype fp8")
    assert all(f".{one}" in told for one in faulty) and told.count(f"{file}:") == len(faulty)
    file.write_text(BROKEN.replace(", setps: 3", "").replace(", ring: two", ""))
    assert call([*verb.split(), str(file)]) in (1, 2)
    told = "".join(capsys.readouterr())
    assert all(one in told for one in ("frames 80", "size 100x64", "cfg 3", "ulysses 7", "dtype fp8"))


def test_the_check_says_whose_files_it_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(["recipes", "check"]) == 0
    assert capsys.readouterr().err.endswith(" files of the package, all good\n")
    (tmp_path / "recipes" / "inner").mkdir(parents=True)
    assert call(["recipes", "check", "recipes/inner"]) == 2
    assert call(["recipes", "check"]) == 0
    assert capsys.readouterr().err.endswith(" files of the package, all good\n")
    for name in ("recipes/a.yaml", "recipes/inner/b.yml", "recipes/inner/.c.yaml"):
        (tmp_path / name).write_text("schema: 2\n")
    assert call(["recipes", "check"]) == 1
    found = capsys.readouterr()
    assert found.err == "2 files of recipes/, 2 faults\n" and found.out.startswith("recipes/a.yaml:1:1: recipe-schema")
    assert call(["recipes", "check", "recipes/inner"]) == 1
    assert capsys.readouterr().err == "1 file, 1 fault\n"
