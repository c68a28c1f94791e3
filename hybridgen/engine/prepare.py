"""From a checked plan to a job: prompt, seed, files, device and kernel. Refuses what this machine cannot do."""

from __future__ import annotations

import os
import secrets
import shlex

from hybridgen.engine import environment
from hybridgen.engine.inputs import check_pictures, picture_of, video_of
from hybridgen.engine.job import Job
from hybridgen.engine.machine import check_machine, device_of
from hybridgen.engine.outputs import Outputs, check_outputs, default_name, endings
from hybridgen.errors import RequestError
from hybridgen.models.cosmos import guardrail
from hybridgen.plan.kernels import select
from hybridgen.plan.plan import Plan
from hybridgen.recipe.fields import Recipe, Request, flag_of, options

SMALL = 2**20
"""Numbers in a hidden state below which threads cost more than they bring: they meet after every operation, and on
a busy machine one that waits for its core holds up all (a demo clip took 20 s on two threads, 0.4 s on one)."""


def prepare(recipe: Recipe, plan: Plan, outputs: Outputs, quiet: bool = False) -> Job:
    """Everything a rank needs. Raises RequestError before anything starts."""
    request = recipe.request
    assert request.prompt
    seed = seed_of(request)
    video = outputs.video or default_name(request.prompt, seed, endings(plan.clip.frames)[0])
    for text in (request.prompt, request.negative_prompt or ""):
        if text.encode("utf-8", "ignore").decode() != text:
            raise RequestError.told("prompt", "the prompt is not valid UTF-8")
    check_pictures(plan, request)
    image = last_image = given = None
    if environment.is_reporter():  # the other ranks of a joined job take rank 0's files, and may be where they are not
        image, last_image = (picture_of(request, name) for name in ("image", "last_image"))
        given, plan = video_of(request, plan)
        check_outputs(outputs, video, endings(plan.clip.frames), (image, last_image, given))
        if plan.facts.guarded:
            guardrail.check_installed(plan.facts.name)
            guardrail.check_outputs(plan.facts.name, outputs.latents)
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
        image=image,
        last_image=last_image,
        video=given,
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
    if request.negative_prompt is not None:
        return request.negative_prompt
    if plan.facts.negative_of_pipeline:
        from hybridgen.models.registry import negative_prompt_of

        return negative_prompt_of(plan.facts)
    return plan.facts.defaults.negative_prompt


def _threads(plan: Plan) -> int:
    """CPU threads of a rank: its share of the cores, or one where the operations are too small to be shared out."""
    if plan.tokens.local_size * plan.facts.transformer.hidden < SMALL:
        return 1
    return max(1, (os.cpu_count() or 1) // plan.world_size)


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
