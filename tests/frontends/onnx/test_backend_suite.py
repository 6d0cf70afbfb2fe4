"""ONNX's own backend tests through `clew.compile`, natively, held by a ratchet file: a case that
passed may never fail again, and one that newly passes is to be written down.

`python tools/backend_suite.py --update` writes the file anew; with starts of names, only these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import onnx
import pytest

import clew
from clew.ir.expr import Constant
from clew.ir.values import MAX_ELEMENTS
from clew.ir.visit import post_order
from clew.runtime.guard import GuardSide
from onnx_suite import ratchet
from onnx_suite.cases import DATA, Case, all_cases
from onnx_suite.running import Outcome, outcome

PARTS = 16
# Exhaustive, as all cases take minutes: of the networks, those with the operators of others and up
# to ten times their cost; of the definitions of operators that have cases of their own, all but
# every sixth; of cases with the same operators, after the first four, all but every third.
_LARGE = tuple(
    f"light/test_{name}"
    for name in ("vgg19", "zfnet512", "inception_v1", "inception_v2", "resnet50")
)
_EVERY_DEFINITION = 6
_FIRST_ALIKE, _EVERY_ALIKE = 4, 3


@cache
def quick() -> dict[str, Case]:
    """The cases that each run of the tests takes."""
    definitions = [key for key, case in all_cases().items() if case.is_expansion]
    others = {*definitions, *_LARGE}.difference(definitions[::_EVERY_DEFINITION])
    seen = Counter[frozenset[tuple[str, str]]]()
    for key, case in all_cases().items():
        if not case.is_expansion:
            further = seen[case.operators] - _FIRST_ALIKE
            seen[case.operators] += 1
            if further >= 0 and further % _EVERY_ALIKE:
                others.add(key)
    return {key: case for key, case in all_cases().items() if key not in others}


@pytest.mark.parametrize("part", range(PARTS))
def test_cases_fare_as_before_or_better(part: int) -> None:
    check(list(quick().values())[part::PARTS])


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(PARTS))
def test_further_cases_fare_as_before_or_better(part: int) -> None:
    others = [case for key, case in all_cases().items() if key not in quick()]
    check(others[part::PARTS])


def check(cases: Sequence[Case]) -> None:
    known = ratchet.read()
    same_suite = ratchet.onnx_version() == onnx.__version__
    wrong = {}
    for case in cases:
        key = case.key
        if not same_suite and key not in known:
            continue  # another onnx has other cases: those of both are held
        found = ratchet.complaint(known.get(key), outcome(case, interpreted=case.kind != "light"))
        if found is not None:
            wrong[key] = found
    assert not wrong, f"`{ratchet.UPDATE}` writes the file anew:\n{_lines(wrong)}"


@pytest.mark.skipif(
    ratchet.onnx_version() != onnx.__version__, reason="the file is about another onnx"
)
def test_the_file_names_the_suites_cases() -> None:
    assert ratchet.read().keys() == all_cases().keys()


@pytest.mark.parametrize("case", sorted(DATA.glob("light/*.onnx")), ids=lambda path: path.stem)
def test_splat_weights_stay_splat_at_import(case: Path) -> None:
    """Each weight of a light model is one ConstantOfShape: half a gigabyte, were it made."""
    nodes = post_order(clew.load(case).main)
    large = [n for n in nodes if isinstance(n, Constant) and n.data.size > MAX_ELEMENTS]
    assert large
    assert not any(any(n.data.strides) for n in large)


def test_every_case_that_does_not_pass_has_a_code_or_is_explained() -> None:
    reasons = {
        key: words.removeprefix("excluded ")
        for key, words in ratchet.read().items()
        if words.startswith("excluded")
    }
    explained = set(ratchet.EXPLAINED.values())
    assert not {
        k: r for k, r in reasons.items() if not r.startswith("error[") and r not in explained
    }
    assert explained <= set(reasons.values())


def test_what_the_file_complains_of() -> None:
    native, host = Outcome(True, "native"), Outcome(True, "host", hosts=("top_k",))
    wrong, broken = Outcome(False, reason="AssertionError: 1"), Outcome(False, reason="TypeError")
    refused = Outcome(False, reason="error[U005] no")
    explained = f"excluded {next(iter(ratchet.EXPLAINED.values()))}"
    assert ratchet.complaint("passed native", native) is None
    assert ratchet.complaint(explained, wrong) is None
    assert ratchet.complaint("excluded error[U005] no", refused) is None
    for before, now in (
        (None, native), ("passed native", host), ("passed native", refused),
        ("passed host", native), ("excluded error[U005] no", native),
        (explained, refused), (explained, broken),
    ):  # fmt: skip
        assert ratchet.complaint(before, now)


@pytest.mark.parametrize("side", GuardSide)
def test_kernels_of_the_suite_stay_in_their_buffers(side: GuardSide) -> None:
    """Every 16th passing case, another set at each side; the command's `--guard` runs all."""
    passing = [key for key, words in ratchet.read().items() if words.startswith("passed")]
    first = 0 if side is GuardSide.END else 8
    cases = [all_cases()[key] for key in passing[first::16] if key in all_cases()]
    small = [case for case in cases if case.kind != "light"]
    wrong = {c.key: o.reason for c in small if not (o := outcome(c, guard=side)).passed}
    assert not wrong


def _lines(wrong: dict[str, str]) -> str:
    return "\n".join(f"  {key}: {what}" for key, what in wrong.items())
