"""Files that plan reads, --model-facts and --hardware: every key is legal, or refused where it stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from math import inf
from pathlib import Path

import pytest

from hybridgen.cli.main import call
from hybridgen.errors import RequestError
from hybridgen.interop.trtllm_import import load
from hybridgen.planner import facts_file
from hybridgen.planner.hardware import lookup
from hybridgen.planner.hardware.constants import Constant, Hardware, Link
from hybridgen.planner.hardware.known import MACHINES
from hybridgen.recipe.check import check
from hybridgen.recipe.compose import compose
from hybridgen.recipe.typed import as_number

WORDED = ("; nearest: ", ": must be ", ": must hold keys of its own", ": is missing")
"""How a message says what a value must be."""
VALUES = ("0", "-1", "1.5", "true", "x", "[]")
FACTS = {"layers": "4", "heads": "4", "head_dim": "32", "ffn": "512", "size": "64x64", "frames": "5"}
KEYS = facts_file.keys()
ZERO = "kv_heads width adaln text_width vocabulary image_dim image_positions params text_tokens text_params".split()
RATES = ("attention", "matmul", "bandwidth", "decoder", "writing", "gather", "reduce", "neighbour")
SHARES = ("error", "anchored", "float32", "decoder32")


def legal_fact(key: str) -> set[str]:
    """Which of VALUES a key may have."""
    if key in ZERO:
        return {"0"}
    if key != "size" and isinstance(KEYS[key].usual, bool):
        return {"true"}
    return {"name": {"x"}, "guidance": {"0", "1.5"}}.get(key, set())


@pytest.mark.parametrize("key", [*KEYS, "size"])
def test_every_fact_is_legal_or_refused(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, planned = tmp_path / "m.yaml", set()
    for value in VALUES:
        others = "".join(f"{name}: {given}\n" for name, given in FACTS.items() if name != key)
        file.write_text(f"{key}: {value}\n{others}")
        if call(["plan", "--gpus", "2", "--model-facts", str(file)]) == 0:
            planned.add(value)
            continue
        first = capsys.readouterr().err.splitlines()[0]
        assert first.startswith(f"error[model-facts]: {file}:1:1: {key}"), first
        assert any(word in first for word in WORDED), first
    assert planned == legal_fact(key)


def constants() -> list[str]:
    """Every key of a machine's file."""
    links = [f"{link}.{f.name}" for link in ("inside", "outside") for f in fields(Link)]
    return [*(f.name for f in fields(Hardware)), *links]


def legal_constant(key: str) -> set[str]:
    """Which of VALUES a key may have."""
    link, _, name = key.rpartition(".")
    usual = getattr(MACHINES["h100"].inside if link else MACHINES["h100"], name)
    if name == "hosts":
        return {"[]"}  # as many on each
    if not isinstance(usual, Constant):
        return {"true"} if isinstance(usual, bool) else {"x"} if name in ("name", "title") else set()
    if name in SHARES:
        return set()
    return {"1.5"} if name in RATES else {"0", "1.5"}


@pytest.mark.parametrize("form", ["{}", "{{value: {}, origin: measured}}"])
@pytest.mark.parametrize("key", constants())
def test_every_constant_is_legal_or_refused(
    key: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link, _, name = key.rpartition(".")
    base = MACHINES["h100"].inside if link else MACHINES["h100"]
    is_constant = isinstance(getattr(base, name), Constant)
    if form != "{}" and not is_constant:
        return
    file, planned = tmp_path / "box.yaml", set()
    for value in VALUES:
        given = f"{name}: {form.format(value)}"
        file.write_text(f"{f'{link}: {{{given}}}' if link else given}\nbase: h100\n")
        code = call(["plan", "--model", "wan2.1-1.3b", "--gpus", "2", "--hardware", str(file)])
        first = "".join(capsys.readouterr().err.splitlines()[:1])
        if code == 0 or first.startswith("error[memory]: "):  # 1.5 bytes of memory are legal, and few
            planned.add(value)
            continue
        assert first.startswith(f"error[hardware-file]: {file}:1:") and f": {key}" in first, first
        assert any(word in first for word in WORDED), first
    assert planned == legal_constant(key)


NEEDED = "layers: 40\nheads: 40\nhead_dim: 128\nffn: 13824\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("heads: 8\nheads: 4\n", ":2:1: heads: is given twice"),
        ("stride_space: 0\n", ":1:1: stride_space 0: must be 1 or more; nearest: 1"),
        ("layers: 10.5\n", ":1:1: layers 10.5: must be a whole number; nearest: 10"),
        ("params: -3\n", ":1:1: params -3: must be 0 or more; nearest: 0"),
        ("layers: 1e12\n", "layers 1000000000000: must be 1000000000 or less"),
        ("dtype: fp8\n", ":1:1: dtype 'fp8': must be 'float32', 'bfloat16' or 'float16'"),
        ("patch: 3\n", ":1:1: patch 3: must be a list"),
        (NEEDED + "size: foo\n", ":5:1: size 'foo': is not width x height; nearest: 1280x720"),
        (NEEDED + "size: " + 5000 * "9" + "x720\n", "is not width x height"),
        ("patch: [1, 2, true]\n", ":1:15: patch.2 True: must be a whole number"),
        (
            NEEDED + "size: 1281x720\n",
            ":5:1: size 1281x720: is not a multiple of 16x16 pixels for m; nearest: 1280x720",
        ),
        (NEEDED + "frames: 80\n", ":5:1: frames 80: cannot be made: the VAE of m makes 4k + 1 frames; nearest: 77, 81"),
        (NEEDED + "stride_time: 3\n", ": frames: is not given, and Wan's 81 cannot be made: the VAE of m makes 3k + 1"),
        (
            NEEDED + "max_positions: 1\n",
            ": size: is not given, and Wan's 1280x720 is beyond the 1 positions of m; near",
        ),
        (NEEDED + "kv_heads: 3\n", ":5:1: kv_heads 3: must divide the 40 heads; nearest: 2, 4"),
        (
            NEEDED + "params: 1000\n",
            ":5:1: params 1,000: is too few: the matrices of the blocks alone have 11,953,766,400;",
        ),
        (NEEDED + "text_stream: own\nparams: 14e9\n", "the matrices of the blocks alone have 23,907,532,800"),
        ("1: 2\n", ":1:1: 1: is not known; keys here: "),
        ("ffn: &f [*f]\n", "is nested too deeply, or holds itself by an alias"),
    ],
)
def test_facts_that_cannot_be_are_named(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(text)
    with pytest.raises(RequestError) as caught:
        facts_file.read(file)
    assert str(file) in caught.value.message and says in caught.value.message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("base: h100\nbase: a100\n", ":2:1: base: is given twice"),
        ("base: h100\ninside: {hop: 1, hop: 2}\n", ":2:18: inside.hop: is given twice"),
        ("base: nope\n", ":1:1: base 'nope': is not a known machine; nearest: "),
        ("base: box.yaml\n", ":1:1: base 'box.yaml': is not a known machine"),
        ("base: 5\n", ":1:1: base 5: is not a known machine"),
        (
            "base: h100\nerror: 5\n",
            ":2:1: error 5: must be 0.999 or less; nearest: 0.999",
        ),
        ("base: h100\nattention: true\n", ":2:1: attention True: must be a number"),
        (
            "base: h100\ninside: {latency: -1}\n",
            ":2:10: inside.latency -1: must be 0 or more; nearest: 0",
        ),
        ("base: h100\nmatmul: {value: 1, origin: 5}\n", ":2:20: matmul.origin 5: must be text"),
        (
            "base: h100\nmatmul: {origin: x}\n",
            ":2:1: matmul.value: is missing",
        ),
        ("base: h100\nwriting: 1" + 400 * "0" + "\n", ":2:1: writing "),
        ("base: h100\nmemory: 1e40\n", ":2:1: memory 1e+40: must be 1e+30 or less"),
    ],
)
def test_a_machine_that_cannot_be_is_named(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "box.yaml"
    file.write_text(text)
    with pytest.raises(RequestError) as caught:
        lookup.find(str(file))
    assert str(file) in caught.value.message and says in caught.value.message


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_the_machines_that_are_known_keep_the_limits(name: str) -> None:
    for key, constant in MACHINES[name].constants():
        limits = lookup.LIMITS.get(key.rpartition(".")[2], lookup.OTHERS)
        assert limits.low <= constant.value <= limits.high, key


def test_numbers_are_read_as_yaml_and_people_write_them() -> None:
    read = {text: as_number(text) for text in ("80e9", "1e3", " 7 ", "1.5", "-inf", "1e400", "x", "")}
    assert read == {"80e9": 80e9, "1e3": 1e3, " 7 ": 7, "1.5": 1.5, "-inf": -inf, "1e400": inf, "x": "x", "": ""}
    others: list[object] = [True, None, [], 10**400, 3]
    assert [as_number(value) for value in others] == others


def test_the_first_fault_in_a_file_is_told_and_what_is_missing_last(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    for text, key in (("ffn: x\nheads: y\n", "ffn"), ("ffn: 8\nhaeds: 4\n", "haeds"), ("ffn: 8\nheads: 4\n", "layers")):
        file.write_text(text)
        with pytest.raises(RequestError) as caught:
            facts_file.read(file)
        assert caught.value.flag == key


STRANGE = [
    *(
        "null",
        "[]",
        "{}",
        "[[1]]",
        "{a: b}",
        "true",
        "-1",
        "1e400",
        ".nan",
        ".inf",
        "'x'",
        '""',
        "2026-13-45",
        "1:30.5",
    ),
    *(
        "0x_",
        "0x" + 6000 * "f",
        5000 * "9",
        ":".join(200 * ["59"]) + ".5",
        "!!binary aGk=",
        "!!set {a}",
        "!!omap [a: 1]",
    ),
    *(
        "!!python/name:os.system",
        "&a [*a]",
        "&a x",
        "*a",
        "{<<: {a: 1}}",
        "{? [1] : 2}",
        "\t",
        "\x00",
        "\ufeff",
        "\u2028",
    ),
    *('"\\ud800"', "[" * 2000, "%YAML 9", "---", "${x}", "a: b: c", "|\n  x", "- 1"),
]


@pytest.mark.parametrize("value", STRANGE, ids=[value[:20] for value in STRANGE])
def test_strange_values_are_read_or_refused(value: str, tmp_path: Path) -> None:
    """No reader of a file ends in another exception, whatever stands at a key of text, of numbers, or of keys."""
    file = tmp_path / "x.yaml"
    readers: dict[str, Callable[[], object]] = {
        "schema: 1\nnotes: {}\nrequest: {{steps: {}}}\nmeasured: {}\n": lambda: compose(file, [], {}),
        "schema: 1\nlicense: {}\nparallel: {{pipefusion: {}}}\nruntime: {}\n": lambda: check(file),
        "base: h100\ntitle: {}\ninside: {{hop: {}}}\nmatmul: {}\n": lambda: lookup.find(str(file)),
        "layers: {}\nheads: 4\nhead_dim: 32\nffn: 512\npatch: {}\nname: {}\n": lambda: facts_file.read(file),
        "checkpoint_path: wan2.2\ncompilation: {{num_frames: {}}}\nlinear: {}\nparallel: {}\n": lambda: load(file),
    }
    for form, read in readers.items():
        for place in range(3):
            file.write_text(form.format(*(value if at == place else "null" for at in range(3))), encoding="utf-8")
            try:
                read()
            except RequestError as error:
                assert error.message and "\n" not in error.message


def test_many_keys_of_few_bytes_are_refused(tmp_path: Path) -> None:
    lists = [f"a{n}: &a{n} [{', '.join(9 * [f'*a{n - 1}'])}]\n" for n in range(1, 9)]
    file = tmp_path / "x.yaml"
    file.write_text("a0: &a0 [x]\n" + "".join(lists))
    with pytest.raises(RequestError, match="more than 10,000 keys"):
        facts_file.read(file)


@pytest.mark.parametrize("written", ["010", "1:30", "0o10", "-017"])
def test_numbers_that_yaml_reads_otherwise_than_people_are_refused(written: str, tmp_path: Path) -> None:
    """Of 010 it would make 8, and of 1:30, as in clocks, 90."""
    (tmp_path / "r.yaml").write_text(f"schema: 1\nmodel: demo\nrequest: {{steps: {written}}}\n")
    with pytest.raises(RequestError, match=f"request.steps '{written}': must be a whole number"):
        compose(tmp_path / "r.yaml", [], {})
