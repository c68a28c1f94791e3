"""Whether another launcher (torchrun, srun) started this process, and as which rank. No torch.

Only this module reads what launchers put into the environment.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class JoinedRank:
    """One rank of a job that another launcher started."""

    rank: int
    world: int
    local_rank: int
    """Number of this rank on its machine."""
    address: str
    """Host and port of the key-value store of rank 0 or of torchrun's agent."""
    port: int
    attempt: int
    """Number of times that torchrun has restarted the ranks."""
    agent_serves: bool
    """Whether torchrun's agent serves the store; otherwise rank 0 must."""


def joined_rank() -> JoinedRank | None:
    """This process as a rank of another launcher's job; None when hybridgen starts its ranks itself.

    SLURM_NTASKS alone is not enough: the shell of an allocation has it, too. Tasks of srun have the step's number.
    """
    env = os.environ
    if {"RANK", "WORLD_SIZE"} <= env.keys():
        return JoinedRank(
            int(env["RANK"]),
            int(env["WORLD_SIZE"]),
            int(env.get("LOCAL_RANK", env["RANK"])),
            env.get("MASTER_ADDR", "127.0.0.1"),
            int(env.get("MASTER_PORT", "29500")),
            int(env.get("TORCHELASTIC_RESTART_COUNT") or 0),
            env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )
    if int(env.get("SLURM_STEP_NUM_TASKS") or 1) > 1:
        job, step = int(env.get("SLURM_JOB_ID") or 0), int(env.get("SLURM_STEP_ID") or 0)
        return JoinedRank(
            int(env["SLURM_PROCID"]),
            int(env["SLURM_STEP_NUM_TASKS"]),
            int(env.get("SLURM_LOCALID", "0")),
            env.get("MASTER_ADDR") or first_host(env["SLURM_STEP_NODELIST"]),
            int(env.get("MASTER_PORT") or 20000 + (job * 31 + step) % 20000),
            0,
            False,
        )
    return None


def is_reporter() -> bool:
    """Whether this process reports to the user: rank 0 does for all ranks of a joined job."""
    here = joined_rank()
    return here is None or here.rank == 0


def first_host(nodes: str) -> str:
    """The first name in a Slurm host list: "gpu[03-07,11],login" -> "gpu03"."""
    match = re.match(r"([^,\[]+)(?:\[([^\]]+)\])?", nodes)
    assert match, nodes
    return match[1] + (re.split(r"[-,]", match[2])[0] if match[2] else "")
