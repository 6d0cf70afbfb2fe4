"""Encoders with decoders of text."""

from __future__ import annotations

from collections.abc import Iterator

from exports.entries import Entry
from exports.networks.libraries import named
from exports.networks.texts import DIMS, OTHERS, SHAPE, WORDS
from zoo.entries import Input, normal, tokens


def entries() -> Iterator[Entry]:
    """Yields the networks."""
    source = Input("input_ids", SHAPE, tokens(WORDS))
    target = Input("decoder_input_ids", ("batch", "target"), tokens(WORDS))
    dims = {**DIMS, "target": 6}
    others = {**OTHERS, "target": 9}
    bart = {
        "vocab_size": WORDS,
        "d_model": 48,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 96,
        "decoder_ffn_dim": 96,
        "max_position_embeddings": 64,
        "use_cache": False,
    }
    t5 = {
        "vocab_size": WORDS,
        "d_model": 48,
        "d_kv": 12,
        "d_ff": 96,
        "num_layers": 2,
        "num_heads": 4,
        "use_cache": False,
    }
    for name, model, config in (
        ("bart", "BartForConditionalGeneration", bart),
        (
            "bigbird_pegasus",
            "BigBirdPegasusForConditionalGeneration",
            {**bart, "attention_type": "original_full"},
        ),
        ("blenderbot", "BlenderbotForConditionalGeneration", bart),
        (
            "fsmt",
            "FSMTForConditionalGeneration",
            {**bart, "langs": ["en", "de"], "src_vocab_size": WORDS, "tgt_vocab_size": WORDS},
        ),
        (
            "led",
            "LEDForConditionalGeneration",
            {
                **bart,
                "attention_window": 8,
                "max_encoder_position_embeddings": 64,
                "max_decoder_position_embeddings": 64,
            },
        ),
        (
            "longt5",
            "LongT5ForConditionalGeneration",
            {**t5, "encoder_attention_type": "local", "local_radius": 7},
        ),
        ("m2m_100", "M2M100ForConditionalGeneration", bart),
        ("marian", "MarianMTModel", {**bart, "pad_token_id": 1, "decoder_start_token_id": 1}),
        ("mbart", "MBartForConditionalGeneration", bart),
        ("mt5", "MT5ForConditionalGeneration", {**t5, "feed_forward_proj": "gated-gelu"}),
        ("pegasus", "PegasusForConditionalGeneration", bart),
        (
            "pegasus_x",
            "PegasusXForConditionalGeneration",
            {**bart, "block_size": 8, "num_global_tokens": 4},
        ),
        ("plbart", "PLBartForConditionalGeneration", bart),
        (
            "prophetnet",
            "ProphetNetForConditionalGeneration",
            {
                "vocab_size": WORDS,
                "hidden_size": 48,
                "num_encoder_layers": 2,
                "num_decoder_layers": 2,
                "num_encoder_attention_heads": 4,
                "num_decoder_attention_heads": 4,
                "encoder_ffn_dim": 96,
                "decoder_ffn_dim": 96,
                "max_position_embeddings": 64,
                "use_cache": False,
            },
        ),
        (
            "switch_transformers",
            "SwitchTransformersForConditionalGeneration",
            {
                **t5,
                "num_experts": 2,
                "num_sparse_encoder_layers": 1,
                "num_sparse_decoder_layers": 1,
            },
        ),
        ("t5", "T5ForConditionalGeneration", t5),
        ("umt5", "UMT5ForConditionalGeneration", t5),
    ):
        yield Entry(
            name,
            "translation",
            named(model, ("logits",), **config),
            (source, target),
            dims,
            others,
            by_name=True,
        )
    states = Input("encoder_hidden_states", ("batch", "memory", 48), normal)
    step = Input("input_ids", ("batch", "sequence"), tokens(WORDS))
    trocr = named(
        "TrOCRForCausalLM",
        vocab_size=WORDS,
        d_model=48,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=96,
        cross_attention_hidden_size=48,
        max_position_embeddings=64,
        use_cache=False,
    )
    yield Entry(
        "trocr_decoder",
        "translation",
        trocr,
        (step, states),
        {"batch": 1, "sequence": 6, "memory": 10},
        {"batch": 2, "sequence": 8, "memory": 12},
        by_name=True,
    )
