"""Whether another launcher (torchrun, srun) started this process, and as which rank. No torch.

Only this module reads what launchers put into the environment.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

from hybridgen.distributed.place import JoinedRank
from hybridgen.distributed.signals import die_with_parent
from hybridgen.errors import RequestError

RULES = {
    "launcher": "torchrun and srun tell every process its rank, how many there are, and where rank 0 or an agent "
    "listens, in variables of the environment. Ranks meet there before anything is loaded.",
}
SECRET = "HYBRIDGEN_SECRET"


def joined_rank() -> JoinedRank | None:
    """This process as a rank of another launcher's job; None when hybridgen starts its ranks itself.

    SLURM_NTASKS alone is not enough: the shell of an allocation has it, too. Tasks of srun have the step's number.
    Raises RequestError (launcher).
    """
    env = os.environ
    if {"RANK", "WORLD_SIZE"} <= env.keys():
        return _checked(
            "RANK",
            "WORLD_SIZE",
            JoinedRank(
                rank=_number("RANK"),
                world=_number("WORLD_SIZE"),
                local_rank=_number("LOCAL_RANK", env["RANK"]),
                address=env.get("MASTER_ADDR") or "127.0.0.1",
                port=_number("MASTER_PORT", "29500"),
                attempt=_number("TORCHELASTIC_RESTART_COUNT", "0"),
                agent_serves=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
                has_parent="TORCHELASTIC_RUN_ID" in env,
                secret=env.get(SECRET, ""),
                beside=_number("LOCAL_WORLD_SIZE", "0") if "TORCHELASTIC_RUN_ID" in env else 0,
            ),
        )
    if _number("SLURM_STEP_NUM_TASKS", "1") > 1:
        port = 20000 + (_number("SLURM_JOB_ID", "0") * 31 + _number("SLURM_STEP_ID", "0")) % 20000
        return _checked(
            "SLURM_PROCID",
            "SLURM_STEP_NUM_TASKS",
            JoinedRank(
                rank=_number("SLURM_PROCID"),
                world=_number("SLURM_STEP_NUM_TASKS"),
                local_rank=_number("SLURM_LOCALID", "0"),
                address=env.get("MASTER_ADDR") or first_host(env.get("SLURM_STEP_NODELIST", "")),
                port=_number("MASTER_PORT", str(port)),
                attempt=0,
                agent_serves=False,
                has_parent=True,
                secret=env.get(SECRET, ""),
                variable="SLURM_PROCID",
                shared=("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"),
            ),
        )
    return None


def end_with_launcher() -> None:
    """Have this process end with the one that started it, if that is a launcher which stays to watch its ranks."""
    with suppress(RequestError):  # joined_rank() is asked again where an error can be told
        here = joined_rank()
        if here is not None and here.has_parent:
            die_with_parent()


def array_task() -> str | None:
    """The task of a Slurm array as i/n; None where this is none. Raises RequestError (launcher)."""
    if not {"SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"} <= os.environ.keys():
        return None
    number, count = _number("SLURM_ARRAY_TASK_ID"), _number("SLURM_ARRAY_TASK_COUNT")
    least, step = _number("SLURM_ARRAY_TASK_MIN", "0"), _number("SLURM_ARRAY_TASK_STEP", "1")
    return f"{(number - least) // max(step, 1) + 1}/{count}"


def _number(name: str, default: str = "") -> int:
    """A whole number from 0 on in the environment. Raises RequestError (launcher)."""
    text = os.environ.get(name) or default
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    problem = f"{name}={text}: is not a whole number" if text else f"{name}: is empty or missing"
    raise RequestError("launcher", "", None, problem, "start hybridgen without it, or through torchrun or srun")


def _checked(rank_name: str, world_name: str, made: JoinedRank) -> JoinedRank:
    """The rank, if there can be such a one. Raises RequestError (launcher)."""
    if made.rank >= made.world:
        problem = f"{rank_name}={made.rank}: ranks of {world_name}={made.world} are 0 to {made.world - 1}"
        raise RequestError("launcher", "", None, problem if made.world else f"{world_name}=0: is not a number of ranks")
    if not 0 < made.port < 2**16:
        raise RequestError("launcher", "", None, f"MASTER_PORT={made.port}: ports are 1 to 65535")
    return made


def is_reporter() -> bool:
    """Whether this process reports to the user: rank 0 does for all ranks of a joined job."""
    here = joined_rank()
    return here is None or here.rank == 0


def first_host(nodes: str) -> str:
    """The first name in a Slurm host list: "gpu[03-07,11],login" -> "gpu03", "rack[1-2]n[01-18]" -> "rack1n01".

    Raises RequestError (launcher) where there is none.
    """
    match = re.match(r"(?:[^,\[\]]|\[[^\]]*\])+", nodes)
    if match is None:
        raise RequestError("launcher", "", None, f"SLURM_STEP_NODELIST={nodes}: names no host", "MASTER_ADDR=HOST")
    return re.sub(r"\[([^\]]*)\]", lambda part: re.split(r"[-,]", part[1])[0], match[0])
