"""Pictures and videos that a request starts from: what a model takes, and whether the files can be read. No torch."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from hybridgen.errors import RequestError
from hybridgen.plan.plan import Plan
from hybridgen.recipe import clip
from hybridgen.recipe.fields import Request

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
VIDEOS = (".mp4", ".mov", ".webm", ".mkv", ".avi", ".m4v")

RULES = {
    "image": "A picture is any file that Pillow opens: PNG, JPEG, WebP and others.",
    "video": "Videos are read through ffmpeg: mp4, mov, webm and others. Their frame rate changes nothing.",
}


def check_pictures(plan: Plan, request: Request) -> None:
    """Raise RequestError (image-missing) where the clip needs a picture that is not given."""
    facts, what = plan.facts, "from a picture"
    if facts.video:
        what += " or a video"
    elif facts.last_image == "must":
        what = "between two pictures"
    first = "image or --video" if facts.video else "image"
    for flag, given, needed in (
        (first, request.image, plan.clip.image),
        ("last-image", request.last_image, plan.clip.last_image),
    ):
        if needed and given is None:
            message = f"--{flag} is missing: {facts.name} makes clips {what}"
            raise RequestError.told(
                "image-missing", message, clip.RULES["image-missing"], [{flag.split()[0]: "picture.png"}]
            )


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
        if not path.exists():
            reason = "there is no such file"
        elif path.suffix.lower() in VIDEOS:
            reason = "it is a video; nearest: one frame of it, or --video where the model continues videos"
        else:
            reason = f"it is no picture that can be read ({error})"
        raise RequestError.told("image", f"--{flag} {given}: {reason}", RULES["image"]) from error
    return path


def video_of(request: Request, plan: Plan) -> tuple[Path | None, Plan]:
    """The file of a given video, absolute, and the plan that knows how many frames of it are encoded.

    Raises RequestError (video) where it cannot be read, or is too short.
    """
    if request.video is None:
        return None, plan
    facts, path = plan.facts, Path(request.video).expanduser().absolute()
    try:
        count = _count_frames(path)
    except (OSError, RuntimeError) as error:
        reason = "no video that can be read" if path.exists() else "no such file"
        raise RequestError.told("video", f"--video {request.video} is {reason}", RULES["video"]) from error
    if count < max(facts.video_frames, 1):
        frames = f"{count} frame{'s' * (count != 1)}"
        message = f"--video {request.video} has {frames}, and {facts.name} takes over {facts.video_frames or 1}"
        near = "--image with it" if path.suffix.lower() in PICTURES else "a longer video, or its last frame as --image"
        raise RequestError.told("video", f"{message}; nearest: {near}", RULES["video"])
    encoded = facts.encoded_frames(plan.clip.frames, False, count)
    if encoded >= plan.clip.frames:
        message = f"--video {request.video} fills all {plan.clip.frames} frames of the clip, which leaves nothing to "
        near = str(encoded + 4 * facts.vae.stride_time)
        tries = [{"frames": near}]
        message += f"make; nearest: --frames {near}, or a shorter video"
        raise RequestError.told("video-frames", message, clip.RULES["video-frames"], tries)
    return path, replace(plan, clip=replace(plan.clip, encoded_frames=encoded))


@lru_cache
def _count_frames(path: Path) -> int:
    """All of them are read for it, so once: whoever shows a request looks before the run does."""
    from hybridgen.engine.video import frames_of

    return sum(1 for _ in frames_of(path))


def look(request: Request, plan: Plan) -> list[str]:
    """A line for every file that the clip starts from or ends with, and for what is still missing.

    Raises RequestError (image, video, video-frames) for files that cannot serve.
    """
    from PIL import Image

    lines = []
    for name, word in (("image", "from"), ("last_image", "to")):
        path = picture_of(request, name)
        if path is not None:
            with Image.open(path) as picture:
                lines.append(f"{word:<7} {path.name}, {picture.width}x{picture.height}")
    path, plan = video_of(request, plan)
    if path is not None:
        lines.append(f"from    {path.name}, its last {plan.clip.encoded_frames} frames")
    try:
        check_pictures(plan, request)
    except RequestError as error:
        lines.append(f"to run  {error.message.partition(':')[0]}")
    return lines
