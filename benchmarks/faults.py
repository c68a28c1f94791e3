"""How runs end: faults at random moments of real commands, local and joined, and a table of what came of them.

    python benchmarks/faults.py [--rounds 5] [--kinds KIND ...] [--seed 1]

Every row is a kind of fault. A fault hits a run of the demo model on 4 ranks, a random time after the run has reached a
stage. The table has the seconds from the fault to the end of the last process, the exit code, whether the message names
the rank, and what is left: processes, unfinished files, and whether the final latents or the clip are there.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

WORLD = 4
LIMIT = 20.0
"""Seconds after which a run counts as one that never ends."""
STAGES = ("", "load  ", "s/step", "denoise  60 steps", "decode  ")
"""What a run has printed when the time to a fault begins; "" for its first rank."""
MOST = 0.35
"""Seconds from there to the fault, at most."""
REQUEST = "run --model demo --cfg 2 --ulysses 2 --vae 2 --steps 60 --out clip.mp4 --seed 1".split()


@dataclass
class Run:
    """A command in a folder of its own."""

    folder: Path
    process: subprocess.Popen[bytes]
    joined: bool
    known: set[int] = field(default_factory=set)
    """Every process of the run that was seen."""

    @property
    def said(self) -> str:
        return (self.folder / "stderr").read_text(errors="replace")

    def look(self) -> list[int]:
        """The ranks, by number; remembers all descendants."""
        below = descendants(self.process.pid)
        self.known |= {self.process.pid, *below}
        if not self.joined:
            return [pid for pid in children(self.process.pid) if "hybridgen" in command(pid)]
        ranks = {environment(pid).get("RANK"): pid for pid in below if environment(pid).get("RANK")}
        return [pid for _, pid in sorted((int(rank), pid) for rank, pid in ranks.items() if rank is not None)]

    def ffmpeg(self) -> list[int]:
        return [pid for pid in descendants(self.process.pid) if "ffmpeg" in command(pid)]

    def alive(self) -> list[int]:
        """Processes of the run that are still there."""
        return [pid for pid in self.known if state(pid) not in ("", "Z", "X")]


def read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def state(pid: int) -> str:
    return read(f"/proc/{pid}/stat").rpartition(")")[2].strip()[:1]


def children(pid: int) -> list[int]:
    found = [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in read(str(path)).split()]
    return sorted(found)


def descendants(pid: int) -> list[int]:
    below = children(pid)
    return below + [one for child in below for one in descendants(child)]


def command(pid: int) -> str:
    return read(f"/proc/{pid}/cmdline").replace("\0", " ")


def environment(pid: int) -> dict[str, str]:
    return dict(item.split("=", 1) for item in read(f"/proc/{pid}/environ").split("\0") if "=" in item)


def send(number: int) -> Callable[[Run, int], None]:
    """A fault: a signal to one rank, as soon as it is there."""

    def fault(run: Run, victim: int) -> None:
        while len(ranks := run.look()) <= victim and run.process.poll() is None:
            time.sleep(0.005)
        os.kill(ranks[victim], number)

    return fault


def to_launcher(number: int, times: int = 1, group: bool = False) -> Callable[[Run, int], None]:
    """A fault: a signal to the process that was started, or to all of its group."""

    def fault(run: Run, _: int) -> None:
        for _ in range(times):
            with suppress(ProcessLookupError):
                (os.killpg if group else os.kill)(run.process.pid, number)
            time.sleep(0.025)

    return fault


def to_ffmpeg(number: int) -> Callable[[Run, int], None]:
    def fault(run: Run, _: int) -> None:
        end = time.monotonic() + LIMIT
        while not (found := run.ffmpeg()):
            if run.process.poll() is not None or time.monotonic() > end:
                raise IndexError("no ffmpeg was seen")
            time.sleep(0.005)
        os.kill(found[0], number)

    return fault


def stop_and_kill(run: Run, victim: int) -> None:
    """A fault: a rank is stopped and its launcher is killed."""
    send(signal.SIGSTOP)(run, victim)
    os.kill(run.process.pid, signal.SIGKILL)


@dataclass(frozen=True)
class Kind:
    """A kind of fault, and what must be said."""

    fault: Callable[[Run, int], None]
    says: str
    """Text of the message; {rank} is the victim."""
    stages: tuple[str, ...] = STAGES


RANK = "rank {rank} of 4"
KINDS = {
    "SIGKILL a rank": Kind(send(signal.SIGKILL), RANK),
    "SIGTERM a rank": Kind(send(signal.SIGTERM), RANK),
    "SIGHUP a rank": Kind(send(signal.SIGHUP), RANK),
    "SIGSTOP a rank": Kind(send(signal.SIGSTOP), RANK),
    "SIGINT once, to the group": Kind(to_launcher(signal.SIGINT, group=True), "stopped"),
    "SIGINT twice, to the group": Kind(to_launcher(signal.SIGINT, 2, group=True), "stopped"),
    "SIGTERM": Kind(to_launcher(signal.SIGTERM), "stopped by SIGTERM"),
    "SIGTERM 8 times": Kind(to_launcher(signal.SIGTERM, 8), "stopped by SIGTERM"),
    "SIGHUP, to the group": Kind(to_launcher(signal.SIGHUP, group=True), "stopped by SIGHUP"),
    "launcher SIGKILL": Kind(to_launcher(signal.SIGKILL), ""),
    "rank stopped, launcher SIGKILL": Kind(stop_and_kill, ""),
    "ffmpeg SIGKILL": Kind(to_ffmpeg(signal.SIGKILL), "rank 0 of 4", ("denoise  60 steps",)),
    "ffmpeg SIGSTOP": Kind(to_ffmpeg(signal.SIGSTOP), "rank 0 of 4", ("denoise  60 steps",)),
}
JOINED = ("SIGKILL a rank", "SIGTERM a rank", "SIGSTOP a rank", "SIGTERM", "launcher SIGKILL", "ffmpeg SIGSTOP")
"""Kinds that are tried under torch.distributed.run as well."""


def start(folder: Path, joined: bool) -> Run:
    """Start a run with its output in files."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORLD}"] if joined else []
    words = [sys.executable, *launcher, "-m", "hybridgen", *REQUEST, "-p", "a red circle moves right"]
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        process = subprocess.Popen(words, cwd=folder, stdout=out, stderr=err, start_new_session=True)
    return Run(folder, process, joined)


def wait_for(run: Run, text: str) -> bool:
    """Whether the run has printed a text before it ended."""
    while not (text in run.said and run.look()):
        if run.process.poll() is not None:
            return False
        time.sleep(0.01)
    return True


def hit(name: str, joined: bool, stage: str, rng: random.Random) -> dict[str, object]:
    """One run with one fault; what came of it."""
    kind, victim = KINDS[name], rng.randrange(WORLD)
    with tempfile.TemporaryDirectory(prefix="faults-") as place:
        run = start(Path(place), joined)
        try:
            wait_for(run, stage)
            time.sleep(rng.uniform(0, MOST))
            run.look()
            try:
                kind.fault(run, victim)
            except (IndexError, ProcessLookupError):  # the run had ended, or its ranks were not there yet
                return {"missed": True}
            return outcome(run, kind.says.format(rank=victim), time.monotonic())
        finally:
            for pid in run.alive():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            run.process.wait()


def outcome(run: Run, says: str, since: float) -> dict[str, object]:
    """Wait for the end of a run that was hit."""
    ended = None
    while time.monotonic() < since + LIMIT and ended is None:
        with suppress(subprocess.TimeoutExpired):
            run.process.wait(0.05)
            ended = time.monotonic() - since
    end = time.monotonic() + 2
    while run.alive() and time.monotonic() < end:
        time.sleep(0.02)
    left = sorted(path.name for path in run.folder.iterdir() if path.name not in ("stdout", "stderr"))
    return {
        "seconds": ended,
        "code": run.process.returncode,
        "told": says in run.said,
        "orphans": len(run.alive()),
        "hidden": [name for name in left if name.startswith(".")],
        "kept": [name for name in left if not name.startswith(".")],
        "said": [
            line for line in run.said.splitlines() if "error[" in line or line.startswith("stopped") or "kept:" in line
        ],
    }


def row(name: str, joined: bool, found: list[dict[str, object]]) -> str:
    """A line of the table."""
    real = [one for one in found if "missed" not in one]
    seconds = " ".join("never" if one["seconds"] is None else f"{one['seconds']:.1f}" for one in real)
    codes = " ".join(str(one["code"]) for one in real)
    told = f"{sum(bool(one['told']) for one in real)} of {len(real)}"
    orphans = sum(int(str(one["orphans"])) for one in real)
    files = ", ".join(sorted({name for one in real for name in [*one["kept"], *one["hidden"]]}))  # type: ignore[misc]
    return f"| {'joined: ' if joined else ''}{name} | {seconds} | {codes} | {told} | {orphans} | {files or '-'} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--only", choices=("local", "joined"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--words", action="store_true", help="print every run's message")
    given = parser.parse_args()
    rng = random.Random(given.seed)
    print(
        "| kind | seconds | exit codes | told rightly | orphans | files left |\n|---|---|---|---|---|---|", flush=True
    )
    for joined in (False, True):
        if given.only == ("local" if joined else "joined"):
            continue
        for name in given.kinds:
            if joined and name not in JOINED:
                continue
            stages = KINDS[name].stages
            found = [hit(name, joined, stages[i % len(stages)], rng) for i in range(given.rounds)]
            print(row(name, joined, found), flush=True)
            for one in found if given.words else ():
                print("   ", one, flush=True)


if __name__ == "__main__":
    main()
