"""The reason of every rule, by the id that errors show. No torch.

Reasons that say more than the error's own line are in tables RULES next to where the rules are raised.
"""

from __future__ import annotations

from hybridgen import interop
from hybridgen.distributed import files, processes
from hybridgen.engine import inputs, machine, outputs, prepare
from hybridgen.models.cosmos import guardrail
from hybridgen.planner.choose import no_plan
from hybridgen.recipe import clip, resolve
from hybridgen.strategies import registry

READING = "The text cannot be read as what the flag, key or file should hold; the message says what was expected."
NAME = "The name is not one that hybridgen knows; the message lists the nearest ones."
KERNEL = "An attention kernel runs on some devices, dtypes and head sizes only. `auto` chooses one that fits; where "
KERNEL += "partial results are merged (ring, attention2d) it must also return its log-sum-exp, or the merge is wrong."
CHECKPOINT = (
    "hybridgen runs checkpoints of Wan and Cosmos in diffusers layout, whose scheduler acts on every number alone, "
)
CHECKPOINT += "since each rank steps its own part of the latents."
IMPORT = "Only what is understood is taken over from another engine's file, so that the recipe does what the file did."
WHOLE = "This is a count or an amount, and a value below the limit would make nothing."

OTHERS = {
    "anchor": "--anchor scales the machine's rates so that one GPU denoises this clip in the given time. What does not "
    "scale, such as the host's launches, must fit into it.",
    "attention-device": KERNEL,
    "attention-dtype": KERNEL,
    "attention-head-dim": KERNEL,
    "attention-lse": KERNEL,
    "attention-missing": KERNEL,
    "attention-unknown": NAME,
    "degree": WHOLE,
    "degree-format": READING,
    "device": "cuda needs a CUDA device that torch sees; cpu is always there.",
    "diffusers-changed": "hybridgen takes diffusers' models apart by names that diffusers does not promise to keep.",
    "dtype": NAME,
    "explain": "--explain takes the number of a plan in the table above it.",
    "fps": WHOLE,
    "gpus": "The number of GPUs is given by --gpus, by --nodes and --gpus-per-node, or by the degrees. Every host "
    "takes as many, so that one command starts them all.",
    "guidance": "Guidance is a finite scale; 1 or less turns it off.",
    "guidance-2": "The second scale is for the low-noise expert, and only where guidance is on.",
    "hardware-file": "A hardware file names a known machine as base: and replaces its constants, in SI units. Unknown "
    "keys and keys given twice are refused, since a typing error would silently keep the old value. Rates are 1 or "
    "more, bytes and seconds 0 or more; error and anchored lie between 0 and 1, since they are a range around a time.",
    "heads": "--heads cuts the channels of the model's attention into another number of heads, all equally wide.",
    "import-foreign": IMPORT,
    "import-key": IMPORT,
    "import-model": IMPORT,
    "import-unreadable": READING,
    "import-value": IMPORT,
    "model-facts": "A file of facts describes a model on one level of keys, each given once; it needs layers, heads, "
    "head_dim and ffn. Counts are whole numbers above 0, or 0 where that means none, or as many as usual. "
    "Size and frames must be what its VAE and patches can make, params no fewer than the blocks' matrices have.",
    "model-unavailable": "The checkpoint is neither on this machine nor could it be fetched from the hub.",
    "plot": "Pictures are drawn by matplotlib, which is an extra: pip install 'hybridgen[plot]'.",
    "positions": "The rotary tables of a model hold so many positions along time, height and width.",
    "prompt": READING,
    "quantity": READING,
    "ranks": "More ranks than any machine room has; most likely a typing error.",
    "recipe-comment": "Rewriting a recipe in canonical form would lose its comments; `notes` keeps them.",
    "recipe-key": NAME,
    "recipe-schema": "Recipes carry the version of their format, so that an old one is never misread.",
    "recipe-unreadable": READING,
    "recipe-value": READING,
    "revision": "A revision is a full commit of a repository on the hub, so that the weights can never change.",
    "save": "A recipe is run with a model that hybridgen can load, as it is.",
    "seed": "The seed is a whole number of 63 bits.",
    "steps": WHOLE,
    "system": "The operating system refused something; the message is its own.",
    "tokens": WHOLE,
    "top": WHOLE,
    "unknown-hardware": NAME,
    "unknown-model": NAME,
    "unknown-rule": NAME,
    "unreadable-model": CHECKPOINT,
    "unsupported-pipeline": CHECKPOINT,
    "unsupported-scheduler": CHECKPOINT,
    "usage": READING,
    "world-size": "Another launcher decides how many ranks there are, and every rank has one place in the mesh.",
}


def reasons() -> dict[str, str]:
    """The reasons that are shown with an error, by rule id."""
    tables = (
        clip.RULES,
        inputs.RULES,
        interop.RULES,
        machine.RULES,
        no_plan.RULES,
        prepare.RULES,
        resolve.RULES,
        registry.explanations(),
        {guardrail.RULE: guardrail.WHY},
    )
    return {rule: why for table in tables for rule, why in table.items()}


def rules() -> dict[str, str]:
    """Every rule id with its reason, sorted; reasons that errors do not show say less than their own line."""
    return dict(sorted({**OTHERS, **files.RULES, **outputs.RULES, **processes.RULES, **reasons()}.items()))
