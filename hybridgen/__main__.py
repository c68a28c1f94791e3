"""hybridgen's program: the command `hybridgen`, and `python -m hybridgen` for launchers that start modules."""

import gc


def main() -> None:
    """Run one command and exit with its code."""
    gc.disable()  # what is imported stays; looking for garbage in it takes a seventh of the time of --version
    from hybridgen.cli.main import main

    gc.freeze()
    gc.enable()
    main()


if __name__ == "__main__":
    main()
