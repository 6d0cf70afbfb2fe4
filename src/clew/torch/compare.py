"""Compares a compiled model with its module in eager: which module's result is the first to differ.

Forward hooks record the results of each module in eager. The trace says which values of the
compiled program are the same: taps read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch.utils import _pytree as pytree

from clew.bisection.numbers import whole_tolerance
from clew.build.inputs import form_of
from clew.compiled import CompiledModel
from clew.frontends.torch.dtypes import to_numpy as array_of
from clew.passes.precision.convert_precision import ConvertPrecision
from clew.precision import Deviation
from clew.support.difference import relative_error, relative_length
from clew.support.errors import InputError
from clew.support.shown import Shown, counted
from clew.support.tables import as_text, table
from clew.tap.read import refusals
from clew.tap.where import Refusal, State
from clew.torch.eager import EagerRun, ModuleCall, kept, same_buffers
from clew.torch.programs import TorchProgram, last
from clew.torch.results import ResultLayers

WHOLE: Final = "(the model)"
BUFFER: Final = "buffer"
_NO_LAYER: Final = "clew runs none of its calls"
_NO_RESULT: Final = "no result of its layers is known to be its own"
_PASSES_ON: Final = "it returns its argument"
Key = tuple[str, int]


@dataclass(frozen=True)
class ModuleRow:
    """A call of a module: its path (`block@1` for the second call of `block`), its class, and the
    layers that give its results.

    `error` is the deviation of the compiled model's results from those in eager. It is None if no
    result could be compared; `reason` then says why, and `refusal` in full for values that are not
    in memory.
    """

    module: str
    kind: str
    layers: tuple[str, ...]
    error: Deviation | None = None
    reason: str = ""
    refusal: Refusal | None = None


@dataclass(frozen=True, repr=False)
class EagerReport(Shown):
    """The calls of modules in the order in which they ended in eager, then the buffers that the
    model changes, and the whole model.

    Differences above `tolerance` are more than rounding. `reference` has the values of eager by
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
            worst, rms = ("", "") if row.error is None else map(_number, _numbers(row.error))
            layers = "" if row.layers == (row.module,) else ", ".join(row.layers)
            made.add_row(row.module, row.kind, layers, worst, rms, row.reason)
        return f"{as_text(made)}\n{self._about()}"


def _numbers(error: Deviation) -> tuple[float, float]:
    return error.worst, error.rms


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

    `compiled` is made of `clew.from_torch(model, ...)`, or is what `torch.compile(model,
    backend="clew")` returned. Values that stay inside a kernel are left out, unless `force` is set;
    then their kernels are cut for this comparison. Errors are relative to the largest value of a
    result. Neither run changes the arguments or the module.

    Errors: I416 (clew compiled nothing that ran), I045 (`trace=False`), and those of a run.
    """
    kwargs = dict(kwargs or {})
    eager = EagerRun(model, args, kwargs)
    wanted = pytree.tree_leaves(eager.result)
    reference: dict[str, Any] = {}
    states: dict[str, Any] = {}
    if isinstance(compiled, CompiledModel):
        run = _run_of(compiled, model, args, kwargs)
        outputs = compiled.run(run.feed)
        states = {i.name: outputs[i.fed_by] for i in compiled.inputs if i.name in eager.buffers}
        reference |= {
            i.fed_by: array_of(eager.buffers[i.name]) for i in compiled.inputs if i.name in states
        }
        runs, result = [run], pytree.tree_leaves(_in_form(compiled, list(outputs.values())))
        names = pytree.tree_leaves(_in_form(compiled, [_Name(name) for name in outputs]))
        for name, value in zip(names, wanted, strict=True):
            if isinstance(name, _Name) and isinstance(value, torch.Tensor):
                reference[name.text] = array_of(value)
    else:
        runs, result = _runs_of(compiled, model, args, kwargs)
    parts = [_Part(run, eager, force=force) for run in runs]
    for part in parts:
        reference |= part.wanted
    rows = [_row(call, parts) for call in eager.calls[:-1]]
    rows += [
        ModuleRow(name, BUFFER, (), _deviation(value, array_of(eager.buffers[name])))
        for name, value in states.items()
    ]
    whole = [_deviation(a, array_of(b)) for a, b in zip(result, wanted, strict=True) if _is(b)]
    kind = eager.calls[-1].kind
    rows.append(ModuleRow(WHOLE, kind, (), _worst(whole), "" if whole else "it returns no tensor"))
    limit = max(map(_tolerance, runs)) if tolerance is None else tolerance
    return EagerReport(tuple(rows), limit, reference)


# --- runs of the compiled model ---


@dataclass(frozen=True)
class _Run:
    """A compiled model, and the inputs of a run. `several` says that the run of the whole has more
    than one program.
    """

    model: CompiledModel
    feed: Mapping[str, Any]
    several: bool = False


def _run_of(
    compiled: CompiledModel, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> _Run:
    """Returns a run at the module's arguments, from the current values of its buffers."""
    checked = compiled.checked(args, kwargs)
    buffers = dict(model.named_buffers())
    feed = dict(zip(compiled.input_names, checked, strict=True))
    feed |= {
        i.name: array_of(buffers[i.name].clone())
        for i in compiled.inputs
        if i.initial is not None and i.name in buffers
    }
    return _Run(compiled, feed)


class _Recorder:
    """A compiled model in a program of `torch.compile`, whose inputs are recorded."""

    def __init__(self, model: CompiledModel) -> None:
        self.model = model
        self.inputs = model.inputs
        self.given: list[list[Any]] = []

    def run_checked(self, checked: Sequence[Any]) -> list[Any]:
        """Returns the outputs."""
        self.given.append([np.array(a) for a in checked])
        return self.model.run_checked(checked)


def _runs_of(
    function: Callable[..., Any],
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[list[_Run], list[Any]]:
    """Returns the runs of programs in a call of a function of `torch.compile`, and its results.

    Errors: I416.
    """

    def call() -> list[Any]:
        own_args, own_kwargs = kept((tuple(args), dict(kwargs)))
        with torch.no_grad(), same_buffers(model):
            return pytree.tree_leaves(kept(function(*own_args, **own_kwargs)))

    call()  # compiles it, if this is the first call at these sizes
    with _recorded(last()) as recorders:
        result = call()
    ran = [r for r in recorders if r.given]
    if not ran:
        raise InputError(
            "I416",
            "the function runs no program of clew",
            hint='compile it with torch.compile(model, backend="clew"), and call it last',
        )
    return [
        _Run(r.model, dict(zip(r.model.input_names, r.given[0], strict=True)), len(ran) > 1)
        for r in ran
        if len(r.given) == 1
    ], result


@contextmanager
def _recorded(programs: Sequence[TorchProgram]) -> Iterator[list[_Recorder]]:
    """Records the inputs of programs."""
    held = [(program, program.compiled) for program in programs]
    recorders = [_Recorder(model) for _, model in held]
    for (program, _), recorder in zip(held, recorders, strict=True):
        program.compiled = recorder  # type: ignore[assignment]
    try:
        yield recorders
    finally:
        for (program, model), recorder in zip(held, recorders, strict=True):
            if program.compiled is recorder:  # type: ignore[comparison-overlap]
                program.compiled = model


# --- values ---


class _Part:
    """A run of a compiled model, next to that of eager: `wanted` has the values in eager, and
    `found` those in the run, by name (`lstm:1` for a layer's second result).
    """

    def __init__(self, run: _Run, eager: EagerRun, *, force: bool) -> None:
        self.wanted: dict[str, Any] = {}
        self.names: dict[str, list[str]] = {}
        layers = ResultLayers(run.model.trace)
        self._modules = {place.module for place in run.model.trace.places.values()}
        for call in eager.calls[:-1]:
            # Graphs count calls of a module separately.
            if run.several and any(eager.times[n.partition("@")[0]] > 1 for n in call.calls):
                continue
            results = layers.of(call)
            names = {n: _label(made.layer, made.output) for n, made in results.items()}
            self.names[call.name] = list(names.values())
            self.wanted |= {name: array_of(call.results[n]) for n, name in names.items()}
        self.refused = {n: r for n, r in refusals(run.model).items() if n in self.wanted and r}
        lost = [n for n, r in self.refused.items() if not force or r.state is not State.FUSED]
        asked = [n for n in self.wanted if n not in lost]
        self.found = dict(run.model.tap(asked, run.feed, force=force)) if asked else {}

    def has(self, call: ModuleCall) -> bool:
        """Whether the model has layers of a call of a module."""
        return not self._modules.isdisjoint(call.calls)


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


def _brief(refusal: Refusal | None) -> str:
    if refusal is None:
        return ""
    if refusal.state is State.FUSED:
        return f"inside {refusal.kernel}"
    return f"not computed since {refusal.pass_name}" if refusal.pass_name else refusal.reason


def _label(layer: str, output: int) -> str:
    return f"{layer}:{output}" if output else layer


def _is(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


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
    """The name of an output, which is a leaf of a result."""

    text: str

    def item(self) -> _Name:
        """Returns itself: a number of the result is an output, too."""
        return self


def _in_form(compiled: CompiledModel, outputs: list[Any]) -> Any:
    """Returns outputs as the module returns them."""
    form = form_of(compiled.module)
    return tuple(outputs) if form is None else form.results(outputs)
