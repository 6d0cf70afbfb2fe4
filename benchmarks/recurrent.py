"""Compares LSTM, GRU, and RNN with ONNX Runtime, one thread each, alternately and with new values
on every call:
`python benchmarks/recurrent.py [--layers lstm gru] [--hidden 64 256] [--lengths 10 100]`.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

import clew

Array = np.ndarray[Any, Any]
_GATES: Final = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ROUNDS: Final = 15
_TURN_S: Final = 4e-3


def model(op: str, hidden: int, batch: int, length: int, *, both: bool) -> onnx.ModelProto:
    """Returns one layer whose input has the size of its state, with weights at the scale of
    torch's.
    """
    rng = np.random.default_rng(0)
    ways, gates, scale = 1 + both, _GATES[op], 1 / math.sqrt(hidden)
    shapes = {
        "W": (ways, gates * hidden, hidden),
        "R": (ways, gates * hidden, hidden),
        "B": (ways, 2 * gates * hidden),
    }
    weights = [
        numpy_helper.from_array(rng.uniform(-scale, scale, shape).astype("f4"), name)
        for name, shape in shapes.items()
    ]
    options: dict[str, Any] = {"direction": "bidirectional"} if both else {}
    if op == "GRU":
        options["linear_before_reset"] = 1  # as in torch
    node = helper.make_node(op, ["x", *shapes], ["y"], hidden_size=hidden, **options)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "layer",
        [info("x", 1, (length, batch, hidden))],
        [info("y", 1, (length, ways, batch, hidden))],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def compared(made: onnx.ModelProto) -> tuple[float, float, float]:
    """Returns the seconds of a call of clew and of ONNX Runtime, and the largest difference."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(made.SerializeToString(), options)
    compiled = clew.compile(made, threads=1)
    shape = [d.dim_value for d in made.graph.input[0].type.tensor_type.shape.dim]
    rng = np.random.default_rng(1)
    drawn = [rng.standard_normal(shape).astype("f4") for _ in range(8)]
    runs = (lambda x: compiled(x), lambda x: session.run(None, {"x": x}))
    off = max(float(np.abs(runs[0](x) - runs[1](x)[0]).max()) for x in drawn[:2])
    once = _seconds(runs[1], drawn, 1)
    count = max(2, int(_TURN_S / once))
    rounds = [[_seconds(run, drawn, count) for run in runs] for _ in range(_ROUNDS)]
    ours, theirs = (statistics.median(column) for column in zip(*rounds, strict=True))
    return ours, theirs, off


def _seconds(run: Any, drawn: list[Array], count: int) -> float:
    start = time.perf_counter()
    for n in range(count):
        run(drawn[n % len(drawn)])
    return (time.perf_counter() - start) / count


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", nargs="+", default=["lstm", "gru", "rnn"])
    parser.add_argument("--hidden", nargs="+", type=int, default=[64, 256, 1024])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--lengths", nargs="+", type=int, default=[10, 100, 500])
    parser.add_argument("--ways", nargs="+", type=int, default=[1, 2])
    chosen = parser.parse_args()
    print(f"{'layer':6s}{'hidden':>7s}{'batch':>6s}{'length':>7s}{'ways':>5s}", end="")
    print(f"{'clew us':>11s}{'ORT us':>11s}{'ratio':>7s}{'GFLOP/s':>9s}{'difference':>12s}")
    ratios = []
    for op, hidden, batch, length, ways in itertools.product(
        chosen.layers, chosen.hidden, chosen.batches, chosen.lengths, chosen.ways
    ):
        made = model(op.upper(), hidden, batch, length, both=ways == 2)
        ours, theirs, off = compared(made)
        ratios.append(theirs / ours)
        flops = 4 * ways * batch * length * hidden * hidden * _GATES[op.upper()]
        print(
            f"{op:6s}{hidden:7d}{batch:6d}{length:7d}{ways:5d}{ours * 1e6:11.1f}"
            f"{theirs * 1e6:11.1f}{theirs / ours:7.2f}{flops / ours / 1e9:9.1f}{off:12.1e}",
            flush=True,
        )
    print(f"\ngeometric mean {statistics.geometric_mean(ratios):.2f}, least {min(ratios):.2f}")


if __name__ == "__main__":
    main()
