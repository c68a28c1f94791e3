"""What is wrong with a checkpoint's tokenizer, chat template, text encoder or timetable is said before a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybridgen.cli.main import call
from hybridgen.errors import RequestError
from hybridgen.models import schedulers, tokenizers
from hybridgen.models.checkpoint import from_folder
from hybridgen.models.cosmos.facts import PROMPT, _check_sections
from hybridgen.models.files import Folder
from hybridgen.models.pictures import CLIP_PICTURES, sides_of
from hybridgen.models.tokenizers import QWEN_TOKENIZER, T5_TOKENIZER, WORDS
from tests.support import stored

CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
TEMPLATES = {
    "{% for m in messages %}{{ m.content }}": "TemplateSyntaxError",
    "{{ raise_exception('no system') }}": "TemplateError: no system",
    "{{ messages[7].content }}": "UndefinedError",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}": "SecurityError",
    "{{ messages.append(1) }}": "SecurityError",
    "{{ 1 / 0 }}": "ZeroDivisionError",
    "{{ messages | nosuch }}": "TemplateAssertionError",
    "You are a helpful assistant.": "leaves out the prompt",
    "{% for m in messages[:1] %}system{% endfor %}": "leaves out the prompt",
}


def tokenizer(folder: Path, words: dict[str, int], config: dict[str, Any], template: str = CHAT) -> None:
    """The files of a tokenizer with these words."""
    folder.mkdir(exist_ok=True)
    model = {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(template)


def look(path: Path, config: dict[str, Any], part: Any, kind: str = "AutoTokenizer") -> None:
    assert part.look is not None
    part.look(Folder(path), "words", config, kind)


COSMOS3 = QWEN_TOKENIZER(needs=["eos_token", "<|vision_start|>"], content=WORDS)
MARKS = {"<unk>": 0, "<pad>": 1, "<end>": 2, "<|vision_start|>": 3}


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_chat_template_is_filled_in(template: str, tmp_path: Path) -> None:
    config = {"eos_token": "<end>"}
    tokenizer(tmp_path / "words", MARKS, config, template)
    with pytest.raises(RequestError, match=TEMPLATES[template]) as refusal:
        look(tmp_path, config, COSMOS3)
    assert refusal.value.rule == "unreadable-model"


def test_what_transformers_offers_a_template_is_there(tmp_path: Path) -> None:
    more = (
        "{{ messages | tojson(indent=1) }}{{ strftime_now('%Y') }}{{ eos_token }}{% generation %}x{% endgeneration %}"
    )
    loop = "{% for i in range(messages | length) %}{% if i %}{% break %}{% endif %}{% endfor %}"
    for content, part in ((WORDS, COSMOS3), (PROMPT, QWEN_TOKENIZER(needs=[], content=PROMPT))):
        tokenizer(tmp_path / "words", MARKS, {}, CHAT + more + loop)
        look(tmp_path, {"eos_token": {"content": "<end>"}}, part)
        assert content
    (tmp_path / "words/chat_template.jinja").unlink()
    named = [{"name": "tool_use", "template": "{{ 1 / 0 }}"}, {"name": "default", "template": CHAT}]
    look(tmp_path, {"eos_token": "<end>", "chat_template": named}, COSMOS3)


def test_prompts_are_padded_with_a_word_of_the_vocabulary(tmp_path: Path) -> None:
    tokenizer(tmp_path / "words", MARKS, {})
    look(tmp_path, {"pad_token": "<pad>"}, T5_TOKENIZER)
    look(tmp_path, {}, T5_TOKENIZER, "T5TokenizerFast")
    (tmp_path / "words/special_tokens_map.json").write_text('{"pad_token": {"content": "<pad>"}}')
    look(tmp_path, {}, T5_TOKENIZER)
    (tmp_path / "words/special_tokens_map.json").unlink()
    for config, kind, says in (
        ({}, "AutoTokenizer", "has no pad_token"),
        ({"pad_token": None}, "T5TokenizerFast", "has no pad_token"),
        ({"pad_token": "<other>"}, "AutoTokenizer", "pad_token '<other>' is not in its vocabulary"),
    ):
        with pytest.raises(RequestError, match=says):
            look(tmp_path, config, T5_TOKENIZER, kind)


@pytest.mark.parametrize("installed", [True, False])
def test_a_model_of_sentencepiece_needs_its_package(
    installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizers, "find_spec", lambda name: object() if installed else None)
    folder = stored.demo(tmp_path) / "tokenizer"
    (folder / "tokenizer.json").rename(folder / "spiece.model")
    if installed:
        assert from_folder(tmp_path).text_params
    else:
        with pytest.raises(RequestError, match="spiece.model is read by sentencepiece, which is not installed"):
            from_folder(tmp_path)


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"{}", "is not a tokenizer"), (b"[" * 100_000, "is not a tokenizer"), (b"\xff", "is not a tokenizer")],
)
def test_a_file_that_is_no_tokenizer_is_refused(content: bytes, says: str, tmp_path: Path) -> None:
    (stored.demo(tmp_path) / "tokenizer/tokenizer.json").write_bytes(content)
    with pytest.raises(RequestError, match=says):
        from_folder(tmp_path)


def test_a_tokenizer_has_no_more_words_than_the_text_encoder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stored.demo(tmp_path) / "tokenizer/tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"]["beyond"] = 384
    path.write_text(json.dumps(content))
    assert call(["run", "--model", str(tmp_path), "-p", "x", "--dry-run"]) == 2
    assert "token ids up to 384, and the embedding of its text encoder has 384 rows" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("return_dict", False),
        ("dtype", "float7"),
        ("attn_implementation", "fast"),
        ("attribute_map", 3),
        ("attribute_map", None),
        ("sub_configs", None),
        ("to_dict", None),
        ("base_model_pp_plan", 3),
        ("id2label", []),
        ("layer_norm_epsilon", 0),
        ("initializer_factor", 1),
        ("num_hidden_layers", 1),
        ("layer_types", []),
    ],
)
def test_rare_keys_of_a_text_encoder_are_looked_at(key: str, value: Any, tmp_path: Path) -> None:
    stored.change_json(stored.demo(tmp_path) / "text_encoder/config.json", **{key: value})
    with pytest.raises(RequestError, match=f"text_encoder/config.json: {key} is"):
        from_folder(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("added_tokens_decoder", []), ("tokenizer_object", {}), ("chat_template", [None]), ("chat_template", [{}])],
)
def test_rare_keys_of_a_tokenizer_are_looked_at(key: str, value: Any, tmp_path: Path) -> None:
    stored.change_json(stored.demo(tmp_path) / "tokenizer/tokenizer_config.json", **{key: value})
    with pytest.raises(RequestError, match="tokenizer"):
        from_folder(tmp_path)


def test_another_name_for_a_gate_is_not_taken_in_silence(tmp_path: Path) -> None:
    """transformers would leave out half of each feed-forward, and say nothing."""
    stored.change_json(stored.demo(tmp_path) / "text_encoder/config.json", is_gated_act=True)
    assert from_folder(tmp_path).text_params
    stored.change_json(tmp_path / "text_encoder/config.json", is_gated_act=False)
    with pytest.raises(RequestError, match="text_encoder lacks .*DenseReluDense.wi.weight"):
        from_folder(tmp_path)


@pytest.mark.parametrize(("sections", "runs"), [([2, 1, 1], True), ([1, 1, 1], False), (None, False)])
def test_positions_of_qwen_share_a_head(sections: list[int] | None, runs: bool, tmp_path: Path) -> None:
    for key in ("rope_parameters", "rope_scaling"):
        text = {"hidden_size": 16, "num_attention_heads": 2, key: {"mrope_section": sections}}
        if runs:
            _check_sections(Folder(tmp_path), text)
        else:
            with pytest.raises(RequestError, match="half a head has 4"):
                _check_sections(Folder(tmp_path), text)


SIDES: list[tuple[dict[str, Any], Any]] = [
    ({}, (224, 224)),
    ({"size": 32}, (224, 224)),
    ({"crop_size": 32}, (32, 32)),
    ({"crop_size": {"width": 48, "height": 32}}, (32, 48)),
    ({"crop_size": None}, "none (crop_size names no sides)"),
    ({"crop_size": {"shortest_edge": 32}}, "none (crop_size names no sides)"),
    ({"crop_size": 10**9}, "none (crop_size names no sides)"),
    ({"size": {"a": 1}}, "none (size names no sides)"),
    ({"size": {"shortest_edge": 2.5}}, "none (size names no sides)"),
    ({"size": True}, "none (size names no sides)"),
    ({"do_center_crop": False}, "those of each picture"),
    ({"do_center_crop": False, "size": {"height": 32, "width": 32}}, (32, 32)),
]


@pytest.mark.parametrize(("config", "sides"), SIDES)
def test_the_sides_of_processed_pictures(config: dict[str, Any], sides: Any) -> None:
    usual = {name: key.default for name, key in CLIP_PICTURES.keys.items()}  # type: ignore[union-attr]
    assert sides_of({**usual, **config}) == sides


def timetable(folder: Path, **config: Any) -> Folder:
    (folder / "scheduler").mkdir(exist_ok=True)
    (folder / "model_index.json").write_text('{"scheduler": ["diffusers", "UniPCMultistepScheduler"]}')
    (folder / "scheduler/scheduler_config.json").write_text(json.dumps(config))
    return Folder(folder)


EQUAL: list[tuple[dict[str, Any], int, bool]] = [
    ({"use_karras_sigmas": True, "sigma_min": 2, "sigma_max": 2}, 20, False),
    ({"use_karras_sigmas": True, "sigma_min": 3, "sigma_max": 2}, 20, False),
    ({"use_karras_sigmas": True, "sigma_min": 0}, 20, False),
    ({"use_karras_sigmas": True, "sigma_min": 0.147, "sigma_max": 200, "use_flow_sigmas": True}, 1000, True),
    ({"use_karras_sigmas": True, "sigma_min": 0.147, "sigma_max": 1e6, "use_flow_sigmas": True}, 1000, False),
    ({"use_karras_sigmas": True, "sigma_min": 0.147, "sigma_max": 1e6, "use_flow_sigmas": True}, 5, True),
    ({"use_karras_sigmas": True, "sigma_max": 0.01}, 5, False),
    ({"use_karras_sigmas": True}, 50, True),
    ({"use_karras_sigmas": True, "beta_start": 0.0, "beta_end": 0.0}, 5, False),
    ({"use_exponential_sigmas": True, "sigma_min": 2, "sigma_max": 2}, 5, False),
    ({"use_exponential_sigmas": True}, 5, True),
    ({}, 1500, False),
    ({}, 50, True),
    ({"use_flow_sigmas": True}, 1500, True),
]


@pytest.mark.parametrize(("config", "steps", "runs"), EQUAL)
def test_no_two_steps_have_one_noise_level(config: dict[str, Any], steps: int, runs: bool, tmp_path: Path) -> None:
    folder = timetable(tmp_path, **config)
    if runs:
        schedulers.check_steps(folder, steps)
    else:
        with pytest.raises(RequestError, match=f"{steps} steps"):
            schedulers.check_steps(folder, steps)


def test_trained_betas_are_as_many_as_their_steps(tmp_path: Path) -> None:
    stored.change_json(stored.demo(tmp_path) / "scheduler/scheduler_config.json", trained_betas=[0.1, 0.2])
    with pytest.raises(RequestError, match="has 2 trained_betas.* one for each of 1000"):
        from_folder(tmp_path)
