"""The pages of hybridgen plan: the table of plans, the widths of --scaling, and what --rejected shows."""

from __future__ import annotations

from collections.abc import Sequence

from hybridgen.cli.plan import fleet
from hybridgen.cli.text import fitting, gigabytes, paragraph, seconds, short, span
from hybridgen.errors import counted
from hybridgen.plan.plan import SHORT_DTYPES
from hybridgen.planner.choose.ask import Recommendation, Rejected
from hybridgen.planner.choose.objective import Objective
from hybridgen.planner.choose.orders import domains, used_axes
from hybridgen.planner.choose.ranking import Candidate
from hybridgen.planner.choose.reasons import used
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.hardware.hosts import borders
from hybridgen.planner.price import ranges
from hybridgen.planner.price.cost import cost
from hybridgen.recipe.results import results


def head(found: Recommendation, frames: int, assumed: bool) -> list[str]:
    """The head of the page: the clip, the machine, and the time of one GPU."""
    plan, hardware = found.best.plan, found.ask.hardware
    is_fleet = found.ask.aim.objective is not Objective.latency
    gpus = found.gpus if is_fleet else found.ask.gpus
    clip, name = plan.clip, plan.facts.name
    guided = "guidance on" if plan.branches == 2 else "no guidance"
    made = f"{clip.width}x{clip.height}, {counted(frames, 'frame')}, {counted(clip.steps, 'step')}"
    what = f"{made}, {guided}, {SHORT_DTYPES[plan.dtype]}"
    place = "" if gpus == 1 else f", {hardware.inside.name}"
    if hardware.near is not None and gpus > 1:
        place += f" between {hardware.near.name}s of {hardware.near.size}"
    if len(sizes := borders(gpus, hardware).sizes(gpus)) > 1:
        place += f" in {len(sizes)} {domains(hardware)}s of {_sizes(sizes)}, {hardware.outside.name} between them"
    note = f", {gigabytes(found.ask.memory)} GB of each" if found.ask.memory else ""
    note += " (no --hardware given)" if assumed else ""
    anchor = found.ask.anchor
    source = "predicted" if anchor is None else "given by --anchor"
    source += f" of {anchor.gpus} GPUs as {anchor.plan.degrees}" if anchor is not None and anchor.gpus > 1 else ""
    fitting_count = len(found.candidates)
    kind = "exact " if all(c.plan.exact for c in found.candidates) else ""
    fits = f"{fitting_count} {kind}plans fit" if fitting_count > 1 else f"1 {kind}plan fits"
    if is_fleet:
        fits = f"the best {kind}plan of {counted(fitting_count, 'width')}"
    if found.rejected:
        fits += f", {len({one.plan for one in found.rejected})} legal ones do not (--rejected)"
    indent, settings = len(name) + 2, "; ".join(plan.settings.described)
    read_as = []
    if frames != clip.frames:
        made = f"{plan.latent_shape[1]} latent frames, as published figures count them; run makes {clip.frames} of it"
        read_as = paragraph("", f"{frames} frames are read as {made}", indent)
    return [
        *paragraph(name, f"{what}, {plan.facts.transformer.heads} heads", indent),
        *read_as,
        *(paragraph("with", settings, indent) if settings else []),
        *paragraph("on", f"{gpus} x {hardware.title}{place}{note}", indent),
        *(paragraph("", _mixed(hardware), indent) if hardware.cards else []),
        *paragraph("", f"one GPU: {seconds(found.one_gpu)} s denoise ({source}); {fits}", indent),
    ]


def _mixed(hardware: Hardware) -> str:
    """How several kinds of cards are counted."""
    cards, limit = " and ".join(hardware.cards), hardware.memory.value
    return f"{cards}: every rate is that of the slowest, and every memory {gigabytes(limit)} GB, that of the smallest"


def _sizes(sizes: Sequence[int]) -> str:
    """Sizes in words: "8" where all are equal, "8, 8 and 4", "up to 8" where there are many."""
    if len({*sizes}) == 1:
        return str(sizes[0])
    return f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]}" if len(sizes) <= 4 else f"up to {max(sizes)}"


def plans(found: Recommendation, shown: Sequence[Candidate]) -> list[str]:
    """The table of plans. Where it is too wide, columns of words are dropped before numbers."""
    numbers = ("denoise s", "clip s", "speed-up", "eff", "comm", "GB/GPU")
    made = fleet.columns(found, shown)
    titles = ["#", "plan", *made, *numbers, "", "why not first", "mesh order"]
    rows = []
    for number, c in enumerate(shown, start=1):
        marks = ["recommended"] if number == 1 else ["tie"] if c.tie else []
        marks += [] if c.plan.exact_split else ["approximate"]
        marks += ["tight"] if c.tight else []
        rows.append(
            [
                str(number), c.config, *(cells[number - 1] for cells in made.values()),
                span(*c.cost.range), seconds(c.cost.clip), f"{c.speedup:.1f}x",
                f"{c.efficiency:.0%}", f"{c.cost.communication:.0%}", used(c), ", ".join(marks),
                c.why[0] if c.why and number > 1 else "", " ".join(used_axes(c.plan)) or "-",
            ]
        )  # fmt: skip
    across = not borders(found.ask.gpus, found.ask.hardware).is_one_domain(found.ask.gpus)
    drop = ("why not first", "mesh order") if across else ("mesh order", "why not first")
    more = ("denoise s", "GPU s/clip", "GB/GPU", "clips/h", "money/clip") if made else ()
    return fitting(titles, rows, (*drop, "speed-up", "comm", "eff", *more), (*made, *numbers))


def reasons(found: Recommendation) -> list[str]:
    """The lines that say why the first plan is recommended."""
    lines = []
    for number, why in enumerate(found.best.why):
        lines += paragraph("why 1" if number == 0 else "", why)
    hardware = found.ask.hardware
    if found.best.cost.error > 0.15:
        words = f"the predicted time plus or minus {ranges.in_words(found.best.plan, hardware)}. "
        words += "The ranking is more certain than the times."
        if found.ask.anchor is None:
            words += " Give --anchor SECONDS, a measured denoise time of one GPU."
        lines += paragraph("range", words)
    return lines


def known_lines(found: Recommendation) -> list[str]:
    """Lines of published times of the same request on this machine, each with the prediction for its split."""
    ask = found.ask
    lines = []
    for one in results(found.best.plan, ask.gpus, ask.hardware.name):
        took = f"{one.plan.degrees} took {one.measured.denoise_s:g} s ({one.measured.status}"
        took += f", {one.measured.engine})" if one.measured.engine else ")"
        predicted = cost(one.plan, ask.hardware).denoise
        lines += paragraph(
            "known", f"{took}, predicted {predicted:.{2 if predicted < 10 else 1}f} s; recipe {one.recipe}"
        )
    return lines


def fewer_line(found: Recommendation, part: Recommendation) -> list[str]:
    """The line that compares a part of the GPUs with all of them."""
    gpus, width, best = found.ask.gpus, part.ask.gpus, part.best
    copies = gpus // width
    text = f"{counted(width, 'GPU')}: {span(*best.cost.range)} s denoise at {best.efficiency:.0%} efficiency"
    if copies == 1:
        return paragraph("fewer?", f"{text}; {counted(gpus - width, 'GPU')} would be left")
    ratio = copies * found.best.cost.clip / best.cost.clip
    more = f"make {ratio:.1f} times as many clips an hour as" if ratio >= 1.05 else "make no more clips an hour than"
    return paragraph("fewer?", f"{text}; {copies} such groups {more} one of {gpus}")


def faster_line(found: Recommendation, part: Recommendation) -> list[str]:
    """The line that says that fewer GPUs are faster, because their number can be split better."""
    best = part.best
    text = f"{part.ask.gpus} GPUs are faster than {found.ask.gpus}, whose number splits badly: {best.config}, "
    return paragraph("fewer!", f"{text}{span(*best.cost.range)} s denoise; --fewer takes what is worth taking")


def alone_line(found: Recommendation, part: Recommendation) -> list[str]:
    """The line that says that one kind of cards alone is faster than all kinds together."""
    gpus, hardware, best = part.ask.gpus, part.ask.hardware, part.best
    text = f"{gpus} x {hardware.title} alone are faster than all {found.ask.gpus}: {best.config}, "
    return paragraph("fewer!", f"{text}{span(*best.cost.range)} s denoise; --hardware {hardware.name}")


def rest_line(found: Recommendation) -> list[str]:
    """The line on the GPUs that --fewer leaves free."""
    gpus, width = found.gpus, found.ask.gpus
    more, left = divmod(gpus - width, width)
    free = f"the other {gpus - width} make {more} more clip{'s' * (more > 1)} at the same time" if more else ""
    if left:
        free += f"{', and ' if more else ''}{counted(left, 'GPU')} {'is' if left == 1 else 'are'} free"
    return paragraph("fewer", f"{gpus} GPUs would be no faster than {width}, within the model's error; {free}")


def scaling(found: Sequence[Recommendation]) -> list[str]:
    """The table of the best plan at every width."""
    numbers = ("GPUs", "denoise s", "clip s", "speed-up", "eff", "comm", "GB/GPU", "clips/h")
    titles = ["GPUs", "plan", *numbers[1:]]
    rows = []
    for one in found:
        c = one.best
        rows.append(
            [
                str(one.ask.gpus), c.config, span(*c.cost.range), seconds(c.cost.clip), f"{c.speedup:.1f}x",
                f"{c.efficiency:.0%}", f"{c.cost.communication:.0%}", used(c),
                short(3600 / c.cost.clip),
            ]
        )  # fmt: skip
    return fitting(titles, rows, ("clips/h", "comm", "speed-up"), numbers)


def rejected(found: Sequence[Rejected]) -> list[str]:
    """The table of rejected plans, each with its rule and the nearest plan."""
    if not found:
        return ["nothing near the request is illegal or does not fit"]
    rows = [[str(r.plan.degrees), r.error.rule, r.nearest] for r in found]
    lines = fitting(["rejected", "rule", "nearest"], rows, ["nearest"])
    messages = [message for r in found for message in paragraph("", f"{r.plan.degrees}: {r.error.message}", 2)]
    return [*lines, "", *messages, "", "hybridgen explain RULE gives a rule's reason"]
