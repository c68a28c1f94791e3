"""Files appear whole or not at all, and are checked before the work that they are for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hybridgen.distributed.files import may_write, take_free_name, take_name, written_whole
from hybridgen.errors import RequestError


def test_a_file_takes_its_name_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with written_whole(path) as part:
        part.write_text("1")
        assert not path.exists() and part.parent == tmp_path
    assert path.read_text() == "1" and list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_and_no_part(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="half"), written_whole(path) as part:
        part.write_text("ne")
        raise ValueError("half")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_name_that_was_taken_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with pytest.raises(FileExistsError), written_whole(path, overwrite=False) as part:
        part.write_text("new")
        path.write_text("of another run")
    assert path.read_text() == "of another run" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "rule", "nearest"),
    [
        ("a.txt", "output-format", "a.yaml"),
        ("taken.yaml", "output-exists", "taken-2.yaml"),
        ("folder.yaml", "output-exists", "the name of a file"),
        ("no/a.yaml", "output-folder", ""),
    ],
)
def test_what_may_not_be_written_is_told_before(
    name: str, rule: str, nearest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken.yaml").write_text("mine")
    Path("folder.yaml").mkdir()
    with pytest.raises(RequestError) as refusal:
        may_write("out", Path(name), (".yaml",))
    assert refusal.value.rule == rule and refusal.value.message.endswith(nearest)
    assert refusal.value.message.startswith(f"--out {name}: ")


def test_a_file_that_may_be_replaced_may_be_written(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("mine")
    may_write("out", tmp_path / "a.yaml", (".yaml",), overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


def no_links(*_: object, **__: object) -> None:
    """What os.link does on exFAT, gcsfuse and many CIFS mounts."""
    raise PermissionError(1, "Operation not permitted")


def test_a_file_takes_its_name_where_there_are_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", no_links)
    path, part = tmp_path / "a.mp4", tmp_path / "part"
    part.write_text("new")
    take_name(part, path, overwrite=False)
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]
    part.write_text("newer")
    with pytest.raises(FileExistsError):
        take_name(part, path, overwrite=False)
    assert path.read_text() == "new" and part.read_text() == "newer"
    may_write("out", tmp_path / "b.mp4")


@pytest.mark.parametrize("links", [True, False])
def test_a_name_that_is_taken_gives_the_next_number(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    (tmp_path / "a.mp4").write_text("of another run")
    (tmp_path / "a-2.mp4").symlink_to("nowhere")
    (tmp_path / "part").write_text("mine")
    assert take_free_name(tmp_path / "part", tmp_path / "a.mp4") == tmp_path / "a-3.mp4"
    assert (tmp_path / "a-3.mp4").read_text() == "mine" and (tmp_path / "a.mp4").read_text() == "of another run"


@pytest.mark.parametrize("name", ["x" * 250 + ".mp4", "x" * 300 + ".mp4", "a\0b.mp4"])
def test_a_name_that_the_file_system_does_not_take_is_told_before(name: str, tmp_path: Path) -> None:
    """The first one is legal, but its unfinished form is not."""
    with pytest.raises(RequestError) as refusal:
        may_write("out", tmp_path / name, (".mp4",))
    assert refusal.value.rule == "output-folder" and "cannot be written" in refusal.value.message


def test_a_full_disk_is_told_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(RequestError, match="No space left on device"):
        may_write("out", tmp_path / "a.mp4")
    assert list(tmp_path.iterdir()) == []
