"""The flags of hybridgen plan that are no fields of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

Gpus = Annotated[Optional[int], typer.Option("--gpus", help="Number of GPUs.", metavar="N", rich_help_panel="Machine")]
Nodes = Annotated[
    Optional[int], typer.Option("--nodes", help="Number of hosts.", metavar="N", rich_help_panel="Machine")
]
GpusPerNode = Annotated[
    Optional[int], typer.Option("--gpus-per-node", help="GPUs of a host.", metavar="N", rich_help_panel="Machine")
]
Machine = Annotated[
    Optional[str],
    typer.Option(
        "--hardware",
        help="gb200-nvl72 (default), b200, h200, h100, h100-pcie, a100, h20, l40s, rtx4090, rtx5090, cpu or FILE.yaml.",
        metavar="NAME",
        rich_help_panel="Machine",
    ),
]
Heads = Annotated[
    Optional[int],
    typer.Option(
        "--heads",
        help="Attention heads instead of the model's own; the width of attention stays.",
        metavar="N",
        rich_help_panel="Model",
    ),
]
Facts = Annotated[
    Optional[Path],
    typer.Option(
        "--model-facts", help="A model of your own, described in YAML.", metavar="FILE.yaml", rich_help_panel="Model"
    ),
]
Dtype = Annotated[
    Optional[str],
    typer.Option(
        "--dtype",
        help="float32, bfloat16 or float16; the model's own by default.",
        metavar="NAME",
        rich_help_panel="Model",
    ),
]
Approximate = Annotated[
    bool,
    typer.Option(
        "--approximate", help="Let pipefusion compete, which changes the clip a little.", rich_help_panel="Choice"
    ),
]
Fewer = Annotated[
    bool, typer.Option("--fewer", help="Recommend fewer GPUs where more are no faster.", rich_help_panel="Choice")
]
Anchor = Annotated[
    Optional[float],
    typer.Option(
        "--anchor",
        help="Denoise seconds of this clip, measured on one GPU.",
        metavar="SECONDS",
        rich_help_panel="Choice",
    ),
]
MaxTime = Annotated[
    Optional[str],
    typer.Option(
        "--max-time",
        help="Refuse plans whose clip takes longer, as in 90s or 20m.",
        metavar="TIME",
        rich_help_panel="Choice",
    ),
]
Memory = Annotated[
    Optional[str],
    typer.Option(
        "--memory", help="Memory of a GPU that may be used, as in 40GB.", metavar="SIZE", rich_help_panel="Choice"
    ),
]
Top = Annotated[
    Optional[int],
    typer.Option("--top", help="Plans to show, the best of so many kinds (6).", metavar="N", rich_help_panel="Output"),
]
Everything = Annotated[
    bool, typer.Option("--all", help="Show every plan, not the best of each kind.", rich_help_panel="Output")
]
Explain = Annotated[
    Optional[int],
    typer.Option("--explain", help="Take plan N of the table apart.", metavar="N", rich_help_panel="Output"),
]
Rejected = Annotated[
    bool,
    typer.Option("--rejected", help="Show plans near the request that cannot be, and why.", rich_help_panel="Output"),
]
Scaling = Annotated[
    bool, typer.Option("--scaling", help="Show the best plan at every width up to --gpus.", rich_help_panel="Output")
]
Plot = Annotated[
    Optional[Path],
    typer.Option(
        "--plot",
        help="Draw scaling and times into a picture (needs matplotlib).",
        metavar="FILE.png",
        rich_help_panel="Output",
    ),
]
Save = Annotated[
    Optional[Path],
    typer.Option(
        "--save",
        help="Write the recipe of the first plan, or of the one that --explain takes.",
        metavar="FILE.yaml",
        rich_help_panel="Output",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Everything as JSON.", rich_help_panel="Output")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print the recommended plan and nothing else.", rich_help_panel="Output")
]
