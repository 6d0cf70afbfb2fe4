"""Measures convolutions of waveforms beside ONNX Runtime, and products and convolutions whose
weights are inputs.

    python benchmarks/waveforms.py
    python benchmarks/waveforms.py --match "weight is an input"

One thread. Calls of both engines take turns in one process, each turn with new values; a time is
the processor time of the fastest call, which other processes on the machine do not count towards.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import numpy as np
import onnx
import onnxruntime
import typer
from onnx import TensorProto, helper, numpy_helper
from rich.table import Table

import clew
from harness import results as written
from harness.report import circumstances, console

_OPSET: Final = 17
_GIVEN: Final = ", weight is an input"
# name: data, weight, attributes
_WAVEFORMS: Final[dict[str, tuple[Sequence[int], Sequence[int], dict[str, Any]]]] = {
    "STFT 512/160, 1 s": ((1, 1, 16000), (257, 1, 512), {"strides": [160]}),
    "STFT 400/160, 1 s": ((1, 1, 16000), (402, 1, 400), {"strides": [160]}),
    "STFT 400/160, 30 s": ((1, 1, 480000), (402, 1, 400), {"strides": [160]}),
    "STFT 1024/256, 1 s at 22 kHz": ((1, 1, 22050), (1026, 1, 1024), {"strides": [256]}),
    "STFT 256/64 of 512 samples": ((1, 1, 512), (258, 1, 256), {"strides": [64]}),
    "1->512 k10/5": ((1, 1, 16000), (512, 1, 10), {"strides": [5]}),
    "1->128 k16/8, batch 4": ((4, 1, 8000), (128, 1, 16), {"strides": [8]}),
    "1->64 k251": ((1, 1, 16000), (64, 1, 251), {}),
    "1->64 k80/4": ((1, 1, 32000), (64, 1, 80), {"strides": [4]}),
    "1->33 k64/16": ((1, 1, 16000), (33, 1, 64), {"strides": [16]}),
    "1->1 k401": ((1, 1, 16000), (1, 1, 401), {}),
    "2->64 k10/5": ((1, 2, 16000), (64, 2, 10), {"strides": [5]}),
    "4->256 k32/8 in 4 groups": ((1, 4, 16000), (256, 1, 32), {"strides": [8], "group": 4}),
    "32->1 k7": ((1, 32, 10240), (1, 32, 7), {"pads": [3, 3]}),
    "depthwise 64 k31": ((1, 64, 2000), (64, 1, 31), {"pads": [15, 15], "group": 64}),
    "transposed 514->1 k512/128": ((1, 514, 128), (514, 1, 512), {"strides": [128]}),
    "transposed 402->1 k400/160": ((1, 402, 101), (402, 1, 400), {"strides": [160]}),
    "transposed 512->1 k20/10": ((2, 512, 800), (512, 1, 20), {"strides": [10]}),
    "transposed 256->128 k16/8": (
        (1, 256, 320), (256, 128, 16), {"strides": [8], "pads": [4, 4]}
    ),
}  # fmt: skip
_OF_INPUTS: Final[dict[str, tuple[Sequence[int], Sequence[int], dict[str, Any]]]] = {
    "3x3 64->64@56": ((1, 64, 56, 56), (64, 64, 3, 3), {"pads": [1] * 4}),
    "3x3 3->16@8x32x32": ((1, 3, 8, 32, 32), (16, 3, 3, 3, 3), {"pads": [1] * 6}),
    "transposed 4x4 64->64@32 stride 2": (
        (1, 64, 32, 32), (64, 64, 4, 4), {"strides": [2, 2], "pads": [1] * 4}
    ),
}  # fmt: skip
_PRODUCTS: Final = {
    "1x2048x2048": ((1, 2048), (2048, 2048), {}),
    "1x2048x2048 transposed": ((1, 2048), (2048, 2048), {"transB": 1}),
    "4x2048x2048 transposed": ((4, 2048), (2048, 2048), {"transB": 1}),
    "16x2048x2048": ((16, 2048), (2048, 2048), {}),
    "16x2048x2048 transposed": ((16, 2048), (2048, 2048), {"transB": 1}),
    "32 times 1x256x128": ((32, 1, 256), (32, 256, 128), {}),
}


def main(
    match: Annotated[str, typer.Option(help="A part of a case's name.")] = "",
    seconds: Annotated[float, typer.Option(help="Time for each case.")] = 2.0,
    section: Annotated[
        str,
        typer.Option("--results", help="Also write benchmarks/results/NAME.json.", metavar="NAME"),
    ] = "",
) -> None:
    """Prints the table."""
    columns = ("operator", "GFLOP/s", "µs", "ONNX Runtime µs", "ONNX Runtime ÷ clew")
    table, rows = Table(*columns), []
    for name, model, inputs, flops in _cases():
        if match in name:
            own, peer = _times(model, inputs, seconds)
            row = (f"{flops / own / 1e9:.0f}", f"{own * 1e6:.0f}", f"{peer * 1e6:.0f}")
            rows.append([name, *row, f"{peer / own:.2f}"])
            table.add_row(*rows[-1])
    console.print(circumstances())
    console.print(table)
    if section:
        written.record(section, [written.Table("", columns, rows)])


def _cases() -> Iterator[tuple[str, onnx.ModelProto, dict[str, Sequence[int]], float]]:
    for name, (data, weight, attributes) in _WAVEFORMS.items():
        op = "ConvTranspose" if name.startswith("transposed") else "Conv"
        yield name, *_model(op, data, weight, attributes, given=False)
    for name, (data, weight, attributes) in _OF_INPUTS.items():
        op = "ConvTranspose" if name.startswith("transposed") else "Conv"
        yield name + _GIVEN, *_model(op, data, weight, attributes, given=True)
    for name, (data, weight, attributes) in _PRODUCTS.items():
        op = "Gemm" if attributes else "MatMul"
        yield name + _GIVEN, *_model(op, data, weight, attributes, given=True)


def _model(
    op: str, data: Sequence[int], weight: Sequence[int], attributes: dict[str, Any], *, given: bool
) -> tuple[onnx.ModelProto, dict[str, Sequence[int]], float]:
    """Returns a model, the shapes of its inputs, and the FLOPs of a call."""
    shapes = {"x": data, "w": weight} if given else {"x": data}
    node = helper.make_node(op, ["x", "w"], ["y"], **attributes)
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    held = [] if given else [numpy_helper.from_array(_values(weight, 0), "w")]
    graph = helper.make_graph([node], "one", inputs, [output], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=9)
    inferred = onnx.shape_inference.infer_shapes(model).graph.output[0].type.tensor_type.shape
    result = np.prod([d.dim_value for d in inferred.dim])
    if op == "ConvTranspose":
        flops = 2 * np.prod(data) * np.prod(weight[1:])
    else:
        flops = 2 * result * (np.prod(weight[1:]) if op == "Conv" else data[-1])
    return model, shapes, float(flops)


def _values(shape: Sequence[int], seed: int) -> np.ndarray:
    scale = np.float32(np.prod(shape[1:]) ** -0.5)
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) * scale


def _times(
    model: onnx.ModelProto, shapes: dict[str, Sequence[int]], seconds: float
) -> tuple[float, float]:
    """Returns the seconds of clew's fastest call, and of ONNX Runtime's."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    compiled = clew.compile(model, threads=1)
    turns = [{n: _values(s, turn) for n, s in shapes.items()} for turn in range(3)]
    own: list[float] = []
    peer: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(own) < len(turns):
        inputs = turns[len(own) % len(turns)]
        for found, call in ((own, compiled.run), (peer, lambda x: session.run(None, x))):
            call(inputs)
            start = time.thread_time()
            call(inputs)
            found.append(time.thread_time() - start)
    return min(own), min(peer)


if __name__ == "__main__":
    typer.run(main)
