"""MapRows: loops over a sequence that are pointwise, and those that are not."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import clew
from clew.runtime.program import Program, Repeat

# Bodies of a map: the type of an element, and what is computed from it.
POINTWISE = {
    "several": ("float[?, 4]", "float[?, ?]", "t = Tanh (a)  b = Mul (t, a)"),
    "outside": ("float[?, 4]", "float[?, ?]", "b = Mul (a, factor)"),
    "other_dtype": ("float[?, 4]", "int64[?, ?]", "t = Add (a, a)  b = Cast <to = 7> (t)"),
    "two_axes": ("float[?, ?]", "float[?, ?]", "b = Neg (a)"),
    "itself": ("float[?, 4]", "float[?, ?]", "b = Identity (a)"),
}
OTHERS = {
    "sums": ("float[?, 4]", "float[?, ?]", "b = ReduceSum <keepdims = 1> (a)"),
    "columns": ("float[?, 4]", "float[?, ?]", "b = Mul (a, row)"),
    "one_row_more": ("float[?, 4]", "float[?, ?]", "b = Concat <axis = 0> (a, row)"),
    "sizes": ("float[?, 4]", "int64[?]", "b = Shape (a)"),
    "normalized": ("float[?, 4]", "float[?, ?]", "b = Softmax <axis = 0> (a)"),
    "static": ("float[3, 4]", "float[?, ?]", "b = Tanh (a)"),
}


def has_loop(program: Program) -> bool:
    return any(isinstance(i, Repeat) for part in program.walk() for i in part.instructions)


@pytest.mark.parametrize("name", [*POINTWISE, *OTHERS])
def test_maps(name: str) -> None:
    element, result, body = (POINTWISE | OTHERS)[name]
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        agraph (seq({element}) x, float factor, float[1, 4] row) => (seq({result}) y) {{
            y = SequenceMap (x) <body = each ({element} a) => ({result} b) {{ {body} }}>
        }}"""
    )
    compiled = clew.compile(model, threads=1)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(0)
    shared = {"factor": np.array(-3, "f4"), "row": np.ones((1, 4), "f4")}
    for sizes in ([3], [3, 3, 3]) if name == "static" else ([2, 1, 3], [1], [4, 0, 2, 1]):
        elements = [rng.standard_normal((n, 4)).astype("f4") for n in sizes]
        (found,) = compiled.run({"x": elements, **shared}).values()
        (expected,) = session.run(None, {"x": elements, **shared})
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype
            assert not np.shares_memory(a, elements[0])
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert has_loop(compiled._chain.latest.program) == (name not in POINTWISE)
