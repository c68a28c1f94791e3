"""Predicted against measured peak memory of CPU ranks, on the demo and on larger models with random weights.

`python -m benchmarks.planner_memory --out benchmarks/results/planner-memory.md` (an hour on two cores, which need
not be idle). Every run is `hybridgen run`, in a process of its own, and what it reports.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from benchmarks.turns import machine
from hybridgen.models import catalogue
from hybridgen.models.wan import random as wan_random
from hybridgen.plan.facts import TransformerFacts
from hybridgen.plan.traffic import PHASES
from hybridgen.planner.choose.search import held
from hybridgen.planner.hardware.lookup import find
from hybridgen.recipe.fields import compose
from hybridgen.recipe.resolve import resolve

SIZES = {
    "329 MB": TransformerFacts(layers=7, heads=12, head_dim=64, ffn=4096, text_dim=64, freq_dim=256),
    "1.3 GB": TransformerFacts(layers=7, heads=12, head_dim=128, ffn=8960, text_dim=64, freq_dim=256),
}
"""Models with random weights, by their size in fp32: 82 and 325 million parameters, the second of Wan 2.1 1.3B's width.
Text encoder and VAE are the demo's."""
RUNS = 3
PLANS: tuple[dict[str, str], ...] = (
    {},
    {"cfg": "2"},
    {"ulysses": "2", "vae": "2"},
    {"tp": "2"},
    {"pipefusion": "2", "warmup": "1"},
    {"cfg": "2", "tp": "2", "vae": "2"},
)
HEAD = """
| model | size | dtype | split | rank | predicted, MB | measured, MB | median | worst |
|---|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Request:
    """What is asked of one model."""

    name: str
    size: str
    frames: int
    dtype: str


FITTED = (
    Request("demo", "256x256", 9, "float32"),
    Request("demo", "128x128", 17, "bfloat16"),
    Request("329 MB", "128x128", 17, "float32"),
    Request("329 MB", "256x256", 9, "bfloat16"),
)
"""The machine's constants were chosen with runs of these in sight."""
OTHERS = (
    Request("1.3 GB", "256x256", 9, "bfloat16"),
    Request("329 MB", "192x192", 13, "bfloat16"),
    Request("demo", "256x128", 17, "float32"),
    Request("1.3 GB", "128x128", 17, "float32"),
)


def checkpoint(name: str, folder: Path) -> Path:
    """A checkpoint of one of SIZES, of one expert in fp32."""
    shutil.copytree(catalogue.DEMO_FOLDER, folder)
    shutil.rmtree(folder / "transformer_2")
    index = json.loads((folder / "model_index.json").read_text())
    index |= {"transformer_2": [None, None], "boundary_ratio": None}
    (folder / "model_index.json").write_text(json.dumps(index))
    torch.manual_seed(0)
    wan_random.transformer(SIZES[name]).save_pretrained(folder / "transformer")
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


def rows(requests: tuple[Request, ...], runs: int) -> Iterator[tuple[str, float, float]]:
    """Lines of the table, one a rank, with the prediction's error against the median and in the worst run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = {"demo": "demo", **{name: str(checkpoint(name, folder / name)) for name in SIZES}}
        for request in requests:
            asked = {"size": request.size, "frames": str(request.frames), "dtype": request.dtype, "steps": "3"}
            for plan in PLANS:
                flags = {"model": models[request.name], **asked, **plan}
                measured = [peaks(flags, folder) for _ in range(runs)]
                for rank, (guess, *found) in enumerate(zip(predicted(flags), *measured, strict=True)):
                    middle, worst = guess / median(found) - 1, max((guess / peak - 1 for peak in found), key=abs)
                    split = " ".join(f"{name} {value}" for name, value in plan.items()) or "one rank"
                    spread = f"{min(found) / 1e6:.0f} to {max(found) / 1e6:.0f}"
                    line = f"| {request.name} | {request.size}x{request.frames} | {request.dtype} | {split} | {rank} | "
                    yield f"{line}{guess / 1e6:.0f} | {spread} | {middle:+.0%} | {worst:+.0%} |", middle, worst


def summary(errors: list[tuple[float, float]]) -> str:
    """How many ranks are how far off."""
    medians, worst = ([abs(error) for error in column] for column in zip(*errors, strict=True))
    within = [sum(error <= 0.1 for error in column) for column in (medians, worst)]
    mean = sum(medians) / len(medians)
    return (
        f"\n{within[0]} of {len(medians)} ranks within 10% of the median, {within[1]} in every run; "
        f"mean {mean:.0%}, largest {max(medians):.0%} of the median and {max(worst):.0%} of a run."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file to write the tables to, as they grow")
    parser.add_argument("--runs", type=int, default=RUNS)
    args = parser.parse_args()
    lines = [f"Written by benchmarks/planner_memory.py.\n\n- {machine()}\n- {args.runs} runs of every plan"]
    for title, requests in (("Requests whose runs the constants were chosen by", FITTED), ("Others", OTHERS)):
        lines += [f"\n## {title}", HEAD]
        errors = []
        for line, middle, worst in rows(requests, args.runs):
            print(line, flush=True)
            lines.append(line)
            errors.append((middle, worst))
            if args.out:
                args.out.write_text("\n".join([*lines, summary(errors)]) + "\n")
        lines.append(summary(errors))
        print(lines[-1], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
