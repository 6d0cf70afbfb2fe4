"""`clew.place`: chooses where the operators of a model run, by measured costs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from clew import frontends
from clew.backends.backend import CPU, Backend
from clew.backends.compile_options import CompileOptions
from clew.backends.registry import backends_of
from clew.compiling.compile import build_model, passes_for
from clew.ir.deferred import DeferredModule
from clew.ir.expr import Var
from clew.ir.module import Module
from clew.ir.structural import structural_hash
from clew.ir.types import TensorType, leaves
from clew.ir.visit import post_order
from clew.machine.target import Target, target_of
from clew.passes.manager import PassManager
from clew.passes.placement.merge_composite import MergeComposite
from clew.passes.placement.rules import Fixed, Key, operator_keys
from clew.placement.agreement import Reference
from clew.placement.book import Book, book_at
from clew.placement.clock import in_turns
from clew.placement.costs import Costs, UnitCost, measured_costs
from clew.placement.report import Placement, Plan, described, parts_of
from clew.placement.search import Found, solve
from clew.placement.units import UnitGraph, units_of
from clew.profile.modes import profile
from clew.profile.report import Profile
from clew.runtime.threads import thread_count
from clew.serving.built_model import BuiltModel
from clew.support.errors import ClewError, InputError
from clew.support.exhausted import coded_exhaustion

_ROUNDS: Final = 3  # of choosing, measuring and correcting
_MARGIN: Final = 0.01  # a mix must be this much faster than the best single backend
_PROFILE_S: Final = 0.5
_SEEDS: Final = 3  # different inputs of the calls that are compared
OPTIONS: Final = ("target", "threads", "opt_level", "precision", "keep_f32", "fuse")
"""The options of `compile` on which the operators to place, and their costs, depend."""


@coded_exhaustion
def place(
    model: Module | DeferredModule | frontends.ModelSource,
    backends: Sequence[Backend | str],
    inputs: Any = None,
    *,
    target: str | Target = "cpu",
    threads: int | None = None,
    seconds: float = 20.0,
    tuned: str | Path | None = "auto",
    again: bool = False,
    on_progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Placement:
    """Returns the fastest placement of a model's operators on the CPU (clew's own kernels) and
    other backends, by measured costs (docs/placement.md).

    Each unit (an operator with the elementwise ones that follow it, or a match of a backend's
    pattern) is measured on each backend that takes it, on the values that it reads in a run on
    `inputs` (random if None), and so are the costs of borders. The cheapest assignment is then
    measured in the model and its costs corrected. Finally, the assignments found and each backend
    alone are measured in turns, and the result is the fastest, so no single backend beat it.
    `seconds` is about how long units are measured; the costs of the rest are predicted. `options`
    are those of `compile` that change the graph: `opt_level`, `precision`, and `fuse` of `passes`.
    `on_progress` is called with each step's name.

    Costs and results are kept in the tuner's database (`tuned`, as for `compile`), so a second call
    measures nothing. With `again`, it places the model again, with the kept costs of units.

    Errors: I350 to I353 and I356 (`backends`), I358 (a model with symbolic sizes, or whose graph
    depends on a run), I040 to I043 (`inputs`), I380 to I382 (`tuned`), C073 (a backend that fails
    in placement).
    """
    machine = target_of(target)
    count = thread_count(threads)
    chosen = tuple(b.at_threads(count) for b in backends_of(backends))
    module = model if isinstance(model, DeferredModule) else _loaded(model)
    if not isinstance(module, Module) or not all(map(_is_static, module.main.params)):
        raise InputError(
            "I358",
            "only a model whose sizes are all known can be placed by measured costs",
            hint="give its sizes with inputs=, or with clew.load(file, inputs={...})",
        )
    given = CompileOptions.of({**options, "target": machine, "threads": count})
    unused = [name for name in given.values() if name not in OPTIONS]
    if unused:
        raise InputError(
            "I014",
            f"place has no option {unused[0]!r}",
            hint=f"it takes the options of clew.compile {', '.join(OPTIONS[2:])}",
        )
    asked = _Asked(machine, count, chosen, given, seconds, on_progress or (lambda text: None))
    book = book_at(tuned, machine, count)
    subject = asked.subject(module)
    if not again:
        kept = book.placed(subject)
        if kept is not None:
            return Placement.of_json(kept)
    found = _Placer(module, asked, book, inputs).placed()
    book.keep(subject, subject[:12], found.to_json(), found.best.seconds or 0.0)
    return found


def placed_for_compile(
    model: Module | DeferredModule | frontends.ModelSource,
    backends: Sequence[Backend | str],
    options: CompileOptions,
) -> Placement:
    """Returns the placement of a model for `clew.compile(..., place="auto")`; see `place`."""
    if not isinstance(model, (Module, DeferredModule)):
        model = frontends.load_or_defer(model, **options.loading)
    settled = {n: v for n, v in options.values().items() if n in OPTIONS}
    return place(
        model,
        backends,
        tuned=options.tuned,
        on_progress=options.on_progress,
        **CompileOptions().changed(**settled),
    )


@dataclass(frozen=True)
class _Asked:
    target: Target
    threads: int
    backends: tuple[Backend, ...]
    options: CompileOptions
    seconds: float
    say: Callable[[str], None]

    def subject(self, module: Module) -> str:
        """Returns a hash of the model, the backends and the options that change the graph."""
        graph = self.options.changed(target="cpu", threads=None)  # the book is of one machine
        parts = [structural_hash(module), *map(str, self.backends), repr(graph)]
        return blake2b("|".join(parts).encode(), digest_size=16).hexdigest()


class _Placer:
    """One placement."""

    def __init__(self, module: Module, asked: _Asked, book: Book, inputs: Any) -> None:
        self._module = module
        self._asked = asked
        self._book = book
        self._inputs = inputs
        self._models: dict[tuple[str, ...], BuiltModel] = {}
        self._began = time.perf_counter()

    def placed(self) -> Placement:
        say = self._asked.say
        say("graph")
        self._graph = self._units()
        count = len(self._graph.units)
        plain = self._model((CPU,) * count)
        self._arrays = self._drawn(plain)
        say("profile on the CPU")
        layers = {row.layer: row.ns * 1e-9 for row in self._profile(plain).layers}
        costs = measured_costs(
            self._graph, self._asked.backends, self._asked.target, self._asked.threads,
            self._book, dict(zip(plain.input_names, self._arrays[0], strict=True)), layers,
            _blocked(plain), self._asked.seconds, say,
        )  # fmt: skip
        plans = {CPU: Plan(CPU, (CPU,) * count)}
        for backend in self._asked.backends:
            names = tuple(
                backend.name if costs.takes(u, backend.name) else CPU for u in self._graph.units
            )
            if backend.name in names:
                plans[backend.name] = Plan(backend.name, names)
        mixes, search = self._mixes(costs)
        known = {p.names for p in plans.values()}
        for number, names in enumerate(n for n in mixes if n not in known):
            plans[f"mix {number + 1}"] = Plan(f"mix {number + 1}", names, is_mix=True)
        self._compare(plans)
        best = self._best(plans)
        return described(
            self._graph, costs, list(plans.values()), best, search, self._keys(best.names),
            time.perf_counter() - self._began,
        )  # fmt: skip

    # --- the graph ---

    def _units(self) -> UnitGraph:
        asked = self._asked
        passes = passes_for(asked.options, asked.backends)
        names = [p.name for p in passes]
        before = passes[: names.index(MergeComposite.__name__)]
        level = asked.options.opt_level
        module = PassManager(before, level, target=asked.target, trace=False).run(self._module)
        return units_of(module, asked.backends, asked.target)

    def _keys(self, names: Sequence[str]) -> dict[Key, str]:
        """Returns the backends of the operators that an assignment does not leave to the CPU."""
        keys = operator_keys(self._graph.module)
        return {
            keys[call.id]: name
            for unit, name in zip(self._graph.units, names, strict=True)
            if name != CPU
            for call in unit.calls
        }

    # --- measuring ---

    def _model(self, names: tuple[str, ...]) -> BuiltModel:
        if names not in self._models:
            keys = self._keys(names)
            used = [b for b in self._asked.backends if b.name in set(keys.values())]
            self._models[names] = self._compiled(self._module, backends=used, place=Fixed(keys))
        return self._models[names]

    def _compiled(self, module: Module, **options: Any) -> BuiltModel:
        return build_model(module, self._asked.options.changed(**options))

    def _drawn(self, model: BuiltModel) -> list[list[Any]]:
        given = {} if self._inputs is None else model.named_inputs(self._inputs, partial=True)
        return [model.drawn(given, seed=seed) for seed in range(_SEEDS)]

    def _profile(self, model: BuiltModel) -> Profile:
        arrays = model.checked(self._arrays[0], {})
        return profile(model, arrays, seconds=_PROFILE_S, sample=_PROFILE_S, roofline=False)

    def _mixes(self, costs: Costs) -> tuple[list[tuple[str, ...]], Found]:
        """Returns the cheapest assignments, each found with costs corrected by measurements of the
        one before, and the result of the last search.
        """
        found: list[tuple[str, ...]] = []
        while True:
            search = solve(costs.problem())
            if search.names in found or set(search.names) == {CPU}:
                return found, search
            self._asked.say(f"mix {len(found) + 1}")
            problem = self._problem_of(search.names)
            if problem:
                self._give_up(costs, search.names, problem)
                continue
            found.append(search.names)
            if len(found) == _ROUNDS:
                return found, search
            self._correct(costs, search.names, self._profile(self._model(search.names)))

    def _problem_of(self, names: tuple[str, ...]) -> str:
        """Returns why a plan is unusable: it cannot be built or run, or its outputs differ from the
        CPU's; empty if it is usable.
        """
        try:
            outputs = self._model(names)(*self._arrays[0])
        except ClewError as error:
            return error.message
        return self._reference.disagreement(_several(outputs))

    @cached_property
    def _reference(self) -> Reference:
        """The outputs of the CPU for the first inputs."""

        def run(module: Module) -> Sequence[Any]:
            model = (
                self._model((CPU,) * len(self._graph.units))
                if module is self._module
                else self._compiled(module)
            )
            return _several(model(*self._arrays[0]))

        return Reference(self._module, run)

    def _give_up(self, costs: Costs, names: Sequence[str], why: str) -> None:
        """Makes the backend of the region at fault lose the region's units. It is the first region
        that also fails with everything else on the CPU; if there is none, all regions count.
        """
        parts = [p for p in parts_of(self._graph, names) if names[p[0]] != CPU]
        for part in parts if len(parts) > 1 else ():
            alone = [names[n] if n in set(part) else CPU for n in range(len(names))]
            problem = self._problem_of(tuple(alone))
            if problem:
                parts, why = [part], problem
                break
        for number in (n for part in parts for n in part):
            costs.units.pop((number, names[number]), None)
            costs.failures[number, names[number]] = why

    def _correct(self, costs: Costs, names: Sequence[str], times: Profile) -> None:
        """Scales the costs of the units of each region by the region's time in the mix."""
        regions = [k for k in times.kernels if k.kind == "region"]
        for row in regions:
            backend = row.name.partition(":")[0]
            inside = set(row.layers)
            units = [
                u
                for u, name in zip(self._graph.units, names, strict=True)
                if name == backend and inside.issuperset(u.layers)
            ]
            told = sum(costs.units[u.number, backend].seconds for u in units)
            taken = row.ns * 1e-9 - costs.starts[backend]
            if told <= 0 or taken <= 0:
                continue
            for unit in units:
                seconds = costs.units[unit.number, backend].seconds * taken / told
                costs.units[unit.number, backend] = UnitCost(seconds, "within a run")

    def _compare(self, plans: dict[str, Plan]) -> None:
        """Measures plans in turns. Those that fail, or whose outputs differ, get a `failure`."""
        functions: dict[str, Callable[[], Any]] = {}
        for name, plan in plans.items():
            self._asked.say(f"{name} as a whole")
            problem = self._problem_of(plan.names)
            if problem:
                plans[name] = replace(plan, failure=problem)
            else:
                functions[name] = _calls(self._model(plan.names), self._arrays)
        self._asked.say("whole calls, in turns")
        for name, seconds in in_turns(functions, self._asked.seconds / 3).items():
            plans[name] = replace(plans[name], seconds=seconds)

    @staticmethod
    def _best(plans: Mapping[str, Plan]) -> Plan:
        """Returns the fastest plan; a mix only if it is faster than all others by the margin."""
        single = min((p for p in plans.values() if not p.is_mix), key=_seconds)
        limit = (1 - _MARGIN) * _seconds(single)
        mixes = [p for p in plans.values() if p.is_mix and _seconds(p) < limit]
        return min(mixes, key=_seconds, default=single)


def _seconds(plan: Plan) -> float:
    return math.inf if plan.seconds is None else plan.seconds


def _blocked(model: BuiltModel) -> frozenset[str]:
    """Returns the layers whose values a build keeps in blocks."""
    nodes = post_order(model.build.stages[-1].module.main, into_functions=True)
    laid_out = [n for n in nodes if any(getattr(t, "layout", "") for t in leaves(n.type))]
    return frozenset(layer for node in laid_out for layer in node.span.layers)


def _is_static(param: Var) -> bool:
    return isinstance(param.type, TensorType) and param.type.is_static


def _loaded(model: Module | frontends.ModelSource) -> Module:
    return model if isinstance(model, Module) else frontends.load(model)


def _several(outputs: Any) -> Sequence[Any]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _calls(model: BuiltModel, inputs: Sequence[Sequence[Any]]) -> Callable[[], Any]:
    """Returns a function that calls a model on each of some inputs in turn."""
    number = 0

    def call() -> Any:
        nonlocal number
        number += 1
        return model(*inputs[number % len(inputs)])

    return call
