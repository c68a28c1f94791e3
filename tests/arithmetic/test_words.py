"""Words that people try: other tools' flags, short names, prompts from files; and words that must do nothing."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hybridgen.cli import text
from hybridgen.cli.main import call
from hybridgen.cli.run import summary
from hybridgen.engine.report import Timings
from hybridgen.engine.timing import Prediction, Slowest

FOREIGN = [
    ("run --model demo --height 48 --width=64", "diffusers' --height is --size WxH here", "--model demo --size 64x48"),
    ("run --model demo --num-frames 17", "diffusers' --num-frames is --frames here", "--model demo --frames 17"),
    ("run --model demo --num_frames=17", "diffusers' --num_frames is --frames here", "--model demo --frames 17"),
    ("run --guidance_scale_2 3", "diffusers' --guidance_scale_2 is --guidance-2 here", "--guidance-2 3"),
    ("run --model demo --flow-shift 5 --steps 2", "--flow-shift is not supported yet", "--model demo --steps 2"),
    ("run --model demo --lora a.safetensors", "--lora is not supported yet", "--model demo"),
    ("run --model demo --offload_model True", "--offload_model is not supported yet", "--model demo"),
    ("run --model demo --dit_fsdp --batch 3", "--dit_fsdp is not supported yet", "--model demo"),
    ("run --model demo --use_cfg_parallel", "xDiT's --use_cfg_parallel is --cfg 2 here", "--model demo --cfg 2"),
    ("plan --gpus 4 --ulyses 2", "--ulyses: is not a flag of this command; nearest: --ulysses", "--gpus 4 --ulysses 2"),
    ("run --ckpt_dir ./Wan2.2", "Wan's --ckpt_dir is --model NAME here", None),
    ("run --height 48", "--height is --size WxH here", None),
    ("plan --gpus 4 --save_file a.mp4", "Wan's --save_file is --out here", None),
]


@pytest.mark.parametrize(("command", "says", "here"), FOREIGN, ids=[command for command, _, _ in FOREIGN])
def test_the_flags_of_other_tools_are_answered(
    command: str, says: str, here: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    verb, *words = shlex.split(command)
    assert call([verb, *words]) == 2
    first, *rest = capsys.readouterr().err.splitlines()
    assert says in first
    if here is None:
        assert rest[-1] == f"  try:  hybridgen {verb} --help"
    else:
        assert rest[-1] == f"  try:  hybridgen {verb} {here}"
        assert call([verb, *shlex.split(here), *(["--dry-run"] if verb == "run" else [])]) == 0


@pytest.mark.parametrize(("given", "whole"), [("fp16", "float16"), ("BF16", "bfloat16"), ("torch.float32", "float32")])
def test_short_names_of_dtypes_are_taken(
    given: str, whole: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"schema: 1\nmodel: demo\nruntime: {{dtype: {given}}}\n")
    for words in (["--dtype", given], ["--set", f"runtime.dtype={given}"], ["--recipe", str(recipe)]):
        assert call(["run", "--model", "demo", "--dry-run", *words]) == 0
        assert capsys.readouterr().out.splitlines()[0].endswith(f", {whole}")


@pytest.mark.parametrize("time", ["8:nan", "8:-3", "8:0:cfg2"])
def test_a_time_that_is_none_is_not_proposed_again(time: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["plan", "--gpus", "8", "--anchor", time]) == 2
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == f"error[anchor]: --anchor {time}: must be a number of seconds above 0"
    assert last == "  try:  hybridgen plan --gpus 8"


def test_a_clip_for_every_prompt_is_named_where_other_tools_say_batch(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", "--model", "demo", "-p", "x", "--batch-size", "4", "--dry-run"]) == 2
    named = re.findall(r"--\w+", capsys.readouterr().err.splitlines()[0])
    assert {"--prompts", "--count", "--replicas"} <= {*named}
    assert call(["run", "--help"]) == 0
    page = capsys.readouterr().out
    assert all(flag in page for flag in named[1:])


@pytest.mark.parametrize("word", ["usage", "rule"])
def test_every_refusal_is_data_where_json_is_asked(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = {"usage": ["--nonsense", "3"], "rule": ["--cfg", "3"]}[word]
    assert call(["plan", "--gpus", "8", "--json", *flags]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["message"]


def test_what_others_wrote_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text('schema: 1\nlicense: MIT\nmodel: demo\nnotes: "\\e[31mred\\e]0;title\\a \\u202egnp"\n')
    assert call(["recipes", "show", str(recipe)]) == 0
    shown = capsys.readouterr().out
    assert "\\x1b[31mred\\x1b]0;title\\x07 \\u202egnp" in shown and "\x1b" not in shown
    assert call(["run", "--model", "a\x1b[2J\nb", "--dry-run"]) == 2
    assert capsys.readouterr().err.startswith("error[unknown-model]: --model a\\x1b[2J\\nb: is not")


def test_what_others_wrote_is_no_command_of_a_runner(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    recipe = tmp_path / "r,x.yaml"
    recipe.write_text('schema: 1\nmodel: demo\n"k\\n::stop-commands::x": 1\nnotes: "a\\n::set-env name=A::b"\n')
    assert call(["recipes", "check", str(recipe)]) == 1
    annotated = capsys.readouterr().out.splitlines()
    assert annotated and all(line.startswith(f"::error file={tmp_path}/r%2Cx.yaml,line=") for line in annotated)
    text.answer("a\n ::set-env name=A::b", "::stop-commands::x")
    assert capsys.readouterr().out == "a\n \\::set-env name=A::b\n\\::stop-commands::x\n"


def test_a_prompt_is_read_from_a_file_or_stdin(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompt.txt").write_text("a red circle\n", encoding="utf-8-sig")  # as Windows' editor writes it
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO("größer\n".encode())))
    assert call(["run", "--model", "demo", "-p", "-", "--steps", "0", "--device", "cpu"]) == 2
    assert "  try:  hybridgen run --model demo -p - --steps 1 --device cpu" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO("größer\n".encode())))
    given: list[str] = []
    monkeypatch.setattr("hybridgen.api.spine.run", lambda options, fields, *_: given.append(fields["prompt"]))
    for words in ("@prompt.txt", "-", "@@home", "plain"):
        assert call(["run", "-p", words]) == 0
    assert given == ["a red circle", "größer", "@home", "plain"]
    os.mkfifo("pipe")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for words, says in (("@none", "No such file"), ("@pipe", "Not a regular file"), ("@binary", "not text in UTF-8")):
        assert call(["run", "-p", words]) == 2
        assert says in capsys.readouterr().err.splitlines()[0]


@pytest.mark.parametrize(
    ("flags", "tried"),
    [
        ("--usp 3x3", "--usp 2x3"),
        ("--usp 2x2 --attn2d 2x1", "--usp 2x2"),
        ("--recipe wan22-t2v-720p-8gpu --guidance 1", "--guidance 1 --cfg 1 --vae 4"),
        ("--recipe wan22-t2v-720p-gb200-nvl72 --ring 9", "--ring 9 --set parallel.attn2d=null"),
        ("--frames 5000", "--frames 4093"),
        ("--frames 300 --size 2000x2000 --model demo", "--frames 253 --size 1024x1024 --model demo"),
    ],
)
def test_a_suggestion_leads_to_no_other_refusal(
    flags: str, tried: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["run", *shlex.split(flags), "--dry-run"]
    assert call(words) == 2
    err = capsys.readouterr().err
    suggested = [line.removeprefix("  try:  hybridgen ") for line in err.splitlines() if line.startswith("  try:")]
    kept = shlex.split(flags)[:2] if "--recipe" in flags else []
    assert {*kept, *tried.split()} == {*shlex.split(suggested[0])} - {"run", "--dry-run"}
    assert all(call(shlex.split(one)) == 0 for one in suggested)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("run --usp 2x2 --attn2d 2x1", "--usp 2x2: its ring 2 excludes --attn2d 2x1; nearest: --usp 2x2 alone,"),
        ("plan --usp 2x2 --attn2d 2x1", "--usp 2x2: its ring 2 excludes --attn2d 2x1; nearest: cfg2"),
        ("plan --usp 3x3 --gpus 9", "--usp 3x3: its ulysses 3 does not divide"),
        (
            "plan --usp 2x2 --gpus 6",
            "no legal plan has 6 GPUs with --usp 2x2: that takes a multiple of 4; nearest: ulysses2 ring3",
        ),
        ("run --recipe r.yaml", "--usp 2x2: its ring 2 excludes --attn2d 2x1"),
        ("run --recipe r.yaml", "  help: --usp 2x2 is from r.yaml"),
        ("run --recipe wan22-t2v-720p-8gpu --guidance 1", "  help: --cfg 2 is from wan22-t2v-720p-8gpu"),
        ("recipes check r.yaml", "r.yaml:3:12: ring-attn2d: parallel.usp 2x2: its ring 2 excludes"),
    ],
)
def test_an_error_names_what_the_user_wrote(
    words: str, says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text("schema: 1\nlicense: CC0-1.0\nparallel: {usp: 2x2, attn2d: 2x1}\n")
    assert call([*words.split(), *(["--dry-run"] if words.startswith("run") else [])]) != 0
    said = capsys.readouterr()
    first = (said.err + said.out).splitlines()[0]
    assert says in (said.err + said.out) and "--ring 2" not in first and "--ulysses 3" not in first


def test_the_origin_of_a_value_is_told_only_where_a_file_gives_it(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("--cfg 2", "--set parallel.cfg=2"):
        assert call(["run", "--recipe", "wan22-t2v-720p-8gpu", "--guidance", "1", *words.split(), "--dry-run"]) == 2
        assert "is from" not in capsys.readouterr().err


def test_a_flag_of_two_degrees_wins_over_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    for flags, split in (
        ("--recipe wan22-t2v-720p-8gpu --usp 2x2", "cfg2 ulysses2 ring2 vae8"),
        ("--set parallel.usp=4x2 --ring 1", "ulysses4"),
    ):
        assert call(["run", *flags.split(), "--dry-run"]) == 0
        assert f"plan    {split} " in capsys.readouterr().out


def test_what_is_written_passes_its_own_check(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    saved, engine, imported = (str(tmp_path / name) for name in ("saved.yaml", "engine.yaml", "imported.yaml"))
    assert call(["plan", "--gpus", "8", "--model", "wan2.2", "--guidance", "5", "--save", saved, "-q"]) == 0
    Path(engine).write_text(
        "model: Wan-AI/Wan2.2-T2V-A14B-Diffusers\nrevision: main\n"
        "parallel_config: {cfg_size: 2, nccl_buffer_reg: true}\n"
    )
    assert call(["recipes", "import", engine, "--out", imported]) == 0
    assert "the key parallel_config.nccl_buffer_reg, which is not known here" in capsys.readouterr().err
    assert call(["recipes", "check", saved, imported]) == 0, capsys.readouterr().out
    assert call(["recipes", "import", engine, "--strict"]) == 2
    Path(engine).write_text("model: Wan-AI/Wan2.2-T2V-A14B-Diffusers\nparallel_config: {new_split_size: 2}\n")
    assert call(["recipes", "import", engine]) == 2


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (779003, 2337009, "9 to 27 days"),
        (7300, 20000, "2 to 6 hours"),
        (600, 900, "10 to 15 minutes"),
        (6.7, 7.4, "6.7-7.4 s"),
    ],
)
def test_long_times_have_units_that_people_read(low: float, high: float, shown: str) -> None:
    assert text.lasting(low, high) == shown


def test_a_run_without_gpus_says_what_to_do_instead(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", "--gpus", "8", "-p", "x", "--device", "cpu", "--dry-run"]) == 0
    err = capsys.readouterr().err
    assert "8 to 29 days of denoising predicted" in err and "--model demo makes a clip on CPUs in seconds" in err


def test_the_summary_shows_the_report_under_the_same_names() -> None:
    times = Timings.of({"load": 1.0, "encode": 2.0, "denoise": 3.0, "decode": 4.0, "write": 5.0, "total": 15.5})
    plan = SimpleNamespace(exact=True)
    slow = Slowest(3, "node1", 1.9, 0.1, 1.1, 0.9)
    held = Prediction(machine="8 x H200", step=1.5, error=0.1, measured=2.0)
    report = SimpleNamespace(
        timings_s=times, peak_memory_bytes=(91e6, 36e6), traffic_bytes=(), plan=plan, slowest=slow, prediction=held
    )
    lines = summary(report, 41.9, "hybridgen run")  # type: ignore[arg-type]
    assert lines[1].endswith("write 5.0 s  total 15.5 s  (41.9 s with start and end)")
    assert "memory  peak 91 MB (rank 0), the other ranks 36 MB or more" in lines
    assert "steps   2 s each; predicted for 8 x H200: 1.35-1.65 s" in lines
    own = "slowest rank 3 (node1): computing 1.9 s a step, waiting 0.1 s"
    assert f"        {own}; the others compute 1.1 s, wait 0.9 s" in lines


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("plan --model demo --gpus 1 --ring 2", "no legal plan has 1 GPU with --ring 2"),
        ("run --model demo --gpus 2 --ring 1", "the degrees make 1 rank ("),
        ("run --model demo --steps 1 --dry-run", ", 1 step, guidance 3"),
        ("plan --model demo --gpus 1 --steps 2 --timesteps 900", "are 1 step, and --steps says 2"),
        ("plan --gpus-per-node 8 --nodes 2 --hardware h100", "16 x H100"),
        ("plan --gpus-per-node 4,4 --nodes 1", "names 2 hosts"),
        ("plan --hardware h100:1 --gpus 2", "--hardware names 1 GPU"),
        ("plan --model demo --gpus 1 --explain 9", "the table has 1 plan;"),
        ("run --recipe wan22-t2v-720p-8gpu --pipefusion 2:40 --dry-run", "names 1 stage, not 2"),
        ("recipes export r.yaml --to trtllm", "832x480, 1 frame, 16 fps, 1 step,"),
    ],
)
def test_one_of_a_kind_is_singular(
    words: str, says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ("schema: 1", "license: CC0-1.0", "model: wan2.1-t2v-1.3b", "request: {frames: 1, steps: 1}")
    Path("r.yaml").write_text("\n".join(lines))
    call([*words.split(), *(["-p", "x"] if words.startswith("run") else [])])
    said = capsys.readouterr()
    assert says in said.err + said.out
    assert not re.search(r"\b1 (GPU|rank|step|frame|plan|stage|host|token|head)s\b", said.err + said.out)
