"""Results own their memory: writing to an input or a result changes nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import clew
import zoo
from overwriting import overwritten

Array = np.ndarray[Any, Any]
# Models of one input that return it, or a value more than once. `y` is f32[n, m].
SAME: Final = {
    "identity": "y = Identity(x)",
    "dropout": "y = Dropout(x)",
    "cast": "y = Cast<to = 1>(x)",
    "plus zero": "zero = Constant<value_float = 0.0>() y = Sub(x, zero)",
    "times one": "one = Constant<value_float = 1.0>() y = Mul(x, one)",
    "reshape": "s = Constant<value_ints = [-1]>() y = Reshape(x, s)",
    "flatten": "y = Flatten<axis = 0>(x)",
    "whole slice": """b = Constant<value_ints = [0, 0]>() e = Constant<value_ints = [99, 99]>()
        y = Slice(x, b, e)""",
    "part": """b = Constant<value_ints = [0]>() e = Constant<value_ints = [1]>()
        y = Slice(x, b, e)""",
    "unsqueeze": "a = Constant<value_ints = [1]>() y = Unsqueeze(x, a)",
    "there and back": "a = Constant<value_ints = [1]>() u = Unsqueeze(x, a) y = Squeeze(u, a)",
    "transpose": "y = Transpose(x)",
    "turned twice": "t = Transpose(x) y = Transpose(t)",
    "expand": "s = Constant<value_ints = [1, 1]>() y = Expand(x, s)",
    "concat of one": "y = Concat<axis = 0>(x)",
    "split in one": "y = Split<num_outputs = 1>(x)",
    "tile": "r = Constant<value_ints = [1, 1]>() y = Tile(x, r)",
    "pad": "p = Constant<value_ints = [0, 0, 0, 0]>() y = Pad(x, p)",
    "sum of one": "y = Sum(x)",
    "the input itself": "",
    "twice": "a = Neg(x) y = Identity(a) z = Identity(a)",
    "equal values": "a = Neg(x) b = Neg(x) y = Relu(a) z = Relu(b)",
    "two views": """a = Exp(x) s = Constant<value_ints = [-1]>() y = Reshape(a, s)
        z = Identity(a)""",
    "a part and the whole": """y = Exp(x) b = Constant<value_ints = [0]>()
        e = Constant<value_ints = [1]>() z = Slice(y, b, e)""",
    "parts": "a = Exp(x) y, z = Split<num_outputs = 2>(a)",
    "a constant": "y = Constant<value_floats = [1.0, 2.0]>() z = Identity(y)",
    "a part of a constant": """c = Constant<value_floats = [1.0, 2.0]>()
        b = Constant<value_ints = [1]>() e = Constant<value_ints = [2]>() y = Slice(c, b, e)
        z = Identity(x)""",
    "a splat": "s = Constant<value_ints = [4]>() y = ConstantOfShape(s) z = Identity(y)",
    "shape": "y = Shape(x) z = Identity(y)",
    "branch": """zero = Constant<value_float = 0.0>() s = ReduceSum<keepdims = 0>(x)
        c = Greater(s, zero)
        y = If(c) <then_branch = t () => (float[N, M] p) { p = Identity(x) },
                   else_branch = e () => (float[N, M] q) { q = Neg(x) }>""",
    "constant of a branch": """zero = Constant<value_float = 0.0>()
        s = ReduceSum<keepdims = 0>(x) c = Less(s, zero) k = NonZero(x)
        y = If(c) <then_branch = t () => (float[K] p) { p = Constant<value_floats = [5.0]>() },
                   else_branch = e () => (float[K] q) {
                       f = Cast<to = 1>(k) m = Constant<value_ints = [-1]>() q = Reshape(f, m) }>
        """,
    "no iterations": """n = Constant<value_int = 0>() c = Constant<value = bool {1}>()
        y = Loop(n, c, x) <body = b (int64 i, bool g, float[N, M] s) => (bool h, float[N, M] t) {
            h = Identity(g) t = Neg(s) }>""",
    "loop": """n = Constant<value_int = 3>() c = Constant<value = bool {1}>()
        y, z = Loop(n, c, x) <body = b (int64 i, bool g, float[N, M] s)
            => (bool h, float[N, M] t, float[N, M] u) { h = Identity(g) t = Identity(s)
            u = Identity(s) }>""",
    "unranked loop": """n = Constant<value_int = 0>() c = Constant<value = bool {1}>()
        k = NonZero(x) f = Cast<to = 1>(k)
        y = Loop(n, c, f) <body = b (int64 i, bool g, float[A, B] s) => (bool h, float[C, D] t) {
            h = Identity(g) t = Concat<axis = 0>(s, s) }>""",
    "scan": """zero = Constant<value_ints = [0]>() k = ReduceSum<keepdims = 0>(x, zero) y, z = Scan<num_scan_inputs = 1, body = b (float[M] s, float[M] r)
        => (float[M] t, float[M] u) { t = Identity(s) u = Identity(r) }>(k, x)""",
    "sequence": """q = SequenceConstruct(x, x) i = Constant<value_int = 1>()
        y = SequenceAt(q, i) z = ConcatFromSequence<axis = 0>(q)""",
    "result is a sequence": "a = Neg(x) y = SequenceConstruct(x, a, x) z = Identity(a)",
    "nothing found": "k = NonZero(x) y = Identity(k) z = Transpose(k)",
}  # fmt: skip
SIZES: Final = [(2, 3), (1, 1), (4, 0)]


INTEGERS: Final = ("shape", "nothing found")


def model(name: str, sizes: tuple[int | str, int | str] = (2, 3)) -> onnx.ModelProto:
    """Returns a model of an input `x`."""
    body = SAME[name]
    made = [r for r in ("y", "z") if re.search(rf"\b{r}\b[^(<]*=", body)] or ["x"]
    kinds = {r: "int64" if name in INTEGERS else "float" for r in made}
    if name == "result is a sequence":
        kinds["y"] = "seq(float)"
    shown = ", ".join(f"{kind} {result}" for result, kind in kinds.items())
    text = f"g (float[{sizes[0]}, {sizes[1]}] x) => ({shown}) {{ {body} }}"
    graph = onnx.parser.parse_graph(text)
    for value in graph.output:  # of any rank
        value.type.tensor_type.ClearField("shape")
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def drawn(*shape: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}


@pytest.mark.parametrize("name", SAME)
def test_writing_to_one_array_changes_no_other(name: str, tmp_path: Path) -> None:
    for number, shape in enumerate(SIZES):
        if name == "parts" and shape[0] % 2:
            continue
        compiled = clew.compile(model(name, shape), threads=1 + number % 2)
        assert overwritten(compiled.run, drawn(*shape)) == "", shape
    compiled.save(tmp_path / "model.clew")
    loaded = clew.load_compiled(tmp_path / "model.clew", threads=1)
    assert overwritten(loaded.run, drawn(*shape)) == ""
    free = clew.compile(model(name, ("n", "m")), threads=1)
    for shape in SIZES:
        if name != "parts" or shape[0] % 2 == 0:
            assert overwritten(free.run, drawn(*shape)) == "", shape
