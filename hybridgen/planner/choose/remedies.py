"""What helps where nothing fits into a GPU's memory, each with what it would take. No torch.

REMEDIES is the table, in the order in which they are tried: what costs no time first, more GPUs last. Those that
hybridgen cannot do yet are worked out on the smallest plan, each on top of the ones before it, and have no command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from hybridgen.errors import Change
from hybridgen.models.registry import MODELS
from hybridgen.plan.facts import ModelFacts
from hybridgen.plan.plan import Clip, Plan
from hybridgen.plan.traffic import Phase, Term
from hybridgen.planner.choose.ask import Ask
from hybridgen.planner.choose.search import search_best
from hybridgen.planner.hardware.constants import Constant, Hardware
from hybridgen.planner.price import vae as vae_price
from hybridgen.planner.price.cost import cost
from hybridgen.planner.price.memory import expert_params, held, phase_sizes

HOST = Constant(25e9, "assumed: 80% of PCIe 4 x16, from pinned memory of the host")
"""Bytes a second that one GPU reads from its host (B/s)."""
TILE, STRIDE = 256, 192
"""Pixels of a tile's side and between two tiles, as in the VAEs of diffusers by default."""
RESIDENT = 2
"""Blocks that are held while weights are offloaded: the one that runs and the one that is read."""
SMALLER = ((1280, 720), (832, 480), (640, 368), (480, 272))
"""Sizes in pixels that are tried in place of a larger one."""


@dataclass(frozen=True)
class State:
    """The smallest plan as it would be with some remedies."""

    plan: Plan
    hardware: Hardware
    terms: tuple[Term, ...]
    seconds: float
    """Seconds of the clip."""

    @property
    def peak(self) -> int:
        """Bytes that the fullest rank needs."""
        return max(phase_sizes(self.terms).values())

    def changed(self, name: str, longer: float = 0.0, share: float = 1.0, without: Phase | None = None) -> State:
        """The state with a share of the terms of this name, or without them in a phase; the clip takes longer."""

        def one(term: Term) -> Term:
            phases = tuple(phase for phase in term.phases if phase != without)
            return term._replace(size=int(term.size * share), phases=phases) if term.name == name else term

        return replace(self, terms=tuple(map(one, self.terms)), seconds=self.seconds + longer)


class Help(NamedTuple):
    """One thing that helps."""

    words: str
    peak: float
    """Bytes that the fullest GPU then needs."""
    seconds: float
    """Seconds of the clip."""
    change: Change | None = None
    """Flags that ask for it; None for what hybridgen cannot do yet."""
    fits: bool = True

    @property
    def text(self) -> str:
        """One line: "tile the VAE: 22.1 GB, 301 s (not supported yet)"."""
        taken = f"{self.seconds:,.{0 if self.seconds >= 100 else 1}f} s"
        short = "" if self.fits else ", still too large"
        return f"{self.words}: {self.peak / 1e9:.1f} GB{short}, {taken}{'' if self.change else ' (not supported yet)'}"


@dataclass(frozen=True)
class Remedy:
    """One way to need less memory."""

    words: str
    state: Callable[[State], State] | None = None
    """What the smallest plan is with this remedy, where hybridgen cannot do it yet."""
    asks: Callable[[Ask], Iterator[tuple[str, Ask, Change]]] | None = None
    """Other questions, the nearest first, each with what it changes in words and in flags, where hybridgen can."""


def helps(ask: Ask, smallest: Plan) -> list[Help]:
    """What helps where nothing fits, in the order of REMEDIES.

    Of those that hybridgen cannot do yet, each one that is enough is named alone. The others are named on top of the
    ones before them, until the smallest plan fits.
    """
    hardware, found = ask.hardware, list[Help]()
    first = state = State(smallest, hardware, held(smallest, hardware), cost(smallest, hardware).clip)
    for remedy in REMEDIES:
        if remedy.state is not None:
            alone, together = remedy.state(first), remedy.state(state)
            if alone.peak <= ask.limit:
                found.append(Help(remedy.words, alone.peak, alone.seconds))
            elif together.peak < state.peak and state.peak > ask.limit:
                words = f"{'and ' if any(one.change is None for one in found) else ''}{remedy.words}"
                found.append(Help(words, together.peak, together.seconds, fits=together.peak <= ask.limit))
            state = together
        for words, other, change in remedy.asks(ask) if remedy.asks is not None else ():
            if best := search_best(other).candidates[:1]:
                found.append(Help(f"{remedy.words}, {words}", best[0].peak, best[0].cost.clip, change))
                break
    return found


def _freed(state: State) -> State:
    """The transformers' weights are freed when the last step is done."""
    return state.changed("weights", without="decode")


def _tiled(state: State) -> State:
    """Tiles of TILE pixels, one every STRIDE pixels, so that what overlaps is decoded twice."""
    plan, (_, _, rows, columns) = state.plan, state.plan.latent_shape
    side = TILE // plan.facts.vae.stride_space
    share = min(side, rows) * min(side, columns) * plan.degrees.vae / (rows * columns)
    if share >= 1:
        return state
    again = ((TILE / STRIDE) ** 2 - 1) * vae_price.decode_seconds(plan, state.hardware)
    return state.changed("vae decoding", again, share)


def _swapped(state: State) -> State:
    """Of two experts only the one that runs is held; the other one is read from the host once."""
    experts = state.plan.facts.experts
    weights = sum(term.size for term in state.terms if term.name == "weights")
    return state.changed("weights", weights / experts / HOST.value, 1 / experts) if experts > 1 else state


def _offloaded(state: State) -> State:
    """Weights are read from the host block by block in every pass, while the block before runs."""
    plan, layers = state.plan, max(state.plan.stage_sizes)
    expert = expert_params(plan, layers) * plan.itemsize
    reading, running = plan.passes * expert / HOST.value, cost(plan, state.hardware).denoise
    weights = sum(term.size for term in state.terms if term.name == "weights")
    return state.changed("weights", max(reading - running, 0.0), min(RESIDENT * expert / layers / weights, 1.0))


def _smaller(ask: Ask) -> Iterator[tuple[str, Ask, Change]]:
    """The clip at smaller sizes, as wide or as high as it is now."""
    clip, (wide, high) = ask.template.clip, ask.template.facts.size_multiple
    for long, short in SMALLER:
        width, height = (long, short) if clip.width >= clip.height else (short, long)
        if width * height < clip.width * clip.height and width % wide == 0 and height % high == 0:
            other = replace(ask.template, clip=replace(clip, width=width, height=height))
            yield f"{width}x{height}", replace(ask, template=other), {"size": f"{width}x{height}"}


def _other_models(ask: Ask) -> Iterator[tuple[str, Ask, Change]]:
    """Smaller models of the same pipeline, the largest first, with their own defaults where the clip has those."""
    facts = ask.template.facts
    smaller = [m for m in MODELS if m.pipeline == facts.pipeline and _params(m) < _params(facts)]
    for model in sorted(smaller, key=_params, reverse=True) if facts in MODELS else ():
        clip = _with_defaults(ask.template.clip, facts, model)
        if clip.width % model.size_multiple[0] == 0 and clip.height % model.size_multiple[1] == 0:
            yield (
                model.name,
                replace(ask, template=replace(ask.template, facts=model, clip=clip)),
                {"model": model.name},
            )


def _params(facts: ModelFacts) -> int:
    return facts.experts * facts.transformer.params


def _with_defaults(clip: Clip, old: ModelFacts, new: ModelFacts) -> Clip:
    """The clip with the defaults of another model where it has those of its own."""
    names = ("width", "height", "frames", "steps", "guidance", "guidance_2", "fps")
    same = [name for name in names if getattr(clip, name) == getattr(old.defaults, name)]
    return replace(clip, **{name: getattr(new.defaults, name) for name in same})


REMEDIES = (
    Remedy("free the experts while decoding", _freed),
    Remedy("tile the VAE", _tiled),
    Remedy("swap the experts", _swapped),
    Remedy("offload the weights", _offloaded),
    Remedy("a smaller size", asks=_smaller),
    Remedy("another model", asks=_other_models),
)
"""What helps where nothing fits, in the order in which it is tried. no_plan.py looks for more GPUs, which come last."""
