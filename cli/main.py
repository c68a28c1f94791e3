"""hybridgen's command line: assembles the verbs and ends every error in one line and an exit code."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from textwrap import shorten
from typing import Any

import typer
from typer.exceptions import TyperException

from hybridgen.cli import text
from hybridgen.cli.verb import LazyVerbs, NobodyReads, built
from hybridgen.distributed.signals import Stopped, raise_on_signals
from hybridgen.engine import environment
from hybridgen.errors import PREEMPTED, RequestError, RunFailed

TRY_AGAIN = 75
"""The exit code of a run that a cluster may start again: EX_TEMPFAIL of sysexits.h."""
VERBS = {
    "run": ("hybridgen.cli.run", "Make a clip from a prompt, spread over ranks."),
    "decode": ("hybridgen.cli.decode", "Make the clip of final latents that a run has kept."),
    "plan": ("hybridgen.cli.plan.command", "Recommend how to spread a clip over GPUs."),
    "models": ("hybridgen.cli.models", "List the models known by name, and what they need."),
    "hardware": ("hybridgen.cli.hardware", "List the machines known by name, and their constants."),
    "show": ("hybridgen.cli.show", "Show how a clip was made, from its own record."),
    "recipes": ("hybridgen.cli.recipes", "List, show, check and exchange recipes."),
    "calibrate": ("hybridgen.cli.calibrate", "Measure this machine for plan --hardware."),
    "explain": ("hybridgen.cli.explain", "Explain a rule that an error names."),
}
"""The commands: module, and the line in the help."""


class Verbs(LazyVerbs):
    """The commands of VERBS."""

    modules = {name: module for name, (module, _) in VERBS.items()}


app = typer.Typer(
    name="hybridgen",
    cls=Verbs,
    help="Hybrid parallel video generation: compose strategies, plan them, run them.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # what typer imports for its boxes doubles the time of this help
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name, (_, line) in VERBS.items():
    app.command(name, help=line)(lambda: None)


@app.callback(invoke_without_command=True)
def version(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        from importlib.metadata import version as installed

        text.answer(f"hybridgen {installed('hybridgen')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        text.answer(context.get_help())
        raise typer.Exit(2)


MOST_SAID = 400
"""Characters that are said of a command that cannot be read; some of it is what was typed."""
OF_THIS_MACHINE = ("device", "gpus-present", "model-unavailable")
"""Rules that can be broken on a single machine of a joined job."""


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 ran and failed, 2 cannot be, 130 Ctrl-C, 141 nobody reads, 143 SIGTERM."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
        getattr(sys, name).reconfigure(errors="replace")
    raise_on_signals()  # as an exception it runs the clean-up that kills the ranks
    code = call(sys.argv[1:])
    with suppress(RequestError):
        if code == 0 and sys.argv[1:2] in (["run"], ["decode"]) and (here := environment.joined_rank()):
            from hybridgen.distributed import lookout

            lookout.leave(here)
    sys.exit(code)


def call(arguments: list[str]) -> int:
    """Run one command and return its exit code. An error goes to stderr, in one line and a few of help."""
    try:
        return _called(arguments)
    except SystemExit as end:  # of typer's help, where nobody reads
        if not isinstance(end.__context__, BrokenPipeError):
            raise
    except (NobodyReads, BrokenPipeError):
        pass
    except OSError as error:
        text.say(f"error[system]: {error}")
        return 1
    for stream in (sys.stdout, sys.stderr):  # nothing is left to say, also at exit
        with suppress(ValueError):  # it may be no file
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return 128 + signal.SIGPIPE


def _called(arguments: list[str]) -> int:
    """The same but for what the system refuses, such as output that cannot be written. Raises OSError, SystemExit."""
    flags: dict[str, Any] = {}  # of the command, once they are read
    try:
        code: Any = built(app)(arguments, prog_name="hybridgen", standalone_mode=False, obj=flags)
        return code if isinstance(code, int) else 0
    except TyperException as error:
        if error.format_message():  # none: help was shown, since no command of a group was given
            _refuse(found := _usage(error, arguments), ["hybridgen", *arguments], _wants_json(found, arguments, flags))
        return 2
    except RequestError as error:
        _refuse(error, ["hybridgen", *arguments], _wants_json(error, arguments, flags))
        return 2
    except RunFailed as error:
        text.say(*error.lines())
        if flags.get("debug") and error.traceback:
            text.say(error.traceback)
        return TRY_AGAIN if error.rule == PREEMPTED else 1
    except Stopped as stopped:
        text.say(*stopped.lines())
        return 128 + stopped.number
    except (KeyboardInterrupt, typer.Abort):
        return 130


def _wants_json(error: RequestError, arguments: list[str], flags: dict[str, Any]) -> bool:
    """Whether an error is to be data on stdout; where the flags could not be read, the words say so."""
    return "--json" in arguments if error.rule == "usage" else bool(flags.get("json") or flags.get("as_json"))


def _refuse(error: RequestError, command: list[str], as_json: bool) -> None:
    """Print why a request cannot be served, on one rank of a joined job; with --json also as data on stdout."""
    from hybridgen.cli.explanations import reasons
    from hybridgen.cli.suggest import working

    here = None
    if command[1:2] == ["run"] and error.rule != "launcher":  # other verbs are no ranks, whatever the environment says
        with suppress(RequestError):
            here = environment.joined_rank()
    if here and here.rank and error.rule not in OF_THIS_MACHINE:
        return
    error, why = working(error, command, built(app)), reasons()
    where = f"rank {here.rank}: " if here and here.rank else ""
    first, *rest = (line.replace("\n", "\\n") for line in error.lines(command, why))
    text.say(where + first, *rest)
    if as_json:
        text.answer(json.dumps({"error": error.as_data(command, why)}, indent=2))


def _usage(error: Any, arguments: list[str]) -> RequestError:
    """A wrong flag or value as the error of a request."""
    from hybridgen.cli import foreign

    if (found := foreign.unknown_flag(error, arguments)) is not None:
        return found
    context = getattr(error, "ctx", None)
    tries = [] if context is None else [f"{context.command_path} --help"]
    return RequestError("usage", "", None, shorten(error.format_message(), MOST_SAID, placeholder=" ..."), tries=tries)


if __name__ == "__main__":
    main()
