"""A strategy with an axis of its own is one folder and one line: a throw-away one is added to a copy and put to work.

`echo` repeats the work of one rank on several and takes the mean of their predictions, which is each of them, so that
its latents are those without it, bit for bit. `lattice` has two axes, and one of its ranks holds and sends more than
others. `duo` divides the guidance branches as cfg does.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support import command

ROOT = Path(__file__).parents[2]
NAMES = ("echo", "lattice", "duo")
LINES = "".join(f"from hybridgen.strategies.{name}.rules import STRATEGY as {name}\n" for name in NAMES)
BEFORE = "from hybridgen.strategies.parallel_vae.rules import"
RULES = '''
"""Echo: the same prediction on every rank, and their mean."""

from __future__ import annotations

from hybridgen.errors import RequestError
from hybridgen.plan.axes import Axis, Degree, Option
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
        yield Message("echo", "echo", "all_gather", "prediction", size, plan.clip.steps * plan.option("rounds"))


def memory(plan, rank):
    if plan.degrees.echo > 1:
        yield Term("echoes", plan.degrees.echo * plan.state_size * plan.itemsize)


def apply(model, mesh, plan):
    from hybridgen.strategies.echo.run import apply

    apply(model, mesh, plan)


STRATEGY = Strategy(
    "echo", (Degree("echo", "Ranks that repeat each other.", listed=75, axes=(ECHO,)),), apply, REASONS, violations,
    traffic, memory, options=(Option("rounds", "Echo: times that it is repeated.", listed=120),),
)
'''
LATTICE = '''
"""Lattice: a rank in its second column holds 500 GB, and only the last stage sends."""

from hybridgen.plan.axes import Axis, Degree
from hybridgen.plan.traffic import Message, Term
from hybridgen.strategies.strategy import Strategy

UP = Axis("up", divides="nothing", exchanges="prediction up", place=16, why="it sends seldom", drawn="down")
SIDE = Axis("side", divides="nothing", exchanges="prediction aside", place=17, why="it sends seldom", drawn="across")


def traffic(plan, rank):
    size, here = plan.degrees.size("side"), plan.layout.coordinates(rank)
    if size > 1 and plan.is_last_stage(rank):
        yield Message("lattice", "side", "all_gather", "prediction", (size - 1) * plan.state_size, plan.clip.steps)
    if here["side"] == 1:
        yield Message("lattice", "side", "p2p", "giant", 10**12, plan.clip.steps)


def memory(plan, rank):
    if plan.layout.coordinates(rank)["side"] == 1:
        yield Term("lattice hoard", 500 * 10**9)


STRATEGY = Strategy(
    "lattice", (Degree("lattice", "Rows x columns.", listed=76, metavar="RxC", axes=(UP, SIDE)),), traffic=traffic,
    memory=memory,
)
'''
FOLDERS = {"echo": RULES, "lattice": LATTICE}
RUN = '''
"""Echo at work."""


def apply(model, mesh, plan):
    """Replace the guided prediction by the mean over the echoes."""
    group, inner = mesh.group("echo", "echo"), model.slots.guide

    def guide(predictions, x, step, now):
        found = inner(predictions, x, step, now)
        for _ in range(plan.option("rounds")):
            found = group.all_gather(found).mean(0)
        return found

    model.slots.guide = guide
'''


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with a folder and a line more for each strategy; all else is linked."""
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
    (strategies / "registry.py").write_text(registry.replace(BEFORE, LINES + BEFORE))
    duo = (here / "strategies" / "cfg" / "rules.py").read_text()
    duo = re.sub(r"\bcfg\b", "duo", duo.replace("plan.degrees.cfg", 'plan.degrees.size("cfg")').replace("CFG", "DUO"))
    duo = duo.replace("place=10", "place=12").replace("listed=10", "listed=77")
    run = re.sub(r"\bcfg\b", "duo", (here / "strategies" / "cfg" / "run.py").read_text())
    for name, rules in (*FOLDERS.items(), ("duo", duo)):
        (strategies / name).mkdir()
        (strategies / name / "__init__.py").touch()
        (strategies / name / "rules.py").write_text(rules)
        (strategies / name / "run.py").write_text(run if name == "duo" else RUN)
    return root


def hybridgen(tree: Path, words: str, code: int = 0) -> str:
    """What a command says on stdout, or on stderr where it is refused."""
    done = command.hybridgen(tree, *words.split(), tree=tree, environment={"COLUMNS": "200"})
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
    assert "--echo 16: is more than 8" in hybridgen(tree, "plan --gpus 16 --rejected")
    rejected = json.loads(hybridgen(tree, "plan --gpus 8 --echo 2 --json"))["rejected"]
    assert len(rejected) > 5 and all("echo2" in one["config"].split() for one in rejected)
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
    text = (tree / "echo.yaml").read_text()
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
    made, without = report(tree, "--echo 2 --rounds 3 --ulysses 2", "echo"), report(tree, "--ulysses 2", "without")
    assert made["plan"]["config"] == "echo2 ulysses2" and made["plan"]["world_size"] == 4
    assert made["plan"]["degrees"]["echo"] == 2 and "echo" in made["plan"]["order"]
    assert made["plan"]["rounds"] == 3 and "rounds" not in without["plan"]
    latents = 16 * 2 * 8 * 8  # of 5 frames of 64x64, half of them on each rank of ulysses
    assert [sent["echo"] for sent in made["traffic_bytes"]] == [3 * 2 * latents // 2 * 4] * 4
    assert made["latents_sha256"] == without["latents_sha256"]


def test_its_option_shows_wherever_the_plan_does(tree: Path) -> None:
    words = "--model wan2.2 --gpus 4 --echo 2 --rounds 3"
    first = json.loads(hybridgen(tree, f"plan {words} --json"))["candidates"][0]
    default = json.loads(hybridgen(tree, "plan --model wan2.2 --gpus 4 --echo 2 --json"))["candidates"][0]
    assert first["options"] == {"rounds": 3} and default["options"] == {"rounds": 1}
    assert first["bytes_per_step"]["echo"] == 3 * default["bytes_per_step"]["echo"]
    shown = hybridgen(tree, f"plan {words} --save rounds.yaml")
    assert re.search(r"hybridgen run .*--echo 2.* --rounds 3", shown) and "rounds: 3" in shown
    assert "rounds: 3" in (tree / "rounds.yaml").read_text()
    assert "with    rounds 3" in hybridgen(tree, "run --recipe rounds.yaml -p x --dry-run")
    refused = hybridgen(tree, "run --model wan2.2 --rounds 3 -p x --dry-run", code=2)
    assert "error[echo-only]: --rounds 3: is for --echo" in refused and "echo-only" in hybridgen(tree, "explain")


def test_ranks_that_hold_or_send_more_are_seen(tree: Path) -> None:
    for degrees in ("--lattice 2x2", "--lattice 1x2 --pipefusion 2"):
        assert re.search(r"needs [56]\d\d\.\d GB", hybridgen(tree, f"plan --model wan2.2 --gpus 4 {degrees}", code=2))
    few = "plan --model wan2.2 --gpus 4 --pipefusion 2 --memory 800GB --json --lattice"
    hoarded, without = (json.loads(hybridgen(tree, f"{few} {size}"))["candidates"][0] for size in ("1x2", "2x1"))
    assert hoarded["memory_gb"]["lattice hoard"] == 500 and "lattice hoard" not in without["memory_gb"]
    state = hoarded["bytes_per_step"]["side"] - 10**12
    assert 0 < state < 10**9 and "side" not in without["bytes_per_step"]  # of the last stage, and of another rank


def test_branches_are_divided_by_any_axis_that_says_so(tree: Path) -> None:
    words = "--model wan2.2 --gpus 8 --vae 4 --ulysses 4 --json"
    by_cfg, by_duo = (
        json.loads(hybridgen(tree, f"plan {words} --{name} 2"))["candidates"][0] for name in ("cfg", "duo")
    )
    for name in ("denoise_s", "end_to_end_s"):
        assert by_cfg[name] == by_duo[name]
    assert by_cfg["memory_gb"]["peak"] == by_duo["memory_gb"]["peak"]
    assert "error[branches]" in hybridgen(tree, "run --model wan2.2 --cfg 2 --duo 2 -p x --dry-run", code=2)
    made, without = report(tree, "--duo 2 --tp 2 --vae 2", "duo"), report(tree, "--cfg 2 --tp 2 --vae 2", "cfg")
    assert made["latents_sha256"] == without["latents_sha256"]
    sent = [{name.replace("cfg", "duo"): size for name, size in rank.items()} for rank in without["traffic_bytes"]]
    assert made["traffic_bytes"] == sent
