"""Compiles and runs one case, and compares as ONNX's own runner does."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import clew
from clew.backends.cpu.deferred_kernel import DeferredKernel
from clew.ir.interpret import interpret
from clew.runtime.guard import GuardSide
from clew.runtime.program import RunHost, RunSegment
from clew.support.errors import ClewError
from clew.tap.capture import Unkept
from onnx_suite.cases import Case

_REASON_CHARACTERS: Final = 160


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case.

    `how` describes how a passing case ran: `native` (kernels, or nothing left to compute), or
    `host` if a host operator took part. `reason` is the reason of a failure.
    """

    passed: bool
    how: str = ""
    reason: str = ""
    hosts: tuple[str, ...] = ()
    kernels: int = 0

    @property
    def text(self) -> str:
        """The ratchet file's words for it."""
        return f"passed {self.how}" if self.passed else f"excluded {self.reason}"

    @property
    def is_coded(self) -> bool:
        """Whether it passed, or clew refused it with an error that has a code."""
        return self.passed or self.reason.startswith("error[")


def outcome(
    case: Case, *, guard: bool | GuardSide = False, interpreted: bool = False, threads: int = 1
) -> Outcome:
    """Returns the outcome of a case. With `interpreted`, the graph evaluated in NumPy must agree
    too.
    """
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return run(case, guard=guard, interpreted=interpreted, threads=threads)
    except Exception as error:  # any error is the case's result
        return Outcome(False, reason=reason_of(error))


def reason_of(error: BaseException) -> str:
    """Returns an error in one line that is the same on each machine."""
    if isinstance(error, ClewError):
        layer = f" (layer {error.layer})" if error.layer else ""
        text = f"error[{error.code}] {error.message}{layer}"
    else:
        text = f"{type(error).__name__}: {error}"
    line = " ".join(text.split())
    return line if len(line) <= _REASON_CHARACTERS else line[: _REASON_CHARACTERS - 1] + "…"


def run(
    case: Case, *, guard: bool | GuardSide = False, interpreted: bool = False, threads: int = 1
) -> Outcome:
    """Returns how a case ran; raises its error."""
    # Whole builds are not cached: the test is that the passes produce right ones.
    compiled = clew.compile(
        case.source,
        threads=threads,
        diagnostics=clew.Diagnostics(guard=guard),
        passes=clew.Passes(instruments=[Unkept()]),
    )
    hosts: list[str] = []
    kernels = 0
    for inputs, expected in case.data_sets():
        feeds = {name: inputs[name] for name in compiled.input_names if name in inputs}
        found = compiled.run(feeds)
        _compare(found, expected, case)
        for program in compiled.served_for(compiled.checked(list(feeds.values()))).program.walk():
            between = [i for i in program.instructions if isinstance(i, RunHost)]
            # A kernel of data-dependent sizes is compiled during the run; it counts as native, too.
            hosts += [i.label for i in between if not isinstance(i.function, DeferredKernel)]
            kernels += sum(isinstance(i, RunSegment) for i in program.instructions)
            kernels += sum(isinstance(i.function, DeferredKernel) for i in between)
        if interpreted:
            # numpy rounds each step to f16, where kernels sum in f32.
            _compare(_interpreted(compiled, feeds), expected, case, half=2**-8)
    used = tuple(dict.fromkeys(hosts))
    return Outcome(True, "host" if used else "native", hosts=used, kernels=kernels)


def _interpreted(compiled: Any, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
    module = compiled.module
    found = interpret(module, {name: feeds[name] for name in module.input_names})
    return {name: _as_given(value) for name, value in found.items()}


def _as_given(value: Any) -> Any:
    """Returns texts as a compiled model gives them."""
    if isinstance(value, (list, tuple)):
        return [_as_given(v) for v in value]
    return value.astype(object) if getattr(value, "dtype", np.dtype(bool)).kind == "T" else value


def _compare(
    found: Mapping[str, Any], expected: Sequence[Any], case: Case, half: float = 0.0
) -> None:
    outputs = [value.name for value in case.model.graph.output]
    assert len(outputs) == len(expected), f"{len(outputs)} outputs, expected {len(expected)}"
    for name, want in zip(outputs, expected, strict=True):
        rtol = max(case.rtol, half if getattr(want, "dtype", None) == np.float16 else 0.0)
        agrees(found[name], want, rtol, case.atol, name)


def agrees(found: Any, want: Any, rtol: float, atol: float, what: str) -> None:
    """Asserts the conditions of ONNX's runner for an output, and that no tensor is returned for
    None.
    """
    if want is None:
        assert found is None, f"{what}: a value, expected none"
        return
    assert found is not None, f"{what}: none, expected a value"
    if isinstance(want, list):
        assert isinstance(found, (list, tuple)), f"{what}: no sequence"
        assert len(found) == len(want), f"{what}: {len(found)} elements, expected {len(want)}"
        for n, (one, other) in enumerate(zip(found, want, strict=True)):
            agrees(one, other, rtol, atol, f"{what}[{n}]")
        return
    assert isinstance(found, (np.ndarray, np.generic)), f"{what}: a {type(found).__name__}"
    assert found.shape == want.shape, f"{what}: shape {found.shape}, expected {want.shape}"
    if want.dtype == object or want.dtype.kind in "SUT":
        assert found.dtype == object, f"{what}: dtype {found.dtype}, expected texts"
        assert found.tolist() == want.tolist(), f"{what}: texts differ"
        return
    assert found.dtype == want.dtype, f"{what}: dtype {found.dtype}, expected {want.dtype}"
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(found, want, err_msg=what)
        return
    # As in ONNX's own runner: bfloat16 has 7 bits after the leading one. numpy cannot promote
    # dtypes that are not its own.
    if want.dtype.name == "bfloat16":
        rtol = max(rtol, 2**-6)
    if want.dtype.kind not in "fc":
        found, want = found.astype(np.float64), want.astype(np.float64)
    np.testing.assert_allclose(found, want, rtol=rtol, atol=atol, err_msg=what)
