"""The schedulers that can be run, by their configuration. No torch.

Each rank steps its own part of the latents, so a scheduler must act on every number alone, and draw nothing.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise

from hybridgen.errors import RequestError, counted
from hybridgen.models.files import Config, Folder
from hybridgen.models.keys import Table, listed, number, only, switch, text, whole

SIGMA = number(0, 1e6, None, null=True)
SHIFT = number(1e-6, 1e4, 1.0)

UNIPC: Table = {
    "_class_name": text(),
    "num_train_timesteps": whole(100, 100_000, 1000),
    "beta_start": number(0, 0.1, 0.0001),
    "beta_end": number(0, 0.1, 0.02),
    "beta_schedule": only("linear", "scaled_linear", "squaredcos_cap_v2", default="linear"),
    "trained_betas": listed(number(0, 1), 1, 100_000, None, null=True),
    "solver_order": whole(1, 3, 2),
    "prediction_type": only("epsilon", "sample", "v_prediction", "flow_prediction", default="epsilon"),
    "predict_x0": switch(True),
    "solver_type": only("bh1", "bh2", default="bh2"),
    "lower_order_final": switch(True),
    "disable_corrector": listed(whole(0, 100_000), 0, 100_000, []),
    "use_karras_sigmas": switch(False, null=True),
    "use_exponential_sigmas": switch(False, null=True),
    "use_beta_sigmas": switch(False, null=True),
    "use_flow_sigmas": switch(False, null=True),
    "flow_shift": SHIFT,
    "timestep_spacing": only("linspace", "leading", "trailing", default="linspace"),
    "steps_offset": whole(0, 100_000, 0),
    "final_sigmas_type": only("zero", "sigma_min", default="zero", null=True),
    "rescale_betas_zero_snr": switch(False),
    "time_shift_type": only("exponential", "linear", default="exponential"),
    "sigma_min": SIGMA,
    "sigma_max": SIGMA,
    "shift_terminal": number(1e-6, 0.999, None, null=True),
}
EULER: Table = {
    "_class_name": text(),
    "num_train_timesteps": whole(100, 100_000, 1000),
    "shift": SHIFT,
    "base_shift": number(-100, 100, 0.5, null=True),
    "max_shift": number(-100, 100, 1.15, null=True),
    "base_image_seq_len": whole(1, 10**9, 256),
    "max_image_seq_len": whole(1, 10**9, 4096),
    "invert_sigmas": switch(False),
    "shift_terminal": number(1e-6, 0.999, None, null=True),
    "use_karras_sigmas": switch(False, null=True),
    "use_exponential_sigmas": switch(False, null=True),
    "use_beta_sigmas": switch(False, null=True),
    "time_shift_type": only("exponential", "linear", default="exponential"),
}
TABLES = {"UniPCMultistepScheduler": UNIPC, "FlowMatchEulerDiscreteScheduler": EULER}
"""Schedulers that act on every number alone as long as none of REFUSED is set."""

TIMETABLES = ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas")
"""Settings of which at most one can be on."""
REFUSED: dict[str, str] = {
    "stochastic_sampling": "it draws noise of its own in every step, and ranks would draw different noise",
    "thresholding": "it scales each step by a quantile of the whole clip, and a rank has a part of it",
    "use_dynamic_shifting": "its noise levels need a shift (mu) that the pipelines do not give it",
    "solver_p": "another scheduler takes the steps in its place",
}
"""Settings that must be off, and why."""


def look(folder: Folder, kind: str) -> Config:
    """The scheduler's configuration. Raises RequestError: unsupported-scheduler, unreadable-model."""
    if kind not in TABLES:
        raise _refused(folder, f"it steps with {ascii(kind)[1:-1][:80]}", f"hybridgen runs {' and '.join(TABLES)}")
    name = "scheduler/scheduler_config.json"
    config = folder.json(name)
    for setting, why in REFUSED.items():
        if config.get(setting) not in (None, False):
            raise _refused(folder, f"{name} sets {setting}", why)
    found = folder.json(name, TABLES[kind])
    on = [setting for setting in TIMETABLES if found.get(setting)]
    if len(on) > 1:
        raise _refused(folder, f"{name} sets {' and '.join(on)}", "at most one says where the steps are")
    if found["use_beta_sigmas"] and find_spec("scipy") is None:
        raise _refused(folder, f"{name} sets use_beta_sigmas", "it needs scipy: pip install scipy")
    if kind == "UniPCMultistepScheduler":
        for what, why in _impossible(found):
            raise _refused(folder, f"{name} {what}", why)
    return found


def _impossible(config: Config) -> Iterator[tuple[str, str]]:
    """Settings of UniPC that diffusers itself stops at, or that make NaN, and why."""
    betas, count = config["trained_betas"], config["num_train_timesteps"]
    if betas is not None and len(betas) != count:
        yield f"has {len(betas)} trained_betas", f"there must be one for each of {count} num_train_timesteps"
    flow, to_zero = config["use_flow_sigmas"], config["final_sigmas_type"] != "sigma_min"
    if (flow or config["prediction_type"] == "flow_prediction") and not config["predict_x0"]:
        yield "has predict_x0 off", "a flow is turned into clean latents"
    if config["shift_terminal"] is not None and not flow:
        yield "sets shift_terminal", "it goes with use_flow_sigmas"
    if config["use_exponential_sigmas"] and flow:
        yield "sets use_exponential_sigmas", "flow matching ends at a noise level of 0, which has no logarithm"
    if to_zero and not config["lower_order_final"]:
        yield "has lower_order_final off", "the last step ends without noise, where higher orders are not defined"
    if to_zero and config["solver_type"] == "bh1":
        yield "has solver_type bh1", "the last step ends without noise, where it is not defined"


def check_steps(folder: Folder, steps: int) -> None:
    """Raise RequestError (unsupported-scheduler) where two of so many steps would have one noise level, and make NaN.

    It is so of UniPC's tables whose ends are too close, and of more steps than it was trained with.
    """
    if folder.json("model_index.json")["scheduler"][1] != "UniPCMultistepScheduler":
        return
    name = "scheduler/scheduler_config.json"
    config = folder.json(name, UNIPC)
    for setting, power in (("use_karras_sigmas", 7), ("use_exponential_sigmas", 0)):
        if config[setting]:
            low, high = _ends(config)
            if low <= 0 or not _fall(low, high, steps, power, config["use_flow_sigmas"]):
                why = f"noise would not fall in each of {counted(steps, 'step')} from {high:g} to {low:g}"
                raise _refused(folder, f"{name} sets {setting}", why)
            return
    if not config["use_flow_sigmas"] and steps >= (most := config["num_train_timesteps"]):
        raise _refused(
            folder, f"{name} has {most} num_train_timesteps", f"they are too few for {counted(steps, 'step')}"
        )


def _ends(config: Config) -> tuple[float, float]:
    """The least and the most noise of a table; where none is given, that of training, with betas that go up."""
    first, last, count = config["beta_start"], config["beta_end"], config["num_train_timesteps"]
    power = 2 if config["beta_schedule"] == "scaled_linear" else 1
    spread = (first ** (1 / power), last ** (1 / power))
    betas = [(spread[0] + (spread[1] - spread[0]) * at / (count - 1)) ** power for at in range(count)]
    kept = math.prod(1 - beta for beta in betas)
    low, high = (math.sqrt((1 - part) / part) if part > 0 else math.inf for part in (1 - betas[0], kept))
    given = config["sigma_min"], config["sigma_max"]
    if config["trained_betas"] is not None or config["beta_schedule"] == "squaredcos_cap_v2":
        low, high = 1e-3, 1e3  # of tables that are not made here; only given ends are looked at
    return low if given[0] is None else given[0], high if given[1] is None else given[1]


def _fall(low: float, high: float, steps: int, power: int, flow: bool) -> bool:
    """Whether the levels from high to low fall in every step, in fp32, even in a power's root, or in logarithms (0)."""
    there, back = (math.log, math.exp) if power == 0 else (lambda x: x ** (1 / power), lambda x: x**power)
    start, end = there(min(high, 1e9)), there(low)
    levels = (back(start + (end - start) * at / max(steps - 1, 1)) for at in range(steps))
    stored = [struct.pack("<f", level / (level + 1) if flow else level) for level in levels]
    values = [struct.unpack("<f", one)[0] for one in stored]
    return all(one > other for one, other in pairwise(values))


def shift(folder: Folder) -> float | None:
    """How far a checkpoint's scheduler shifts its noise levels; None where it does not say."""
    config = folder.json("scheduler/scheduler_config.json")
    found: float | None = config.get("flow_shift", config.get("shift"))
    return found


def _refused(folder: Folder, what: str, why: str) -> RequestError:
    return folder.refused(f"{what}, which cannot be run: {why}", rule="unsupported-scheduler")
