"""From a checked plan to a job: prompt, seed, files, device and kernel. Refuses what this machine cannot do."""

from __future__ import annotations

import os
import re
import secrets
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from hybridgen import launcher
from hybridgen.errors import RequestError
from hybridgen.job import Job
from hybridgen.kernels import select
from hybridgen.plan import Plan
from hybridgen.planner.memory import peak
from hybridgen.recipe import Recipe, flag_of, options

SMALL = 2**20
"""Numbers in a hidden state below which threads cost more than they bring: they meet after every operation, and on
a busy machine one that waits for its core holds up all (a demo clip took 20 s on two threads, 0.4 s on one)."""


@dataclass(frozen=True)
class Outputs:
    """Files that a run may write; None means not asked for (the video then gets a name)."""

    video: Path | None = None
    latents: Path | None = None
    report: Path | None = None
    preview: Path | None = None
    overwrite: bool = False


def prepare(recipe: Recipe, plan: Plan, outputs: Outputs, quiet: bool = False) -> Job:
    """Everything a rank needs. Raises RequestError before anything starts."""
    request = recipe.request
    assert request.prompt
    seed = secrets.randbelow(2**32) if request.seed is None else request.seed
    video = outputs.video or default_name(request.prompt, seed)
    latents = outputs.latents or latents_beside(video)
    _check_outputs(replace(outputs, latents=latents))
    device = device_of(recipe.runtime.device)
    merged = plan.degrees.cp > 1
    kernel = select(recipe.runtime.attention or "auto", device, plan.dtype, plan.facts.transformer.head_dim, merged)
    _check_machine(plan, device)
    negative = plan.facts.defaults.negative_prompt if request.negative_prompt is None else request.negative_prompt
    return Job(
        plan=plan,
        kernel=kernel,
        device=device,
        prompt=request.prompt,
        negative_prompt=negative,
        seed=seed,
        output=video,
        latents_file=latents,
        keep_latents=outputs.latents is not None,
        preview=outputs.preview,
        quiet=quiet,
        threads=_threads(plan),
    )


def _threads(plan: Plan) -> int:
    """CPU threads of a rank: its share of the cores, or one where the operations are too small to be shared out."""
    if plan.tokens.local_size * plan.facts.transformer.hidden < SMALL:
        return 1
    return max(1, (os.cpu_count() or 1) // plan.world_size)


def default_name(prompt: str, seed: int) -> Path:
    """A file name from prompt and seed, with a counter if it is taken."""
    slug = re.sub(r"[^a-z0-9]+", "-", prompt.lower().encode("ascii", "ignore").decode()).strip("-")[:40].strip("-")
    stem, count = f"{slug or 'clip'}-s{seed}", 1
    path = Path(f"{stem}.mp4")
    while path.exists() or latents_beside(path).exists():
        count += 1
        path = Path(f"{stem}-{count}.mp4")
    return path


def latents_beside(video: Path) -> Path:
    """Where the final latents are kept until the video is complete."""
    return video.with_suffix(".latents.safetensors")


def _check_outputs(outputs: Outputs) -> None:
    """Folders exist, endings are known, and nothing is overwritten unasked."""
    endings = {"--out": ".mp4", "--latents": ".safetensors", "--report": ".json", "--preview": ".png"}
    files = (outputs.video, outputs.latents, outputs.report, outputs.preview)
    for (flag, ending), path in zip(endings.items(), files, strict=True):
        if path is None:
            continue
        if path.suffix.lower() != ending:
            near = path.with_suffix(ending)
            raise RequestError(
                "output-format",
                f"{flag} {path} must end in {ending}; nearest: {near}",
                tries=[{flag.removeprefix("--"): str(near)}],
            )
        if not path.absolute().parent.is_dir():
            raise RequestError(
                "output-folder",
                f"{flag} {path}: the folder {path.parent} does not exist",
                tries=[f"mkdir -p {shlex.quote(str(path.parent))}"],
            )
        if path.exists() and not outputs.overwrite:
            raise RequestError(
                "output-exists", f"{flag} {path} exists; give --overwrite to replace it, or another name"
            )


def device_of(asked: str | None) -> str:
    """cuda or cpu; cuda where there is one and nothing is said. Raises RequestError (device)."""
    if asked not in (None, "auto", "cuda", "cpu"):
        raise RequestError("device", f"--device {asked} is unknown; nearest: cuda, cpu")
    if asked == "cpu":
        return "cpu"
    import torch

    present = torch.cuda.is_available()
    if asked == "cuda" and not present:
        raise RequestError("device", "--device cuda: torch sees no CUDA device here; nearest: --device cpu")
    return "cuda" if present else "cpu"


def _check_machine(plan: Plan, device: str) -> None:
    """Enough GPUs, or enough memory for all ranks, on this machine."""
    if launcher.place() is not None:
        return
    world = plan.world_size
    if device == "cuda":
        import torch

        count = torch.cuda.device_count()
        if world > count:
            raise RequestError(
                "gpus-present",
                f"the plan needs {world} GPUs and this machine has {count}; nearest: a plan for {count}, "
                "or more machines under torchrun or srun",
                tries=[f"torchrun --nnodes {-(-world // max(count, 1))} --nproc-per-node {count} -m hybridgen run ..."],
            )
        return
    needed = sum(peak(plan, rank) for rank in range(world))
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > present:
        raise RequestError(
            "memory",
            f"{world} CPU rank{'s' if world > 1 else ''} of {plan.facts.name} need about {needed / 1e9:.0f} GB "
            f"and this machine has {present / 1e9:.0f} GB; nearest: --model demo, or a machine with {world} GPUs",
            tries=[f"hybridgen run --model {plan.facts.name} {plan.degrees.flags()} --dry-run"],
        )


def repeat_command(recipe: Recipe, job: Job) -> str:
    """The command that makes the same clip again."""
    words = ["hybridgen", "run"]
    for section, name, item in options():
        holder = getattr(recipe, section) if section else recipe
        value = job.seed if name == "seed" else getattr(holder, name)
        if value is None:
            continue
        words += [
            "-p" if name == "prompt" else flag_of(item),
            ",".join(value) if isinstance(value, list) else str(value),
        ]
    return shlex.join(words)
