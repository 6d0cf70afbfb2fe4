"""`clew.check_op`: what it says of sound operators, and what of each kind of mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import clew
from clew import te
from clew.ops.common import bf16, f16, f32, i32, need_float
from clew.ops.registry import Op
from clew.support.errors import ClewError
from clew.te.tensor import Tensor


def an_op(name: str, body: Callable[..., Any], reference: Callable[..., Any] | None = None) -> Op:
    @clew.register_op(name, samples=[clew.Sample(f32(4, 8))], overwrite=True)
    def op(x: Tensor, *, a: float = 0.5) -> Any:
        need_float(name, x)
        return body(x, a)

    if reference is not None:
        op.reference(reference)
    return op


def scaled(x: Tensor, a: float) -> Tensor:
    return te.compute(x.shape, lambda *i: x[i] * a, "scaled", layout=x.layout)


def test_a_sound_operator_gets_a_report() -> None:
    op = an_op("checks.sound", scaled, lambda x, *, a: x * a)
    report = clew.check_op(op, clew.Sample(f32(7), a=2.0), clew.Sample(i32(2), error="T105"))
    assert report.kind.name == "ELEMENTWISE"
    text = str(report)
    assert "f32[7], a=2.0 -> f32[7]" in text
    assert "agrees with compute on 2 samples" in text
    assert "T105 as stated" in text


def test_wide_references_and_several_results_are_fine() -> None:
    def both(x: Tensor, a: float) -> tuple[Tensor, Tensor]:
        k = te.reduce_axis(x.shape[1], "k")
        total = te.compute((x.shape[0],), lambda i: te.sum(x[i, k] * a, k), "total")
        return scaled(x, a), total

    op = an_op("checks.both", both, lambda x, *, a: (x.astype("f8") * a, x.sum(1) * a))
    assert "reference" in str(clew.check_op(op))
    assert clew.check_op("nn.softmax").op == "nn.softmax"


def test_host_operators_are_checked() -> None:
    @clew.register_op("checks.host", host=True, samples=[clew.Sample(f32(3, 4))], overwrite=True)
    def op(x: np.ndarray[Any, Any]) -> Any:
        """Sorted rows."""
        return np.sort(x, axis=1)

    op.types(lambda x: x)
    assert "host" in str(clew.check_op(op))


@pytest.mark.parametrize(
    ("body", "reference", "code", "said"),
    [
        (scaled, lambda x, *, a: x[:1] * a, "T020", "float32[1, 8], expected f32[4, 8]"),
        (scaled, lambda x, *, a: (x, x), "T020", "expected f32[4, 8]"),
        (scaled, lambda x, *, a: x.astype("i4"), "T020", "int32[4, 8]"),
        (scaled, lambda x, *, a: x + a, "T021", "compute differs from the reference"),
        (scaled, lambda x, *, a: 1 / 0, "T026", "ZeroDivisionError"),
        (
            lambda x, a: te.compute(x.shape, lambda i, j: x[i, j + 1], "s"),
            lambda x, *, a: x,
            "T021",
            "",
        ),
        (
            lambda x, a: te.compute(x.shape, lambda i, j: x[i, j + 1], "s"),
            None,
            "T027",
            "accesses x: f32[4, 8] input at [0, 8]",
        ),
        (
            lambda x, a: te.compute(x.shape, lambda i, j: x[i, j - 1], "s"),
            None,
            "T027",
            "[0, -1]",
        ),
        (
            lambda x, a: te.compute(x.shape, lambda i, j: x[i, j] * float(int(x.shape[0])), "s"),
            None,
            "T026",
            "SymDim",
        ),
    ],
)  # fmt: skip
def test_mistakes_name_the_sample(
    body: Callable[..., Any], reference: Callable[..., Any] | None, code: str, said: str
) -> None:
    op = an_op("checks.wrong", body, reference)
    with pytest.raises(ClewError) as caught:
        clew.check_op(op)
    assert caught.value.code == code
    assert caught.value.message.startswith("sample 0 (f32[4, 8])")
    assert said in caught.value.message


def test_errors_must_be_those_stated_and_samples_there() -> None:
    op = an_op("checks.errors", scaled)
    with pytest.raises(ClewError) as caught:
        clew.check_op(op, clew.Sample(i32(2), error="T103"))
    assert caught.value.code == "T023"
    assert "T105" in caught.value.message

    @clew.register_op("checks.none", overwrite=True)
    def none(x: Tensor) -> Tensor:
        return scaled(x, 1.0)

    with pytest.raises(ClewError) as caught:
        clew.check_op(none)
    assert caught.value.code == "I087"


@pytest.mark.parametrize("host", [False, True])
def test_a_reference_of_wrong_shape_is_said_where_it_runs(host: bool) -> None:
    def wrong(x: Any) -> Any:
        """Two rows only."""
        return x[:2]

    if host:
        op = clew.register_op("checks.shape", host=True, overwrite=True)(wrong)
        op.types(lambda x: x)
    else:
        op = clew.register_op("checks.shape", overwrite=True)(lambda x: scaled(x, 1.0))
        op.reference(wrong)
    module = clew.parse("""
clew 1
def @main(%x: f32[4, 8]) -> (f32[4, 8],) with outputs=["y"] {
  %0 = checks.shape(%x)  // rows:Rows#0
  %1 = (%0,)
  return %1
}
""")
    given = {"x": np.ones((4, 8), np.float32)}
    compiled = clew.compile(module)
    with pytest.raises(ClewError) as caught:
        compiled.run(given) if host else compiled.trace.verify(given)
    assert caught.value.code == "T020"
    assert "checks.shape" in caught.value.message
    assert "[2, 8], expected f32[4, 8]" in caught.value.message


@pytest.mark.parametrize("dtype", [f16, bf16])
def test_half_precision_is_judged_in_its_last_places(dtype: Callable[..., Any]) -> None:
    """An error of 0.8 % in f16, and of 3 % in bf16, is more than rounding."""
    wrong = 1.008 if dtype is f16 else 1.03

    def body(x: Tensor, factor: float) -> Tensor:
        return te.compute(x.shape, lambda *i: x[i] * factor, "scaled", layout=x.layout)

    for factor, right in ((1.5, True), (1.5 * wrong, False)):

        @clew.register_op("checks.half", samples=[clew.Sample(dtype(64))], overwrite=True)
        def op(x: Tensor, factor: float = factor) -> Any:
            return body(x, factor)

        op.reference(lambda x: (x.astype("f8") * 1.5).astype(x.dtype))
        if right:
            clew.check_op(op)
            continue
        with pytest.raises(ClewError, match="units in the last place") as caught:
            clew.check_op(op)
        assert caught.value.code == "T021"
