"""Models of one node, compiled, and held against ONNX's reference or ONNX Runtime, whichever
follows the standard's text.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import clew
from clew.frontends.onnx import load
from clew.ir.interpret import interpret
from clew.support.errors import ClewError

RNG = np.random.default_rng(5)


def draw(*shape, dtype="f4"):
    return (RNG.standard_normal(shape) * 0.8).astype(dtype)


def model(
    op, inputs, *, count=1, opset=22, known=(), domain="", results=None, attrs=None, **attributes
):
    """Returns a model of one node; inputs in `known` are initializers, None are left out. `results`
    names the outputs, "" for one that is left out. `attrs` are further attributes.
    """
    attributes |= attrs or {}
    names = ["" if array is None else name for name, array in inputs.items()]
    given = {name: np.asarray(array) for name, array in inputs.items() if array is not None}
    outputs = [f"y{n}" for n in range(count)] if results is None else list(results)
    node = helper.make_node(op, names, outputs, domain=domain, **attributes)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in given.items()
        if n not in known
    ]
    tensors = [numpy_helper.from_array(given[n], n) for n in known if n in given]
    wanted = [helper.make_empty_tensor_value_info(n) for n in outputs if n]
    graph = helper.make_graph([node], "g", infos, wanted, tensors)
    sets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


def compiled(made, threads=1, bounds="check"):
    return clew.compile(
        load(made),
        cache=False,
        threads=threads,
        diagnostics=clew.Diagnostics(guard=True),
        limits=clew.Limits(bounds=bounds),
    )


def run(op, inputs, *, known=(), bounds="check", native=True, **options):
    """Returns the model, its feeds and its results: of the compiled model, or, without `native`, of
    the graph that it is imported to, which takes a fiftieth of the time.
    """
    made = model(op, inputs, known=known, **options)
    feeds = {n: a for n, a in inputs.items() if a is not None and n not in known}
    found = compiled(made, bounds=bounds).run(feeds) if native else interpret(load(made), feeds)
    return made, feeds, [found[value.name] for value in made.graph.output]


def agrees(op, inputs, *, by="reference", rtol=1e-4, atol=1e-5, **options):
    made, feeds, found = run(op, inputs, **options)
    if by == "reference":
        wanted = ReferenceEvaluator(made).run(None, feeds)
    else:
        typed = onnx.shape_inference.infer_shapes(made).SerializeToString()
        wanted = ort.InferenceSession(typed, providers=["CPUExecutionProvider"]).run(None, feeds)
    for got, want in zip(found, wanted, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(
            np.asarray(got, "f8"), np.asarray(want, "f8"), rtol=rtol, atol=atol
        )


def fails(code, op, inputs, **options):
    with pytest.raises(ClewError) as caught:
        run(op, inputs, **options)
    assert caught.value.code == code
