"""Rounding errors of networks by clew and its peers, against the same network in f64.

    python benchmarks/accuracy.py mobilenet_v2 detector.onnx --precision f16 --draws 3

A network is one of the zoo, one of `exports.packages`, or a file. Its f64 form has the same weights
and runs in clew, whose sums in f64 err by 1e-15. `f16` is a model whose weights and inputs are f16
itself; `bf16` is the f32 model, with products of bf16. Inputs of packages are like those of users.
Other images are smooth, with edges and little noise; other inputs are those of the zoo, or random
rows. An error is the root of the mean square over all outputs, relative to their deviation: a mean
over the draws. Ratios are to ONNX Runtime in f32, and to the better peer otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import onnx
import onnxruntime
import openvino
import typer
from onnx import TensorProto, numpy_helper

import clew

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import zoo
from exports.packages import MODELS as PACKAGED
from harness import results as written
from harness.samples import KINDS

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]
Run = Callable[[Feed], list[Array]]
_DIRECT: Final = clew.Passes(disabled=["SelectConvAlgorithm"])
_CLEW: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "f32": {"clew": {}, "direct": {"passes": _DIRECT}},
    "f16": {"clew": {}},
    "bf16": {"clew": {"precision": "bf16"}},
}
_PEERS: Final = {"f32": ("ORT",), "f16": ("ORT", "OpenVINO"), "bf16": ("OpenVINO",)}
_NARROW: Final = (np.float16, np.float32)
_IMAGE_CHANNELS: Final = (1, 3)


def main(
    networks: Annotated[list[str], typer.Argument(help="Names, or files.")],
    precision: Annotated[str, typer.Option(help="f32, f16 or bf16.")] = "f32",
    draws: Annotated[int, typer.Option(help="Inputs per network.")] = 2,
    size: Annotated[int, typer.Option(help="Free sizes of images.")] = 64,
    section: Annotated[
        str,
        typer.Option("--results", help="Also write benchmarks/results/NAME.json.", metavar="NAME"),
    ] = "",
) -> None:
    """Prints a table of errors, and their ratios to those of peers."""
    columns = ["network", "ORT", "OpenVINO", *_CLEW[precision]]
    columns += [f"{way} ÷ peer" for way in _CLEW[precision]]
    print(" ".join(f"{column:>14}" for column in columns))
    rows = []
    for name in networks:
        model, feeds = network(name, draws, size)
        try:
            errors = errors_of(model, feeds, precision)
        except Exception as error:  # the other networks have results
            print(f"{name:>14} {type(error).__name__}: {error}"[:200], file=sys.stderr, flush=True)
            continue
        peer = min(errors.get(p, np.inf) for p in _PEERS[precision])
        found = [
            f"{errors[c]:.1e}" if c in errors else "–" for c in columns[1 : -len(_CLEW[precision])]
        ]
        ratios = [f"{errors[way] / peer:.2f}" for way in _CLEW[precision]]
        rows.append([name, *found, *ratios])
        print(" ".join(f"{cell:>14}" for cell in rows[-1]), flush=True)
    if section:
        written.record(section, [written.Table("", columns, rows)])


def network(name: str, draws: int, size: int) -> tuple[onnx.ModelProto, list[Feed]]:
    """Returns a network and inputs of it."""
    rngs = [np.random.default_rng(seed) for seed in range(draws)]
    found: list[Feed]
    packaged = {p.name: p for p in PACKAGED}.get(name)
    if packaged is not None:
        path, feeds = packaged.path(), [packaged.draw(seed) for seed in range(draws)]
        given = {k: KINDS[kind] for k, kind in packaged.kinds.items()}
        pairs = zip(feeds, rngs, strict=True)
        found = [{**f, **{k: g(rng, f[k].shape) for k, g in given.items()}} for f, rng in pairs]
    elif name in zoo.names():
        path = zoo.path(name)
        found = [_with_images(zoo.inputs(name, n), rng) for n, rng in enumerate(rngs)]
    else:
        path = Path(name)
        values = onnxruntime.InferenceSession(str(path)).get_inputs()
        found = [_with_images({v.name: drawn(v, rng, size) for v in values}, rng) for rng in rngs]
    return onnx.load(str(path)), found


def errors_of(model: onnx.ModelProto, feeds: list[Feed], precision: str) -> dict[str, float]:
    """Returns the errors of each engine, by its name; without those that refuse the model."""
    if precision == "f16":
        model, feeds = in_f16(model), [_cast(feed, np.float32, np.float16) for feed in feeds]
    shapes = {name: value.shape for name, value in feeds[0].items()}  # quicker than free sizes
    exact = clew.compile(
        in_f64(model), inputs=shapes, passes=clew.Passes(disabled=["SelectConvAlgorithm"])
    )
    wanted = [list(exact.run({k: widened(v) for k, v in f.items()}).values()) for f in feeds]
    del exact
    runs: dict[str, Callable[[], Run]] = {
        "ORT": lambda: _onnxruntime(model),
        "OpenVINO": lambda: _openvino(model, precision),
    }
    for way, options in _CLEW[precision].items():
        runs[way] = partial(_clew, model, {"inputs": shapes, **options})
    found = {}
    for way, prepare in runs.items():
        try:
            run = prepare()
            pairs = [(run(feed), want) for feed, want in zip(feeds, wanted, strict=True)]
        except Exception as error:  # peers lack operators
            if way not in ("ORT", "OpenVINO"):
                raise
            print(f"{way}: {error}"[:200], file=sys.stderr)
            continue
        found[way] = float(np.mean([relative(*pair) for pair in pairs]))
    return found


def _onnxruntime(model: onnx.ModelProto) -> Run:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return lambda feed: list(session.run(None, dict(feed)))


def _openvino(model: onnx.ModelProto, precision: str) -> Run:
    core = openvino.Core()
    read = core.read_model(model.SerializeToString())
    compiled = core.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": precision})
    return lambda feed: [np.array(compiled(dict(feed))[port]) for port in compiled.outputs]


def _clew(model: onnx.ModelProto, options: dict[str, Any]) -> Run:
    compiled = clew.compile(model, **options)
    return lambda feed: list(compiled.run(feed).values())


def relative(found: list[Array], wanted: list[Array]) -> float:
    """Returns the error of the outputs of a run that are floats."""
    floats = [(a, b) for a, b in zip(found, wanted, strict=True) if b.dtype == np.float64]
    errors = np.concatenate([(np.asarray(a, np.float64) - b).ravel() for a, b in floats])
    values = np.concatenate([(b - b.mean()).ravel() for _, b in floats])
    return float(np.sqrt((errors**2).mean() / (values**2).mean()))


# --- inputs ---------------------------------------------------------------------------------------


def drawn(value: Any, rng: np.random.Generator, size: int) -> Array:
    """Returns an input for a session's argument."""
    free = 1 if len(value.shape) < 4 else size
    shape = [d if isinstance(d, int) else (free if k else 1) for k, d in enumerate(value.shape)]
    if "int" in value.type:
        return np.asarray(rng.integers(0, 2, shape), value.type[len("tensor(") : -1])
    return rng.standard_normal(shape).astype(np.float32)


def _with_images(feed: Feed, rng: np.random.Generator) -> Feed:
    images = [
        k
        for k, v in feed.items()
        if v.dtype == np.float32 and v.ndim == 4 and v.shape[1] in _IMAGE_CHANNELS
    ]
    return {k: image(v.shape, rng) if k in images else v for k, v in feed.items()}


def image(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Returns smooth images with edges and little noise, `[N, C, H, W]`."""
    y, x = np.meshgrid(*(np.linspace(0, 1, n) for n in shape[2:]), indexing="ij")
    result = 0.05 * rng.standard_normal(shape)
    for plane in result.reshape(-1, *shape[2:]):
        for _ in range(6):
            down, across, phase = rng.uniform(0, 12, 3)
            plane += rng.normal() * np.sin(2 * np.pi * (down * y + across * x) + phase)
        left, right = np.sort(rng.uniform(0, 1, 2))
        plane += rng.normal() * ((x > left) & (x < right))
    normal: Array = ((result - result.mean()) / result.std()).astype(np.float32)
    return normal


def _cast(feed: Feed, old: type, new: type) -> Feed:
    return {k: v.astype(new) if v.dtype == old else v for k, v in feed.items()}


def widened(value: Array) -> Array:
    """Returns floats as f64, and others unchanged."""
    return value.astype(np.float64) if value.dtype in _NARROW else value


# --- models in other dtypes -----------------------------------------------------------------------


def in_f64(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with f64 in the place of f32 and f16; scales of a resize stay f32."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    _convert(result.graph, (TensorProto.FLOAT, TensorProto.FLOAT16), np.float64)
    _keep_scales(result.graph)
    return result


def in_f16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns an f32 model with f16 in the place of f32, finite where it was; scales of a resize
    stay f32.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    _convert(result.graph, (TensorProto.FLOAT,), np.float16)
    _keep_scales(result.graph)
    return result


def _keep_scales(graph: onnx.GraphProto) -> None:
    held = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        for k in (1, 2) if node.op_type in ("Resize", "Upsample") else ():
            scales = held.get(node.input[k]) if k < len(node.input) else None
            if scales is not None and scales.data_type in (TensorProto.DOUBLE, TensorProto.FLOAT16):
                narrow = numpy_helper.to_array(scales).astype(np.float32)
                node.input[k] += "_f32"
                graph.initializer.append(numpy_helper.from_array(narrow, node.input[k]))


def _convert(graph: onnx.GraphProto, old: tuple[int, ...], new: type) -> None:
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(new))
    for tensor in graph.initializer:
        _convert_tensor(tensor, old, new)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in old:
            value.type.tensor_type.elem_type = kind
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                _convert_tensor(attribute.t, old, new)
            elif attribute.type == onnx.AttributeProto.GRAPH:
                _convert(attribute.g, old, new)
            elif attribute.name == "to" and attribute.i in old:
                attribute.i = kind


def _convert_tensor(tensor: onnx.TensorProto, old: tuple[int, ...], new: type) -> None:
    if tensor.data_type in old:
        values, most = numpy_helper.to_array(tensor), np.finfo(new).max
        finite = np.where(np.isfinite(values), np.clip(values, -most, most), values)
        tensor.CopyFrom(numpy_helper.from_array(finite.astype(new), tensor.name))


if __name__ == "__main__":
    typer.run(main)
