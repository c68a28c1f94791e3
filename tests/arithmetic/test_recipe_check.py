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
from hybridgen.recipe.fields import Recipe, compose, held_by
from hybridgen.recipe.resolve import resolve

GOOD = "schema: 1\nlicense: MIT\nmodel: demo\n"
RESULT = "measured:\n  - status: "
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
    ("model: demo\nparallel: {ulysses: 3}\n", "2:12: ulysses-heads: --ulysses 3: does not divide"),
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
    (RESULT + "planned\n    denoise_s: 3\n    request: {size: big}\n", "request.size is big and is not width x height"),
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
