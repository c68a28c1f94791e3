"""Train the demo model from nothing on one CPU core: a tiny Wan text-to-video pipeline in the diffusers layout.

    python examples/train_demo/train.py --out demo_pipeline

Stages, in order: codec, latents, base (one transformer and the text encoder), high- and low-noise experts, save, measure.
Every stage counts steps and is seeded; its result is kept in <out>.work and reused, so a stopped run can be resumed.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository root

import torch
from diffusers import AutoencoderKLWan, WanPipeline, WanTransformer3DModel
from torch import Tensor

from examples.train_demo import codec, models
from examples.train_demo.clips import Size
from examples.train_demo.codec_init import analytic_init
from examples.train_demo.flow import Pool, encode_clips, train_flow

# frames, height, width: (clips per caption, share of the batches)
SIZES = {
    Size(17, 64, 64): (16, 0.68),
    Size(17, 48, 80): (3, 0.08),
    Size(17, 80, 48): (3, 0.08),
    Size(9, 64, 64): (3, 0.08),
    Size(33, 64, 64): (3, 0.08),
}
CODEC_WINDOWS = [(3, 17, 32), (4, 9, 32), (3, 17, 32), (2, 33, 32)]  # clips, frames, pixels


@dataclass
class Stages:
    """Named results in a folder; each is computed once."""

    folder: Path
    scale: float  # multiplies every number of steps and clips

    def count(self, number: int) -> int:
        return max(2, int(number * self.scale))

    def run(self, name: str, build: Callable[[], Any]) -> Any:
        path = self.folder / f"{name}.pt"
        if not path.exists():
            print(name, flush=True)
            began = time.time()
            torch.save(build(), path)
            minutes = (time.time() - began) / 60
            path.with_suffix(".minutes").write_text(f"{minutes:.2f}\n")
            print(f"{name}: {minutes:.2f} minutes", flush=True)
        return torch.load(path)

    def minutes(self) -> dict[str, float]:
        return {p.stem: float(p.read_text()) for p in sorted(self.folder.glob("*.minutes"))}


def train_codec(stages: Stages) -> AutoencoderKLWan:
    """Analytic start, then its linear path alone, then all of it."""

    def linear() -> dict[str, Tensor]:
        torch.manual_seed(0)
        vae = codec.build_vae()
        analytic_init(vae)
        print("  analytic", codec.psnr(vae), "dB", flush=True)
        with codec.linear_path_only():
            codec.train_vae(vae, stages.count(800), 2e-3, [(16, 5, 32)], warm=30, seed=1)
        return vae.state_dict()

    def full() -> dict[str, Tensor]:
        vae = codec.build_vae()
        vae.load_state_dict(stages.run("1-linear-codec", linear))
        codec.train_vae(vae, stages.count(1200), 4e-4, CODEC_WINDOWS, warm=100, seed=2)
        return vae.state_dict()

    vae = codec.build_vae()
    vae.load_state_dict(stages.run("2-codec", full))
    vae.eval().requires_grad_(False)
    vae.to(torch.bfloat16).float()  # the transformers learn the latents of the weights that are saved
    return vae


def encode_pools(stages: Stages, vae: AutoencoderKLWan) -> list[Pool]:
    """Normalised latents of every size; their mean and deviation go into the codec's configuration."""

    def encode() -> list[tuple[Tensor, Tensor]]:
        return [
            encode_clips(vae, stages.count(clips), size, seed=10 + k) for k, (size, (clips, _)) in enumerate(SIZES.items())
        ]

    encoded = stages.run("3-latents", encode)
    main = encoded[0][0]
    mean, std = main.mean((0, 2, 3, 4)), main.std((0, 2, 3, 4))
    vae.register_to_config(latents_mean=mean.tolist(), latents_std=std.tolist())
    mean, std = mean.view(1, -1, 1, 1, 1), std.view(1, -1, 1, 1, 1)
    return [Pool((z - mean) / std, c, share) for (z, c), (_, share) in zip(encoded, SIZES.values(), strict=True)]


def train_pipeline(stages: Stages) -> WanPipeline:
    """All stages, as a pipeline in bf16."""
    vae = train_codec(stages)
    pools = encode_pools(stages, vae)
    tokenizer = models.build_tokenizer()
    torch.manual_seed(4)
    text, transformer = models.build_text_encoder(), models.build_transformer()

    def base() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        train_flow(transformer, text, tokenizer, pools, stages.count(5500), 2.5e-3, seed=5, warm=100)
        return transformer.state_dict(), text.state_dict()

    for model, state in zip((transformer, text), stages.run("4-base", base), strict=True):
        model.load_state_dict(state)

    def expert(name: str, span: tuple[float, float], steps: int, seed: int) -> WanTransformer3DModel:
        model = copy.deepcopy(transformer)

        def fit() -> dict[str, Tensor]:
            train_flow(model, text, tokenizer, pools, stages.count(steps), 1e-3, seed, span)
            return model.state_dict()

        model.load_state_dict(stages.run(name, fit))
        return model.eval()

    high = expert("5-high-noise", (models.BOUNDARY, 1.0), 400, seed=6)
    low = expert("6-low-noise", (0.0, models.BOUNDARY), 3000, seed=7)
    pipe = WanPipeline(
        tokenizer=tokenizer,
        text_encoder=text.eval(),
        vae=vae,
        scheduler=models.build_scheduler(),
        transformer=high,
        transformer_2=low,
        boundary_ratio=models.BOUNDARY,
    )
    return pipe.to(torch.bfloat16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("demo_pipeline"), help="folder of the trained pipeline")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies all steps and clips (0.01: smoke test)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    stages = Stages(Path(f"{args.out}.work"), args.scale)
    stages.folder.mkdir(parents=True, exist_ok=True)
    train_pipeline(stages).save_pretrained(args.out)
    print(json.dumps(stages.minutes(), indent=1))


if __name__ == "__main__":
    main()
