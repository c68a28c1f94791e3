"""The published measurements in benchmarks/data/published_latency.csv, as plans that the planner can price.

Models that hybridgen does not run are described here, as far as cost depends on them, and so is what the engines that
were measured do otherwise than hybridgen: their kernel, and the dtype of their autoencoder.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

from hybridgen.models import catalogue
from hybridgen.models.wan.facts import WanTransformer
from hybridgen.models.wan.vae_facts import VAE_21
from hybridgen.plan.facts import ModelFacts
from hybridgen.plan.plan import Clip, Plan
from hybridgen.plan.settings import Settings
from hybridgen.planner import facts_file
from hybridgen.planner.hardware.cards import CARDS, Card
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.hardware.known import MACHINES
from hybridgen.strategies.registry import Degrees

DATA = Path(__file__).parent / "data" / "published_latency.csv"

HUNYUAN = facts_file.read(Path(__file__).parent.parent / "examples" / "hunyuanvideo.yaml")
COGVIDEOX = ModelFacts(
    name="cogvideox-5b",
    pipeline="",
    source="THUDM/CogVideoX-5b",
    transformer=WanTransformer(
        layers=42, heads=48, head_dim=64, ffn=12288, text_dim=4096, cross_attention=False, text_stream="joint"
    ),
    vae=VAE_21,
    text_tokens=226,
    origin="configuration file of the checkpoint on the model hub",
)
COGVIDEOX_15 = replace(COGVIDEOX, transformer=replace(COGVIDEOX.transformer, patch=(2, 2, 2)))
OTHERS = {"hunyuanvideo": HUNYUAN, "cogvideox-5b": COGVIDEOX, "cogvideox1.5-5b": COGVIDEOX_15}
"""Models that are priced and not run."""
NAMES = {
    "wan2.2-a14b": "wan2.2",
    "wan2.1-14b": "wan2.1-14b",
    "wan2.1-t2v-1.3b": "wan2.1-1.3b",
    "wan2.2-ti2v-5b": "wan2.2-5b",
    "wan2.2-ti2v-5b-vae": "wan2.2-5b",
    "cosmos3-super": "cosmos3-super",
    "cosmos3-nano": "cosmos3-nano",
    "cosmos-predict2-2b-v2w": "cosmos-predict2-2b-video2world",
    "cosmos-predict2-14b-v2w": "cosmos-predict2-14b-video2world",
}
MODELS = {**{theirs: catalogue.find(ours) for theirs, ours in NAMES.items()}, **OTHERS}
"""Facts by the file's name of a model."""
GPUS = {
    "GB200": "gb200-nvl72",
    "B200": "b200",
    "H20": "h20",
    "A800/A100": "a100",
    "H800/H100": "h100",
    "H100/H800": "h100",
    "H100": "h100",
    "H100 SXM": "h100",
    "H100 80GB HBM3": "h100",
    "H100 PCIe": "h100-pcie",
    "H200": "h200",
    "4090": "rtx4090",
    "L40": "l40",
}
"""Names of cards by the file's name of a GPU. The Wan repository writes A800/A100 and H800/H100 for one column."""
CARD = {card.name: card for card in CARDS}
SIZES = {"480p": "768x432", "720p": "1280x704"}
"""Cosmos Predict 2's sizes. With 832x480 its times on H20 would need more than that GPU's peak."""
PCIE = ("4090", "L40", "H100 PCIe")


@dataclass(frozen=True)
class Engine:
    """What an engine does otherwise than hybridgen, as far as it is known."""

    name: str
    attention: str = "auto"
    """Its kernel, where it is not torch's own choice on that GPU."""
    vae_dtype: str = "bfloat16"
    compiled: bool = True
    """Whether its blocks are compiled, or their passes fused by hand; otherwise they run eagerly."""
    offload: float = 3e9
    """Bytes a second at which weights move between host and GPU, where the run did that (B/s)."""


WAN = Engine("Wan's own program", "flash", "float32", compiled=False)
ENGINES = {
    "Wan-Video/Wan2.1": WAN,  # H20's times allow FlashAttention-2 only
    "Wan-Video/Wan2.2": replace(WAN, attention="flash-attn-3"),  # said by its note for Hopper
    "xdit-project": Engine("xDiT", "flash", compiled=False),
    "TensorRT-LLM": Engine("TensorRT-LLM", "flash-attn-4"),
    "stewtong": Engine("vLLM-Omni"),
    "NVIDIA/cosmos": Engine("vLLM-Omni, PyTorch"),
    "cosmos-predict2": Engine("Cosmos' own program"),
    "mlcommons": Engine("TensorRT-LLM, MLPerf", "flash-attn-4"),
    "raylight": Engine("raylight"),
}
"""Engines by a part of the source's name."""


@dataclass(frozen=True)
class Row:
    """One published measurement."""

    source: str
    model: str
    gpu: str
    gpus: int
    size: str
    frames: str
    steps: str
    config: str
    seconds: float
    peak_gb: float | None
    notes: str

    @property
    def metric(self) -> str:
        """denoise, e2e, step, vae decode only, or seconds per exchange."""
        found = re.match(r"(?:metric=|UNIT: )?([^;(]+)", self.notes)
        assert found, self.notes
        name = found[1].strip()
        same = {"end-to-end": "e2e", "pipeline": "e2e", "generation": "e2e", "seconds per step": "step"}
        return {**same, "vae": "vae decode only"}.get(name, name)

    @property
    def end_to_end(self) -> Row | None:
        """The row of the same run's whole time, where that is stated beside its denoise time."""
        found = re.search(r"end-to-end ([\d.]+)$", self.notes)
        return replace(self, seconds=float(found[1]), notes="metric=e2e") if found else None

    @property
    def setup(self) -> tuple[str, ...]:
        """What rows have in common that one one-GPU row is the reference of."""
        return self.source, self.model, self.gpu, self.size, self.frames.strip("?"), self.steps, self.kind

    @property
    def kind(self) -> str:
        """What tells measurements of one setup apart: what is timed, and whether the clip starts from an image."""
        return f"{self.metric} {'I2V' if 'I2V;' in self.notes else ''} {self.engine.name}"

    @property
    def engine(self) -> Engine:
        """The engine that was measured."""
        found = next((engine for part, engine in ENGINES.items() if part in self.source), Engine("unknown"))
        return replace(found, name="PyTorch") if "T2V PyTorch" in self.notes else found

    @property
    def settings(self) -> Settings:
        """Settings of the run: the engine's kernel, and numbers of few bits."""
        kernel, hopper = self.engine.attention, self.card.generation.startswith("hopper")
        kernel = "auto" if kernel == "flash-attn-3" and not hopper else kernel
        weights = "nvfp4" if "NVFP4" in self.notes else "fp8" if "fp8 linear" in self.config else None
        return Settings("fp8" if "TE fp8" in self.config else kernel, weights)

    @property
    def quantised(self) -> bool:
        """Whether matrix products or attention run in 8 or 4 bits, which needs settings of their own."""
        return bool(re.search("NVFP4|fp8", self.config + self.notes))

    @property
    def in_catalogue(self) -> bool:
        return self.model in NAMES

    @property
    def priced(self) -> bool:
        """Whether the planner knows model, card and split."""
        return self.model in MODELS and self.gpu in GPUS and self.degrees is not None

    @property
    def offloaded(self) -> float:
        """Bytes of weights that the run moved to and from the GPU, as the notes of Wan's one-GPU runs say."""
        facts = MODELS[self.model]
        if self.engine.name != WAN.name or (self.gpus > 1 and "--offload_model" not in self.notes):
            return 0.0
        return 2.0 * (2 * facts.experts * facts.transformer.params + 2 * facts.text_params)

    @property
    def card(self) -> Card:
        return CARD[GPUS[self.gpu]]

    @property
    def machine(self) -> Hardware:
        return MACHINES[self.card.name]

    @cached_property
    def degrees(self) -> Degrees | None:
        """The split; None where it is not stated."""
        return degrees(self.config)

    @cached_property
    def clip(self) -> Clip:
        """80 frames are 20 latent frames, as everywhere in these sources; what is left out is the model's default."""
        facts = MODELS[self.model]
        width, height = map(int, SIZES.get(self.size, self.size).split("x"))
        frames = int(self.frames.strip("?") or facts.defaults.frames)
        frames = frames - 3 if frames % 4 == 0 else frames
        steps = re.match(r"\d+", self.steps)
        wide, high = facts.size_multiple
        size = -(-width // wide) * wide, -(-height // high) * high
        guidance = 1.0 if "guidance off" in self.config else facts.defaults.guidance
        return Clip(*size, frames, int(steps[0]) if steps else facts.defaults.steps, guidance)

    def plan(self, split: Degrees | None = None) -> Plan:
        """As the planner sees it, in the measured split or another one, with the engine's settings and dtypes."""
        return _plan(self.model, self.clip, split or self.degrees or Degrees(), self.engine.vae_dtype, self.settings)


@lru_cache(maxsize=1024)
def _plan(model: str, clip: Clip, split: Degrees, vae_dtype: str, settings: Settings) -> Plan:
    return Plan(MODELS[model], clip, split, vae_dtype=vae_dtype, settings=settings)


def degrees(config: str) -> Degrees | None:
    """From "cfg2 ul4 a2d3x3 vae8 (fp8 linear)". "cp9" is read as a 3x3 grid; "fsdp8" splits no work.

    None where the split is not stated.
    """
    words, found = re.sub(r"\(.*\)", "", config).split(",")[0].split(), Degrees()
    if config.startswith("one GPU"):
        return found
    for word in words:
        match = re.fullmatch(r"([a-z]+|a2d)(\d+)(?:x(\d+))?", word)
        if not match:
            return None
        name, first, second = match[1], int(match[2]), match[3]
        if name == "a2d":
            found = found.changed(attn2d=(first, int(second)))
        elif name == "cp":
            found = found.changed(attn2d=(3, 3))
        elif name != "fsdp":
            found = found.changed(**{{"ul": "ulysses"}.get(name, name): first})
    return found


def rows() -> list[Row]:
    """Every row of the file."""
    with DATA.open(encoding="utf-8", newline="") as file:
        return [
            Row(
                r["source"], r["model"], r["gpu"], int(r["n_gpus"]), r["resolution"], r["frames"], r["steps"],
                r["config"], float(r["latency_s"]), float(r["peak_mem_gb"]) if r["peak_mem_gb"] else None, r["notes"],
            )
            for r in csv.DictReader(file)
        ]  # fmt: skip
