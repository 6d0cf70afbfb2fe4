"""The cost of checking indices: kernels that read indices, with `bounds="check"` and `"clamp"`,
alternately: `python benchmarks/bounds.py [--rounds 400]`.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, Final

import numpy as np

import clew
from clew.ir.expr import Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType, from_numpy
from clew.ops.registry import get_op

Array = np.ndarray[Any, Any]
_GROUP: Final = 20
_LEAST_TURN_S: Final = 3e-4


def cases() -> dict[str, tuple[str, list[Array], dict[str, Any]]]:
    """Returns operators with operands and attributes, by name."""
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> Array:
        return rng.random(shape, np.float32)

    table, rows = floats(30522, 768), rng.integers(0, 30522, 128)
    square, places = floats(1000, 1000), rng.integers(0, 1000, (1000, 1000))
    tuples, puts = rng.integers(0, 64, (2000, 2)), rng.permutation(1024)[:64, None]
    boxes = np.sort(floats(50, 4) * 30)
    return {
        "Gather, 128 rows of [30522, 768]": ("gather", [table, rows], {"axis": 0}),
        "GatherElements, 1M i64, last axis": ("gather_elements", [square, places], {"axis": 1}),
        "GatherElements, 1M i64, first axis": ("gather_elements", [square, places], {"axis": 0}),
        "GatherElements, 1M i32, last axis": (
            "gather_elements", [square, places.astype("i4")], {"axis": 1}
        ),
        "GatherND, 2000 rows of [64, 64, 32]": ("gather_nd", [floats(64, 64, 32), tuples], {}),
        "ScatterND, 64 rows of [1024, 64]": (
            "scatter_nd", [floats(1024, 64), puts, floats(64, 64)], {}
        ),
        "ScatterElements, [64, 64] into [64, 256]": (
            "scatter_elements",
            [floats(64, 256), rng.integers(0, 256, (64, 64)), floats(64, 64)],
            {"axis": 1},
        ),
        "ReverseSequence, [64, 128, 32]": (
            "reverse_sequence",
            [floats(64, 128, 32), rng.integers(0, 129, 64)],
            {"batch_axis": 0, "time_axis": 1},
        ),
        "TensorScatter, 8 of 512": (
            "tensor_scatter",
            [floats(4, 512, 64), floats(4, 8, 64), rng.integers(0, 504, 4)],
            {"axis": 1},
        ),
        "RoiAlign, 50 regions": (
            "nn.roi_align",
            [floats(2, 16, 32, 32), boxes, rng.integers(0, 2, 50)],
            {"out": (7, 7), "samples": 2},
        ),
    }  # fmt: skip


def model(op: str, arrays: list[Array], attrs: dict[str, Any]) -> Module:
    """Returns a model of one operator."""
    types = [TensorType(a.shape, from_numpy(a.dtype)) for a in arrays]
    params = [Var(f"x{n}", type_) for n, type_ in enumerate(types)]
    made = Tuple([get_op(op)(*params, **attrs)])
    return Module({"main": Function(params, made, {"outputs": ("y",)})})


def seconds(run: Any, arrays: list[Array], count: int) -> float:
    """Returns the time of one run, averaged over `count` runs."""
    start = time.perf_counter()
    for _ in range(count):
        run(*arrays)
    return (time.perf_counter() - start) / count


def main() -> None:
    """Prints the average of the best turns, and the median ratio of a turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=400)
    rounds = -(-parser.parse_args().rounds // _GROUP) * _GROUP
    print("| operator | check, µs | clamp, µs | check / clamp |\n|---|---|---|---|")
    for name, (op, arrays, attrs) in cases().items():
        made = model(op, arrays, attrs)
        runs = {
            b: clew.compile(made, threads=1, limits=clew.Limits(bounds=b))
            for b in ("check", "clamp")
        }
        count = max(1, int(_LEAST_TURN_S / seconds(runs["clamp"], arrays, 3)))
        times: dict[str, list[float]] = {b: [] for b in runs}
        for turn in range(rounds):
            for b in list(runs)[:: 1 if turn % 2 else -1]:
                times[b].append(seconds(runs[b], arrays, count) * 1e6)
        best = {b: np.min(np.reshape(t, (-1, _GROUP)), 1).mean() for b, t in times.items()}
        quotient = np.median(np.divide(times["check"], times["clamp"]))
        check, clamp = best["check"], best["clamp"]
        print(f"| {name} | {check:.1f} | {clamp:.1f} | {quotient:.3f} |", flush=True)


if __name__ == "__main__":
    main()
