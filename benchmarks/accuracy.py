"""Rounding errors of networks by clew and ONNX Runtime in f32, against the same network in f64.

    python benchmarks/accuracy.py mobilenet_v2 detector.onnx --draws 3

A network is one of the zoo, or a file. Its f64 form has the same weights and runs in clew, whose
sums in f64 err by 1e-15. Inputs are smooth images with edges and little noise, or random rows. An
error is the root of the mean square over all outputs, relative to their deviation: a mean over the
draws. `clew, direct` computes all convolutions directly.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import onnx
import onnxruntime
import typer
from onnx import TensorProto, numpy_helper

import clew

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import zoo

Array = np.ndarray[Any, Any]
_WAYS: Final[dict[str, dict[str, Any]]] = {
    "clew": {},
    "clew, direct": {"disabled": ["SelectConvAlgorithm"]},
}


def main(
    networks: Annotated[list[str], typer.Argument(help="Names of the zoo, or files.")],
    draws: Annotated[int, typer.Option(help="Inputs per network.")] = 2,
    size: Annotated[int, typer.Option(help="Free sizes of images.")] = 64,
) -> None:
    """Prints a table of errors and their ratios to those of ONNX Runtime."""
    print(f"{'network':24} {'ORT':>9}" + "".join(f" {way:>21}" for way in _WAYS))
    for name in networks:
        path = Path(name) if name.endswith(".onnx") else zoo.path(name)
        errors = errors_of(onnx.load(str(path)), draws, size)
        peer = errors.pop("ORT")
        found = "".join(f" {e:12.2e} ({e / peer:5.2f}x)" for e in errors.values())
        print(f"{path.stem:24} {peer:9.2e}{found}", flush=True)


def errors_of(model: onnx.ModelProto, draws: int, size: int) -> dict[str, float]:
    """Returns the errors of each engine, by its name."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    feeds = [
        {i.name: drawn(i, np.random.default_rng(seed), size) for i in session.get_inputs()}
        for seed in range(draws)
    ]
    exact = clew.compile(in_f64(model), disabled=["SelectConvAlgorithm"])
    wanted = [list(exact.run({k: widened(v) for k, v in f.items()}).values()) for f in feeds]
    found = {"ORT": [session.run(None, feed) for feed in feeds]}
    for way, options in _WAYS.items():
        compiled = clew.compile(model, **options)
        found[way] = [list(compiled.run(feed).values()) for feed in feeds]
    return {
        way: float(np.mean([relative(*pair) for pair in zip(results, wanted, strict=True)]))
        for way, results in found.items()
    }


def relative(found: list[Array], wanted: list[Array]) -> float:
    """Returns the error of the outputs of a run that are floats."""
    floats = [(a, b) for a, b in zip(found, wanted, strict=True) if b.dtype == np.float64]
    errors = np.concatenate([(np.asarray(a, np.float64) - b).ravel() for a, b in floats])
    values = np.concatenate([(b - b.mean()).ravel() for _, b in floats])
    return float(np.sqrt((errors**2).mean() / (values**2).mean()))


def widened(value: Array) -> Array:
    """Returns floats as f64, and others unchanged."""
    return value.astype(np.float64) if value.dtype == np.float32 else value


def drawn(value: Any, rng: np.random.Generator, size: int) -> Array:
    """Returns an input for a session's argument; images are `[N, C, H, W]`."""
    free = 1 if len(value.shape) < 4 else size
    shape = [d if isinstance(d, int) else (free if k else 1) for k, d in enumerate(value.shape)]
    if "int" in value.type:
        return np.asarray(rng.integers(0, 2, shape), value.type[len("tensor(") : -1])
    if len(shape) != 4:
        return rng.standard_normal(shape).astype(np.float32)
    y, x = np.meshgrid(*(np.linspace(0, 1, n) for n in shape[2:]), indexing="ij")
    image = 0.05 * rng.standard_normal(shape)
    for plane in image.reshape(-1, *shape[2:]):
        for _ in range(6):
            down, across, phase = rng.uniform(0, 12, 3)
            plane += rng.normal() * np.sin(2 * np.pi * (down * y + across * x) + phase)
        left, right = np.sort(rng.uniform(0, 1, 2))
        plane += rng.normal() * ((x > left) & (x < right))
    result: Array = ((image - image.mean()) / image.std()).astype(np.float32)
    return result


def in_f64(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with f64 in the place of f32; scales of a resize stay f32."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    _widen(result.graph)
    held = {tensor.name: tensor for tensor in result.graph.initializer}
    for node in result.graph.node:
        for k in (1, 2) if node.op_type in ("Resize", "Upsample") else ():
            scales = held.get(node.input[k]) if k < len(node.input) else None
            if scales is not None and scales.data_type == TensorProto.DOUBLE:
                narrow = numpy_helper.to_array(scales).astype(np.float32)
                node.input[k] += "_f32"
                result.graph.initializer.append(numpy_helper.from_array(narrow, node.input[k]))
    return result


def _widen(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                _widen_tensor(attribute.t)
            elif attribute.type == onnx.AttributeProto.GRAPH:
                _widen(attribute.g)
            elif attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        wide = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))


if __name__ == "__main__":
    typer.run(main)
