"""Facts of Wan checkpoints. No torch."""

from __future__ import annotations

from hybridgen.models.files import Config, Folder
from hybridgen.plan.facts import RequestDefaults, TransformerFacts


def transformer(folder: Folder, index: Config) -> TransformerFacts:
    """WanTransformer3DModel."""
    config = folder.json("transformer/config.json")
    patch_t, patch_h, patch_w = config["patch_size"]
    return TransformerFacts(
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
    """What a Wan checkpoint does with pictures, and its defaults.

    With expand_timesteps (Wan 2.2 5B) either pipeline runs it, with a picture or without. Otherwise the transformer
    may read an embedding of the picture: of the first and the last where it has positions for both, else of one.
    """
    found: Config = {"defaults": RequestDefaults(width=832, height=480)}
    if index.get("expand_timesteps"):
        return found | {"image": "may", "encodes": "first"}
    if index["_class_name"] != "WanImageToVideoPipeline":
        return found
    config = folder.json("transformer/config.json")
    found |= {"image": "must", "encodes": "all"}
    if not config.get("image_dim"):
        return found | {"last_image": "may"}
    vision = folder.json("image_encoder/config.json")
    return found | {
        "last_image": "must" if config.get("pos_embed_seq_len") else "",
        "image_tokens": (vision["image_size"] // vision["patch_size"]) ** 2 + 1,
        "image_params": folder.params("image_encoder"),
    }
