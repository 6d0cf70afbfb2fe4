"""Schemas of ONNX Runtime's own operators, which `onnx.defs` does not have.

A row holds the names of an operator's inputs (`name?` is optional, `name*` is variadic) and its
attributes: a default, or a kind if there is none. Only operators with a converter have a row; the
others that ONNX Runtime defines are in `UNSUPPORTED`, so that their error can give advice.

Source: `onnxruntime.capi.onnxruntime_pybind11_state.get_all_operator_schema()` of 1.32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from onnx import AttributeProto
from onnx.defs import OpSchema
from onnx.helper import make_attribute

from clew.support.dataclass import dataclass

MICROSOFT: Final = "com.microsoft"
NCHWC: Final = "com.microsoft.nchwc"

_MANY: Final = 1 << 30
_NUMBERS: Final = ("tensor(float)",)


@dataclass(frozen=True)
class Attribute:
    """An attribute, with the names of `OpSchema.Attribute`: its type, and its default if any."""

    type: OpSchema.AttrType
    default_value: AttributeProto
    required: bool = False


@dataclass(frozen=True)
class Input:
    """An input, with the names of `OpSchema.FormalParameter`. All are numeric tensors."""

    name: str
    types: tuple[str, ...] = _NUMBERS


@dataclass(frozen=True)
class ContribSchema:
    """An ONNX Runtime operator, with the part of `OpSchema` that the importer uses."""

    domain: str
    name: str
    inputs: tuple[Input, ...]
    min_input: int
    max_input: int
    max_output: int
    attributes: Mapping[str, Attribute]
    since_version: int = 1
    deprecated: bool = False
    has_function: bool = False
    has_context_dependent_function: bool = False


@dataclass(frozen=True)
class _Kind:
    """An attribute without a default."""

    type: OpSchema.AttrType
    required: bool = False


_Value: TypeAlias = "int | float | str | _Kind"

_INT: Final = _Kind(OpSchema.AttrType.INT)
_INTS: Final = _Kind(OpSchema.AttrType.INTS)
_REAL: Final = _Kind(OpSchema.AttrType.FLOAT)
_REALS: Final = _Kind(OpSchema.AttrType.FLOATS)
_TEXT: Final = _Kind(OpSchema.AttrType.STRING)
_TEXTS: Final = _Kind(OpSchema.AttrType.STRINGS)
_NEEDS_INT: Final = _Kind(OpSchema.AttrType.INT, required=True)
_NEEDS_INTS: Final = _Kind(OpSchema.AttrType.INTS, required=True)
_NEEDS_TEXT: Final = _Kind(OpSchema.AttrType.STRING, required=True)


_TYPES: Final[dict[type, OpSchema.AttrType]] = {
    int: OpSchema.AttrType.INT,
    float: OpSchema.AttrType.FLOAT,
    str: OpSchema.AttrType.STRING,
}


def _attribute(name: str, value: _Value) -> Attribute:
    if isinstance(value, _Kind):
        return Attribute(value.type, AttributeProto(), value.required)
    default = make_attribute(name, value)
    return Attribute(_TYPES[type(value)], default)


_TABLE: Final[dict[tuple[str, str], ContribSchema]] = {}


def _row(
    name: str, inputs: str, outputs: int = 1, domain: str = MICROSOFT, **attributes: _Value
) -> None:
    words = inputs.split()
    needed = [n for n, word in enumerate(words, 1) if not word.endswith("?")]
    variadic = words[-1].endswith("*")
    _TABLE[domain, name] = ContribSchema(
        domain,
        name,
        tuple(Input(word.rstrip("?*")) for word in words),
        min_input=max(needed),
        max_input=_MANY if variadic else len(words),
        max_output=outputs,
        attributes={key: _attribute(key, value) for key, value in attributes.items()},
    )


def contrib_schema(domain: str, op_type: str) -> ContribSchema | None:
    """Returns the schema of an operator of ONNX Runtime's that has a converter, else None."""
    return _TABLE.get((domain, op_type))


def contrib_schemas() -> tuple[ContribSchema, ...]:
    """Returns all schemas, by domain and name."""
    return tuple(_TABLE[key] for key in sorted(_TABLE))


_row("SkipLayerNormalization", "input skip gamma beta? bias?", 4, epsilon=1e-12)
_row("SkipSimplifiedLayerNormalization", "input skip gamma bias?", 4, epsilon=1e-12)
_row(
    "EmbedLayerNormalization",
    "input_ids segment_ids? word_embedding position_embedding segment_embedding? gamma "
    "beta mask? position_ids?",
    3,
    epsilon=1e-12,
    mask_index_type=_INT,
)
_row(
    "Attention",
    "input weights bias? mask_index? past? attention_bias? past_sequence_length?",
    2,
    do_rotary=_INT,
    mask_filter_value=_REAL,
    num_heads=_NEEDS_INT,
    past_present_share_buffer=_INT,
    qkv_hidden_sizes=_INTS,
    rotary_embedding_dim=_INT,
    scale=_REAL,
    unidirectional=0,
)
_row(
    "MultiHeadAttention",
    "query key? value? bias? key_padding_mask? attention_bias? past_key? past_value? "
    "past_sequence_length? cache_indirection?",
    4,
    mask_filter_value=_REAL,
    num_heads=_NEEDS_INT,
    scale=_REAL,
    unidirectional=0,
)
_row("BiasGelu", "A B")
_row("FastGelu", "X bias?")
_row("QuickGelu", "X", alpha=1.702)
_row("Gelu", "X")
_row(
    "FusedConv",
    "X W B? Z?",
    activation=_TEXT,
    activation_params=_REALS,
    auto_pad="NOTSET",
    dilations=_INTS,
    group=1,
    kernel_shape=_INTS,
    pads=_INTS,
    strides=_INTS,
)
_row("FusedMatMul", "A B", alpha=1.0, transA=0, transB=0, transBatchA=0, transBatchB=0)
_row(
    "FusedGemm",
    "A B C?",
    activation=_TEXT,
    activation_alpha=_REAL,
    activation_beta=_REAL,
    activation_gamma=_REAL,
    alpha=1.0,
    beta=1.0,
    transA=0,
    transB=0,
)
_row("TransposeMatMul", "A B", alpha=1.0, transA=0, transB=0)
_row("DynamicQuantizeMatMul", "A B b_scale b_zero_point? bias?")
_row("MatMulIntegerToFloat", "A B a_scale b_scale a_zero_point? b_zero_point? bias?")
_row(
    "DynamicQuantizeLSTM",
    "X W R B? sequence_lens? initial_h? initial_c? P? W_scale W_zero_point R_scale R_zero_point",
    3,
    activation_alpha=_REALS,
    activation_beta=_REALS,
    activations=_TEXTS,
    clip=_REAL,
    direction="forward",
    hidden_size=_INT,
    input_forget=0,
)
_row("QLinearAdd", "A A_scale A_zero_point? B B_scale B_zero_point? C_scale C_zero_point?")
_row("QLinearMul", "A A_scale A_zero_point? B B_scale B_zero_point? C_scale C_zero_point?")
_row("QLinearSigmoid", "X X_scale X_zero_point? Y_scale Y_zero_point?")
_row("QLinearLeakyRelu", "X X_scale X_zero_point? Y_scale Y_zero_point?", alpha=0.01)
_row("QLinearConcat", "Y_scale Y_zero_point inputs*", axis=_NEEDS_INT)
_row("QLinearGlobalAveragePool", "X x_scale x_zero_point y_scale y_zero_point", channels_last=0)
_row(
    "QLinearAveragePool",
    "X x_scale x_zero_point? y_scale y_zero_point?",
    auto_pad="NOTSET",
    ceil_mode=0,
    channels_last=0,
    count_include_pad=0,
    kernel_shape=_NEEDS_INTS,
    pads=_INTS,
    strides=_INTS,
)
_row("QLinearSoftmax", "X X_scale x_zero_point? y_scale y_zero_point", axis=-1, opset=_NEEDS_INT)
_row(
    "QLinearConv",
    "x x_scale x_zero_point w w_scale w_zero_point y_scale y_zero_point B?",
    auto_pad="NOTSET",
    channels_last=0,
    dilations=_INTS,
    group=1,
    kernel_shape=_INTS,
    pads=_INTS,
    strides=_INTS,
)
_row(
    "QLinearReduceMean",
    "data data_scale data_zero_point? reduced_scale reduced_zero_point?",
    axes=_NEEDS_INTS,
    keepdims=_NEEDS_INT,
)
_row("QLinearWhere", "condition X x_scale x_zero_point Y y_scale y_zero_point z_scale z_zero_point")
_row(
    "QAttention",
    "input weight bias input_scale weight_scale mask_index? input_zero_point? "
    "weight_zero_point? past?",
    2,
    do_rotary=_INT,
    mask_filter_value=_REAL,
    num_heads=_NEEDS_INT,
    past_present_share_buffer=_INT,
    scale=_REAL,
    unidirectional=0,
)
_row(
    "QGemm",
    "A a_scale a_zero_point B b_scale b_zero_point C? y_scale? y_zero_point?",
    alpha=1.0,
    transA=0,
    transB=0,
)
_row(
    "RotaryEmbedding",
    "input position_ids cos_cache sin_cache",
    interleaved=_INT,
    is_packed_batching=_INT,
    num_heads=_INT,
    rotary_embedding_dim=_INT,
    scale=_REAL,
)
_row(
    "GroupQueryAttention",
    "query key? value? past_key? past_value? seqlens_k total_sequence_length "
    "cos_cache? sin_cache? position_ids? attention_bias? head_sink? k_scale? v_scale? "
    "q_norm_weight? k_norm_weight? query_seqlens?",
    4,
    causal=1,
    do_rotary=_INT,
    k_norm_epsilon=_REAL,
    k_quant_type="NONE",
    kv_cache_bit_width=_INT,
    kv_num_heads=_NEEDS_INT,
    local_window_size=-1,
    num_heads=_NEEDS_INT,
    q_norm_epsilon=_REAL,
    qk_norm_epsilon=1e-06,
    qk_output=0,
    rotary_interleaved=_INT,
    scale=_REAL,
    sliding_window_cache=0,
    smooth_softmax=-1,
    softcap=_REAL,
    v_quant_type="NONE",
)
_row(
    "MatMulNBits",
    "A B scales zero_points? g_idx? bias?",
    K=_NEEDS_INT,
    N=_NEEDS_INT,
    accuracy_level=0,
    bits=4,
    block_size=_NEEDS_INT,
    weight_prepacked=0,
)
_row(
    "GatherBlockQuantized",
    "data indices scales zero_points?",
    bits=4,
    block_size=128,
    gather_axis=0,
    quantize_axis=1,
)
_row(
    "NhwcConv",
    "X W B?",
    auto_pad="NOTSET",
    dilations=_INTS,
    group=1,
    kernel_shape=_INTS,
    pads=_INTS,
    strides=_INTS,
)
_row(
    "NhwcFusedConv",
    "X W B? Z?",
    activation=_TEXT,
    activation_params=_REALS,
    auto_pad="NOTSET",
    dilations=_INTS,
    group=1,
    kernel_shape=_INTS,
    pads=_INTS,
    strides=_INTS,
)
_row(
    "NhwcMaxPool",
    "x",
    auto_pad="NOTSET",
    ceil_mode=0,
    dilations=_INTS,
    kernel_shape=_NEEDS_INTS,
    pads=_INTS,
    strides=_INTS,
)
_row(
    "GroupNorm",
    "X gamma beta",
    activation=_NEEDS_INT,
    channels_last=1,
    epsilon=1e-05,
    groups=_NEEDS_INT,
)
_row(
    "SkipGroupNorm",
    "X gamma beta skip bias?",
    2,
    activation=_NEEDS_INT,
    channels_last=1,
    epsilon=1e-05,
    groups=_NEEDS_INT,
)
_row("BiasSplitGelu", "X bias")
_row("BiasAdd", "X bias skip")
_row("BiasDropout", "data bias residual? ratio? training_mode?", 2, seed=_INT)
_row("BiasSoftmax", "data bias", axis=1, is_inner_broadcast=_NEEDS_INT)
_row("Inverse", "X")
_row("Trilu", "X k?", upper=1)
_row("Unique", "x", 3)
_row("ExpandDims", "X axis")
_row("CDist", "A B", metric="sqeuclidean")
_row("Rfft", "X", normalized=0, onesided=1, signal_ndim=1)
_row("Irfft", "X", normalized=0, onesided=1, signal_ndim=_NEEDS_INT)
_row(
    "MoE",
    "input router_probs fc1_experts_weights fc1_experts_bias? fc2_experts_weights "
    "fc2_experts_bias? fc3_experts_weights? fc3_experts_bias?",
    activation_alpha=1.0,
    activation_beta=0.0,
    activation_type="relu",
    k=1,
    normalize_routing_weights=0,
    swiglu_fusion=0,
    swiglu_limit=_REAL,
    swiglu_limit_after_activation=0,
    use_sparse_mixer=0,
)
_row(
    "QMoE",
    "input router_probs fc1_experts_weights fc1_scales? fc1_experts_bias? "
    "fc2_experts_weights fc2_scales? fc2_experts_bias? fc3_experts_weights? "
    "fc3_scales? fc3_experts_bias? fc1_zero_points? fc2_zero_points? fc3_zero_points? "
    "router_weights? fc1_global_scale? fc2_global_scale? fc1_act_scale? fc2_act_scale? "
    "fc1_act_block_scale? fc2_act_block_scale?",
    accuracy_level=0,
    activation_alpha=1.0,
    activation_beta=0.0,
    activation_type="relu",
    block_size=_INT,
    expert_weight_bits=4,
    fc1_expert_weight_bits=_INT,
    fc2_expert_weight_bits=_INT,
    fc3_expert_weight_bits=_INT,
    k=1,
    normalize_routing_weights=0,
    quant_type="int",
    swiglu_fusion=0,
    swiglu_limit=_REAL,
    swiglu_limit_after_activation=0,
    use_sparse_mixer=0,
    weights_prepacked=-1,
)
_row("QuantizeLinear", "x y_scale y_zero_point?", axis=_INT)
_row("DequantizeLinear", "x x_scale x_zero_point?", axis=_INT)
_row("Pad", "data pads value?", mode="constant")
_row("Range", "start limit delta?")
_row("GatherND", "data indices")
_row("MatMulInteger16", "A B")
_row(
    "FusedMatMulActivation",
    "A B",
    activation=_NEEDS_TEXT,
    activation_alpha=_REAL,
    activation_axis=_INT,
    activation_beta=_REAL,
    activation_gamma=_REAL,
    alpha=1.0,
    transA=0,
    transB=0,
    transBatchA=0,
    transBatchB=0,
)
_row("SimplifiedLayerNormalization", "X scale", 2, axis=-1, epsilon=1e-05, stash_type=1, domain="")
_row(
    "AveragePool",
    "X",
    auto_pad="NOTSET",
    ceil_mode=0,
    count_include_pad=0,
    dilations=_INTS,
    kernel_shape=_NEEDS_INTS,
    pads=_INTS,
    strides=_INTS,
    domain=NCHWC,
)
_row(
    "Conv",
    "X W B? Sum?",
    activation=_TEXT,
    activation_params=_REALS,
    auto_pad="NOTSET",
    dilations=_INTS,
    group=1,
    kernel_shape=_INTS,
    pads=_INTS,
    strides=_INTS,
    domain=NCHWC,
)
_row("GlobalAveragePool", "X", domain=NCHWC)
_row("GlobalMaxPool", "X", domain=NCHWC)
_row(
    "MaxPool",
    "X",
    auto_pad="NOTSET",
    ceil_mode=0,
    dilations=_INTS,
    kernel_shape=_NEEDS_INTS,
    pads=_INTS,
    storage_order=0,
    strides=_INTS,
    domain=NCHWC,
)
_row("ReorderInput", "X", channels_last=0, domain=NCHWC)
_row("ReorderOutput", "X", channels=0, channels_last=0, domain=NCHWC)
_row(
    "Upsample",
    "X",
    coordinate_transformation_mode="asymmetric",
    mode="nearest",
    scales=_INTS,
    domain=NCHWC,
)

UNSUPPORTED: Final = frozenset((
    "AttnLSTM", "BeamSearch", "BifurcationDetector", "BitmaskBiasDropout", "BitmaskDropout",
    "BranchwiseRMSNorm", "CausalConvWithState", "ComplexMul", "ComplexMulConj", "ConvStateReplay",
    "ConvTransposeWithDynamicPads", "CropAndResize", "DecoderAttention",
    "DecoderMaskedMultiHeadAttention", "DecoderMaskedSelfAttention", "DequantizeBFP",
    "DequantizeWithOrder", "DynamicSparseAttention", "DynamicTimeWarping", "EPContext",
    "EngramGate", "GatedAdd", "GatedDeltaNet", "GatedDeltaNetStateReplay", "GatedRMSNorm",
    "GatedRelativePositionBias", "GatherPacked", "GemmFastGelu", "GemmFloat8",
    "GemmaRotaryEmbedding", "GreedySearch", "GridSample", "HyperConnectionLowRankMix",
    "HyperConnectionPostMix", "HyperConnectionPreMix", "IsAllFinite", "LinearAttention",
    "LinearAttentionGate", "LongformerAttention", "MRotaryEmbedding", "Mamba2Verify",
    "MatMulBlockQuantizedFp4Weight", "MatMulBlockQuantizedFp8Weight", "MatMulBnb4", "MatMulFpQ4",
    "MatMulNBitsMlp", "MatMulNBitsQLoRA", "MatMulNBitsQkv", "MatMulPacked", "MaxpoolWithMask",
    "MoEGroupRouter", "MoEPacked", "MulInteger", "MurmurHash3", "NGramHashMapping",
    "NGramRepeatBlock", "PackedAttention", "PackedMultiHeadAttention",
    "PackedSparseAttentionIndexer", "PackedSparseAttentionIndexerMerge", "PagedAttention",
    "QEmbedLayerNormalization", "QOrderedAttention", "QOrderedGelu", "QOrderedLayerNormalization",
    "QOrderedLongformerAttention", "QOrderedMatMul", "QuantizeBFP", "QuantizeWithOrder",
    "RMSNormRotary", "ReduceSumInteger", "RelativePositionBias", "RemovePadding",
    "RestorePadding", "RouterGateUpProj", "SampleOp", "Sampling", "ScaledSiLU", "Snpe",
    "SparseAttention", "SparseAttentionIndexer", "SparsePagedAttention", "SparseToDenseMatMul",
    "SpeculativePrefixCommit", "SwiGLU", "Tokenizer", "TorchEmbedding", "UnfoldTensor",
    "VarlenCausalConvWithState", "VarlenNGramHashMapping", "WhisperBeamSearch",
    "WordConvEmbedding",
))  # fmt: skip
"""Operators of the domain `com.microsoft` that ONNX Runtime defines and clew does not."""
