"""Whether ranks that stay keep what they use, and whether jobs of many clips survive being killed.

    python -m benchmarks.endurance [--clips 500] [--kills 20] [--seed 1] [--out FILE.md]

Clips: many small clips on one engine of two CPU ranks, with shapes, steps and seeds in random order. After every tenth
the private memory, open files and threads of ranks and launcher are read. The table has means of an early and of the
last part.

Kills: a job of three clips that keeps states is killed by SIGKILL at a random moment: one of its ranks, the launcher,
or all of them. Then it is started again with --resume. Every clip must equal that of a job that nothing disturbed, and
be in the manifest once; no process and no other file may be left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from benchmarks.fault_runs import Run, alone
from hybridgen import Engine
from hybridgen.engine.replicas import Replicas

MODEL = "tiny:wan2.2-t2v"
EVERY = 10
"""Clips between two samples."""
SIZES = ((64, 64), (96, 64), (64, 96), (96, 96))
PROMPTS = ("a lighthouse in a storm", "a red boat", "a dog in the snow")
JOB = f"run --model {MODEL} --ulysses 2 --frames 9 --steps 24 --prompts list.txt --checkpoint-every 2".split()
NAMES = ["--out", "out/{index}.mp4", "--manifest", "out/manifest.jsonl"]
LIMIT = 300.0
"""Seconds after which a job counts as one that never ends."""
SOON = 5.0
"""Seconds in which the processes of a job that has ended must be gone."""


class Used(NamedTuple):
    """What a process uses."""

    private: float
    """Bytes that no other process shares."""
    files: float
    threads: float


def used(pid: int) -> Used:
    """What a process uses now."""
    here = Path(f"/proc/{pid}")
    words = [line.split() for line in (here / "smaps_rollup").read_text().splitlines()]
    private = sum(int(found[1]) * 1024 for found in words if found[0] in ("Private_Clean:", "Private_Dirty:"))
    return Used(private, len(list((here / "fd").iterdir())), len(list((here / "task").iterdir())))


def samples(clips: int, seed: int) -> dict[str, list[Used]]:
    """Make clips on one engine; what every process used after each tenth."""
    draw, found = random.Random(seed), dict[str, list[Used]]()
    with tempfile.TemporaryDirectory() as folder, Engine(model=MODEL, ulysses=2) as engine:
        assert isinstance(engine.ranks, Replicas)
        for number in range(1, clips + 1):
            engine.generate(
                draw.choice(PROMPTS),
                Path(folder) / "clip.mp4",
                overwrite=True,
                size=draw.choice(SIZES),
                frames=draw.choice((1, 5, 9)) if number > 1 else 9,
                steps=draw.randint(1, 4),
                seed=draw.randrange(2**32),
            )
            ranks = engine.ranks.residents[0].ranks
            if number % EVERY == 0 and ranks is not None:
                named = {f"rank {rank}": one.pid or 0 for rank, one in enumerate(ranks.processes)}
                for name, pid in {**named, "launcher": os.getpid()}.items():
                    found.setdefault(name, []).append(used(pid))
    return found


def endurance(clips: int, seed: int) -> list[str]:
    """The table of means: of the second fifth of the clips, and of the last."""
    fifth = max(1, clips // EVERY // 5)
    lines = [
        f"{clips} clips on one engine. Means of samples in clips {fifth * EVERY + 1} to {2 * fifth * EVERY}, "
        f"and in the last {fifth * EVERY}:",
        "",
        "| process | private MB | then | change | open files | then | threads | then |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, all_of in samples(clips, seed).items():
        early, late = (
            Used(*map(mean, zip(*part, strict=True))) for part in (all_of[fifth : 2 * fifth], all_of[-fifth:])
        )
        cells = [
            f"{early.private / 1e6:.1f}",
            f"{late.private / 1e6:.1f}",
            f"{late.private / early.private - 1:+.1%}",
            *(f"{count:.1f}" for count in (early.files, late.files, early.threads, late.threads)),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


class Ended(NamedTuple):
    """How a job ended."""

    seconds: float | None
    """None for one that never ended."""
    code: int | None
    orphans: int


def job(folder: Path, replicas: int, *words: str) -> Run:
    """Start the job in a folder."""
    (folder / "out").mkdir(exist_ok=True)
    (folder / "list.txt").write_text("".join(f"{prompt}\n" for prompt in PROMPTS))
    many = ["--replicas", str(replicas)] if replicas > 1 else []
    return alone(folder, [*JOB, *NAMES, *many, *words], 2 * replicas)


def ended(run: Run) -> Ended:
    """Wait for the end of a job and of its processes, and end what is left of them."""
    began, seconds = time.monotonic(), None
    while seconds is None and time.monotonic() < began + LIMIT:
        time.sleep(0.05)
        if run.ended():
            seconds = time.monotonic() - began
            while run.alive() and time.monotonic() < began + seconds + SOON:
                time.sleep(0.05)
    left = run.alive()
    run.end()
    return Ended(seconds, run.code, len(left))


def kill(run: Run, draw: random.Random) -> str:
    """Kill one of the ranks, the launcher, or all; returns which."""
    ranks = run.ranks()
    whom = draw.choice(["rank", "launcher", "all"] if ranks else ["launcher", "all"])
    rank = draw.randrange(len(ranks)) if ranks else 0
    victims = {"rank": ranks[rank : rank + 1], "launcher": [run.pid], "all": run.alive()}[whom]
    for pid in victims:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return f"rank {rank}" if whom == "rank" else whom


def digests(folder: Path) -> list[tuple[int, str, str]]:
    """Number, status and digest of every line of the manifest."""
    lines = (folder / "out" / "manifest.jsonl").read_text().splitlines()
    return [(one["clip"], one["status"], one.get("latents_sha256", "")) for one in map(json.loads, lines)]


def faults(folder: Path, replicas: int, draw: random.Random, whole: float, right: list[tuple[int, str, str]]) -> str:
    """Kill a job and start it again; what is wrong afterwards, "" for nothing.

    whole: seconds of a job that nothing disturbs; right: its manifest.
    """
    run = job(folder, replicas)
    moment = draw.uniform(0, whole)
    time.sleep(moment)
    whom = "none, it was over" if run.ended() else kill(run, draw)
    first = ended(run)
    second = ended(job(folder, replicas, "--resume"))
    expected = {"manifest.jsonl", *(f"{number}.mp4" for number in range(1, len(PROMPTS) + 1))}
    files = {path.name for path in (folder / "out").iterdir()}
    wrong = [
        *([f"orphans: {first.orphans}, then {second.orphans}"] if first.orphans or second.orphans else []),
        *([f"exit code {second.code}"] if second.code != 0 else []),
        *([f"manifest {found}"] if (found := digests(folder)) != right else []),
        *([f"left over: {sorted(files - expected)}"] if files - expected else []),
        *([f"missing: {sorted(expected - files)}"] if expected - files else []),
    ]
    print(f"killed after {moment:.1f} of {whole:.1f} s: {whom}; {'; '.join(wrong) or 'as it should be'}", flush=True)
    return "; ".join(wrong)


def kills(count: int, replicas: int, seed: int) -> list[str]:
    """The lines on jobs that were killed so often."""
    draw, wrong = random.Random(f"{seed} {replicas}"), []
    with tempfile.TemporaryDirectory() as place:
        (undisturbed := Path(place) / "undisturbed").mkdir()
        whole = ended(job(undisturbed, replicas)).seconds
        assert whole is not None, (undisturbed / "stderr").read_text()
        right = digests(undisturbed)
        for number in range(count):
            (folder := Path(place) / str(number)).mkdir()
            wrong.append(faults(folder, replicas, draw, whole, right))
    bad = sorted({one for one in wrong if one})
    who = "one group of ranks" if replicas == 1 else f"{replicas} replicas"
    return [f"- {who}: {wrong.count('')} of {count} jobs as they should be", *(f"  - {one}" for one in bad)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=500)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--replicas", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    from hybridgen.engine import imports

    assert imports  # which jobs are forked with
    loads, lines = [os.getloadavg()[0]], ["# Endurance", ""]
    if given.kills:
        told = [line for replicas in given.replicas for line in kills(given.kills, replicas, given.seed)]
        lines += ["Jobs of three clips that were killed, and started again with `--resume`:", "", *told, ""]
        loads.append(os.getloadavg()[0])
    if given.clips:
        lines += [*endurance(given.clips, given.seed), ""]
        loads.append(os.getloadavg()[0])
    lines += [f"Load of the machine ({os.cpu_count()} cores) meanwhile: {', '.join(f'{one:.0f}' for one in loads)}."]
    text = "\n".join(lines) + "\n"
    if given.out:
        given.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
