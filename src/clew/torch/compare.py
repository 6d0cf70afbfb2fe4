"""Compares a compiled model with its module in eager: which module's result is the first to differ.

Forward hooks record the results of each module in eager. The trace says which values of the
compiled program correspond to them, and taps read these values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch.utils import _pytree as pytree

from clew.api.compiled_model import CompiledModel
from clew.bisection.numbers import whole_tolerance
from clew.build.inputs import form_of
from clew.compare.precision import Deviation
from clew.frontends.torch.dtypes import to_numpy as array_of
from clew.passes.precision.convert_precision import ConvertPrecision
from clew.support.difference import relative_error, relative_length
from clew.support.errors import InputError
from clew.support.shown import Shown, counted
from clew.support.tables import as_text, table
from clew.tap.read import refusals
from clew.tap.where import Refusal, State
from clew.torch.eager import EagerRun, ModuleCall, kept, same_buffers
from clew.torch.programs import last
from clew.torch.results import ResultLayers

WHOLE: Final = "(the model)"
BUFFER: Final = "buffer"
_NO_LAYER: Final = "clew runs none of its calls"
_NO_RESULT: Final = "no result of its layers is known to be its own"
_INSIDE: Final = "not called outside of branches and loops"
_PASSES_ON: Final = "it returns its argument"
Key = tuple[str, int]


@dataclass(frozen=True)
class ModuleRow:
    """A call of a module: its path (`block@1` for the second call of `block`), its class, and the
    layers that give its results.

    `error` is the deviation of the compiled model's results from those in eager. It is None if no
    result could be compared; `reason` then says why. For values that are not in memory, `refusal`
    has the reason in full.
    """

    module: str
    kind: str
    layers: tuple[str, ...]
    error: Deviation | None = None
    reason: str = ""
    refusal: Refusal | None = None


@dataclass(frozen=True, repr=False)
class EagerReport(Shown):
    """The calls of modules in the order in which they ended in eager; for models with branches or
    loops, the modules that are not called outside of them; then the buffers that the model changes,
    and the whole model.

    Differences above `tolerance` are more than rounding. `reference` has eager's values by
    layer and output, for `clew.bisect(graph, inputs, reference=report.reference)`.
    """

    rows: tuple[ModuleRow, ...]
    tolerance: float
    reference: Mapping[str, Any] = field(default_factory=dict)

    @property
    def compared(self) -> tuple[ModuleRow, ...]:
        """The rows with an error."""
        return tuple(row for row in self.rows if row.error is not None)

    @property
    def first(self) -> ModuleRow | None:
        """The first row whose error is above the tolerance; None if all modules agree."""
        return next((r for r in self.compared if r.error.worst > self.tolerance), None)  # type: ignore[union-attr]

    def _about(self) -> str:
        of = f"{len(self.compared)} of {counted(len(self.rows), 'call')} of modules compared"
        return f"{of}: {self._verdict()}"

    def _verdict(self) -> str:
        first = self.first
        if first is None:
            return f"all agree within {self.tolerance:g}"
        assert first.error is not None
        return f"the first to differ is {first.module} ({first.kind}), by {first.error.worst:.2g}"

    def __str__(self) -> str:
        made = table("module", "class", "layers", "error", "rms", "", right=("error", "rms"))
        for row in self.rows:
            error = row.error
            numbers = ("", "") if error is None else (_number(error.worst), _number(error.rms))
            layers = "" if row.layers == (row.module,) else ", ".join(row.layers)
            made.add_row(row.module, row.kind, layers, *numbers, row.reason)
        inside = sum(r.error is None and _is_fused(r.refusal) for r in self.rows)
        more = f"\nforce=True also compares {counted(inside, 'call')} inside kernels"
        return f"{as_text(made)}\n{self._about()}{more if inside else ''}"


def _number(value: float) -> str:
    return f"{value:.1e}" if value else "0"


def compare(
    compiled: CompiledModel | Callable[..., Any],
    model: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    tolerance: float | None = None,
    force: bool = False,
) -> EagerReport:
    """Returns a comparison of a compiled model with its module in eager, module by module.

    `compiled` is the compiled form of `clew.from_torch(model, ...)`, or the function that
    `torch.compile(model, backend="clew")` returned. Values that stay inside a kernel are left out,
    unless `force` is set, which cuts their kernels for this comparison. Errors are relative to the
    largest value of a result. Neither run changes the arguments or the module.

    Errors: I416 (clew compiled nothing that ran), I045 (no trace), and those of a run.
    """
    kwargs = dict(kwargs or {})
    eager = EagerRun(model, args, kwargs)
    if isinstance(compiled, CompiledModel):
        ran = _run_of(compiled, model, args, kwargs)
    else:
        ran = _runs_of(compiled, model, args, kwargs)
    parts = [_Part(run, eager, force=force) for run in ran.runs]
    rows = [_row(call, parts) for call in eager.calls[:-1]]
    if any(part.has_inner for part in parts):
        rows += [ModuleRow(name, kind, (), None, _INSIDE) for name, kind in eager.unseen.items()]
    rows += [
        ModuleRow(name, BUFFER, (), _deviation(value, array_of(eager.buffers[name])))
        for name, (_, value) in ran.states.items()
    ]
    wanted = pytree.tree_leaves(eager.result)
    rows.append(_whole(eager.calls[-1], ran.result, wanted))
    reference = {name: value for part in parts for name, value in part.wanted.items()}
    reference |= {out: array_of(eager.buffers[n]) for n, (out, _) in ran.states.items()}
    reference |= {
        name: array_of(value)
        for name, value in zip(ran.names, wanted, strict=False)
        if name and isinstance(value, torch.Tensor)
    }
    limit = max(map(_tolerance, ran.runs), default=0.0) if tolerance is None else tolerance
    return EagerReport(tuple(rows), limit, reference)


# --- runs of the compiled model ---


@dataclass(frozen=True)
class _Run:
    """A compiled model, and the inputs of a run. `several`: whether the whole call runs more than
    one program.
    """

    model: CompiledModel
    feed: Mapping[str, Any]
    several: bool = False


@dataclass(frozen=True)
class _Ran:
    """The runs in a call, the leaves of its result, and for each leaf the name of its output ("" if
    it is none). `states` has, for each buffer that changes, the output that is its new value, and
    this value.
    """

    runs: Sequence[_Run]
    result: Sequence[Any]
    names: Sequence[str] = ()
    states: Mapping[str, tuple[str, Any]] = field(default_factory=dict)


def _run_of(
    compiled: CompiledModel, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> _Ran:
    """Returns a run at the module's arguments, from the current values of its buffers."""
    checked = compiled.checked(args, kwargs)
    feed = dict(zip(compiled.input_names, checked, strict=True))
    buffers = dict(model.named_buffers())
    states = {i.name: i.fed_by for i in compiled.inputs if i.fed_by and i.name in buffers}
    feed |= {name: array_of(buffers[name].clone()) for name in states}
    outputs = compiled.run(feed)
    form = form_of(compiled.module)

    def leaves(values: list[Any]) -> list[Any]:
        """Returns the leaves of the result for these values of the outputs."""
        found: list[Any] = pytree.tree_leaves(values if form is None else form.results(values))
        return found

    names = leaves([_Name(name) for name in outputs])
    return _Ran(
        [_Run(compiled, feed)],
        leaves(list(outputs.values())),
        [name.text if isinstance(name, _Name) else "" for name in names],
        {name: (output, outputs[output]) for name, output in states.items()},
    )


def _runs_of(
    function: Callable[..., Any],
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> _Ran:
    """Returns the runs of programs in a call of a function of `torch.compile`.

    Errors: I416.
    """

    def call() -> Any:
        own_args, own_kwargs = kept((tuple(args), dict(kwargs)))
        with torch.no_grad(), same_buffers(model):
            return kept(function(*own_args, **own_kwargs))

    call()  # compiles it, if this is the first call at these sizes
    with ExitStack() as stack:
        records = [stack.enter_context(program.recorded()) for program in last()]
        result = call()
    ran = [record for record in records if record]
    if not ran:
        raise InputError(
            "I416",
            "the function runs no program of clew",
            hint='compile it with torch.compile(model, backend="clew"), and compile nothing after',
        )
    runs = [
        _Run(model, dict(zip(model.input_names, given, strict=True)), len(ran) > 1)
        for (model, given), *more in ran
        if not more  # if a program ran several times, its layers have several values
    ]
    return _Ran(runs, pytree.tree_leaves(result))


# --- values ---


class _Part:
    """A run of a compiled model, beside the run in eager: `wanted` has eager's values, and `found`
    those of the compiled model, by name (`lstm:1` for a layer's second result).
    """

    def __init__(self, run: _Run, eager: EagerRun, *, force: bool) -> None:
        self.wanted: dict[str, Any] = {}
        self.names: dict[str, list[str]] = {}
        layers = ResultLayers(run.model.trace)
        self.has_inner = layers.has_inner
        self._own = own = layers.names(eager)
        self._modules: set[str | None] = {place.module for place in run.model.trace.places.values()}
        for call in eager.calls[:-1]:
            # Each graph counts the calls of a module separately.
            if run.several and any(eager.times[n.partition("@")[0]] > 1 for n in call.calls):
                continue
            results = layers.of(call, own)
            names = {n: _label(made.layer, made.output) for n, made in results.items()}
            self.names[call.name] = list(names.values())
            self.wanted |= {name: array_of(call.results[n]) for n, name in names.items()}
        self.refused = {n: r for n, r in refusals(run.model).items() if n in self.wanted and r}
        lost = [n for n, r in self.refused.items() if not force or r.state is not State.FUSED]
        asked = [n for n in self.wanted if n not in lost]
        self.found = dict(run.model.tap(asked, run.feed, force=force)) if asked else {}

    def has(self, call: ModuleCall) -> bool:
        """Whether the model has layers of a call of a module."""
        return not self._modules.isdisjoint(self._own.get(n, n) for n in call.calls)


def _row(call: ModuleCall, parts: Sequence[_Part]) -> ModuleRow:
    """Returns the row of a call of a module."""
    for part in parts:
        names = part.names.get(call.name)
        if not names:
            continue
        known = [n for n in names if n in part.found]
        error = _worst([_deviation(part.found[n], part.wanted[n]) for n in known])
        refusal = None if known else part.refused[names[0]]
        return ModuleRow(call.name, call.kind, tuple(names), error, _brief(refusal), refusal)
    if call.passes_on:
        reason = _PASSES_ON
    else:
        reason = _NO_RESULT if any(p.has(call) for p in parts) else _NO_LAYER
    return ModuleRow(call.name, call.kind, (), None, reason)


def _whole(call: ModuleCall, found: Sequence[Any], wanted: Sequence[Any]) -> ModuleRow:
    """Returns the row of the whole model, with the leaves of both results."""
    error, reason = None, "it returns no tensor"
    if len(found) != len(wanted):
        reason = "eager returns something else"
    elif any(isinstance(value, torch.Tensor) for value in wanted):
        pairs = zip(found, wanted, strict=True)
        errors = [_deviation(a, array_of(b)) for a, b in pairs if isinstance(b, torch.Tensor)]
        error, reason = _worst(errors), ""
    return ModuleRow(WHOLE, call.kind, (), error, reason)


def _is_fused(refusal: Refusal | None) -> bool:
    return refusal is not None and refusal.state is State.FUSED


def _brief(refusal: Refusal | None) -> str:
    if refusal is None:
        return ""
    if _is_fused(refusal):
        return f"inside {refusal.kernel}"
    return f"not computed since {refusal.pass_name}" if refusal.pass_name else refusal.reason


def _label(layer: str, output: int) -> str:
    return f"{layer}:{output}" if output else layer


def _deviation(value: Any, wanted: Any) -> Deviation:
    array = array_of(value) if isinstance(value, torch.Tensor) else np.asarray(value)
    worst = relative_error(array, wanted)
    return Deviation(worst, relative_length(array, wanted) if np.isfinite(worst) else worst)


def _worst(errors: Sequence[Deviation]) -> Deviation | None:
    if not errors:
        return None
    return Deviation(max(e.worst for e in errors), max(e.rms for e in errors))


def _tolerance(run: _Run) -> float:
    narrowed = [p.dtype for p in run.model.options.passes if isinstance(p, ConvertPrecision)]
    return whole_tolerance(run.model.build.stages[0].module, narrowed)


@dataclass(frozen=True)
class _Name:
    """The name of an output, in place of its value in a result."""

    text: str

    def item(self) -> _Name:
        """Returns itself: a number in a result is an output, too."""
        return self
