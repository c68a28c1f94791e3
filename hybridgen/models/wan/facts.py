"""Facts of Wan checkpoints. No torch."""

from __future__ import annotations

from hybridgen.models.files import Config, Folder
from hybridgen.models.keys import Table, listed, number, only, switch, whole
from hybridgen.models.parts import CLIP, EPSILON, Part
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
    found: Config = {"defaults": RequestDefaults(width=832, height=480)}
    if index.get("expand_timesteps"):
        return found | {"image": "may", "encodes": "first"}
    if index["_class_name"] != "WanImageToVideoPipeline":
        return found
    config = folder.json("transformer/config.json", TRANSFORMER.keys)
    found |= {"image": "must", "encodes": "all"}
    if not config.get("image_dim"):
        return found | {"last_image": "may"}
    for component in ("image_encoder", "image_processor"):
        if not index.get(component) or index[component][0] is None:
            raise folder.refused(f"its transformer reads pictures, and model_index.json names no {component}")
    vision = folder.json("image_encoder/config.json", CLIP.keys)
    return found | {
        "last_image": "must" if config.get("pos_embed_seq_len") else "",
        "image_tokens": (vision["image_size"] // vision["patch_size"]) ** 2 + 1,
        "image_params": folder.params("image_encoder"),
    }
