"""Predicted against published latencies and peaks: the table in docs/planner-accuracy.md. No GPU, a second.

python -m benchmarks.planner_accuracy --out docs/planner-accuracy.md       (in the root of the repository)
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.published import DATA, PCIE, Row, rows
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.hardware.lookup import find
from hybridgen.planner.hardware.topology import Span, exchange_seconds
from hybridgen.planner.price import compute, cost, memory
from hybridgen.planner.price import vae as vae_price

PAGE = DATA.parent / "planner_accuracy_page.txt"
"""The page, with the names of tables in braces."""


@dataclass(frozen=True)
class Line:
    """A published row beside its prediction, in seconds."""

    row: Row
    predicted: float
    share: float = 0.0
    """Half the width of the predicted range, as a share."""

    @property
    def error(self) -> float:
        return self.predicted / self.row.seconds - 1


def predict(row: Row, hardware: Hardware) -> float:
    """What the row measured; none of these engines decodes and writes at once."""
    plan = row.plan()
    found = cost.cost(plan, hardware, streamed=False)
    if row.metric in ("e2e", "pipeline"):
        return found.clip
    return found.denoise / (plan.clip.steps if row.metric == "step" else 1)


def solve(published: float, predicted: Callable[[float], float], low: float, high: float) -> float:
    """The x between low and high at which a rising prediction equals what was published."""
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if predicted(middle) < published else (low, middle)
    return middle


def anchored(reference: Row) -> float:
    """How many times slower the reference's GPU is than its entry says."""
    machine = reference.machine
    return solve(reference.seconds, lambda x: predict(reference, machine.slower(x, "")), 0.1, 10)


def gb200_lines(found: list[Row]) -> list[Line]:
    """Wan in bf16 on GB200, without an anchor."""
    machine = find("gb200-nvl72")
    return [Line(r, predict(r, machine)) for r in found if is_gb200(r) and r.metric == "denoise"]


def is_gb200(row: Row) -> bool:
    return row.gpu == "GB200" and row.model == "wan2.2-a14b"


def unseen_lines(found: list[Row]) -> list[Line]:
    """Cosmos3-Super, denoising and end to end, without an anchor: no constant was fitted to any of its rows."""
    own = [r for r in found if r.model == "cosmos3-super"]
    every = [r for row in own for r in (row, row.end_to_end) if r is not None]
    return [Line(r, predict(r, r.machine)) for r in every]


def text_again(found: list[Row]) -> tuple[float, ...]:
    """Seconds that the text of Cosmos3 would add if it ran in every step and not once: on one GPU, on 72."""
    plans = [(r.plan(), r.machine) for r in found if r.model == "cosmos3-super"]
    return tuple((p.clip.steps - 1) * compute.text_seconds(p, machine) for p, machine in plans)


def vae_lines(found: list[Row]) -> list[Line]:
    vaes = [r for r in found if r.metric == "vae decode only"]
    width = [replace(r, config=f"cfg2 ul4 a2d3x3 {r.config}" if is_gb200(r) else r.config) for r in vaes]
    return [Line(r, vae_price.decode_seconds(one.plan(), one.machine)) for r, one in zip(vaes, width, strict=True)]


def exchange_lines(found: list[Row]) -> list[Line]:
    """The all-to-all table: B=2, 6144 tokens in all, 32 heads of 128, bf16, Q, K and V."""
    lines = []
    for row in found:
        if row.metric == "seconds per exchange of Q,K,V":
            size = 2 * 6144 // row.gpus * 32 * 128 * 3 * 2 * (row.gpus - 1) / row.gpus
            seconds = exchange_seconds(find("b200"), "all_to_all", size, Span(row.gpus, row.gpus))
            lines.append(Line(row, seconds))
    return lines


def anchored_lines(found: list[Row], pcie: bool) -> list[Line]:
    """Rows on other machines with a stated split, from the one-GPU latency of the same source and model."""
    lines = []
    for row in found:
        skipped = is_gb200(row) or row.gpus == 1 or not row.priced or row.metric.startswith("vae")
        if skipped or (row.gpu in PCIE) != pcie:
            continue
        machine = row.machine
        reference = reference_of(row, found)
        machine = machine.slower(anchored(reference), f"anchored to {reference.seconds} s")
        lines.append(Line(row, predict(row, machine), machine.error.value))
    return lines


def reference_of(row: Row, found: list[Row]) -> Row:
    """The one-GPU row of the same setup; with NVFP4 linears the published NVFP4 pipeline time, as there is no other."""
    alone = [r for r in found if r.gpus == 1 and r.model == row.model and r.quantised == row.quantised]
    near = [r for r in alone if (r.source, r.gpu) == (row.source, row.gpu)]
    return ([r for r in near if r.setup == row.setup] or near or [r for r in alone if r.gpu == row.gpu] or alone)[0]


def summary(lines: list[Line]) -> str:
    errors = [abs(line.error) for line in lines]
    return f"{len(lines)} rows: mean error {sum(errors) / len(errors):.1%}, largest {max(errors):.1%}"


def table(lines: Iterable[Line], ranges: bool = False) -> list[str]:
    """The lines in Markdown."""
    text = ["| GPU | model | GPUs | split | published s | predicted s | error |", "|---|---|---|---|---|---|---|"]
    for line in lines:
        row, unit = line.row, 3 if line.row.seconds >= 1 else 2
        shown = f"{line.predicted:.{unit + 1}g}"
        if ranges:
            low, high = (line.predicted * (1 + sign * line.share) for sign in (-1, 1))
            shown = f"{low:.3g} to {high:.3g}"
        split = "one GPU" if row.config == "cfg1" else row.config.removeprefix("cfg1 ")
        text.append(
            f"| {row.gpu} | {row.model} | {row.gpus} | {split}{remark(row)} | {row.seconds:.4g} | {shown} "
            f"| {line.error:+.1%} |"
        )
    return text


def remark(row: Row) -> str:
    words = [w for w in ("NVFP4", "async_ulysses on", "DERIVED") if w in row.notes]
    if row.metric == "e2e" and row.model == "cosmos3-super":
        words.append("end to end")
    if row.size and row.model == "hunyuanvideo":
        words.append(row.size)
    return f" ({', '.join(words).lower()})" if words else ""


def memory_table(found: list[Row]) -> list[str]:
    """Published peaks beside the prediction; hybridgen neither offloads nor shards weights as these runs do."""
    text = ["| GPU | model | GPUs | split | published GB | predicted GB |", "|---|---|---|---|---|---|"]
    for row in found:
        if row.peak_gb is None or not row.priced:
            continue
        plan = row.plan()
        predicted = memory.peak(plan) / 1e9
        text.append(f"| {row.gpu} | {row.model} | {row.gpus} | {row.config} | {row.peak_gb} | {predicted:.1f} |")
    return text


def page(found: list[Row]) -> str:
    """docs/planner-accuracy.md."""
    others = gb200_lines(found)
    nvlink, pcie = anchored_lines(found, pcie=False), anchored_lines(found, pcie=True)
    vae, unseen = vae_lines(found), unseen_lines(found)
    once, rack, *_ = text_again(found)
    tables = {
        "others": table(others),
        "vae": table(vae),
        "unseen": table(unseen),
        "nvlink": table(nvlink),
        "pcie": table(pcie, ranges=True),
        "exchange": table(exchange_lines(found)),
        "memory": memory_table(found),
    }
    summaries = {"others": others, "vae": vae, "unseen": unseen, "nvlink": nvlink, "pcie": pcie}
    return PAGE.read_text(encoding="utf-8").format(
        once=once,
        rack=rack,
        **{name: "\n".join(lines) for name, lines in tables.items()},
        **{f"{name}_summary": summary(lines) for name, lines in summaries.items()},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    text = page(rows())
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
