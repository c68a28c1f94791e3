"""Predicted against measured peak memory of CPU ranks, on the demo and on a larger model with random weights.

Part of benchmarks/planner_cpu.py. Every run is `hybridgen run`, in a process of its own, and what it reports.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from hybridgen.models import catalogue, wan_random
from hybridgen.models.facts import TransformerFacts
from hybridgen.planner.lookup import find
from hybridgen.planner.search import held
from hybridgen.recipe import compose
from hybridgen.resolve import resolve
from hybridgen.traffic import PHASES

MID_SIZE = TransformerFacts(layers=7, heads=12, head_dim=64, ffn=4096, text_dim=64, freq_dim=256)
"""82 million parameters, 329 MB in fp32. Text encoder and VAE are the demo's."""
RUNS = 3
PLANS: tuple[dict[str, str], ...] = (
    {},
    {"cfg": "2"},
    {"ulysses": "2", "vae": "2"},
    {"tp": "2"},
    {"cfg": "2", "tp": "2", "vae": "2"},
)
HEAD = """
| model | size | dtype | split | rank | predicted, MB | measured, MB | worst |
|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Request:
    """What is asked of one model."""

    name: str
    size: str
    frames: int
    dtype: str


REQUESTS = (
    Request("demo", "256x256", 9, "float32"),
    Request("demo", "128x128", 17, "bfloat16"),
    Request("329 MB", "128x128", 17, "float32"),
    Request("329 MB", "256x256", 9, "bfloat16"),
)


def mid_size(folder: Path) -> Path:
    """A checkpoint of one expert in fp32."""
    shutil.copytree(catalogue.DEMO_FOLDER, folder)
    shutil.rmtree(folder / "transformer_2")
    index = json.loads((folder / "model_index.json").read_text())
    index |= {"transformer_2": [None, None], "boundary_ratio": None}
    (folder / "model_index.json").write_text(json.dumps(index))
    torch.manual_seed(0)
    wan_random.transformer(MID_SIZE).save_pretrained(folder / "transformer")
    return folder


def peaks(flags: dict[str, str], folder: Path) -> list[int]:
    """Bytes at the peak of every rank of one run."""
    report = folder / "report.json"
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    words += ["-p", "a red circle moves right", "--seed", "1", "--out", str(folder / "clip.mp4"), "--overwrite"]
    command = [sys.executable, "-m", "hybridgen", "run", *words, "--report", str(report), "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found: list[int] = json.loads(report.read_text())["peak_memory_bytes"]
    return found


def predicted(flags: dict[str, str]) -> list[int]:
    """The same as the planner sees it."""
    given = {name: int(value) if value.isdigit() else value for name, value in flags.items()}
    plan, machine = resolve(compose(None, [], {**given, "prompt": "-"}), None), find("cpu")

    def peak(rank: int) -> int:
        terms = held(plan, machine, rank)
        return max(sum(term.size for term in terms if phase in term.phases) for phase in PHASES)

    return [peak(rank) for rank in range(plan.world_size)]


def rows(requests: tuple[Request, ...] = REQUESTS, runs: int = RUNS) -> Iterator[tuple[str, float]]:
    """Lines of the table, one a rank, with the prediction's error in the run where it is worst."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = {"demo": "demo", "329 MB": str(mid_size(folder / "model"))}
        for request in requests:
            asked = {"size": request.size, "frames": str(request.frames), "dtype": request.dtype, "steps": "3"}
            for plan in PLANS:
                flags = {"model": models[request.name], **asked, **plan}
                measured = [peaks(flags, folder) for _ in range(runs)]
                for rank, (guess, *found) in enumerate(zip(predicted(flags), *measured, strict=True)):
                    error = max((guess / peak - 1 for peak in found), key=abs)
                    split = " ".join(f"{name} {value}" for name, value in plan.items()) or "one rank"
                    spread = f"{min(found) / 1e6:.0f} to {max(found) / 1e6:.0f}"
                    line = f"| {request.name} | {request.size}x{request.frames} | {request.dtype} | {split} | {rank} | "
                    yield f"{line}{guess / 1e6:.0f} | {spread} | {error:+.0%} |", error


def summary(errors: list[float]) -> str:
    """How many ranks are how far off."""
    worst = [abs(error) for error in errors]
    within = sum(error <= 0.1 for error in worst)
    mean = sum(worst) / len(worst)
    return f"\n{within} of {len(worst)} ranks within 10% in every run; mean {mean:.0%}, largest {max(worst):.0%}."
