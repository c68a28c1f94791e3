"""hybridgen's command line: assembles the verbs and ends every error in one line and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import typer
from typer.exceptions import TyperException

from hybridgen.cli import calibrate, explain, options, recipes, run, text
from hybridgen.cli.plan import command as plan
from hybridgen.cli.verb import Verb, Verbs
from hybridgen.engine import environment
from hybridgen.errors import RequestError, RunFailed

app = typer.Typer(
    name="hybridgen",
    cls=Verbs,
    help="Hybrid parallel video generation: compose strategies, plan them, run them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run", cls=Verb, epilog=run.EXAMPLES)(run.run)
app.command("plan", cls=Verb, epilog=plan.EXAMPLES)(plan.plan)
app.add_typer(recipes.app, name="recipes")
app.command("calibrate", epilog=calibrate.EXAMPLES)(calibrate.calibrate)
app.command("explain", epilog=explain.EXAMPLES)(explain.explain)


@app.callback(invoke_without_command=True)
def version(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        from importlib.metadata import version as installed

        text.answer(f"hybridgen {installed('hybridgen')}")
        raise typer.Exit


OF_THIS_MACHINE = ("device", "gpus-present", "model-unavailable")
"""Rules that may be broken on one machine of a joined job alone."""


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 ran and failed, 2 cannot be, 130 Ctrl-C, 143 SIGTERM."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        getattr(sys, name).reconfigure(errors="replace")
    for number in (signal.SIGTERM, signal.SIGHUP):  # as an exception it runs the clean-up that kills the ranks
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    sys.exit(call(sys.argv[1:]))


def call(arguments: list[str]) -> int:
    """Run one command; its exit code. Errors go to stderr, in one line and at most a few of help."""
    try:
        code: Any = app(arguments, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except TyperException as error:
        if error.format_message():  # none: help was shown, since no verb was given
            text.say(*_usage(error))
        return 2
    except RequestError as error:
        here = environment.joined_rank()
        if environment.is_reporter() or error.rule in OF_THIS_MACHINE:
            where = f"rank {here.rank}: " if here and here.rank else ""
            first, *rest = error.lines(["hybridgen", *arguments])
            text.say(where + first, *rest)
        return 2
    except RunFailed as error:
        text.say(*error.lines())
        if "--debug" in arguments and error.traceback:
            text.say(error.traceback)
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # our reader went away; nothing is left to say, also at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        else:
            text.say(f"error[system]: {error}")
        return 1


def _usage(error: Any) -> list[str]:
    """A wrong flag or value, in one line."""
    message = " ".join(error.format_message().split())
    name = getattr(error, "option_name", "")
    if name in (peers := options.peers()):
        engine, flag = peers[name]
        message = f"{engine}'s {name} is {flag} here"
    lines = [f"error[usage]: {message}"]
    context = getattr(error, "ctx", None)
    if context is not None:
        lines.append(f"  try:  {context.command_path} --help")
    return lines


if __name__ == "__main__":
    main()
