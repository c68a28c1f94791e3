"""Does the demo show its captions? All 96 through hybridgen.generate, with seeds that training never drew, judged.

    python benchmarks/demo_quality.py --out benchmarks/results/demo-quality.md

Every clip is a whole run (2 ranks: cfg 2), written as mp4 and read back, in fp32 and in bf16.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import hybridgen
from hybridgen.engine.read_video import read_frames
from tests.support.judge import Verdict, expected, judge

COLOURS = ("red", "green", "blue", "yellow", "white", "purple")
SHAPES = ("circle", "square", "triangle", "cross")
DIRECTIONS = ("left", "right", "up", "down")
CAPTIONS = [f"a {c} {s} moves {d}" for c in COLOURS for s in SHAPES for d in DIRECTIONS]
FIRST_SEED = 900_000


def made(caption: str, seed: int, dtype: str, folder: Path) -> Verdict:
    """Make one clip as `hybridgen run --cfg 2` does, and say what it shows."""
    clip = folder / "clip.mp4"
    hybridgen.generate(caption, clip, model="demo", cfg=2, seed=seed, dtype=dtype, overwrite=True)
    return judge(read_frames(clip) / 255.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--every", type=int, default=1, help="every n-th caption only")
    arguments = parser.parse_args()
    lines = ["| dtype | clips | colour | shape | direction | all three | misses |", "|---|---|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        lines += [row(dtype, CAPTIONS[:: arguments.every], Path(folder)) for dtype in arguments.dtypes]
    print("\n".join(lines))
    if arguments.out:
        arguments.out.write_text(
            "# Captions read off clips of `hybridgen run --model demo`\n\n" + "\n".join(lines) + "\n"
        )


def row(dtype: str, captions: list[str], folder: Path) -> str:
    """Judge every caption once; a line of the table."""
    hits, misses, start = [], [], time.monotonic()
    for i, caption in enumerate(captions):
        found, wanted = made(caption, FIRST_SEED + i, dtype, folder), expected(caption)
        hits.append([getattr(found, a) == getattr(wanted, a) for a in ("colour", "shape", "direction")])
        if not all(hits[-1]):
            misses.append(caption)
    print(f"{dtype}: {(time.monotonic() - start) / len(captions):.1f} s a clip", file=sys.stderr)
    shares = [sum(hit[k] for hit in hits) / len(hits) for k in range(3)] + [sum(map(all, hits)) / len(hits)]
    return f"| {dtype} | {len(hits)} | " + " | ".join(f"{s:.1%}" for s in shares) + f" | {', '.join(misses) or '-'} |"


if __name__ == "__main__":
    main()
