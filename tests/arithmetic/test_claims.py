"""Two runs that write one file: the second is refused before it starts, and nothing is left of either's claim."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hybridgen.api import spine
from hybridgen.cli.main import call
from hybridgen.distributed.claims import Claim, claim, claimed, exit_now, remove_stale
from hybridgen.engine.manifest import Manifest
from hybridgen.engine.outputs import Outputs, default_name, owned
from hybridgen.errors import RequestError

RUN = "run --model demo -p x --seed 1 --device cpu".split()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty working folder, in which no claim is left at the end."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not [path.name for path in tmp_path.iterdir() if path.name.endswith(".lock")]


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        ("out", "clip.mp4"),
        ("report", "r.json"),
        ("latents", "l.safetensors"),
        ("preview", "p.png"),
        ("checkpoint-every", "clip.state.safetensors"),
    ],
)
def test_a_run_is_refused_whose_file_another_one_writes(
    flag: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--out", "clip.mp4", *([f"--{flag}", name] if flag != "checkpoint-every" else ["--checkpoint-every", "1"])]
    with claimed({flag: Path(name)}):
        assert call([*RUN, *words, "--overwrite"]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"error[output-busy]: --{flag} {name}: another run writes it (process {os.getpid()} on ")
        assert f"nearest: {Path(name).stem}-2" in said
    assert not list(Path().iterdir())


def test_a_clip_without_a_name_takes_the_next() -> None:
    with owned(Outputs(), first := default_name("a dog", 3)):
        assert (str(first), str(default_name("a dog", 3))) == ("a-dog-s3.mp4", "a-dog-s3-2.mp4")
    assert default_name("a dog", 3) == first


def test_a_claim_ends_with_its_process() -> None:
    """Killed, it leaves the lock's file, which the next run takes over."""
    pid = os.fork()
    if pid == 0:
        Claim(Path("a.mp4"))
        os._exit(0)
    os.waitpid(pid, 0)
    assert [path.name for path in Path().iterdir()] == [".a.mp4.lock"]
    Path(".b.mp4.lock").write_text("of somebody else")
    Path(".d.mp4.lock").write_text("process 1 on another-host")  # whose lock this file system may not show
    with claimed({"out": Path("c.mp4")}):
        remove_stale([Path()])
        assert sorted(path.name for path in Path().iterdir()) == [f".{name}.mp4.lock" for name in "bcd"]
    for name in "bd":
        Path(f".{name}.mp4.lock").unlink()
    with claimed({"out": Path("a.mp4")}), pytest.raises(RequestError, match=f"process {os.getpid()}"):
        claim("out", Path("a.mp4"))


def test_a_process_that_does_not_unwind_gives_its_claims_back() -> None:
    pid = os.fork()
    if pid == 0:
        Claim(Path("a.mp4"))
        exit_now(3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert not list(Path().iterdir())


def test_a_rank_that_was_forked_does_not_keep_the_claim() -> None:
    held, (reader, writer) = Claim(Path("a.mp4")), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)  # until the launcher is through
        os._exit(0)
    held.release()
    again = Claim(Path("a.mp4"))
    os.close(writer)
    os.waitpid(pid, 0)
    again.release()


def test_a_file_system_without_locks_claims_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", fail)
        with claimed({"out": Path("a.mp4")}), claimed({"out": Path("a.mp4")}):
            assert not list(Path().iterdir())
    with claimed({"out": Path("none/a.mp4"), "report": Path("x" * 300)}):
        pass  # such names are refused where files are checked


def test_a_report_that_came_meanwhile_is_not_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    report: Any = SimpleNamespace(as_data=lambda: {"mine": 1}, output=Path("a.mp4"))
    Path("r.json").write_text("of another")
    spine._write_report(Outputs(report=Path("r.json")), report)
    assert Path("r.json").read_text() == "of another" and json.loads(Path("r-2.json").read_text()) == {"mine": 1}
    assert "the report is r-2.json" in capsys.readouterr().err


def test_two_jobs_do_not_write_one_manifest() -> None:
    first, second = Manifest.at(Path("m.jsonl")), Manifest.at(Path("m.jsonl"))
    first.begin()
    with pytest.raises(RequestError, match="--manifest m.jsonl: another run writes it"):
        second.begin()
    first.note(1, status="done")
    del first
    second.begin()
    second.note(2, status="done")
    assert Manifest.at(Path("m.jsonl")).entries.keys() == {1, 2}
    del second
