"""Measure a demo checkpoint with diffusers' stock WanPipeline: do clips show what their captions say?

python examples/train_demo/evaluate.py hybridgen/models/demo/checkpoint --dtype bfloat16 --sheet sheet.png
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before diffusers is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository root

import numpy as np
import torch
from diffusers import WanPipeline
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from examples.train_demo.clips import CAPTIONS, Size, seeded
from examples.train_demo.codec import psnr
from tests.support.judge import Verdict, expected, judge

Frames = NDArray[np.float32]
ATTRIBUTES = ("colour", "shape", "direction")
SHEET_ROWS = [16 * c + 4 * s + (c + s) % 4 for c in range(6) for s in range(4)]  # directions in turn
LABEL_WIDTH, ZOOM = 190, 2


def generate(
    pipe: WanPipeline, captions: Sequence[int], seed: int, size: Size, steps: int, guidance: float
) -> list[Frames]:
    """One clip [T, H, W, 3] in 0..1 for every caption index; the noise depends on seed and caption only."""
    output = pipe(
        [CAPTIONS[i] for i in captions],
        height=size.height,
        width=size.width,
        num_frames=size.frames,
        num_inference_steps=steps,
        guidance_scale=guidance,
        max_sequence_length=512,
        output_type="np",
        generator=[seeded(1000 * seed + i) for i in captions],
    )
    return list(output.frames)


def measure(
    pipe: WanPipeline, seeds: Sequence[int], size: Size, steps: int, guidance: float, batch: int
) -> dict[tuple[int, int], tuple[Frames, Verdict]]:
    """Clip and verdict of every caption, by (seed, caption index)."""
    results = {}
    for seed in seeds:
        for first in range(0, len(CAPTIONS), batch):
            captions = range(first, min(first + batch, len(CAPTIONS)))
            clips = generate(pipe, captions, seed, size, steps, guidance)
            for i, frames in zip(captions, clips, strict=True):
                results[seed, i] = frames, judge(frames)
    return results


def summary(results: dict[tuple[int, int], tuple[Frames, Verdict]]) -> dict[str, object]:
    """Share of clips that are right in each attribute and in all, and the list of those that are not."""
    right = np.array(
        [np.equal(astuple(verdict), astuple(expected(CAPTIONS[i]))) for (_, i), (_, verdict) in results.items()]
    ).astype(bool)
    wrong = [
        f"seed {seed}: {CAPTIONS[i]} -> {verdict.colour} {verdict.shape} {verdict.direction}"
        for (seed, i), (_, verdict) in results.items()
        if verdict != expected(CAPTIONS[i])
    ]
    shares = {name: round(float(share), 4) for name, share in zip(ATTRIBUTES, right.mean(0), strict=True)}
    shares["all three"] = round(float(right.all(1).mean()), 4)
    return {"clips": len(results), **shares, "wrong": wrong}


def contact_sheet(rows: Sequence[tuple[str, Frames]], every: int = 2) -> Image.Image:
    """One labelled row per clip, every second frame per column."""
    strips = []
    for _, frames in rows:
        framed = np.pad(frames[::every], ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=0.5)
        strips.append(np.concatenate(list(framed), axis=1))
    pixels = Image.fromarray((np.concatenate(strips).clip(0, 1) * 255).astype(np.uint8))
    pixels = pixels.resize((pixels.width * ZOOM, pixels.height * ZOOM), Image.Resampling.NEAREST)
    sheet = Image.new("RGB", (pixels.width + LABEL_WIDTH, pixels.height), "white")
    sheet.paste(pixels, (LABEL_WIDTH, 0))
    draw = ImageDraw.Draw(sheet)
    row_height = pixels.height // len(rows)
    for number, (label, _) in enumerate(rows):
        draw.text((6, number * row_height + row_height // 2 - 6), label, fill="black")
    return sheet.quantize(256)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure a demo checkpoint.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--guidance", type=float, default=3.0)
    parser.add_argument("--batch", type=int, default=8, help="clips per pipeline call")
    parser.add_argument("--frames", type=int, default=17)
    parser.add_argument("--height", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sheet", type=Path, help="write a contact sheet of 24 captions, first seed")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    pipe = WanPipeline.from_pretrained(args.checkpoint, dtype=torch.float32)
    report: dict[str, object] = {"codec PSNR in dB, fp32: all, first, last frame": psnr(pipe.vae)}
    pipe.to(getattr(torch, args.dtype))
    pipe.set_progress_bar_config(disable=True)
    size = Size(args.frames, args.height, args.width)
    results = measure(pipe, args.seeds, size, args.steps, args.guidance, args.batch)
    print(json.dumps(report | summary(results), indent=1))
    if args.sheet:
        contact_sheet([(CAPTIONS[i], results[args.seeds[0], i][0]) for i in SHEET_ROWS]).save(args.sheet)


if __name__ == "__main__":
    main()
