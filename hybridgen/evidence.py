"""Whether a recipe's results say anything about the machine at hand. No torch."""

from __future__ import annotations

import re

from hybridgen.recipe import Recipe


def mismatch(recipe: Recipe, device: str, ranks: int) -> str | None:
    """One sentence when the recipe was measured on, or is for, other hardware than this; None when it fits.

    `device` is "cpu" or the name that the driver gives a GPU ("NVIDIA H100 80GB HBM3"), `ranks` how many are used.
    """
    hardware = recipe.hardware
    results = [one for one in recipe.measured if one.denoise_s or one.end_to_end_s]
    named = {name for one in results if (name := one.hardware or hardware.name)}
    known = sorted(named) or ([hardware.name] if hardware.name else [])
    what, so = ("was measured on", "; times will differ") if named else ("is for", "")
    if known and not any(_matches(name, device) for name in known):
        return f"this recipe {what} {' and '.join(known)}; here: {device}{so}"
    if hardware.gpus is not None and hardware.gpus != ranks:
        return f"this recipe {what} {hardware.gpus} ranks; here: {ranks}{so}"
    return None


def _matches(name: str, device: str) -> bool:
    """Whether a recipe's name of a GPU (gb200-nvl72, rtx-4090) is the driver's (NVIDIA GB200, ... RTX 4090)."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    model = next((word for word in words if re.search(r"\d", word)), words[0] if words else "")
    return model in re.findall(r"[a-z0-9]+", device.lower())
