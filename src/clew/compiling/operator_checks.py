"""`clew.check_op`: runs clew's own operator tests on one operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from clew.backends.compile_options import CompileOptions, Diagnostics, Passes
from clew.compiling.compile import build_model
from clew.loop.interpret import interpret
from clew.loop.ir import Stmt, loops
from clew.loop.lower import lower
from clew.ops.registry import Op, Sample, get_op
from clew.ops.sample_checks import (
    arrays_of,
    call_of,
    check_compute,
    check_error,
    check_reference_types,
    check_symbolic,
    fields,
    model_of,
    types_of,
    wrong_output,
)
from clew.runtime.guard import GuardSide
from clew.support.errors import ClewError, GraphTypeError, InputError
from clew.support.shown import Shown, counted
from clew.te.analysis import Kind

_LEVELS: Final = (0, 3)
_MOST_POINTS: Final = 20_000


@dataclass(frozen=True, repr=False)
class OpReport(Shown):
    """The result of the checks of an operator, one line each."""

    op: str
    kind: Kind
    lines: tuple[str, ...]

    def _about(self) -> str:
        return f"{self.op}: {counted(len(self.lines), 'check')}"

    def __str__(self) -> str:
        return "\n".join([f"{self.op} ({self.kind.name.lower()})", *(f"  {x}" for x in self.lines)])


def check_op(op: Op | str, *samples: Sample) -> OpReport:
    """Checks an operator on its declared samples and on the given ones, and returns a report.

    Each sample goes through type inference, with known and with symbolic sizes; the reference and
    `compute`, which must agree; native code at optimization levels 0 and 3, alone and between other
    operators, with inaccessible pages right before or after every buffer; and the trace, which must
    account for everything. A sample with `error` must raise that code.

    Errors: I087 (no sample without `error`), T020 (results that do not match the types), T021
    (reference and compute differ), T022 (symbolic sizes), T023 (a different error), T024 (native
    code), T025 (the trace), T026 (another exception), T027 (reads outside an operand), and the
    operator's own. The message names the sample.
    """
    op = get_op(op) if isinstance(op, str) else op
    numbered = list(enumerate((*op.samples, *samples)))
    good = [(n, s) for n, s in numbered if not s.error]
    bad = [(n, s) for n, s in numbered if s.error]
    if not good:
        raise InputError(
            "I087",
            f"{op.name} has no sample to check",
            hint="clew.check_op(op, clew.Sample(f32(4, 8), alpha=0.1)), with clew.ops.common.f32",
        )
    for number, sample in bad:
        _run(op, number, sample, check_error)
    for number, sample in good:
        _run(op, number, sample, check_reference_types)
        if op.compute and op.reference_rule and not op.host:
            _run(op, number, sample, check_compute)
        _run(op, number, sample, check_symbolic)
        if op.compute and not op.host:
            _run(op, number, sample, _check_accesses)
        _run(op, number, sample, _check_native)
    lines = [f"types      {_count(good)}, known and symbolic sizes"]
    lines += [f"           {_described(s)} -> {call_of(op, s).type}" for _, s in good]
    if op.compute and op.reference_rule and not op.host:
        lines.append(f"reference  agrees with compute on {_count(good)}")
    levels = " and ".join(map(str, _LEVELS))
    what = "host" if op.host else "native"
    lines.append(f"{what:11}agrees with the reference at opt levels {levels}, behind guard pages")
    lines.append("trace      accounts for everything")
    if bad:
        lines.append(f"errors     {', '.join(s.error for _, s in bad)} as stated")
    first = good[0][1]
    return OpReport(op.name, op.kind(types_of(first), op.bind(first.attrs)), tuple(lines))


def _count(samples: Sequence[tuple[int, Sample]]) -> str:
    return f"{len(samples)} sample{'s' if len(samples) > 1 else ''}"


def _described(sample: Sample) -> str:
    attrs = [f"{name}={value!r}" for name, value in sample.attrs.items()]
    return ", ".join([*map(str, types_of(sample)), *attrs])


def _run(op: Op, number: int, sample: Sample, check: Callable[[Op, Sample], None]) -> None:
    """Runs a check and adds the sample to any error."""
    where = f"sample {number} ({_described(sample)})"
    try:
        check(op, sample)
    except ClewError as error:
        error.message = f"{where}: {error.message}"
        raise
    except Exception as error:
        raise GraphTypeError(
            "T026",
            f"{where}: {op.name} failed: {type(error).__name__}: {error}",
            hint="its compute or reference fails for these inputs",
        ) from error


def _check_accesses(op: Op, sample: Sample) -> None:
    """Checks, element by element, that `compute` reads within its operands: native code that reads
    elsewhere would crash the process. Skips samples with many elements.

    Errors: T027.
    """
    assert op.compute is not None
    inputs = op.placeholders(types_of(sample))
    outputs = fields(op.compute(*inputs, **call_of(op, sample).attrs))
    nest = lower(op.name, inputs, outputs)
    points = sum(_points(stmt) for stmt in nest.body.stmts)
    if points > _MOST_POINTS:
        return
    try:
        interpret(nest, arrays_of(op, sample))
    except AssertionError as error:
        raise GraphTypeError(
            "T027",
            f"{op.name}: {error}",
            hint="te.select(inside, x[i], 0.0) reads only where the condition holds",
        ) from error


def _points(stmt: Stmt) -> int:
    return math.prod(loop.extent for loop in loops(stmt))


def _check_native(op: Op, sample: Sample) -> None:
    """Checks native code of a sample's call.

    Errors: T024, T025.
    """
    plain = not any(t.layout for t in types_of(sample))
    for level, side in zip(_LEVELS, GuardSide, strict=True):
        for neighbors in (False, True) if plain else (False,):
            model = model_of(op, [sample], neighbors=neighbors)
            compiled = build_model(
                model.module,
                CompileOptions(
                    threads=1,
                    opt_level=level,
                    # AlterLayout expects plain layouts.
                    passes=Passes(disabled=() if plain else ("AlterLayout",)),
                    cache=False,
                    diagnostics=Diagnostics(guard=side),
                ),
            )
            with np.errstate(all="ignore"):
                what = wrong_output(model, compiled.run(model.inputs))
            if what:
                raise GraphTypeError(
                    "T024", f"{op.name} at level {level} differs from its reference\n{what}"
                )
            gaps = compiled.trace.check()
            if gaps:
                lost = ", ".join(map(str, gaps))
                raise GraphTypeError("T025", f"{op.name} at level {level}: the trace lost {lost}")
