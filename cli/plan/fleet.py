"""What copies of a plan make and cost: columns of the table, and the lines below it."""

from __future__ import annotations

from collections.abc import Sequence

from hybridgen.cli.text import command, paragraph, seconds, short
from hybridgen.errors import counted
from hybridgen.planner.choose.ask import Recommendation
from hybridgen.planner.choose.objective import Objective, Output
from hybridgen.planner.choose.ranking import Candidate
from hybridgen.planner.hardware.hosts import Hosts, hosts_of


def columns(found: Recommendation, shown: Sequence[Candidate]) -> dict[str, list[str]]:
    """Columns by title, where an objective, a price or a number of clips is given; none otherwise."""
    aim = found.ask.aim
    if not aim.is_asked:
        return {}
    made = [aim.output(candidate) for candidate in shown]
    cells = {
        "copies": [f"{one.copies} x {one.plan.world_size}" for one in shown],
        "clips/h": [short(one.per_hour) for one in made],
        "GPU s/clip": [seconds(one.gpu_seconds) for one in made],
    }
    if aim.price is not None:
        cells["money/clip"] = [money(one.money) for one in made]
    if aim.clips is not None:
        cells[counted(aim.clips, "clip")] = [duration(one.seconds or 0.0) for one in made]
    return cells


def lines(found: Recommendation) -> list[str]:
    """What the first plan makes: in how many copies, how many clips, for how much money."""
    aim, best = found.ask.aim, found.best
    if not aim.is_asked:
        return []
    made, width = aim.output(best), best.plan.world_size
    words = f"{copies_words(best.copies, width)}: {short(made.per_hour)} clips an hour, "
    words += f"{seconds(made.gpu_seconds)} GPU-seconds a clip"
    words += "" if made.money is None else f", {money(made.money)} a clip"
    left = found.gpus - best.copies * width
    words += f"; {counted(left, 'GPU')} without work" if left else ""
    return [*paragraph("makes", words), *_of_all(found, made)]


def _of_all(found: Recommendation, made: Output) -> list[str]:
    """How long all clips take, turn by turn, and what they cost."""
    clips, copies = found.ask.aim.clips, found.best.copies
    if clips is None or made.seconds is None:
        return []
    turns, last = -(-clips // copies), clips % copies or copies
    words = f"{counted(clips, 'clip')}, "
    words += "one after the other" if copies == 1 else f"{copies} at a time in {counted(turns, 'turn')}"
    words += f", the last of {last}" if last != copies else ""
    words += f": {duration(made.seconds)}"
    return paragraph("", words + ("" if made.total is None else f", {money(made.total)} in all"))


def together(found: Recommendation) -> Hosts | None:
    """The hosts on which one command starts all copies: one, or full ones; None where copies do not lie so."""
    copies, width, hardware = found.best.copies, found.best.plan.world_size, found.ask.hardware
    ranks, each = copies * width, hardware.hosts[0] if hardware.hosts else hardware.per_node
    if copies == 1 or found.ask.aim.objective is Objective.latency:
        return None
    if ranks <= each:
        return Hosts((ranks,))
    if hardware.hosts or ranks % each or (each % width and width % each):
        return None
    return Hosts((each,) * (ranks // each))


def replicas(found: Recommendation) -> list[str]:
    """Flags of the command that starts all copies, where one does, and makes the clips that were asked for."""
    copies, clips = found.best.copies, found.ask.aim.clips
    if together(found) is not None:
        return ["--replicas", str(copies), "--count", str(clips or copies)]
    return ["--count", str(clips)] if copies == 1 and clips is not None and clips > 1 else []


def start_lines(found: Recommendation) -> list[str]:
    """How the command is started on several hosts, and for several copies, where no command starts all."""
    copies, width, hosts = found.best.copies, found.best.plan.world_size, together(found)
    lines = _on_hosts(hosts or hosts_of(found.ask.gpus, found.ask.hardware))
    if hosts is not None:
        return [*lines, *paragraph("", "with --prompts FILE instead of -p and --count for a list of prompts")]
    if copies == 1 or found.ask.aim.objective is Objective.latency:
        return lines
    first, second = (",".join(map(str, range(start, start + width))) for start in (0, width))
    alone = f"CUDA_VISIBLE_DEVICES={first}, then {second}" if 2 * width <= found.ask.hardware.per_node else ""
    each = f" ({alone} and so on)" if alone else ""
    words = f"once for each of the {copies} copies, on GPUs of its own{each}"
    words += f"; for a list of clips with --prompts FILE --shard 1/{copies}, 2/{copies} and so on"
    return [*lines, *paragraph("", f"{words}, because {width} GPUs neither fill hosts nor share one evenly")]


def _on_hosts(hosts: Hosts) -> list[str]:
    """The line that says how to start the command on several hosts."""
    return command("", f"on each host as {hosts.torchrun}, or under srun") if hosts.number > 1 else []


def copies_words(copies: int, width: int) -> str:
    """Copies of a plan in words: "8 copies of 2 GPUs each"."""
    if copies == 1:
        return f"one copy on {counted(width, 'GPU')}"
    return f"{copies} copies of {counted(width, 'GPU')} each"


def money(amount: float | None) -> str:
    """An amount in the currency of --price, with three digits or the whole units."""
    value = amount or 0.0
    return f"{value:,.2f}" if value >= 1 else short(value)


def duration(value: float) -> str:
    """Seconds in the unit that people read: "54.3 s", "3.2 h"."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if value >= 2 * size:
            return f"{value / size:.3g} {unit}"
    return f"{seconds(value)} s"
