"""A diffusers that has changed is refused by name when a rank loads, not found out by wrong clips."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from hybridgen.errors import RequestError
from hybridgen.models import seams
from hybridgen.models.load import empty_experts
from hybridgen.models.registry import DENOISERS
from tests.support.checkpoints import Case

KINDS = {
    "WanPipeline": "wan2.1-t2v",
    "WanImageToVideoPipeline": "wan2.1-i2v",
    "Cosmos2TextToImagePipeline": "cosmos2-t2i",
    "Cosmos2VideoToWorldPipeline": "cosmos2-v2w",
    "Cosmos2_5_PredictBasePipeline": "cosmos2.5",
    "Cosmos3OmniPipeline": "cosmos3",
}
"""A tiny checkpoint of every pipeline class."""


def transformer(pipeline: str) -> Any:
    case = Case(KINDS[pipeline], images=int(pipeline == "WanImageToVideoPipeline"), frames=1)
    return empty_experts(case.plan(), case.folder)[0]


def owner_of(root: Any, path: str) -> tuple[Any, str]:
    parent, _, name = path.rpartition(".")
    return (seams._found(root, parent) if parent else root), name


def test_every_pipeline_has_seams_that_are_tested() -> None:
    assert set(KINDS) == set(seams.BY_PIPELINE) == set(DENOISERS)


@pytest.mark.parametrize("pipeline", KINDS)
def test_a_name_that_is_gone_is_told(pipeline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = transformer(pipeline)
    seams.check(pipeline, model)
    wanted = {**seams.EVERY.calls, **seams.BY_PIPELINE[pipeline].calls}
    for name, parameters in wanted.items():
        module, _, path = name.partition(":")
        owner, attribute = owner_of(import_module(module), path)
        for changed in [None, *([lambda: None] if parameters else [])]:
            with monkeypatch.context() as patch:
                if changed is None:
                    patch.delattr(owner, attribute)
                else:
                    patch.setattr(owner, attribute, changed)  # it takes nothing any more
                with pytest.raises(RequestError, match=attribute) as caught:
                    seams.check(pipeline, model)
            assert caught.value.rule == "diffusers-changed" and seams.TESTED in caught.value.message


@pytest.mark.parametrize("pipeline", KINDS)
def test_a_part_of_the_transformer_that_is_gone_is_told(pipeline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = transformer(pipeline)
    for part in seams.BY_PIPELINE[pipeline].parts:
        owner, name = owner_of(model, part)
        if name in vars(owner) or name in getattr(owner, "_modules", {}):  # those of a configuration are frozen
            with monkeypatch.context() as patch:
                patch.delattr(owner, name)
                with pytest.raises(RequestError, match=part):
                    seams.check(pipeline, model)
    seams.check(pipeline, model)
