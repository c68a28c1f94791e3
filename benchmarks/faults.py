"""How runs end: faults at random moments of runs, local and joined, and a table of what came of them.

    python -m benchmarks.faults [--rounds 5] [--kinds KIND ...] [--launchers torchrun ...] [--seed 1]

Every row is a kind of fault. It hits runs of the demo model, each a random time after the run has reached a stage: on
4 ranks that the run starts itself, or on 3 that torchrun or a stand-in for srun starts. The command runs in processes
that are forked from one which has imported torch; those of torchrun are fresh. Kinds that need a small disk are left
out where this user may not mount one.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.fault_acts import (
    SOON,
    Fault,
    Missed,
    as_forked,
    fill,
    forbid,
    nothing,
    remove,
    stop_and_kill,
    take_memory,
    to_ffmpeg,
    to_launcher,
    to_rank,
)
from benchmarks.fault_runs import Run, small_disk, start, unmount

LIMIT = 60.0
"""Seconds after which a run counts as one that never ends."""
STAGES = ("", "load  ", "s/step", "denoise  60 steps", "decode  ")
"""What a run has printed when the time to a fault begins; "" for its first rank."""
START = "start  "
"""What it has printed before it starts ranks, or joins those of a launcher."""
MOST = 0.35
"""Seconds from there to the fault, at most."""


@dataclass(frozen=True)
class Kind:
    """A kind of fault, and how a run that it hits must end."""

    fault: Fault
    says: str
    """What must be said, once: a regular expression in which {rank} is the victim; "" where nobody is left to."""
    codes: tuple[int, ...] = (1,)
    """Exit codes of the command."""
    stages: tuple[str, ...] = STAGES
    disk: str = ""
    """A small disk: "out" for that of the results, "tmp" for that of temporary files."""
    given: dict[str, Any] = field(default_factory=dict)
    """How the run is started."""


RANK = r"error\[\S+\]: rank {rank} of"
WRITER = ("load  ", "s/step", "s/step", "denoise  60 steps", "denoise  60 steps")
LATE = ("denoise  60 steps",)
DONE = r"denoise  60 steps"
KINDS = {
    "SIGKILL a rank": Kind(to_rank(signal.SIGKILL), RANK),
    "SIGTERM a rank": Kind(to_rank(signal.SIGTERM), RANK),
    "SIGHUP a rank": Kind(to_rank(signal.SIGHUP), RANK),
    "SIGSTOP a rank": Kind(to_rank(signal.SIGSTOP), RANK),
    "a rank out of memory": Kind(take_memory, RANK, stages=STAGES[1:4]),
    "SIGINT once, to the group": Kind(to_launcher(signal.SIGINT, group=True), "stopped$", (130,)),
    "SIGINT twice, to the group": Kind(to_launcher(signal.SIGINT, 2, group=True), "stopped$", (130,)),
    "SIGINT while ranks are forked": Kind(as_forked(signal.SIGINT, True), "stopped$", (130,), (START,)),
    "SIGTERM": Kind(to_launcher(signal.SIGTERM), "stopped by SIGTERM", (143,)),
    "SIGTERM 8 times": Kind(to_launcher(signal.SIGTERM, 8), "stopped by SIGTERM", (143,)),
    "SIGTERM while ranks are forked": Kind(as_forked(signal.SIGTERM, False), "stopped by SIGTERM", (143,), (START,)),
    "SIGHUP, to the group": Kind(to_launcher(signal.SIGHUP, group=True), "stopped by SIGHUP", (129,)),
    "nohup, then SIGHUP to the group": Kind(
        to_launcher(signal.SIGHUP, group=True), DONE, (0,), given={"ignore": signal.SIGHUP}
    ),
    "launcher SIGKILL": Kind(to_launcher(signal.SIGKILL), "", (-9,)),
    "rank stopped, launcher SIGKILL": Kind(stop_and_kill, "", (-9,)),
    "ffmpeg SIGKILL": Kind(to_ffmpeg(signal.SIGKILL), r"error\[\S+\]: rank 0 of .*ffmpeg", stages=LATE),
    "ffmpeg SIGSTOP": Kind(to_ffmpeg(signal.SIGSTOP), r"error\[\S+\]: rank 0 of .*ffmpeg", stages=LATE),
    "disk of --out full": Kind(
        fill("out"), r"error\[\S+\]: .*(No space left.*out/|out/.*No space left)", (1,), WRITER, "out"
    ),
    "--out read-only": Kind(forbid, r"error\[\S+\]: (?=.*out/clip).*Read-only", (1,), WRITER, "out"),
    "folder of --out removed": Kind(remove, r"error\[\S+\]: .*out/clip", (1,), WRITER),
    "TMPDIR full": Kind(fill("tmp"), DONE, (0,), WRITER, "tmp"),
    "stdout is full": Kind(nothing, r"error\[\S+\]: .*No space left", (1,), ("load  ",), given={"stdout": "/dev/full"}),
}
TORCHRUN = ("SIGKILL a rank", "SIGTERM a rank", "SIGSTOP a rank", "SIGTERM", "launcher SIGKILL", "ffmpeg SIGSTOP")
BY_LAUNCHER = {
    "": tuple(KINDS),
    "torchrun": TORCHRUN,
    "restarts": ("SIGKILL a rank",),
    "srun": ("SIGKILL a rank", "SIGSTOP a rank", "SIGTERM", "SIGINT once, to the group", "launcher SIGKILL"),
}
"""Kinds that are tried with each launcher."""
LATER = ("SIGTERM", "SIGINT once, to the group", "launcher SIGKILL")
"""Kinds that hit a launcher once its ranks run hybridgen: before, they hear no signal, and nothing ties them to it."""
NAMES = {"": "", "torchrun": "torchrun: ", "restarts": "torchrun, one restart: ", "srun": "srun: "}


class Outcome(NamedTuple):
    """What came of a run that was hit."""

    stage: str
    rank: int
    """The rank that was hit, where the fault is to one."""
    seconds: float | None
    """From the fault to the end of the last process; None where there was none."""
    code: int | None
    told: bool
    """Whether the right words were said, and no other error."""
    kept: bool | None
    """Whether latents or clip are there; None where the latents were not done."""
    orphans: int
    left: list[str]
    """Unfinished files."""
    said: list[str]


def hit(name: str, launcher: str, stage: str, rng: random.Random) -> Outcome | None:
    """One run with one fault; None where the fault missed it."""
    kind = KINDS[name]
    place = Path(tempfile.mkdtemp(prefix="faults-"))
    disk, run = place / kind.disk if kind.disk else None, None
    try:
        if disk is not None and not small_disk(disk):
            return None
        run = start(place, launcher, folders=f"TMPDIR={disk}" if kind.disk == "tmp" else "", **kind.given)
        victim = rng.randrange(run.world)
        run.wait_for(stage, 5 * LIMIT)
        time.sleep(0 if stage == START and not launcher else rng.uniform(0, MOST))
        kind.fault(run, victim)
        return outcome(run, kind, launcher, stage, victim)
    except (Missed, ProcessLookupError):
        return None
    finally:
        if run is not None:
            run.end()
        if disk is not None:
            unmount(disk)
        shutil.rmtree(place, ignore_errors=True)


def outcome(run: Run, kind: Kind, launcher: str, stage: str, victim: int) -> Outcome:
    """Wait for the end of a run that was hit."""
    since, ended = time.monotonic(), None
    limit = 5 * LIMIT if launcher == "restarts" else LIMIT  # it begins again
    while ended is None and time.monotonic() < since + limit:
        time.sleep(0.02)
        if run.ended():
            launched = time.monotonic()
            while run.alive() and time.monotonic() < launched + SOON:
                time.sleep(0.02)
            ended = time.monotonic() - since
    said = [
        line for line in run.said.splitlines() if re.match(r"error\[|stopped|  kept:|rank \d+: kept:|  the clip", line)
    ]
    errors = [line for line in said if re.match(r"error\[|stopped", line)]
    names = [path.name for folder in (run.folder, run.out) if folder.is_dir() for path in folder.iterdir()]
    says = re.compile(kind.says.format(rank=victim))
    words = errors[0] if errors else run.said
    if launcher == "torchrun" and not errors:  # before a rank can speak, its launcher does
        says = re.compile(rf"local_rank: {victim} ")
    told = len(errors) <= 1 and any(says.search(line) for line in words.splitlines())
    over = run.code == 0 or (launcher and "\nrepeat " in run.said)  # a launcher tells of a rank that is killed later
    complete = over and not errors and "clip.mp4" in names  # what was hit was not needed any more
    elsewhere = [line for line in said if "kept:" in line and "hybridgen-latents-" in line]
    kept = bool(elsewhere) or any(
        re.fullmatch(r"clip(-\d)?(\.latents)?(-\d)?\.(mp4|safetensors)", one) for one in names
    )
    return Outcome(
        stage,
        victim,
        ended,
        run.code,
        bool(complete or told or not kind.says),
        kept if "denoise  60 steps" in run.said else None,
        len(run.alive()),
        [name for name in names if name.startswith(".") and kind.codes != (-9,)],
        said,
    )


def row(name: str, launcher: str, found: list[Outcome]) -> str:
    """A line of the table."""
    seconds = " ".join("never" if one.seconds is None else f"{one.seconds:.1f}" for one in found)
    finished = [one.kept for one in found if one.kept is not None]
    left = sorted({file for one in found for file in one.left})
    cells = [
        NAMES[launcher] + name,
        seconds,
        " ".join(str(one.code) for one in found),
        f"{sum(one.told for one in found)} of {len(found)}",
        f"{sum(finished)} of {len(finished)}" if finished else "-",
        str(sum(one.orphans for one in found)),
        ", ".join(left) or "-",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--launchers", nargs="*", default=list(BY_LAUNCHER), choices=list(BY_LAUNCHER))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--words", action="store_true", help="print every run's message")
    given = parser.parse_args()
    from hybridgen.engine import imports

    assert imports  # which local runs are forked with
    print("| kind | seconds | exit codes | told once | result kept | orphans | left over |", flush=True)
    print("|---|---|---|---|---|---|---|", flush=True)
    for launcher in given.launchers:
        for name in (one for one in given.kinds if one in BY_LAUNCHER[launcher]):
            rng, stages = random.Random(f"{given.seed} {launcher} {name}"), KINDS[name].stages
            if launcher and name in LATER:
                stages = (START, *stages[1:])
            if launcher == "srun":
                stages = stages[1:]  # its tasks are forked: only programs that were started are seen before they met
            tries = [hit(name, launcher, stages[i % len(stages)], rng) for i in range(given.rounds)]
            print(row(name, launcher, [one for one in tries if one is not None]), flush=True)
            for one in tries if given.words else ():
                print("   ", one, flush=True)


if __name__ == "__main__":
    main()
