"""The operators of TFLite by number, and the options of each, in the notation of `schema.py`.

Source: the public schema of TFLite, version 3, as of LiteRT 2.3.
"""

from __future__ import annotations

from typing import Final

from clew.frontends.tflite.file.schema import words

OPERATORS: Final = words(
    "ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE "
    "EMBEDDING_LOOKUP FLOOR FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D "
    "LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU "
    "RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH "
    "CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD "
    "UNIDIRECTIONAL_SEQUENCE_RNN GATHER BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND TRANSPOSE MEAN "
    "SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE BIDIRECTIONAL_SEQUENCE_RNN "
    "EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM "
    "ARG_MAX MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN "
    "TRANSPOSE_CONV SPARSE_TO_DENSE TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE "
    "POW ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND "
    "LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD "
    "RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V "
    "UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG "
    "QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE NON_MAX_SUPPRESSION_V4 "
    "NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL "
    "PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL "
    "COMPLEX_ABS HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL "
    "CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE ASSIGN_VARIABLE BROADCAST_ARGS "
    "RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM MULTINOMIAL GELU DYNAMIC_UPDATE_SLICE "
    "RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_SUM ATAN2 "
    "UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT STABLEHLO_LOGISTIC "
    "STABLEHLO_ADD STABLEHLO_DIVIDE STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM STABLEHLO_RESHAPE "
    "STABLEHLO_CLAMP STABLEHLO_CONCATENATE STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CONVOLUTION "
    "STABLEHLO_SLICE STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE STABLEHLO_ABS STABLEHLO_AND "
    "STABLEHLO_COSINE STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG STABLEHLO_MINIMUM "
    "STABLEHLO_NEGATE STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER STABLEHLO_RSQRT "
    "STABLEHLO_SELECT STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_SCATTER STABLEHLO_COMPARE "
    "STABLEHLO_CONVERT STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_PAD "
    "STABLEHLO_IOTA STABLEHLO_DOT_GENERAL STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT "
    "STABLEHLO_WHILE STABLEHLO_GATHER STABLEHLO_TRANSPOSE DILATE STABLEHLO_RNG_BIT_GENERATOR "
    "REDUCE_WINDOW STABLEHLO_COMPOSITE STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT STABLEHLO_CASE "
)
"""The builtin operators, by number."""

RECORDS: Final = {
    "Conv2DOptions": (
        "padding:i8 stride_w:i32 stride_h:i32 activation:i8 dilation_w:i32=1 dilation_h:i32=1 "
        "quantized_bias_type:i8"
    ),
    "DepthwiseConv2DOptions": (
        "padding:i8 stride_w:i32 stride_h:i32 depth_multiplier:i32 activation:i8 "
        "dilation_w:i32=1 dilation_h:i32=1"
    ),
    "ConcatEmbeddingsOptions": (
        "num_channels:i32 num_columns_per_channel:[i32] embedding_dim_per_channel:[i32]"
    ),
    "LSHProjectionOptions": "type:i8",
    "Pool2DOptions": (
        "padding:i8 stride_w:i32 stride_h:i32 filter_width:i32 filter_height:i32 activation:i8"
    ),
    "SVDFOptions": "rank:i32 activation:i8 asymmetric_quantize_inputs:bool",
    "RNNOptions": "activation:i8 asymmetric_quantize_inputs:bool",
    "FullyConnectedOptions": (
        "activation:i8 weights_format:i8 keep_num_dims:bool asymmetric_quantize_inputs:bool "
        "quantized_bias_type:i8 quant_spec:[u8]"
    ),
    "SoftmaxOptions": "beta:f32",
    "ConcatenationOptions": "axis:i32 activation:i8",
    "AddOptions": "activation:i8 pot_scale_int16:bool=1",
    "L2NormOptions": "activation:i8",
    "LocalResponseNormalizationOptions": "radius:i32 bias:f32 alpha:f32 beta:f32",
    "LSTMOptions": (
        "activation:i8 cell_clip:f32 proj_clip:f32 kernel_type:i8 asymmetric_quantize_inputs:bool"
    ),
    "ResizeBilinearOptions": "align_corners@2:bool half_pixel_centers:bool",
    "CallOptions": "subgraph:u32",
    "ReshapeOptions": "new_shape:[i32]",
    "SkipGramOptions": "ngram_size:i32 max_skip_size:i32 include_all_ngrams:bool",
    "SpaceToDepthOptions": "block_size:i32",
    "EmbeddingLookupSparseOptions": "combiner:i8",
    "MulOptions": "activation:i8",
    "GatherOptions": "axis:i32 batch_dims:i32",
    "ReducerOptions": "keep_dims:bool",
    "SubOptions": "activation:i8 pot_scale_int16:bool=1",
    "DivOptions": "activation:i8",
    "SqueezeOptions": "squeeze_dims:[i32]",
    "SequenceRNNOptions": "time_major:bool activation:i8 asymmetric_quantize_inputs:bool",
    "StridedSliceOptions": (
        "begin_mask:i32 end_mask:i32 ellipsis_mask:i32 new_axis_mask:i32 shrink_axis_mask:i32 "
        "offset:bool"
    ),
    "SplitOptions": "num_splits:i32",
    "CastOptions": "in_data_type:i8 out_data_type:i8",
    "ArgMaxOptions": "output_type:i8",
    "TransposeConvOptions": (
        "padding:i8 stride_w:i32 stride_h:i32 activation:i8 quantized_bias_type:i8"
    ),
    "SparseToDenseOptions": "validate_indices:bool",
    "ShapeOptions": "out_type:i8",
    "ArgMinOptions": "output_type:i8",
    "FakeQuantOptions": "min:f32 max:f32 num_bits:i32 narrow_range:bool",
    "PackOptions": "values_count:i32 axis:i32",
    "OneHotOptions": "axis:i32",
    "UnpackOptions": "num:i32 axis:i32",
    "BidirectionalSequenceLSTMOptions": (
        "activation:i8 cell_clip:f32 proj_clip:f32 merge_outputs:bool time_major:bool=1 "
        "asymmetric_quantize_inputs:bool"
    ),
    "BidirectionalSequenceRNNOptions": (
        "time_major:bool activation:i8 merge_outputs:bool asymmetric_quantize_inputs:bool"
    ),
    "UnidirectionalSequenceLSTMOptions": (
        "activation:i8 cell_clip:f32 proj_clip:f32 time_major:bool "
        "asymmetric_quantize_inputs:bool diagonal_recurrent_tensors:bool"
    ),
    "ResizeNearestNeighborOptions": "align_corners:bool half_pixel_centers:bool",
    "LeakyReluOptions": "alpha:f32",
    "MirrorPadOptions": "mode:i8",
    "SplitVOptions": "num_splits:i32",
    "UniqueOptions": "idx_out_type:i8=2",
    "ReverseSequenceOptions": "seq_dim:i32 batch_dim:i32",
    "IfOptions": "then_subgraph_index:i32 else_subgraph_index:i32",
    "WhileOptions": "cond_subgraph_index:i32 body_subgraph_index:i32",
    "DepthToSpaceOptions": "block_size:i32",
    "BatchMatMulOptions": "adj_x:bool adj_y:bool asymmetric_quantize_inputs:bool",
    "CumsumOptions": "exclusive:bool reverse:bool",
    "CallOnceOptions": "init_subgraph_index:i32",
    "Conv3DOptions": (
        "padding:i8 stride_d:i32 stride_w:i32 stride_h:i32 activation:i8 dilation_d:i32=1 "
        "dilation_w:i32=1 dilation_h:i32=1"
    ),
    "HashtableOptions": "table_id:i32 key_dtype:i8 value_dtype:i8",
    "VarHandleOptions": "container:str shared_name:str",
    "RandomOptions": "seed:i64 seed2:i64",
    "BucketizeOptions": "boundaries:[f32]",
    "GeluOptions": "approximate:bool",
    "StablehloConcatenateOptions": "dimension:i64",
    "StablehloBroadcastInDimOptions": "broadcast_dimensions:[i64]",
    "StablehloSliceOptions": "start_indices:[i64] limit_indices:[i64] strides:[i64]",
    "StablehloConvolutionOptions": (
        "window_strides:[i64] padding:[i64] lhs_dilation:[i64] rhs_dilation:[i64] "
        "window_reversal:[bool] input_batch_dimension:i64 input_feature_dimension:i64 "
        "input_spatial_dimensions:[i64] kernel_input_feature_dimension:i64 "
        "kernel_output_feature_dimension:i64 kernel_spatial_dimensions:[i64] "
        "output_batch_dimension:i64 output_feature_dimension:i64 "
        "output_spatial_dimensions:[i64] feature_group_count:i64 batch_group_count:i64 "
        "precision_config:[u32]"
    ),
    "StablehloCustomCallOptions": (
        "call_target_name:str has_side_effect:bool backend_config:str api_version:i32 "
        "called_computations:[i32] custom_attributes:[u8]"
    ),
    "StablehloReduceOptions": "dimensions:[i64] body_subgraph_index:i32",
    "StablehloScatterOptions": (
        "indices_are_sorted:bool update_window_dims:[i64] inserted_window_dims:[i64] "
        "scatter_dims_to_operand_dims:[i64] index_vector_dim:i64 unique_indices:bool "
        "update_computation_subgraph_index:i32"
    ),
    "StablehloCompareOptions": "comparison_direction:u32 compare_type:u32",
    "StablehloDynamicSliceOptions": "slice_sizes:[i64]",
    "StablehloPadOptions": "edge_padding_low:[i64] edge_padding_high:[i64] interior_padding:[i64]",
    "StablehloIotaOptions": "iota_dimension:i64",
    "StablehloDotGeneralOptions": (
        "lhs_batching_dimensions:[i64] rhs_batching_dimensions:[i64] "
        "lhs_contracting_dimensions:[i64] rhs_contracting_dimensions:[i64] "
        "precision_config:[u32]"
    ),
    "StablehloReduceWindowOptions": (
        "window_dimensions:[i64] window_strides:[i64] base_dilations:[i64] "
        "window_dilations:[i64] padding:[i64] body_subgraph_index:i32"
    ),
    "StablehloSortOptions": "dimension:i64 is_stable:bool comparator_subgraph_index:i32",
    "StablehloWhileOptions": "cond_subgraph_index:i32 body_subgraph_index:i32",
    "StablehloGatherOptions": (
        "offset_dims:[i64] collapsed_slice_dims:[i64] start_index_map:[i64] "
        "index_vector_dim:i64 slice_sizes:[i64] indices_are_sorted:bool"
    ),
    "StablehloTransposeOptions": "permutation:[i64]",
    "StablehloRngBitGeneratorOptions": "algorithm:i8",
    "ReduceWindowOptions": "reduce_function:i32",
    "StableHLOCompositeOptions": (
        "name:str decomposition_subgraph_index:i32 composite_attributes:[u8] "
        "composite_attributes_format:i8 version:i32"
    ),
    "StablehloCaseOptions": "branch_subgraph_indices:[i32]",
}
"""The options that have fields."""

UNIONS: Final = {
    "BuiltinOptions": words(
        "NONE Conv2DOptions DepthwiseConv2DOptions ConcatEmbeddingsOptions LSHProjectionOptions "
        "Pool2DOptions SVDFOptions RNNOptions FullyConnectedOptions SoftmaxOptions "
        "ConcatenationOptions AddOptions L2NormOptions LocalResponseNormalizationOptions "
        "LSTMOptions ResizeBilinearOptions CallOptions ReshapeOptions SkipGramOptions "
        "SpaceToDepthOptions EmbeddingLookupSparseOptions MulOptions PadOptions GatherOptions "
        "BatchToSpaceNDOptions SpaceToBatchNDOptions TransposeOptions ReducerOptions SubOptions "
        "DivOptions SqueezeOptions SequenceRNNOptions StridedSliceOptions ExpOptions "
        "TopKV2Options SplitOptions LogSoftmaxOptions CastOptions DequantizeOptions "
        "MaximumMinimumOptions ArgMaxOptions LessOptions NegOptions PadV2Options GreaterOptions "
        "GreaterEqualOptions LessEqualOptions SelectOptions SliceOptions TransposeConvOptions "
        "SparseToDenseOptions TileOptions ExpandDimsOptions EqualOptions NotEqualOptions "
        "ShapeOptions PowOptions ArgMinOptions FakeQuantOptions PackOptions LogicalOrOptions "
        "OneHotOptions LogicalAndOptions LogicalNotOptions UnpackOptions FloorDivOptions "
        "SquareOptions ZerosLikeOptions FillOptions BidirectionalSequenceLSTMOptions "
        "BidirectionalSequenceRNNOptions UnidirectionalSequenceLSTMOptions FloorModOptions "
        "RangeOptions ResizeNearestNeighborOptions LeakyReluOptions SquaredDifferenceOptions "
        "MirrorPadOptions AbsOptions SplitVOptions UniqueOptions ReverseV2Options AddNOptions "
        "GatherNdOptions CosOptions WhereOptions RankOptions ReverseSequenceOptions "
        "MatrixDiagOptions QuantizeOptions MatrixSetDiagOptions HardSwishOptions IfOptions "
        "WhileOptions DepthToSpaceOptions NonMaxSuppressionV4Options NonMaxSuppressionV5Options "
        "ScatterNdOptions SelectV2Options DensifyOptions SegmentSumOptions BatchMatMulOptions "
        "CumsumOptions CallOnceOptions BroadcastToOptions Rfft2dOptions Conv3DOptions "
        "HashtableOptions HashtableFindOptions HashtableImportOptions HashtableSizeOptions "
        "VarHandleOptions ReadVariableOptions AssignVariableOptions RandomOptions "
        "BucketizeOptions GeluOptions DynamicUpdateSliceOptions UnsortedSegmentProdOptions "
        "UnsortedSegmentMaxOptions UnsortedSegmentMinOptions UnsortedSegmentSumOptions "
        "ATan2Options SignOptions BitcastOptions BitwiseXorOptions RightShiftOptions "
    ),
    "BuiltinOptions2": words(
        "NONE StablehloConcatenateOptions StablehloBroadcastInDimOptions StablehloSliceOptions "
        "StablehloConvolutionOptions StablehloCustomCallOptions StablehloReduceOptions "
        "StablehloScatterOptions StablehloCompareOptions StablehloDynamicSliceOptions "
        "StablehloPadOptions StablehloIotaOptions StablehloDotGeneralOptions "
        "StablehloReduceWindowOptions StablehloSortOptions StablehloWhileOptions "
        "StablehloGatherOptions StablehloTransposeOptions DilateOptions "
        "StablehloRngBitGeneratorOptions ReduceWindowOptions StableHLOCompositeOptions "
        "StablehloShiftLeftOptions StablehloCaseOptions "
    ),
}
"""The options by kind. A kind without a record has no fields."""
