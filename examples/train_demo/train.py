"""Train the demo model from nothing on one CPU core: a tiny Wan text-to-video pipeline, diffusers layout.

    python examples/train_demo/train.py --out demo_pipeline

Stages in order: codec, latents, base (one transformer and the text encoder), high-noise and low-noise expert.
Every stage counts steps and is seeded; its result is kept in <out>.work and reused: a stopped run resumes.
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
from transformers import UMT5EncoderModel

from examples.train_demo import codec, models
from examples.train_demo.clips import Size
from examples.train_demo.codec_init import analytic_init
from examples.train_demo.flow import Pool, Span, encode_clips, train_flow

# frames, height, width: (clips per caption, share of the batches)
SIZES = {
    Size(17, 64, 64): (16, 0.68),
    Size(17, 48, 80): (3, 0.08),
    Size(17, 80, 48): (3, 0.08),
    Size(9, 64, 64): (3, 0.08),
    Size(33, 64, 64): (3, 0.08),
}
CODEC_WINDOWS = [(3, 17, 32), (4, 9, 32), (3, 17, 32), (2, 33, 32)]


@dataclass
class Stages:
    """Named results in a folder; each is computed once."""

    folder: Path
    scale: float  # multiplies every number of steps and clips

    def count(self, number: int) -> int:
        """The scaled number, at least 2."""
        return max(2, int(number * self.scale))

    def run(self, name: str, build: Callable[[], Any]) -> Any:
        """The stored result of build(), which runs if there is none yet."""
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
        """Wall-clock minutes that every stage took."""
        return {p.stem: float(p.read_text()) for p in sorted(self.folder.glob("*.minutes"))}


def train_codec(stages: Stages) -> AutoencoderKLWan:
    """Analytic start; then its linear path is trained, then all of it, then the decoder for bf16."""

    def linear() -> dict[str, Tensor]:
        torch.manual_seed(0)
        vae = codec.build_vae()
        analytic_init(vae)
        print("  analytic start", codec.psnr(vae), "dB", flush=True)
        with codec.linear_path_only(vae):
            codec.train_vae(vae, stages.count(800), 2e-3, [(16, 5, 32)], warm=30, seed=1)
        return dict(vae.state_dict())

    def full() -> dict[str, Tensor]:
        vae = codec.build_vae()
        vae.load_state_dict(start)
        codec.train_vae(vae, stages.count(1200), 4e-4, CODEC_WINDOWS, warm=100, seed=2)
        return dict(vae.state_dict())

    def rounded() -> dict[str, Tensor]:
        codec.train_bf16_decoder(vae, stages.count(300), 2e-4, CODEC_WINDOWS, warm=20, seed=3)
        return dict(vae.float().state_dict())

    start = stages.run("1-linear-codec", linear)
    vae = codec.build_vae()
    vae.load_state_dict(stages.run("2-codec", full))
    vae.load_state_dict(stages.run("2b-bf16-decoder", rounded))
    vae.eval().requires_grad_(False)
    return vae  # in fp32, but with the weights that are saved


def encode_pools(stages: Stages, vae: AutoencoderKLWan) -> list[Pool]:
    """Normalised latents of every size; their mean and deviation go into the codec's configuration."""

    def encode() -> list[tuple[Tensor, Tensor]]:
        plan = enumerate(SIZES.items())
        return [encode_clips(vae, stages.count(clips), size, seed=10 + k) for k, (size, (clips, _)) in plan]

    encoded = stages.run("3-latents", encode)
    main = encoded[0][0]
    mean, std = main.mean((0, 2, 3, 4)), main.std((0, 2, 3, 4))
    vae.register_to_config(latents_mean=mean.tolist(), latents_std=std.tolist())
    mean, std = mean.view(1, -1, 1, 1, 1), std.view(1, -1, 1, 1, 1)
    shares = [share for _, share in SIZES.values()]
    return [Pool((z - mean) / std, c, share) for (z, c), share in zip(encoded, shares, strict=True)]


def train_base(stages: Stages, pools: list[Pool]) -> tuple[WanTransformer3DModel, UMT5EncoderModel]:
    """One transformer for all noise levels, jointly with the text encoder."""
    torch.manual_seed(4)
    text, transformer = models.build_text_encoder(), models.build_transformer()

    def fit() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        tokenizer = models.build_tokenizer()
        train_flow(transformer, text, tokenizer, pools, stages.count(5500), 2.5e-3, seed=5, warm=100)
        return transformer.state_dict(), text.state_dict()

    for model, state in zip((transformer, text), stages.run("4-base", fit), strict=True):
        model.load_state_dict(state)
    return transformer.eval(), text.eval()


def train_expert(
    stages: Stages, name: str, base: WanPipeline, pools: list[Pool], span: Span, steps: int, seed: int
) -> WanTransformer3DModel:
    """A copy of the base's transformer, trained further inside a range of noise levels."""
    expert = copy.deepcopy(base.transformer)

    def fit() -> dict[str, Tensor]:
        expert.train()
        tokenizer = models.build_tokenizer()
        train_flow(expert, base.text_encoder, tokenizer, pools, stages.count(steps), 1e-3, seed, span)
        return dict(expert.state_dict())

    expert.load_state_dict(stages.run(name, fit))
    return expert.eval()


def train_pipeline(stages: Stages) -> WanPipeline:
    """All stages, as a pipeline in bf16."""
    vae = train_codec(stages)
    pools = encode_pools(stages, vae)
    transformer, text = train_base(stages, pools)
    pipe = WanPipeline(
        tokenizer=models.build_tokenizer(),
        text_encoder=text,
        vae=vae,
        scheduler=models.build_scheduler(),
        transformer=transformer,
        transformer_2=transformer,
        boundary_ratio=models.BOUNDARY,
    )
    high = train_expert(stages, "5-high-noise", pipe, pools, (models.BOUNDARY, 1.0), steps=300, seed=6)
    low = train_expert(stages, "6-low-noise", pipe, pools, (0.0, models.BOUNDARY), steps=2000, seed=7)
    pipe.register_modules(transformer=high, transformer_2=low)
    for module in (text, vae, high, low):
        codec.to_bf16(module)
    return pipe


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the demo model.")
    parser.add_argument("--out", type=Path, default=Path("demo_pipeline"), help="folder of the trained pipeline")
    parser.add_argument("--scale", type=float, default=1.0, help="of all steps and clips (0.01: smoke test)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    stages = Stages(Path(f"{args.out}.work"), args.scale)
    stages.folder.mkdir(parents=True, exist_ok=True)
    train_pipeline(stages).save_pretrained(args.out)
    print(json.dumps(stages.minutes(), indent=1))


if __name__ == "__main__":
    main()
