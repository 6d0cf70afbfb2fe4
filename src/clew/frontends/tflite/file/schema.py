"""The tables of a TFLite file, except operator options (`options.py`).

A record is a list of `name:type` in slot order. `name@4:type` jumps to slot 4, and `name:type=1`
has a default other than zero. Types are scalars (`i32`), `str`, records, vectors in brackets, and
unions in angle brackets, whose kind is in the slot before.

Source: the public schema of TFLite, version 3, as of LiteRT 2.3.
"""

from __future__ import annotations

from typing import Final


def words(text: str) -> tuple[str, ...]:
    """Returns a list of names."""
    return tuple(text.split())


RECORDS: Final = {
    "Model": (
        "version:u32 operator_codes:[OperatorCode] subgraphs:[SubGraph] description:str "
        "buffers:[Buffer] metadata_buffer:[i32] metadata:[Metadata] "
        "signature_defs:[SignatureDef] external_buffer_groups:[ExternalBufferGroup] "
        "external_buffers:[ExternalBuffer]"
    ),
    "OperatorCode": "deprecated_builtin_code:i8 custom_code:str version:i32=1 builtin_code:i32",
    "SubGraph": (
        "tensors:[Tensor] inputs:[i32] outputs:[i32] operators:[Operator] name:str "
        "debug_metadata_index:i32=-1"
    ),
    "Tensor": (
        "shape:[i32] type:i8 buffer:u32 name:str quantization:QuantizationParameters "
        "is_variable:bool sparsity:SparsityParameters shape_signature:[i32] has_rank:bool "
        "variant_tensors:[VariantSubType] external_buffer:u32"
    ),
    "Buffer": "data:[u8] offset:u64 size:u64",
    "Operator": (
        "opcode_index:u32 inputs:[i32] outputs:[i32] builtin_options_type:u8 "
        "builtin_options:<BuiltinOptions> custom_options:[u8] custom_options_format:i8 "
        "mutating_variable_inputs:[bool] intermediates:[i32] large_custom_options_offset:u64 "
        "large_custom_options_size:u64 builtin_options2_type:u8 "
        "builtin_options2:<BuiltinOptions2> debug_metadata_index:i32=-1"
    ),
    "QuantizationParameters": (
        "min:[f32] max:[f32] scale:[f32] zero_point:[i64] details_type:u8 "
        "details:<QuantizationDetails> quantized_dimension:i32"
    ),
    "CustomQuantization": "custom:[u8]",
    "BlockwiseQuantization": "scales:i32 zero_points:i32 block_size:i32 block_shape:[i32]",
    "SparsityParameters": "traversal_order:[i32] block_map:[i32] dim_metadata:[DimensionMetadata]",
    "DimensionMetadata": (
        "format:i8 dense_size:i32 array_segments_type:u8 array_segments:<SparseIndexVector> "
        "array_indices_type:u8 array_indices:<SparseIndexVector>"
    ),
    "Int32Vector": "values:[i32]",
    "Uint16Vector": "values:[u16]",
    "Uint8Vector": "values:[u8]",
    "VariantSubType": "shape:[i32] type:i8 has_rank:bool",
    "Metadata": "name:str buffer:u32",
    "TensorMap": "name:str tensor_index:u32",
    "SignatureDef": "inputs:[TensorMap] outputs:[TensorMap] signature_key:str subgraph_index@4:u32",
    "ExternalBufferGroup": "name:str",
    "ExternalBuffer": "id:u32 group:u32 offset:u64 length:u64 packing:str",
}

UNIONS: Final = {
    "QuantizationDetails": ("", "CustomQuantization", "BlockwiseQuantization"),
    "SparseIndexVector": ("", "Int32Vector", "Uint16Vector", "Uint8Vector"),
}
"""The records of each union, by kind."""

DTYPES: Final = words(
    "f32 f16 i32 u8 i64 str bool i16 c64 i8 f64 c128 u64 resource variant u32 u16 i4 bf16 i2 u4 "
    "f8e4m3fn f8e5m2"
)
"""The types of a tensor's elements, by number."""
