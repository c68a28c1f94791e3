"""What is wrong with a checkpoint is said before anything starts, from its headers and JSON files alone."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hybridgen.cli.main import call
from hybridgen.errors import RequestError
from hybridgen.models import catalogue
from hybridgen.models.catalogue import DEMO_FOLDER
from hybridgen.models.checkpoint import from_folder
from tests.support import stored

TEXT, VAE, FIRST, SECOND = "text_encoder", "vae", "transformer", "transformer_2"


def refused(folder: Path) -> RequestError:
    with pytest.raises(RequestError) as refusal:
        from_folder(folder)
    assert refusal.value.flag == "model" and str(folder) in refusal.value.message
    return refusal.value


def test_a_changed_file_alone_is_why_a_copy_is_refused(tmp_path: Path) -> None:
    assert from_folder(stored.demo(tmp_path)).transformer == catalogue.find("demo").transformer


# Weights that are not plain floats


def as_dtype(dtype: str, bytes_each: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with stored.changed(stored.weights_of(folder, FIRST)) as tensors:
            entry = tensors["blocks.1.ffn.net.2.weight"]
            rows, columns = entry["shape"]
            entry.update(dtype=dtype, data=bytes(rows * columns * bytes_each))

    return change


def beside(component: str, name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with stored.changed(stored.weights_of(folder, component)) as tensors:
            tensors[name] = {"dtype": "F32", "shape": [1], "data": bytes(4)}

    return change


def key(file: str, **changes: Any) -> Callable[[Path], None]:
    return lambda folder: stored.change_json(folder / file, **changes)


def file(name: str, content: bytes = b"{}") -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return change


QUANTISED = {
    "fp8": as_dtype("F8_E4M3", 1),
    "fp8 of the other kind": as_dtype("F8_E5M2", 1),
    "int8": as_dtype("I8", 1),
    "uint8": as_dtype("U8", 1),
    "a type of the future": as_dtype("F7_E3M3", 1),
    "a scale as ModelOpt has it": beside(FIRST, "blocks.0.attn1.to_q.weight_scale"),
    "a scale as ComfyUI has it": beside(SECOND, "blocks.0.attn1.to_q.scale_weight"),
    "ComfyUI's mark": beside(FIRST, "scaled_fp8"),
    "bitsandbytes": beside(TEXT, "encoder.block.0.layer.0.SelfAttention.q.weight.quant_state.bitsandbytes__nf4"),
    "bitsandbytes in 8 bits": beside(TEXT, "encoder.block.0.layer.0.SelfAttention.q.SCB"),
    "quanto": beside(FIRST, "blocks.0.attn1.to_q.weight._scale"),
    "GPTQ": beside(TEXT, "encoder.block.0.layer.0.SelfAttention.q.qzeros"),
    "torchao": key("transformer/config.json", quantization_config={"quant_type": "int8wo", "quant_method": "torchao"}),
    "a text encoder": key("text_encoder/config.json", quantization_config={"quant_method": "bitsandbytes"}),
    "an autoencoder": key("vae/config.json", quantization_config={"quant_method": "modelopt"}),
    "the whole": key("model_index.json", quantization_config={"quant_backend": "quanto"}),
    "ModelOpt's file": file("transformer/hf_quant_config.json"),
}


@pytest.mark.parametrize("change", QUANTISED.values(), ids=QUANTISED)
def test_weights_that_are_no_plain_floats_are_refused(change: Callable[[Path], None], tmp_path: Path) -> None:
    change(stored.demo(tmp_path))
    assert refused(tmp_path).rule == "quantised-model"


# Files


def cut(component: str, keep: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = stored.weights_of(folder, component)
        os.truncate(path, path.stat().st_size + keep if keep < 0 else keep)

    return change


def header(length: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = stored.weights_of(folder, VAE)
        path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])

    return change


def renamed(component: str, name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = stored.weights_of(folder, component)
        path.rename(path.with_name(name))

    return change


def fifo(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


def sharded(lose: bool = False, where: str = "", wrong: str = "") -> Callable[[Path], None]:
    """The text encoder in two files; one of them missing, the index pointing elsewhere or naming a wrong tensor."""

    def change(folder: Path) -> None:
        path = stored.weights_of(folder, TEXT)
        tensors, index = list(stored.read(path).items()), dict[str, str]()
        path.unlink()
        for number in (0, 1):
            name = f"model-{number}.safetensors"
            stored.write(path.with_name(name), dict(tensors[number::2]))
            index |= dict.fromkeys(dict(tensors[number::2]), where or name)
        if lose:
            path.with_name("model-1.safetensors").unlink()
        if wrong:
            index[wrong] = "model-0.safetensors"
        path.with_name("model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))

    return change


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
BROKEN = {
    "no weights": (lambda folder: stored.weights_of(folder, SECOND).unlink(), "transformer_2 has no files of weights"),
    "cut off": (cut(VAE, -1), "vae/diffusion_pytorch_model.safetensors is cut off"),
    "almost nothing": (cut(TEXT, 5), "it has 5 bytes"),
    "the header is cut": (cut(FIRST, 500), "its header alone"),
    "a header of 2^63": (header(2**63), "header would have 9223372036854775808 bytes"),
    "a header of 2^45": (header(2**45), "header would have"),
    "a pickle": (renamed(SECOND, "diffusion_pytorch_model.bin"), "as a pickle only"),
    "GGUF": (renamed(FIRST, "wan-q4.gguf"), "as GGUF only"),
    "a variant": (renamed(VAE, "diffusion_pytorch_model.fp16.safetensors"), "only diffusion_pytorch_model.fp16"),
    "a pointer": (file("vae/diffusion_pytorch_model.safetensors", POINTER), "git lfs pull"),
    "a pointer for a tokenizer": (file("tokenizer/tokenizer.json", POINTER), "git lfs pull"),
    "no tokenizer": (lambda folder: (folder / "tokenizer/tokenizer.json").unlink(), "tokenizer has none of"),
    "a pipe": (fifo("transformer/config.json"), "is not a regular file"),
    "a pipe of weights": (fifo("vae/diffusion_pytorch_model.safetensors"), "is not a regular file"),
    "deep JSON": (file("vae/config.json", b"[" * 200_000), "cannot be read"),
    "many digits": (file("vae/config.json", b'{"z_dim": 1' + b"0" * 5000 + b"}"), "cannot be read"),
    "a lost shard": (sharded(lose=True), "model-1.safetensors is missing"),
    "an index out of the folder": (sharded(where="../vae/x.safetensors"), "not a safetensors file beside it"),
    "an index with more": (sharded(wrong="nothing.weight"), "lacks 'nothing.weight'"),
}


@pytest.mark.parametrize(("change", "says"), BROKEN.values(), ids=BROKEN)
def test_files_that_cannot_be_read_are_told(change: Callable[[Path], None], says: str, tmp_path: Path) -> None:
    change(stored.demo(tmp_path))
    error = refused(tmp_path)
    assert error.rule == "unreadable-model" and says in error.message


def test_weights_in_several_files_are_read_through_their_index(tmp_path: Path) -> None:
    sharded()(stored.demo(tmp_path))
    assert from_folder(tmp_path).text_params == catalogue.find("demo").text_params


@pytest.mark.parametrize("component", [TEXT, VAE, FIRST, SECOND])
@pytest.mark.parametrize("fault", ["missing", "other shape", "unexpected"])
def test_every_tensor_is_there_in_its_shape(component: str, fault: str, tmp_path: Path) -> None:
    path = stored.weights_of(stored.demo(tmp_path), component)
    with stored.changed(path) as tensors:
        name = sorted(tensors)[len(tensors) // 2]
        if fault == "missing":
            del tensors[name]
        elif fault == "other shape":
            tensors[name]["shape"] = [*tensors[name]["shape"], 1]
        else:
            tensors["blocks.0.strange"] = tensors[name]
    error = refused(tmp_path)
    assert error.rule == "incomplete-model" and error.problem.startswith(component)
    assert ("blocks.0.strange" if fault == "unexpected" else name) in error.message


# What JSON files say

KEYS: list[tuple[str, str, Any]] = [
    *(("transformer/config.json", "num_layers", value) for value in ("4", None, 1.5, 0, -1, 5000, 10**12, True, [4])),
    ("transformer/config.json", "num_attention_heads", 10**12),
    ("transformer/config.json", "patch_size", [1, 2]),
    ("transformer/config.json", "patch_size", [1, 2, 0]),
    ("transformer/config.json", "qk_norm", "layer_norm"),
    ("transformer/config.json", "eps", float("nan")),
    ("transformer/config.json", "eps", "1e-6"),
    ("transformer_2/config.json", "ffn_dim", 385),
    ("vae/config.json", "z_dim", []),
    ("vae/config.json", "scale_factor_spatial", 0),
    ("vae/config.json", "scale_factor_spatial", 16),
    ("vae/config.json", "latents_std", 15 * [1.0]),
    ("vae/config.json", "latents_std", 16 * [0]),
    ("vae/config.json", "temperal_downsample", [True]),
    ("vae/config.json", "is_residual", 1),
    ("text_encoder/config.json", "num_layers", 5000),
    ("text_encoder/config.json", "d_ff", {}),
    ("text_encoder/config.json", "model_type", "bert"),
    ("scheduler/scheduler_config.json", "num_train_timesteps", 0),
    ("scheduler/scheduler_config.json", "flow_shift", "3"),
    ("scheduler/scheduler_config.json", "solver_order", 99),
    ("model_index.json", "boundary_ratio", "0.9"),
    ("model_index.json", "boundary_ratio", 1.5),
    ("model_index.json", "expand_timesteps", "no"),
    ("model_index.json", "vae", "AutoencoderKLWan"),
    ("model_index.json", "vae", [None, None]),
    ("model_index.json", "scheduler", None),
]


@pytest.mark.parametrize(("name", "key", "value"), KEYS)
def test_every_key_has_a_type_and_a_range(name: str, key: str, value: Any, tmp_path: Path) -> None:
    stored.change_json(stored.demo(tmp_path) / name, **{key: value})
    error = refused(tmp_path)
    assert error.rule in ("unreadable-model", "incomplete-model") and len(error.message) < 400 + len(str(tmp_path))


@pytest.mark.parametrize(
    ("component", "value"),
    [
        ("vae", ["os", "system"]),
        ("tokenizer", ["no_such_module_at_all", "Tokenizer"]),
        ("text_encoder", ["transformers", "BertModel"]),
        ("transformer", ["diffusers", "FluxTransformer2DModel"]),
        ("extra", ["os", "system"]),
    ],
)
def test_a_component_of_another_class_is_refused_and_not_imported(
    component: str, value: list[str], tmp_path: Path
) -> None:
    stored.change_json(stored.demo(tmp_path) / "model_index.json", **{component: value})
    error = refused(tmp_path)
    assert error.rule == "unsupported-pipeline" and component in error.message


@pytest.mark.parametrize(
    "setting", [{"thresholding": True}, {"use_dynamic_shifting": True}, {"solver_p": {"x": 1}}, {"thresholding": "yes"}]
)
def test_a_scheduler_that_looks_beyond_one_number_is_refused(setting: dict[str, Any], tmp_path: Path) -> None:
    stored.change_json(stored.demo(tmp_path) / "scheduler/scheduler_config.json", **setting)
    error = refused(tmp_path)
    assert error.rule == "unsupported-scheduler" and next(iter(setting)) in error.message


@pytest.mark.parametrize("setting", ["stochastic_sampling", "use_dynamic_shifting"])
def test_the_same_of_the_euler_scheduler(setting: str, tmp_path: Path) -> None:
    euler = ["diffusers", "FlowMatchEulerDiscreteScheduler"]
    stored.change_json(stored.demo(tmp_path) / "model_index.json", scheduler=euler)
    assert from_folder(tmp_path).experts == 2
    stored.change_json(tmp_path / "scheduler/scheduler_config.json", **{setting: True})
    error = refused(tmp_path)
    assert error.rule == "unsupported-scheduler" and setting in error.message


def test_two_experts_need_a_boundary_and_one_has_none(tmp_path: Path) -> None:
    stored.change_json(stored.demo(tmp_path) / "model_index.json", boundary_ratio=None)
    assert refused(tmp_path).rule == "boundary"
    stored.change_json(tmp_path / "model_index.json", boundary_ratio=0.9, transformer_2=[None, None])
    assert refused(tmp_path).rule == "boundary"
    stored.change_json(tmp_path / "model_index.json", boundary_ratio=None)
    assert from_folder(tmp_path).experts == 1


# Names


@pytest.mark.parametrize("name", ["./nosuch", "/x", "a b/c", "../x", "", "~/x", "a/b/c", f"./{300 * 'a'}", "a\0b", "."])
def test_names_of_nothing_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", "--model", name, "-p", "x", "--dry-run"]) == 2
    assert capsys.readouterr().err.startswith(("error[unknown-model]: --model", "error[unreadable-model]: --model ."))


def test_a_model_in_its_authors_own_layout_is_named_for_diffusers(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as refusal:
        catalogue.find("Wan-AI/Wan2.2-T2V-A14B")
    assert refusal.value.nearest == ("Wan-AI/Wan2.2-T2V-A14B-Diffusers",)
    folder = tmp_path / "Wan2.2-T2V-A14B"
    (folder / "high_noise_model").mkdir(parents=True)
    (folder / "Wan2.1_VAE.pth").touch()
    assert refused(folder).nearest == "Wan-AI/Wan2.2-T2V-A14B-Diffusers"


def test_a_known_name_is_that_model_whatever_folders_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("wan2.2", "demo", "mine"):
        (tmp_path / name).mkdir()
    assert catalogue.find("wan2.2", revision=40 * "a").name == "wan2.2-t2v-a14b"
    assert catalogue.find("demo").source == str(DEMO_FOLDER)
    with pytest.raises(RequestError) as refusal:
        catalogue.find("mine")
    assert refusal.value.nearest == ("./mine",)
    assert from_folder(stored.demo(tmp_path / "mine")).vae == catalogue.find("./mine").vae


def narrowed(folder: Path) -> None:
    """Transformers that read text of half the width, in themselves sound."""
    for component in (FIRST, SECOND):
        stored.change_json(folder / component / "config.json", text_dim=32)
        with stored.changed(stored.weights_of(folder, component)) as tensors:
            entry = tensors["condition_embedder.text_embedder.linear_1.weight"]
            entry.update(shape=[entry["shape"][0], 32], data=entry["data"][: len(entry["data"]) // 2])


CONTRADICTIONS = {
    "widths of the text": narrowed,
    "channels that the transformer reads": key("model_index.json", _class_name="WanImageToVideoPipeline"),
    "rope_max_seq_len of both transformers": key("transformer_2/config.json", rope_max_seq_len=128),
}


@pytest.mark.parametrize("says", CONTRADICTIONS)
def test_components_fit_together(says: str, tmp_path: Path) -> None:
    CONTRADICTIONS[says](stored.demo(tmp_path))
    error = refused(tmp_path)
    assert error.rule == "unreadable-model" and says in error.message


def test_what_is_in_the_hub_s_cache_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = catalogue.find("wan2.2")
    monkeypatch.setattr(catalogue, "_cached_snapshot", lambda source, revision: tmp_path)
    catalogue.look_at(facts, 4)  # nothing is there yet
    stored.weights_of(stored.demo(tmp_path), VAE).unlink()
    catalogue.look_at(facts, 4)
    stored.change_json(tmp_path / "transformer/config.json", num_layers="4")
    with pytest.raises(RequestError, match="num_layers"):
        catalogue.look_at(facts, 4)
