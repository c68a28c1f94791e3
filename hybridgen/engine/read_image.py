"""Reading an image as 8-bit sRGB, upright. What would lose tones, colours or transparency is refused. No torch."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

PIXELS = 2**26
"""The most pixels that are decoded. A clip shows a few per cent of them, and a small file can hold many times more."""
SIXTEEN_BITS = ("PNG", "PPM")
"""Formats whose 16-bit grey Pillow may give as 32-bit integers up to 65535."""
OPAQUE = 255


class Unreadable(ValueError):
    """An image that cannot be taken as it is: the problem, and what to use instead."""

    def __init__(self, problem: str, nearest: str = "") -> None:
        super().__init__(problem)
        self.problem, self.nearest = problem, nearest


def read_image(path: Path) -> Image:
    """The image of a regular file. Raises Unreadable."""
    from PIL import Image, ImageOps

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of damaged metadata, and of more pixels than are taken here
        try:
            with Image.open(path) as picture:
                _check(picture)
                kind = picture.format or ""
                return _rgb(ImageOps.exif_transpose(picture), kind)  # all of it is read: a file may be cut off
        except Image.DecompressionBombError:
            raise _too_large() from None
        except Unreadable:
            raise
        except Exception as error:
            words = getattr(error, "strerror", None) or str(error).replace(f" {str(path)!r}", "")
            raise Unreadable(f"cannot be read as an image ({words})") from error


def _check(picture: Image) -> None:
    """Refuse an image by its header."""
    if picture.width * picture.height > PIXELS:
        raise _too_large(f" ({picture.width}x{picture.height})")
    frames = getattr(picture, "n_frames", 1)
    if frames > 1 and picture.format in ("GIF", "PNG", "WEBP", "AVIF"):  # the other frames of a JPEG are thumbnails
        raise Unreadable(f"is an animation of {frames} frames", "one frame of it")


def _too_large(size: str = "") -> Unreadable:
    return Unreadable(f"has more than {PIXELS // 10**6} million pixels{size}", "a smaller copy of it")


def _rgb(picture: Image, kind: str) -> Image:
    """The image in 8-bit sRGB; `kind` is the format of its file."""
    if _is_transparent(picture):
        raise Unreadable("is transparent in parts, and a clip is not", "the image on a background")
    profile = picture.info.get("icc_profile")
    if picture.mode.startswith("I;16") or (picture.mode == "I" and kind in SIXTEEN_BITS):
        picture = _eight_bits(picture)
    if picture.mode in ("I", "F"):
        raise Unreadable("has 32-bit values, which do not say what is white", "an image of 8 or 16 bits")
    return _in_srgb(picture, profile) if profile else picture.convert("RGB")


def _is_transparent(picture: Image) -> bool:
    """Whether any pixel shows what is behind it."""
    if not picture.has_transparency_data:
        return False
    if picture.mode.startswith("I"):
        return True  # one of its tones
    return any(picture.convert("RGBA").getchannel("A").histogram()[:OPAQUE])


def _eight_bits(picture: Image) -> Image:
    """16-bit grey as 8-bit grey, where RGB would clip all above 255."""
    import numpy as np
    from PIL import Image

    return Image.fromarray(np.round(np.asarray(picture) / 257).clip(0, 255).astype(np.uint8))


def _in_srgb(picture: Image, profile: bytes) -> Image:
    """The image with its colour profile applied, unless that says sRGB or is damaged."""
    from PIL import ImageCms

    whole = picture if picture.mode in ("CMYK", "L", "RGB") else picture.convert("RGB")
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if "srgb" in ImageCms.getProfileDescription(source).lower():
            return whole.convert("RGB")
        converted = ImageCms.profileToProfile(whole, source, ImageCms.createProfile("sRGB"), outputMode="RGB")
    except (ImageCms.PyCMSError, OSError):
        return whole.convert("RGB")
    assert converted is not None
    return converted
