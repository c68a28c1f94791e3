"""What cannot be is refused in one line that says it all, with exit code 2, before anything starts."""

from __future__ import annotations

import pickle
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hybridgen.cli.main import call
from hybridgen.errors import RequestError, RunFailed, assert_unique, changed
from hybridgen.models.registry import FAMILIES, check_unique
from tests.support.terminal import Terminal

REFUSED = [
    ("run --model wan2.2 --cfg 2 --ulysses 4 --attn2d 3x3 --vae 8", "prompt-missing", "72 ranks"),
    ("run --model wan2.2 --ulysses 6 -p x", "ulysses-heads", "nearest: 5, 8"),
    ("run --model wan2.1-1.3b --ulysses 8 -p x", "ulysses-heads", "nearest: 6, 12"),
    ("run --model wan2.2 --tp 3 -p x", "tp-heads", "nearest: 2, 4"),
    ("run --model wan2.2 --cfg 3 -p x", "cfg-degree", "nearest: 2"),
    ("run --model demo --cfg 2 --guidance 1 -p x", "cfg-guidance", "--guidance 1 is off"),
    ("run --model demo --ring 2 --attn2d 2x2 -p x", "ring-attn2d", "excludes --attn2d"),
    ("run --model demo --ulysses 2 --vae 3 -p x", "vae-width", "nearest: 2"),
    ("run --model demo --ulysses 8 --ring 2 --vae 16 -p x", "vae-rows", "nearest: 8"),
    ("run --model demo --pipefusion 9 --warmup 20 -p x", "pipefusion-layers", "nearest: 4"),
    (
        "run --model demo --pipefusion 2:3,2 -p x",
        "pipefusion-stages",
        "5 of the 4 blocks of demo; nearest: 2:2,2",
    ),
    ("run --model demo --pipefusion 2:4,0 -p x", "pipefusion-stages", "a stage without a block"),
    ("run --model demo --pipefusion 3:2,2 -p x", "pipefusion-stages", "names 2 stages, not 3; nearest: 3:2,1,1"),
    ("run --model demo --pipefusion 2 --patches 81 -p x", "pipefusion-patches", "80 tokens; nearest: 2"),
    ("run --model demo --pipefusion 2:x -p x", "degree-format", "as in 4:9,10,10,11"),
    ("run --model demo --set parallel.pipefusion=2.5 -p x", "degree-format", "--pipefusion 2.5"),
    ("run --model demo --pipefusion 2 --warmup 0 -p x", "degree", "--warmup 0"),
    ("run --model demo --vae 2 -p x", "vae-width", "the one rank of the run"),
    ("plan --gpus 0", "gpus", "nearest: 1"),
    ("plan --gpus 1000000007", "gpus", "nearest: 65536"),
    ("run --model demo --ulysses 2 --gpus 8 -p x", "gpus-product", "the degrees make 2 ranks (ulysses 2)"),
    (
        "run --model demo --gpus 6 --auto --ulysses 4 --device cpu -p x",
        "no-plan",
        "no legal plan has 6 GPUs with --ulysses 4",
    ),
    ("run --model demo --auto --device cpu -p x", "gpus", "--auto: needs --gpus"),
    ("run --model demo --gpus 4 --hardware foo -p x", "unknown-hardware", "gb200-nvl72"),
    ("run --model demo --cfg 2 --hardware h100 -p x", "hardware-unused", "or with --auto"),
    ("run --model demo --gpus 0 --device cpu -p x", "gpus", "nearest: 1"),
    (
        "run --model demo --pipefusion 2:1,3 --gpus 4 -p x",
        "gpus-product",
        "the degrees make 2 ranks (pipefusion 2); nearest: ulysses4",
    ),
    (
        "run --model demo --pipefusion 2 --patches 3 --warmup 2 --order pipefusion --gpus 4 -p x",
        "gpus-product",
        "ulysses4",
    ),
    ("run --model demo --revision 0123abc -p x", "revision", "--model demo is a folder here"),
    ("run --model 'foo bar/baz' -p x", "unknown-model", "not a known model"),
    (f"run --model {400 * 'a'} -p x", "unknown-model", "not a known model"),
    ("run --model dmo -p x", "unknown-model", "nearest: demo"),
    ("run --model demo --recipe nothere.yaml -p x", "recipe-unreadable", "No such file"),
    ("run --model demo --set request.setps=3 -p x", "recipe-key", "nearest: request.steps"),
    ("run --model demo --set request.steps=abc -p x", "recipe-value", "a whole number"),
    ("run --model demo --set steps -p x", "recipe-key", "KEY=VALUE"),
    ("run --model demo -p x --out no/such/clip.mp4", "output-folder", "the folder no/such does not exist"),
    ("run --model demo -p x --out clip.avi", "output-format", "nearest: clip.mp4"),
    ("run --model demo -p x --frames 80", "frames", "nearest: 77, 81"),
    ("run --model demo -p x --frames 0", "frames", "nearest: 1, 5"),
    ("run --model demo -p x --size 100x64", "size", "nearest: 96x64"),
    ("run --model demo -p x --size 64", "degree-format", "--size 64: is not width x height; nearest: 64x64"),
    ("run --model demo -p x --steps 0", "steps", "nearest: 1"),
    ("run --model demo -p x --fps 0", "fps", "nearest: 8"),
    ("run --model demo -p x --fps 100000", "fps", "must be 1 to 1000; nearest: 8"),
    (f"run {4000 * 'a'} {4000 * 'b'}", "usage", "Got unexpected extra argument"),
    ("run --model demo -p x --size 1040x16", "positions", "nearest: 1024x16"),
    ("run --model demo -p x --frames 257", "positions", "nearest: 253"),
    ("run --model demo -p x --guidance nan", "guidance", "nearest: 3"),
    ("run --model demo -p x --guidance 1 --guidance-2 5", "guidance-2", "changes nothing"),
    ("run --model demo -p x --patches 2", "pipefusion-only", "--pipefusion"),
    ("run --model demo --dry-run --attention foo", "attention-unknown", "sdpa"),
    ("run --model demo --dry-run --device tpu", "device", "cuda, cpu"),
    ("run --model demo --set request.prompt=[bad -p x --steps 0", "steps", "nearest: 1"),
    ("run --model demo --set request.steps=[bad -p x", "recipe-value", "not YAML"),
    ("run --model demo --cfg 2 --ulysses 1000000007", "ranks", "limit: 65536"),
    ("plan --gpus 8 --heads 0", "heads", "nearest: 1"),
    ("run --model demo -p x --seed -1", "seed", "nearest: 0"),
    ("run --model demo -p x --ulysses 0", "degree", "nearest: 1"),
    ("run --model demo -p x --attn2d 3", "degree-format", "rows x columns"),
    ("run --model demo -p x --usp 2x2 --ring 2", "usp-parts", "--usp, or --ulysses and --ring"),
    ("run --model demo -p x --order ulysses,cgf --cfg 2", "order", "axes are:"),
    ("run --model demo -p x --cfg 2 --ulysses 2 --order cfg", "order", "nearest: cfg,ulysses"),
    ("run --model wan2.1 -p x --guidance-2 3", "guidance-2", "has one"),
    ("run --model demo -p x --attention cudnn --device cpu", "attention-device", "cuda, not cpu"),
    ("run --model demo -p x --ring 2 --attention sdpa --device cpu", "attention-lse", "log-sum-exp"),
    ("run --model demo -p x --dtype fp8", "dtype", "nearest: bfloat16, float32, float16"),
    ("run --model demo -p x --device tpu", "device", "cuda, cpu"),
    (
        "run --model wan2.2 --cfg 2 --ulysses 4 --attn2d 3x3 --vae 8 -p x --device cpu",
        "memory",
        "--gpus 72: without GPUs",
    ),
    ("run --model demo -p x --count 2 --replicas 100000 --device cpu", "memory", "--replicas 100000: need about"),
    ("run --model demo -p x --ulysses_degree 2", "usage", "xDiT's --ulysses_degree is --ulysses here"),
    ("run --model demo -p x --ulyses 2", "usage", "--ulysses"),
    ("plan", "gpus", "--gpus: is missing"),
    ("plan --gpus 8 --heads 7", "heads", "nearest: 5, 8"),
    ("run --model demo -p x --video a.mp4", "video-unused", "does not continue videos"),
    ("rnu", "usage", "Did you mean 'run'?"),
]


@pytest.mark.parametrize(("command", "rule", "says"), REFUSED, ids=[c for c, _, _ in REFUSED])
def test_a_request_that_cannot_be_is_refused(command: str, rule: str, says: str, terminal: Terminal) -> None:
    terminal.refuses(command, rule, says)


@pytest.mark.parametrize(
    "command",
    [c for c, rule, _ in REFUSED if rule not in ("prompt-missing", "usage", "memory") and "--dry-run" not in c],
)
def test_what_is_suggested_is_legal(command: str, terminal: Terminal) -> None:
    terminal.suggests_what_is_legal(command)


def test_existing_files_are_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for flag, name in (
        ("--out", "a.mp4"),
        ("--latents", "a.safetensors"),
        ("--report", "a.json"),
        ("--preview", "a.png"),
    ):
        Path(name).write_text("mine")
        assert call(["run", "--model", "demo", "-p", "x", flag, name]) == 2
        assert f"error[output-exists]: {flag} {name}: exists" in capsys.readouterr().err
        assert Path(name).read_text() == "mine"


def test_a_missing_prompt_shows_the_same_line_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(shlex.split("run --model demo --cfg 2")) == 2
    err = capsys.readouterr().err
    assert "  try:  hybridgen run --model demo --cfg 2 -p 'a red circle moves right'" in err
    assert err.index("cfg2") < err.index("error[prompt-missing]")


def test_recipe_errors_name_line_and_column(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    for text, says in (
        ("model: demo\nrequest: {stesp: 3}\n", f"{bad}:2:11: request.stesp: is not known; nearest: steps"),
        ("model: demo\n  x: [\n", f"{bad}:2:4: is not YAML"),
        ("- 1\n", "holds no keys"),
        ("model: demo\nparallel: {cfg: two}\n", "parallel.cfg 'two': must be a whole number"),
        ("model: demo\nschema: 9\n", "2:1: schema 9: "),
        ("model: demo\nrequest: 3\n", "request"),
        ("model: demo\nparallel: {order: 3}\n", "order"),
    ):
        bad.write_text(text)
        assert call(["run", "--recipe", str(bad), "--dry-run"]) == 2, text
        assert says in capsys.readouterr().err.splitlines()[0]


def test_a_change_of_flags_is_made_in_place() -> None:
    command = shlex.split("hybridgen run --cfg 2 --ulysses=6 -p 'a b'")
    assert shlex.join(changed(command, {"ulysses": "8"})) == "hybridgen run --cfg 2 --ulysses 8 -p 'a b'"
    assert changed(["run", "--ring", "2"], {"ring": None, "tp": "2"}) == ["run", "--tp", "2"]
    assert RequestError("x", "", None, "y", tries=[{"cfg": "2"}]).lines()[-1] == "  try:  --cfg 2"


@pytest.mark.parametrize("flag", ["--prompt", "--negative-prompt"])
def test_words_that_are_no_utf_8_are_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As a shell hands over bytes of another encoding; in a dry run as well."""
    assert call(["run", "--model", "demo", "-p", "x", flag, "a\udcff", "--dry-run"]) == 2
    assert capsys.readouterr().err == f"error[prompt]: {flag}: is not valid UTF-8\n"


def test_a_failed_run_is_an_error_like_others() -> None:
    failed = RunFailed(rule="rank-lost", message="rank 1 was killed", notes=("in step 3",), traceback="Traceback: here")
    failed.add_note("seen by the caller")
    again = pickle.loads(pickle.dumps(failed))
    assert str(again) == str(failed) and again.__notes__ == failed.__notes__ and len({failed, again}) == 2


def test_a_word_that_is_no_rule_is_not_answered_with_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["explain", "nope"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error[unknown-rule]: nope: there is no such rule; hybridgen explain lists all",
        "  try:  hybridgen explain",
    ]
    assert call(["explain", "ulysses-head"]) == 2
    assert "ulysses-heads" in capsys.readouterr().err


def test_what_is_declared_twice_is_named() -> None:
    assert_unique("name", ["a", "b"])
    with pytest.raises(AssertionError, match="declared twice: name a"):
        assert_unique("name", ["a", "b", "a"])
    model, kind = FAMILIES[0].known[0], FAMILIES[0].tiny[0]
    for changes in ({"known": (model,)}, {"tiny": (kind,)}, {"pipelines": FAMILIES[0].pipelines[:1]}):
        nothing: dict[str, Any] = {"known": (), "tiny": (), "pipelines": (), "not_run": {}}
        with pytest.raises(AssertionError, match="declared twice"):
            check_unique((*FAMILIES, replace(FAMILIES[1], **{**nothing, **changes})))
