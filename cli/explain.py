"""hybridgen explain: why a rule holds, by the id that errors and plan --rejected show."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from hybridgen.cli import text
from hybridgen.cli.options import offered
from hybridgen.cli.verb import Verb
from hybridgen.errors import RequestError, did_you_mean

EXAMPLES = "hybridgen explain ulysses-heads"


app = typer.Typer()


def _rules() -> list[str]:
    from hybridgen.cli.explanations import rules

    return list(rules())


@app.command("explain", cls=Verb, epilog=EXAMPLES)
def explain(
    rule: Annotated[
        Optional[str],
        typer.Argument(help="Rule id; without one all are listed.", metavar="RULE", autocompletion=offered(_rules)),
    ] = None,
) -> None:
    """Explain a rule, by the id that errors and `plan --rejected` show."""
    from hybridgen.cli.explanations import rules

    known = rules()
    if rule is None:
        for name, why in known.items():
            text.answer(*text.paragraph(name, why, 23))
        return
    rule = rule.lower()
    if rule not in known:
        close = did_you_mean(rule, known, 2)
        tries = [f"hybridgen explain {close[0]}" if close else "hybridgen explain"]
        problem = "there is no such rule" if close else "there is no such rule; hybridgen explain lists all"
        raise RequestError("unknown-rule", "", rule, problem, close, tries)
    text.answer(*text.paragraph(rule, known[rule], len(rule) + 2))
