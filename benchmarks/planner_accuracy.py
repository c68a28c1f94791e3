"""Predicted against published latencies and peaks: the table in docs/planner-accuracy.md. No GPU, a second.

python -m benchmarks.planner_accuracy --out docs/planner-accuracy.md       (in the root of the repository)
python -m benchmarks.planner_accuracy --calibrate                          (the fitted constants, from their rows)
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.published import DATA, MACHINES, MODELS, Row, rows
from hybridgen.planner.hardware.constants import Constant, Hardware
from hybridgen.planner.hardware.lookup import find
from hybridgen.planner.hardware.topology import Span, exchange_seconds
from hybridgen.planner.price import compute, cost, memory
from hybridgen.planner.price import vae as vae_price

CALIBRATION = (("cfg1", 342.04), ("cfg2", 179.96), ("cfg2 ul4 a2d3x3 vae8", 7.04), ("cfg2 ul4 ring9", 12.88))
"""Rows of GB200 that constants are fitted to; the last one for the hop of a ring."""
PCIE = ("4090", "L40")
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
    machine = find(MACHINES[reference.gpu])
    return solve(reference.seconds, lambda x: predict(reference, machine.slower(x, "")), 0.1, 10)


def gb200_lines(found: list[Row]) -> tuple[list[Line], list[Line]]:
    """Wan in bf16 on GB200, without an anchor: (what was fitted, what was not)."""
    machine = find("gb200-nvl72")
    lines = [Line(r, predict(r, machine)) for r in found if is_gb200(r) and r.metric == "denoise"]
    fitted = [line for line in lines if (line.row.config, line.row.seconds) in CALIBRATION]
    return fitted, [line for line in lines if line not in fitted]


def is_gb200(row: Row) -> bool:
    return row.gpu == "GB200" and row.model == "wan2.2-a14b"


def unseen_lines(found: list[Row]) -> list[Line]:
    """Cosmos3-Super, denoising and end to end, without an anchor: no constant was fitted to any of its rows."""
    own = [r for r in found if r.model == "cosmos3-super"]
    every = [r for row in own for r in (row, row.end_to_end) if r is not None]
    return [Line(r, predict(r, find(MACHINES[r.gpu]))) for r in every]


def text_again(found: list[Row]) -> tuple[float, ...]:
    """Seconds that the text of Cosmos3 would add if it ran in every step and not once: on one GPU, on 72."""
    plans = [(r.plan(), find(MACHINES[r.gpu])) for r in found if r.model == "cosmos3-super"]
    return tuple((p.clip.steps - 1) * compute.text_seconds(p, machine) for p, machine in plans)


def vae_lines(found: list[Row]) -> list[Line]:
    machine = find("gb200-nvl72")
    vaes = [r for r in found if r.metric == "vae decode only"]
    plans = [replace(r, config=f"cfg2 ul4 a2d3x3 {r.config}").plan() for r in vaes]
    return [Line(r, vae_price.decode_seconds(p, machine)) for r, p in zip(vaes, plans, strict=True)]


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
        skipped = is_gb200(row) or row.gpus == 1 or row.model not in MODELS or row.config == "unspecified"
        if skipped or (row.gpu in PCIE) != pcie:
            continue
        machine = find(MACHINES[row.gpu])
        reference = reference_of(row, found)
        machine = machine.slower(anchored(reference), f"anchored to {reference.seconds} s")
        lines.append(Line(row, predict(row, machine), machine.error.value))
    return lines


def reference_of(row: Row, found: list[Row]) -> Row:
    """The one-GPU row of the same setup; with NVFP4 linears the published NVFP4 pipeline time, as there is no other."""
    quantised = "NVFP4" in row.notes
    alone = [r for r in found if r.gpus == 1 and r.model == row.model and ("NVFP4" in r.notes) == quantised]
    same = [r for r in alone if r.setup == row.setup and r.metric == row.metric]
    return (same or alone)[0]


def calibrate(found: list[Row]) -> dict[str, float]:
    """The fitted constants of GB200, each from its row, in the order in which they depend on each other.

    The latency of a collective is not among them: the all-to-all table allows anything from 0 to 85 us.
    """
    machine = find("gb200-nvl72")
    by = {(r.config, r.seconds): r for r in found if r.gpu == "GB200"}
    one, two, rack, ring = (by[key] for key in CALIBRATION)
    split = {"attention": 0.717, "matmul": 0.208, "other": 0.075}  # of 81 frames on one B200
    items = {i.name: i.seconds for i in cost.cost(replace(one, frames="81").plan(), machine).items}
    published = sum(items.values())
    constants = {
        "attention": machine.attention.value * items["attention"] / (split["attention"] * published),
        "matmul": machine.matmul.value * items["matrix products"] / (split["matmul"] * published),
    }

    def fit(name: str, row: Row, low: float, high: float, falls: bool = False) -> None:
        def predicted(x: float) -> float:
            return predict(row, with_constant(machine, name, 1 / x if falls else x))

        found = solve(row.seconds, predicted, *((1 / high, 1 / low) if falls else (low, high)))
        constants[name] = 1 / found if falls else found

    fit("slowdown", two, 1e-3, 0.5)
    fit("inside.bandwidth", rack, 1e10, 1e12, falls=True)
    fit("ring", ring, 1e-5, 1e-2)
    return constants


def with_constant(machine: Hardware, name: str, value: float) -> Hardware:
    link, dot, field = name.rpartition(".")
    constant = Constant(value, "")
    if dot:
        return replace(machine, **{link: replace(getattr(machine, link), **{field: constant})})
    return replace(machine, **{name: constant})  # type: ignore[arg-type]


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
        if row.peak_gb is None or row.config == "unspecified":
            continue
        plan = row.plan()
        predicted = memory.peak(plan) / 1e9
        text.append(f"| {row.gpu} | {row.model} | {row.gpus} | {row.config} | {row.peak_gb} | {predicted:.1f} |")
    return text


def page(found: list[Row]) -> str:
    """docs/planner-accuracy.md."""
    fitted, others = gb200_lines(found)
    nvlink, pcie = anchored_lines(found, pcie=False), anchored_lines(found, pcie=True)
    vae, unseen = vae_lines(found), unseen_lines(found)
    once, rack = text_again(found)
    tables = {
        "fitted": table(fitted),
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
    parser.add_argument("--calibrate", action="store_true")
    arguments = parser.parse_args()
    if arguments.calibrate:
        for name, value in calibrate(rows()).items():
            print(f"{name:18} {value:.4g}")
        return
    text = page(rows())
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
