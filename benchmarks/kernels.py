"""Times single kernels and the limits of the machine, measured in the same turns.

    python benchmarks/kernels.py --groups gemm,conv --threads 1
    python benchmarks/kernels.py --results kernels

Each case is a model of one operator. Products and convolutions are shown as a share of the peak of
the instruction for their dtypes (multiply-adds of f32, dot products of bf16 or 8 bits); FLOPs are
the operator's own, so Winograd's rate may exceed the peak. Data movement is shown as a share of the
bandwidth of a copy (of a read, for matrix-vector products) over the same number of bytes. The
layout conversion of the model's own input and output is not included, since it does not occur
within a network. `peer` is the time of the operator's node in OpenVINO's profile.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import onnx
import typer
from rich.table import Table
from rich.text import Text

import clew
from clew.bench.flops import model_flops
from clew.machine.probes.bandwidth import Bandwidth, Pattern
from clew.machine.probes.peak import DotPeak, FmaPeak, TilePeak
from clew.machine.probes.products import unit_of
from clew.machine.units import DotUnit
from harness import results as written
from harness import single_op
from harness.report import console, progress
from harness.single_op import OneOp

# The rows of docs/performance.md: (M, N, K) of transformers' layers and a convolution's.
_PRODUCTS = ((128, 768, 768), (128, 3072, 768), (384, 1024, 1024), (196, 256, 2304))
# ResNet-50's shapes, each once: (channels, filters, size of the input, kernel, stride).
_CONVOLUTIONS = (
    (3, 64, 224, 7, 2),
    (64, 64, 56, 1, 1),
    (64, 64, 56, 3, 1),
    (64, 256, 56, 1, 1),
    (256, 64, 56, 1, 1),
    (256, 128, 56, 1, 1),
    (128, 128, 56, 3, 2),
    (256, 512, 56, 1, 2),
    (128, 128, 28, 3, 1),
    (128, 512, 28, 1, 1),
    (512, 128, 28, 1, 1),
    (512, 256, 28, 1, 1),
    (256, 256, 28, 3, 2),
    (512, 1024, 28, 1, 2),
    (256, 256, 14, 3, 1),
    (256, 1024, 14, 1, 1),
    (1024, 256, 14, 1, 1),
    (1024, 512, 14, 1, 1),
    (512, 512, 14, 3, 2),
    (1024, 2048, 14, 1, 2),
    (512, 512, 7, 3, 1),
    (512, 2048, 7, 1, 1),
    (2048, 512, 7, 1, 1),
)
# (channels, size, stride), as in MobileNetV2.
_DEPTHWISE = ((96, 112, 1), (144, 56, 1), (576, 14, 1), (96, 112, 2), (144, 56, 2), (576, 14, 2))
# MobileNetV2's blocks around those: (channels, between, filters, size, stride).
_BLOCKS = (
    (32, 32, 16, 112, 1),
    (16, 96, 32, 112, 2),
    (32, 144, 32, 56, 1),
    (32, 144, 32, 56, 2),
    (32, 192, 32, 28, 1),
    (96, 576, 96, 14, 1),
)
# (rows, columns): beyond every cache that one program can rely on, and within L2.
_LARGE, _SMALL = (32_768, 768), (256, 512)
_CONVERSIONS = {"layout_transform", "pad"}
_CONVERSIONS_OF_IMAGES = _CONVERSIONS | {"cast", "transpose"}
_IN_BF16: Callable[[], dict[str, Any]] = partial(dict, precision="bf16")
_PAIRS, _BYTES = ("bf16", "bf16"), ("u8", "i8")
_TITLES = {
    "gemm": "Matrix products with constant weights, M×N×K",
    "conv": "Convolutions",
    "winograd": "Convolutions, as chosen and direct",
    "depthwise": "Depthwise convolutions",
    "melted": "Inverted residual blocks: 1×1, depthwise 3×3, 1×1",
    "memory": "What moves data",
    "matvec": "Matrix-vector products, 1×N×K",
    "conv-bf16": "Convolutions in bf16",
    "conv-int8": "Convolutions of 8-bit integers, between quantized tensors",
    "depthwise-bf16": "Depthwise convolutions in bf16",
    "depthwise-int8": "Depthwise convolutions of 8-bit integers, between quantized tensors",
    "bf16": "Matrix products in bf16",
    "int8": "Matrix products of 8-bit integers",
    "others": "Other operators, whole calls beside ONNX Runtime's",
}
_GROUPS = tuple(_TITLES)


@dataclass(frozen=True)
class Case:
    """One operator to measure. `pattern` names the bandwidth to compare with; if None, it is the
    peak.

    `options` are those of `clew.compile`. `call` times whole calls, also of ONNX Runtime. `factors`
    are the dtypes of the factors of products, whose instruction is the peak.
    """

    group: str
    name: str
    make: Callable[[], OneOp]
    pattern: Pattern | None = None
    peer: bool = False
    call: bool = False
    options: Callable[[], dict[str, Any]] = dict
    factors: tuple[str, str] = ("f32", "f32")


@dataclass(frozen=True)
class Row:
    """Medians of one case. `rate` and `limit` are GFLOP/s, or GB/s if `unit` says so."""

    group: str
    name: str
    threads: int
    failure: str = ""
    microseconds: float = 0.0
    peer_microseconds: float | None = None
    unit: str = "GFLOP/s"
    rate: float = 0.0
    limit: float = 0.0

    @property
    def share(self) -> float:
        """The share of the limit that is reached."""
        return self.rate / self.limit if self.limit else 0.0


@dataclass(frozen=True)
class _Prepared:
    """A compiled case: a function that runs it once and returns nanoseconds, and its work."""

    kernel_ns: Callable[[], float]
    work: float
    limit: Callable[[], float]
    peer_us: Callable[[], float] | None = None
    samples: dict[str, list[float]] = field(
        default_factory=lambda: {"kernel": [], "limit": [], "peer": []}
    )


def main(
    groups: Annotated[str, typer.Option(help=", ".join(_GROUPS))] = ",".join(_GROUPS),
    threads: Annotated[str, typer.Option(help="Thread counts.")] = "1",
    rounds: Annotated[int, typer.Option(help="Turns of each case.", min=1)] = 7,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the rows to this file.")
    ] = None,
    section: Annotated[
        str,
        typer.Option("--results", help="Also write benchmarks/results/NAME.json.", metavar="NAME"),
    ] = "",
) -> None:
    """Prints each kernel's rate and its share of the limit."""
    wanted = groups.split(",")
    for group in wanted:
        if group not in _GROUPS:
            raise typer.BadParameter(f"no group {group!r}; groups are {', '.join(_GROUPS)}")
    peak, bandwidth = FmaPeak(), Bandwidth()
    rows: list[Row] = []
    for count in [int(word) for word in threads.split(",")]:
        for group in wanted:
            chosen = [case for case in cases() if case.group == group]
            if not chosen:
                progress.print(f"{group}: this clew has no such kernels")
                continue
            progress.print(f"{group}, {count} thread{'s' * (count > 1)}")
            batch = measured(chosen, count, rounds, peak, bandwidth)
            console.print(_table(batch))
            rows += batch
    if json_file:
        records = [{**asdict(row), "share": row.share} for row in rows]
        json_file.write_text(json.dumps(records, indent=1) + "\n")
    if section:
        written.record(section, _tables(rows))


# -------------------------------------------------------------------------------------------- cases


def cases() -> Iterator[Case]:
    """Yields the cases that this version of clew has kernels for."""
    for shape in _PRODUCTS:
        label = "×".join(map(str, shape))
        yield Case("gemm", label, partial(single_op.product, *shape))
        yield Case("int8", label, partial(single_op.integer_product, *shape), factors=_BYTES)
        made = partial(single_op.product, *shape)
        yield Case("bf16", label, made, options=_IN_BF16, factors=_PAIRS)
    yield from _convolutions()
    for channels, size, stride in _DEPTHWISE:
        make = partial(single_op.convolution, channels, channels, size, 3, stride, channels)
        label = f"3×3 {channels}@{size}{' stride 2' * (stride > 1)}"
        yield Case("depthwise", label, make, peer=True)
        yield Case("depthwise-bf16", label, make, peer=True, options=_IN_BF16)
        made = partial(single_op.quantized_convolution, *make.args)
        yield Case("depthwise-int8", label, made, peer=True)
    for channels, between, filters, size, stride in _BLOCKS:
        make = partial(single_op.inverted_residual, channels, between, filters, size, stride)
        label = f"{channels}→{between}→{filters}@{size}{' stride 2' * (stride > 1)}"
        yield Case("melted", label, make, peer=True)
    for rows, columns in (_LARGE, _SMALL):
        for make_rows in (
            single_op.transpose,
            single_op.softmax,
            single_op.layer_norm,
            single_op.rms_norm,
        ):
            label = f"{make_rows.__name__} {rows}×{columns}"
            yield Case("memory", label, partial(make_rows, rows, columns), "copy")
    yield from _others()
    for n, k in ((768, 768), (3072, 768), (4096, 4096), (16_384, 4096)):
        yield Case("matvec", f"1×{n}×{k}", partial(single_op.product, 1, n, k), "read")


def _others() -> Iterator[Case]:
    """Yields operators that move data, at sizes from real networks."""
    made: dict[str, Callable[[], OneOp]] = {
        "NCHW to NHWC 64@112": partial(single_op.permuted, 1, 64, 112, 112, order=(0, 2, 3, 1)),
        "NHWC to NCHW 64@112": partial(single_op.permuted, 1, 112, 112, 64, order=(0, 3, 1, 2)),
        "NHWC to NCHW 3@224": partial(single_op.permuted, 1, 224, 224, 3, order=(0, 3, 1, 2)),
        "heads 128×12×64": partial(single_op.permuted, 1, 128, 12, 64, order=(0, 2, 1, 3)),
        "heads turned 128×12×64": partial(single_op.permuted, 1, 128, 12, 64, order=(0, 2, 3, 1)),
        "gather 128 rows of 30000×768": partial(single_op.gather, (30_000, 768), 128, 0),
        "gather 200 columns of 64×1000": partial(single_op.gather, (64, 1000), 200, 1),
        "concat 8×64@28, channels": partial(single_op.concatenation, 8, 64, 28, 28, axis=1),
        "concat 4096×64, columns": partial(single_op.concatenation, 4096, 64, axis=1),
        "top 5 of 1000": partial(single_op.top_k, 1, 1000, 5),
        "top 10 of 8×32000": partial(single_op.top_k, 8, 32_000, 10),
        "top 50 of 128×4096": partial(single_op.top_k, 128, 4096, 50),
        "resize nearest 64@56 to 112": partial(single_op.resize, 64, 56, 112, "nearest"),
        "resize linear 64@56 to 112": partial(single_op.resize, 64, 56, 112, "linear"),
        "resize linear 3@480 to 224": partial(single_op.resize, 3, 480, 224, "linear"),
        "group norm 64@56 in 32": partial(single_op.group_norm, 1, 64, 56, 32),
        "group norm 2×320@32 in 32": partial(single_op.group_norm, 2, 320, 32, 32),
        "rotary 12×128×64": partial(single_op.rotary, 12, 128, 64, interleaved=False),
        "rotary of pairs 12×128×64": partial(single_op.rotary, 12, 128, 64, interleaved=True),
        "sums of columns 1024×1024": partial(single_op.column_sums, 1024, 1024),
    }
    for name, make in made.items():
        yield Case("others", name, make, "copy", call=True)


def _convolutions() -> Iterator[Case]:
    direct = clew.Passes(disabled=["SelectConvAlgorithm"])
    for channels, filters, size, kernel, stride in _CONVOLUTIONS:
        make = partial(single_op.convolution, channels, filters, size, kernel, stride)
        label = f"{kernel}×{kernel} {channels}→{filters}@{size}{' stride 2' * (stride > 1)}"
        yield Case("conv", label, make, peer=True)
        yield Case("conv-bf16", label, make, peer=True, options=_IN_BF16, factors=_PAIRS)
        made = partial(single_op.quantized_convolution, *make.args)
        yield Case("conv-int8", label, made, peer=True, factors=_BYTES)
        if kernel == 3 and stride == 1:
            yield Case("winograd", f"{label}, chosen", make)
            yield Case("winograd", f"{label}, direct", make, options=lambda: {"passes": direct})


# ---------------------------------------------------------------------------------------- measuring


def measured(
    chosen: Sequence[Case], threads: int, rounds: int, peak: FmaPeak, bandwidth: Bandwidth
) -> list[Row]:
    """Returns one row per case. In each round, every case has a turn, followed by its limit."""
    prepared: dict[str, _Prepared] = {}
    failures: dict[str, str] = {}
    for case in chosen:
        try:
            prepared[case.name] = _prepare(case, threads, peak, bandwidth)
        except Exception as failure:  # one operator must not end the benchmark
            failures[case.name] = f"{type(failure).__name__}: {failure}".splitlines()[0]
    for _ in range(rounds):
        for ready in prepared.values():
            ready.samples["kernel"].append(ready.kernel_ns())
            ready.samples["limit"].append(ready.limit())
            if ready.peer_us is not None:
                ready.samples["peer"].append(ready.peer_us())
    rows = []
    for case in chosen:
        if case.name in failures:
            rows.append(Row(case.group, case.name, threads, failures[case.name]))
            continue
        ready = prepared[case.name]
        kernel, limit, peer = (ready.samples[key] for key in ("kernel", "limit", "peer"))
        rows.append(
            Row(
                case.group,
                case.name,
                threads,
                microseconds=statistics.median(kernel) / 1e3,
                peer_microseconds=statistics.median(peer) if peer else None,
                unit="GB/s" if case.pattern else "GFLOP/s",
                rate=ready.work / statistics.median(kernel),
                limit=statistics.median(limit),
            )
        )
    return rows


def _prepare(case: Case, threads: int, peak: FmaPeak, bandwidth: Bandwidth) -> _Prepared:
    made = case.make()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.onnx"
        onnx.save(made.model, path)
        compiled = clew.compile(clew.load(path), threads=threads, **case.options())
        precision = case.options().get("precision", "f32")
        peer = _openvino_node(path, made, threads, precision) if case.peer else None
        if case.call:
            peer = _onnxruntime_call(path, made, threads)
    conversions = _CONVERSIONS_OF_IMAGES if case.peer else _CONVERSIONS
    counted = [k.name for k in compiled.kernels if not set(k.ops) <= conversions]
    bytes_moved = sum(k.work.bytes for k in compiled.kernels if k.name in counted)

    def kernel_ns() -> float:
        times = compiled.time_kernels(made.x, repeats=5)
        return sum(t.median_ns for t in times if t.kernel.name in counted)

    def call_ns() -> float:
        return 1e3 * _median_us(lambda: compiled.run({"x": made.x}))

    if case.call:
        kernel_ns = call_ns
        outputs = compiled.run({"x": made.x}).values()
        bytes_moved = bytes_moved or made.x.nbytes + sum(y.nbytes for y in outputs)
    kernel_ns()
    if case.pattern is None:
        limit_of = _peak_of(case.factors, peak)
        return _Prepared(
            kernel_ns, model_flops(compiled.build), partial(limit_of.gflops, threads), peer
        )
    pattern = case.pattern

    def limit() -> float:
        return max(bandwidth.gbps(pattern, bytes_moved, threads) for _ in range(3))

    return _Prepared(kernel_ns, bytes_moved, limit, peer)


def _peak_of(factors: tuple[str, str], peak: FmaPeak) -> FmaPeak | DotPeak | TilePeak:
    """Returns the peak of products of two dtypes; that of f32 if no unit multiplies them."""
    unit = unit_of(*factors)
    if unit is None:
        return peak
    return DotPeak(unit) if isinstance(unit, DotUnit) else TilePeak()


def _median_us(call: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1e3


def _onnxruntime_call(path: Path, made: OneOp, threads: int) -> Callable[[], float] | None:
    """Returns a function that runs ONNX Runtime and returns a call's microseconds; None if it lacks
    the operator or is not installed.
    """
    try:
        import onnxruntime  # noqa: PLC0415 - optional
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    except Exception:  # any error for an unsupported operator
        return None
    return partial(_median_us, partial(session.run, None, {"x": made.x}))


def _openvino_node(
    path: Path, made: OneOp, threads: int, precision: str
) -> Callable[[], float] | None:
    """Returns a function that runs OpenVINO in a precision and returns the convolution's
    microseconds in its profile; None if it is not installed.
    """
    try:
        import openvino  # noqa: PLC0415 - optional
    except ImportError:
        return None
    properties = {
        "INFERENCE_PRECISION_HINT": precision,
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        "PERF_COUNT": True,
    }
    request = openvino.Core().compile_model(str(path), "CPU", properties).create_infer_request()

    def once() -> float:
        request.infer({"x": made.x}, share_inputs=True)
        nodes = [n for n in request.profiling_info if "Convolution" in n.node_type]
        return float(sum(n.real_time.total_seconds() for n in nodes)) * 1e6

    def node() -> float:
        return statistics.median(once() for _ in range(5))

    node()
    return node


# ----------------------------------------------------------------------------------------- printing


def _columns(rows: Sequence[Row]) -> list[str]:
    unit = rows[0].unit
    limit = "bandwidth" if unit == "GB/s" else "peak"
    name = "ONNX Runtime" if rows[0].group == "others" else "OpenVINO"
    peer = [f"{name} µs", f"{name} ÷ clew"] if _has_peer(rows) else []
    return [rows[0].group, "µs", unit, limit, "%", *peer]


def _has_peer(rows: Sequence[Row]) -> bool:
    return any(row.peer_microseconds for row in rows)


def _cells(row: Row, peers: bool) -> list[str]:
    cells = [row.name, f"{row.microseconds:.1f}", f"{row.rate:.1f}", f"{row.limit:.1f}"]
    cells.append(f"{100 * row.share:.0f}")
    if peers:
        theirs = row.peer_microseconds
        cells += [f"{theirs:.0f}", f"{theirs / row.microseconds:.2f}"] if theirs else ["–", "–"]
    return cells


def _table(rows: Sequence[Row]) -> Table:
    first, *others = _columns(rows)
    table = Table(title=f"threads: {rows[0].threads}", title_justify="left")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    for row in rows:
        if row.failure:
            table.add_row(row.name, Text(row.failure[:80], style="red"))
        else:
            table.add_row(*_cells(row, _has_peer(rows)))
    return table


def _tables(rows: Sequence[Row]) -> list[written.Table]:
    tables = []
    for group, threads in dict.fromkeys((row.group, row.threads) for row in rows):
        batch = [row for row in rows if (row.group, row.threads) == (group, threads)]
        columns = _columns(batch)
        cells = [
            [row.name, "failed", *["–"] * (len(columns) - 2)]
            if row.failure
            else _cells(row, _has_peer(batch))
            for row in batch
        ]
        tables.append(written.Table(_TITLES[group], columns, cells, note=f"threads: {threads}."))
    return tables


if __name__ == "__main__":
    typer.run(main)
