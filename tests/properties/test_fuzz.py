"""Whatever is typed or stands in a file, a command ends in an exit code and one line, never in another exception."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridgen.cli.main import call
from hybridgen.cli.plan.flags import PlanFlags
from hybridgen.engine.options import RunOptions
from hybridgen.recipe import library
from hybridgen.recipe.fields import options
from hybridgen.recipe.flags import name_of

BUDGET = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,  # each would be made smaller for minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
VALUES = (
    *(
        "0",
        "-1",
        "2",
        "3",
        "8",
        "9" * 4400,
        "nan",
        "inf",
        "1e400",
        "",
        "x",
        "3x3",
        "0x0",
        "2:1,3",
        "99:",
        "-",
        "@",
        "@@",
    ),
    *("cpu", "demo", "wan2.2", "tiny:nope", "../x", "/", "/dev/null", "r.yaml", "a.mp4", "cfg,ulysses", ",,", "40GB"),
    *(
        "request.steps=2",
        "request.steps=[1",
        "a.b=1",
        "parallel=null",
        "=",
        "\udcff",
        "\n",
        "\x1b[2J",
        "64x64",
        "--",
        "'",
    ),
)
MUTATIONS = (
    *(
        "null",
        "true",
        "-1",
        "1e400",
        "0x" + "f" * 6000,
        "9" * 5000,
        "[]",
        "{}",
        "[" * 40,
        "{a: ",
        "&a x",
        "*a",
        "<<: *a",
    ),
    *(
        "!!binary aGk=",
        "? [1]",
        "\x00",
        "\t",
        "\n",
        "#",
        "'",
        "|\n",
        "2026-01-01",
        "true: 1",
        "nan",
        ".inf",
        "a: &x [*x]",
    ),
)
FILES = {
    "recipes check": [path.read_text() for path in library.files()],
    "run --device cpu --dry-run --recipe": [path.read_text() for path in library.files()],
    "hardware": [
        "base: h100\nmemory: 94GB\nattention: {value: 520e12, origin: x}\ninside: {latency: 25e-6}\ndomain: 8\n"
    ],
    "plan --gpus 8 -q --model-facts": ["layers: 3\nheads: 4\nhead_dim: 32\nffn: 512\npatch: [1, 2, 2]\nsize: 64x64\n"],
    "recipes import": ["model: wan2.2\nparallel_config: {cfg_size: 2, attn2d_size: [3, 3]}\nlinear: {type: x}\n"],
}


def ends(words: list[str]) -> None:
    """Run a command, and check that it ends as commands do."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = call(words)
    assert code in (0, 1, 2) and (code != 2 or err.getvalue()), words
    assert "\x1b" not in out.getvalue() + err.getvalue()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path


@pytest.mark.parametrize(("start", "own"), [("run --dry-run --device cpu", RunOptions), ("plan --gpus 8", PlanFlags)])
@BUDGET
@given(data=st.data())
def test_arguments(start: str, own: type, data: st.DataObject) -> None:
    flags = [name_of(item) for _, _, item in options()] + [name_of(item) for item in fields(own)]
    word = st.tuples(st.sampled_from(flags), st.sampled_from(VALUES) | st.text(max_size=9)).map(list)
    given_words = data.draw(st.lists(word, min_size=1, max_size=3))
    ends([*start.split(), "--model", "demo", *(one for words in given_words for one in words)])


@pytest.mark.parametrize("verb", FILES)
@BUDGET
@given(data=st.data())
def test_files(verb: str, data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(FILES[verb]))
    for _ in range(data.draw(st.integers(1, 3))):
        lines = text.split("\n")
        at, new = data.draw(st.integers(0, len(lines) - 1)), data.draw(st.sampled_from(MUTATIONS) | st.text(max_size=9))
        key = lines[at].partition(":")[0]
        lines[at] = data.draw(st.sampled_from([f"{key}: {new}", new, lines[at] + new, lines[at] + "\n" + lines[at]]))
        text = "\n".join(lines)
    Path("mutated.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    ends([*verb.split(), "mutated.yaml"])
