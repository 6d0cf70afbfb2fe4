"""ONNX's own node tests: which ones import and interpret correctly, held by a list that may only
grow.

`python tests/frontends/onnx/test_backend_nodes.py` writes the list anew and prints what fails and
why.
Inputs that decide shapes (axes, counts) are given as constants where the operator asks for them.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from clew.frontends.onnx import load
from clew.ir.interpret import interpret
from clew.support.errors import ClewError

LIST = Path(__file__).with_name("backend_nodes.txt")
LATE = ("U002", "U101", "U102", "U005")
ARRAY = np.ndarray[Any, Any]


@cache
def cases() -> dict[str, Any]:
    """Returns the cases by name. Expansions of operators that are tested themselves are left
    out.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests  # noqa: PLC0415 - generates the cases

        found = {case.name: case for case in load_model_tests(kind="node")}
    return {
        name: case
        for name, case in found.items()
        if not ("_expanded" in name and name.partition("_expanded")[0] in found)
    }


def array(value: Any) -> ARRAY:
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value)


def imported(case: Any) -> Any:
    try:
        return load(case.model)
    except ClewError as error:
        if error.code not in LATE:
            raise
    named = zip(case.model.graph.input, case.data_sets[0][0], strict=False)
    small = {value.name: array(data) for value, data in named if array(data).size <= 64}
    constants = {name: data for name, data in small.items() if data.ndim <= 1}
    return load(case.model, constants=constants)


def run(case: Any) -> None:
    """Raises whatever goes wrong with a case."""
    module = imported(case)
    graph = case.model.graph
    for inputs, expected in case.data_sets:
        feeds = {
            value.name: array(data)
            for value, data in zip(graph.input, inputs, strict=False)
            if value.name in module.input_names
        }
        found = interpret(module, feeds)
        for output, data in zip(graph.output, expected, strict=True):
            agrees(found[output.name], array(data), case)


def agrees(found: ARRAY, want: ARRAY, case: Any) -> None:
    assert found.dtype == want.dtype
    assert found.shape == want.shape
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(found, want)
        return
    # As in ONNX's own runner: bfloat16 has 7 bits after the leading one.
    rtol = max(case.rtol, 2**-6) if want.dtype.name == "bfloat16" else case.rtol
    wide = [np.asarray(a, np.float64) for a in (found, want)]
    np.testing.assert_allclose(*wide, rtol=rtol, atol=max(case.atol, 1e-7))


def listed() -> list[str]:
    return LIST.read_text().split()


@pytest.mark.parametrize("part", range(8))
def test_listed_cases_pass(part: int) -> None:
    missing = [name for name in listed() if name not in cases()]
    assert not missing
    failed = {}
    for name in listed()[part::8]:
        try:
            run(cases()[name])
        except Exception as error:  # any error is the case's result
            failed[name] = error
    assert not failed


def main() -> None:
    """Writes the list of cases that pass, and prints the others."""
    passed, failed = [], []
    for name, case in cases().items():
        try:
            run(case)
            passed.append(name)
        except Exception as error:
            text = " ".join(str(error).split())
            failed.append(f"{name}: {type(error).__name__} {text[:150]}")
    LIST.write_text("\n".join(sorted(passed)) + "\n")
    print(f"{len(passed)} of {len(cases())} pass")
    print("\n".join(failed), file=sys.stderr)


if __name__ == "__main__":
    main()
