"""Times one step of a decoder whose weights are 4-bit or 8-bit codes, beside the speed at which the
machine reads memory.

    python benchmarks/decoding.py --results decoding-4
    python benchmarks/decoding.py --bits 8 --width 2048 --layers 6 --threads 2

The network is made here: layers as in Llama (RMS norm, grouped attention over a past of keys and
values, a gated SiLU), with `MatMulNBits` products of random weights, rounded to nearest in blocks.
The weights exceed all caches, so a step cannot take less than the time to read them once.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import onnx
import typer
from onnx import TensorProto, helper, numpy_helper

import clew
from clew.machine.probes.bandwidth import Bandwidth
from clew.profile.interleave import interleaved_ns
from harness import results as written
from harness.report import console, markdown

Array = np.ndarray[Any, Any]

_HEAD: Final = 64
_PAST: Final = 128
_READ_BYTES: Final = 256 << 20
_READING: Final = "reading of memory alone"
_EPSILON: Final = 1e-5


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder: heads of keys and values are a quarter of those of queries."""

    width: int
    layers: int
    bits: int
    block: int

    @property
    def hidden(self) -> int:
        """The width inside a gated unit."""
        return self.width * 11 // 4 // self.block * self.block


class _Decoder:
    """Builds the network; counts the bytes of its codes and scales."""

    def __init__(self, shape: Shape, accuracy: int) -> None:
        self.shape, self.weight_bytes = shape, 0
        self._accuracy = accuracy
        self._rng = np.random.default_rng(0)
        self._nodes: list[onnx.NodeProto] = []
        self._parameters: list[onnx.TensorProto] = []
        self.inputs: dict[str, tuple[int, ...]] = {"x": (1, 1, shape.width)}

    def _add(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, list(inputs), [name], name=f"{op}{name}", **attrs))
        return name

    def _constant(self, value: Array) -> str:
        name = f"c{len(self._parameters)}"
        self._parameters.append(numpy_helper.from_array(value, name))
        return name

    def product(self, x: str, depth: int, columns: int) -> str:
        """Adds a product with a weight of codes."""
        bits, block = self.shape.bits, self.shape.block
        weight = self._rng.standard_normal((columns, depth // block, block), np.float32)
        weight /= depth**0.5
        most = (1 << (bits - 1)) - 1
        scales = (np.abs(weight).max(axis=2, keepdims=True) / most).astype(np.float16)
        scales = scales.astype(np.float32)
        codes = np.clip(np.rint(weight / scales), -most, most) + (most + 1)
        packed = codes.astype(np.uint8)
        if bits == 4:
            packed = packed[..., ::2] | packed[..., 1::2] << 4
        self.weight_bytes += packed.nbytes + scales.nbytes // 2
        return self._add(
            "MatMulNBits", x, self._constant(packed), self._constant(scales.reshape(-1)),
            domain="com.microsoft", K=depth, N=columns, bits=bits, block_size=block,
            accuracy_level=self._accuracy,
        )  # fmt: skip

    def _norm(self, x: str) -> str:
        square = self._add("Mul", x, x)
        mean = self._add("ReduceMean", square, self._constant(np.array([-1])), keepdims=1)
        shifted = self._add("Add", mean, self._constant(np.array(_EPSILON, np.float32)))
        scaled = self._add("Div", x, self._add("Sqrt", shifted))
        gain = self._rng.uniform(0.5, 1.5, self.shape.width).astype(np.float32)
        return self._add("Mul", scaled, self._constant(gain))

    def _heads(self, x: str, count: int) -> str:
        split = self._add("Reshape", x, self._constant(np.array([1, 1, count, _HEAD])))
        return self._add("Transpose", split, perm=[0, 2, 1, 3])

    def _repeated(self, x: str, times: int, length: int) -> str:
        groups = self.shape.width // _HEAD // times
        wide = self._add("Unsqueeze", x, self._constant(np.array([2])))
        whole = self._constant(np.array([1, groups, times, length, _HEAD]))
        flat = self._constant(np.array([1, groups * times, length, _HEAD]))
        return self._add("Reshape", self._add("Expand", wide, whole), flat)

    def layer(self, x: str, n: int) -> str:
        """Adds a layer."""
        width, heads = self.shape.width, self.shape.width // _HEAD
        groups = heads // 4
        normed = self._norm(x)
        q = self._heads(self.product(normed, width, width), heads)
        both = []
        for what in ("key", "value"):
            new = self._heads(self.product(normed, width, groups * _HEAD), groups)
            past = f"past_{what}{n}"
            self.inputs[past] = (1, groups, _PAST, _HEAD)
            whole = self._add("Concat", past, new, axis=2)
            both.append(self._repeated(whole, heads // groups, _PAST + 1))
        turned = self._add("Transpose", both[0], perm=[0, 1, 3, 2])
        scores = self._add("MatMul", q, turned)
        scores = self._add("Mul", scores, self._constant(np.array(_HEAD**-0.5, np.float32)))
        seen = self._add("MatMul", self._add("Softmax", scores, axis=-1), both[1])
        seen = self._add("Transpose", seen, perm=[0, 2, 1, 3])
        seen = self._add("Reshape", seen, self._constant(np.array([1, 1, width])))
        x = self._add("Add", x, self.product(seen, width, width))
        normed = self._norm(x)
        gate = self.product(normed, width, self.shape.hidden)
        gate = self._add("Mul", gate, self._add("Sigmoid", gate))
        gated = self._add("Mul", gate, self.product(normed, width, self.shape.hidden))
        return self._add("Add", x, self.product(gated, self.shape.hidden, width))

    def model(self) -> onnx.ModelProto:
        """Returns the whole network."""
        x = "x"
        for n in range(self.shape.layers):
            x = self.layer(x, n)
        self._nodes.append(helper.make_node("Identity", [x], ["y"], name="y"))
        floats = TensorProto.FLOAT
        graph = helper.make_graph(
            self._nodes,
            "decoder",
            [helper.make_tensor_value_info(n, floats, s) for n, s in self.inputs.items()],
            [helper.make_tensor_value_info("y", floats, [1, 1, self.shape.width])],
            self._parameters,
        )
        domains = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=domains, ir_version=9)


def _feeds(inputs: dict[str, tuple[int, ...]]) -> list[dict[str, Array]]:
    rng = np.random.default_rng(1)
    return [
        {name: rng.standard_normal(shape, np.float32) for name, shape in inputs.items()}
        for _ in range(3)
    ]


def _in_turn(call: Callable[[Any], Any], feeds: list[dict[str, Array]]) -> Callable[[], Any]:
    following = itertools.cycle(feeds)
    return lambda: call(next(following))


def _read(bandwidth: Bandwidth, threads: int, found: list[float]) -> None:
    found.append(bandwidth.gbps("read", _READ_BYTES, threads))


def _clew(path: Path, threads: int, precision: str) -> Callable[[Any], Any]:
    compiled = clew.compile(path, threads=threads, precision=precision)
    return compiled.run


def _onnxruntime(path: Path, threads: int) -> Callable[[Any], Any]:
    import onnxruntime  # noqa: PLC0415 - optional

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feed: session.run(None, feed)


def main(
    width: Annotated[int, typer.Option(help="Width of the network; a multiple of 256.")] = 2048,
    layers: Annotated[int, typer.Option(min=1)] = 4,
    bits: Annotated[int, typer.Option(help="4 or 8")] = 4,
    block: Annotated[int, typer.Option(help="Elements of the depth with one scale.")] = 32,
    threads: Annotated[str, typer.Option(help="Numbers of threads.")] = "1,2",
    rounds: Annotated[int, typer.Option(help="Turns of each engine.", min=1)] = 8,
    section: Annotated[
        str,
        typer.Option("--results", help="Also write benchmarks/results/NAME.json.", metavar="NAME"),
    ] = "",
) -> None:
    """Prints the time of a step by each engine, and the speed at which it reads the weights."""
    shape = Shape(width, layers, bits, block)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for accuracy in (0, 4):
            made = _Decoder(shape, accuracy)
            paths[accuracy] = Path(folder) / f"decoder{accuracy}.onnx"
            onnx.save(made.model(), paths[accuracy])
        feeds = _feeds(made.inputs)
        for count in map(int, threads.split(",")):
            calls = {
                "clew, f32": _clew(paths[0], count, "f32"),
                "clew, auto": _clew(paths[0], count, "auto"),
                "ONNX Runtime": _onnxruntime(paths[0], count),
                "ONNX Runtime, accuracy level 4": _onnxruntime(paths[4], count),
            }
            expected = np.asarray(calls["ONNX Runtime"](feeds[0])[0])
            errors = {n: _error(call(feeds[0]), expected) for n, call in calls.items()}
            turns = {name: _in_turn(call, feeds) for name, call in calls.items()}
            read: list[float] = []
            turns[_READING] = partial(_read, Bandwidth(), count, read)
            times = interleaved_ns(turns, rounds)
            del times[_READING]
            rows += _rows(count, times, errors, made.weight_bytes, read)
    columns = (
        "threads", "engine", "error", "ms", "best ms", "GB/s", "best GB/s", "% of memory's",
    )  # fmt: skip
    title = (
        f"a step of {layers} layers of width {width}, {bits}-bit codes in blocks of {block}: "
        f"{made.weight_bytes / 1e6:.0f} MB of weights"
    )
    text = markdown(columns, rows, numbers=2)
    console.print(f"{title}\n\n{text}", soft_wrap=True)
    if section:
        written.record(section, [written.Table("", columns, rows, 2, f"A{title[1:]}.")])


def _error(found: Any, expected: Array) -> float:
    value = np.asarray(next(iter(found.values())) if isinstance(found, dict) else found[0])
    return float(np.linalg.norm(value - expected) / np.linalg.norm(expected))


def _rows(
    threads: int, times: Any, errors: dict[str, float], size: int, read: list[float]
) -> list[list[str]]:
    rows = []
    for name, spans in times.items():
        median, best = statistics.median(spans), min(spans)
        share = 100 * size / best / max(read)
        rows.append(
            [
                str(threads), name, f"{errors[name]:.0e}", f"{median / 1e6:.2f}",
                f"{best / 1e6:.2f}", f"{size / median:.1f}", f"{size / best:.1f}", f"{share:.0f}",
            ]
        )  # fmt: skip
    ends = f"{statistics.median(read):.1f}", f"{max(read):.1f}"
    rows.append([str(threads), _READING, "", "", "", *ends, "100"])
    return rows


if __name__ == "__main__":
    typer.run(main)
