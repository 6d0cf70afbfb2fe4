"""Edits of a model before and after it is quantized."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small_models import convolutional, drawn

import clew
from clew.ir.expr import Constant, Expr
from clew.quantization import Quantized

DATA = drawn(4, 3, 8, 8)
NET = clew.load(convolutional())


def doubled(value: Expr) -> Expr:
    return clew.get_op("multiply")(value, Constant(np.float32(2)))


def limited(value: Expr) -> Expr:
    return clew.get_op("clip")(value, min=0.0, max=1.0)


@pytest.fixture(scope="module")
def q() -> Quantized:
    return clew.quantize(NET, DATA, threads=1)


def output(module: Any, **options: Any) -> Any:
    return clew.compile(module, threads=1, **options)(DATA[:1])


def test_before() -> None:
    edited = clew.edit(NET).insert_after("stem.act", limited, name="limit").module
    q = clew.quantize(edited, DATA, threads=1)
    row = q.layers[1]
    assert (row.layer, row.value) == ("body.conv", "limit")
    assert row.high is not None
    assert row.high <= 1
    found = {r.layer: r for r in q.compile(threads=1).conversions()}
    assert found["quantize(limit)"].value == "limit"
    np.testing.assert_allclose(
        output(q.module), output(edited), atol=0.02 * np.abs(output(edited)).max()
    )


def test_after(q: Quantized) -> None:
    edited = clew.edit(q.module).insert_after("head", doubled).module
    np.testing.assert_array_equal(output(edited), 2 * output(q.module))


@pytest.mark.parametrize("where", ["stem.act", "quantize(stem.act)"])
def test_around_a_conversion(q: Quantized, where: str) -> None:
    edited = clew.edit(q.module).insert_after(where, limited, name="limit").module
    model = clew.compile(edited, threads=1)
    exact = output(edited, opt_level=0)
    np.testing.assert_allclose(model(DATA[:1]), exact, atol=0.02 * np.abs(exact).max())
    # The conversions are still there, and so is what is known about layers.
    rows = model.conversions().of("quantize(stem.act)")
    assert rows[0].step == "quantize"
    assert rows[0].value == ("limit" if where == "stem.act" else "stem.act")
    assert "limit" in model.trace.layers
    assert "quantized: its operand is u8" in str(model.trace.layer("body.conv"))


def test_a_conversion_is_replaced(q: Quantized) -> None:
    edited = clew.edit(q.module).remove("quantize(stem.act)").module
    assert not clew.compile(edited, threads=1).conversions().of("quantize(stem.act)")
    assert clew.compile(edited, threads=1)(DATA[:1]).shape == (1, 6)
