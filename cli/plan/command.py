"""hybridgen plan: which degrees, in what order, how fast, how much memory, and why."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hybridgen.cli import text
from hybridgen.cli.options import with_recipe_flags
from hybridgen.cli.plan import explain as plan_explain
from hybridgen.cli.plan import options as flag
from hybridgen.cli.plan import table as plan_table
from hybridgen.distributed.files import free_name
from hybridgen.errors import Change, RequestError
from hybridgen.models import catalogue
from hybridgen.plan.degrees import Degrees
from hybridgen.plan.facts import ModelFacts
from hybridgen.planner.choose import no_plan, recommend, report
from hybridgen.planner.choose.ask import Recommendation, ask_for, rounder
from hybridgen.planner.choose.ranking import Candidate, kinds, tie_share
from hybridgen.planner.choose.search import search
from hybridgen.planner.hardware.hosts import spread
from hybridgen.planner.hardware.lookup import find
from hybridgen.recipe.fields import Recipe, compose, flag_of, options
from hybridgen.recipe.resolve import (
    MAX_RANKS,
    check_count,
    given_degrees,
    published_frames,
    refuse_pipefusion_options,
    with_heads,
)
from hybridgen.recipe.text import dumps

EXAMPLES = (
    "hybridgen plan --gpus 72 --heads 40\n\n"
    "hybridgen plan --gpus 8 --hardware rtx4090 --model wan2.1-1.3b --fewer\n\n"
    "hybridgen plan --gpus 16 --hardware h200 --nodes 2 --explain 1"
)
DEFAULT_HARDWARE = "gb200-nvl72"
TOP = 6
"""Kinds of plan in the table unless --top says otherwise."""


@with_recipe_flags(("", "request", "parallel"))
def plan(
    gpus: flag.Gpus = None,
    nodes: flag.Nodes = None,
    gpus_per_node: flag.GpusPerNode = None,
    machine: flag.Machine = None,
    heads: flag.Heads = None,
    model_facts: flag.Facts = None,
    dtype: flag.Dtype = None,
    approximate: flag.Approximate = False,
    fewer: flag.Fewer = False,
    anchor: flag.Anchor = None,
    max_time: flag.MaxTime = None,
    memory: flag.Memory = None,
    top: flag.Top = None,
    everything: flag.Everything = False,
    explain: flag.Explain = None,
    rejected: flag.Rejected = False,
    scaling: flag.Scaling = False,
    plot: flag.Plot = None,
    save: flag.Save = None,
    as_json: flag.AsJson = False,
    quiet: flag.Quiet = False,
    **flags: Any,
) -> None:
    """Recommend how to spread a clip over GPUs: degrees, mesh order, predicted time and memory, and why.

    Times are predicted from rates of the machine and the messages that every strategy declares; nothing runs.
    """
    recipe = compose(None, [], {**flags, "dtype": dtype})
    facts = facts_of(recipe, model_facts, heads)
    count, per_node = counts(gpus, nodes, gpus_per_node, given_degrees(recipe.parallel))
    computer = find(machine or DEFAULT_HARDWARE).joined(per_node)
    if not approximate and recipe.parallel.pipefusion in (None, 1):
        refuse_pipefusion_options(recipe.parallel)
    ask = ask_for(published_frames(recipe, facts), count, computer, facts)
    if anchor is not None:
        ask = replace(ask, hardware=recommend.anchored(computer, ask.template, anchor))
        text.say(*recommend.doubts(computer, ask.template, anchor))
    ask = replace(
        ask,
        approximate=approximate,
        memory=None if memory is None else text.quantity("--memory", memory, text.BYTES, "40GB"),
        max_time=None if max_time is None else text.quantity("--max-time", max_time, text.SECONDS, "90s"),
    )
    try:
        found = recommend.fewer(ask) if fewer else recommend.recommend(ask)
    except RequestError as error:
        raise with_counts(error, count, gpus, nodes) from error
    repeated = {
        **{"nodes": nodes, "gpus-per-node": gpus_per_node, "hardware": machine, "heads": heads, "dtype": dtype},
        **{"model-facts": model_facts, "anchor": anchor, "memory": memory, "max-time": max_time, "top": top},
        **{"approximate": approximate, "fewer": fewer, "all": everything},
    }
    page = Page(found, count, recipe, facts, top, everything, repeated)
    chosen = page.chosen(explain)
    if save is not None:
        page.save(save, chosen)
    if plot is not None:
        from hybridgen.cli.plan.plot import draw

        draw(plot, found, recommend.scaling(replace(ask, gpus=found.ask.gpus)), page.shown, page.frames)
    if as_json:
        data = report.as_data(found, page.listed, no_plan.all_rejected(found), page.frames)
        if scaling:
            data["scaling"] = [report.candidate_data(one.best) for one in recommend.scaling(ask)]
        text.answer(json.dumps(data, indent=2))
    elif quiet:
        text.answer(chosen.config)
    else:
        lines = page.table() if not (scaling or rejected or explain is not None) else [*page.head, ""]
        if scaling:
            lines += plan_table.scaling(recommend.scaling(ask))
        elif rejected:
            lines += plan_table.rejected(no_plan.all_rejected(found))
        elif explain is not None:
            lines += plan_explain.page(found, chosen, explain)
        text.answer(*lines, *(f"wrote    {path}" for path in (save, plot) if path))


def facts_of(recipe: Recipe, own: Path | None, heads: int | None) -> ModelFacts:
    """The model's facts, with other heads if asked for. Raises RequestError."""
    if own is not None and recipe.model is not None:
        raise RequestError.told(
            "model-facts", f"--model {recipe.model} and --model-facts {own} name two models; give one"
        )
    if own is not None:
        from hybridgen.planner.facts_file import read

        facts = read(own)
    else:
        facts = catalogue.find(recipe.model or catalogue.DEFAULT_MODEL)
    return facts if heads is None or heads == facts.transformer.heads else with_heads(facts, heads)


def counts(
    gpus: int | None, nodes: int | None, per_node: int | None, given: dict[str, int | tuple[int, int]]
) -> tuple[int, int | None]:
    """Numbers of GPUs, in all and of a host: as given, by hosts, or the product of the degrees. Raises RequestError."""
    for name, value in (("gpus", gpus), ("nodes", nodes), ("gpus-per-node", per_node)):
        if value is not None:
            check_count(name, value)
    if gpus is None and nodes is not None and per_node is not None:
        gpus = nodes * per_node
    if gpus is None and any(name != "vae" for name in given):
        gpus = Degrees(**given).world  # type: ignore[arg-type]
    if gpus is None:
        some = str(8 * (nodes or 1))
        message = f"--gpus is missing: how many GPUs are there? nearest: --gpus {some}"
        raise RequestError.told("gpus", message, tries=[{"gpus": some}])
    if gpus > MAX_RANKS:
        raise RequestError.told("gpus", f"{gpus} GPUs are more than {MAX_RANKS}; nearest: {MAX_RANKS}")
    if nodes is not None:
        near = nodes * (per_node or max(round(gpus / nodes), 1))
        if gpus != near:
            hosts = f"--nodes {nodes}" + (f" x --gpus-per-node {per_node}" if per_node else "")
            message = f"--gpus {gpus} cannot be spread over {hosts}; nearest: {near}"
            raise RequestError.told("gpus", message, tries=[{"gpus": str(near)}])
        per_node = gpus // nodes
    elif per_node is not None and gpus > per_node:
        share = spread(gpus, per_node)
        if share.even and share.each < per_node:
            message = f"--gpus-per-node {per_node} does not divide {gpus} GPUs; nearest: {share.each}"
            raise RequestError.told("gpus", message, tries=[{"gpus-per-node": str(share.each)}])
    return gpus, per_node


def with_counts(error: RequestError, count: int, gpus: int | None, nodes: int | None) -> RequestError:
    """The error with changes that say how many GPUs they are for, where flags left that to degrees or to hosts."""
    tries: list[Change | str] = []
    for change in error.tries:
        if isinstance(change, str) or (gpus is not None and nodes is None):
            tries.append(change)
        elif "gpus" not in change:
            tries.append({**change, **({} if nodes else {"gpus": str(count)})})
        else:
            tries.append({**change, **({"nodes": None, "gpus-per-node": str(count // nodes)} if nodes else {})})
    return RequestError.told(error.rule, error.message, error.why, tries)


@dataclass
class Page:
    """What is shown of a recommendation, and what of the request is repeated in commands."""

    found: Recommendation
    gpus: int
    """As asked; --fewer may have found fewer enough."""
    recipe: Recipe
    facts: ModelFacts
    top: int | None
    everything: bool
    own_flags: dict[str, Any]
    """Flags of plan alone, without dashes, as given."""

    def __post_init__(self) -> None:
        if self.top is not None and self.top < 1:
            raise RequestError.told("top", f"--top {self.top} shows nothing; nearest: 1", tries=[{"top": "1"}])
        best_kinds = kinds(self.found.candidates, self.top or TOP)
        self.shown = list(self.found.candidates) if self.everything else best_kinds
        self.listed = list(self.found.candidates) if self.top is None else self.shown

    @property
    def frames(self) -> int:
        return self.recipe.request.frames or self.found.best.plan.clip.frames

    @property
    def head(self) -> list[str]:
        return plan_table.head(self.found, self.frames, self.own_flags["hardware"] is None)

    def chosen(self, number: int | None) -> Candidate:
        """Plan N of the table. Raises RequestError (explain)."""
        if number is None:
            return self.found.best
        if not 1 <= number <= len(self.shown):
            near = min(max(number, 1), len(self.shown))
            message = f"--explain {number}: the table has {len(self.shown)} plans; nearest: {near}"
            raise RequestError.told("explain", message, tries=[{"explain": str(near)}])
        return self.shown[number - 1]

    @property
    def unrunnable(self) -> str:
        """Why nothing can run the plans; empty where hybridgen run can."""
        own, heads = self.own_flags["model-facts"], self.own_flags["heads"]
        if own is not None:
            return f"{self.facts.name} is known from {own} only"
        model = catalogue.find(self.recipe.model or catalogue.DEFAULT_MODEL)
        if self.facts.transformer.heads != model.transformer.heads:
            return f"--heads {heads} is for planning, {model.name} has {model.transformer.heads}"
        return ""

    def save(self, path: Path, candidate: Candidate) -> None:
        """Write the plan's recipe. Raises RequestError (save, output-exists, output-folder)."""
        if why := self.unrunnable:
            raise RequestError.told(
                "save", f"--save {path}: no recipe can run this plan: {why}", tries=[{"save": None}]
            )
        if path.exists():
            free = free_name(path, path.suffix)
            message = f"--save {path} exists, and nothing is overwritten; nearest: {free}"
            raise RequestError.told("output-exists", message, tries=[{"save": str(free)}])
        try:
            path.write_text(dumps(self.as_recipe(candidate)), encoding="utf-8")
        except OSError as error:
            raise RequestError.told("output-folder", f"--save {path} cannot be written: {error.strerror}") from error

    def as_recipe(self, candidate: Candidate) -> Recipe:
        model = self.recipe.model or self.facts.name
        return report.recipe_of(candidate.plan, model, self.found.ask.hardware.name)

    def table(self) -> list[str]:
        """The page without any other flag."""
        lines = [*self.head, "", *plan_table.plans(self.found, self.shown), ""]
        lines += plan_table.reasons(self.found) + plan_table.known_lines(self.found)
        gpus = self.found.ask.gpus
        if self.gpus != gpus:
            lines += plan_table.rest_line(self.found, self.gpus)
        elif (faster := self._faster()) is not None:
            lines += plan_table.faster_line(self.found, faster)
        elif gpus > 1 and (part := self._part()) is not None:
            lines += plan_table.fewer_line(self.found, part)
        if self.unrunnable:
            lines += text.paragraph("run", f"nothing: {self.unrunnable}")
        else:
            lines += text.command("run", self.command())
            lines += plan_table.hosts_line(self.found)
            lines += text.command("recipe", f"{self.again()} --save FILE.yaml writes:")
            lines += [f"  {line}" for line in dumps(self.as_recipe(self.found.best)).splitlines()]
        return [*lines, *text.command("more", f"{self.again()} --explain 1 (or --rejected, --scaling, --json)")]

    def _faster(self) -> Recommendation | None:
        """The recommendation for a rounder number of fewer GPUs, where that is faster than all of them."""
        ask, limit = self.found.ask, (1 - tie_share(self.found.ask.hardware)) * self.found.best.cost.clip
        smaller = [self._for(gpus) for gpus in rounder(ask.gpus) if gpus < ask.gpus]
        faster = [found for found in smaller if found is not None and found.best.cost.clip < limit]
        return min(faster, key=lambda found: found.best.cost.clip, default=None)

    def _part(self) -> Recommendation | None:
        """The recommendation for about a quarter of the GPUs, at which efficiency is higher."""
        gpus = self.found.ask.gpus
        return self._for(max(2 ** (gpus // 4).bit_length() // 2, 1))

    def _for(self, gpus: int) -> Recommendation | None:
        """The recommendation for another number of GPUs, every degree open; None where there is none."""
        found = search(replace(self.found.ask, gpus=gpus, fixed={}, order=None))
        return found if found.candidates else None

    def command(self) -> str:
        """The command that runs the first plan."""
        best = self.found.best
        words = ["hybridgen", "run", *self._given(("", "request"), best.plan.clip.frames), *report.run_flags(best.plan)]
        return shlex.join([*words, *report.input_flags(best.plan, self.recipe.request)])

    def again(self) -> str:
        """The command that shows this plan again."""
        words = ["hybridgen", "plan", "--gpus", str(self.gpus)]
        words += self._given(("", "request", "parallel"), self.recipe.request.frames)
        for name, value in self.own_flags.items():
            if value is not None and value is not False:
                shown = f"{value:g}" if isinstance(value, float) else str(value)
                words += [f"--{name}"] if value is True else [f"--{name}", shown]
        return shlex.join(words)

    def _given(self, sections: tuple[str, ...], frames: int | None) -> list[str]:
        """Fields of the recipe as they were given; `frames` in the place of those."""
        words = []
        for section, name, item in options():
            value = getattr(getattr(self.recipe, section) if section else self.recipe, name)
            if section in sections and name != "prompt" and value is not None:
                value = frames if name == "frames" else ",".join(value) if isinstance(value, list) else value
                words += [flag_of(item), str(value)]
        return words
