"""hybridgen plan: degrees, mesh order, predicted time and memory, and reasons."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from hybridgen.cli import text
from hybridgen.cli.options import given_words, with_flags
from hybridgen.cli.plan import fleet, table
from hybridgen.cli.plan.flags import ONCE, PlanFlags
from hybridgen.cli.verb import Verb
from hybridgen.errors import RequestError, counted
from hybridgen.models import catalogue
from hybridgen.planner.choose import recommend, report
from hybridgen.planner.choose.ask import Recommendation
from hybridgen.planner.choose.objective import Objective
from hybridgen.planner.choose.ranking import Candidate, kinds
from hybridgen.recipe.compose import compose
from hybridgen.recipe.fields import Recipe
from hybridgen.recipe.flags import words_of
from hybridgen.recipe.resolve import in_given_words
from hybridgen.recipe.text import dumps, portable, save

EXAMPLES = (
    "hybridgen plan --gpus 72 --heads 40\n\n"
    "hybridgen plan --gpus 8 --hardware rtx4090 --model wan2.1-1.3b --fewer\n\n"
    "hybridgen plan --gpus 16 --hardware h200 --nodes 2 --explain 1"
)
app = typer.Typer()
ASKED = ("", "request", "parallel", "runtime")
"""Sections of a recipe with flags of plan."""
TOP = 6
"""Kinds of plan in the table unless --top says otherwise."""


@app.command("plan", cls=Verb, epilog=EXAMPLES)
@with_flags(PlanFlags, ASKED, ("device",))
def plan(own: PlanFlags, given: dict[str, Any]) -> None:
    """Recommend how to spread a clip over GPUs: degrees, mesh order, predicted time and memory, and why.

    Times are predicted from rates of the machine and the messages that every strategy declares; nothing runs.
    """
    recipe = compose(None, [], given)
    found = recommendation(recipe, own)
    page = Page(found, recipe, own)
    if own.save is not None:
        page.save(own.save)
    if own.plot is not None:
        from hybridgen.cli.plan.plot import draw

        draw(own.plot, found, page.shown, page.frames)
    if own.json:
        text.answer(json.dumps(page.as_data(), indent=2))
    elif own.quiet:
        text.answer(page.chosen.config)
    else:
        text.answer(*page.lines(), *(f"wrote    {path}" for path in (own.save, own.plot) if path))


def recommendation(recipe: Recipe, own: PlanFlags) -> Recommendation:
    """The planner's recommendation; a warning goes to stderr. Raises RequestError."""
    with in_given_words(recipe.parallel):
        found = recommend.plan_for(recipe, own)
    text.say(*found.ask.doubts)
    return found


@dataclass
class Page:
    """The page of a recommendation, and the flags that its commands repeat."""

    found: Recommendation
    recipe: Recipe
    own: PlanFlags

    def __post_init__(self) -> None:
        """Raises RequestError (top, explain)."""
        top, number, every = self.own.top, self.own.explain, list(self.found.candidates)
        if top is not None and top < 1:
            raise RequestError("top", "top", top, "must be 1 or more", [1])
        self.is_fleet = self.found.ask.aim.objective is not Objective.latency
        best = every[: top or TOP] if self.is_fleet else kinds(every, top or TOP)
        self.shown = every if self.own.everything else best
        self.listed = every if top is None else self.shown
        if number is not None and not 1 <= number <= len(self.shown):
            near = min(max(number, 1), len(self.shown))
            raise RequestError(
                "explain", "explain", number, f"the table has {counted(len(self.shown), 'plan')}", [near]
            )
        self.chosen: Candidate = self.found.best if number is None else self.shown[number - 1]

    @property
    def frames(self) -> int:
        """Number of frames as asked for."""
        return self.recipe.request.frames or self.found.best.plan.clip.frames

    @property
    def unloadable(self) -> str:
        """The reason why no recipe can name the model; empty where one can."""
        facts = self.found.best.plan.facts
        if self.own.model_facts is not None:
            return f"{facts.name} is known from {self.own.model_facts} only"
        model = catalogue.find(self.recipe.model)
        if facts.transformer.heads != model.transformer.heads:
            return f"--heads {self.own.heads} is for planning, {model.name} has {model.transformer.heads}"
        return ""

    @property
    def unrunnable(self) -> str:
        """The reason why hybridgen run cannot run the plans; empty where it can."""
        unable = self.found.best.plan.settings.unable
        words = ", ".join(f"--{name} {value}".rstrip() for name, value in unable.items())
        return self.unloadable or (f"it cannot do {words} yet" if words else "")

    def save(self, path: Path) -> None:
        """Write the chosen plan's recipe. Raises RequestError (save, output-exists, output-folder)."""
        if why := self.unloadable:
            raise RequestError("save", "save", path, f"no recipe can run this plan: {why}", tries=[{"save": None}])
        from hybridgen.recipe.check import check

        save(portable(self.as_recipe(self.chosen), Path.cwd()), path, "save")
        private = [fault for fault in check(path) if fault.rule == "recipe-private"]
        text.say(*(f"warning: {fault.message}; it runs here, and is not to be shared" for fault in private))

    def as_recipe(self, candidate: Candidate) -> Recipe:
        plan = candidate.plan
        model, ask = self.recipe.model or plan.facts.name, self.found.ask
        return report.recipe_of(self.recipe, plan, model, ask.hardware.name, ask.memory)

    def as_data(self) -> dict[str, Any]:
        """The page as plain data, for --json."""
        from hybridgen.planner.choose.no_plan import all_rejected

        data = report.as_data(self.found, self.listed, all_rejected(self.found), self.frames)
        if self.own.scaling:
            data["scaling"] = [report.candidate_data(one.best) for one in recommend.scaling(self.found.asked)]
        return data

    def lines(self) -> list[str]:
        """The lines of the page that was asked for."""
        head = [*table.head(self.found, self.frames, self.own.hardware is None), ""]
        if self.own.scaling:
            return [*head, *table.scaling(recommend.scaling(self.found.asked))]
        if self.own.rejected:
            from hybridgen.planner.choose.no_plan import all_rejected

            return [*head, *table.rejected(all_rejected(self.found))]
        if self.own.explain is not None:
            from hybridgen.cli.plan import explain

            return [*head, *explain.page(self.found, self.chosen, self.own.explain)]
        return [*head, *table.plans(self.found, self.shown), "", *self._below()]

    def _below(self) -> list[str]:
        """The lines below the table: reasons, what fewer GPUs would do, and commands."""
        found = self.found
        lines = [*table.reasons(found), *fleet.lines(found), *table.known_lines(found)]
        if self.is_fleet:
            return [*lines, *self._commands()]
        if found.gpus != found.ask.gpus:
            lines += table.rest_line(found)
        elif (alone := recommend.faster_alone(found)) is not None:
            lines += table.alone_line(found, alone)
        elif (faster := recommend.faster_with_fewer(found)) is not None:
            lines += table.faster_line(found, faster)
        elif (part := recommend.with_a_quarter(found)) is not None:
            lines += table.fewer_line(found, part)
        return [*lines, *self._commands()]

    def _commands(self) -> list[str]:
        again = shlex.join(self._again())
        lines = text.paragraph("run", f"nothing: {self.unrunnable}")
        if not self.unrunnable:
            lines = [*text.command("run", shlex.join(self._run())), *fleet.start_lines(self.found)]
        if not self.unloadable:
            lines += text.command("recipe", f"{again} --save FILE.yaml writes:")
            lines += [f"  {line}" for line in dumps(self.as_recipe(self.found.best)).splitlines()]
        return [*lines, *text.command("more", f"{again} --explain 1 (or --rejected, --scaling, --json)")]

    def _run(self) -> list[str]:
        """The command that runs the first plan."""
        best = self.found.best.plan
        given = given_words(self.recipe, ("", "request", "runtime"), prompt=None, frames=best.clip.frames)
        inputs = report.input_flags(best, self.recipe.request)
        return ["hybridgen", "run", *given, *report.run_flags(best), *inputs, *fleet.replicas(self.found)]

    def _again(self) -> list[str]:
        """The command that shows this page again."""
        given = given_words(self.recipe, ASKED, prompt=None)
        return ["hybridgen", "plan", "--gpus", str(self.found.gpus), *given, *words_of(self.own, ONCE)]
