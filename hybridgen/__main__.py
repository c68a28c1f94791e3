"""hybridgen's program: the command `hybridgen`, and `python -m hybridgen` for launchers that start modules."""

import gc
import signal


def main() -> None:
    """Run one command and exit with its code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during imports needs no traceback
    gc.disable()  # what is imported stays; looking for garbage in it takes a seventh of the time of --version
    from hybridgen.engine.environment import end_with_launcher

    end_with_launcher()  # before imports, which take nearly all of the time until ranks meet
    from hybridgen.cli.main import main

    gc.freeze()
    gc.enable()
    main()


if __name__ == "__main__":
    main()
