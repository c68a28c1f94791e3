"""hybridgen explain: the reason of a rule, by the id that errors and plan --rejected show."""

from __future__ import annotations

import difflib
from typing import Annotated, Optional

import typer

from hybridgen.cli import text
from hybridgen.errors import RequestError

EXAMPLES = "hybridgen explain ulysses-heads"


def explain(
    rule: Annotated[Optional[str], typer.Argument(help="Rule id; without one all are listed.", metavar="RULE")] = None,
) -> None:
    """Tell the reason of a rule, by the id that errors and `plan --rejected` show."""
    from hybridgen.cli.explanations import rules

    known = rules()
    if rule is None:
        for name, why in known.items():
            text.answer(*text.paragraph(name, why, 23))
        return
    rule = rule.lower()
    if rule not in known:
        close = difflib.get_close_matches(rule, known, n=2, cutoff=0.4) or list(known)[:3]
        raise RequestError.told(
            "unknown-rule",
            f"{rule} is no rule; nearest: {', '.join(close)}",
            tries=[f"hybridgen explain {close[0]}"],
        )
    text.answer(*text.paragraph(rule, known[rule], len(rule) + 2))
