"""Images and videos that a clip starts from or ends with, opened once, before the plan is made. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hybridgen.engine.read_image import Unreadable, read_image
from hybridgen.errors import RequestError, counted
from hybridgen.plan.facts import ModelFacts
from hybridgen.plan.plan import Clip
from hybridgen.recipe.clip import clip_of
from hybridgen.recipe.fields import Request

if TYPE_CHECKING:
    from PIL.Image import Image

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
VIDEOS = (".mp4", ".mov", ".webm", ".mkv", ".avi", ".m4v")

RULES = {
    "image": "An image is a regular file that Pillow opens: PNG, JPEG, WebP and others, of up to 67 million pixels. "
    "It is read as 8-bit sRGB, so what that cannot show is refused.",
    "video": "A video is a regular file that ffmpeg reads: mp4, mov, mkv, webm, avi and others. Its frames are "
    "taken as they are stored; its frame rate changes nothing. Damaged videos are refused, and those that players show "
    "otherwise than they are stored: HDR, interlaced (two moments in a frame), or with pixels that are not square.",
}


@dataclass(frozen=True)
class Conditioning:
    """What a clip is conditioned on besides its prompt. Files are absolute paths, or None."""

    image: Path | None = None
    last_image: Path | None = None
    video: Path | None = None
    images: tuple[Image, ...] = ()
    """Conditioning images in RGB, the first frame before the last; or the last frames of the video, in its order."""
    video_frames: int | None = None
    """Frames of the whole video, or as many as were counted."""
    doubts: tuple[str, ...] = ()
    """Warnings about the files."""

    @property
    def files(self) -> list[Path]:
        """The files that are given."""
        return [path for path in (self.image, self.last_image, self.video) if path is not None]

    @property
    def names(self) -> dict[str, str | None]:
        """The files' names without their folders, by field of a request."""
        given = {"image": self.image, "last_image": self.last_image, "video": self.video}
        return {field: None if path is None else path.name for field, path in given.items()}


def open_inputs(request: Request, facts: ModelFacts) -> Conditioning:
    """Open and decode the files of a request, each once.

    Raises RequestError for a request that the model cannot serve, and image, video or video-frames for unusable files.
    """
    if request.image is None and request.last_image is None and request.video is None:
        return Conditioning()
    clip = clip_of(request, facts)
    if request.video is not None:
        return _open_video(request.video, facts, clip)
    given = [
        (flag, name)
        for flag, name in (("image", request.image), ("last-image", request.last_image))
        if name is not None
    ]
    opened = {flag: open_image(flag, name) for flag, name in given}
    paths = {flag: path for flag, (path, _) in opened.items()}
    images = tuple(image for _, image in opened.values())
    return Conditioning(paths.get("image"), paths.get("last-image"), images=images)


def opened_again(given: Conditioning, facts: ModelFacts, clip: Clip) -> Conditioning:
    """Files that another process has opened, opened here. Raises RequestError (image, video)."""
    if given.video is not None:
        return _open_video(str(given.video), facts, clip)
    paths = {"image": given.image, "last-image": given.last_image}
    return replace(given, images=tuple(open_image(flag, str(path))[1] for flag, path in paths.items() if path))


def open_image(flag: str, name: str) -> tuple[Path, Image]:
    """Absolute path of an image, and the image, upright, in RGB. Raises RequestError (image)."""
    path = regular_file("image", flag, name)
    try:
        return path, read_image(path)
    except Unreadable as error:
        if path.suffix.lower() in VIDEOS:
            nearest = "one frame of it, or --video where the model continues videos"
            raise RequestError("image", flag, name, "is a video", nearest) from error
        raise RequestError("image", flag, name, error.problem, error.nearest) from error


def regular_file(rule: str, flag: str, name: str) -> Path:
    """Absolute path of a file that is there, to be read more than once. Raises RequestError with the rule."""
    try:
        path = Path(name).expanduser().absolute()
        if path.is_file():
            return path
        problem = "there is no such file"
        if path.is_dir():
            problem = "is a folder"
        elif path.exists():
            problem = "is not a regular file, but a pipe or a device"
    except (OSError, RuntimeError) as error:  # a name that is too long, a home that is not known
        problem = f"there is no such file ({getattr(error, 'strerror', None) or error})"
    raise RequestError(rule, flag, name, problem)


def _open_video(name: str, facts: ModelFacts, clip: Clip) -> Conditioning:
    """Decode the last frames of a video. Raises RequestError (video, video-frames)."""
    from PIL import Image

    from hybridgen.engine.read_video import NO_VIDEO, last_frames

    path = regular_file("video", "video", name)
    if path.suffix.lower() in PICTURES:
        raise RequestError(
            "video", "video", name, "is an image", "a video, or --image with it", [{"image": name, "video": None}]
        )
    try:
        frames, count, doubt = last_frames(path, facts.video_frames or clip.frames)
    except (OSError, ValueError) as error:
        near = "mp4, mov, mkv, webm or avi" if str(error) == NO_VIDEO else ""
        raise RequestError("video", "video", name, str(error), near, []) from error
    if count < (facts.video_frames or 1):
        problem = f"has {counted(count, 'frame')}, and {facts.name} continues {facts.video_frames or 1}"
        raise RequestError("video", "video", name, problem, "a longer video, or its last frame as --image")
    encoded = facts.encoded_frames(clip.frames, False, count)
    if encoded >= clip.frames:
        near = str(encoded + 4 * facts.vae.stride_time)
        problem = f"fills the clip of {counted(clip.frames, 'frame')}, which leaves nothing to make"
        nearest = f"--frames {near}, or a shorter video"
        raise RequestError("video-frames", "video", name, problem, nearest, [{"frames": near}])
    images = tuple(Image.fromarray(frame) for frame in frames[:encoded])
    doubts = (f"--video {name}: {doubt}",) if doubt else ()
    return Conditioning(video=path, images=images, video_frames=count, doubts=doubts)


def check_inputs(request: Request, facts: ModelFacts, clip: Clip) -> None:
    """Raise RequestError (image-missing) if the clip needs an image that is not given."""
    what = "between two images" if facts.last_image == "must" else "from an image"
    what += " or a video (--video)" if facts.video else ""
    for flag, given, needed in (
        ("image", request.image, clip.image),
        ("last-image", request.last_image, clip.last_image),
    ):
        if needed and given is None:
            problem = f"is missing, and {facts.name} makes clips {what}"
            raise RequestError("image-missing", flag, None, problem, tries=[{flag: "image.png"}])


def describe_inputs(files: Conditioning, encoded_frames: int) -> list[str]:
    """A line for every file that the clip starts from or ends with; `encoded_frames` are those taken of a video."""
    if files.video is not None:
        return [f"from    {files.video.name}, its last {counted(encoded_frames, 'frame')}"]
    given = [(word, path) for word, path in (("from", files.image), ("to", files.last_image)) if path is not None]
    pairs = zip(given, files.images, strict=True)
    return [f"{word:<7} {path.name}, {image.width}x{image.height}" for (word, path), image in pairs]
