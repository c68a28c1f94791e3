"""The private names of diffusers that hybridgen builds on are there, with the parameters that it gives them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import diffusers
import pytest

from hybridgen.errors import RequestError
from hybridgen.models import load
from hybridgen.models.registry import BY_PIPELINE
from tests.support import seams
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
    return load.empty_experts(case.plan(), case.folder)[0]


def owner_of(root: Any, path: str) -> tuple[Any, str]:
    parent, _, name = path.rpartition(".")
    return (seams.found_in(root, parent) if parent else root), name


def test_every_pipeline_has_seams() -> None:
    assert set(KINDS) == set(seams.BY_PIPELINE) == set(BY_PIPELINE)


@pytest.mark.parametrize("pipeline", KINDS)
def test_every_name_is_there(pipeline: str) -> None:
    assert seams.missing(pipeline, transformer(pipeline)) == []


@pytest.mark.parametrize("pipeline", KINDS)
def test_a_name_that_is_gone_is_seen(pipeline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = transformer(pipeline)
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
                assert any(attribute in gone for gone in seams.missing(pipeline, model)), name


@pytest.mark.parametrize("pipeline", KINDS)
def test_a_part_of_the_transformer_that_is_gone_is_seen(pipeline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = transformer(pipeline)
    for part in seams.BY_PIPELINE[pipeline].parts:
        owner, name = owner_of(model, part)
        if name in vars(owner) or name in getattr(owner, "_modules", {}):  # those of a configuration are frozen
            with monkeypatch.context() as patch:
                patch.delattr(owner, name)
                assert any(part in gone for gone in seams.missing(pipeline, model)), part


@pytest.mark.parametrize(("version", "refused"), [("0.42.1", False), ("0.42.9", False), ("0.43.0.dev0", True)])
def test_another_minor_version_is_refused(version: str, refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diffusers, "__version__", version)
    if not refused:
        return load.check_diffusers()
    with pytest.raises(RequestError, match=version) as caught:
        load.check_diffusers()
    assert caught.value.rule == "diffusers-changed" and load.TESTED in caught.value.message
