"""Variables of launchers, and what ranks may send each other. No ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hybridgen.cli.main import call
from hybridgen.distributed.data import packed, unpacked
from hybridgen.engine import environment
from hybridgen.errors import RequestError
from hybridgen.models import catalogue
from hybridgen.plan.plan import Clip, Plan
from hybridgen.strategies.registry import Degrees

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("rack[1-2]n[01-18]", "rack1n01"),
        ("gpu[03-07,11],login", "gpu03"),
        ("gpu03", "gpu03"),
        ("a,b[1-2]", "a"),
        ("n[007]-ib,m", "n007-ib"),
    ],
)
def test_the_first_host_of_a_slurm_list(nodes: str, first: str) -> None:
    assert environment.first_host(nodes) == first


BROKEN = [
    ({"RANK": "5", "WORLD_SIZE": "2"}, "RANK=5: ranks of WORLD_SIZE=2 are 0 to 1"),
    ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK=x: is not a whole number"),
    ({"RANK": "", "WORLD_SIZE": "2"}, "RANK: is empty"),
    ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE=0"),
    ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK=-1"),
    ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "http"}, "MASTER_PORT=http"),
    ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "99999"}, "MASTER_PORT=99999"),
    ({"SLURM_STEP_NUM_TASKS": "two"}, "SLURM_STEP_NUM_TASKS=two"),
    ({"SLURM_STEP_NUM_TASKS": "2"}, "SLURM_PROCID: is empty or missing"),
    ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}, "names no host"),
]


@pytest.mark.parametrize(("variables", "says"), BROKEN, ids=[says for _, says in BROKEN])
def test_variables_that_no_launcher_sets_are_refused_in_one_line(
    variables: dict[str, str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert call("run --model demo -p x --cfg 2 --device cpu --dry-run".split()) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("error[launcher]: ") and says in lines[0]
    assert sum("error[" in line for line in lines) == 1


def test_only_run_is_silent_on_other_ranks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert call("plan --gpus 7 --ulysses 7".split()) == 2
    assert "error[ulysses-heads]" in capsys.readouterr().err
    assert call("run --model demo --cfg 2 --steps 0 -p x".split()) == 2
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("RANK", "x")
    assert call("plan --gpus 4".split()) == 0


@pytest.mark.parametrize("model", ["demo", "wan2.2", "cosmos3-nano", "cosmos2.5-2b"])
def test_a_plan_comes_back_from_json_as_it_was(model: str) -> None:
    plan = Plan(catalogue.find(model), Clip(64, 64, 17, 6, 3.0), Degrees(cfg=2, attn2d=(1, 2)))
    sent = {"plan": plan, "where": Path("a/b"), "none": None, "many": [1, 2.5, "x", (True,)]}
    back = unpacked(packed(sent), like=sent)
    assert back == sent and type(back["plan"].facts.transformer) is type(plan.facts.transformer)


@dataclass(frozen=True)
class Other:
    """A class that no job is made of."""

    x: Any = None


def test_nothing_else_is_made_of_what_comes() -> None:
    with pytest.raises(ValueError, match="Other"):
        unpacked(packed(Other(1)), like={"a": 1})
    assert unpacked(packed(Other(1)), like=Other()) == Other(1)


@pytest.mark.parametrize("value", ["0", "-3", "nan", "inf"])
def test_a_limit_is_an_amount_of_seconds(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(["run", "--model", "demo", "-p", "x", "--dry-run", f"--hang-timeout={value}"]) == 2


def test_errors_of_a_launcher_are_requests() -> None:
    with pytest.raises(RequestError, match="names no host"):
        environment.first_host("")
