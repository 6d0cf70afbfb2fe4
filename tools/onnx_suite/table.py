"""The printed table: a line per operator, and sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from onnx_suite.cases import Case
from onnx_suite.running import Outcome

Operator = tuple[str, str]

# Operators whose values are no tensors, or whose results have sizes that only the data tell: these
# have no form as kernels over arrays of known shape. All others count as having one.
NO_TENSOR_FORM: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "ConcatFromSequence",
            "SequenceAt",
            "SequenceConstruct",
            "SequenceEmpty",
            "SequenceErase",
            "SequenceInsert",
            "SequenceLength",
            "SequenceMap",
            "SplitToSequence",
        ),
        "sequences",
    ),
    **dict.fromkeys(("Optional", "OptionalGetElement", "OptionalHasElement"), "optionals"),
    **dict.fromkeys(
        (
            "RegexFullMatch",
            "StringConcat",
            "StringNormalizer",
            "StringSplit",
            "ai.onnx.ml.CategoryMapper",
            "ai.onnx.ml.LabelEncoder",
        ),
        "texts",
    ),
    **dict.fromkeys(
        ("ai.onnx.ml.CastMap", "ai.onnx.ml.DictVectorizer", "ai.onnx.ml.ZipMap"), "maps"
    ),
    **dict.fromkeys(
        ("Compress", "NonMaxSuppression", "NonZero", "Unique"), "sizes that the data decide"
    ),
    "ImageDecoder": "decodes images",
}


@dataclass
class Row:
    """Sums of one operator's cases."""

    cases: int = 0
    passed: int = 0
    native: int = 0
    host: int = 0

    def add(self, result: Outcome) -> None:
        """Counts a case."""
        self.cases += 1
        self.passed += result.passed
        self.native += result.how == "native"
        self.host += result.how == "host"


def has_tensor_form(case: Case) -> bool:
    """Whether all operators of a case have a form as kernels (of texts only their moves have)."""
    if any(t.elem_type == 8 for t in _tensor_types(case)):
        return False
    return not any((f"{d}.{t}" if d else t) in NO_TENSOR_FORM for d, t in case.operators)


def _tensor_types(case: Case) -> Iterable[Any]:
    graph = case.model.graph
    return [v.type.tensor_type for v in (*graph.input, *graph.output)]


def by_label(results: Mapping[str, Outcome], cases: Mapping[str, Case]) -> dict[str, Row]:
    """Returns the sums by operator (several joined by +), expansions left out."""
    rows: dict[str, Row] = {}
    for key, result in results.items():
        case = cases[key]
        if not case.is_expansion:
            rows.setdefault(case.label, Row()).add(result)
    return rows


def native_share(results: Mapping[str, Outcome], cases: Mapping[str, Case]) -> tuple[int, int]:
    """Returns how many passing node cases with a tensor form ran natively, and their number."""
    formed = [
        r
        for key, r in results.items()
        if r.passed and cases[key].kind == "node" and has_tensor_form(cases[key])
    ]
    return sum(r.how == "native" for r in formed), len(formed)


def summary(results: Mapping[str, Outcome], cases: Mapping[str, Case]) -> list[str]:
    """Returns sums by kind, and the share of native cases."""
    lines = []
    totals: Counter[str] = Counter()
    for key, result in results.items():
        kind = cases[key].kind
        totals[kind] += 1
        totals[f"{kind} passed"] += result.passed
    for kind in dict.fromkeys(cases[key].kind for key in results):
        lines.append(f"{kind:18} {totals[f'{kind} passed']:5} of {totals[kind]:5}")
    passed = sum(r.passed for r in results.values())
    lines.append(f"{'all':18} {passed:5} of {len(results):5}")
    native, formed = native_share(results, cases)
    if formed:
        share = native / formed
        lines.append(
            f"passing node cases with a tensor form: {formed}, native {native}: {share:.1%}"
        )
    uncoded = sum(not r.is_coded for r in results.values())
    lines.append(f"failures without a code: {uncoded}")
    return lines
