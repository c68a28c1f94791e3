"""Facts of Cosmos 3 checkpoints. No torch."""

from __future__ import annotations

from hybridgen.models.files import Config, Folder
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


def transformer(folder: Folder, index: Config) -> Cosmos3Transformer:
    """Facts of the transformer of a checkpoint folder."""
    config = folder.json("transformer/config.json")
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
    """Further facts: TRAITS, and the switches of model_index.json."""
    return {
        **TRAITS,
        "native_flow": bool(index.get("use_native_flow_schedule")),
        "guarded": bool(index.get("enable_safety_checker", True)),
    }
