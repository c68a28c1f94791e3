"""python -m hybridgen, for launchers that start modules (torchrun -m hybridgen)."""

from hybridgen.cli.main import main

if __name__ == "__main__":
    main()
