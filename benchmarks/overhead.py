"""Times calls of models with very little to compute: the overhead of a call.

    python benchmarks/overhead.py

Each model adds its inputs and applies one operator for each output, all on 64 floats; that takes
some ten nanoseconds. Engines take turns, with new values in each call, on one thread. The time is
that of the thread, without that of other programs.
"""

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import onnx
import onnxruntime
import typer
from ai_edge_litert.interpreter import Interpreter
from onnx import TensorProto, helper
from rich.table import Table

import clew
from harness.report import console
from tflite_files import Graph

_WIDTH: Final = 64
_CASES: Final = ((1, 1), (2, 1), (4, 1), (1, 3), (4, 3))
_OPERATORS: Final = (("Sigmoid", "LOGISTIC"), ("Tanh", "TANH"), ("Relu", "RELU"))
_VALUES: Final = 16
_CALLS: Final = 200
Array = np.ndarray[Any, Any]
Call = Callable[[list[Array]], Any]


def main(
    rounds: Annotated[int, typer.Option(help="Turns of each engine.", min=1)] = 40,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
) -> None:
    """Prints the time of a call by engine, in microseconds, and that of others in terms of clew."""
    table = Table(title="call of a tiny model, µs", title_justify="left")
    for name in ("model", "call", "median", "over kernels", "times clew's"):
        table.add_column(name, justify="left" if name in ("model", "call") else "right")
    rows = []
    for title, inputs, calls, kernels_us in _models():
        times = _medians_us(calls, inputs, rounds)
        own = times["clew"]
        for name, taken in times.items():
            over = f"{taken - kernels_us:.2f}" if name.startswith("clew") else ""
            table.add_row(title, name, f"{taken:.2f}", over, f"{taken / own:.2f}")
            rows.append({"model": title, "call": name, "us": taken, "kernels_us": kernels_us})
    console.print(table)
    if json_file:
        json_file.write_text(json.dumps(rows, indent=1) + "\n")


def _models() -> list[tuple[str, int, Mapping[str, Call], float]]:
    """Returns, for each model, a title, the number of inputs, its calls by engine, and the time in
    kernels.
    """
    found: list[tuple[str, int, Mapping[str, Call], float]] = []
    for inputs, outputs in _CASES:
        model = clew.compile(made := _onnx(inputs, outputs), threads=1)
        calls = {
            **_clew(model),
            "onnxruntime": _onnxruntime(made),
            "litert": _litert(_tflite(inputs, outputs)),
        }
        found.append((f"{inputs} → {outputs}", inputs, calls, _kernels_us(model)))
    found += [_stream(), _own_state()]
    return found


def _stream() -> tuple[str, int, Mapping[str, Call], float]:
    """Returns a cell whose state other engines take and return."""
    node = helper.make_node
    nodes = [
        node("Add", ["x0", "h"], ["s"]), node("Tanh", ["s"], ["hn"]), node("Neg", ["hn"], ["y0"])
    ]  # fmt: skip
    names = [_floats(name) for name in ("x0", "h", "y0", "hn")]
    made = _model(nodes, names[:2], names[2:])
    model = clew.compile(made, threads=1)
    session = model.session(state={"h": "hn"})
    run, state = _onnxruntime(made), [np.zeros((1, _WIDTH), np.float32)]

    def step(inputs: list[Array]) -> Any:
        y, state[0] = run([*inputs, state[0]])
        return y

    calls: dict[str, Call] = {"clew": lambda xs: session(*xs), "onnxruntime": step}
    return "a frame", 1, calls, _kernels_us(model)


def _own_state() -> tuple[str, int, Mapping[str, Call], float]:
    """Returns a filter of a TFLite file, which has a state itself."""
    units, memory, rng = 32, 8, np.random.default_rng(0)
    graph = Graph()
    x = graph.input("x0", (1, _WIDTH), "f32")
    state = graph.tensor("state", (1, units * memory), "f32", is_variable=True)
    shapes = (units, _WIDTH), (units, memory), (units,)
    weights = [graph.constant(rng.normal(size=s).astype(np.float32)) for s in shapes]
    options = ("SVDFOptions", {"rank": 1, "activation": 1})
    out = graph.operator("SVDF", [x, *weights, state], [("y0", (1, units), "f32")], options)
    data = graph.file(out)
    model = clew.compile(clew.load(data), threads=1)
    session = model.session()
    calls: dict[str, Call] = {"clew": lambda xs: session(*xs), "litert": _litert(data)}
    return "a frame, SVDF", 1, calls, _kernels_us(model)


def _medians_us(calls: Mapping[str, Call], inputs: int, rounds: int) -> dict[str, float]:
    """Returns the median time of a call in the turns of each engine."""
    rng = np.random.default_rng(0)
    values = [
        [rng.normal(size=(1, _WIDTH)).astype(np.float32) for _ in range(inputs)]
        for _ in range(_VALUES)
    ]
    given = values * (_CALLS // _VALUES)
    times: dict[str, list[float]] = {name: [] for name in ("", *calls)}
    both: dict[str, Call] = {"": lambda xs: None, **calls}
    names = list(both)
    for turn in range(rounds + 1):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            call = both[name]
            began = time.thread_time_ns()
            for each in given:
                call(each)
            taken = (time.thread_time_ns() - began) / len(given) / 1e3
            if turn:  # the first one warms up
                times[name].append(taken)
    loop = statistics.median(times.pop(""))
    return {name: statistics.median(each) - loop for name, each in times.items()}


def _kernels_us(model: clew.CompiledModel) -> float:
    return sum(each.median_ns for each in model.time_kernels()) / 1e3


def _clew(model: clew.CompiledModel) -> dict[str, Call]:
    names = model.input_names
    return {
        "clew": lambda xs: model(*xs),
        "clew, by name": lambda xs: model.run(dict(zip(names, xs, strict=True))),
    }


def _onnxruntime(model: onnx.ModelProto) -> Call:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    names = [each.name for each in session.get_inputs()]
    return lambda xs: session.run(None, dict(zip(names, xs, strict=True)))


def _litert(data: bytes) -> Call:
    made = Interpreter(model_content=data, num_threads=1)
    made.allocate_tensors()
    inputs = [each["index"] for each in made.get_input_details()]
    outputs = [each["index"] for each in made.get_output_details()]

    def run(xs: list[Array]) -> list[Array]:
        for index, x in zip(inputs, xs, strict=True):
            made.set_tensor(index, x)
        made.invoke()
        return [made.get_tensor(index) for index in outputs]

    return run


def _floats(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, _WIDTH])


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "tiny", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def _onnx(inputs: int, outputs: int) -> onnx.ModelProto:
    nodes, value = [], "x0"
    for number in range(1, inputs):
        nodes.append(helper.make_node("Add", [value, f"x{number}"], [f"s{number}"]))
        value = f"s{number}"
    for number, (operator, _) in enumerate(_OPERATORS[:outputs]):
        nodes.append(helper.make_node(operator, [value], [f"y{number}"]))
    given, made = (
        [_floats(f"{c}{n}") for n in range(k)] for c, k in (("x", inputs), ("y", outputs))
    )
    return _model(nodes, given, made)


def _tflite(inputs: int, outputs: int) -> bytes:
    graph, shape = Graph(), (1, _WIDTH)
    value, *more = [graph.input(f"x{number}", shape, "f32") for number in range(inputs)]
    for number, each in enumerate(more):
        (value,) = graph.operator("ADD", [value, each], [(f"s{number}", shape, "f32")])
    results = []
    for number, (_, operator) in enumerate(_OPERATORS[:outputs]):
        results += graph.operator(operator, [value], [(f"y{number}", shape, "f32")])
    return graph.file(results)


if __name__ == "__main__":
    typer.run(main)
