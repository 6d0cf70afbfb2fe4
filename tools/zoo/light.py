"""The `light_*` networks of the onnx package, with weights at a realistic scale.

The files store every weight as one repeated value. Here each weight becomes an initializer, drawn
according to its *use* in the graph (which operator, which operand). Then convolutions and matrix
products are scaled to outputs of size one, and every batch normalization gets the mean and variance
of its actual input, as in a trained network.

Source: Mishkin and Matas, All you need is a good init, 2016 (layer-sequential unit variance).
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from zoo.entries import Array, Entry, Input, image

_FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
_SEED = 20_261
_VIEWS = {"Identity", "Reshape", "Unsqueeze"}
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]


def entries() -> Iterator[Entry]:
    """Yields an entry for each light network of the installed onnx package."""
    for file in sorted(_FOLDER.glob("light_*.onnx")):
        yield Entry(
            name=file.stem,
            groups=frozenset({"light"}),
            build=partial(build, file),
            inputs=tuple(Input(name, shape, image) for name, shape in _data_inputs(file)),
            sources=(Path(__file__),),
        )


def build(source: Path, target: Path) -> None:
    """Writes the network of `source` with drawn weights to `target`."""
    model = onnx.load(source)
    graph = model.graph
    rng = np.random.default_rng(_SEED)
    _weights_become_initializers(graph)
    uses = _uses(graph)
    for initializer in graph.initializer:
        draw = _drawer(uses, initializer.name, tuple(initializer.dims))
        if draw is not None:
            _assign(initializer, draw(rng, tuple(initializer.dims)))
    # From IR version 4 on an initializer need not be an input, which would keep it replaceable.
    names = {initializer.name for initializer in graph.initializer}
    kept = [value for value in graph.input if value.name not in names]
    del graph.input[:]
    graph.input.extend(kept)
    model.ir_version = 8
    feed = {
        value.name: image(rng, tuple(d.dim_value for d in value.type.tensor_type.shape.dim))
        for value in kept
    }
    _calibrate(model, feed)
    onnx.save(model, target)


def _data_inputs(file: Path) -> list[tuple[str, tuple[int, ...]]]:
    graph = onnx.load(file).graph
    names = {initializer.name for initializer in graph.initializer}
    return [
        (value.name, tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim))
        for value in graph.input
        if value.name not in names
    ]


def _weights_become_initializers(graph: onnx.GraphProto) -> None:
    """Replaces each ConstantOfShape of a constant shape by an initializer; drops unused nodes."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        shape = constants.get(node.input[0]) if node.op_type == "ConstantOfShape" else None
        if shape is None:
            nodes.append(node)
            continue
        value = numpy_helper.to_array(helper.get_node_attr_value(node, "value"))
        filled = np.full(numpy_helper.to_array(shape), value[0])
        graph.initializer.append(numpy_helper.from_array(filled, node.output[0]))
    del graph.node[:]
    graph.node.extend(nodes)
    _drop_unused(graph)


def _drop_unused(graph: onnx.GraphProto) -> None:
    """Removes initializers that no node reads, and the inputs of their names."""
    used = {name for node in graph.node for name in node.input}
    dropped = {tensor.name for tensor in graph.initializer} - used
    for values in (graph.initializer, graph.input):
        kept = [value for value in values if value.name not in dropped]
        del values[:]
        values.extend(kept)


def _uses(graph: onnx.GraphProto) -> dict[str, tuple[onnx.NodeProto, int]]:
    """Returns, for each value, its first reader and at which operand."""
    uses: dict[str, tuple[onnx.NodeProto, int]] = {}
    for node in graph.node:
        for index, name in enumerate(node.input):
            uses.setdefault(name, (node, index))
    return uses


def _drawer(
    uses: dict[str, tuple[onnx.NodeProto, int]],
    name: str,
    shape: tuple[int, ...],
) -> Draw | None:
    """Returns a function that draws the weight `name`, or None if it is not a weight (a shape, an
    axis).
    """
    node, operand = uses[name]
    while node.op_type in _VIEWS and operand == 0:
        node, operand = uses[node.output[0]]
    scale, shift = partial(_uniform, 0.5, 1.5), partial(_gauss, 0.1)
    match node.op_type, operand:
        case "Conv", 1:
            return partial(_gauss, math.sqrt(2 / math.prod(shape[1:])))
        case "Gemm", 1:
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            return partial(_gauss, math.sqrt(2 / shape[-1 if transposed else -2]))
        case ("BatchNormalization", 1) | ("Mul", _):
            return scale
        case ("BatchNormalization", 2) | ("Add", _) | ("Conv" | "Gemm", 2):
            return shift
        case _:
            return None


def _gauss(deviation: float, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation)


def _uniform(low: float, high: float, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.uniform(low, high, shape).astype(np.float32)


def _assign(tensor: onnx.TensorProto, value: Array) -> None:
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value), tensor.name))


def _calibrate(model: onnx.ModelProto, feed: dict[str, Array]) -> None:
    """Scales products to unit outputs and sets batch norms' statistics for the inputs `feed`.

    This takes one run of a copy of the graph that divides by the measured values.
    """
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    graph = probe.graph
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    views = _views(graph)
    nodes: list[onnx.NodeProto] = []
    measured: list[str] = []  # names of weights
    for node in graph.node:
        if node.op_type == "BatchNormalization":
            nodes.extend(_measuring_norm(node))
            measured.extend(node.input[3:5])
        elif node.op_type in {"Conv", "Gemm"}:
            weight = views.get(node.input[1], node.input[1])
            nodes.extend(_measuring_product(node, weight))
            measured.append(weight)
        else:
            nodes.append(node)
    # A channel that this one input leaves constant must not be blown up later.
    graph.initializer.append(numpy_helper.from_array(np.array(1e-3, np.float32), "measured/floor"))
    del graph.node[:]
    graph.node.extend(nodes)
    _drop_unused(graph)
    del graph.output[:]
    graph.output.extend(
        helper.make_tensor_value_info(f"{name}/measured", onnx.TensorProto.FLOAT, None)
        for name in measured
    )
    session = ort.InferenceSession(probe.SerializeToString(), providers=["CPUExecutionProvider"])
    values = dict(zip(measured, session.run(None, feed), strict=True))
    for name, value in values.items():
        scaled = numpy_helper.to_array(weights[name]) / value if value.ndim == 0 else value
        _assign(weights[name], scaled.reshape(tuple(weights[name].dims)))


def _views(graph: onnx.GraphProto) -> dict[str, str]:
    """Returns, for each value that only reshapes another, the value at the beginning."""
    views: dict[str, str] = {}
    for node in graph.node:
        if node.op_type in _VIEWS:
            views[node.output[0]] = views.get(node.input[0], node.input[0])
    return views


def _measuring_product(node: onnx.NodeProto, weight: str) -> Iterator[onnx.NodeProto]:
    """Yields nodes that divide a product by its root mean square, named `<weight>/measured`."""
    x, operand, *bias = node.input
    (y,) = node.output
    size, raw = f"{weight}/measured", f"{y}/raw"
    product = onnx.NodeProto()
    product.CopyFrom(node)
    if node.op_type == "Gemm":  # its bias is not an option in old opsets, so it is weighted by zero
        assert all(attribute.name != "beta" for attribute in node.attribute)
        product.attribute.append(helper.make_attribute("beta", 0.0))
    del product.input[:], product.output[:]
    product.input.extend([x, operand, *bias] if node.op_type == "Gemm" else [x, operand])
    product.output.append(raw)
    yield product
    yield helper.make_node("Mul", [raw, raw], [f"{y}/squared"])
    yield helper.make_node("ReduceMean", [f"{y}/squared"], [f"{y}/spread"], keepdims=0)
    yield helper.make_node("Sqrt", [f"{y}/spread"], [size])
    yield helper.make_node("Div", [raw, size], [f"{y}/unit" if bias else y])
    for vector in bias:
        shift = vector
        if node.op_type == "Conv":
            shift = f"{y}/shift"
            yield helper.make_node("Unsqueeze", [vector], [shift], axes=[1, 2])
        yield helper.make_node("Add", [f"{y}/unit", shift], [y])


def _measuring_norm(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yields nodes that normalize by the input's own statistics, named `<parameter>/measured`."""
    x, scale, shift, mean_name, variance_name = node.input
    (y,) = node.output
    mean, variance = f"{mean_name}/measured", f"{variance_name}/measured"
    average = partial(helper.make_node, "ReduceMean", axes=[0, 2, 3], keepdims=1)
    yield average([x], [mean])
    yield helper.make_node("Sub", [x, mean], [f"{y}/centered"])
    yield helper.make_node("Mul", [f"{y}/centered", f"{y}/centered"], [f"{y}/squared"])
    yield average([f"{y}/squared"], [f"{y}/spread"])
    yield helper.make_node("Max", [f"{y}/spread", "measured/floor"], [variance])
    yield helper.make_node("Sqrt", [variance], [f"{y}/deviation"])
    yield helper.make_node("Div", [f"{y}/centered", f"{y}/deviation"], [f"{y}/unit"])
    for vector in (scale, shift):
        yield helper.make_node("Unsqueeze", [vector], [f"{y}/{vector}"], axes=[1, 2])
    yield helper.make_node("Mul", [f"{y}/unit", f"{y}/{scale}"], [f"{y}/scaled"])
    yield helper.make_node("Add", [f"{y}/scaled", f"{y}/{shift}"], [y])
