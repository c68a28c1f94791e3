"""Commands are imported when they are called, and end every error in one line, or as data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from hybridgen.cli.main import VERBS, call
from hybridgen.errors import RunFailed


def loaded(*words: str) -> set[str]:
    """Modules of ours that a command imports."""
    program = "import sys; from hybridgen.cli.main import call; call(sys.argv[1:]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    return {name for name in done.stdout.splitlines()[-1].split() if name.startswith("hybridgen.")}


@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_what_answers_at_once_imports_no_command(flag: str) -> None:
    small = {"hybridgen.distributed", "hybridgen.distributed.place", "hybridgen.distributed.signals"}
    rooms = {name.split(".")[1] for name in loaded(flag) - small}
    assert rooms <= {"cli", "engine", "errors"}, rooms


def test_a_command_imports_no_other() -> None:
    found = loaded("explain", "ulysses-heads")
    assert "hybridgen.cli.explain" in found and "hybridgen.cli.run" not in found


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_has_help_of_its_own(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["--help"]) == 0
    assert f"  {verb} " in capsys.readouterr().out
    assert call([verb, "--help"]) == 0
    assert f"{verb} [OPTIONS]" in capsys.readouterr().out


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert call([]) == 2
    assert "Commands:" in capsys.readouterr().out


@pytest.mark.parametrize(("typed", "offered"), [("hybridgen pl", "plan"), ("hybridgen run --ulys", "--ulysses")])
def test_words_are_completed(typed: str, offered: str) -> None:
    program = "import sys; sys.argv = ['hybridgen']; from hybridgen.cli.main import main; main()"
    shell = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_HYBRIDGEN_COMPLETE": "complete_bash"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, **shell})
    assert done.stdout.split() == [offered], done.stderr


def test_a_refusal_is_data_where_json_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan --gpus 8 --size 1280x700 --json".split()) == 2
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert (error["rule"], error["flag"], error["value"]) == ("size", "size", "1280x700")
    assert error["nearest"] == ["1280x704"] and error["tries"] == ["hybridgen plan --gpus 8 --size 1280x704 --json"]
    assert err.splitlines()[0] == f"error[size]: {error['message']}" and f"  why:  {error['why']}" in err
    assert call("plan --gpus 8 --size 1280x700".split()) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "shown"), [(["--debug", "-p", "x"], True), (["-p", "x"], False), (["-p", "--debug"], False)]
)
def test_the_traceback_of_a_rank_is_shown_when_it_is_asked_for(
    words: list[str], shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    """A prompt that looks like the flag does not ask for it."""

    def launch(*_: object) -> None:
        raise RunFailed("rank-lost", "rank 0 of 1 failed", traceback="Traceback: here")

    monkeypatch.setattr("hybridgen.engine.launch.launch", launch)
    monkeypatch.chdir(tmp_path)
    assert call(["run", "--model", "demo", "--device", "cpu", *words]) == 1
    err = capsys.readouterr().err
    assert "error[rank-lost]: rank 0 of 1 failed" in err and ("Traceback: here" in err) == shown
