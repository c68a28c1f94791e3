"""The clip that a request describes, checked against a model's facts: size, frames, steps, images. No torch."""

from __future__ import annotations

import math

from hybridgen.errors import Change, RequestError, counted
from hybridgen.models.registry import relatives
from hybridgen.plan.facts import ModelFacts
from hybridgen.plan.numbers import not_legal, parse_pair
from hybridgen.plan.plan import Clip
from hybridgen.plan.settings import settings
from hybridgen.recipe.fields import Request

MOST_FPS = 1000
"""More frames per second than any screen shows; containers hold no much larger rates."""

RULES = {
    "frames": "The VAE packs 4 frames into one latent frame, after a first frame of its own.",
    "size": "The VAE and the transformer's patches divide a frame into cells of this many pixels.",
    "one-frame": "Text-to-image checkpoints were trained on single frames.",
    "image-missing": "A checkpoint that was trained to continue an image or a video cannot start without one; some "
    "need the last image, too.",
    "image-unused": "Checkpoints for text only have no input for an image; others make it the first frame of a clip.",
    "last-image-unused": "A last image needs a checkpoint that has an input for it, and a frame of its own.",
    "video-unused": "Only some pipelines continue a video; others start from an image.",
    "video-and-image": "A clip starts from an image or continues a video; with both, the stock pipelines drop one.",
    "video-frames": "The frames that are taken over from a video are part of the clip, and some must be left to make.",
    "positions": "The rotary tables of a model hold so many positions along time, height and width.",
    "guidance-2": "The second scale is for the low-noise expert, and only where guidance is on.",
}


def clip_of(request: Request, facts: ModelFacts, video_frames: int | None = None) -> Clip:
    """The clip of a request: size, frames, steps and guidance, with the model's defaults.

    `video_frames` is the number of frames of the given video; None means as many as the clip can use. Raises
    RequestError.
    """
    width, height = _size(request, facts)
    frames = _frames(request, facts)
    _check_positions(facts, width, height, frames)
    steps = _counts(request, facts)
    _check_words(request)
    image, last_image = pictures_of(request, facts, frames)
    video = continues_video(request, facts, frames)
    return Clip(
        width,
        height,
        frames,
        steps,
        *guidance_of(request, facts),
        fps=request.fps or facts.defaults.fps,
        image=image and not video,
        last_image=last_image,
        video=video,
        encoded_frames=facts.encoded_frames(frames, image, (video_frames or frames) if video else 0),
    )


def _size(request: Request, facts: ModelFacts) -> tuple[int, int]:
    """Width and height of the clip. Raises RequestError (size, degree-format)."""
    width, height = facts.defaults.width, facts.defaults.height
    if request.size is not None:
        width, height = parse_pair("size", request.size, "width x height", f"{width}x{height}")
    multiple_w, multiple_h = facts.size_multiple
    if width % multiple_w or height % multiple_h:
        problem = f"is not a multiple of {multiple_w}x{multiple_h} pixels for {facts.name}"
        near = f"{_round(width, multiple_w)}x{_round(height, multiple_h)}"
        raise RequestError("size", "size", f"{width}x{height}", problem, [near])
    return width, height


def _frames(request: Request, facts: ModelFacts) -> int:
    """The number of frames. Raises RequestError (frames, one-frame)."""
    frames = facts.defaults.frames if request.frames is None else request.frames
    stride = facts.vae.stride_time
    if frames < 1 or frames % stride != 1 % stride:
        low, most = max((frames - 1) // stride * stride + 1, 1), _most_frames(facts)
        problem = f"cannot be made: the VAE of {facts.name} makes {stride}k + 1 frames"
        near = list(dict.fromkeys((min(low + stride, most), min(low, most))))
        raise RequestError("frames", "frames", frames, problem, near)
    if facts.one_frame and frames != 1:
        problem = f"cannot be made: {facts.name} makes images of one frame"
        raise RequestError("one-frame", "frames", frames, problem, [1])
    return frames


def _most_frames(facts: ModelFacts) -> int:
    """Frames of the longest clip that the model's rotary tables hold."""
    return (facts.transformer.max_positions * facts.transformer.patch[0] - 1) * facts.vae.stride_time + 1


def _counts(request: Request, facts: ModelFacts) -> int:
    """The number of steps, after a check of frame rate and seed. Raises RequestError (steps, fps, seed)."""
    steps = _steps(request, facts)
    if request.fps is not None and not 1 <= request.fps <= MOST_FPS:
        raise RequestError("fps", "fps", request.fps, f"must be 1 to {MOST_FPS}", [facts.defaults.fps])
    if request.seed is not None and not 0 <= request.seed < 2**63:
        raise not_legal("seed", "seed", request.seed, "is not between 0 and 2^63 - 1", [0, 2**63 - 1])
    return steps


def _steps(request: Request, facts: ModelFacts) -> int:
    """The number of steps; with a list of timesteps as many as it has. Raises RequestError (steps, timesteps)."""
    if request.steps is not None and request.steps < 1:
        raise RequestError("steps", "steps", request.steps, "must be 1 or more", [1])
    listed = len(settings(timesteps=request.timesteps).timesteps)
    if listed and request.steps not in (None, listed):
        problem = f"are {counted(listed, 'step')}, and --steps says {request.steps}"
        near = f"--steps {listed}, or no --steps"
        raise RequestError("timesteps", "timesteps", request.timesteps, problem, near, [{"steps": str(listed)}])
    return listed or request.steps or facts.defaults.steps


def _check_words(request: Request) -> None:
    """Raise RequestError (prompt) for words that cannot be written as UTF-8, as a broken command line holds them."""
    for flag, words in (("prompt", request.prompt), ("negative-prompt", request.negative_prompt)):
        if words is not None and words.encode("utf-8", "ignore").decode() != words:
            raise RequestError("prompt", flag, None, "is not valid UTF-8")


def _check_positions(facts: ModelFacts, width: int, height: int, frames: int) -> None:
    """Raise RequestError (positions) for a clip larger than the model's rotary tables."""
    _, latent_frames, rows, columns = facts.latent_shape(width, height, frames)
    limit, (patch_t, patch_h, patch_w) = facts.transformer.max_positions, facts.transformer.patch
    multiple_w, multiple_h = facts.size_multiple
    problem = f"is beyond the {limit} positions of {facts.name}"
    if rows // patch_h > limit or columns // patch_w > limit:
        near = f"{min(width, limit * multiple_w)}x{min(height, limit * multiple_h)}"
        raise RequestError("positions", "size", f"{width}x{height}", problem, [near])
    if latent_frames // patch_t > limit:
        most = _most_frames(facts)
        raise RequestError("positions", "frames", frames, problem, [most])


def guidance_of(request: Request, facts: ModelFacts) -> tuple[float, float]:
    """Guidance of the first and the second expert; the second follows the first unless it is given.

    Raises RequestError (guidance-2) when there is no second expert.
    """
    if request.guidance_2 is not None and facts.experts == 1:
        problem = f"needs two experts, and {facts.name} has one"
        raise RequestError("guidance-2", "guidance-2", f"{request.guidance_2:g}", problem, tries=[{"guidance-2": None}])
    defaults = facts.defaults
    for flag, value in (("guidance", request.guidance), ("guidance-2", request.guidance_2)):
        if value is not None and not math.isfinite(value):
            raise RequestError("guidance", flag, value, "must be a finite number", [f"{defaults.guidance:g}"])
    if request.guidance_2 is not None and request.guidance is not None and request.guidance <= 1:
        problem = f"changes nothing: --guidance {request.guidance:g} turns guidance off"
        raise RequestError("guidance-2", "guidance-2", f"{request.guidance_2:g}", problem, tries=[{"guidance-2": None}])
    first, second = defaults.guidance, defaults.guidance_2
    if request.guidance is not None:
        first = second = request.guidance
    if request.guidance_2 is not None:
        second = request.guidance_2
    return first, first if second is None else second


def _round(value: int, multiple: int) -> int:
    return max(round(value / multiple), 1) * multiple


def pictures_of(request: Request, facts: ModelFacts, frames: int) -> tuple[bool, bool]:
    """Whether the clip has a first and a last image. Raises RequestError (image-unused, last-image-unused)."""
    if request.image is not None:
        _check_image(request.image, facts, frames)
    if request.last_image is not None and not facts.last_image:
        problem, near = f"is not supported: {facts.name} takes no last image", _models_that_take("last_image", facts)
        raise _unused("last-image", request.last_image, problem, near)
    if facts.last_image == "must" and frames == 1:
        problem = f"has no room for the last image that {facts.name} needs"
        raise RequestError("last-image-unused", "frames", 1, problem, [1 + facts.vae.stride_time])
    if request.last_image is not None and frames == 1:
        raise _unused(
            "last-image", request.last_image, "is not supported: a clip of one frame starts and ends with --image"
        )
    image, last_image = facts.image == "must", facts.last_image == "must"
    return image or request.image is not None, last_image or request.last_image is not None


def _check_image(image: str, facts: ModelFacts, frames: int) -> None:
    """Raise RequestError (image-unused) for an image that the model cannot use."""
    if not facts.image:
        made = "images" if facts.one_frame else "clips"
        problem = f"is not supported: {facts.name} makes {made} from text only"
        raise _unused("image", image, problem, _models_that_take("image", facts))
    if facts.image == "may" and frames == 1:
        problem, least = (
            "is not supported: it is the first frame, and --frames 1 leaves nothing to make",
            facts.vae.stride_time + 1,
        )
        raise _unused("image", image, problem, f"--frames {least}", {"frames": str(least)})


def _unused(flag: str, value: str, problem: str, near: str = "", change: Change | None = None) -> RequestError:
    """The error of a file that the model cannot use; by default the change to try leaves it out."""
    return RequestError(f"{flag}-unused", flag, value, problem, near, [change or {flag: None}])


def _models_that_take(what: str, facts: ModelFacts) -> str:
    """Known models of the same family that take an image ("image"), or a last one ("last_image"), as a flag."""
    names = [model.name for model in relatives(facts) if getattr(model, what)]
    return f"--model {', '.join(names)}" if names else ""


def continues_video(request: Request, facts: ModelFacts, frames: int) -> bool:
    """Whether the clip continues a given video; the file is not read.

    Raises RequestError: video-unused, video-and-image, video-frames.
    """
    if request.video is None:
        return False
    if not facts.video:
        raise _unused("video", request.video, f"is not supported: {facts.name} does not continue videos")
    if request.image is not None:
        problem, near = f"excludes --image {request.image}", "--video alone"
        raise RequestError("video-and-image", "video", request.video, problem, near, [{"image": None}])
    if facts.video_frames is not None and frames < facts.video_frames:
        problem = (
            f"is less than the {facts.video_frames} frames that {facts.name} takes over from --video {request.video}"
        )
        raise RequestError("video-frames", "frames", frames, problem, [facts.video_frames])
    return True
