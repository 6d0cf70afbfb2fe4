"""The contents of a TFLite file: subgraphs of operators on tensors.

Bytes are checked where they are decoded. After `read`, every index is in range, every constant has
the elements of its shape, and names are text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.frontends.limits import checked_size, over
from clew.frontends.names import display
from clew.frontends.tflite.file import options, schema
from clew.frontends.tflite.file.flatbuffer import Buffer, Damaged, Inconsistent, Schema, TooMany
from clew.frontends.tflite.file.flexbuffer import flexible
from clew.frontends.tflite.file.packed import unpacked
from clew.frontends.tflite.file.sparse import places
from clew.ir.types import DTYPES, bits, integer_limits
from clew.support.budgets import Budgets
from clew.support.errors import ModelError, UnsupportedError

_SCHEMA: Final = Schema({**schema.RECORDS, **options.RECORDS}, {**schema.UNIONS, **options.UNIONS})
_VERSION: Final = 3
_CUSTOM: Final = "CUSTOM"
_TABLES: Final = 16  # of an operator, its tensors, their scales and buffers
_OUTSIDE: Final = 1  # an offset up to this one says that a buffer lies in its table


@dataclass(frozen=True)
class Quantization:
    """Scales and zero points: one each, or one for each element along `axis`. If `block` is set,
    there is one for each block of so many elements along the last axis, and the other axes are
    those of the tensor.
    """

    scale: NDArray[np.float32]
    zero: NDArray[np.int64]
    axis: int
    block: int = 0

    @property
    def by_channel(self) -> bool:
        """Whether each element along the axis has its own parameters."""
        return self.scale.size > 1 or self.block > 0


@dataclass(frozen=True)
class TensorInfo:
    """A tensor. `shape` has None for sizes that the file leaves open, and `usual` has numbers for
    them, too. `data` has the bytes of a constant, and None for other tensors.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    data: NDArray[np.uint8] | None
    quantization: Quantization | None
    is_variable: bool
    sparsity: Mapping[str, Any] | None = None
    usual: tuple[int, ...] = ()


@dataclass(frozen=True)
class OperatorInfo:
    """An operator. Operands are tensor numbers, -1 for an omitted one. `intermediates` are tensors
    that only have scales; `custom` has the encoded options of a custom operator.
    """

    op: str
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any]
    intermediates: tuple[int, ...] = ()
    custom: bytes = b""


@dataclass(frozen=True)
class GraphInfo:
    """A subgraph."""

    name: str
    tensors: Sequence[TensorInfo]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: Sequence[OperatorInfo]


@dataclass(frozen=True)
class SignatureInfo:
    """A signature: a subgraph, and names for its inputs and outputs, by tensor."""

    name: str
    graph: int
    inputs: Mapping[int, str]
    outputs: Mapping[int, str]


@dataclass(frozen=True)
class File:
    """A TFLite file. The first subgraph is the main one."""

    graphs: Sequence[GraphInfo]
    signatures: Sequence[SignatureInfo] = ()


def read(data: bytes | memoryview, budgets: Budgets) -> File:
    """Returns the contents of a file. Constants share its memory.

    Errors: M060 for damaged bytes and inconsistent parameters, M061 for another version, M006, M009
    and M030 for what exceeds the budgets, U004 for element types that clew does not have.
    """
    try:
        return _Reader(data, budgets).file()
    except TooMany:
        most = budgets.nodes * _TABLES
        what = "tables of the TFLite file, 16 for each layer"
        raise over("M009", what, f"more than {most}", "nodes", budgets.nodes) from None
    except Damaged as error:
        raise ModelError(
            "M060",
            f"the TFLite file cannot be read: {error}",
            hint="the file is truncated or damaged: download or convert it again",
        ) from error
    except Inconsistent as error:
        raise ModelError(
            "M060",
            f"the TFLite file is inconsistent: {error}",
            hint="the converter wrote these parameters: convert the model with another version",
        ) from error


class _Reader:
    def __init__(self, data: bytes | memoryview, budgets: Budgets) -> None:
        self._data = memoryview(data)
        self._budgets = budgets
        self._chars = 0
        self._root = Buffer(self._data, _SCHEMA, budgets.nodes * _TABLES).read("Model")

    def file(self) -> File:
        if self._root["version"] != _VERSION:
            raise ModelError(
                "M061", f"the TFLite file has version {self._root['version']}, {_VERSION} is read"
            )
        graphs = [self._graph(n, graph) for n, graph in enumerate(self._root["subgraphs"])]
        if not graphs:
            raise Damaged("it holds no graph")
        return File(graphs, [self._signature(s, graphs) for s in self._root["signature_defs"]])

    def _signature(
        self, signature: Mapping[str, Any], graphs: Sequence[GraphInfo]
    ) -> SignatureInfo:
        name, number = self._name(signature["signature_key"]), signature["subgraph_index"]
        if number >= len(graphs):
            raise Damaged(f"signature {display(name)!r} is of graph {number} of {len(graphs)}")
        inputs, outputs = (
            {each["tensor_index"]: self._name(each["name"]) for each in signature[key]}
            for key in ("inputs", "outputs")
        )
        return SignatureInfo(name, number, inputs, outputs)

    def _name(self, text: str) -> str:
        """Returns a name. Errors: M030 for more text than the budget."""
        self._chars += len(text)
        if self._chars > self._budgets.text_chars:
            raise ModelError("M030", "the names of the model exceed the budget text_chars")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise Damaged(f"a name is not UTF-8: {display(text)}") from error
        return text

    def _graph(self, number: int, graph: Mapping[str, Any]) -> GraphInfo:
        tensors = [self._tensor(each) for each in graph["tensors"]]
        for n, each in enumerate(graph["tensors"]):
            details = (each["quantization"] or {}).get("details")
            if details is not None:
                found = _by_blocks(details, tensors[n], tensors, self._budgets)
                tensors[n] = replace(tensors[n], quantization=found)
        return GraphInfo(
            self._name(graph["name"]) or f"graph_{number}",
            tensors,
            _indices(graph["inputs"], len(tensors), "an input"),
            _indices(graph["outputs"], len(tensors), "an output"),
            [self._operator(each, len(tensors)) for each in graph["operators"]],
        )

    # --- tensors ---

    def _tensor(self, tensor: Mapping[str, Any]) -> TensorInfo:
        name = self._name(tensor["name"])
        number = tensor["type"]
        if not 0 <= number < len(schema.DTYPES):
            raise Damaged(f"tensor {display(name)!r} has the element type {number}")
        dtype = schema.DTYPES[number]
        rank = max(tensor["shape"].size, tensor["shape_signature"].size)
        if rank > self._budgets.rank:
            what = f"axes of tensor {display(name)!r}"
            raise over("M006", what, rank, "rank", self._budgets.rank)
        fixed, signature = tensor["shape"].tolist(), tensor["shape_signature"].tolist()
        if signature and len(signature) != len(fixed):
            raise Damaged(f"tensor {display(name)!r} has two ranks")
        shape = tuple(None if size < 0 else size for size in signature or fixed)
        data = self._buffer(tensor["buffer"], f"tensor {display(name)!r}")
        return TensorInfo(
            name,
            dtype,
            shape if data is None else tuple(fixed),
            data,
            _quantization(tensor["quantization"], fixed, dtype, name),
            tensor["is_variable"],
            tensor["sparsity"],
            tuple(fixed),
        )

    def _buffer(self, number: int, what: str) -> NDArray[np.uint8] | None:
        """Returns the bytes of a buffer; None if it has none."""
        buffers = self._root["buffers"]
        if number >= len(buffers):
            if number == 0:
                return None
            raise Damaged(f"{what} is in buffer {number} of {len(buffers)}")
        buffer = buffers[number]
        if buffer["offset"] > _OUTSIDE:
            begin, size = buffer["offset"], buffer["size"]
            if begin + size > len(self._data):
                raise Damaged(f"{what} lies beyond the end of the file")
            return np.frombuffer(self._data, np.uint8)[begin : begin + size]
        found: NDArray[np.uint8] = buffer["data"]
        return found if found.size else None

    # --- operators ---

    def _operator(self, operator: Mapping[str, Any], tensors: int) -> OperatorInfo:
        codes = self._root["operator_codes"]
        if operator["opcode_index"] >= len(codes):
            raise Damaged(f"an operator has the code {operator['opcode_index']} of {len(codes)}")
        code = codes[operator["opcode_index"]]
        number = max(code["deprecated_builtin_code"], code["builtin_code"])
        op = options.OPERATORS[number] if 0 <= number < len(options.OPERATORS) else str(number)
        given = operator["builtin_options"] or operator["builtin_options2"] or {}
        custom = operator["custom_options"].tobytes() if op == _CUSTOM else b""
        if custom:
            given = _named(custom)
        return OperatorInfo(
            self._name(code["custom_code"]) if op == _CUSTOM else op,
            code["version"],
            _indices(operator["inputs"], tensors, "an operand", optional=True),
            _indices(operator["outputs"], tensors, "a result", optional=True),
            given,
            _indices(operator["intermediates"], tensors, "an intermediate"),
            custom,
        )


def _named(custom: bytes) -> Mapping[str, Any]:
    """Returns the options of a custom operator by name; none if they have another encoding."""
    try:
        found = flexible(custom)
    except Damaged:
        return {}
    return found if isinstance(found, dict) else {}


def _indices(given: Any, count: int, what: str, *, optional: bool = False) -> tuple[int, ...]:
    found = tuple(map(int, given))
    least = -1 if optional else 0
    wrong = [index for index in found if not least <= index < count]
    if wrong:
        raise Damaged(f"{what} is none of the {count} tensors: {wrong[0]}")
    return found


def _quantization(
    given: Mapping[str, Any] | None, shape: Sequence[int], dtype: str, name: str
) -> Quantization | None:
    """Returns the scales and zero points of a tensor; None if it is not quantized, or by blocks."""
    if given is None or given["details"] is not None or not given["scale"].size:
        return None
    scale, zero = given["scale"], given["zero_point"]
    if not zero.size:
        zero = np.zeros(scale.size, np.int64)
    # The only axis of a vector needs no number, and some converters write that of the weights.
    axis = 0 if len(shape) == 1 else given["quantized_dimension"]
    what = f"tensor {display(name)!r} of shape {list(shape)} has {scale.size} scales"
    if zero.size not in (1, scale.size):
        raise Inconsistent(f"{what} and {zero.size} zero points")
    if scale.size > 1 and not _fits(scale.size, axis, shape):
        if not 0 <= axis < len(shape):
            raise Inconsistent(f"{what} along axis {axis}, which it does not have")
        raise Inconsistent(f"{what} along axis {axis}, whose size is {shape[axis]}")
    if dtype[0] in "iu" and dtype in DTYPES:
        low, high = integer_limits(dtype)
        if zero.min() < low or zero.max() > high:
            text = f"tensor {display(name)!r} has a zero point that {dtype} does not hold"
            raise Inconsistent(text)
    return Quantization(scale, np.broadcast_to(zero, scale.shape), axis)


def _by_blocks(
    given: Mapping[str, Any], tensor: TensorInfo, tensors: Sequence[TensorInfo], budgets: Budgets
) -> Quantization:
    """Returns the scales and zero points of the blocks of a constant.

    Errors: U004 for scales of a kind of its own, or of a tensor that is no constant.
    """
    what = f"tensor {display(tensor.name)!r}"
    if "block_size" not in given:
        raise UnsupportedError("U004", f"{what} has scales of a kind of its own")
    block, shape = given["block_size"], [size or 0 for size in tensor.shape]
    if tensor.data is None or tensor.dtype not in ("i4", "i8", "i2"):
        raise UnsupportedError("U004", f"{what} has scales for blocks, and is no constant of codes")
    if block < 1 or not shape or shape[-1] % block:
        raise Damaged(f"{what} of {shape} has scales for blocks of {block}")
    wanted = (*shape[:-1], shape[-1] // block)

    def parameters(number: int, dtypes: Sequence[str]) -> NDArray[Any] | None:
        found = tensors[number] if 0 <= number < len(tensors) else None
        if found is None or found.data is None or found.dtype not in dtypes:
            return None
        value = constant(found, budgets)
        return value.reshape(wanted) if value.size == math.prod(wanted) else None

    scale = parameters(given["scales"], ("f16", "f32", "bf16"))
    if scale is None:
        raise Damaged(f"{what} has no scale for each of its blocks")
    # A file without zero points has the number of no tensor, or that of another one.
    zero = parameters(given["zero_points"], ("i4", "i8", "i32", "i64"))
    zero = np.zeros(wanted, np.int64) if zero is None else zero.astype(np.int64)
    low, high = integer_limits(tensor.dtype)
    if zero.min(initial=0) < low or zero.max(initial=0) > high:
        raise Damaged(f"{what} has a zero point that {tensor.dtype} does not hold")
    return Quantization(scale.astype(np.float32), zero, 0, block)


def _fits(count: int, axis: int, shape: Sequence[int]) -> bool:
    """Whether there is a scale for each element along an axis."""
    return 0 <= axis < len(shape) and shape[axis] == count


def constant(tensor: TensorInfo, budgets: Budgets) -> NDArray[Any]:
    """Returns the elements of a constant.

    Errors: M006 if the bytes are not those of its shape, U004 for a type that clew does not have.
    """
    what = f"tensor {display(tensor.name)!r}"
    if tensor.dtype not in DTYPES:
        raise UnsupportedError("U004", f"{what} has elements of type {tensor.dtype}")
    assert tensor.data is not None
    shape = tuple(size or 0 for size in tensor.shape)
    count = checked_size(shape, tensor.dtype, budgets, what)
    stored = count
    if tensor.sparsity is not None:
        stored = tensor.data.size // max(bits(tensor.dtype) // 8, 1)
    found = unpacked(tensor.data, tensor.dtype, stored)
    if found is None:
        raise ModelError(
            "M006",
            f"{what} has {tensor.data.size} bytes for {tensor.dtype}{list(shape)}",
        )
    if tensor.sparsity is not None:
        return _dense(found, tensor.sparsity, shape, what)
    return found.reshape(shape)


def _dense(
    stored: NDArray[Any], sparsity: Mapping[str, Any], shape: tuple[int, ...], what: str
) -> NDArray[Any]:
    """Returns all elements of a sparse constant. Errors: M006 if its description is damaged."""
    made = np.zeros(shape, stored.dtype)
    try:
        made.reshape(-1)[places(sparsity, shape, stored.size)] = stored
    except Damaged as error:
        raise ModelError("M006", f"{what} cannot be read: {error}") from error
    return made
