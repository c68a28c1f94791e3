"""hybridgen's command line: assembles the verbs and ends every error in one line and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import typer
from typer.exceptions import TyperException

from hybridgen import launcher
from hybridgen.cli import options, plan, run, text
from hybridgen.errors import RequestError, RunFailed

app = typer.Typer(
    name="hybridgen",
    help="Hybrid parallel video generation: compose strategies, plan them, run them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run", epilog=run.EXAMPLES)(run.run)
app.command("plan", epilog=plan.EXAMPLES)(plan.plan)


@app.callback(invoke_without_command=True)
def version(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        from importlib.metadata import version as installed

        text.answer(f"hybridgen {installed('hybridgen')}")
        raise typer.Exit


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 ran and failed, 2 cannot be, 130 Ctrl-C, 143 SIGTERM."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    # As an exception it runs the clean-up that kills the ranks.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(call(sys.argv[1:]))


def call(arguments: list[str]) -> int:
    """Run one command; its exit code. Errors go to stderr, in one line and at most a few of help."""
    try:
        code: Any = app(arguments, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except TyperException as error:
        text.say(*_usage(error))
        return 2
    except RequestError as error:
        if launcher.speaks():
            text.say(*error.lines(["hybridgen", *arguments]))
        return 2
    except RunFailed as error:
        text.say(*error.lines())
        if "--debug" in arguments and error.traceback:
            text.say(error.traceback)
        return 1
    except (KeyboardInterrupt, typer.Abort) as interrupt:
        text.say("stopped", *(f"  {note}" for note in getattr(interrupt, "__notes__", [])))
        return 130
    except BrokenPipeError:
        # The reader of our pipe went away (| head); nothing is left to say, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _usage(error: Any) -> list[str]:
    """A wrong flag or value, in one line."""
    message = " ".join(error.format_message().split())
    name = getattr(error, "option_name", "")
    if name in options.PEERS:
        engine, flag = options.PEERS[name]
        message = f"{engine}'s {name} is {flag} here"
    lines = [f"error[usage]: {message}"]
    context = getattr(error, "ctx", None)
    if context is not None:
        lines.append(f"  try:  {context.command_path} --help")
    return lines


if __name__ == "__main__":
    main()
