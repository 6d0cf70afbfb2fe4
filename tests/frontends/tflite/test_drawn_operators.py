"""Drawn operators in clew and in LiteRT, held by a ratchet file.

`python tools/tflite_operators.py --update` writes the file anew.
"""

from __future__ import annotations

from collections import Counter

import pytest

import tflite_operators
from clew.frontends.tflite.file.options import OPERATORS
from clew.frontends.tflite.registry import CONVERTERS
from tflite_suite import ratchet
from tflite_suite.cases import FAMILIES

_GROUPS = 4
_KNOWN = ratchet.read()
_BY_CPU = ("ELU", "POW")  # last bits of NumPy's functions differ between CPUs


def _check(op: str, numbers: range, *, compiled: bool = False) -> None:
    for number, result in ratchet.outcomes(op, numbers, compiled=compiled).items():
        allowed = set(_KNOWN[op]) | ({"close"} if compiled or op in _BY_CPU else set())
        assert result.kind in allowed, f"{op}/{number}: {result.kind} {result.why}"


@pytest.mark.parametrize("group", range(_GROUPS))
def test_cases_fare_as_before(group: int) -> None:
    for n, op in enumerate(sorted(FAMILIES)):
        if n % _GROUPS == group:
            _check(op, range(n % 7, n % 7 + 1))


@pytest.mark.exhaustive
@pytest.mark.parametrize("op", sorted(FAMILIES))
def test_all_cases_fare_as_before(op: str) -> None:
    same = ("optimized", "close") if op in _BY_CPU else ("optimized",)
    found = ratchet.counts(op, range(ratchet.CASES))
    assert _merged(found, same) == _merged(_KNOWN[op], same)


def _merged(found: Counter[str], same: tuple[str, ...]) -> Counter[str]:
    """Returns counts in which some kinds count as equal, such as results of LiteRT's optimized
    kernels, some of which are not the same in each run.
    """
    kept = Counter({kind: count for kind, count in found.items() if kind not in same})
    return kept + Counter(equal=sum(found[kind] for kind in same))


@pytest.mark.exhaustive
@pytest.mark.parametrize("op", sorted(FAMILIES))
def test_native_cases(op: str) -> None:
    _check(op, range(8), compiled=True)


def test_nothing_is_wrong() -> None:
    assert not any(found["wrong"] for found in _KNOWN.values())
    assert set(_KNOWN) == set(FAMILIES)


def test_each_converter_has_cases() -> None:
    """Operators of several layers have tests of their own."""
    several = {op for op in CONVERTERS if op.startswith("HASHTABLE_") or op == "HASHTABLE"}
    cells = {*tflite_operators.CELLS, *_CONTROL}
    lacking = {op for op in CONVERTERS if op in OPERATORS} - set(FAMILIES) - several - cells
    assert lacking - {"HASHTABLE_LOOKUP", "DENSIFY"} == set()


_CONTROL = (
    "IF", "WHILE", "CALL", "CALL_ONCE", "STABLEHLO_COMPOSITE", "VAR_HANDLE", "READ_VARIABLE",
    "ASSIGN_VARIABLE",
)  # fmt: skip


def test_the_page_is_up_to_date() -> None:
    assert tflite_operators.PAGE.read_text() == tflite_operators.page(_KNOWN), ratchet.UPDATE
