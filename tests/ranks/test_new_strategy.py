"""A strategy with an axis of its own is one folder and one line: a throw-away one is added to a copy and put to work.

`echo` repeats the work of one rank on several and takes the mean of their predictions, which is each of them, so that
its latents are those without it, bit for bit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LINE = "from hybridgen.strategies.echo.rules import STRATEGY as echo\n"
BEFORE = "from hybridgen.strategies.parallel_vae.rules import"
RULES = '''
"""Echo: the same prediction on every rank, and their mean."""

from __future__ import annotations

from hybridgen.errors import RequestError
from hybridgen.plan.degrees import Axis, Degree
from hybridgen.plan.traffic import Message, Term
from hybridgen.strategies.strategy import Strategy

REASONS = {"echo-limit": "More than eight echoes are noise."}
ECHO = Axis("echo", divides="nothing", exchanges="prediction, once more", place=15, why="it sends as seldom as cfg")


def violations(plan):
    if plan.degrees.echo > 8:
        yield RequestError("echo-limit", "echo", plan.degrees.echo, "is more than 8", [8])


def traffic(plan, rank):
    size = (plan.degrees.echo - 1) * plan.state_size * plan.itemsize
    if size:
        yield Message("echo", "echo", "all_gather", "prediction", size, plan.clip.steps)


def memory(plan, rank):
    if plan.degrees.echo > 1:
        yield Term("echoes", plan.degrees.echo * plan.state_size * plan.itemsize)


def apply(model, mesh, plan):
    from hybridgen.strategies.echo.run import apply

    apply(model, mesh, plan)


STRATEGY = Strategy(
    "echo", (Degree("echo", "Ranks that repeat each other.", listed=75, axes=(ECHO,)),), apply, REASONS, violations,
    traffic, memory,
)
'''
RUN = '''
"""Echo at work."""


def apply(model, mesh, plan):
    """Replace the guided prediction by the mean over the echoes."""
    group, inner = mesh.group("echo", "echo"), model.slots.guide

    def guide(predictions, x, step, now):
        return group.all_gather(inner(predictions, x, step, now)).mean(0)

    model.slots.guide = guide
'''


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with one folder and one line more; all else is linked."""
    root = tmp_path_factory.mktemp("tree")
    package, here = root / "hybridgen", ROOT / "hybridgen"
    strategies = package / "strategies"
    strategies.mkdir(parents=True)
    for source, target in ((here, package), (here / "strategies", strategies)):
        for entry in source.iterdir():
            if entry.name not in ("strategies", "registry.py", "__pycache__"):
                (target / entry.name).symlink_to(entry.resolve())
    registry = (here / "strategies" / "registry.py").read_text()
    assert registry.count(BEFORE) == 1
    (strategies / "registry.py").write_text(registry.replace(BEFORE, LINE + BEFORE))
    (strategies / "echo").mkdir()
    (strategies / "echo" / "__init__.py").touch()
    (strategies / "echo" / "rules.py").write_text(RULES)
    (strategies / "echo" / "run.py").write_text(RUN)
    return root


def hybridgen(tree: Path, words: str, code: int = 0) -> str:
    """What a command says on stdout, or on stderr where it is refused."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "200"}
    command = [sys.executable, "-m", "hybridgen", *words.split()]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def test_it_is_planned_for(tree: Path) -> None:
    found = json.loads(hybridgen(tree, "plan --model wan2.2 --gpus 16 --echo 2 --approximate --json --all"))
    assert found["request"]["fixed"] == {"echo": 2} and len(found["candidates"]) > 10
    for one in found["candidates"]:
        assert one["degrees"]["echo"] == 2 and "echo2" in one["config"].split() and "echo" in one["order"]
        assert one["bytes_per_step"]["echo"] > 0 and one["memory_gb"]["echoes"] > 0
    kinds = [{name for name, size in one["degrees"].items() if size not in (1, [1, 1])} for one in found["candidates"]]
    for others in ({"tp"}, {"pipefusion"}, {"ulysses"}, {"ring"}, {"attn2d"}, {"cfg", "ulysses", "attn2d"}):
        assert {"echo", *others} in [kind - {"vae"} for kind in kinds]
    assert "--echo 16: is more than 8" in hybridgen(tree, "plan --gpus 16 --echo 16", code=2)
    assert "More than eight echoes are noise." in hybridgen(tree, "explain echo-limit")


def test_a_dry_run_draws_every_rank(tree: Path) -> None:
    shown = hybridgen(tree, "run --model wan2.2 --cfg 2 --echo 2 --ulysses 2 -p x --dry-run")
    assert "cfg2 echo2 ulysses2" in shown and "mesh: cfg 2 x echo 2 x ulysses 2 = 8 ranks" in shown
    cells = {word for line in shown.splitlines() for word in line.split() if word in ("0-1", "2-3", "4-5", "6-7")}
    assert len(cells) == 4 and "echo 0, cfg 1: without" not in cells
    assert "echo 1" in shown and "prediction, once more" in shown


def test_its_order_can_be_chosen(tree: Path) -> None:
    shown = hybridgen(tree, "run --model wan2.2 --echo 2 --ulysses 2 --order ulysses,echo -p x --dry-run")
    assert "mesh: ulysses 2 x echo 2 = 4 ranks, echo fastest" in shown
    refused = hybridgen(tree, "run --model wan2.2 --echo 2 --ulysses 2 --order ulysses -p x --dry-run", code=2)
    assert "leaves out echo" in refused


def test_a_recipe_keeps_it_and_engines_without_it_refuse(tree: Path) -> None:
    hybridgen(tree, "plan --model wan2.2 --gpus 4 --echo 2 --save echo.yaml")
    text = (tree / "echo.yaml").read_text().replace("schema: 1\n", "schema: 1\nlicense: Apache-2.0\n")
    (tree / "echo.yaml").write_text(text)
    assert "echo: 2" in text
    hybridgen(tree, "recipes check echo.yaml")
    (tree / "loose.yaml").write_text(text.replace("echo: 2", "echo:   2"))
    hybridgen(tree, "recipes check --fix loose.yaml")
    assert (tree / "loose.yaml").read_text() == text
    for engine in ("xdit", "trtllm"):
        assert "no echo (--echo 2)" in hybridgen(tree, f"recipes export echo.yaml --to {engine}", code=2)


def report(tree: Path, degrees: str, name: str) -> Any:
    """A clip of the demo on CPU ranks, as its report has it."""
    clip = "--model demo --device cpu --steps 2 --frames 5 --seed 1 -p circle -q"
    hybridgen(tree, f"run {clip} {degrees} --report {name}.json --out {name}.mp4")
    return json.loads((tree / f"{name}.json").read_text())


def test_ranks_run_it_and_send_what_is_declared(tree: Path) -> None:
    made, without = report(tree, "--echo 2 --ulysses 2", "echo"), report(tree, "--ulysses 2", "without")
    assert made["plan"]["config"] == "echo2 ulysses2" and made["plan"]["world_size"] == 4
    assert made["plan"]["degrees"]["echo"] == 2 and "echo" in made["plan"]["order"]
    latents = 16 * 2 * 8 * 8  # of 5 frames of 64x64, half of them on each rank of ulysses
    assert [sent["echo"] for sent in made["traffic_bytes"]] == [2 * latents // 2 * 4] * 4
    assert made["latents_sha256"] == without["latents_sha256"]
