"""The demo's networks other than the codec, untrained: tokenizer, text encoder, transformer, scheduler."""

from __future__ import annotations

from diffusers import UniPCMultistepScheduler, WanTransformer3DModel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from examples.train_demo.clips import CAPTIONS

VOCABULARY = 384
FLOW_SHIFT = 3.0
BOUNDARY = 0.875  # noise level where the low-noise expert takes over, as in Wan 2.2


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE trained on the captions: a token per caption word, other text still encodes."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "</s>", "<unk>"],
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    bpe.train_from_iterator(CAPTIONS, trainer)
    bpe.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=512
    )


def build_text_encoder() -> UMT5EncoderModel:
    """UMT5 with 2 layers of width 64."""
    config = UMT5Config(
        vocab_size=VOCABULARY,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    return UMT5EncoderModel(config)


def build_transformer() -> WanTransformer3DModel:
    """Wan transformer with 4 layers of 8 heads x 16: 1.1 million parameters."""
    return WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=8,
        attention_head_dim=16,
        in_channels=16,
        out_channels=16,
        text_dim=64,
        freq_dim=128,
        ffn_dim=384,
        num_layers=4,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=64,
    )


def build_scheduler() -> UniPCMultistepScheduler:
    """UniPC over flow-matching noise levels, shifted as in training."""
    return UniPCMultistepScheduler(
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=FLOW_SHIFT,
        num_train_timesteps=1000,
    )
