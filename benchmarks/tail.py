"""Measures models of one operator at fixed sizes, beside ONNX Runtime and the machine's limits.

    python benchmarks/tail.py --threads 1
    python benchmarks/tail.py --match resize,norm --target cpu-avx2

The table starts with the operators that are slowest beside ONNX Runtime or beside their roof. The
roof is the longer of two times: the multiply-adds at the FMA peak, and the bytes of inputs,
constants and results at the bandwidth of a copy of as many bytes. `kernels` is the time of all
kernels, conversions of layouts included; both engines' calls are timed from Python, in turns, each
with another value of the input.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import onnxruntime
import typer
from rich.table import Table

import clew
from clew.bench.flops import model_flops
from clew.machine.probes.bandwidth import Bandwidth
from clew.machine.probes.peak import FmaPeak
from harness import single_op
from harness.report import circumstances, console, progress
from harness.single_op import OneOp

_VALUES = 3  # inputs that calls take turns with


@dataclass(frozen=True)
class Case:
    """One operator. `read` is the share of its operands that it needs, if it gathers some."""

    name: str
    make: Callable[[], OneOp]
    read: float = 1.0


@dataclass(frozen=True)
class Row:
    """Medians of one case, in microseconds, and its roof."""

    name: str
    kernels: float
    call: float
    peer: float | None
    roof: float
    limit: str

    @property
    def share(self) -> float:
        """The share of the roof that the kernels reach."""
        return self.roof / self.kernels if self.kernels else 0.0

    @property
    def ratio(self) -> float | None:
        """ONNX Runtime's time over clew's."""
        return self.peer / self.call if self.peer else None

    @property
    def order(self) -> float:
        """The smaller, the more there is to gain."""
        return min(self.share / 0.75, self.ratio or 9.0)


def main(
    match: Annotated[str, typer.Option(help="Words, one of which is in a case's name.")] = "",
    threads: Annotated[int, typer.Option(min=1)] = 1,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each case.")] = 5,
    target: Annotated[str, typer.Option(help="The target to compile for.")] = "cpu",
    only_compile: Annotated[bool, typer.Option(help="Compile all cases and stop.")] = False,
) -> None:
    """Prints the table."""
    words = match.split(",")
    chosen = [c for c in cases() if any(word in c.name for word in words)]
    ready = {}
    for case in chosen:
        try:
            ready[case.name] = _Ready(case, threads, target, peer=not only_compile)
        except Exception as failure:  # one operator must not end the benchmark
            progress.print(f"{case.name}: {type(failure).__name__}: {failure}")
    if only_compile:
        return
    limits = _Limits(threads)
    for _ in range(rounds):
        for one in ready.values():
            one.turn(limits)
    rows = sorted((one.row() for one in ready.values()), key=lambda row: row.order)
    console.print(circumstances())
    console.print(_table(rows, f"{target}, threads: {threads}"))


def _table(rows: Sequence[Row], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("operator")
    for name in ("kernels µs", "call µs", "ORT µs", "ORT ÷ clew", "roof µs", "limit", "% of roof"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.kernels:.1f}",
            f"{row.call:.1f}",
            f"{row.peer:.1f}" if row.peer else "–",
            f"{row.ratio:.2f}" if row.ratio else "–",
            f"{row.roof:.1f}",
            row.limit,
            f"{100 * row.share:.0f}",
        )
    return table


# ---------------------------------------------------------------------------------------- measuring


class _Limits:
    """The machine's limits, measured between the turns."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._peak, self._bandwidth = FmaPeak(), Bandwidth()

    def peak(self) -> float:
        """Returns GFLOP/s."""
        return self._peak.gflops(self.threads)

    def copy(self, size_bytes: int) -> float:
        """Returns the GB/s of a copy that reads and writes this many bytes in all."""
        return max(self._bandwidth.gbps("copy", size_bytes, self.threads) for _ in range(2))


class _Ready:
    """A compiled case and its samples."""

    def __init__(self, case: Case, threads: int, target: str, *, peer: bool) -> None:
        made = case.make()
        self.name = case.name
        self._values = [made.x, *(_other(made.x, seed) for seed in range(1, _VALUES))]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "one.onnx"
            onnx.save(made.model, path)
            self._clew = clew.compile(clew.load(path), threads=threads, target=target)
            self._peer = _session(path, threads) if peer else None
        self._flops = model_flops(self._clew.build)
        outputs = self._clew.run({"x": made.x}).values()
        held = sum(_bytes(t) for t in made.model.graph.initializer)
        moved = (made.x.nbytes + held) * case.read + sum(y.nbytes for y in outputs)
        self._bytes = int(moved)
        self._samples: dict[str, list[float]] = {
            key: [] for key in ("kernels", "call", "peer", "compute", "memory")
        }

    def turn(self, limits: _Limits) -> None:
        """Times everything once."""
        add = {key: samples.append for key, samples in self._samples.items()}
        times = self._clew.time_kernels(self._values[0], repeats=5)
        add["kernels"](sum(t.median_ns for t in times) / 1e3)
        add["call"](self._median_us(lambda x: self._clew.run({"x": x})))
        peer = self._peer
        if peer is not None:
            add["peer"](self._median_us(lambda x: peer.run(None, {"x": x})))
        add["compute"](self._flops / limits.peak() / 1e3)
        add["memory"](self._bytes / limits.copy(max(self._bytes, 1024)) / 1e3)

    def _median_us(self, call: Callable[[np.ndarray], object]) -> float:
        call(self._values[0])
        times = []
        for n in range(7):
            x = self._values[n % len(self._values)]
            start = time.perf_counter_ns()
            call(x)
            times.append(time.perf_counter_ns() - start)
        return statistics.median(times) / 1e3

    def row(self) -> Row:
        """Returns the medians."""
        found = {k: statistics.median(v) for k, v in self._samples.items() if v}
        compute, memory = found["compute"], found["memory"]
        limit = "compute" if compute > memory else "memory"
        roof = max(compute, memory)
        return Row(self.name, found["kernels"], found["call"], found.get("peer"), roof, limit)


def _other(x: np.ndarray, seed: int) -> np.ndarray:
    """Returns other values of the same kind."""
    if x.dtype.kind == "f":
        return np.random.default_rng(seed).standard_normal(x.shape).astype(x.dtype)
    return np.random.default_rng(seed).permuted(x)


def _bytes(tensor: onnx.TensorProto) -> int:
    return onnx.numpy_helper.to_array(tensor).nbytes


def _session(path: Path, threads: int) -> onnxruntime.InferenceSession | None:
    """Returns None if ONNX Runtime lacks the operator."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    except Exception:  # any error for an unsupported operator
        return None


# -------------------------------------------------------------------------------------------- cases


def cases() -> Iterator[Case]:
    """Yields all cases."""
    for family in (_layouts, _images, _pools, _norms, _sums, _selections, _convolutions, _products):
        for name, make in family():
            yield Case(name, make)
    yield Case("gather rows 128 of 30000x768", partial(single_op.gather, (30_000, 768), 128, 0),
               128 / 30_000)  # fmt: skip
    yield Case("gather columns 200 of 64x1000", partial(single_op.gather, (64, 1000), 200, 1), 0.2)


Made = Iterator[tuple[str, Callable[[], OneOp]]]


def _x(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def _op(op: str, shape: Sequence[int], *weights: Any, **options: Any) -> Callable[[], OneOp]:
    """Returns what makes a model. Weights are arrays or shapes."""

    def made() -> OneOp:
        held = [
            w if isinstance(w, np.ndarray) else _x(*w, seed=n) for n, w in enumerate(weights, 1)
        ]
        attributes = {k: v for k, v in options.items() if k != "inputs"}
        inputs = options.get("inputs", ())
        return single_op.one_op(op, _x(*shape), *held, inputs=inputs, attributes=attributes)

    return made


def _layouts() -> Made:
    orders = (
        ((1, 64, 112, 112), (0, 2, 3, 1)),
        ((1, 112, 112, 64), (0, 3, 1, 2)),
        ((1, 3, 224, 224), (0, 2, 3, 1)),
        ((1, 224, 224, 3), (0, 3, 1, 2)),
        ((1, 256, 14, 14), (0, 2, 3, 1)),
        ((1, 14, 14, 256), (0, 3, 1, 2)),
        ((1, 96, 55, 55), (0, 2, 3, 1)),
        ((1, 64, 56, 56), (0, 1, 3, 2)),
        ((1, 128, 12, 64), (0, 2, 1, 3)),
        ((1, 128, 12, 64), (0, 2, 3, 1)),
        ((1, 197, 12, 64), (0, 2, 3, 1)),
        ((8, 2, 58, 28, 28), (0, 2, 1, 3, 4)),
        ((512, 512), (1, 0)),
        ((1000, 700), (1, 0)),
    )
    for shape, order in orders:
        yield (
            f"transpose {_text(shape)} by {''.join(map(str, order))}",
            partial(single_op.permuted, *shape, order=order),
        )
    yield "concat 2x64@28 channels", partial(single_op.concatenation, 8, 64, 28, 28, axis=1)
    yield "concat 2x4096x64 columns", partial(single_op.concatenation, 4096, 64, axis=1)
    yield "concat 2x128@14 channels", partial(single_op.concatenation, 1, 128, 14, 14, axis=1)
    for mode in ("constant", "reflect", "edge", "wrap"):
        for shape in ((1, 64, 56, 56), (1, 3, 224, 224)):
            pads = np.array([0, 0, 3, 3, 0, 0, 3, 3])
            yield f"pad {mode} {_text(shape)}", _op("Pad", shape, pads, mode=mode)
    yield "pad reflect signal 8x4000", _op("Pad", (8, 4000), np.array([0, 200, 0, 200]),
                                           mode="reflect")  # fmt: skip
    yield "depth to space 64@56 by 2", _op("DepthToSpace", (1, 64, 56, 56), blocksize=2)
    yield "space to depth 16@112 by 2", _op("SpaceToDepth", (1, 16, 112, 112), blocksize=2)
    yield (
        "slice 64@56 odd columns",
        _op("Slice", (1, 64, 56, 56), *(np.array([n]) for n in (1, 56, 3, 2))),
    )
    yield "slice 64@57 middle", _op(
        "Slice", (1, 64, 57, 57),
        np.array([3, 3]), np.array([54, 54]), np.array([2, 3]),
    )  # fmt: skip
    yield "tile 64x200 by 3x4", _op("Tile", (64, 200), np.array([3, 4]))
    yield "expand 64x1x200", _op("Expand", (64, 1, 200), np.array([64, 30, 200]))
    yield "rotary 12x128x64", partial(single_op.rotary, 12, 128, 64, interleaved=False)
    yield "rotary of pairs 12x128x64", partial(single_op.rotary, 12, 128, 64, interleaved=True)


def _images() -> Made:
    for mode in ("nearest", "linear", "cubic"):
        for channels, size, to in ((64, 56, 112), (3, 480, 224), (256, 13, 26), (32, 60, 90)):
            yield (
                f"resize {mode} {channels}@{size} to {to}",
                partial(single_op.resize, channels, size, to, mode),
            )
    for mode in ("linear", "nearest"):
        sizes = np.array([1, 128, 128, 3])
        yield (
            f"resize {mode} NHWC 3@64 to 128",
            _op("Resize", (1, 64, 64, 3), sizes, inputs=("x", "", "", "w0"), mode=mode),
        )
    grid = np.random.default_rng(3).uniform(-1, 1, (1, 56, 56, 2)).astype(np.float32)
    yield "grid sample 64@56", _op("GridSample", (1, 64, 56, 56), grid)


def _pools() -> Made:
    shapes = (
        (64, 112, 3, 2, 1), (64, 56, 2, 2, 0), (256, 14, 3, 1, 1), (192, 35, 3, 1, 1),
        (30, 27, 3, 2, 0), (512, 13, 5, 1, 2), (3, 224, 2, 2, 0), (20, 24, 2, 2, 0),
    )  # fmt: skip
    for op in ("MaxPool", "AveragePool"):
        for channels, size, kernel, step, pad in shapes:
            yield f"{op} {kernel}/{step} {channels}@{size}", _op(
                op, (1, channels, size, size),
                kernel_shape=[kernel] * 2, strides=[step] * 2, pads=[pad] * 4,
            )  # fmt: skip
    for channels, size in ((512, 7), (2048, 7), (1000, 13), (100, 31)):
        yield (
            f"global average {channels}@{size}",
            _op("GlobalAveragePool", (1, channels, size, size)),
        )
    yield "global max 512@14", _op("GlobalMaxPool", (1, 512, 14, 14))
    yield "MaxPool 1-d 64x4000", _op("MaxPool", (1, 64, 4000), kernel_shape=[4], strides=[4])
    yield "MaxPool 3-d 16@32", _op("MaxPool", (1, 16, 32, 32, 32), kernel_shape=[2] * 3,
                                   strides=[2] * 3)  # fmt: skip


def _norms() -> Made:
    for rows, columns in ((256, 512), (128, 768), (197, 768), (50, 100), (1024, 64), (12, 4096)):
        for make in (single_op.softmax, single_op.layer_norm, single_op.rms_norm):
            yield f"{make.__name__} {rows}x{columns}", partial(make, rows, columns)
    yield "softmax heads 12x128x128", _op("Softmax", (1, 12, 128, 128), axis=-1)
    yield "softmax heads 12x197x197", _op("Softmax", (1, 12, 197, 197), axis=-1)
    yield "softmax channels 21@64", _op("Softmax", (1, 21, 64, 64), axis=1)
    yield "softmax 1x1000", partial(single_op.softmax, 1, 1000)
    yield "log softmax 64x1000", _op("LogSoftmax", (64, 1000), axis=-1)
    for channels, size in ((64, 56), (3, 224), (128, 28), (256, 16), (20, 33)):
        yield (
            f"instance norm {channels}@{size}",
            _op("InstanceNormalization", (1, channels, size, size), (channels,), (channels,)),
        )
    for batch, channels, size, groups in ((1, 64, 56, 32), (2, 320, 32, 32), (1, 128, 8, 8)):
        yield (
            f"group norm {batch}x{channels}@{size} in {groups}",
            partial(single_op.group_norm, batch, channels, size, groups),
        )
    yield (
        "layer norm channels 96@56",
        _op("LayerNormalization", (1, 56, 56, 96), (96,), (96,), axis=-1),
    )
    yield "lp norm 64x512", _op("LpNormalization", (64, 512), axis=-1)
    yield "lrn 64@27", _op("LRN", (1, 64, 27, 27), size=5)


def _sums() -> Made:
    yield "sums of columns 1024x1024", partial(single_op.column_sums, 1024, 1024)
    for op in ("ReduceSum", "ReduceMean", "ReduceMax"):
        for shape, axes in (
            ((1024, 1024), (1,)), ((512, 300), (0,)), ((64, 128, 96), (1,)), ((64, 56, 56), (0,)),
            ((8, 64, 28, 28), (0, 2, 3)), ((1, 64, 56, 56), (2, 3)), ((100, 7), (1,)),
            ((1 << 18,), (0,)),
        ):  # fmt: skip
            yield (
                f"{op} {_text(shape)} over {','.join(map(str, axes))}",
                _op(op, shape, np.array(axes), keepdims=0),
            )
    yield "ArgMax 64x1000", _op("ArgMax", (64, 1000), axis=-1)
    yield "ArgMax channels 21@64", _op("ArgMax", (1, 21, 64, 64), axis=1)
    yield "cumulative rows 64x1000", _op("CumSum", (64, 1000), np.array(1))
    yield "cumulative columns 1000x64", _op("CumSum", (1000, 64), np.array(0))
    yield "cumulative long 100000", _op("CumSum", (100_000,), np.array(0))


def _selections() -> Made:
    for rows, columns, k in ((1, 1000, 5), (8, 32_000, 10), (128, 4096, 50), (1, 50_000, 50),
                             (100, 80, 1), (1, 1000, 100), (300, 91, 10)):  # fmt: skip
        yield f"top {k} of {rows}x{columns}", partial(single_op.top_k, rows, columns, k)
    for op in ("Add", "Mul", "Sub", "Div", "Pow"):
        shapes = ((64, 1, 1), (56, 56), (1,)) if op in ("Add", "Mul") else ((64, 1, 1),)
        for other in shapes:
            weight = np.abs(_x(*other, seed=1)) + 1
            yield f"{op} 64@56 by {_text(other)}", _op(op, (1, 64, 56, 56), weight)
    yield "Add 197x768 by rows", _op("Add", (197, 768), (197, 1))
    for op in ("Relu", "Sigmoid", "Tanh", "Erf", "Gelu", "HardSwish", "Exp", "Softplus", "Sqrt"):
        yield f"{op} 197x768", _op(op, (197, 768))
    yield "PRelu 64@56", _op("PRelu", (1, 64, 56, 56), (64, 1, 1))
    yield (
        "Where 64@56",
        _op("Where", (1, 64, 56, 56), _x(56, 56) > 0, (1,), inputs=("w0", "x", "w1")),
    )


def _convolutions() -> Made:
    def conv(x: Sequence[int], w: Sequence[int], **options: Any) -> Callable[[], OneOp]:
        op = options.pop("op", "Conv")
        scale = np.float32(np.prod(w[1:]) ** -0.5)
        count = w[1] * options.get("group", 1) if op == "ConvTranspose" else w[0]
        return _op(op, x, _x(*w, seed=1) * scale, (count,), **options)

    for length, inner, outer, kernel, step in (
        (3000, 80, 384, 3, 1), (3000, 384, 384, 3, 2), (16_000, 1, 64, 10, 5), (3200, 64, 64, 3, 1),
        (500, 256, 256, 5, 1), (1000, 512, 64, 1, 1), (16_000, 1, 32, 80, 4),
    ):  # fmt: skip
        yield (
            f"conv 1-d {inner}->{outer} k{kernel}/{step} @{length}",
            conv(
                (1, inner, length), (outer, inner, kernel), strides=[step], pads=[kernel // 2] * 2
            ),
        )
    yield "conv 1-d depthwise 256 k9 @500", conv((1, 256, 500), (256, 1, 9), pads=[4, 4], group=256)
    for size, inner, outer, kernel, step in (
        (28, 128, 64, 2, 2), (14, 256, 128, 4, 2), (56, 64, 32, 3, 2), (16, 512, 256, 4, 2),
        (64, 32, 3, 4, 2),
    ):  # fmt: skip
        pad = (kernel - step) // 2
        yield f"transposed conv {inner}->{outer} k{kernel}/{step} @{size}", conv(
            (1, inner, size, size), (inner, outer, kernel, kernel),
            op="ConvTranspose", strides=[step] * 2, pads=[pad] * 4,
        )  # fmt: skip
    yield (
        "transposed conv 1-d 128->64 k16/8 @200",
        conv((1, 128, 200), (128, 64, 16), op="ConvTranspose", strides=[8], pads=[4, 4]),
    )
    yield "conv 3-d 16->32 k3 @16", conv((1, 16, 16, 32, 32), (32, 16, 3, 3, 3), pads=[1] * 6)
    yield "conv 3-d 3->64 k3 @8x56", conv((1, 3, 8, 56, 56), (64, 3, 3, 3, 3), pads=[1] * 6)
    for group, channels, size in ((32, 128, 28), (8, 64, 56), (2, 96, 27), (3, 48, 40)):
        yield f"grouped conv {channels}@{size} in {group}", conv(
            (1, channels, size, size), (channels, channels // group, 3, 3), pads=[1] * 4,
            group=group,
        )  # fmt: skip
    for rate in (2, 6):
        yield (
            f"dilated conv 128@28 by {rate}",
            conv((1, 128, 28, 28), (128, 128, 3, 3), pads=[rate] * 4, dilations=[rate] * 2),
        )
    for inner, outer, size, kernel in (
        (3, 8, 224, 3), (8, 8, 112, 3), (1, 8, 28, 5), (8, 16, 14, 5), (24, 3, 64, 3),
        (16, 1, 128, 1), (4, 4, 256, 3),
    ):  # fmt: skip
        yield (
            f"few channels {inner}->{outer}@{size} k{kernel}",
            conv((1, inner, size, size), (outer, inner, kernel, kernel), pads=[kernel // 2] * 4),
        )
    for channels, size, kernel, step in (
        (96, 56, 3, 1), (144, 56, 3, 2), (576, 14, 3, 1), (96, 56, 7, 1), (32, 112, 5, 2),
        (20, 31, 3, 1),
    ):  # fmt: skip
        yield f"depthwise {channels}@{size} k{kernel}/{step}", conv(
            (1, channels, size, size), (channels, 1, kernel, kernel), strides=[step] * 2,
            pads=[kernel // 2] * 4, group=channels,
        )  # fmt: skip


def _products() -> Made:
    for m, n, k in (
        (1, 1000, 2048), (2, 768, 768), (4, 768, 768), (8, 3072, 768), (12, 768, 3072),
        (15, 512, 512), (50, 100, 200), (197, 768, 768), (7, 33, 65),
    ):  # fmt: skip
        yield f"product {m}x{n}x{k}", partial(single_op.product, m, n, k)
    for heads, rows, depth in ((12, 128, 64), (8, 100, 96), (16, 49, 32)):
        yield (
            f"heads {heads}x{rows}x{depth} by constant",
            _op("MatMul", (heads, rows, depth), (heads, depth, rows)),
        )
    yield "gram 12x128x64", _op("Einsum", (12, 128, 64), inputs=("x", "x"),
                                equation="hid,hjd->hij")  # fmt: skip
    yield "dft 8x512", _op("DFT", (8, 512, 1))


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


if __name__ == "__main__":
    typer.run(main)
