"""Types of values: in ONNX's form, and in that of the graph IR."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TypeProto

from clew.frontends.onnx.file.tensors import dtype_of, number_of
from clew.ir.dims import unknown_dim
from clew.ir.types import (
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    UnrankedType,
)
from clew.support.errors import UnsupportedError


def type_proto(type_: Type) -> TypeProto:
    """Returns a value's type in ONNX's form; asserts that it is one."""
    proto = TypeProto()
    match type_:
        case SequenceType(element):
            proto.sequence_type.elem_type.CopyFrom(type_proto(element))
        case OptionalType(element):
            proto.optional_type.elem_type.CopyFrom(type_proto(element))
        case MapType(key, element):
            proto.map_type.key_type = number_of(key)
            proto.map_type.value_type.CopyFrom(type_proto(element))
        case UnrankedType(dtype):
            proto.tensor_type.elem_type = number_of(dtype)
        case TensorType():
            proto.tensor_type.elem_type = number_of(type_.dtype)
            shape = proto.tensor_type.shape
            shape.SetInParent()  # without axes it is a shape, too
            for dim in type_.shape:
                entry = shape.dim.add()
                if isinstance(dim, int):
                    entry.dim_value = dim
                else:
                    entry.dim_param = str(dim)
        case _:
            raise AssertionError(type_)
    return proto


def with_part_shape(type_: Type, shape: Sequence[int | str]) -> Type:
    """Returns the type of a list or optional with this shape for the tensors in it. Named sizes may
    differ from tensor to tensor, so they become unknown.
    """
    match type_:
        case SequenceType(element):
            return SequenceType(with_part_shape(element, shape))
        case OptionalType(element):
            return OptionalType(with_part_shape(element, shape))
        case TensorType(dtype=dtype) | UnrankedType(dtype):
            return TensorType(
                tuple(d if isinstance(d, int) else unknown_dim() for d in shape), dtype
            )
    return type_


def value_type(proto: TypeProto, what: str) -> Type:
    """Returns the type of a part of a value, or a type from ONNX's inference. Symbolic sizes may
    differ from part to part, so their names carry no information: such sizes become unknown.

    Errors: U004 for a type that no value can have.
    """
    kind = proto.WhichOneof("value")
    if kind == "sequence_type":
        return SequenceType(value_type(proto.sequence_type.elem_type, what))
    if kind == "optional_type":
        return OptionalType(value_type(proto.optional_type.elem_type, what))
    if kind == "map_type":
        key = dtype_of(proto.map_type.key_type, f"the keys of {what}")
        return MapType(key, value_type(proto.map_type.value_type, what))
    if kind != "tensor_type":
        raise UnsupportedError("U004", f"{what} is a {kind or 'value without a type'}")
    dtype = dtype_of(proto.tensor_type.elem_type, what)
    if not proto.tensor_type.HasField("shape"):
        return UnrankedType(dtype)
    dims = proto.tensor_type.shape.dim
    return TensorType(
        tuple(d.dim_value if d.HasField("dim_value") else unknown_dim() for d in dims), dtype
    )
