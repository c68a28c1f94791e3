"""The reason of every rule, by the id that errors show. No torch.

Reasons that say more than the error's own line are in tables RULES next to where the rules are raised.
"""

from __future__ import annotations

from hybridgen import interop
from hybridgen.api import many, session
from hybridgen.distributed import claims, files, processes, watch
from hybridgen.engine import environment, inputs, kept, machine, manifest, outputs, prepare, record, resume, tickets
from hybridgen.models import catalogue, checkpoint, guardrail, look
from hybridgen.plan import kernels, settings
from hybridgen.planner import facts_file
from hybridgen.planner.choose import anchor, no_plan, objective
from hybridgen.planner.hardware import lookup
from hybridgen.planner.price import settings as prices
from hybridgen.recipe import check, clip, prompts, resolve
from hybridgen.strategies import registry

READING = "The text cannot be read as what the flag, key or file should hold; the message says what was expected."
NAME = "The name is not one that hybridgen knows; the message lists the nearest ones."
IMPORT = "Only what is understood is taken over from another engine's file, so that the recipe does what the file did."
WHOLE = "This is a count or an amount, and a value below the limit would make nothing."

OTHERS = {
    "attention-unknown": NAME,
    "degree": WHOLE,
    "degree-format": READING,
    "device": "cuda needs a CUDA device that torch sees; cpu is always there.",
    "diffusers-changed": "hybridgen takes diffusers' models apart by names that diffusers does not promise to keep.",
    "dtype": NAME,
    "explain": "--explain takes the number of a plan in the table above it.",
    "fps": "A file has at least one frame per second, and no screen shows more than 1000.",
    "gpus": "The number of GPUs is given by --gpus, by --nodes and --gpus-per-node, or by the degrees. Every host "
    "takes as many, so that one command starts them all.",
    "guidance": "Guidance is a finite scale; 1 or less turns it off.",
    "import-foreign": IMPORT,
    "import-key": IMPORT,
    "import-model": IMPORT,
    "import-unreadable": READING,
    "import-value": IMPORT,
    "model-unavailable": "The checkpoint is neither on this machine nor could it be fetched from the hub.",
    "not-finite": "NaN and infinity spread over the whole clip, so nothing is written. bf16 has more range than fp16.",
    "plot": "Plots are drawn by matplotlib, which is an extra: pip install 'hybridgen[plot]'.",
    "prompt": READING,
    "quantity": READING,
    "ranks": "No machine room has so many GPUs; the number is most likely a typing error.",
    "recipe-key": NAME,
    "recipe-schema": "Recipes carry the version of their format, so that an old one is never misread.",
    "recipe-unreadable": READING,
    "recipe-value": READING,
    "save": "A recipe is run with a model that hybridgen can load, as it is.",
    "seed": "The seed is a whole number of 63 bits.",
    "steps": WHOLE,
    "system": "The operating system refused something; the message is its own.",
    "tokens": WHOLE,
    "top": WHOLE,
    "unknown-hardware": NAME,
    "unknown-model": NAME,
    "unknown-rule": NAME,
    "usage": READING,
    "world-size": "Another launcher decides how many ranks there are, and every rank has one place in the mesh.",
}


def reasons() -> dict[str, str]:
    """The reasons that are shown with an error, by rule id."""
    modules = (
        *(anchor, catalogue, check, checkpoint, clip, facts_file, guardrail, inputs, interop, kept, kernels, look),
        *(lookup, machine, manifest, many, no_plan, objective, prepare, prices, prompts, record, resolve, resume),
        *(session, settings),
    )
    tables = (*(module.RULES for module in modules), registry.explanations())
    return {rule: why for table in tables for rule, why in table.items()}


def rules() -> dict[str, str]:
    """Every rule id with its reason, sorted; reasons that errors do not show say less than their own line."""
    return dict(
        sorted(
            {
                **OTHERS,
                **claims.RULES,
                **files.RULES,
                **outputs.RULES,
                **processes.RULES,
                **watch.RULES,
                **environment.RULES,
                **tickets.RULES,
                **reasons(),
            }.items()
        )
    )
