"""Jobs of many clips: each is made once, however often the job is started, and a bad line harms no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import command

TINY = ("run", "--model", "tiny:wan2.2-t2v", "--frames", "5", "--steps", "2", "--ulysses", "2")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path


def many(folder: Path, *words: str, code: int = 0) -> tuple[list[str], str]:
    """The paths and the words of a job."""
    done = command.hybridgen(folder, *TINY, *words)
    assert done.returncode == code, done.stderr
    return done.stdout.splitlines(), done.stderr


def manifest(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_job_goes_on_where_it_ended(here: Path) -> None:
    """What is there and whole is kept; what is missing or was bad is made; what is made equals a lone run."""
    lines: list[dict[str, Any]] = [
        {"prompt": "one"},
        {"prompt": "two", "seed": 7, "out": "named.mp4"},
        {"prompt": "three", "frames": 6},
    ]
    (here / "p.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in [*lines, "no"]))
    dry, said = many(here, "--prompts", "p.jsonl", "--dry-run", code=1)
    assert (
        len(dry) == 2 and "2 clips to make, 2 refused" in said and [path.name for path in here.iterdir()] == ["p.jsonl"]
    )
    paths, said = many(here, "--prompts", "p.jsonl", code=1)
    assert paths == dry
    assert len(paths) == 2 and paths[1] == "named.mp4"
    assert "p.jsonl:3:1: frames 6" in said and "p.jsonl:4:1: is not a JSON object" in said
    assert "2 clips made" in said and "2 refused" in said
    first = manifest(here / "p.manifest.jsonl")
    assert [entry["status"] for entry in first] == ["done", "done", "refused", "refused"]

    (here / "named.mp4").unlink()
    before = (here / paths[0]).stat().st_mtime_ns
    lines[2]["frames"] = 9
    (here / "p.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    again, said = many(here, "--prompts", "p.jsonl")
    assert again[0] == "named.mp4" and len(again) == 2 and "1 there already" in said
    assert (here / paths[0]).stat().st_mtime_ns == before
    second = manifest(here / "p.manifest.jsonl")
    assert second[:2] == [first[0], {**first[1], "seconds": second[1]["seconds"]}] and second[2]["status"] == "done"

    lone = command.hybridgen(here, *TINY, "-p", "two", "--seed", "7", "--out", "lone.mp4", "--report", "lone.json")
    assert lone.returncode == 0, lone.stderr
    assert json.loads((here / "lone.json").read_text())["latents_sha256"] == second[1]["latents_sha256"]


def test_a_manifest_of_another_list_is_refused(here: Path) -> None:
    (here / "p.txt").write_text("one\n")
    many(here, "--prompts", "p.txt")
    (here / "p.txt").write_text("another\n")
    _, said = many(here, "--prompts", "p.txt", code=2)
    assert "error[manifest]" in said and "has another clip as number 1" in said


def test_a_file_that_no_clip_of_the_job_wrote_is_never_replaced(here: Path) -> None:
    """However often the job is started: it is refused each time."""
    (here / "p.jsonl").write_text('{"prompt": "one", "out": "mine.mp4"}\n')
    (here / "mine.mp4").write_text("the user's")
    for _ in range(2):
        _, said = many(here, "--prompts", "p.jsonl", code=1)
        assert "mine.mp4: exists" in said and (here / "mine.mp4").read_text() == "the user's"


def test_a_job_that_was_killed_leaves_nothing_once_it_has_gone_on(here: Path) -> None:
    """Killed after the clip had its name and before the manifest said so, with files of the run beside it."""
    (here / "p.jsonl").write_text('{"prompt": "one", "seed": 1, "out": "one.mp4"}\n')
    many(here, "--prompts", "p.jsonl")
    path = here / "p.manifest.jsonl"
    first = manifest(path)[0]
    path.write_text(json.dumps({key: first[key] for key in ("clip", "asked", "output")} | {"status": "begun"}) + "\n")
    lone = command.hybridgen(here, *TINY, "-p", "one", "--seed", "1", "--latents", "one.latents.safetensors")
    assert lone.returncode == 0, lone.stderr
    (here / lone.stdout.strip()).unlink()
    gone = 10**8  # no process of Linux has so high a number
    for name in ("one.mp4", "one.state.safetensors", "p.manifest.jsonl"):
        (here / f".{name}.{gone}.part").touch()
    (here / f".one.mp4.{gone}.tags").touch()
    (here / f".other.mp4.{gone}.part").touch()
    many(here, "--prompts", "p.jsonl")
    assert manifest(path)[0] | {"seconds": 0} == first | {"seconds": 0}
    assert {one.name for one in here.iterdir()} == {"p.jsonl", path.name, "one.mp4", f".other.mp4.{gone}.part"}


def test_shards_make_every_clip_once_and_count_gives_seeds(here: Path) -> None:
    (here / "p.csv").write_text('prompt,seed\n"one, or two",5\n\nthree,\n')
    names: list[str] = []
    for shard in ("1/2", "2/2"):
        paths, _ = many(
            here, "--prompts", "p.csv", "--count", "2", "--shard", shard, "--out", "{index}-{slug}-{seed}.mp4"
        )
        names += paths
    assert sorted(names)[:2] == ["1-one-or-two-5.mp4", "2-one-or-two-6.mp4"] and len(set(names)) == 4
    seeds = [entry["asked"]["seed"] for part in "12" for entry in manifest(here / f"p.manifest.{part}of2.jsonl")]
    assert len(set(seeds)) == 4
