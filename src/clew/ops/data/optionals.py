"""Host operators on optionals: values that may be absent (`None` in a run), and tensors whose rank
is only known at run time.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from clew.ir.dims import unknown_dim
from clew.ir.lexer import ParseError
from clew.ir.type_reader import TypeReader
from clew.ir.types import OptionalType, SequenceType, TensorType, Type, UnrankedType
from clew.ops.common import f32, i64
from clew.ops.data.sequences import any_tensor, one_of
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.support.caches import bounded_cache
from clew.support.errors import GraphTypeError, RunError

Array = np.ndarray[Any, Any]
_MAYBE: Final = OptionalType(f32(2, 3))


@bounded_cache(1 << 20)
def type_named(name: str, text: str) -> Type:
    """Returns the type that an attribute names as text.

    Errors: T154 for text that is not a type.
    """
    try:
        reader = TypeReader(text)
        found = reader.type()
        reader.expect("")
    except ParseError as error:
        raise GraphTypeError("T154", f"{name}: {text!r} is not a type") from error
    return found


@register_op(
    "optional.some",
    host=True,
    traits=Traits(passes_on=True),
    samples=(Sample(f32(2, 3)), Sample(SequenceType(f32(2))), Sample(_MAYBE, error="T155")),
)
def some(value: Any) -> Any:
    """An optional that holds a value. Source: ONNX Optional-15."""
    return value


@some.types
def _some_types(value: Type) -> Type:
    if isinstance(value, OptionalType):
        raise GraphTypeError("T155", f"optional.some: cannot nest {value} in an optional")
    return OptionalType(value)


@register_op(
    "optional.none",
    host=True,
    samples=(Sample(type="f32[2]"), Sample(type="seq<i64[*]>"), Sample(type="f33", error="T154")),
)
def none(*, type: str) -> None:
    """An empty optional of a type. Source: ONNX Optional-15."""


@none.types
def _none_types(*, type: str) -> Type:
    return OptionalType(type_named("optional.none", type))


@register_op(
    "optional.has",
    host=True,
    traits=Traits(collects=True),
    samples=(Sample(_MAYBE), Sample(f32(2), error="T155")),
)
def has(value: Any) -> Array:
    """Whether an optional holds a value, `bool[]`. Source: ONNX OptionalHasElement-18."""
    return np.asarray(value is not None)


@has.types
def _has_types(value: Type) -> Type:
    if not isinstance(value, OptionalType):
        raise GraphTypeError("T155", f"optional.has: the input is {value}, expected an optional")
    return TensorType((), "bool")


@register_op(
    "optional.get",
    host=True,
    traits=Traits(passes_on=True),
    samples=(Sample(_MAYBE), Sample(f32(2), error="T155")),
)
def get(value: Any) -> Any:
    """The value of an optional.

    Errors: I273 for an empty optional. Source: ONNX OptionalGetElement-18.
    """
    if value is None:
        raise RunError("I273", "optional.get: the optional holds no value")
    return value


@get.types
def _get_types(value: Type) -> Type:
    if not isinstance(value, OptionalType):
        raise GraphTypeError("T155", f"optional.get: the input is {value}, expected an optional")
    return one_of(value.element)


@register_op(
    "rank.known",
    traits=Traits(sizes="computed"),
    host=True,
    samples=(
        Sample(UnrankedType("f32"), rank=1),
        Sample(f32(2, 3), rank=2),
        Sample(f32(2, 3), rank=1, error="T156"),
        Sample(SequenceType(f32(2)), rank=1, error="T014"),
    ),
)
def known_rank(x: Array, *, rank: int) -> Array:
    """Asserts the rank of a tensor whose rank was unknown.

    Errors: I274 if the tensor has another rank at run time.
    """
    if np.ndim(x) != rank:
        raise RunError("I274", f"a tensor has rank {np.ndim(x)}, the model needs rank {rank}")
    return x


@known_rank.types
def _known_rank_types(x: Type, *, rank: int) -> Type:
    source = any_tensor("rank.known", x)
    if isinstance(source, TensorType) and source.rank != rank:
        raise GraphTypeError("T156", f"rank.known: {source} is not of rank {rank}")
    return TensorType(tuple(unknown_dim() for _ in range(rank)), source.dtype)


@register_op(
    "rank.scalar",
    traits=Traits(sizes="computed"),
    host=True,
    samples=(
        Sample(TensorType((1, 1), "bool")),
        Sample(i64(1)),
        Sample(SequenceType(f32(2)), error="T014"),
    ),
)
def scalar(x: Array) -> Array:
    """The only element of a tensor of any rank, without axes.

    Errors: I274 unless there is exactly one element.
    """
    if np.size(x) != 1:
        raise RunError("I274", f"a tensor has {np.size(x)} elements, the model needs one")
    return np.reshape(x, ())


@scalar.types
def _scalar_types(x: Type) -> Type:
    return TensorType((), any_tensor("rank.scalar", x).dtype)


@register_op(
    "assume",
    traits=Traits(sizes="computed"),
    host=True,
    samples=(
        Sample(np.array(True), code="T108", message="", type="optional<f32[2]>"),
        Sample(np.array(True), code="T108", message="", type="f33", error="T154"),
    ),
)
def assume(holds: Array, *, code: str, message: str, type: str) -> None:
    """Raises an error unless `holds`. It stands for a value of a type that cannot be computed: a
    branch that the shapes of its inputs rule out.
    """
    if not holds:
        raise RunError(code, message)


@assume.types
def _assume_types(holds: Type, *, code: str, message: str, type: str) -> Type:
    return type_named("assume", type)
