"""PipeFusion (arXiv 2405.14430): legality, traffic, memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hybridgen.errors import Change, RequestError, counted
from hybridgen.plan.axes import Axis, Degree, Option
from hybridgen.plan.layout import split_rows
from hybridgen.plan.numbers import not_legal
from hybridgen.plan.plan import FP32, Plan
from hybridgen.plan.traffic import Message, Term
from hybridgen.strategies.strategy import Strategy

if TYPE_CHECKING:
    from hybridgen.distributed.mesh import Mesh
    from hybridgen.models.denoiser import Denoiser

RULES = {
    "pipefusion-cache": "A step that is skipped sends no K/V, so that what a patch attends to would be older than one "
    "step, by as much as steps in a row are skipped. Nobody has measured that.",
    "pipefusion-layers": "Every stage needs at least one block of the transformer.",
    "pipefusion-only": "Patches and warm-up steps are PipeFusion's; without it they would change nothing.",
    "pipefusion-patches": "A patch is some tokens of the sequence, so there are no more patches than tokens.",
    "pipefusion-stages": "The stages hold every block of the transformer once, in order.",
}

IN_FLIGHT = 2
"""Copies of all patches that may be on their way between stages: hidden states, or latents to the first stage."""


def parse(text: str) -> tuple[int, tuple[int, ...]]:
    """Read "4:10,10,10,10" as (stages, blocks of each), and "4" as (stages, ()). Raises RequestError."""
    match = re.fullmatch(r"\s*(-?\d{1,9})\s*(?::\s*(\d{1,9}(?:\s*,\s*\d{1,9})*)\s*)?", text)
    if not match:
        problem = "is not a number of stages, as in 4, nor one with the blocks of every stage, as in 4:9,10,10,11"
        raise RequestError("degree-format", "pipefusion", text, problem)
    return int(match[1]), tuple(int(size) for size in (match[2] or "").split(",") if size)


def violations(plan: Plan) -> Iterator[RequestError]:
    stages, layers = plan.degrees.pipefusion, plan.facts.transformer.layers
    if stages > layers:
        problem = f"is more than the {counted(layers, 'block')} of {plan.facts.name}"
        yield not_legal("pipefusion-layers", "pipefusion", stages, problem, range(1, layers + 1))
    elif plan.stages and (len(plan.stages) != stages or sum(plan.stages) != layers or min(plan.stages) < 1):
        given, even = (",".join(map(str, sizes)) for sizes in (plan.stages, split_rows(layers, stages)))
        if len(plan.stages) != stages:
            problem = f"names {counted(len(plan.stages), 'stage')}, not {stages}"
        elif min(plan.stages) < 1:
            problem = "has a stage without a block"
        else:
            problem = f"holds {sum(plan.stages)} of the {counted(layers, 'block')} of {plan.facts.name}"
        yield RequestError("pipefusion-stages", "pipefusion", f"{stages}:{given}", problem, [f"{stages}:{even}"])
    if stages > 1 and plan.settings.cache is not None:
        problem = f"excludes --cache {plan.settings.cache}"
        tries: list[Change] = [{"cache": None}, {"pipefusion": None}]
        yield RequestError("pipefusion-cache", "pipefusion", stages, problem, "--cache or --pipefusion alone", tries)
    tokens = plan.tokens.tokens
    patches = plan.options.get("patches", 1)
    if stages > 1 and patches > tokens:
        problem = f"is more than the clip's {counted(tokens, 'token')}"
        yield RequestError("pipefusion-patches", "patches", patches, problem, [stages])


def traffic(plan: Plan, rank: int) -> Iterator[Message]:
    """Messages: per pass a hidden state to the next stage, per step the latents from the last stage to the first.

    A text stream with weights of its own goes through the stages once.
    """
    stages = plan.degrees.pipefusion
    if stages == 1:
        return
    transformer, local = plan.facts.transformer, plan.tokens.local_size
    last = plan.layout.coordinate(rank, "pipefusion") == stages - 1
    hidden = 0 if last else local * transformer.hidden * plan.itemsize
    latents = plan.state_size * FP32 if last else 0
    for tokens in plan.own_texts(rank) if transformer.text_stream == "own" else ():
        text = 0 if last else tokens * transformer.hidden * plan.itemsize
        yield Message("pipefusion", "pipefusion", "p2p", "text hidden state", text, 1, "setup")
    yield Message("pipefusion", "pipefusion", "p2p", "hidden state", hidden, plan.passes, overlaps="next pass")
    yield Message("pipefusion", "pipefusion", "p2p", "latents", latents, plan.clip.steps)


def memory(plan: Plan, rank: int) -> Iterator[Term]:
    """Memory of what is on its way to the next stage, and of K/V of every layer of the stage and branch.

    Keys are those that this rank attends to: the whole sequence's, or with attention2d those of its column, of this
    rank's heads. Without stale steps none are kept.
    """
    if plan.degrees.pipefusion == 1:
        return
    transformer = plan.facts.transformer
    if plan.is_last_stage(rank):
        name, token = "latents on their way", transformer.prediction_channels * FP32
    else:
        name, token = "hidden states on their way", transformer.hidden * plan.itemsize
    yield Term(name, IN_FLIGHT * plan.tokens.local_size * token)
    if plan.exact_split:
        return
    keys = plan.tokens.padded // plan.degrees.attn2d[1]
    key_values = 2 * keys * plan.attention_heads[1] * transformer.head_dim * plan.itemsize
    yield Term("K/V buffers", key_values * len(plan.blocks(rank)) * plan.own_branches)


def apply(model: Denoiser, mesh: Mesh, plan: Plan) -> None:
    """Keep this stage's blocks, and replace how a step is made."""
    from hybridgen.strategies.pipefusion.run import apply

    apply(model, mesh, plan)


PIPEFUSION = Axis(
    "pipefusion",
    divides="blocks",
    exchanges="hidden state to the next stage",
    place=20,
    why="around tp and the sequence: one hidden state a pass, sent while others are computed",
)


def is_exact(plan: Plan) -> bool:
    """Whether no K/V is stale: with one patch, or if every step is synchronous.

    Warm-ups that cover all steps of both experts make it exact, too; which expert runs a step is the scheduler's to
    say, so that is not promised.
    """
    return plan.tokens.patches == 1 or plan.option("warmup") >= plan.clip.steps


STRATEGY = Strategy(
    "pipefusion",
    (
        Degree(
            "pipefusion",
            "Pipeline stages of the transformer; N:A,B,... says how many blocks each has.",
            listed=70,
            metavar="N[:A,B,...]",
            axes=(PIPEFUSION,),
            exact=is_exact,
            peers={"--pipefusion_parallel_degree": ("xDiT", "--pipefusion")},
            reads=lambda text: parse(text)[0],
        ),
    ),
    apply,
    RULES,
    violations,
    traffic,
    memory,
    options=(
        Option(
            "patches",
            "PipeFusion: patches of the sequence (default: stages).",
            listed=100,
            peers={"--num_pipeline_patch": ("xDiT", "--patches")},
            default=lambda plan: plan.degrees.pipefusion,
        ),
        Option(
            "warmup",
            "PipeFusion: synchronous steps at the start of every expert (default 1).",
            listed=110,
            peers={"--warmup_steps": ("xDiT", "--warmup")},
        ),
    ),
)
