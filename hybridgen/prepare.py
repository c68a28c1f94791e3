"""From a checked plan to a job: prompt, seed, files, device and kernel. Refuses what this machine cannot do."""

from __future__ import annotations

import os
import secrets
import shlex
from dataclasses import replace
from pathlib import Path

from hybridgen import launcher
from hybridgen.errors import RequestError
from hybridgen.job import Job
from hybridgen.kernels import select
from hybridgen.machine import check_machine, device_of
from hybridgen.models import guardrail
from hybridgen.outputs import Outputs, check_outputs, default_name, endings
from hybridgen.plan import Plan
from hybridgen.recipe import Recipe, Request, flag_of, options

RULES = {
    "image": "A picture is any file that Pillow opens: PNG, JPEG, WebP and others.",
    "video": "Videos are read through ffmpeg: mp4, mov, webm and others. Their frame rate changes nothing.",
    "image-missing": "An image-to-video checkpoint was trained to continue a picture and knows no clip without one; "
    "some need the last picture, too.",
}
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
            raise RequestError("prompt", "the prompt is not valid UTF-8")
    image, last_image = (picture_of(request, name) for name in ("image", "last_image"))
    check_pictures(plan, image, last_image)
    given, plan = video_of(request, plan)
    if launcher.speaks():  # the other ranks of a joined job take rank 0's files
        check_outputs(outputs, video, endings(plan.clip.frames))
        if plan.facts.guarded:
            guardrail.check_installed(plan.facts.name)
            guardrail.check_outputs(plan.facts.name, outputs)
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


def check_pictures(plan: Plan, image: Path | None, last_image: Path | None) -> None:
    """Raise RequestError (image-missing) where the clip needs a picture that is not given."""
    facts, what = plan.facts, "from a picture"
    if facts.video:
        what += " or a video"
    elif facts.last_image == "must":
        what = "between two pictures"
    first = "image or --video" if facts.video else "image"
    for flag, given, needed in ((first, image, plan.clip.image), ("last-image", last_image, plan.clip.last_image)):
        if needed and given is None:
            message = f"--{flag} is missing: {facts.name} makes clips {what}"
            raise RequestError("image-missing", message, RULES["image-missing"])


def picture_of(request: Request, name: str) -> Path | None:
    """The file of a given picture, absolute. Raises RequestError (image) where it cannot be read as one."""
    given = getattr(request, name)
    if given is None:
        return None
    from PIL import Image

    flag, path = name.replace("_", "-"), Path(given).expanduser().absolute()
    try:
        with Image.open(path) as picture:
            picture.load()  # all of it: a file may be cut off
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # as Pillow's formats raise
        reason = "there is no such file" if not path.exists() else f"it is no picture that can be read ({error})"
        raise RequestError("image", f"--{flag} {given}: {reason}", RULES["image"]) from error
    return path


def video_of(request: Request, plan: Plan) -> tuple[Path | None, Plan]:
    """The file of a given video, absolute, and the plan that knows how many frames of it are encoded.

    Raises RequestError (video) where it cannot be read, or is too short.
    """
    if request.video is None:
        return None, plan
    from hybridgen.runtime.video import frames_of

    facts, path = plan.facts, Path(request.video).expanduser().absolute()
    try:
        count = sum(1 for _ in frames_of(path))
    except (OSError, RuntimeError) as error:
        reason = "no video that can be read" if path.exists() else "no such file"
        raise RequestError("video", f"--video {request.video} is {reason}", RULES["video"]) from error
    if count < max(facts.video_frames, 1):
        message = f"--video {request.video} has {count} frames, and {facts.name} takes over {facts.video_frames or 1}"
        raise RequestError("video", f"{message}; nearest: a longer video, or its last frame as --image")
    encoded = facts.encoded_frames(plan.clip.frames, False, count)
    return path, replace(plan, clip=replace(plan.clip, encoded_frames=encoded))


def seed_of(request: Request) -> int:
    """The request's seed, or one that is drawn."""
    return secrets.randbelow(2**32) if request.seed is None else request.seed


def negative_prompt(request: Request, plan: Plan) -> str:
    """The request's, or the model's own where nothing is said; "" is said."""
    if request.negative_prompt is not None:
        return request.negative_prompt
    if plan.facts.negative_of_pipeline:
        from hybridgen.models.families import negative_prompt_of

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
