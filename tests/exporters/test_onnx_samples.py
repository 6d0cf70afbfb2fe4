"""Every sample of every operator with an ONNX form, in ONNX Runtime and read back by clew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import pytest

import clew.ops  # noqa: F401
from clew.exporters.onnx import can_write, write, written_operators
from clew.frontends.onnx import load
from clew.ir.interpret import interpret
from clew.ops.registry import Op, all_ops

from .onnx_models import Case, function_of, run, same, samples_of

_OPS: Final = [op for op in all_ops() if op.is_builtin and op.name in written_operators()]

# Operators whose calls no ONNX operators can stand for, by reason.
_WITHOUT_RULE: Final = {
    "forms that passes after placement build": """
        batch_to_space compressed eliminate_column first_rows kinds nn.conv2d_by_size
        nn.conv2d_parts nn.conv2d_winograd nn.conv3d_frames nn.dense_by_rows nn.winograd_weight
        nonzero_positions room sorted_kinds space_to_batch split_image split_parts
    """,
    "sizes that depend on data": """
        best_boxes compress kept_boxes non_max_suppression nonzero size_of sized unique
    """,
    "values that are no tensors of numbers": """
        assume complex_of complex_parts image.decode lookup map.cast map.to_vector map.zip
        ngram_counts ngram_counts_by_hash one_hot_of_known onnx.layer optional.get optional.has
        optional.none optional.some rank.known rank.scalar sequence.at sequence.concat
        sequence.construct sequence.erase sequence.insert sequence.length sequence.split text.concat
        text.from_number text.full_match text.normalize text.split text.to_number
    """,
    "other random numbers": "random_key random_normal random_uniform",
    "no operators of this opset": """
        cholesky cummax cummin cumprod forest.step forest.votes inverse nn.deform_columns
        svm.coupled
    """,
    "weights of few bits": "block_steps nn.dense_codes round_blocks",
}

# What ONNX Runtime does not run, or runs with another result where the standard is silent.
_NOT_RUN: Final = {
    "no kernel": """
        acos-1 acosh-1 asin-1 atanh-1 det-2 det-7 grid_sample-8 grid_sample-9 grid_sample-12
        nn.col2im-3 nn.lrn-1 nn.max_roi_pool-0 nn.max_roi_pool-1 nn.max_roi_pool-2 nn.prelu-2
        nn.roi_align-0 nn.roi_align-1 nn.roi_align-2 nn.roi_align-3 nn.roi_align-4 nn.roi_align-5
        nn.roi_align-6 nn.roi_align-9 nn.roi_align-11 one_hot-1 scatter_elements-3
        scatter_elements_few-3 scatter_elements_many-3 scatter_nd-4 scatter_nd_few-4
        scatter_nd_many-4 tan-1
    """,
    "rows with NaN": "argmax-4 argmin-4",
    "rounding up to infinity": "cast-9",
    "only the last axes are cropped": "resize-10 resize-11",
}

# Samples whose accuracy is stated to be lower, or that ONNX Runtime computes less accurately.
_LOOSE: Final = {"nn.gelu-5": 5e-5, "nn.gelu-6": 5e-5, "dft-11": 5e-5}


def _names(text: dict[str, str]) -> list[str]:
    return [name for part in text.values() for name in part.split()]


def _cases(op: Op, constants: bool) -> list[Case]:
    made = [Case(op, n, s, constants=constants) for n, s in samples_of(op)]
    return [case for case in made if can_write(case.call) is None]


def _agree(cases: Sequence[Case], *, read_back: bool) -> None:
    inputs = {k: v for case in cases for k, v in case.inputs.items()}
    written = write(function_of(cases))
    if read_back:
        results = list(interpret(load(written.model), inputs).values())
    else:
        results = run(written, inputs)
    place = 0
    for case in cases:
        count = len(case.expected)
        tolerance = _LOOSE.get(case.name, 1e-5)
        same(results[place : place + count], case.expected, tolerance)
        place += count


@pytest.mark.parametrize("op", _OPS, ids=[op.name for op in _OPS])
@pytest.mark.parametrize("constants", [False, True], ids=["values", "constants"])
def test_samples(op: Op, constants: bool) -> None:
    left_out = _names(_NOT_RUN)
    cases = _cases(op, constants)
    if cases:
        _agree(cases, read_back=True)
    run_cases = [case for case in cases if case.name not in left_out]
    if run_cases:
        _agree(run_cases, read_back=False)


@pytest.mark.parametrize("name", _names(_NOT_RUN))
def test_what_onnx_runtime_does_not_run(name: str) -> None:
    op_name = name.rpartition("-")[0]
    op = next(op for op in _OPS if op.name == op_name)
    (case,) = (c for c in _cases(op, False) if c.name == name)
    with pytest.raises(Exception):  # noqa: B017, PT011 - ONNX Runtime has many kinds
        _agree([case], read_back=False)


def test_operators_without_a_rule_are_known() -> None:
    known = _names(_WITHOUT_RULE)
    assert sorted(known) == sorted(
        op.name for op in all_ops() if op.is_builtin and op.name not in written_operators()
    )


def test_reasons_of_refused_samples() -> None:
    """All samples with a form are written; others are refused for one of these reasons."""
    found: Counter[str] = Counter()
    for op in _OPS:
        for n, sample in samples_of(op):
            found[_kind(can_write(Case(op, n, sample).call))] += 1
    assert found == {
        "": 731,
        "no elements": 53,
        "layouts": 39,
        "bits": 4,
        "beyond the range": 2,
        "one-sided": 3,
        "align_corners": 1,
        "more than once": 1,
        "wrap": 1,
        "f64": 1,
        "bool": 1,
    }


def _kind(reason: str | None) -> str:
    if reason is None:
        return ""
    kinds = {
        "no elements": ("no elements",),
        "layouts": ("layout", "laid out", "packed", "in parts"),
        "bits": ("cast of bits",),
        "beyond the range": ("beyond the range",),
        "one-sided": ("one-sided",),
        "align_corners": ("align_corners",),
        "more than once": ("more than once",),
        "wrap": ("wrap",),
        "f64": ("f64",),
        "bool": ("bool",),
    }
    return next(kind for kind, parts in kinds.items() if any(p in reason for p in parts))
