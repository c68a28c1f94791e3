"""A family of models is one folder and one line: a throw-away one is added to a copy of the package, and runs.

Waves is Wan under another name, with all of its own: pipeline class, facts, denoiser, autoencoder, guardrail, tiny
checkpoint.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tests.support import command

ROOT = Path(__file__).parents[2]
LINE = "from hybridgen.models.waves.family import FAMILY as waves\n"
AFTER = "from hybridgen.models.cosmos3.family import FAMILY as cosmos3\n"
FAMILY = '''
"""Waves."""

from __future__ import annotations

from dataclasses import replace

from hybridgen.models import parts, tokenizers
from hybridgen.models.family import Family
from hybridgen.models.guardrail import Guardrail
from hybridgen.models.waves import facts, tiny, vae_facts


def denoiser(model):
    from hybridgen.models.waves.denoiser import Wan

    return Wan


def autoencoder(model):
    from hybridgen.models.waves.vae import WanAutoencoder

    return WanAutoencoder


class Lifeguard(Guardrail):
    def __init__(self, device):
        pass

    @staticmethod
    def check_installed(model):
        pass

    def allows(self, prompt):
        return "storm" not in prompt

    def checked(self, frames):
        return 255 - frames


def guarded(folder, index):
    return {**facts.model(folder, index), "guarded": True}  # tiny:waves itself is not: its weights are random


FAMILY = Family(
    pipelines=("WavesPipeline",),
    transformer=facts.transformer,
    vae=vae_facts.read,
    model=guarded,
    denoiser=denoiser,
    autoencoder=autoencoder,
    components={
        "transformer": (facts.TRANSFORMER,),
        "transformer_2": (facts.TRANSFORMER,),
        "tokenizer": (tokenizers.T5_TOKENIZER,),
        "text_encoder": (parts.UMT5,),
        "vae": (vae_facts.PART,),
    },
    optional=("transformer_2",),
    switches=facts.INDEX_KEYS,
    guardrail=Lifeguard,
    tiny=(replace(tiny.WAN_TEXT, name="waves", pipeline="WavesPipeline"),),
)
'''


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with one folder and one line more; all else is linked."""
    root = tmp_path_factory.mktemp("tree")
    package, here = root / "hybridgen", ROOT / "hybridgen"
    models = package / "models"
    models.mkdir(parents=True)
    for source, target in ((here, package), (here / "models", models)):
        for entry in source.iterdir():
            if entry.name not in ("models", "registry.py", "__pycache__"):
                (target / entry.name).symlink_to(entry.resolve())
    registry = (here / "models" / "registry.py").read_text()
    assert registry.count(AFTER) == 1
    (models / "registry.py").write_text(registry.replace(AFTER, AFTER + LINE))
    (models / "waves").mkdir()
    for source in (here / "models" / "wan").glob("*.py"):
        (models / "waves" / source.name).write_text(source.read_text().replace("models.wan", "models.waves"))
    (models / "waves" / "family.py").write_text(FAMILY)
    return root


def hybridgen(tree: Path, words: str, code: int = 0) -> str:
    """What a command prints: to stdout if it ends well, to stderr otherwise."""
    environment = {"XDG_CACHE_HOME": str(tree / "cache"), "COLUMNS": "200"}
    done = command.hybridgen(tree, *words.split(), tree=tree, environment=environment)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def latents(tree: Path, degrees: str) -> torch.Tensor:
    """The final latents of a run on one rank, or on two that split the sequence and the autoencoder."""
    name = f"clip{degrees.replace(' ', '')}"
    words = f"--model tiny:waves -p moon --steps 2 --seed 3 --device cpu {degrees}"
    hybridgen(tree, f"run {words} -o {name}.mp4 --latents {name}.safetensors --report {name}.json")
    assert (tree / f"{name}.mp4").stat().st_size > 0
    sent = json.loads((tree / f"{name}.json").read_text())["traffic_bytes"]
    assert all(rank[what] > 0 for rank in sent for what in ("ulysses", "parallel-vae") if degrees)
    return load_file(tree / f"{name}.safetensors")["latents"]


def test_two_ranks_make_what_one_makes(tree: Path) -> None:
    one, two = latents(tree, ""), latents(tree, "--ulysses 2 --vae 2")
    assert torch.isfinite(one).all() and one.std() > 0.1
    assert float((one - two).norm() / one.norm()) <= 1e-5


def test_its_guardrail_is_asked(tree: Path) -> None:
    """For a checkpoint in a folder, on one rank and on two: a blocked prompt makes nothing, frames are as it says."""
    words = "--size 64x64 --frames 1 --steps 1 --seed 3 --guidance 1 --dtype float32 --device cpu"
    hybridgen(tree, f"run --model tiny:waves -p moon {words} -o plain.png")
    (folder,) = {path.parent for path in (tree / "cache").rglob("model_index.json")}
    said = hybridgen(tree, f"run --model {folder} -p storm {words} -o storm.png", code=1)
    assert "blocked the prompt; nothing was written" in said and not (tree / "storm.png").exists()
    hybridgen(tree, f"run --model {folder} -p moon {words} --ulysses 2 -o checked.png")
    plain, checked = (np.asarray(Image.open(tree / name), int) for name in ("plain.png", "checked.png"))
    assert abs(plain + checked - 255).max() <= 1


def test_its_plans_have_the_price_of_its_own_blocks(tree: Path) -> None:
    """A model of another family in all but name: its facts say what a block holds."""
    facts = tree / "hybridgen" / "models" / "waves" / "facts.py"
    words = "plan --model tiny:waves --gpus 2 --json --all"
    before = json.loads(hybridgen(tree, words))["candidates"]
    text = facts.read_text()
    assert text.count("feed_forward = 4 * s.d") == 1
    facts.write_text(text.replace("feed_forward = 4 * s.d", "feed_forward = 400 * s.d"))
    after = json.loads(hybridgen(tree, words))["candidates"]
    facts.write_text(text)
    assert len(before) == len(after) > 1
    held = [[one["memory_gb"].get("activations", 0) for one in found] for found in (before, after)]
    assert all(b > a for a, b in zip(*held, strict=True)), held
