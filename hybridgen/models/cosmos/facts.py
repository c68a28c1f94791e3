"""Facts of Cosmos Predict 2 and 2.5 checkpoints, and which Cosmos pipelines are not run, and why. No torch."""

from __future__ import annotations

from hybridgen.errors import RequestError
from hybridgen.models.cosmos.shapes import shapes
from hybridgen.models.files import Config, Folder
from hybridgen.models.keys import checked, listed, number, switch, whole
from hybridgen.models.parts import QWEN_TEXT, T5, Part
from hybridgen.models.tokenizers import WORDS, check_rows
from hybridgen.plan.facts import RequestDefaults, Sizes, TransformerFacts

TRAITS: dict[str, Config] = {
    "Cosmos2TextToImagePipeline": {
        "one_frame": True,
        "defaults": RequestDefaults(width=1360, height=768, frames=1, steps=35, guidance=7.0),
    },
    "Cosmos2VideoToWorldPipeline": {
        "image": "must",
        "video": True,
        "encodes": "first",
        "defaults": RequestDefaults(width=1280, height=704, frames=93, steps=35, guidance=7.0),
    },
    "Cosmos2_5_PredictBasePipeline": {
        "image": "may",
        "video": True,
        "video_frames": 5,
        "encodes": "first",
        "defaults": RequestDefaults(width=1280, height=704, frames=93, steps=36, guidance=7.0),
    },
}
"""What each of diffusers' pipeline classes can do, and its defaults, as fields of ModelFacts."""
TRAITS = {name: {**traits, "guarded": True} for name, traits in TRAITS.items()}

PROMPT = [{"type": "text", "text": WORDS}]
"""A prompt in the form in which Predict 2.5's pipeline gives it to the chat template."""

NOT_RUN = {
    **dict.fromkeys(
        ("CosmosTextToWorldPipeline", "CosmosVideoToWorldPipeline"),
        "Cosmos 1.0 has another autoencoder, whose norms go over whole frames and so cannot be cut into strips, and "
        "another scheduler; Cosmos Predict 2 and 2.5 can be run",
    ),
    "Cosmos2_5_TransferPipeline": "Transfer steers a clip by control videos, for which there are no flags; "
    "Cosmos2_5_PredictBasePipeline can be run",
}
"""Pipelines of the family that are not run, with the reason."""


class CosmosTransformer(TransformerFacts):
    """A CosmosTransformer3DModel: two layers that modulate each norm by the time (AdaLN-LoRA)."""

    @property
    def block_params(self) -> int:
        return self.unmodulated_params + 3 * (self.adaln * self.hidden + self.adaln * 3 * self.hidden)

    @property
    def outer_params(self) -> int:
        d = self.hidden
        embed, head = self.patch_channels * d, d * self.prediction_channels
        text = (self.text_dim + 1) * self.text_width if self.text_width not in (None, self.text_dim) else 0
        return embed + head + 4 * d * d + d + 3 * self.adaln * d + text

    def most_held(self, s: Sizes) -> tuple[int, int]:
        # The embedding of the time and its three modulations; the last norm's three, of which the gate is kept.
        time = 7 * s.d * self.token_time
        # Hidden state and norm; Q, K, V and the norm of the one that is rotated; four halves of the rotated in fp32.
        rope = 2 * s.d + (4 + 2 * s.wide) * s.a
        # The given hidden state, the one with attention's output, that output, the norm; both sides of the activation.
        feed_forward = 4 * s.d + 2 * s.f
        # The same four, where the norm is that of the attention before; the next one, scaled, and shifted; its
        # modulations.
        norm = 7 * s.d + 3 * s.d * self.token_time
        return time + max(rope, feed_forward, norm), time


TRANSFORMER = Part(
    "diffusers",
    ("CosmosTransformer3DModel",),
    keys={
        "in_channels": whole(1, 4096, 16),
        "out_channels": whole(1, 4096, 16),
        "num_attention_heads": whole(1, 1024, 32),
        "attention_head_dim": whole(2, 4096, 128),
        "num_layers": whole(1, 512, 28),
        "mlp_ratio": number(0.01, 64, 4.0),
        "text_embed_dim": whole(1, 2**20, 1024),
        "adaln_lora_dim": whole(1, 2**16, 256),
        "max_size": listed(whole(1, 2**16), 3, 3, [128, 240, 240]),
        "patch_size": listed(whole(1, 16), 3, 3, [1, 2, 2]),
        "rope_scale": listed(number(1e-3, 1e3), 3, 3, [2.0, 1.0, 1.0]),
        "concat_padding_mask": switch(True),
        "use_crossattn_projection": switch(False),
        "crossattn_proj_in_channels": whole(1, 2**20, 1024),
        "encoder_hidden_states_channels": whole(1, 2**20, 1024),
        "img_context_num_tokens": whole(1, 2**16, 256),
        "img_context_dim_out": whole(1, 2**20, 2048),
    },
    shapes=shapes,
)


def transformer(folder: Folder, index: Config) -> CosmosTransformer:
    """Facts of the transformer of a checkpoint folder.

    Raises RequestError (unsupported-pipeline) for parts that no Predict model has.
    """
    config = folder.json("transformer/config.json", TRANSFORMER.keys)
    for part in ("extra_pos_embed_type", "img_context_dim_in", "controlnet_block_every_n"):
        if config.get(part):
            problem = f"its transformer's {part} is {config[part]}, which no Cosmos Predict 2 or 2.5 has"
            raise RequestError("unsupported-pipeline", "model", folder.path, problem)
    hidden = config["num_attention_heads"] * config["attention_head_dim"]
    patch_t, patch_h, patch_w = config["patch_size"]
    text = config["crossattn_proj_in_channels"] if config.get("use_crossattn_projection") else config["text_embed_dim"]
    return CosmosTransformer(
        layers=config["num_layers"],
        heads=config["num_attention_heads"],
        head_dim=config["attention_head_dim"],
        ffn=int(hidden * config["mlp_ratio"]),
        text_dim=text,
        text_width=config["text_embed_dim"],
        in_channels=config["in_channels"] + bool(config["concat_padding_mask"]),
        out_channels=config["out_channels"],
        patch=(patch_t, patch_h, patch_w),
        biases=False,
        adaln=config["adaln_lora_dim"],
        max_positions=max(size // patch for size, patch in zip(config["max_size"], config["patch_size"], strict=True)),
        head_norm=True,
        token_time=index["_class_name"] != "Cosmos2TextToImagePipeline",
        given_params=folder.params("transformer"),
    )


def _check_sections(folder: Folder, text: Config) -> None:
    """Raise RequestError (unreadable-model) where positions of the text encoder do not share a head's channels."""
    ropes = (text.get("rope_parameters"), text.get("rope_scaling"))
    shares: list[int] = next((rope["mrope_section"] for rope in ropes if rope and rope["mrope_section"]), [])
    half = text["hidden_size"] // text["num_attention_heads"] // 2
    if sum(shares) != half:
        problem = f"its text encoder's mrope_section has {sum(shares)} channels, and half a head has {half}"
        raise folder.refused(problem)


def model(folder: Folder, index: Config) -> Config:
    """Further facts: TRAITS of the pipeline. Raises RequestError (unreadable-model)."""
    config = folder.json("transformer/config.json", TRANSFORMER.keys)
    mask = config["in_channels"] - config["out_channels"]
    if mask != (index["_class_name"] != "Cosmos2TextToImagePipeline"):
        problem = f"its transformer reads {config['in_channels']} channels, and makes {config['out_channels']}"
        raise folder.refused(f"{problem}, which does not fit a {index['_class_name']}")
    if config["use_crossattn_projection"]:
        text = folder.json("text_encoder/config.json")
        ropes = {name: text[name] for name in ("rope_parameters", "rope_scaling") if text.get(name)}
        text = checked(
            {**ropes, **(text.get("text_config") or text)}, QWEN_TEXT, "text_encoder/config.json", folder.path
        )
        width = text["num_hidden_layers"] * text["hidden_size"]
        read = config["crossattn_proj_in_channels"]
        rows = text["vocab_size"]
        _check_sections(folder, text)
        folder.check_same(
            {
                "widths of the text for the blocks": (
                    config["encoder_hidden_states_channels"],
                    config["text_embed_dim"],
                )
            }
        )
    elif index["_class_name"] == "Cosmos2_5_PredictBasePipeline":
        raise folder.refused("its transformer does not project the text, and Cosmos Predict 2.5 does")
    else:
        text = folder.json("text_encoder/config.json", T5.keys)
        width, read, rows = text["d_model"], config["text_embed_dim"], text["vocab_size"]
    folder.check_same({"widths of the text for the transformer and of the text encoder": (read, width)})
    check_rows(folder, "tokenizer", rows)
    return TRAITS[index["_class_name"]]
