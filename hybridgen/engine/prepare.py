"""From a checked plan to a job: files, device and kernel. What this machine cannot do is refused. No torch."""

from __future__ import annotations

import math
import os
import secrets
from dataclasses import replace
from pathlib import Path

from hybridgen.engine import environment
from hybridgen.engine.inputs import Conditioning, check_inputs
from hybridgen.engine.job import Job
from hybridgen.engine.machine import check_machine, device_of
from hybridgen.engine.outputs import LATENTS, Outputs, check_latents, check_outputs, default_name, endings
from hybridgen.engine.predict import predict
from hybridgen.engine.resume import check_plan, steps_done
from hybridgen.errors import RequestError, counted
from hybridgen.models import catalogue
from hybridgen.models.guardrail import check_outputs as check_guarded
from hybridgen.models.registry import family_of, guardrail_of
from hybridgen.plan.kernels import select
from hybridgen.plan.plan import FP32, Plan
from hybridgen.recipe.fields import Recipe, Request

RULES = {"prompt-missing": "A clip needs a prompt; the plan alone is shown by --dry-run."}
SMALL = 2**20
"""Elements of a hidden state below which threads cost more than they gain. They meet after every operation, and on a
busy machine one that waits for its core delays all (a demo clip took 20 s on two threads, 0.4 s on one).
"""


def with_seed(recipe: Recipe) -> Recipe:
    """The recipe with a seed: its own, or one that is drawn once."""
    if recipe.request.seed is not None:
        return recipe
    return replace(recipe, request=replace(recipe.request, seed=secrets.randbelow(2**32)))


def has_prompt(request: Request) -> bool:
    """Whether a request says what the clip shows: in words, or by a picture or video beside an empty prompt."""
    given = (request.image, request.last_image, request.video)
    return bool(request.prompt) or (request.prompt is not None and any(one is not None for one in given))


def check_prompt(recipe: Recipe, plan: Plan) -> None:
    """Raise RequestError (prompt-missing) for a recipe without a prompt. It may be empty where a picture is given."""
    if not has_prompt(recipe.request):
        ranks = counted(plan.world_size, "rank")
        problem = f"is missing: say what the clip shows; the plan itself is legal ({ranks})"
        raise RequestError("prompt-missing", "prompt", None, problem, tries=[{"p": plan.facts.defaults.example}])


def make_job(
    recipe: Recipe,
    plan: Plan,
    outputs: Outputs,
    inputs: Conditioning = Conditioning(),
    quiet: bool = False,
    replicas: int = 1,
    hardware: str | None = None,
) -> Job:
    """Make the job, with everything that a rank needs. Raises RequestError before anything starts.

    recipe: with its seed.
    inputs: the files that the clip is conditioned on, opened. Of a joined job rank 0 alone has them.
    replicas: groups of ranks that make clips side by side.
    hardware: name or file of the machine that a prediction is for; by default this one.
    """
    plan.settings.refuse_unable()
    check_prompt(recipe, plan)
    request, facts = recipe.request, plan.facts
    assert request.prompt is not None and request.seed is not None
    check_inputs(request, facts, plan.clip)
    video = look(recipe, plan, outputs, inputs)
    if (guardrail := guardrail_of(facts)) and environment.is_reporter():
        guardrail.check_installed(facts.name)
    device = device_of(recipe.runtime.device)
    attention, merged = recipe.runtime.attention or "auto", plan.degrees.cp > 1
    kernel = select(attention, device, plan.dtype, facts.transformer.head_dim, merged)
    check_machine(plan, device, replicas)
    job = Job(
        plan=plan,
        kernel=kernel,
        device=device,
        prompt=request.prompt,
        negative_prompt=negative_prompt(request, plan),
        seed=request.seed,
        output=video,
        inputs=inputs,
        latents=outputs.latents,
        preview=outputs.preview,
        overwrite=outputs.overwrite,
        owner=os.getpid(),
        quiet=quiet,
        threads=_threads(plan, replicas),
        model=_model(recipe, plan),
        preview_every=outputs.preview_every or 0,
        keep_every=outputs.keep_every,
        warning=outputs.warning,
        prediction=predict(plan, device, hardware),
    )
    if outputs.warning:
        check_plan(plan, "preempt-signal")
    if outputs.keep_every > 0:
        check_plan(plan, "checkpoint-every")
    if outputs.resume and environment.is_reporter():
        check_plan(plan, "resume")
        job = replace(job, done=steps_done(job.state, job.request()))
    return job


def _model(recipe: Recipe, plan: Plan) -> str:
    """The model as --model takes it in any folder: its name, or the absolute path of its folder."""
    name, source = recipe.model or plan.facts.name, plan.facts.source
    return source if str(Path(name).expanduser().absolute()) == source else name


def look(recipe: Recipe, plan: Plan, outputs: Outputs, inputs: Conditioning) -> Path:
    """Look at every file that a run will read or write, and return the path of the clip. Raises RequestError.

    A run without a prompt or seed, as a dry run may be, is looked at under a name that it may get.
    """
    request, facts, legal = recipe.request, plan.facts, endings(plan.clip.frames)
    video = outputs.video or default_name(request.prompt or "", request.seed or 0, legal[0])
    catalogue.look_at(facts, plan.clip.steps)
    if environment.is_reporter():  # the files of a joined job are rank 0's, and may be where the others are not
        check_outputs(outputs, video, legal, inputs.files)
        if facts.guarded:
            check_guarded(facts.name, outputs.latents, outputs.preview_every)
        else:
            check_latents(outputs.latents or video.with_suffix(LATENTS), FP32 * math.prod(plan.latent_shape))
    return video


def negative_prompt(request: Request, plan: Plan) -> str:
    """The request's negative prompt, or the model's own if none is given; "" counts as given."""
    if request.negative_prompt is not None:
        return request.negative_prompt
    return family_of(plan.facts).negative_prompt(plan.facts)


def _threads(plan: Plan, replicas: int) -> int:
    """Number of CPU threads of a rank: its share of the cores, or one where operations are too small to share."""
    if plan.tokens.local_size * plan.facts.transformer.hidden < SMALL:
        return 1
    return max(1, (os.cpu_count() or 1) // (replicas * plan.world_size))
