"""Facts of Cosmos 3 checkpoints. No torch."""

from __future__ import annotations

from hybridgen.models.cosmos3.shapes import UNREAD, shapes
from hybridgen.models.files import Config, Folder
from hybridgen.models.keys import Table, listed, number, only, switch, whole
from hybridgen.models.parts import EPSILON, Part
from hybridgen.models.tokenizers import QWEN_TOKENIZER, WORDS, check_rows
from hybridgen.plan.facts import RequestDefaults, Sizes, TransformerFacts

TRAITS: Config = {
    "image": "may",
    "encodes": "first",
    "pads": True,
    "guided_below_1": True,
    "text_tokens": 300,
    "defaults": RequestDefaults(frames=189, steps=35, guidance=6.0, fps=24),
}
"""What the pipeline can do and its defaults, as fields of ModelFacts.

A video's text is a chat; with a short prompt it has this many tokens.
"""


class Cosmos3Transformer(TransformerFacts):
    """A Cosmos3OmniTransformer: text and video have separate weights in every block, and no norm is modulated."""

    @property
    def block_params(self) -> int:
        return 2 * (self.matrix_params + self.norm_params + 2 * self.hidden)

    @property
    def outer_params(self) -> int:
        d = self.hidden
        embed, head = self.patch_channels * d + d, d * self.prediction_channels + self.prediction_channels
        time = (self.freq_dim + 1) * d + (d + 1) * d
        return embed + head + time + 2 * self.vocabulary * d + 2 * d

    def most_held(self, s: Sizes) -> tuple[int, int]:
        """The most that the video's stream holds. Its tokens carry the time already."""
        # Hidden state and norm; Q, K and V; of the Q that is rotated the norm, its turned halves, a product of each.
        rope = 2 * s.d + s.a + 2 * s.k + 4 * s.a
        # The given hidden state, the one with attention's output, the norm; gate, up and their product, or product
        # and sum.
        feed_forward = 3 * s.d + max(s.sides * s.f, s.f + s.d)
        # The two hidden states; two copies in fp32.
        norm = 2 * s.d + 2 * s.wide * s.d
        return max(rope, feed_forward, norm), 0


TRANSFORMER = Part(
    "diffusers",
    ("Cosmos3OmniTransformer",),
    keys={
        "attention_bias": switch(False),
        "head_dim": whole(2, 4096, 128),
        "hidden_size": whole(1, 2**17, 4096),
        "intermediate_size": whole(1, 2**20, 12288),
        "base_fps": number(1, 1000, 24),
        "enable_fps_modulation": switch(True),
        "latent_channel": whole(1, 4096, 48),
        "unified_3d_mrope_reset_spatial_ids": switch(True),
        "unified_3d_mrope_temporal_modality_margin": whole(0, 2**24, 15000),
        "latent_patch_size": whole(1, 64, 2),
        "num_attention_heads": whole(1, 1024, 32),
        "num_hidden_layers": whole(1, 512, 36),
        "num_key_value_heads": whole(1, 1024, 8),
        "patch_latent_dim": whole(1, 2**20, 192),
        "rms_norm_eps": EPSILON,
        "rope_theta": number(1, 1e12, 5e6),
        "rope_axes_dim": listed(whole(0, 4096), 3, 3, None, null=True),
        "timestep_scale": number(1e-9, 1e6, 0.001),
        "vocab_size": whole(1, 2**24, 151936),
        "hidden_act": only("silu", "relu2", default="silu"),
        "qk_norm_for_text": switch(True),
        "use_und_k_norm_for_gen": switch(False),
        "action_gen": switch(False),
        "action_dim": whole(1, 2**16, None, null=True),
        "num_embodiment_domains": whole(1, 2**16, 32),
        "sound_gen": switch(False),
        "sound_dim": whole(1, 2**16, None, null=True),
    },
    shapes=shapes,
    also=UNREAD,
)
TOKENIZER = QWEN_TOKENIZER(needs=["eos_token", "<|vision_start|>"], content=WORDS)
INDEX_KEYS: Table = {
    "enable_safety_checker": switch(True),
    "default_use_system_prompt": switch(True),
    "use_native_flow_schedule": switch(False),
}
"""Keys of model_index.json beside the components."""


def transformer(folder: Folder, index: Config) -> Cosmos3Transformer:
    """Facts of the transformer of a checkpoint folder."""
    config = folder.json("transformer/config.json", TRANSFORMER.keys)
    patch, channels = config["latent_patch_size"], config["latent_channel"]
    return Cosmos3Transformer(
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        width=config["hidden_size"],
        ffn=config["intermediate_size"],
        gated=config.get("hidden_act", "silu") == "silu",
        text_dim=config["hidden_size"],
        vocabulary=config["vocab_size"],
        biases=config["attention_bias"],
        in_channels=channels,
        out_channels=channels,
        patch=(1, patch, patch),
        cross_attention=False,
        text_stream="own",
        head_norm=True,
        max_positions=2**20,
    )


def model(folder: Folder, index: Config) -> Config:
    """Further facts: TRAITS, and the switches of model_index.json. Raises RequestError (unreadable-model)."""
    config = folder.json("transformer/config.json", TRANSFORMER.keys)
    check_rows(folder, "text_tokenizer", config["vocab_size"])
    cells = config["latent_patch_size"] ** 2 * config["latent_channel"]
    folder.check_same({"numbers of a token and of its latents": (config["patch_latent_dim"], cells)})
    if config["num_attention_heads"] % config["num_key_value_heads"]:
        heads, keys = config["num_attention_heads"], config["num_key_value_heads"]
        raise folder.refused(f"its transformer has {heads} heads, which its {keys} heads of keys do not divide")
    return {
        **TRAITS,
        "native_flow": bool(index.get("use_native_flow_schedule")),
        "guarded": bool(index.get("enable_safety_checker", True)),
    }
