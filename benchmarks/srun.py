"""A stand-in for srun: tasks with the variables of a Slurm step, on this machine.

Signals are passed on to all tasks. It ends with the last one, with the highest exit code. A task that fails ends no
other, as with srun without --kill-on-bad-exit.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def srun(count: int, task: Callable[[], None]) -> None:
    """Run a function in that many new processes, and exit. The function must end its process."""
    step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NUM_TASKS": str(count), "SLURM_STEP_NODELIST": "localhost"}
    os.environ.update(step)
    pids: list[int] = []

    def pass_on(number: int, _: object) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            os.environ.update(SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank))
            task()
        pids.append(pid)
    for number in SIGNALS:
        signal.signal(number, pass_on)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    sys.exit(max(code if code >= 0 else 128 - code for code in codes))
