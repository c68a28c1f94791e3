"""The published measurements in benchmarks/data/published_latency.csv, as plans that the planner can price.

Models that hybridgen does not run are described here, as far as cost depends on them.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from pathlib import Path

from hybridgen.models import catalogue
from hybridgen.models.wan.facts import WanTransformer
from hybridgen.models.wan.vae_facts import VAE_21
from hybridgen.plan.facts import ModelFacts
from hybridgen.plan.plan import Clip, Plan
from hybridgen.planner import facts_file
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
MODELS = {
    "wan2.2-a14b": catalogue.find("wan2.2"),
    "wan2.1-14b": catalogue.find("wan2.1-14b"),
    "wan2.1-t2v-1.3b": catalogue.find("wan2.1-1.3b"),
    "hunyuanvideo": HUNYUAN,
    "cogvideox-5b": COGVIDEOX,
    "cosmos3-super": catalogue.find("cosmos3"),
}
MACHINES = {
    "GB200": "gb200-nvl72",
    "B200": "b200",
    "H20": "h20",
    "A800/A100": "a100",
    "H800/H100": "h100",
    "H100": "h100",
    "4090": "rtx4090",
    "L40": "l40s",
}


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
        """denoise, e2e, step, pipeline, vae decode only, or seconds per exchange."""
        found = re.match(r"metric=([^;]+)", self.notes)
        assert found, self.notes
        return found[1]

    @property
    def end_to_end(self) -> Row | None:
        """The row of the same run's whole time, where that is stated beside its denoise time."""
        found = re.search(r"end-to-end ([\d.]+)$", self.notes)
        return replace(self, seconds=float(found[1]), notes="metric=e2e") if found else None

    @property
    def setup(self) -> tuple[str, ...]:
        """What rows have in common that one one-GPU row is the reference of."""
        return self.source, self.model, self.size, self.frames.strip("?"), self.steps

    def plan(self) -> Plan:
        """As the planner sees it; 80 frames are 20 latent frames, as everywhere in these sources."""
        facts = MODELS[self.model]
        width, height = map(int, self.size.split("x"))
        frames = int(self.frames.strip("?"))
        frames = frames - 3 if frames % 4 == 0 else frames
        wide, high = facts.size_multiple
        clip = Clip(-(-width // wide) * wide, -(-height // high) * high, frames, int(self.steps), 5.0)
        clip = replace(clip, guidance=facts.defaults.guidance)
        return Plan(facts, clip, degrees(self.config))


def degrees(config: str) -> Degrees:
    """From "cfg2 ul4 a2d3x3 vae8". "cp9" is read as a 3x3 grid; "fsdp8" splits no work."""
    found = Degrees()
    for word in config.split():
        match = re.fullmatch(r"([a-z]+|a2d)(\d+)(?:x(\d+))?", word)
        assert match, config
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
