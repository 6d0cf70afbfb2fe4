"""The search, from the outside in: import, passes, kernels, the inside of one kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from clew import frontends
from clew.bisection.cases import Case, is_operator_call, units
from clew.bisection.checks import BuildCheck, Check, PassCheck, ValueCheck, quietly, worst
from clew.bisection.files import extensions_of
from clew.bisection.imports import layer_case, onnx_case, wrong_layers
from clew.bisection.inside import look_inside, racing_step
from clew.bisection.kernels import Fault, alone, due_of_function, examine, examine_hosts
from clew.bisection.numbers import due_of, error_of, whole_tolerance
from clew.bisection.reduce import Reducer, maker
from clew.bisection.references import Reference, of_the_machine, reference_of
from clew.bisection.stages import (
    Parting,
    Stages,
    first_wrong,
    is_rounding,
    outputs_of,
    partings,
    traced_down,
)
from clew.bisection.verdict import Culprit, Reduced, Verdict
from clew.build.build import Build
from clew.build.observe import Ran, observe
from clew.compiled import CompiledModel
from clew.compiler import compile
from clew.ir.expr import Call, Expr, Function, Var
from clew.ir.interpret import interpret_values
from clew.ir.module import Module
from clew.ir.visit import post_order
from clew.passes.base import Pass
from clew.passes.convert_precision import ConvertPrecision
from clew.passes.manager import PassManager
from clew.runtime.cache import Cache, default_cache
from clew.support.errors import ClewError
from clew.trace.refs import NodeRef

_CULPRITS: Final = 10
_RACES: Final = 100


def bisect(
    model: Module | str | Path,
    inputs: Mapping[str, Any],
    *,
    reference: Any = "interpreter",
    tolerance: float | None = None,
    runs: int = 3,
    reduce: bool = True,
    seconds: float = 60.0,
    shapes: Mapping[str, Sequence[int]] | None = None,
    on_progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Verdict:
    """Returns where a model's result goes wrong.

    `inputs` are arrays by name. `reference` is what the result should be: `onnxruntime` (the model
    is then a path), `opt0` (the same model at level 0), `interpreter` (numpy references on the
    graph as imported), a `.npz` file or a dictionary of outputs by name, with values of layers by
    the layers' names, if there are any. Outputs that are further off than `tolerance`, relative to
    the largest magnitude of each, are wrong; by default it comes from the narrowest float in the
    program. The program is run `runs` times: some defects show now and then. With `reduce` the part
    at fault is made as small as it can be in about `seconds`. `shapes` are the `inputs` of
    `clew.load`; `options` are those of `clew.compile`, and `extend` takes Python files as well, for
    what they have at their top level.

    Errors: I170, I171, I173, I174 (the reference), I176 (files to extend with),
    and those of loading, compiling and running.
    """
    load_options = {"inputs": shapes} if shapes else {}
    options = {**options, "extend": extensions_of(options.get("extend", ()))}
    module = model if isinstance(model, Module) else frontends.load(model, **load_options)
    search = _Search(
        module, inputs, tolerance, runs, seconds if reduce else 0.0, on_progress, options
    )
    with quietly():
        found = reference_of(reference, model, module, inputs, options, load_options)
        return search.run(found)


@dataclass
class _Symptom:
    """The outputs of the program that are farthest off, in how many runs."""

    error: float
    failed: int
    runs: int


class _Search:
    def __init__(
        self,
        module: Module,
        inputs: Mapping[str, Any],
        tolerance: float | None,
        runs: int,
        seconds: float,
        on_progress: Callable[[str], None] | None,
        options: Mapping[str, Any],
    ) -> None:
        self.module = module
        self.inputs = {n: np.asarray(v) for n, v in inputs.items()}
        self.say = on_progress or (lambda text: None)
        self.runs = max(1, runs)
        self.seconds = seconds
        self.options = options
        self.say("compiling")
        given = {**options, "trace": True, "on_progress": self.say}
        self.compiled: CompiledModel = compile(module, **given)
        self.first_outputs = self.compiled.run(self.inputs)
        self.build: Build = self.compiled.build
        self.arrays = [self.inputs[n] for n in module.input_names]
        self.stages = Stages(self.compiled.trace, self.inputs, self.say)
        passes = self.compiled.options.passes
        narrowed = [p.dtype for p in passes if isinstance(p, ConvertPrecision)]
        due = whole_tolerance(self.build.stages[0].module, narrowed)
        self.rounding = due
        self.tolerance = due if tolerance is None else tolerance
        self.cache = default_cache() if options.get("cache", True) else Cache(None)
        self.evidence: list[str] = []
        self.base = Verdict("none", 0.0, self.tolerance, "the interpreter", "")

    # --- the whole ---

    def run(self, reference: Reference | None) -> Verdict:
        """Returns the verdict."""
        if reference is None:
            reference = Reference("the interpreter", self.stages.outputs(0), of_import=False)
        wanted = reference.outputs
        symptom = self._symptom(wanted)
        self.base = replace(
            self.base,
            error=symptom.error,
            reference=reference.text,
            failed_runs=symptom.failed,
            runs=symptom.runs,
        )
        if not symptom.failed:
            return self._verdict("none", "the outputs are what they should be")
        read = worst(wanted, self.stages.outputs(0))
        self.evidence.append(f"the graph as imported is {read:.2g} off {reference.text}")
        if read > self.tolerance:
            if reference.of_import:
                return self._import(reference)
            return self._other_is_wrong()
        parts = first_wrong(self.stages, lambda stage: self._off(stage, wanted) > self.tolerance)
        if parts is not None:
            return self._stage(*parts, wanted)
        return self._program(wanted)

    def _verdict(self, kind: str, summary: str, **facts: Any) -> Verdict:
        return replace(
            self.base, kind=kind, summary=summary, evidence=tuple(self.evidence), **facts
        )

    def _symptom(self, wanted: Mapping[str, Any]) -> _Symptom:
        self.say("running the program")
        errors = [worst(wanted, self.first_outputs)]
        while len(errors) < self.runs:
            errors.append(worst(wanted, self.compiled.run(self.inputs)))
        failed = sum(error > self.tolerance for error in errors)
        return _Symptom(max(errors), failed, len(errors))

    def _off(self, stage: int, wanted: Mapping[str, Any]) -> float:
        error = worst(wanted, self.stages.outputs(stage))
        name = self.build.stages[stage].name
        self.evidence.append(f"stage {stage}, {name}, is {error:.2g} off")
        return error

    def _other_is_wrong(self) -> Verdict:
        """Returns what is wrong with level 0, where that is what is compared with."""
        self.say("bisecting level 0, which is wrong itself")
        options = {**of_the_machine(self.options), "opt_level": 0}
        other = _Search(
            self.module, self.inputs, self.tolerance, self.runs, self.seconds, self.say, options
        )
        found = other.run(None)
        text = f"level 0, which this is compared with, is wrong itself: {found.summary}"
        return replace(found, summary=text, evidence=(*self.evidence, *found.evidence))

    # --- import ---

    def _import(self, reference: Reference) -> Verdict:
        self.say(f"comparing layers with {reference.text}")
        main = self.build.stages[0].module
        wrong = wrong_layers(main, self.arrays, reference)
        if not wrong:
            text = (
                "the imported graph is wrong; the reference has no layer's value that shows where"
            )
            return self._verdict("import", text, stage=0)
        first = wrong[0]
        what = f"{first.op} {first.layer}".strip()
        self.evidence.append(
            f"{len(wrong)} layers are not what their own inputs give; {what} first"
        )
        facts: dict[str, Any] = {
            "stage": 0,
            "node": self._text(0, first.node),
            "layers": (first.layer,),
            "local_error": first.error,
            "due": first.due,
            "culprits": tuple(
                Culprit((w.layer,), _bare(self._text(0, w.node)), w.error, w.due)
                for w in wrong[:_CULPRITS]
            ),
        }
        if self.seconds:
            facts["reduced"] = self._reduced_import(main, first, reference)
        text = f"the layer {first.layer} ({first.op or 'no operator'}) was read wrongly"
        return self._verdict("import", text, **facts)

    def _reduced_import(self, main: Module, first: Any, reference: Reference) -> Reduced | None:
        check = ValueCheck(first.due)
        try:
            made = onnx_case(first, reference)
        except ClewError:  # a layer that cannot be read without those around it
            made = None
        if made is not None:
            case, data = made
            error = check.error(case.module, case.inputs, case.expected)
            if error > first.due:
                return Reduced(case.module, case.inputs, case.expected, 1, error, check, data)
        case_ = layer_case(main, first, reference)
        return None if case_ is None else _reduced(case_, check)

    # --- passes ---

    def _stage(self, before: int, after: int, wanted: Mapping[str, Any]) -> Verdict:
        record = self.build.stages[after]
        name = record.name
        self.evidence.append(f"the outputs part at stage {after}, {name}")
        self.say(f"looking for the node that {name} changed")
        found = partings(self.stages, before, after)
        wrong = [p for p in found if p.excess > 1]
        culprit = wrong[0] if wrong else max(found, key=lambda p: p.error, default=None)
        if not wrong:
            moved = self._moved_output(before, after)
            culprit = moved or culprit
            wrong = [moved] if moved else []
        if culprit is None:
            text = f"{name} changed the outputs, and nothing says what became what"
            return self._verdict("pass", text, pass_name=name, stage=after)
        rounding = is_rounding(self.stages, before, after, culprit)
        if rounding:
            # Everything is rounded a little: who did most of it is worth more than who was first.
            culprit = max(wrong or found, key=lambda p: p.error)
            rounding = is_rounding(self.stages, before, after, culprit)
        if not rounding and wrong:
            exact = (p for p in wrong if not is_rounding(self.stages, before, after, p))
            culprit = next(exact, culprit)
        old, new = culprit.old, culprit.new
        if not rounding:
            old, new = traced_down(self.stages, before, after, old, new, culprit.due)
        layers = tuple(old.span.layers or culprit.old.span.layers)
        layers = layers or self.compiled.trace.layers_of(NodeRef(before, culprit.old.id))
        kind = "precision" if rounding or not wrong else "pass"
        facts: dict[str, Any] = {
            "pass_name": name,
            "stage": after,
            "old_node": self._text(before, old),
            "node": self._text(after, new),
            "layers": layers,
            "local_error": culprit.error,
            "due": culprit.due,
            "culprits": self._culprits(before, wrong or found, rounding or not wrong),
        }
        self.evidence.append(
            f"{len(wrong)} of {len(found)} nodes there are off by more than rounding on operands "
            "that are right"
        )
        if self.seconds:
            due = culprit.due if culprit.error > culprit.due else culprit.error / 2
            facts["reduced"] = self._reduced_stage(before, after, old, due)
        where = f"{name} at {', '.join(layers[:3]) or 'a node of no layer'}"
        if not wrong:
            text = f"rounding of {name} adds up; {', '.join(layers[:3])} most of all"
        elif rounding:
            lost = "does not fit the dtype" if culprit.error > 1 else "loses more than one rounding"
            text = f"{where}: the value {lost}"
        else:
            text = f"{where} computes something else"
        return self._verdict(kind, text, **facts)

    def _moved_output(self, before: int, after: int) -> Parting | None:
        """Returns an output that is another one's value, which the pass left as it was."""
        old, new = (outputs_of(self.build.stages[s].module) for s in (before, after))
        for a, b in zip(old, new, strict=False):
            error = error_of(self.stages.value(before, a), self.stages.value(after, b))
            kept = b.id in self.compiled.trace.nodes(before)
            if error > self.tolerance and kept:
                return Parting(a, b, error, due_of(()))
        return None

    def _culprits(self, before: int, found: Sequence[Parting], rank: bool) -> tuple[Culprit, ...]:
        order = sorted(found, key=lambda p: -p.error) if rank else list(found)
        return tuple(
            Culprit(tuple(p.old.span.layers), _bare(self._text(before, p.old)), p.error, p.due)
            for p in order[:_CULPRITS]
        )

    def _reduced_stage(self, before: int, after: int, old: Expr, due: float) -> Reduced | None:
        changes = self._pass_of(after)
        if changes is None:
            return None
        check = PassCheck(due, changes, self.compiled.options.target, self._opt_level)
        main: Function = self.build.stages[before].module.main
        values = self._all_values(before)
        return self._shrunk(check, main, {old.id}, values)

    @property
    def _opt_level(self) -> int:
        return self.compiled.options.opt_level

    def _pass_of(self, stage: int) -> Pass | None:
        """Returns the pass that made a stage."""
        options = self.compiled.options
        manager = PassManager(
            options.passes,
            options.opt_level,
            required=options.required,
            disabled=options.disabled,
        )
        shift = len(self.build.stages) - 1 - len(manager.passes)  # sizes may be settled first
        position = stage - 1 - shift
        return manager.passes[position] if position >= 0 else None

    def _all_values(self, stage: int) -> dict[int, Any]:
        main: Function = self.build.stages[stage].module.main
        constants = {n.id: n.data for n in post_order(main) if hasattr(n, "data")}
        params = dict(zip((p.id for p in main.params), self.arrays, strict=True))
        return {**constants, **params, **self.stages.values(stage)}

    def _shrunk(
        self,
        check: Check,
        main: Function,
        seeds: set[int],
        values: Mapping[int, Any],
        *,
        kernels: bool = False,
    ) -> Reduced | None:
        """Returns the smallest part of a function around some nodes that fails."""
        reducer = Reducer(check, self.say, self.seconds)
        make = maker(main, values)
        own = {n.id for n in units(main)}
        near = {s for s in seeds if s in own} or self._around(main, seeds) or own
        members = reducer.neighbourhood(main, near, make)
        if members is None:
            return None
        members = reducer.smaller(members, make)
        case = make(members)
        case = reducer.fewer_outputs(case, lambda names: _only(case, names))
        if kernels:
            case = reducer.smaller_kernels(case)
        return _reduced(reducer.smaller_sizes(case), check)

    def _around(self, main: Function, seeds: set[int]) -> set[int]:
        """Returns the nodes that use or make what computes nothing itself: tuples, constants."""
        found: set[int] = set()
        for node in units(main):
            if any(c.id in seeds for c in node.children):
                found.add(node.id)
        return found

    # --- kernels ---

    def _program(self, wanted: Mapping[str, Any]) -> Verdict:
        self.evidence.append("the last stage, interpreted, is right: passes are not at fault")
        names = self.module.output_names
        fresh = [dict(zip(names, self.build.program(self.arrays), strict=True))]
        if self.compiled.from_cache and worst(wanted, fresh[0]) <= self.tolerance:
            text = "the compiled model in the disk cache is wrong, and compiled anew it is right"
            return self._verdict("codegen", f"{text}: clew cache clear")
        fault: Fault | None = None
        for _ in range(self.runs):
            seen = examine(self.build, self.arrays, self.say)
            if seen.faults:
                fault = seen.faults[0]
                break
        hosts = examine_hosts(self.build, self.arrays)
        if hosts and (fault is None or self._comes_first(hosts[0], fault)):
            return self._host(hosts[0])
        if fault is None:
            return self._no_fault(wanted, seen.errors)
        if fault.kind == "operand":
            return self._memory(fault)
        return self._kernel(fault)

    def _comes_first(self, a: Fault, b: Fault) -> bool:
        order = {n.id: k for k, n in enumerate(post_order(self.build.stages[-1].module.main))}
        return order.get(a.node.id, 0) < order.get(b.node.id, len(order))

    def _check(self, due: float, threads: int, runs: int = 1) -> BuildCheck:
        options = replace(self.compiled.options, threads=threads)
        return BuildCheck(due, options, runs, self.cache)

    def _facts(self, fault: Fault) -> dict[str, Any]:
        stage = len(self.build.stages) - 1
        found: dict[str, Any] = {
            "stage": stage,
            "node": self._text(stage, fault.node),
            "layers": self._layers(_called(fault.node)),
            "local_error": fault.error,
            "due": fault.due,
        }
        if fault.use is not None:
            found["kernel"] = fault.use.name
            function = fault.use.call.op
            assert isinstance(function, Function)
            calls = [n for n in post_order(function) if isinstance(n, Call)]
            found["ops"] = tuple(c.op_name for c in calls)
        return found

    def _layers(self, node: Expr) -> tuple[str, ...]:
        """Returns the layers of the operators in a node."""
        calls = [n for n in post_order(node, into_functions=True) if isinstance(n, Call)]
        own = [c for c in calls if is_operator_call(c)]
        return tuple(dict.fromkeys(la for c in own for la in c.span.layers))

    def _host(self, fault: Fault) -> Verdict:
        facts = self._facts(fault)
        facts["ops"] = (fault.node.op_name,)
        if self.seconds:
            last = len(self.build.stages) - 1
            main = self.build.stages[last].module.main
            check = self._check(fault.due, self.compiled.options.threads)
            values = self._all_values(last)
            facts["reduced"] = self._shrunk(check, main, {fault.node.id}, values)
        name = fault.node.op_name
        text = f"{name}, which runs between kernels, is off its reference"
        return self._verdict("host", text, **facts)

    def _memory(self, fault: Fault) -> Verdict:
        assert fault.lost is not None
        assert fault.use is not None
        last = len(self.build.stages) - 1
        facts = self._facts(fault)
        facts["due"] = None
        lost = self._text(last, fault.lost)
        owner = self._kernel_name(fault.lost)
        writers = self._between(fault)
        self.evidence.append(f"kernel {fault.use.name} reads what is no longer {owner}'s result")
        facts["old_node"] = lost
        if self.seconds:
            main: Function = self.build.stages[last].module.main
            check = self._check(_least_due(fault.error), self.compiled.options.threads)
            facts["reduced"] = self._shrunk_program(check, main, fault)
        by = f", overwritten by {' or '.join(writers[:3])}" if writers else ""
        text = f"{fault.use.name} reads the result of {owner}{by}"
        return self._verdict("memory", text, **facts)

    def _kernel_name(self, node: Expr) -> str:
        names = {u.call.id: u.name for u in self.build.uses}
        behind = [names[n.id] for n in post_order(node) if n.id in names]
        return names.get(node.id) or (behind[-1] if behind else "an input")

    def _between(self, fault: Fault) -> list[str]:
        """Returns the kernels that ran after the one whose result is lost, before it is read."""
        assert fault.lost is not None
        names = [u.name for u in self.build.uses]
        owner = self._kernel_name(fault.lost)
        start = names.index(owner) + 1 if owner in names else 0
        assert fault.use is not None
        return names[start : names.index(fault.use.name)][::-1]

    def _shrunk_program(self, check: BuildCheck, main: Function, fault: Fault) -> Reduced | None:
        reducer = Reducer(check, self.say, self.seconds)
        values = self._all_values(len(self.build.stages) - 1)
        make = maker(main, values)
        order = [n.id for n in units(main)]
        assert fault.lost is not None
        behind = [n.id for n in post_order(fault.lost) if n.id in set(order)]
        start = order.index(behind[-1]) if behind else 0
        members = set(order[start : order.index(fault.node.id) + 1])
        if not reducer.fails(make(members)):
            members = set(order)
            if not reducer.fails(make(members)):
                return None
        case = make(reducer.smaller(members, make))
        case = reducer.smaller_kernels(case)
        return _reduced(reducer.smaller_sizes(case), check)

    def _kernel(self, fault: Fault) -> Verdict:
        assert fault.use is not None
        function = fault.use.call.op
        assert isinstance(function, Function)
        name = fault.use.name
        facts = self._facts(fault)
        self.evidence.append(
            f"kernel {name} is {fault.error:.2g} off the reference of its function, on the "
            "operands it really had; all before it are right"
        )
        case = alone(function, fault.operands, fault.expected)
        threads = self.compiled.options.threads
        single = self._check(fault.due, 1)
        self.say(f"running {name} alone")
        if self._fails(single, case):
            self.evidence.append(f"{name} alone, on one thread, is wrong as well")
            if self.cache.root is not None and not self._fails(
                replace(single, cache=Cache(None)), case
            ):
                text = f"kernel {name} in the disk cache is wrong, and compiled anew it is right"
                return self._verdict("codegen", f"{text}: clew cache clear", **facts)
            return self._inside(fault, case, function, single, facts)
        many = self._check(fault.due, threads, _RACES)
        if threads > 1 and self._fails(many, case):
            self.evidence.append(f"{name} alone is right on one thread, wrong on {threads}")
            return self._threads(fault, threads, *racing_step(case, many, self.say))
        self.evidence.append(f"{name} alone is right")
        main: Function = self.build.stages[-1].module.main
        if self.seconds:
            check = self._check(fault.due, threads)
            values = self._all_values(len(self.build.stages) - 1)
            seeds = {fault.node.id}
            facts["reduced"] = self._shrunk(check, main, seeds, values, kernels=True)
        text = f"kernel {name} is right alone, and wrong in the memory that the program gives it"
        return self._verdict("memory", text, **facts)

    def _fails(self, check: BuildCheck, case: Case) -> bool:
        return check.error(case.module, case.inputs, case.expected) > check.tolerance

    def _inside(
        self, fault: Fault, case: Case, function: Function, check: BuildCheck, facts: dict[str, Any]
    ) -> Verdict:
        assert fault.use is not None
        reduced = self._shrunk_kernel(check, function, fault) if self.seconds else None
        small = case if reduced is None else _case_of(reduced)
        found = look_inside(small, check, self.say)
        self.evidence += found.evidence
        facts |= {"step": found.step, "reduced": reduced}
        left = () if reduced is None else self._layers(reduced.module.main)
        facts["layers"] = found.layers or left or facts["layers"]
        if found.op:
            facts["ops"] = (found.op,)
        text = f"kernel {fault.use.name}: {found.summary}"
        return self._verdict(found.kind, text, **facts)

    def _shrunk_kernel(self, check: BuildCheck, function: Function, fault: Fault) -> Reduced | None:
        """Returns the fewest operators of a kernel that still are a wrong one."""
        reducer = Reducer(check, self.say, self.seconds)
        wanted = {n.id for n in post_order(function.body)}
        values = interpret_values(function, fault.operands, wanted)
        values |= {p.id: v for p, v in zip(function.params, fault.operands, strict=True)}
        whole = {n.id for n in units(function)}

        def kernel(inner: Function) -> Function:
            attrs = dict(function.attrs)
            if len(units(inner)) < len(whole):  # numbers of its parts, which are fewer now
                attrs.pop("fusion", None)
                attrs.pop("stages", None)
            return Function(inner.params, inner.body, attrs)

        make = maker(function, values, kernel)
        members = reducer.smaller(whole, make)
        case = make(members)
        if not reducer.fails(case):
            case = alone(function, fault.operands, fault.expected)
        return _reduced(reducer.smaller_sizes(case), check)

    def _no_fault(self, wanted: Mapping[str, Any], errors: Sequence[Any]) -> Verdict:
        threads = self.compiled.options.threads
        self.evidence.append(f"all {len(errors)} kernels are right on the operands they had")
        if threads > 1:
            self.say("running the program on one thread")
            check = self._check(self.tolerance, 1, _RACES)
            single = check.outputs(self.build.stages[-1].module, self.inputs)
            error = max(worst(wanted, found) for found in single)
            self.evidence.append(f"on one thread the outputs are {error:.2g} off")
            if error <= self.tolerance:
                return self._racing(threads)
        use, error = max(errors, key=lambda e: e[1], default=(None, 0.0))
        rounding = self.base.error <= self.rounding
        if use is not None and (rounding or error > due_of_function(use.call.op) / 10):
            text = f"rounding of kernels adds up; {use.name} most of all"
            layers = self._layers(_called(use.call))
            return self._verdict(
                "precision", text, kernel=use.name, layers=layers, local_error=error
            )
        text = "every stage and every kernel is right on its own operands"
        return self._verdict("unknown", text)

    def _racing(self, threads: int) -> Verdict:
        """Returns the kernel that is wrong on several threads, tried again and again; or the one
        whose schedule lets threads share elements.
        """
        failing: list[tuple[Fault, str, str]] = []
        suspects: list[tuple[Fault, str, str]] = []

        def note(ran: Ran) -> None:
            entries = ran.use.source.code.entries
            if failing or all(e.grid * e.n_lines == 1 for e in entries):
                return
            self.say(f"running {ran.use.name} alone on {threads} threads, {_RACES} times")
            function = ran.use.call.op
            assert isinstance(function, Function)
            value = interpret_values(function, ran.operands, {function.body.id})[function.body.id]
            case = alone(function, ran.operands, value)
            check = self._check(due_of_function(function), threads, _RACES)
            error = check.error(case.module, case.inputs, case.expected)
            fault = Fault(
                "kernel", ran.use.call, ran.use, ran.operands, value, error, check.tolerance
            )
            found = racing_step(case, check, self.say)
            if error > check.tolerance:
                failing.append((fault, *found))
            elif found[0]:
                suspects.append((fault, *found))

        observe(self.build, self.arrays, note)
        if not failing and not suspects:
            text = f"the program is right on one thread and wrong on {threads}"
            return self._verdict("threads", f"{text}; each kernel alone is right")
        fault, step, problem = (failing or suspects)[0]
        return self._threads(fault, threads, step, problem)

    def _threads(self, fault: Fault, threads: int, step: str, problem: str) -> Verdict:
        assert fault.use is not None
        function = fault.use.call.op
        assert isinstance(function, Function)
        facts = {**self._facts(fault), "step": step}
        if problem:
            self.evidence.append(f"after {step}: {problem}")
        if self.seconds and fault.error > fault.due:
            check = self._check(fault.due, threads, _RACES)
            facts["reduced"] = self._shrunk_kernel(check, function, fault)
        text = f"kernel {fault.use.name} is right on one thread and wrong on {threads}"
        how = f": {problem}" if problem else ""
        return self._verdict("threads", f"{text}{how}", **facts)

    # --- texts ---

    def _text(self, stage: int, node: Expr) -> str:
        try:
            return self.compiled.trace.text(NodeRef(stage, node.id))
        except KeyError:
            return str(node)


def _bare(text: str) -> str:
    """Returns a node's line without its layers."""
    return text.split("  //", 1)[0]


def _called(call: Call) -> Expr:
    """Returns the function that is called, or the call of an operator without its arguments."""
    if isinstance(call.op, Function):
        return call.op
    return Call(call.op, [Var("x", a.type) for a in call.args], call.attrs, span=call.span)


def _least_due(error: float) -> float:
    return min(1e-4, error / 4) if np.isfinite(error) else 1e-4


def _case_of(reduced: Reduced) -> Case:
    return Case(reduced.module, reduced.inputs, reduced.expected)


def _only(case: Case, names: Sequence[str]) -> Case:
    """Returns the case with some of its outputs."""
    main = case.module.main
    fields = dict(zip(case.module.output_names, main.body.children, strict=True))
    body = type(main.body)([fields[n] for n in names])  # type: ignore[call-arg]
    read = {n.id for n in post_order(body)}
    params = [p for p in main.params if p.id in read]
    module = Module({"main": Function(params, body, {"outputs": tuple(names)})})
    inputs = {p.name: case.inputs[p.name] for p in params}
    return Case(module, inputs, {n: case.expected[n] for n in names})


def _reduced(case: Case, check: Check) -> Reduced | None:
    """Returns a case as part of the verdict; None where it does not fail (any more)."""
    try:
        error = check.error(case.module, case.inputs, case.expected)
    except Exception:  # a part that does not run alone
        return None
    if error <= check.tolerance:
        return None
    return Reduced(case.module, case.inputs, case.expected, case.operators, error, check)
