"""Final latents that a run has kept: what their file says, and the job that makes their clip. No torch."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hybridgen.distributed.files import free_name
from hybridgen.engine import environment
from hybridgen.engine.inputs import regular_file
from hybridgen.engine.job import Job
from hybridgen.engine.machine import check_machine, device_of
from hybridgen.engine.options import DecodeOptions
from hybridgen.engine.outputs import LATENTS, Outputs, check_outputs, endings
from hybridgen.engine.report import RequestSummary
from hybridgen.errors import RequestError
from hybridgen.models.headers import Unreadable, read_header
from hybridgen.models.registry import guardrail_of
from hybridgen.plan.kernels import select
from hybridgen.plan.plan import Plan
from hybridgen.recipe.compose import compose
from hybridgen.recipe.resolve import resolve

RULE = "kept-latents"
RULES = {
    RULE: "Final latents are decoded by the model that made them. Files that hybridgen has kept, or written with "
    "--latents, say in their metadata which it is, and what the clip is like.",
}


@dataclass(frozen=True)
class Kept:
    """A file of final latents."""

    path: Path
    shape: tuple[int, ...]
    """[1, C, T, H, W]."""
    model: str
    """The model as --model takes it."""
    revision: str | None
    sha256: str
    record: dict[str, Any]
    """The clip's own record, as its tags have it."""
    request: RequestSummary


def read_kept(name: str) -> Kept:
    """Read the header of a file of final latents. Raises RequestError (kept-latents)."""
    path = regular_file(RULE, "", name)
    try:
        header = read_header(path)
        about, stored = header.about, header.tensors["latents"]
        record = json.loads(about["record"])
        request, _ = RequestSummary(**record["request"]), str(record["versions"]["hybridgen"])
        model = about["model"]
    except (OSError, Unreadable, ValueError, LookupError, TypeError, RecursionError) as error:
        raise _refused(name, "is not a file of final latents that hybridgen has kept, or it is damaged") from error
    shape = stored.shape
    if stored.dtype != "F32" or len(shape) != 5 or shape[0] != 1 or not math.prod(shape):
        raise _refused(name, f"holds latents of {stored.dtype}, {shape}, and not one clip in fp32")
    _check_types(name, request)
    return Kept(path, shape, model, about.get("revision"), about.get("sha256", ""), record, request)


def latents_of(job: Job) -> Path | None:
    """Final latents beside a clip that a run of the same request has left, which are of no use once it is complete."""
    try:
        return job.kept_latents if read_kept(str(job.kept_latents)).request == job.request() else None
    except RequestError:
        return None


def _check_types(name: str, request: RequestSummary) -> None:
    """Refuse a record with values of other types than a run writes."""
    none = type(None)
    kinds = {"str": str, "int": int, "float": (int, float), "str | None": (str, none), "bool | None": (bool, none)}
    for item in fields(request):
        if not isinstance(getattr(request, item.name), kinds[str(item.type)]):  # type: ignore[arg-type]
            raise _refused(name, f"has a record that is damaged: {item.name}")


def _refused(name: str, problem: str) -> RequestError:
    return RequestError(RULE, "", name, problem, "a file that a run has named as kept, or that --latents wrote")


def decode_job(options: DecodeOptions) -> Job:
    """The job that makes the clip of kept latents. Raises RequestError before anything starts."""
    kept = read_kept(str(options.file))
    plan = _plan(kept, options)
    if kept.shape[1:] != plan.latent_shape:
        problem = f"holds latents {kept.shape[1:]}, and {plan.facts.name} makes {plan.latent_shape} of such a clip"
        raise _refused(str(options.file), problem)
    video, device = options.out or _default_name(kept, plan), device_of(options.device)
    if environment.is_reporter():
        outputs = Outputs(video, None, options.report, options.preview, options.overwrite)
        check_outputs(outputs, video, endings(plan.clip.frames), [kept.path])
        if guardrail := guardrail_of(plan.facts):
            guardrail.check_installed(plan.facts.name)
    check_machine(plan, device)
    return Job(
        plan=plan,
        kernel=select("auto", device, plan.dtype, plan.facts.transformer.head_dim, plan.degrees.cp > 1),
        device=device,
        prompt=kept.request.prompt,
        negative_prompt=kept.request.negative_prompt,
        seed=kept.request.seed,
        output=video,
        preview=options.preview,
        overwrite=options.overwrite,
        owner=os.getpid(),
        quiet=options.quiet,
        source=kept.path,
        source_sha256=kept.sha256,
        record=json.dumps(kept.record),
    )


def _plan(kept: Kept, options: DecodeOptions) -> Plan:
    """The plan of decoding: as many ranks as the VAE takes, in a ring that never turns."""
    request, width = kept.request, options.vae
    given = {"model": options.model or kept.model, "size": request.size, "frames": request.frames, "fps": request.fps}
    asked = {**given, "prompt": request.prompt, "seed": request.seed, "dtype": request.dtype, "device": options.device}
    if options.model is None and kept.revision:
        asked["revision"] = kept.revision
    if width != 1:
        asked.update(ring=width, vae=width)
    try:
        return resolve(compose(None, [], asked))
    except RequestError as error:
        if error.flag == "ring":
            raise error.changed(flag="vae") from error
        raise


def _default_name(kept: Kept, plan: Plan) -> Path:
    """The clip's name in the working folder: that of the latents, with a counter if it is taken."""
    ending = endings(plan.clip.frames)[0]
    return free_name(Path(kept.path.name.removesuffix(LATENTS).removesuffix(".safetensors") + ending))
