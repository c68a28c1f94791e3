"""What a refusal suggests: every command on a try: line works, and every nearest value is legal."""

from __future__ import annotations

import random
import re
import shlex
import tracemalloc
from pathlib import Path

import pytest
from typer.exceptions import TyperException

from hybridgen.cli.main import app, call
from hybridgen.cli.suggest import refusal, working
from hybridgen.errors import RequestError, changed
from hybridgen.models.tiny import cache
from hybridgen.recipe import library
from hybridgen.recipe.fields import keys_of
from hybridgen.recipe.typed import dotted

MODELS = ("wan2.2", "wan2.1-1.3b", "cosmos2.5-14b", "cosmos3", "demo")
MACHINES = ("gb200-nvl72", "h200", "rtx4090")
DEGREES = {
    "cfg": (1, 2, 3),
    "ulysses": (2, 3, 6, 7),
    "ring": (2, 3, 5),
    "attn2d": ("2x2", "3x1"),
    "tp": (3, 6),
    "vae": (5, 40),
    "pipefusion": (3, 50),
    "usp": ("3x2",),
    "memory": ("10GB", "20GB"),
    "max-time": ("1s", "30s"),
    "guidance": (1,),
}
"""Degrees and limits, which together are often more than there is."""
WORDS: tuple[str, ...] = (
    "heads 7",
    "order foo",
    "order ulysses,cgf",
    "dtype fp8",
    "steps 0",
    "size abc",
    "size 100x64",
    "top 0",
)
WORDS += ("fps 0", "frames 0", "explain 99", "warmup 0", "nodes 3", "frames 100000", "anchor 0.001", "patches 2")
"""Flags that cannot be, whatever the others are."""


def requests(count: int) -> list[str]:
    """Requests drawn with a fixed seed, most of which cannot be."""
    draw, found = random.Random(11), [f"plan --gpus 8 --{word}" for word in WORDS]
    while len(found) < count:
        words = ["plan", "--model", draw.choice(MODELS), "--hardware", draw.choice(MACHINES)]
        names = draw.sample(sorted(DEGREES), draw.choice((2, 2, 3)))
        words += [word for name in names for word in (f"--{name}", str(draw.choice(DEGREES[name])))]
        counts = [["--gpus", str(draw.choice((3, 6, 8, 9)))], ["--gpus", "8", "--nodes", "2"]]
        words += draw.choice([*counts, []] if {"cfg", "ulysses", "ring", "tp"} & set(names) else counts)
        found.append(shlex.join([*words, *(["--fewer"] if draw.random() < 0.2 else [])]))
    return found


def suggested(command: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Commands on the try: lines of a refused request, without the program's name."""
    capsys.readouterr()
    if call(shlex.split(command)) == 0:
        return []
    return re.findall(r"^  try:  hybridgen (.*)$", capsys.readouterr().err, re.MULTILINE)


def test_every_suggested_command_works(capsys: pytest.CaptureFixture[str]) -> None:
    tries = {request: suggested(request, capsys) for request in requests(52)}
    assert all(tries[f"plan --gpus 8 --{word}"] for word in WORDS)
    assert sum(map(len, tries.values())) > 35
    for request, commands in tries.items():
        for command in commands:
            assert call(shlex.split(command)) == 0, (request, command, capsys.readouterr().err)


SPLITS: dict[str, tuple[object, ...]] = {
    "cfg": (1, 2, 3, 0),
    "ulysses": (1, 3, 6, 8, 40),
    "ring": (1, 2, 9),
    "attn2d": ("2x2", "3x1", "1x1"),
    "tp": (2, 3, 5),
    "vae": (1, 3, 9, 40),
    "pipefusion": (2, 50, "2:1,3"),
    "usp": ("3x2", "8x1", "7x3"),
    "patches": (2, 10**6),
    "warmup": (0, 2),
    "order": ("cfg,ulysses", "foo", "row"),
}
ASKED: dict[str, tuple[object, ...]] = {
    "frames": (0, 16, 80, 81, 5000),
    "size": ("64x64", "1280x700", "9999x9999", "abc"),
    "steps": (0, 20),
    "guidance": (0, 1, 3),
    "guidance-2": (1, 2, "inf"),
    "seed": (-1, 2**70),
    "fps": (0, 16),
    "image": ("a.png",),
    "last-image": ("b.png",),
    "video": ("v.mp4",),
    "dtype": ("fp8", "fp16"),
    "attention": ("sdpa", "foo", "cudnn"),
    "model": ("demo", "wan22", "cosmos3", "wan2.1-1.3b", "wan2.2-i2v", "cosmos-predict2-2b-text2image"),
    "gpus": (1, 6, 8, 72),
    "revision": ("abc",),
}
FOREIGN = (
    "--num_frames 17",
    "--height 64 --width 64",
    "--lora x",
    "--use_cfg_parallel",
    "--ulysses_degree 4",
    "--sizes 3",
)


def runs(count: int) -> list[list[str]]:
    """Dry runs drawn with a fixed seed, with recipes, --set and other tools' flags, most of which cannot be."""
    draw, found = random.Random(5), []
    for _ in range(count):
        words = ["run", "--dry-run", "--device", "cpu"]
        words += ["--recipe", draw.choice(library.names())] if draw.random() < 0.5 else []
        for name in draw.sample([*SPLITS, *ASKED], draw.choice((1, 2, 2, 3))):
            value = str(draw.choice({**SPLITS, **ASKED}[name]))
            keys = dotted(keys_of(name))
            words += ["--set", f"{keys}={value}"] if keys and draw.random() < 0.3 else [f"--{name}", value]
        found.append([*words, *(draw.choice(FOREIGN).split() if draw.random() < 0.15 else [])])
    return found


def test_every_suggestion_of_a_run_works(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Commands run dry, but for files that are still to be made; nearest values are not refused for their flag."""
    monkeypatch.chdir(tmp_path)
    tried = near = 0
    for words in runs(100):
        for command in suggested(shlex.join(words), capsys):
            if not command.endswith("--help"):
                error, tried = refusal(["hybridgen", *shlex.split(command)], app), tried + 1
                assert error is None, (words, command, str(error))
        try:
            app(words, standalone_mode=False, obj={})
        except RequestError as error:
            told = working(error, ["hybridgen", *words], app)
            flag = told.flag if keys_of(told.flag) and told.place is None and not isinstance(told.nearest, str) else ""
            for value in told.nearest if flag else ():
                other, near = refusal(changed(["hybridgen", *words], {flag: str(value)}), app), near + 1
                assert other is None or other.flag != flag, (words, value, str(other))
        except TyperException:
            continue
    assert tried > 60 and near > 20


def test_a_suggested_tiny_checkpoint_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """To build one takes seconds."""
    monkeypatch.setattr(cache, "_build", lambda *_: pytest.fail("it was built"))
    assert call(["plan", "--gpus", "8", "--model", "tiny:none"]) == 2


def test_rejected_plans_of_many_gpus_are_listed_within_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """Neighbours of such a plan have billions of ranks; widths of the VAE are no more than its rows."""
    tracemalloc.start()
    try:
        assert call(["plan", "--gpus", "65536", "--json"]) == 0
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()
