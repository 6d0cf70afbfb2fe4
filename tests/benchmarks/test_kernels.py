from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import clew
import kernels
from clew.machine.probes.bandwidth import Bandwidth
from clew.machine.probes.peak import FmaPeak
from clew.support.difference import relative_error
from harness import single_op
from harness.single_op import OneOp

SMALL: list[tuple[str, OneOp]] = [
    ("product", single_op.product(3, 5, 7)),
    ("integer product", single_op.integer_product(3, 5, 7)),
    ("convolution", single_op.convolution(3, 8, 9, 3, 2)),
    ("depthwise", single_op.convolution(8, 8, 9, 3, 1, 8)),
    ("quantized convolution", single_op.quantized_convolution(8, 16, 9, 3, 2)),
    ("quantized depthwise", single_op.quantized_convolution(16, 16, 9, 3, 1, 16)),
    ("inverted residual", single_op.inverted_residual(8, 24, 8, 9, 2)),
    ("separable", single_op.inverted_residual(8, 8, 16, 9)),
    ("transpose", single_op.transpose(5, 7)),
    ("softmax", single_op.softmax(5, 7)),
    ("layer norm", single_op.layer_norm(5, 7)),
    ("permuted", single_op.permuted(2, 3, 4, 5, order=(0, 2, 3, 1))),
    ("gather", single_op.gather((5, 7), 3, 1)),
    ("concatenation", single_op.concatenation(5, 7, axis=1)),
    ("top k", single_op.top_k(3, 70, 5)),
    ("resize", single_op.resize(3, 7, 9, "linear")),
    ("group norm", single_op.group_norm(2, 6, 5, 3)),
    ("rotary", single_op.rotary(2, 5, 8, interleaved=True)),
    ("column sums", single_op.column_sums(5, 70)),
]


@pytest.mark.parametrize(("name", "made"), SMALL, ids=[name for name, _ in SMALL])
def test_models_of_one_operator_are_valid_and_clew_runs_them(
    name: str, made: OneOp, tmp_path: Path
) -> None:
    onnx.checker.check_model(made.model, full_check=True)
    onnx.save(made.model, tmp_path / "m.onnx")
    # Without dot products of bytes ONNX Runtime adds pairs of them in 16 bits, which saturates.
    exact = "integer" in name
    peer = ReferenceEvaluator if exact else onnxruntime.InferenceSession
    (wanted,) = peer(str(tmp_path / "m.onnx")).run(None, {"x": made.x})
    result = clew.compile(clew.load(tmp_path / "m.onnx"), threads=1)(made.x)
    assert relative_error(result, wanted) < 1e-5


def test_rms_norm_is_what_it_says(tmp_path: Path) -> None:
    made = single_op.rms_norm(5, 7)
    onnx.save(made.model, tmp_path / "m.onnx")
    scale = onnx.numpy_helper.to_array(made.model.graph.initializer[0])
    wanted = made.x / np.sqrt((made.x**2).mean(-1, keepdims=True) + 1e-5) * scale
    result = clew.compile(clew.load(tmp_path / "m.onnx"), threads=1)(made.x)
    assert relative_error(result, wanted) < 1e-5


def test_cases_have_names_of_their_own_and_known_groups() -> None:
    names = [(case.group, case.name) for case in kernels.cases()]
    assert len(set(names)) == len(names)
    assert {group for group, _ in names} <= set(kernels._GROUPS)


def test_convolutions_are_all_of_resnet50() -> None:
    """Its residual stages, as He et al., 2015, table 1 lists them, stride in the 3×3."""
    expected = {(3, 64, 224, 7, 2)}
    size, channels = 56, 64
    for stage, width in enumerate((64, 128, 256, 512)):
        stride = 1 if stage == 0 else 2
        expected |= {
            (channels, width, size, 1, 1),
            (width, width, size, 3, stride),
            (channels, 4 * width, size, 1, stride),
        }
        size //= stride
        channels = 4 * width
        expected |= {
            (channels, width, size, 1, 1),
            (width, width, size, 3, 1),
            (width, channels, size, 1, 1),
        }
    assert set(kernels._CONVOLUTIONS) == expected


def test_a_case_that_fails_is_a_row() -> None:
    def fails() -> OneOp:
        raise RuntimeError("no")

    small = kernels.Case("gemm", "small", lambda: single_op.product(4, 8, 8))
    rows = kernels.measured(
        [small, kernels.Case("gemm", "bad", fails)], 1, 1, FmaPeak(), Bandwidth()
    )
    assert [row.failure for row in rows] == ["", "RuntimeError: no"]
    assert rows[0].share > 0
    assert kernels._table(rows).row_count == 2
    (table,) = kernels._tables(rows)
    assert table.rows[1] == ["bad", "failed", "–", "–", "–"]


def test_layout_conversions_of_the_models_ends_are_left_out() -> None:
    case: Any = kernels.Case("conv", "c", lambda: single_op.convolution(16, 16, 14, 3))
    (row,) = kernels.measured([case], 1, 1, FmaPeak(), Bandwidth())
    assert not row.failure
    assert row.unit == "GFLOP/s"
