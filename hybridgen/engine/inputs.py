"""Pictures and videos that a request starts from: what a model takes, and whether the files can be read. No torch."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from hybridgen.errors import RequestError
from hybridgen.models import known
from hybridgen.plan.facts import ModelFacts
from hybridgen.plan.plan import Plan
from hybridgen.recipe.fields import Request

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
VIDEOS = (".mp4", ".mov", ".webm", ".mkv", ".avi", ".m4v")
RULES = {
    "image": "A picture is any file that Pillow opens: PNG, JPEG, WebP and others.",
    "video": "Videos are read through ffmpeg: mp4, mov, webm and others. Their frame rate changes nothing.",
    "image-missing": "A checkpoint that was trained to continue a picture or a video knows no clip without one; some "
    "need the last picture, too.",
    "image-unused": "Checkpoints for text alone have no input for a picture; others make it the first frame of a clip.",
    "last-image-unused": "A last picture needs a checkpoint that has a place for it, and a frame of its own.",
    "video-unused": "Only some pipelines continue a video; a picture is what others start from.",
    "video-and-image": "A clip starts from a picture or continues a video; with both, the stock pipelines drop one.",
    "video-frames": "The frames that are taken over from a video are part of the clip, and some must be left to make.",
}


def pictures_of(request: Request, facts: ModelFacts, frames: int) -> tuple[bool, bool]:
    """Whether the clip has a first and a last picture. Raises RequestError (image-unused, last-image-unused)."""
    if request.image is not None and not facts.image:
        made = "pictures" if facts.one_frame else "clips"
        message = f"--image {request.image} is no use: {facts.name} makes {made} from text alone"
        message += _models_that_take("image", facts)
        raise RequestError("image-unused", message, RULES["image-unused"], [{"image": None}])
    if request.image is not None and facts.image == "may" and frames == 1:
        message = f"--image {request.image} is no use: it is the first frame, and --frames 1 leaves nothing to make"
        near = str(1 + facts.vae.stride_time)
        raise RequestError("image-unused", f"{message}; nearest: {near}", RULES["image-unused"], [{"frames": near}])
    if request.last_image is not None and not facts.last_image:
        message = f"--last-image {request.last_image} is no use: {facts.name} takes no last picture"
        message += _models_that_take("last_image", facts)
        raise RequestError("last-image-unused", message, RULES["last-image-unused"], [{"last-image": None}])
    if facts.last_image == "must" and frames == 1:
        near = str(1 + facts.vae.stride_time)
        message = f"--frames 1 has no room for the last picture that {facts.name} needs; nearest: {near}"
        raise RequestError("last-image-unused", message, RULES["last-image-unused"], [{"frames": near}])
    if request.last_image is not None and frames == 1:
        message = f"--last-image {request.last_image} is no use: a clip of one frame starts and ends with --image"
        raise RequestError("last-image-unused", message, RULES["last-image-unused"], [{"last-image": None}])
    image, last_image = facts.image == "must", facts.last_image == "must"
    return image or request.image is not None, last_image or request.last_image is not None


def _models_that_take(what: str, facts: ModelFacts) -> str:
    """The end of a message: known models of the same family that take a picture ("image"), or a last one
    ("last_image"). diffusers' pipeline classes of a family begin alike."""
    family = [model for model in known.MODELS if model.pipeline[:3] == facts.pipeline[:3]]
    names = [model.name for model in family if getattr(model, what)]
    return f"; nearest: --model {', '.join(names)}" if names else ""


def continues_video(request: Request, facts: ModelFacts, frames: int) -> bool:
    """Whether the clip continues a given video; the file is not read.

    Raises RequestError: video-unused, video-and-image, video-frames.
    """
    if request.video is None:
        return False
    if not facts.video:
        message = f"--video {request.video} is no use: {facts.name} does not continue videos"
        raise RequestError("video-unused", message, RULES["video-unused"], [{"video": None}])
    if request.image is not None:
        message = f"--video {request.video} and --image {request.image} exclude each other; nearest: --video alone"
        raise RequestError("video-and-image", message, RULES["video-and-image"], [{"image": None}])
    if frames < facts.video_frames:
        message = f"--frames {frames} is less than the {facts.video_frames} frames that {facts.name} takes over from "
        message += f"--video {request.video}; nearest: {facts.video_frames}"
        raise RequestError("video-frames", message, RULES["video-frames"], [{"frames": str(facts.video_frames)}])
    return True


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
            raise RequestError("image-missing", message, RULES["image-missing"], [{flag.split()[0]: "picture.png"}])


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
        raise RequestError("image", f"--{flag} {given}: {reason}", RULES["image"]) from error
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
        raise RequestError("video", f"--video {request.video} is {reason}", RULES["video"]) from error
    if count < max(facts.video_frames, 1):
        frames = f"{count} frame{'s' * (count != 1)}"
        message = f"--video {request.video} has {frames}, and {facts.name} takes over {facts.video_frames or 1}"
        near = "--image with it" if path.suffix.lower() in PICTURES else "a longer video, or its last frame as --image"
        raise RequestError("video", f"{message}; nearest: {near}", RULES["video"])
    encoded = facts.encoded_frames(plan.clip.frames, False, count)
    if encoded >= plan.clip.frames:
        message = f"--video {request.video} fills all {plan.clip.frames} frames of the clip, which leaves nothing to "
        near = str(encoded + 4 * facts.vae.stride_time)
        tries = [{"frames": near}]
        message += f"make; nearest: --frames {near}, or a shorter video"
        raise RequestError("video-frames", message, RULES["video-frames"], tries)
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
