"""Files of many clips are read line by line, and what is wrong with a line is said with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridgen.api.clips import shard_of
from hybridgen.errors import RequestError
from hybridgen.recipe import prompts


def read(folder: Path, name: str, text: str) -> list[prompts.Line]:
    (folder / name).write_text(text, encoding="utf-8")
    return prompts.read(str(folder / name))


def test_text_is_a_prompt_a_line(tmp_path: Path) -> None:
    found = read(tmp_path, "p.txt", "\ufeffone\r\n\n# no\n  two, three \n")
    assert [(line.given, line.place.line) for line in found] == [({"prompt": "one"}, 1), ({"prompt": "two, three"}, 4)]


def test_csv_cells_have_the_types_of_their_keys(tmp_path: Path) -> None:
    text = 'prompt,seed,guidance-2,out\n"one, two",3,2.5,a.mp4\nthree,x,,\nfour,1,2,b.mp4,more\n'
    first, second, third = read(tmp_path, "p.csv", text)
    assert first.given == {"prompt": "one, two", "seed": 3, "guidance_2": 2.5, "out": "a.mp4"}
    assert second.fault is not None and str(second.fault).startswith(f"{tmp_path}/p.csv:3:1: seed 'x'")
    assert third.fault is not None and "5 cells" in str(third.fault)


def test_json_lines_keep_types(tmp_path: Path) -> None:
    text = '{"prompt": "one", "steps": 3}\n{"prompt": 1}\n{"step": 3}\n[1]\n{\n{"prompt": "x", "out": 3}\n'
    first, *others = read(tmp_path, "p.jsonl", text)
    assert first.given == {"prompt": "one", "steps": 3} and first.fault is None
    said = [str(line.fault).split(": ", 1)[1] for line in others]
    assert said[0].startswith("prompt 1") and said[1].startswith("step: is no key") and "steps" in said[1]
    assert said[2].startswith("is not a JSON object") and said[3].startswith("is not a JSON object")
    assert said[4].startswith("out 3: must be text")


@pytest.mark.parametrize(
    ("name", "text"), [("p.txt", "\n"), ("p.pdf", "one"), ("p.csv", "prompt\n"), ("p.csv", 'prompt\n"one\n')]
)
def test_files_without_clips_are_refused(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(RequestError) as refused:
        read(tmp_path, name, text)
    assert refused.value.rule == "prompts-file"


def test_csv_with_an_unknown_key_is_refused_at_its_head(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"p\.csv:1:1: stepz: is no key of a request, or out; nearest: steps"):
        read(tmp_path, "p.csv", "stepz\none\n")


def test_shards_come_from_the_flag_or_the_array(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shard_of(None) == (1, 1) and shard_of("3/4") == (3, 4)
    for wrong in ("0/4", "5/4", "1", "a/b", "1/0"):
        with pytest.raises(RequestError, match="is not i/n"):
            shard_of(wrong)
    slurm = {"TASK_ID": "14", "TASK_COUNT": "5", "TASK_MIN": "10", "TASK_STEP": "2"}
    for name, value in slurm.items():
        monkeypatch.setenv(f"SLURM_ARRAY_{name}", value)
    assert shard_of(None) == (3, 5)
