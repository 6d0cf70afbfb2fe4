"""What every import builds: sources, marks, fates, constants, anchors, budgets, coded errors."""

from __future__ import annotations

import numpy as np
import pytest

from clew.frontends.builder import Fault, GraphBuilder, coded
from clew.frontends.building import call, constant
from clew.frontends.registry import Converters
from clew.ir.dims import SymDim, unknown_dim
from clew.ir.expr import Call, Constant, Expr
from clew.ir.types import TensorType
from clew.support.budgets import Budgets
from clew.support.errors import ClewError, ModelError
from clew.trace.span import Source

F32 = TensorType((2,), "f32")


def layer(builder: GraphBuilder, name: str, op: str, *inputs: Expr, marked: bool = True) -> Expr:
    source = Source(name, op, builder.frontend)
    with builder.layer(source, marked=marked) as results:
        value = results.bind(0, call(op, *inputs), name)
    builder.account(source, [value])
    return value


def test_sources_marks_and_fates() -> None:
    builder = GraphBuilder("toy")
    x = builder.input("x", F32)
    w = builder.constant("w", lambda: np.ones(2, np.float32))
    y = layer(builder, "a", "add", x, w)
    layer(builder, "b", "exp", x)
    layer(builder, "c", "exp", w)
    builder.omit("d", "noop", "never there")
    module = builder.module([y], ["y"], {"more": 1})
    assert x.span.sources == (Source("x", "", "toy", "input"),)
    assert w.span.sources == (Source("w", "", "toy", "parameter"),)
    assert y.span.sources == (Source("a", "add", "toy", output=0),)
    assert module.main.attrs.eliminated == (
        ("b", "exp", "result not used"),
        ("c", "exp", "known at import"),
        ("d", "noop", "never there"),
    )
    assert module.main.attrs.more == 1


def test_a_value_that_is_passed_on_becomes_an_identity() -> None:
    builder = GraphBuilder("toy")
    x = builder.input("x", F32)
    with builder.layer(Source("a", "pass", "toy")) as results:
        first, second = (results.bind(n, x) for n in (0, 1))
    assert isinstance(first, Call)
    assert first.op_name == "identity"
    assert first.id != second.id
    with builder.layer(Source("b", "step", "toy"), marked=False) as results:
        assert results.bind(0, call("exp", x)).span.sources == (Source("b", "step", "toy"),)


def test_tied_constants_are_one() -> None:
    builder, read = GraphBuilder("toy"), []

    def array() -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        read.append(1)
        return np.ones(2, np.float32)

    tied = [builder.constant(name, array, key=7) for name in ("w", "v")]
    assert tied[0] is tied[1]
    assert (tied[0].name, len(read)) == ("w", 1)
    assert builder.constant("u", array) is not builder.constant("u", array)


def test_sizes_that_the_data_decide_are_anchored() -> None:
    builder = GraphBuilder("toy")
    x = builder.input("x", F32)
    size = unknown_dim()
    carrier = builder.variable("c", TensorType((size,), "f32"))
    with builder.layer(Source("a", "take", "toy")) as results:
        results.bind(0, carrier)
    assert list(builder.carriers) == [str(size)]
    builder.params.append(carrier)
    wide = call("broadcast_to", call("reshape", x, shape=(2, 1)), shape=(2, size))
    assert "sized(" in str(builder.module([wide], ["y"], {}))


def test_budgets() -> None:
    builder = GraphBuilder("toy", Budgets(nodes=1, text_chars=3, total_bytes=8))
    builder.start_layer()
    builder.count_name("abc")
    builder.count_value("x", F32)
    for step, code in (
        (builder.start_layer, "M009"),
        (lambda: builder.count_name("d"), "M030"),
        (lambda: builder.count_value("y", F32), "M030"),
    ):
        with pytest.raises(ClewError) as caught:
            step()
        assert caught.value.code == code


def test_the_layer_that_failed_first_is_kept() -> None:
    builder = GraphBuilder("toy")
    builder.fail([constant(np.ones(3)), None])
    builder.fail([builder.input("x", TensorType((SymDim.symbol("n"),), "f32"))])
    assert builder.failed is not None
    assert not builder.failed.symbolic
    assert builder.failed.sizes == frozenset({3})


def test_python_errors_get_a_code() -> None:
    faults = (Fault((IndexError,), lambda op, e: ModelError("M031", f"{op}: {e}", hint="fix it")),)
    with pytest.raises(ClewError, match="M031"), coded("sort", faults):
        raise IndexError("too far")
    with pytest.raises(KeyError), coded("sort", faults):
        raise KeyError("k")
    with pytest.raises(ClewError, match="M012"), coded("sort", faults):
        raise ModelError("M012", "is wrong", hint="fix it")


def test_converters_by_version() -> None:
    table: Converters[str, object] = Converters()  # type: ignore[type-var]

    @table.register("a", "b")
    def old() -> Expr:
        return Constant(1)

    @table.register("a", since=7)
    def new() -> Expr:
        return Constant(2)

    assert [table.find("a", version) for version in (6, 7, None)] == [old, new, new]
    assert table.find("b", 9) is old
    assert table.find("c") is None
    with pytest.raises(AssertionError, match="two converters"):
        table.register("b")(new)
