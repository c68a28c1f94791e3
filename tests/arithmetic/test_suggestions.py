"""What a refusal of hybridgen plan suggests: every command on a try: line works."""

from __future__ import annotations

import random
import re
import shlex

import pytest

from hybridgen.cli.main import call

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
