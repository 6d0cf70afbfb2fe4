"""Encoders of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from exports.entries import Entry, boxes
from exports.networks.libraries import named
from exports.networks.texts import DIMS, OTHERS, SHAPE, SMALL, WORDS, text
from zoo.entries import Input, tokens


def entries() -> Iterator[Entry]:
    """Yields the encoders."""

    def entry(name: str, model: str, **config: Any) -> Entry:
        return text(name, "encoder", model, **{**SMALL, **config})

    def wide(name: str, model: str, **config: Any) -> Entry:  # names of XLM's kind
        return text(name, "encoder", model, **config)

    yield entry(
        "mobilebert",
        "MobileBertForSequenceClassification",
        embedding_size=24,
        intra_bottleneck_size=32,
        true_hidden_size=32,
    )
    yield wide(
        "xlnet", "XLNetForSequenceClassification",
        vocab_size=WORDS, d_model=48, n_layer=2, n_head=4, d_inner=96, use_mems_eval=False,
    )  # fmt: skip
    yield entry(
        "longformer", "LongformerForSequenceClassification",
        attention_window=[8, 8], max_position_embeddings=130, pad_token_id=1, sequence=16,
    )  # fmt: skip
    yield entry("albert", "AlbertForMaskedLM", embedding_size=24)
    yield entry("bert", "BertForTokenClassification")
    yield entry(
        "big_bird", "BigBirdModel", attention_type="original_full", max_position_embeddings=128
    )
    yield entry(
        "big_bird_sparse",
        "BigBirdModel",
        attention_type="block_sparse",
        block_size=4,
        num_random_blocks=1,
        max_position_embeddings=128,
        sequence=64,
    )
    yield entry("camembert", "CamembertForMaskedLM", max_position_embeddings=130, pad_token_id=1)
    yield entry(
        "canine",
        "CanineModel",
        num_hash_buckets=64,
        local_transformer_stride=8,
        downsampling_rate=4,
        upsampling_kernel_size=4,
        sequence=16,
    )
    yield entry(
        "convbert",
        "ConvBertForSequenceClassification",
        head_ratio=2,
        conv_kernel_size=5,
        embedding_size=48,
    )
    yield entry("data2vec_text", "Data2VecTextModel", max_position_embeddings=130, pad_token_id=1)
    yield entry(
        "deberta",
        "DebertaForSequenceClassification",
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        max_relative_positions=16,
        position_biased_input=False,
    )
    yield entry(
        "deberta_v2",
        "DebertaV2ForSequenceClassification",
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        max_relative_positions=16,
        position_buckets=8,
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        conv_kernel_size=3,
    )
    yield wide(
        "distilbert",
        "DistilBertForQuestionAnswering",
        vocab_size=WORDS,
        dim=48,
        n_layers=2,
        n_heads=4,
        hidden_dim=96,
    )
    yield entry("electra", "ElectraForPreTraining", embedding_size=24)
    yield entry("ernie", "ErnieModel")
    yield entry(
        "esm",
        "EsmModel",
        position_embedding_type="rotary",
        pad_token_id=1,
        mask_token_id=5,
        token_dropout=False,
        emb_layer_norm_before=True,
    )
    yield wide(
        "flaubert", "FlaubertModel", vocab_size=WORDS, emb_dim=48, n_layers=2, n_heads=4, n_langs=1
    )
    yield entry("fnet", "FNetForSequenceClassification", mask=False)
    yield wide(
        "funnel",
        "FunnelForSequenceClassification",
        vocab_size=WORDS,
        block_sizes=[1, 1],
        num_decoder_layers=1,
        d_model=48,
        n_head=4,
        d_head=12,
        d_inner=96,
    )
    yield entry("gpt_bert_megatron", "MegatronBertModel")
    yield entry("ibert", "IBertModel", quant_mode=False, max_position_embeddings=130)
    yield entry("layoutlm", "LayoutLMModel")
    yield entry(
        "luke",
        "LukeModel",
        entity_vocab_size=20,
        entity_emb_size=24,
        use_entity_aware_attention=False,
    )
    yield entry("markuplm", "MarkupLMModel", max_depth=4, xpath_unit_hidden_size=8)
    yield entry(
        "modernbert",
        "ModernBertModel",
        global_attn_every_n_layers=2,
        local_attention=8,
        pad_token_id=0,
    )
    yield entry("mpnet", "MPNetModel", max_position_embeddings=130)
    yield entry("mra", "MraModel", num_hidden_layers=1, block_per_row=2, sequence=64)
    yield entry(
        "nystromformer",
        "NystromformerModel",
        mask=False,
        num_landmarks=4,
        segment_means_seq_len=16,
        sequence=16,
    )
    yield entry(
        "perceiver_text",
        "PerceiverForMaskedLM",
        d_model=32,
        num_latents=8,
        d_latents=32,
        max_position_embeddings=16,
        qk_channels=32,
        v_channels=32,
        num_self_attends_per_block=2,
        num_self_attention_heads=4,
        num_cross_attention_heads=4,
    )
    yield wide(
        "reformer",
        "ReformerModel",
        vocab_size=WORDS,
        hidden_size=32,
        num_attention_heads=2,
        attention_head_size=16,
        feed_forward_size=64,
        attn_layers=["local"],
        local_attn_chunk_length=8,
        axial_pos_shape=[4, 4],
        axial_pos_embds_dim=[16, 16],
        is_decoder=False,
        use_cache=False,
    )
    yield entry("rembert", "RemBertModel", input_embedding_size=24, output_embedding_size=24)
    yield entry(
        "roberta", "RobertaForSequenceClassification", max_position_embeddings=130, pad_token_id=1
    )
    yield entry(
        "roberta_prelayernorm",
        "RobertaPreLayerNormModel",
        max_position_embeddings=130,
        pad_token_id=1,
    )
    yield entry(
        "roformer",
        "RoFormerForSequenceClassification",
        embedding_size=48,
        max_position_embeddings=64,
    )
    yield entry("splinter", "SplinterForQuestionAnswering")
    yield entry(
        "squeezebert",
        "SqueezeBertForSequenceClassification",
        embedding_size=48,
        q_groups=2,
        k_groups=2,
        v_groups=2,
        intermediate_groups=2,
        output_groups=2,
    )
    yield entry("tapas", "TapasModel")
    yield wide("xlm", "XLMModel", vocab_size=WORDS, emb_dim=48, n_layers=2, n_heads=4, n_langs=1)
    yield entry("xlm_roberta_xl", "XLMRobertaXLModel", max_position_embeddings=130, pad_token_id=1)
    yield entry(
        "yoso", "YosoModel", use_expectation=True, hash_code_len=4, max_position_embeddings=128
    )
    words = Input("input_ids", SHAPE, tokens(WORDS))
    with_boxes: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("layoutlm_boxes", "LayoutLMForTokenClassification", {}),
        (
            "lilt",
            "LiltModel",
            {"channel_shrink_ratio": 2, "pad_token_id": 1, "max_position_embeddings": 130},
        ),
        ("bros", "BrosModel", {"dim_bbox": 8, "hidden_size": 64}),
    )
    for name, model, config in with_boxes:
        bbox = Input("bbox", (*SHAPE, 4), boxes(512) if name != "bros" else _unit)
        yield Entry(
            name,
            "encoder",
            named(model, **{**SMALL, **config}),
            (words, bbox),
            DIMS,
            OTHERS,
            by_name=True,
        )


def _unit(rng: Any, shape: tuple[int, ...]) -> Any:
    return rng.random(shape).astype("float32")
