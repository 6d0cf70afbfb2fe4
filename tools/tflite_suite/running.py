"""Runs a case in LiteRT and in clew, and says how the results compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from ai_edge_litert.interpreter import OpResolverType
from numpy.typing import NDArray

import clew
from clew.frontends.tflite.loader import load
from clew.ir.interpret import interpret
from clew.support.errors import ClewError
from litert_runs import OPTIMIZED, REFERENCE, Refused, interpreter, outputs
from tflite_suite.cases import Case

Array = NDArray[Any]
_FIRST: Final = 160


@dataclass(frozen=True)
class Outcome:
    """`kind` is `equal`, `close` (floats within the tolerance), `optimized` (equal or close to
    LiteRT's optimized kernels, but not to its reference kernels), `step` (codes within one), or why
    there is nothing to compare: `refused` by LiteRT, `unsupported` by clew; else `wrong`.
    """

    kind: str
    why: str = ""


def outcome(case: Case, *, compiled: bool = False, kernels: OpResolverType = REFERENCE) -> Outcome:
    """Returns the outcome of a case, with native kernels if `compiled`, else in NumPy."""
    feed = case.feed()
    try:
        data, expected = _expected(case, feed, kernels)
    except Refused as error:
        return Outcome("refused", str(error)[-_FIRST:])
    try:
        with np.errstate(all="ignore"):
            module = load(data)
            run = clew.compile(module, threads=1).run if compiled else _interpreter(module)
            found = list(run(feed).values())
    except ClewError as error:
        kind = "unsupported" if error.code[0] == "U" else "wrong"
        return Outcome(kind, f"{error.code} {error.message}"[:_FIRST])
    except Exception as error:
        return Outcome("wrong", f"{type(error).__name__}: {error}"[:_FIRST])
    if case.random:
        return _alike(found, expected)
    first = compared(case, found, expected)
    if first.kind in ("equal", "close") or kernels is OPTIMIZED:
        return first
    # Where LiteRT's kernels disagree, clew may side with the optimized ones.
    with suppress(Refused):
        second = compared(case, found, outputs(interpreter(data, OPTIMIZED), feed))
        if second.kind in ("equal", "close"):
            return Outcome("optimized", first.why)
    return first


def _expected(
    case: Case, feed: Mapping[str, Array], kernels: OpResolverType
) -> tuple[bytes, list[Array]]:
    """Returns the file in the newest version of the operator that LiteRT has, and its results."""
    kinds = dict.fromkeys((kernels, OPTIMIZED))  # some operators have no reference kernel
    tries = [(kind, version) for kind in kinds for version in range(case.version, 0, -1)]
    for n, (kind, version) in enumerate(tries):
        data = replace(case, version=version).file()
        try:
            return data, outputs(interpreter(data, kind), feed)
        except Refused as error:
            if "Registration failed" not in str(error) or n == len(tries) - 1:
                raise
    raise AssertionError


def _interpreter(module: Any) -> Any:
    return lambda feed: interpret(module, feed)


def _alike(found: Sequence[Array], expected: Sequence[Array]) -> Outcome:
    same = all(
        a.shape == b.shape and a.dtype == b.dtype for a, b in zip(found, expected, strict=True)
    )
    return Outcome("close" if same else "wrong", "random numbers")


def compared(case: Case, found: Sequence[Array], expected: Sequence[Array]) -> Outcome:
    """Compares results with those that are expected."""
    if case.counted is not None:  # LiteRT leaves what follows as it is
        count = int(expected[case.counted].reshape(-1)[0])
        found, expected = (
            [each[:, :count] if each.ndim > 1 else each for each in several]
            for several in (found, expected)
        )
    worst = "equal"
    for n, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if theirs.dtype == object:
            ours = np.array([str(v).encode() for v in ours.reshape(-1)], object)
            theirs = theirs.reshape(-1)
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return Outcome(
                "wrong", f"result {n} is {ours.dtype}{ours.shape}, not {theirs.dtype}{theirs.shape}"
            )
        kind, why = _difference(case, n, ours, theirs)
        if kind == "wrong":
            return Outcome(kind, f"result {n}: {why}")
        worst = max(worst, kind, key=("equal", "close", "step").index)
    return Outcome(worst)


def _difference(case: Case, n: int, ours: Array, theirs: Array) -> tuple[str, str]:
    if np.array_equal(ours, theirs):
        return "equal", ""
    if ours.dtype.kind in "fc":
        finite = np.isfinite(theirs)
        if not np.array_equal(np.isnan(ours), np.isnan(theirs)):
            return "wrong", "NaN at other places"
        size = max(float(np.abs(theirs[finite]).max(initial=0)), 1e-3)
        with np.errstate(invalid="ignore"):
            error = np.abs(ours - theirs)[finite].max(initial=0) / size
        if (
            np.array_equal(ours[~finite], theirs[~finite], equal_nan=True)
            and error < case.tolerance
        ):
            return "close", ""
        return "wrong", f"an error of {error:.2g}"
    if ours.dtype.kind in "iu":
        apart = np.abs(ours.astype(np.int64) - theirs.astype(np.int64))
        many = f"{(apart > 0).sum()} of {apart.size} differ by up to {apart.max()}"
        return ("step" if case.results[n][1].scale and apart.max() == 1 else "wrong"), many
    return "wrong", f"{(ours != theirs).sum()} of {ours.size} differ"
