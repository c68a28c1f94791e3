"""Every scheduler setting that is accepted acts on each number alone and draws nothing; the others are refused."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import diffusers
import pytest
import torch

from hybridgen.errors import RequestError
from hybridgen.models import schedulers
from hybridgen.models.files import Folder
from hybridgen.models.keys import Key

COUNT = 150


def values(key: Key) -> list[Any]:
    """A few values that a key may have."""
    if key.length is not None:
        return [key.default]
    if key.kind is bool:
        return [True, False]
    if key.legal:
        return list(key.legal)
    if key.kind is int:
        return [key.default, *(value for value in (1, 2, 3, 500) if key.fits(value))]
    return [key.default, *(value for value in (0.02, 0.3, 1.0, 3.0) if key.fits(value))]


def drawn(kind: str, draw: Random) -> dict[str, Any]:
    """A configuration that differs from the usual one in a few settings."""
    table = {name: key for name, key in schedulers.TABLES[kind].items() if isinstance(key, Key) and name[0] != "_"}
    usual = {"prediction_type": "flow_prediction", "use_flow_sigmas": True} if kind.startswith("UniPC") else {}
    return usual | {name: draw.choice(values(table[name])) for name in draw.sample(sorted(table), draw.randint(1, 4))}


def steps(kind: str, config: dict[str, Any], x: torch.Tensor, predictions: list[torch.Tensor]) -> torch.Tensor:
    """Take all steps of a schedule from x."""
    scheduler = getattr(diffusers, kind)(**{name: value for name, value in config.items() if name != "_class_name"})
    scheduler.set_timesteps(len(predictions))
    for timestep, prediction in zip(scheduler.timesteps, predictions, strict=True):
        x = scheduler.step(prediction, timestep, x, return_dict=False)[0]
    return x


@pytest.mark.parametrize("kind", schedulers.TABLES)
def test_what_is_accepted_can_be_cut(kind: str, tmp_path: Path) -> None:
    draw, accepted = Random(3), 0
    (tmp_path / "scheduler").mkdir()
    torch.manual_seed(0)
    x, *predictions = torch.randn(5, 1, 4, 2, 6, 6)
    for _ in range(COUNT):
        config = drawn(kind, draw)
        (tmp_path / "scheduler/scheduler_config.json").write_text(json.dumps(config))
        try:
            found = schedulers.look(Folder(tmp_path), kind)
        except RequestError as error:
            assert error.rule == "unsupported-scheduler", config
            continue
        try:
            whole = steps(kind, found, x, predictions)
        except AssertionError:  # of diffusers, which stops where two steps of Karras' table are the same
            assert found["use_karras_sigmas"]
            continue
        accepted += 1
        torch.manual_seed(accepted)  # a scheduler that draws would draw something else
        part = steps(kind, found, x[..., :3, :], [prediction[..., :3, :] for prediction in predictions])
        assert torch.isfinite(whole).all() and torch.equal(whole[..., :3, :], part), config
    assert accepted > COUNT / 3


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        ("FlowMatchEulerDiscreteScheduler", {"stochastic_sampling": True}),
        ("UniPCMultistepScheduler", {"thresholding": True, "sample_max_value": 100.0}),
    ],
)
def test_what_is_refused_cannot_be_cut(kind: str, setting: dict[str, Any]) -> None:
    """Or the test above would prove nothing."""
    torch.manual_seed(0)
    x, *predictions = 3 * torch.randn(5, 1, 4, 2, 6, 6)
    whole = steps(kind, setting, x, predictions)
    torch.manual_seed(1)
    part = steps(kind, setting, x[..., :3, :], [prediction[..., :3, :] for prediction in predictions])
    assert not torch.equal(whole[..., :3, :], part)
