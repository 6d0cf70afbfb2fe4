"""Writes the quantized form of an ONNX file: the same nodes, with QuantizeLinear and
DequantizeLinear at the operands of products, or MatMulNBits for weights of a few bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, version_converter

from clew.frontends.onnx.file.loader import read
from clew.frontends.onnx.file.whole import read_whole
from clew.frontends.onnx.importer import Importer
from clew.frontends.quantized import FORMS, Operand, Product
from clew.support.budgets import current
from clew.support.errors import InputError
from clew.support.packing import packed_halves
from clew.support.writing import write_bytes

Array = NDArray[Any]
_OPSET: Final = 13  # the first in which DequantizeLinear has an axis
_IR_VERSION: Final = 7
_OPSET_OF_BLOCKS: Final = 21  # the first in which it has blocks, and 4 bits
_IR_VERSION_OF_BLOCKS: Final = 10
_LEAST_BLOCK: Final = 16  # of MatMulNBits
_PRODUCTS: Final = ("Conv", "MatMul", "Gemm")
_MATRICES: Final = ("MatMul", "Gemm")
_ROUNDING: Final = {
    "Add": 2,
    "Sum": 2,
    "MaxPool": 1,
    "AveragePool": 1,
    "GlobalAveragePool": 1,
    "ReduceMean": 2,
}
"""Operators without a weight that read rounded operands, each with its largest number of inputs."""
_MICROSOFT: Final = "com.microsoft"
_CONVOLUTIONS: Final = ("Conv", "BatchNormalization")  # a norm may become part of one
_NOTHING: Final = ("Identity", "Dropout")


def write_quantized(
    source: Any,
    path: Path,
    products: Sequence[Product],
    operands: Sequence[Operand],
    notes: Mapping[str, str],
    form: str = FORMS[0],
) -> None:
    """Writes the file with these products quantized, and these operands of other layers rounded;
    weights in groups have one of the `FORMS`.

    Errors: I396 for a product that the file does not compute by Conv, MatMul or Gemm, or whose
    groups MatMulNBits does not support, or for a sum that it does not compute by Add; I397 if the
    file's operators cannot be converted to opset 13, or to 21 for weights of 4 bits or in groups.
    Raises `OSError`.
    """
    new = any((p.block and form == FORMS[0]) or (p.bits == 4 and not p.block) for p in products)
    writer = _Writer(_renamed(source, new), form)
    steps: list[Product | Operand] = [*products, *operands]
    for each in sorted(steps, key=writer.place):
        if isinstance(each, Product):
            writer.quantize(each)
        else:
            writer.round(each)
    write_bytes(path, writer.finished(notes).SerializeToString())


def _renamed(source: Any, has_blocks: bool) -> ModelProto:
    """Returns the whole model, in which each node is called as its layer, at opset 13 or later, or
    at the first one with blocks.
    """
    least = _OPSET_OF_BLOCKS if has_blocks else _OPSET
    budgets = current()
    # Only the names of layers matter, and they do not depend on values or sizes.
    importer = Importer(read(source, budgets), budgets, late=True)
    importer.run()
    model = ModelProto()
    if isinstance(source, ModelProto):
        model.CopyFrom(source)
    elif isinstance(source, (bytes, bytearray, memoryview)):
        model = ModelProto.FromString(bytes(source))
    else:
        model = read_whole(Path(source))
    for index, node in enumerate(model.graph.node):
        node.name = importer.layer_name(index)
    version = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    if version < least:
        try:
            model = version_converter.convert_version(model, least)
        except Exception as error:  # the converter raises RuntimeError and others
            raise InputError(
                "I397",
                f"the model has opset {version}, and onnx cannot convert it to {least}: {error}",
                hint="export it with a newer opset"
                + (f", or save with form={FORMS[1]!r}" if has_blocks else ""),
            ) from error
    model.ir_version = max(model.ir_version, _IR_VERSION_OF_BLOCKS if has_blocks else _IR_VERSION)
    return model


class _Writer:
    def __init__(self, model: ModelProto, form: str) -> None:
        self._model, self._form = model, form
        self._nodes: list[NodeProto] = list(model.graph.node)
        self._by_layer = {n.name: n for n in self._nodes}
        self._places = {id(n): place for place, n in enumerate(self._nodes)}
        self._new: dict[int, list[NodeProto]] = {}  # by id of the node before which they stand
        self._after: dict[int, list[NodeProto]] = {}
        self._held: list[Any] = []
        self._uses_microsoft = False
        self._gone: set[int] = set()
        self._data: dict[tuple[str, float, bytes], str] = {}
        self._dynamic: dict[str, tuple[str, str, str]] = {}
        self._names = {i.name for i in model.graph.initializer} | {
            name for n in self._nodes for name in (*n.input, *n.output)
        }

    def place(self, each: Product | Operand) -> int:
        """Returns the place of a layer in the file: where nodes are shared, the first layer makes
        them. Errors: I396.
        """
        return self._places[id(self._node(each.layer))]

    def round(self, operand: Operand) -> None:
        node = self._node(operand.layer)
        if node.op_type not in _ROUNDING or len(node.input) > _ROUNDING[node.op_type]:
            raise InputError(
                "I396",
                f"{node.op_type} of {len(node.input)} operands has no quantized form in ONNX files",
                layer=operand.layer,
                hint="keep the layer in floats, or write clew text",
            )
        tensor, scale = node.input[operand.place], operand.scale
        steps = np.asarray(np.float32(scale))
        node.input[operand.place] = self._on_grid(node, tensor, scale, steps, operand.zero)

    def quantize(self, product: Product) -> None:
        node = self._node(product.layer)
        if node.op_type not in _PRODUCTS:
            raise InputError(
                "I396",
                f"{node.op_type} has no quantized form in ONNX files",
                layer=product.layer,
                hint=f"keep the layer in floats; quantized are {', '.join(_PRODUCTS)}",
            )
        last, factor = node, _alpha(node)
        if product.weight_only:
            node.input[0] = self._scaled(node, node.input[0], product)
            if product.block and self._form == FORMS[1]:
                last = self._few_bits(node, product)
            else:
                node.input[1] = self._weight(node, product)
        elif product.scale is None and node.op_type == "MatMul":
            last = self._product_of_integers(node, product)
        else:
            node.input[0] = self._quantized(node, node.input[0], product)
            node.input[1] = self._weight(node, product)
        if product.bias is not None:
            last = self._bias(node, last, product, factor)
        if product.norm:
            norm = self._node(product.norm)
            last.output[0] = norm.output[0]
            self._gone.add(id(norm))

    def _node(self, layer: str) -> NodeProto:
        found = self._by_layer.get(layer)
        if found is None:
            raise InputError("I396", "the file has no such node at top level", layer=layer)
        return found

    def _scaled(self, node: NodeProto, tensor: str, product: Product) -> str:
        """Returns an operand times its factors."""
        if product.factors is None:
            return tensor
        axis = _data_axis(node, product)
        key = (tensor, 0.0, product.factors.tobytes() + bytes([axis]))
        if key not in self._data:
            shape = (-1,) + (1,) * (product.rank - 1 - axis)
            factors = self._constant(f"{tensor}.factors", product.factors.reshape(shape))
            self._data[key] = result = self._free(f"{tensor}.scaled")
            made = helper.make_node("Mul", [tensor, factors], [result], name=result)
            self._new.setdefault(id(node), []).append(made)
        return self._data[key]

    def _few_bits(self, node: NodeProto, product: Product) -> NodeProto:
        """Turns a product into a MatMulNBits, and the steps of a Gemm around it into nodes; returns
        the node with the result. Errors: I396.
        """
        count, depth = product.weight.shape
        block = product.block if product.block < depth else 1 << (depth - 1).bit_length()
        block = max(block, _LEAST_BLOCK)
        if block & (block - 1) or (block != product.block and product.scales.shape[1] > 1):
            raise InputError(
                "I396",
                f"MatMulNBits has no groups of {product.block}",
                layer=product.layer,
                hint="use groups of 16, 32, 64, 128 or 256, or the form qdq",
            )
        middle = 0 if not product.symmetric else 1 << (product.bits - 1)
        blocks = product.scales.shape[1]
        codes = np.full((count, blocks * block), middle, np.uint8)
        codes[:, :depth] = product.weight.astype(np.int16) + middle
        packed = packed_halves(codes) if product.bits == 4 else codes
        name = node.input[1]
        inputs = [node.input[0]]
        inputs.append(self._constant(f"{name}.quantized", packed.reshape(count, blocks, -1)))
        inputs.append(self._constant(f"{name}.scale", product.scales))
        if not product.symmetric:
            zeros = product.zeros.astype(np.uint8)
            zeros = packed_halves(zeros) if product.bits == 4 else zeros
            inputs.append(self._constant(f"{name}.zero_point", zeros))
        rest = list(node.input[2:])
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if given.get("transA"):
            inputs[0] = self._free(f"{node.input[0]}.transposed")
            turned = helper.make_node("Transpose", [node.input[0]], [inputs[0]], name=inputs[0])
            self._new.setdefault(id(node), []).append(turned)
        node.op_type, node.domain = "MatMulNBits", _MICROSOFT
        self._uses_microsoft = True
        del node.attribute[:], node.input[:]
        node.input.extend(inputs)
        attributes = {"K": depth, "N": count, "bits": product.bits, "block_size": block}
        node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
        last = self._followed(node, node, "Mul", given.get("alpha", 1.0))
        if rest and rest[0] and not product.own_bias and not product.norm:
            last = self._followed(node, last, "Add", self._times(node, rest[0], given))
        return last

    def _times(self, node: NodeProto, tensor: str, given: Mapping[str, Any]) -> str:
        """Returns the term that a Gemm adds, times its factor."""
        factor = given.get("beta", 1.0)
        if factor == 1.0:
            return tensor
        result = self._free(f"{tensor}.scaled")
        constant = self._constant(f"{tensor}.factor", np.float32(factor))
        made = helper.make_node("Mul", [tensor, constant], [result], name=result)
        self._new.setdefault(id(node), []).append(made)
        return result

    def _followed(self, node: NodeProto, last: NodeProto, op: str, value: Any) -> NodeProto:
        """Returns a node that changes the result of the last one by a value: a number other than 1,
        or a tensor.
        """
        if value == 1.0:
            return last
        if not isinstance(value, str):
            value = self._constant(f"{last.output[0]}.factor", np.float32(value))
        before = self._free(f"{last.output[0]}.before")
        made = helper.make_node(op, [before, value], [last.output[0]], name=before)
        last.output[0] = before
        self._after.setdefault(id(node), []).append(made)
        return made

    def _product_of_integers(self, node: NodeProto, product: Product) -> NodeProto:
        """Turns a MatMul of an operand that is quantized in each call into a MatMulInteger, the
        form for which engines have kernels; returns the node that scales its sums.
        """
        weight, name = product.weight, node.input[1]
        integers, scale, zero = self._quantized_in_calls(node, node.input[0])
        inputs = [integers, self._constant(f"{name}.quantized", weight), zero]
        zeros = np.broadcast_to(product.zeros, product.scales.shape).astype(weight.dtype)
        inputs.append(self._constant(f"{name}.zero_point", zeros))
        sums, wide, scales = (
            self._free(f"{product.layer}.{n}") for n in ("sums", "wide", "scales")
        )
        made = [
            helper.make_node("Cast", [sums], [wide], name=wide, to=TensorProto.FLOAT),
            helper.make_node(
                "Mul",
                [scale, self._constant(f"{name}.scale", product.scales)],
                [scales],
                name=scales,
            ),
            helper.make_node(
                "Mul", [wide, scales], [node.output[0]], name=f"{product.layer}.scaled"
            ),
        ]
        node.op_type = "MatMulInteger"
        del node.input[:]
        node.input.extend(inputs)
        node.output[0] = sums
        self._after.setdefault(id(node), []).extend(made)
        return made[-1]

    def _quantized_in_calls(self, node: NodeProto, tensor: str) -> tuple[str, str, str]:
        """Returns the integers of a value, their scale and zero point, which each call finds."""
        if tensor not in self._dynamic:
            parts = ("quantized", "scale", "zero_point")
            outputs = tuple(self._free(f"{tensor}.{part}") for part in parts)
            made = helper.make_node("DynamicQuantizeLinear", [tensor], outputs, name=outputs[0])
            self._new.setdefault(id(node), []).append(made)
            self._dynamic[tensor] = (outputs[0], outputs[1], outputs[2])
        return self._dynamic[tensor]

    def _quantized(self, node: NodeProto, tensor: str, product: Product) -> str:
        if product.scale is None:
            return self._dequantized(
                node, f"{tensor}.dequantized", self._quantized_in_calls(node, tensor), 0
            )
        axis = _data_axis(node, product)
        return self._on_grid(node, tensor, product.scale, product.steps, product.zero, axis)

    def _on_grid(
        self,
        node: NodeProto,
        tensor: str,
        number: float,
        divisors: Array,
        zero_point: Array,
        axis: int = 1,
    ) -> str:
        """Returns a value of which the integers are multiples of a number, after it is divided by
        one per channel along the axis, or by one.
        """
        zero_key = zero_point.tobytes() + zero_point.dtype.str.encode()
        key = (tensor, number, divisors.tobytes() + zero_key)
        if key not in self._data:
            scale = self._constant(f"{tensor}.scale", np.float32(number))
            zero = self._constant(f"{tensor}.zero_point", zero_point)
            integers = self._free(f"{tensor}.quantized")
            result = self._free(f"{tensor}.dequantized")
            steps, points, value = scale, zero, tensor
            if divisors.ndim:
                value = self._apart(node, tensor)
                steps = self._constant(f"{tensor}.steps", divisors)
                zeros = np.full(divisors.shape, zero_point)
                points = self._constant(f"{tensor}.zero_points", zeros)
            made = [
                helper.make_node(
                    "QuantizeLinear",
                    [value, steps, points],
                    [integers],
                    name=integers,
                    axis=axis,
                ),
                helper.make_node(
                    "DequantizeLinear", [integers, scale, zero], [result], name=result
                ),
            ]
            self._new.setdefault(id(node), []).extend(made)
            self._data[key] = result
        return self._data[key]

    def _apart(self, node: NodeProto, tensor: str) -> str:
        """Returns a value that no convolution computes directly. ONNX Runtime 1.32 merges a
        quantized convolution with the `QuantizeLinear` that reads it, and fails if that has a scale
        per channel. It keeps a `Max` of one value.
        """
        makers = {output: n for n in self._nodes for output in n.output}
        maker = makers.get(tensor)
        while maker is not None and maker.op_type in _NOTHING:
            maker = makers.get(maker.input[0])
        if maker is None or maker.op_type not in _CONVOLUTIONS:
            return tensor
        result = self._free(f"{tensor}.apart")
        made = helper.make_node("Max", [tensor], [result], name=result)
        self._new.setdefault(id(node), []).append(made)
        return result

    def _weight(self, node: NodeProto, product: Product) -> str:
        weight, channel = product.weight, product.channel
        scales, zeros = product.scales, product.zeros
        if node.op_type in _MATRICES:
            rows = node.op_type == "Gemm" and bool(_attribute(node, "transB", 0))
            if rows != (channel == 0):
                weight, channel = np.ascontiguousarray(weight.T), 1 - channel
                if product.block:
                    scales, zeros = np.ascontiguousarray(scales.T), zeros.T
        name = node.input[1]
        inputs = [self._constant(f"{name}.quantized", weight)]
        inputs.append(self._constant(f"{name}.scale", scales))
        if not (product.weight_only and product.symmetric):
            inputs.append(self._constant(f"{name}.zero_point", zeros.astype(weight.dtype)))
        axis = 1 - channel if product.block else channel
        return self._dequantized(node, f"{name}.dequantized", inputs, axis, product.block)

    def _dequantized(
        self, node: NodeProto, name: str, inputs: Sequence[str], axis: int, block: int = 0
    ) -> str:
        result = self._free(name)
        made = helper.make_node("DequantizeLinear", inputs, [result], name=result, axis=axis)
        if block:
            made.attribute.append(helper.make_attribute("block_size", block))
        self._new.setdefault(id(node), []).append(made)
        return result

    def _bias(self, node: NodeProto, last: NodeProto, product: Product, factor: float) -> NodeProto:
        """Adds the bias where the layer does, or behind it; returns the node with the result. The
        result of the product itself was multiplied by a factor.
        """
        assert product.bias is not None
        name = f"{product.layer}.bias"
        value = product.bias
        adds_more = not product.own_bias and not product.norm and len(node.input) > 2
        bare = node.op_type in ("MatMul", "MatMulNBits")  # without a bias of their own
        if last is not node or bare or product.adds or adds_more or factor != 1:
            numbers = value if product.bias_scales is None else value * product.bias_scales
            if node.op_type == "Conv":
                numbers = numbers.reshape((-1,) + (1,) * (product.weight.ndim - 2))
            constant = self._constant(name, (numbers * np.float32(factor)).astype(np.float32))
            return self._added(node, last, product, constant)
        if product.bias_scales is None:
            made = self._constant(name, value.astype(np.float32))
        else:
            scales = product.bias_scales
            inputs = [self._constant(f"{name}.quantized", value.astype(np.int32))]
            inputs.append(self._constant(f"{name}.scale", scales))
            zeros = np.zeros(scales.shape, np.int32)
            inputs.append(self._constant(f"{name}.zero_point", zeros))
            made = self._dequantized(node, f"{name}.dequantized", inputs, 0)
        del node.input[2:]
        node.input.append(made)
        if node.op_type == "Gemm":
            others = [a for a in node.attribute if a.name != "beta"]
            del node.attribute[:]
            node.attribute.extend(others)
        return node

    def _added(
        self, node: NodeProto, last: NodeProto, product: Product, constant: str
    ) -> NodeProto:
        if product.adds:
            adder = self._node(product.adds)
            own = [n for n, name in enumerate(adder.input) if name != last.output[0]]
            if len(own) == 1 and last.output[0] in adder.input:
                adder.input[own[0]] = constant
                return adder
        before = self._free(f"{last.output[0]}.uncorrected")
        made = helper.make_node("Add", [before, constant], [last.output[0]], name=f"{before}.add")
        last.output[0] = before
        self._after.setdefault(id(node), []).append(made)
        return made

    def _constant(self, name: str, value: Any) -> str:
        free = self._free(name)
        self._held.append(numpy_helper.from_array(np.asarray(value), free))
        return free

    def _free(self, name: str) -> str:
        found, count = name, 1
        while found in self._names:
            count += 1
            found = f"{name}.{count}"
        self._names.add(found)
        return found

    def finished(self, notes: Mapping[str, str]) -> ModelProto:
        """Returns the model, without parameters and nodes that nothing reads any more."""
        graph = self._model.graph
        ordered: list[NodeProto] = []
        for node in self._nodes:
            if id(node) not in self._gone:
                ordered += [*self._new.get(id(node), ()), node, *self._after.get(id(node), ())]
        kept = _used(ordered, [o.name for o in graph.output])
        read = {name for n in kept for name in _reads(n)} | {o.name for o in graph.output}
        tensors = [t for t in (*graph.initializer, *self._held) if t.name in read]
        inputs = [
            i
            for i in graph.input
            if i.name in read or i.name not in {t.name for t in graph.initializer}
        ]
        infos = [v for v in graph.value_info if v.name in read]
        for kind, values in (
            ("node", kept),
            ("initializer", tensors),
            ("input", inputs),
            ("value_info", infos),
        ):
            held = [type(v).FromString(v.SerializeToString()) for v in values]
            del getattr(graph, kind)[:]
            getattr(graph, kind).extend(held)
        others = [p for p in self._model.metadata_props if p.key not in notes]
        del self._model.metadata_props[:]
        self._model.metadata_props.extend(others)
        if self._uses_microsoft and all(o.domain != _MICROSOFT for o in self._model.opset_import):
            self._model.opset_import.add(domain=_MICROSOFT, version=1)
        for key, note in notes.items():
            self._model.metadata_props.add(key=key, value=note)
        return self._model


def _alpha(node: NodeProto) -> float:
    """Returns the factor of the product in a node."""
    return float(_attribute(node, "alpha", 1.0)) if node.op_type == "Gemm" else 1.0


def _attribute(node: NodeProto, name: str, default: Any) -> Any:
    found = (helper.get_attribute_value(a) for a in node.attribute if a.name == name)
    return next(found, default)


def _data_axis(node: NodeProto, product: Product) -> int:
    """Returns the axis of channels in the operand as the node reads it."""
    turned = node.op_type == "Gemm" and _attribute(node, "transA", 0)
    return 1 - product.axis if turned else product.axis


def _reads(node: NodeProto) -> set[str]:
    found = set(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                found |= _reads(inner)
            found |= {o.name for o in graph.output}
    return found


def _used(nodes: Sequence[NodeProto], outputs: Sequence[str]) -> list[NodeProto]:
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if any(o in wanted for o in node.output):
            kept.append(node)
            wanted |= _reads(node)
    return kept[::-1]
