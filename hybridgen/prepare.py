"""From a checked plan to a job: prompt, seed, files, device and kernel. Refuses what this machine cannot do."""

from __future__ import annotations

import os
import secrets
import shlex

from hybridgen import launcher
from hybridgen.errors import RequestError
from hybridgen.job import Job
from hybridgen.kernels import select
from hybridgen.outputs import Outputs, check_outputs, default_name
from hybridgen.plan import Plan
from hybridgen.planner.memory import peak
from hybridgen.recipe import Recipe, Request, flag_of, options

SMALL = 2**20
"""Numbers in a hidden state below which threads cost more than they bring: they meet after every operation, and on
a busy machine one that waits for its core holds up all (a demo clip took 20 s on two threads, 0.4 s on one)."""


def prepare(recipe: Recipe, plan: Plan, outputs: Outputs, quiet: bool = False) -> Job:
    """Everything a rank needs. Raises RequestError before anything starts."""
    request = recipe.request
    assert request.prompt
    seed = seed_of(request)
    video = outputs.video or default_name(request.prompt, seed)
    for text in (request.prompt, request.negative_prompt or ""):
        if text.encode("utf-8", "ignore").decode() != text:
            raise RequestError("prompt", "the prompt is not valid UTF-8")
    if launcher.speaks():  # the other ranks of a joined job take rank 0's files
        check_outputs(outputs, video)
    device = device_of(recipe.runtime.device)
    merged = plan.degrees.cp > 1
    kernel = select(recipe.runtime.attention or "auto", device, plan.dtype, plan.facts.transformer.head_dim, merged)
    check_machine(plan, device)
    return Job(
        plan=plan,
        kernel=kernel,
        device=device,
        prompt=request.prompt,
        negative_prompt=negative_prompt(request, plan),
        seed=seed,
        output=video,
        latents=outputs.latents,
        preview=outputs.preview,
        overwrite=outputs.overwrite,
        owner=os.getpid(),
        quiet=quiet,
        threads=_threads(plan),
    )


def seed_of(request: Request) -> int:
    """The request's seed, or one that is drawn."""
    return secrets.randbelow(2**32) if request.seed is None else request.seed


def negative_prompt(request: Request, plan: Plan) -> str:
    """The request's, or the model's own where nothing is said; "" is said."""
    return plan.facts.defaults.negative_prompt if request.negative_prompt is None else request.negative_prompt


def _threads(plan: Plan) -> int:
    """CPU threads of a rank: its share of the cores, or one where the operations are too small to be shared out."""
    if plan.tokens.local_size * plan.facts.transformer.hidden < SMALL:
        return 1
    return max(1, (os.cpu_count() or 1) // plan.world_size)


def device_of(asked: str | None) -> str:
    """cuda or cpu; cuda where there is one and nothing is said. Raises RequestError (device)."""
    if asked == "cpu":
        return "cpu"
    import torch

    present = torch.cuda.is_available()
    if asked == "cuda" and not present:
        raise RequestError("device", "--device cuda: torch sees no CUDA device here; nearest: --device cpu")
    return "cuda" if present else "cpu"


def device_name(device: str) -> str:
    """ "cpu", or what the driver calls the first GPU."""
    if device == "cpu":
        return device
    import torch

    return torch.cuda.get_device_name()


def check_machine(plan: Plan, device: str) -> None:
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
        gpus = "a GPU" if world == 1 else f"{world} GPUs"
        raise RequestError(
            "memory",
            f"this machine has no {gpus} for the plan, and on its CPUs {plan.facts.name} would need about "
            f"{needed / 1e9:.0f} GB of {present / 1e9:.0f} GB; nearest: --model demo",
            tries=[{"dry-run": ""}],
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
