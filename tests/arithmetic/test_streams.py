"""Streams that are closed, full, or that nobody reads: a command ends as others do, without a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hybridgen.cli.main import call
from hybridgen.engine.manifest import Manifest
from hybridgen.errors import RequestError

ENDS = {
    "plan --gpus 8 | true": (141, ""),
    "plan --gpus 8 --json | true": (141, ""),
    "models | true": (141, ""),
    "--help | true": (141, ""),
    "plan --gpus 7 --ulysses 7 2>&1 | true": (2, ""),
    "plan --gpus 8 > /dev/full": (1, "error[system]: [Errno 28] No space left on device"),
    "plan --gpus 7 --ulysses 7 --json > /dev/full": (1, "error[system]: [Errno 28] No space left on device"),
    "plan --gpus 8 >&-": (0, ""),
    "plan --gpus 7 --ulysses 7 2>&-": (2, ""),
}
"""Exit code, and the last line on stderr."""


@pytest.mark.parametrize("words", ENDS)
def test_a_command_ends_without_a_traceback(words: str, tmp_path: Path) -> None:
    command, *pipe = words.split(" | ")
    line = f"set -o pipefail; ( {sys.executable} -m hybridgen {command} )" + "".join(f" | {one}" for one in pipe)
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path)
    code, last = ENDS[words]
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and (done.stderr.splitlines() or [""])[-1] == last


def test_a_name_that_is_too_long_is_no_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("recipes show", "recipes check", "run --dry-run --recipe"):
        assert call([*verb.split(), "x" * 300]) == 2
        assert capsys.readouterr().err.startswith("error[recipe-unreadable]: ")


def test_what_is_long_is_shown_in_part(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.csv").write_text("prompt,steps\nx," + "a" * 100_000)
    assert call(["run", "--model", "demo", "--device", "cpu", "--dry-run", "--prompts", "p.csv"]) == 1
    said = capsys.readouterr().err
    assert "error[prompts-file]" in said and len(said) < 2000


def test_a_manifest_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "m.jsonl").open("wb") as file:
        file.truncate(2**33)  # of which the disk holds nothing
    with pytest.raises(RequestError, match="has more than 268,435,456 bytes"):
        Manifest.at(tmp_path / "m.jsonl")


def test_a_model_in_a_folder_is_none_of_xdits(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run --model demo -p x --engine xfuser --dry-run --device cpu".split()) == 2
    assert "error[engine-lacks]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "value"), [("ID", "x"), ("COUNT", ""), ("MIN", "-1"), ("STEP", "x"), ("STEP", "0"), ("ID", "9")]
)
def test_a_slurm_array_that_cannot_be_is_told(
    variable: str, value: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, given in {"ID": "1", "COUNT": "3", "MIN": "1", "STEP": "1", variable: value}.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", given)
    code = call("run --model demo -p x --count 3 --dry-run --device cpu".split())
    said = capsys.readouterr().err
    is_legal = (variable, value) == ("STEP", "0")
    assert code == 0 if is_legal else (code == 2 and said.startswith(("error[launcher]", "error[shard]")))


def test_the_root_is_no_name_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["plan", "--gpus", "8", "--save", "/"]) == 2
    assert "--save /: is a folder" in capsys.readouterr().err
