"""What a model does not read, was not made for, or cannot show is said, never dropped in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hybridgen.api import spine
from hybridgen.cli.main import call
from hybridgen.engine.options import RunOptions
from hybridgen.errors import RequestError
from hybridgen.models.registry import family_of
from tests.support.checkpoints import Case

LONG = " ".join(f"word{n}" for n in range(2000))


@pytest.mark.parametrize("kind", ["wan2.1-t2v", "wan2.1-i2v", "cosmos2-t2i", "cosmos2.5", "cosmos3"])
def test_the_end_of_a_prompt_that_is_not_read_is_found(kind: str) -> None:
    case = Case(kind, images=int(kind.endswith("i2v")), frames=1 if kind.endswith("t2i") else 17)
    plan = case.plan()
    encoder = family_of(plan.facts).denoiser(plan.facts).encoder(plan, case.folder, torch.device("cpu"))
    assert encoder.left_out("a red circle moves right") == "" == encoder.left_out("")
    rest = encoder.left_out(LONG)
    if kind == "cosmos3":  # reads all
        assert rest == ""
        return
    tokens = encoder.token_ids(LONG, plan.facts.text_tokens)
    assert len(tokens) == plan.facts.text_tokens < len(encoder.token_ids(LONG))
    assert (
        rest.split()[-3:]
        == encoder.pipe.tokenizer.decode(encoder.token_ids(LONG), skip_special_tokens=True).split()[-3:]
    )
    same, other = LONG, LONG + " and more"
    assert encoder.token_ids(same, plan.facts.text_tokens) == encoder.token_ids(other, plan.facts.text_tokens)


def test_what_is_dropped_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    long = " ".join(["a red circle moves right"] * 200)
    words = ["run", "--model", "demo", "--steps", "1", "--out", "a.mp4", "--report", "a.json", "-p", long]
    assert call([*words, "--negative-prompt", long]) == 0
    err = capfd.readouterr().err
    assert "warning: --prompt is too long: demo reads 512 tokens, and does not see" in err
    assert "warning: --negative-prompt is too long" in err
    assert len(json.loads(Path("a.json").read_text())["warnings"]) == 2


def warned(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> list[str]:
    """What is warned of before a run of the demo."""
    found: list[str] = []

    class Seen(spine.Screen):
        def ready(self, recipe: Any, job: Any, warnings: list[str]) -> None:
            found.extend(warnings)

    monkeypatch.setattr("hybridgen.engine.launch.launch", lambda job, *_: job.report({}, [], [], ""))
    spine.run(RunOptions(), {"model": "demo", "device": "cpu", **fields}, Seen())
    return [one for one in found if "ranks" not in one]  # a busy machine


def test_the_demo_says_what_it_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    known = "a red circle moves right"
    assert warned(monkeypatch, prompt=known) == []
    assert warned(monkeypatch, prompt=known, size="80x48") == []
    for fields in ({"prompt": "x"}, {"prompt": "一个红色的圆"}, {"prompt": known, "size": "80x48", "frames": 33}):
        (said,) = warned(monkeypatch, **fields)
        assert "the demo model" in said and "noise" in said


def test_a_negative_prompt_without_guidance_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fields = {"prompt": "a red circle moves right", "negative_prompt": "blurred"}
    assert warned(monkeypatch, **fields, guidance=3.0) == []
    (said,) = warned(monkeypatch, **fields, guidance=1.0)
    assert said.startswith("--negative-prompt is not read: guidance is off")


@pytest.mark.parametrize("out", ["taken.mp4", "no/a.mp4", "y" * 235 + ".mp4"])
def test_a_dry_run_looks_at_the_files_to_be_written(out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last name is legal for a clip, but not for the latents beside it."""
    monkeypatch.chdir(tmp_path)
    Path("taken.mp4").touch()
    with pytest.raises(RequestError) as refusal:
        spine.run(RunOptions(out=Path(out), dry_run=True), {"model": "demo"})
    assert refusal.value.rule in ("output-exists", "output-folder")
    assert spine.run(RunOptions(out=Path("b.mp4"), dry_run=True), {"model": "demo"}) is None
    assert [path.name for path in tmp_path.iterdir()] == ["taken.mp4"]


def test_a_disk_without_room_for_the_latents_is_told_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10_000}))
    with pytest.raises(RequestError, match="has 10 kB left, and the final latents take 20 kB"):
        spine.run(RunOptions(out=tmp_path / "a.mp4", dry_run=True), {"model": "demo"})
