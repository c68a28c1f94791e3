"""Facts of Wan checkpoints. No torch."""

from __future__ import annotations

from hybridgen.models.files import Config, Folder
from hybridgen.models.keys import Table, listed, number, only, switch, whole
from hybridgen.models.parts import EPSILON, UMT5, Part
from hybridgen.models.pictures import CLIP, CLIP_PICTURES, sides_of
from hybridgen.models.tokenizers import check_rows
from hybridgen.models.wan import vae_facts
from hybridgen.models.wan.shapes import shapes
from hybridgen.plan.facts import RequestDefaults, Sizes, TransformerFacts


class WanTransformer(TransformerFacts):
    """A WanTransformer3DModel: a table of modulations, cross-attention to the text and, in some, to an image."""

    @property
    def block_params(self) -> int:
        return self.unmodulated_params + 6 * self.hidden + 2 * self.hidden  # the table; the norm before the text

    @property
    def outer_params(self) -> int:
        d, image = self.hidden, self.image_dim
        embed, head = self.patch_channels * d + d, d * self.prediction_channels + self.prediction_channels + 2 * d
        time = (self.freq_dim + 1) * d + (d + 1) * d + (d + 1) * 6 * d
        text = (self.text_dim + 1) * d + (d + 1) * d
        picture = (2 + image + 1 + self.image_positions) * image + (image + 1) * d + 2 * d if image else 0
        return embed + head + time + text + picture

    def most_held(self, s: Sizes) -> tuple[int, int]:
        copies = s.wide if s.wide > 1 else 0
        # The embedding of the time and six modulations; the block's own six, in fp32.
        time = (7 + 6 * s.wide) * s.d * self.token_time
        # While these are made: the hidden state, and the modulations in fp32.
        start = s.d + time + 6 * copies * s.d if self.token_time else 0
        # Hidden state and norm; Q, K, V and the one that is rotated; two products and their sum, each of half the
        # channels.
        rope = 2 * s.d + 4 * s.a + 3 * s.wide * s.a // 2
        # The given hidden state, the one with attention's output, that output, the norm; both sides of the activation.
        feed_forward = 4 * s.d + 2 * s.f
        # The same four and the layer's output; hidden state, gated output and sum in fp32, of which fp32 has the first.
        gate = 5 * s.d + (3 * copies if copies else 2) * s.d
        return max(start, time + max(rope, feed_forward, gate)), time


TRANSFORMER_KEYS: Table = {
    "patch_size": listed(whole(1, 16), 3, 3, [1, 2, 2]),
    "num_attention_heads": whole(1, 1024, 40),
    "attention_head_dim": whole(2, 4096, 128),
    "in_channels": whole(1, 4096, 16),
    "out_channels": whole(1, 4096, 16),
    "text_dim": whole(1, 2**17, 4096),
    "freq_dim": whole(2, 2**16, 256),
    "ffn_dim": whole(1, 2**20, 13824),
    "num_layers": whole(1, 512, 40),
    "cross_attn_norm": switch(True),
    "qk_norm": only("rms_norm_across_heads", default="rms_norm_across_heads"),
    "eps": EPSILON,
    "image_dim": whole(1, 2**17, None, null=True),
    "added_kv_proj_dim": whole(1, 2**17, None, null=True),
    "rope_max_seq_len": whole(1, 2**20, 1024),
    "pos_embed_seq_len": whole(1, 2**20, None, null=True),
}
TRANSFORMER = Part(
    "diffusers",
    ("WanTransformer3DModel",),
    keys=TRANSFORMER_KEYS,
    shapes=shapes,
    also=("blocks.*.attn2.norm_added_q.",),
)
INDEX_KEYS: Table = {"boundary_ratio": number(0, 1, None, null=True), "expand_timesteps": switch(False, null=True)}
"""Keys of model_index.json beside the components."""


def transformer(folder: Folder, index: Config) -> WanTransformer:
    """Facts of the transformer of a checkpoint folder."""
    config = folder.json("transformer/config.json", TRANSFORMER.keys)
    patch_t, patch_h, patch_w = config["patch_size"]
    return WanTransformer(
        layers=config["num_layers"],
        heads=config["num_attention_heads"],
        head_dim=config["attention_head_dim"],
        ffn=config["ffn_dim"],
        text_dim=config["text_dim"],
        in_channels=config["in_channels"],
        out_channels=config["out_channels"],
        patch=(patch_t, patch_h, patch_w),
        freq_dim=config["freq_dim"],
        max_positions=config["rope_max_seq_len"],
        image_dim=config.get("image_dim") or 0,
        image_positions=config.get("pos_embed_seq_len") or 0,
        token_time=bool(index.get("expand_timesteps")),
    )


def model(folder: Folder, index: Config) -> Config:
    """Further facts: how a Wan checkpoint uses images, and its defaults.

    With expand_timesteps (Wan 2.2 5B) either pipeline runs it, with an image or without. Otherwise the transformer may
    read an embedding of the first image, and of the last if it has positions for both.
    """
    config = folder.json("transformer/config.json", TRANSFORMER.keys)
    starts = index["_class_name"] == "WanImageToVideoPipeline" and not index.get("expand_timesteps")
    _check(folder, index, config, starts)
    found: Config = {"defaults": RequestDefaults(width=832, height=480)}
    if index.get("expand_timesteps"):
        return found | {"image": "may", "encodes": "first"}
    if not starts:
        return found
    found |= {"image": "must", "encodes": "all"}
    if not config["image_dim"]:
        return found | {"last_image": "may"}
    return found | {
        "last_image": "must" if config["pos_embed_seq_len"] else "",
        "image_tokens": _image_tokens(folder, index, config),
        "image_params": folder.params("image_encoder"),
    }


def _check(folder: Folder, index: Config, config: Config, starts: bool) -> None:
    """Raise RequestError (unreadable-model) where the components of a checkpoint do not fit together.

    starts: whether the transformer reads the latents of an image beside the noise, with a mask of as many channels as
    a latent frame has frames.
    """
    latents, stride = config["out_channels"], vae_facts.read(folder).stride_time
    text = folder.json("text_encoder/config.json", UMT5.keys)
    check_rows(folder, "tokenizer", text["vocab_size"])
    folder.check_same(
        {
            "channels that the transformer reads, and those of its pipeline,": (
                config["in_channels"],
                2 * latents + stride if starts else latents,
            ),
            "widths of the text for the transformer and of the text encoder": (
                config["text_dim"],
                text["d_model"],
            ),
        }
    )
    if not starts and config["image_dim"]:
        raise folder.refused("its transformer reads an embedding of images, and its pipeline has none")
    if index.get("transformer_2") not in (None, [None, None]):
        second = folder.json("transformer_2/config.json", TRANSFORMER.keys)
        folder.check_same(
            {f"{key} of both transformers": (config[key], second[key]) for key in TRANSFORMER.keys if key != "eps"}
        )


def _image_tokens(folder: Folder, index: Config, config: Config) -> int:
    """Tokens of one image's embedding. Raises RequestError (unreadable-model) where its encoder does not fit."""
    for component in ("image_encoder", "image_processor"):
        if index.get(component) in (None, [None, None]):
            raise folder.refused(f"its transformer reads an embedding of images, and it has no {component}")
    vision = folder.json("image_encoder/config.json", CLIP.keys)
    tokens: int = (vision["image_size"] // vision["patch_size"]) ** 2 + 1
    positions = config["pos_embed_seq_len"]
    pictures = folder.json("image_processor/preprocessor_config.json", CLIP_PICTURES.keys)
    folder.check_same(
        {
            "sides of the image from its processor and for its encoder": (
                sides_of(pictures),
                2 * (vision["image_size"],),
            ),
            "widths of the image for the transformer and of the image encoder": (
                config["image_dim"],
                vision["hidden_size"],
            ),
            "positions of two images and their tokens": (positions or 2 * tokens, 2 * tokens),
        }
    )
    return tokens
