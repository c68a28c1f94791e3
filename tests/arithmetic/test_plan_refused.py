"""What cannot be planned is refused, and every rule is explained."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hybridgen.cli.explanations import rules
from hybridgen.cli.main import call

ROOT = Path(__file__).parents[2]
BAD_ANCHORS = ("0", "-300", "nan", "inf", "-inf")


@pytest.mark.parametrize(
    ("flags", "rule", "says"),
    [
        ("--gpus 8 --ulysses 6 --cfg 2", "ulysses-heads", "of wan2.2-t2v-a14b; nearest: cfg2 ulysses4 vae8, "),
        ("--gpus 8 --ulysses 5", "no-plan", "no legal plan has 8 GPUs with --ulysses 5"),
        ("--gpus 8 --vae 9", "vae-width", "nearest: 8"),
        ("--gpus 3 --cfg 2 --vae 8", "no-plan", "with --cfg 2 --vae 8"),
        ("--gpus 8 --patches 4", "pipefusion-only", "--patches 4"),
        ("--gpus 72 --max-time 5s", "max-time", "288 GPUs as cfg2 ulysses8"),
        ("--gpus 2 --memory 40GB --cfg 2", "memory", "nearest: 8 GPUs as cfg2 tp2 "),
        (
            "--gpus 8 --memory 15GB",
            "memory",
            "more than --memory 15GB; the largest part, 8.5 GB while denoising, is activations; nearest: 32 GPUs",
        ),
        ("--gpus 8 --memory 10GB", "memory", "no plan for up to 128 GPUs fits: the text encoder alone takes 11.4 GB"),
        ("--gpus 8 --memory 13GB", "memory", "the text encoder and the context alone take 13.4 GB, which no split"),
        ("--gpus 8 --ulysses 3", "ulysses-heads", "nearest: ulysses8 vae8, "),
        ("--gpus 8 --cfg 1 --max-time 1s", "max-time", "nothing is fast enough on 8 x GB200: the fastest plan, "),
        (
            "--gpus 8 --hardware rtx4090 --ulysses 8",
            "memory",
            "nothing fits on 8 x RTX 4090 with --ulysses 8: ",
        ),
        (
            "--model cosmos2.5-14b --gpus 3 --hardware rtx4090 --frames 17 --ring 2 --dtype float32",
            "memory",
            "no legal plan has 3 GPUs with --ring 2; nothing fits on 3 x RTX 4090: ",
        ),
        (
            "--model cosmos3 --gpus 9 --frames 80 --ulysses 3 --ring 3 --hardware rtx4090",
            "memory",
            "nearest: 8 GPUs as cfg2 tp4 vae8",
        ),
        (
            "--gpus 8 --plot /nonexistent/x.png",
            "output-folder",
            "--plot /nonexistent/x.png: the folder /nonexistent does not exist",
        ),
        ("--gpus 8 --memory much", "quantity", "nearest: 40GB"),
        ("--gpus 8 --memory 40", "quantity", "nearest: 40GB"),
        ("--gpus 8 --max-time 0s", "quantity", "nearest: 90s"),
        ("--gpus 8 --hardware h20000", "unknown-hardware", "nearest: h20"),
        ("--gpus 8 --anchor 0.001", "anchor", "is less than one GB200 can take; predicted: 37"),
        *((f"--gpus 8 --anchor={value}", "anchor", f"--anchor {value}: must be a number") for value in BAD_ANCHORS),
        ("--gpus 8 --explain 99", "explain", "nearest: 6"),
        ("--gpus 8 --top 0", "top", "nearest: 1"),
        ("--gpus 9 --nodes 2 --gpus-per-node 4", "gpus", "nearest: 8"),
        ("--gpus 8 --nodes 0", "gpus", "nearest: 1"),
        ("--gpus 8 --heads 32 --save x.yaml", "save", "has 40"),
        ("--gpus 9 --nodes 2", "gpus", "cannot be spread over --nodes 2; nearest: 8"),
        ("--model-facts nothere.yaml --gpus 8", "model-facts", "No such file"),
        ("--model demo --model-facts x.yaml --gpus 8", "model-facts", "names another model"),
    ],
)
def test_a_request_that_cannot_be_planned_is_refused(flags: str, rule: str, says: str, plan: Any) -> None:
    first, *rest = plan(flags, code=2).splitlines()
    assert first.startswith(f"error[{rule}]: ") and says in first and rule in rules()
    for line in rest:
        if line.startswith("  try:  hybridgen plan "):  # what is suggested works
            plan(line.removeprefix("  try:  hybridgen plan "))


def test_every_rule_can_be_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """Every id that the source raises, and those that --rejected shows."""
    pattern = re.compile(r"(?:RequestError|RunFailed|not_legal)\(\s*\"([a-z0-9-]+)\"")
    files = [file for room in ("hybridgen", "cli", "strategies") for file in (ROOT / room).rglob("*.py")]
    raised = {rule for file in files for rule in pattern.findall(file.read_text())}
    assert len(raised) > 40 and not raised - rules().keys()
    for rule in ("ulysses-heads", "memory"):
        assert call(["explain", rule.upper()]) == 0
        assert capsys.readouterr().out == f"{rule}  {rules()[rule]}\n"
    assert call(["explain", "ulysses-head"]) == 2
    assert "nearest: ulysses-heads" in capsys.readouterr().err
    assert call(["explain"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert not rules().keys() - listed


@pytest.mark.parametrize(
    ("words", "plan"),
    [
        ("--model wan2.2 --gpus 8 --hardware h100", "cfg2 ulysses4 vae8"),
        ("--model wan2.2 --gpus 72 --hardware gb200-nvl72", "cfg2 ulysses4 attn2d3x3 vae8"),
        ("--model wan2.2 --gpus 8 --auto --ring 2 --hardware h100", "cfg2 ulysses2 ring2 vae8"),
        ("--model wan2.2 --gpus 4 --auto --pipefusion 4:9,9,11,11 --hardware h100", "pipefusion4 vae4"),
        ("--model demo --gpus 2 --device cpu", "cfg2"),
        ("--model demo --gpus 2 --cfg 2 --vae 2", "cfg2 vae2"),
    ],
)
def test_run_lets_the_planner_choose_what_is_open(words: str, plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", *words.split(), "--dry-run"]) == 0
    out, said = capsys.readouterr()
    assert f"plan    {plan}     " in out
    chosen = said.startswith(f"planner {plan} on ") and "of denoising predicted" in said
    assert chosen == ("--auto" in words or "--cfg" not in words)
