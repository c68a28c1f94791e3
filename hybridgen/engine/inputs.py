"""Images and videos that a clip starts from or ends with, opened once, before the plan is made. No torch."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridgen.errors import RequestError
from hybridgen.plan.facts import ModelFacts
from hybridgen.plan.plan import Clip
from hybridgen.recipe.clip import clip_of
from hybridgen.recipe.fields import Request

if TYPE_CHECKING:
    from PIL.Image import Image

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
VIDEOS = (".mp4", ".mov", ".webm", ".mkv", ".avi", ".m4v")

RULES = {
    "image": "An image is any file that Pillow opens: PNG, JPEG, WebP and others.",
    "video": "Videos are read through ffmpeg: mp4, mov, webm and others. Their frame rate changes nothing.",
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
    """Frames of the whole video."""

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


def open_image(flag: str, name: str) -> tuple[Path, Image]:
    """Absolute path of an image, and the image, upright, in RGB. Raises RequestError (image)."""
    from PIL import Image, ImageOps

    path = Path(name).expanduser().absolute()
    try:
        with Image.open(path) as picture:  # all of it is read: a file may be cut off
            return path, ImageOps.exif_transpose(picture).convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # as Pillow's formats raise
        if not path.exists():
            raise RequestError("image", flag, name, "there is no such file") from error
        if path.suffix.lower() in VIDEOS:
            nearest = "one frame of it, or --video where the model continues videos"
            raise RequestError("image", flag, name, "is a video", nearest) from error
        raise RequestError("image", flag, name, f"cannot be read as an image ({error})") from error


def _open_video(name: str, facts: ModelFacts, clip: Clip) -> Conditioning:
    """Decode a video and keep its last frames. Raises RequestError (video, video-frames)."""
    from PIL import Image

    path = Path(name).expanduser().absolute()
    frames, count = _last_frames(name, path, facts.video_frames or clip.frames)
    if count < (facts.video_frames or 1):
        problem = f"has {count} frame{'s' * (count != 1)}, and {facts.name} continues {facts.video_frames or 1}"
        near = "--image with it" if path.suffix.lower() in PICTURES else "a longer video, or its last frame as --image"
        raise RequestError("video", "video", name, problem, near)
    encoded = facts.encoded_frames(clip.frames, False, count)
    if encoded >= clip.frames:
        near = str(encoded + 4 * facts.vae.stride_time)
        problem = f"fills all {clip.frames} frames of the clip, which leaves nothing to make"
        nearest = f"--frames {near}, or a shorter video"
        raise RequestError("video-frames", "video", name, problem, nearest, [{"frames": near}])
    images = tuple(Image.fromarray(frame) for frame in frames[:encoded])
    return Conditioning(video=path, images=images, video_frames=count)


def _last_frames(name: str, path: Path, keep: int) -> tuple[list[Any], int]:
    """The last `keep` frames of a video, [H, W, 3] uint8 each, and how many it has. Raises RequestError (video)."""
    from hybridgen.engine.video import frames_of

    frames, count = deque[Any](maxlen=keep), 0
    try:
        for frame in frames_of(path):
            frames.append(frame)
            count += 1
    except (OSError, RuntimeError) as error:
        problem = "cannot be read as a video" if path.exists() else "there is no such file"
        raise RequestError("video", "video", name, problem) from error
    return list(frames), count


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
        return [f"from    {files.video.name}, its last {encoded_frames} frames"]
    given = [(word, path) for word, path in (("from", files.image), ("to", files.last_image)) if path is not None]
    pairs = zip(given, files.images, strict=True)
    return [f"{word:<7} {path.name}, {image.width}x{image.height}" for (word, path), image in pairs]
