"""The components of the tiny checkpoints, each with weights drawn from a seed of its own."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    CLIPVisionModel,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    T5Config,
    T5EncoderModel,
    UMT5Config,
    UMT5EncoderModel,
)

from hybridgen.models.tiny.kinds import IMAGE_WIDTH, QWEN_LAYERS, QWEN_WIDTH, TEXT_WIDTH, Config
from hybridgen.models.tiny.weights import unit_scale

T5_MARKS = ("<pad>", "</s>", "<unk>")
QWEN_MARKS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{{ part.text }}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PICTURE, PICTURE_PATCH = 32, 8
PIXEL_SCALE = 0.7
"""Factor on the decoder's last convolution that keeps most pixels within [-1, 1]."""


def _byte_tokenizer(marks: tuple[str, ...]) -> Tokenizer:
    """A tokenizer with one token per byte after the special ones, which encodes any text."""
    tokens = [*marks, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    bpe = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, []))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens(list(marks))
    return bpe


def t5_tokenizer() -> Any:
    """A tokenizer that pads with <pad> and ends with </s>, as T5's does."""
    bpe = _byte_tokenizer(T5_MARKS)
    bpe.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", T5_MARKS.index("</s>"))]
    )
    marks = dict(zip(("pad_token", "eos_token", "unk_token"), T5_MARKS, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=bpe, model_max_length=512, **marks)


def qwen_tokenizer() -> Any:
    """A tokenizer with the marks and a chat template of Qwen2.5."""
    fast = PreTrainedTokenizerFast(
        tokenizer_object=_byte_tokenizer(QWEN_MARKS),
        model_max_length=4096,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        extra_special_tokens=[mark for mark in QWEN_MARKS if mark not in ("<|endoftext|>", "<|im_end|>")],
    )
    fast.chat_template = CHAT
    return fast


def t5_encoder(tokenizer: Any, multilingual: bool) -> Any:
    """A T5 or UMT5 encoder of two layers."""
    config, model = (UMT5Config, UMT5EncoderModel) if multilingual else (T5Config, T5EncoderModel)
    size = {"d_model": TEXT_WIDTH, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    chosen = config(vocab_size=len(tokenizer), dropout_rate=0.0, decoder_start_token_id=0, **size, **ids)
    return unit_scale(model(chosen), seed=4)


def qwen_encoder(tokenizer: Any) -> Any:
    """A Qwen2.5-VL of two layers, with a vision tower that is never used."""
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": QWEN_WIDTH,
        "intermediate_size": 32,
        "num_hidden_layers": QWEN_LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "bos_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 1e6},
    }
    picture = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": QWEN_WIDTH}
    marks = {
        f"{name}_token_id": QWEN_MARKS.index(f"<|{mark}|>")
        for name, mark in (("image", "image_pad"), ("video", "video_pad"), ("vision_start", "vision_start"))
    }
    config = Qwen2_5_VLConfig(text_config=text, vision_config=picture, **marks)
    return unit_scale(Qwen2_5_VLForConditionalGeneration(config), seed=4)


def image_encoder() -> Any:
    """A CLIP vision tower; Wan reads its last layer but one."""
    config = CLIPVisionConfig(
        hidden_size=IMAGE_WIDTH,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=PICTURE,
        patch_size=PICTURE_PATCH,
    )
    return unit_scale(CLIPVisionModel(config), seed=5)


def image_processor() -> Any:
    return CLIPImageProcessor(size={"shortest_edge": PICTURE}, crop_size={"height": PICTURE, "width": PICTURE})


def autoencoder(config: Config) -> Any:
    """The autoencoder of a configuration, with weights drawn from a seed."""
    model = from_config(config, seed=3)
    with torch.no_grad():
        model.decoder.conv_out.weight.mul_(PIXEL_SCALE)
    return model


def from_config(config: Config, seed: int | None = None) -> Any:
    """A component of diffusers from its configuration, with weights drawn from a seed where it has weights.

    Raises TypeError for a field that the class does not have.
    """
    fields = {key: value for key, value in config.items() if key != "_class_name"}
    model = getattr(diffusers, config["_class_name"])(**fields)
    return model if seed is None else unit_scale(model, seed)
