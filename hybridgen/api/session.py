"""Engines: ranks that load a model once and make clip after clip, for Python and for jobs of many clips. No torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from hybridgen.api.spine import Screen, composed, filled
from hybridgen.distributed.progress import Event
from hybridgen.engine import environment
from hybridgen.engine.inputs import Conditioning, open_inputs
from hybridgen.engine.job import Job, Setup
from hybridgen.engine.joined_replicas import JoinedReplicas
from hybridgen.engine.machine import check_machine, check_share, device_of
from hybridgen.engine.options import RunOptions
from hybridgen.engine.outputs import Outputs
from hybridgen.engine.prepare import make_job, with_seed
from hybridgen.engine.remarks import remarks
from hybridgen.engine.replicas import Replicas
from hybridgen.engine.report import Report
from hybridgen.engine.tickets import Ticket
from hybridgen.errors import RequestError
from hybridgen.models import catalogue
from hybridgen.plan.plan import Plan
from hybridgen.recipe.compose import compose
from hybridgen.recipe.fields import Recipe, as_flags, options
from hybridgen.recipe.flags import of_keywords
from hybridgen.recipe.resolve import resolve
from hybridgen.recipe.text import plain

RULES = {
    "engine-setup": "Model, degrees, dtype, device and kernel belong to the ranks of an engine, which hold the model "
    "for all of its clips. A clip may change what is made: prompt, images, size, frames, steps, guidance, seed.",
    "engine-joined": "An engine of Python starts its ranks itself. Under torchrun and srun every rank runs the same "
    "script, and only one may ask for clips.",
}


class Engine:
    """Ranks of this machine that load a model once and make the clips that they are asked for, one after the other.

    with hybridgen.Engine(model="wan2.2", cfg=2, ulysses=4) as engine:
        clip = engine.generate("a lighthouse in a storm", "storm.mp4")
        ticket = engine.submit("the same at dawn", seed=3)
        for event in ticket.events():
            print(event.kind, event.done, event.total, event.left)

    The ranks start with the first clip. A clip may have another size, length, number of steps, guidance or seed than
    the one before; it equals, bit for bit, the clip that generate() makes. What cannot be made is refused alone. If a
    rank fails, the ranks start again, and the clip is made once more. A clip whose ranks fail twice fails alone.
    """

    def __init__(
        self,
        *,
        recipe: str | Path | None = None,
        settings: Iterable[str] = (),
        gpus: int | None = None,
        auto: bool = False,
        hardware: str | Path | None = None,
        replicas: int | None = None,
        fail_fast: bool = False,
        hang_timeout: float | None = None,
        quiet: bool = True,
        on_event: Callable[[Ticket, Event], None] = lambda ticket, event: None,
        start_method: str = "forkserver",
        **fields: Any,
    ) -> None:
        """Check what the ranks will hold. Parameters as for generate(), and:

        replicas: groups of the plan's ranks, each with the whole model, that make clips side by side.
        fail_fast: whether a clip fails with its ranks, and is not made once more.
        on_event: called with the ticket and every event of every clip, in a thread of the engine; with replicas in one
            of several.
        start_method: how the ranks are started, as multiprocessing names it.
        fields: the fields of a recipe. Those of the request are what clips have that say nothing else.

        Raises RequestError (engine-joined under torchrun and srun), TypeError for an unknown field.
        """
        if environment.joined_rank() is not None:
            problem = "an engine in Python is for one machine"
            nearest = "hybridgen.generate(), or hybridgen run with --prompts or --count"
            raise RequestError("engine-joined", "", None, problem, nearest)
        given = {name: value for name, value in locals().items() if name in RunOptions.__dataclass_fields__}
        own = of_keywords("Engine", RunOptions, given)
        self._begin(own, as_flags("Engine", fields), Screen(), on_event, start_method)

    @classmethod
    def of(
        cls,
        own: RunOptions,
        fields: dict[str, Any],
        screen: Screen,
        on_event: Callable[[Ticket, Event], None],
        start_method: str | None = None,
    ) -> Engine:
        """The engine of flags, as of keywords. In a joined job every rank makes one."""
        made = cls.__new__(cls)
        made._begin(own, fields, screen, on_event, start_method)
        return made

    def _begin(
        self,
        own: RunOptions,
        fields: dict[str, Any],
        screen: Screen,
        on_event: Callable[[Ticket, Event], None],
        start_method: str | None,
    ) -> None:
        recipe = filled(composed(own, fields), own, Conditioning(), screen)
        self.replicas = 1 if own.replicas is None else own.replicas
        """Groups of ranks that make clips side by side."""
        plan = resolve(recipe, own.gpus if own.replicas is None else None)
        check_share(plan, own.gpus, self.replicas)
        check_machine(plan, device_of(recipe.runtime.device), self.replicas)
        self.recipe: Recipe = recipe
        """What every clip has in common, with every degree given."""
        self.plan: Plan = plan
        """The plan of a clip that says nothing else."""
        self.quiet, self.hardware = own.quiet, own.hardware
        self.setup: Setup | None = None
        """What the ranks hold, once there is a clip."""
        here = environment.joined_rank()
        self.joined = JoinedReplicas(here, plan.world_size, own.limits, on_event) if here and here.world > 1 else None
        """The ranks of another launcher, where there are more than one."""
        self.ranks = self.joined or Replicas(
            self.replicas, own.limits, start_method, warnings.warn, on_event, own.fail_fast
        )

    def submit(
        self,
        prompt: str,
        out: str | Path | None = None,
        *,
        latents: str | Path | None = None,
        preview: str | Path | None = None,
        preview_every: int | None = None,
        overwrite: bool = False,
        **fields: Any,
    ) -> Ticket:
        """Ask for a clip, which is made after those that were asked for before. Parameters as for generate().

        fields: fields of the request, as in steps=20, image="first.png".

        Raises RequestError, with the rule engine-setup for a field that belongs to the engine; then nothing is asked
        for, and the engine goes on.
        """
        outputs = Outputs(_path(out), _path(latents), None, _path(preview), overwrite, preview_every)
        return self.ranks.submit(self.job(as_flags("submit", {**fields, "prompt": prompt}), outputs))

    def generate(self, prompt: str, out: str | Path | None = None, **fields: Any) -> Report:
        """Make a clip and wait for it. Parameters as for submit(). Raises RequestError, RunFailed."""
        ticket = self.submit(prompt, out, **fields)
        try:
            return ticket.result()
        except BaseException:
            ticket.cancel()
            raise

    def job(self, fields: dict[str, Any], outputs: Outputs) -> Job:
        """The checked job of a clip, from the fields that it sets. Raises RequestError."""
        return self.job_of(self.clip(fields), outputs)

    def job_of(self, recipe: Recipe, outputs: Outputs) -> Job:
        """The checked job of a clip's recipe, as clip() gives it. Raises RequestError."""
        inputs = open_inputs(recipe.request, catalogue.find(recipe.model, recipe.checkpoint.revision))
        plan = resolve(recipe, None, inputs.video_frames)
        recipe = with_seed(recipe)
        shown = self.replicas == 1 and not self.quiet  # the progress of several would be one on top of the other
        job = make_job(recipe, plan, outputs, inputs, not shown, self.replicas, self.hardware)
        for remark in (*remarks(recipe, plan), *inputs.doubts):
            warnings.warn(remark, stacklevel=3)
        self.setup = self.setup or job.setup
        assert job.setup == self.setup, "a clip changes nothing that its engine's ranks hold"
        return job

    def clip(self, fields: dict[str, Any]) -> Recipe:
        """The recipe of a clip: the engine's, with what the clip says otherwise. Raises RequestError."""
        sections = {name: section for section, name, _ in options()}
        for name, value in fields.items():
            if value is not None and sections[name] != "request":
                problem = "belongs to the engine, whose ranks hold the model for all clips"
                raise RequestError("engine-setup", name.replace("_", "-"), value, problem, "an engine of its own")
        return compose(None, [], fields, plain(self.recipe))

    def close(self, at_once: bool = False) -> None:
        """End the ranks: after the clips that were asked for, or at once."""
        self.ranks.close(at_once)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the clips that were asked for, and end the ranks; at once after an error."""
        self.close(at_once=kind is not None)


def _path(name: str | Path | None) -> Path | None:
    return None if name is None else Path(name)
