"""Parts of the optimized program: a kernel, or some of the executor's nodes, as fused.

Their modules call the same primitive functions, with the same layouts and packed constants, so
compiling them gives the same kernels, and running them gives the same bits.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from clew.api.compiled_model import CompiledModel
from clew.build.kernel import Kernel
from clew.build.observe import Ran, node_values, observe
from clew.build.result import Build, KernelUse
from clew.correlate.executor import INPUT, PARAM, Node, executor_graphs
from clew.extraction.graph import Cut, ModuleGraph, Unique, ValueNames, carriers, value_name
from clew.extraction.part import AS_FUSED, Part
from clew.ir.expr import Call, Constant, Expr, Function, Let, Tuple, TupleGetItem, Var
from clew.ir.module import Module
from clew.ir.size_names import names_in, plain_names
from clew.ir.types import TupleType
from clew.ir.visit import inner_functions, post_order
from clew.support.errors import InputError
from clew.support.near import did_you_mean
from clew.trace.lineage import building
from clew.trace.span import Source, Span

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class FusedProgram:
    """A compiled model at the sizes of one run, with that run's inputs in order."""

    model: CompiledModel
    arrays: Sequence[Array]
    values: ValueNames = field(default_factory=dict)

    @cached_property
    def build(self) -> Build:
        """The build for these inputs."""
        model = self.model
        return model.build_for(self.arrays) if model.is_symbolic else model.build

    @cached_property
    def graph(self) -> ModuleGraph:
        """The last stage's graph."""
        module = self.build.stages[-1].module
        return ModuleGraph(module, fixed_apart=False, values=self.values)

    @cached_property
    def names(self) -> dict[str, KernelUse]:
        """The kernels by name, in the order they run."""
        return {use.name: use for use in self.build.uses}

    # --- a kernel ---

    def kernel(self, name: str) -> Part:
        """Returns a kernel with its operands in the run; if it runs several times, those of the
        first.

        Errors: I141 for an unknown kernel, I142 for a kernel that did not run.
        """
        return self.kernels([name])[name]

    def kernels(self, names: Sequence[str] | None = None) -> dict[str, Part]:
        """Returns kernels by name, with values from one run: the named ones, or all that ran.

        Errors: those of `kernel`.
        """
        wanted = list(self.names) if names is None else list(names)
        for name in wanted:
            if name not in self.names:
                raise self._no_kernel(name)
        seen: dict[str, Ran] = {}
        only = {self.names[n].call.id for n in wanted}
        observe(self.build, self.arrays, lambda ran: _first(seen, ran), only=only)
        if names is not None:
            for name in wanted:
                if name not in seen:
                    raise InputError(
                        "I142",
                        f"the kernel {name} did not run with these inputs",
                        hint="it is in a branch that was not taken: use other inputs",
                    )
        return {n: self._part_of(seen[n]) for n in wanted if n in seen}

    def _no_kernel(self, name: str) -> InputError:
        close = difflib.get_close_matches(name, self.names, 3)
        known = close or list(self.names)[:6]
        return InputError(
            "I141",
            f"no kernel is named {name!r}",
            hint=f"{'near it' if close else 'there'} are {', '.join(known)}; clew compile lists "
            "them",
        )

    def _part_of(self, ran: Ran) -> Part:
        use = ran.use
        main = self.build.stages[-1].module.main
        module, params = kernel_module(use.call, self.values, main.params)
        self._check_sizes(module)
        operands = dict(zip((p.id for p in main.params), self.arrays, strict=True))
        operands |= dict(zip((a.id for a in use.call.args), ran.operands, strict=True))
        inputs = {name: operands[argument] for argument, name in params.items()}
        outputs = dict(zip(module.output_names, ran.results, strict=True))
        kernel = Kernel(use, self.build)
        part = Part(use.name, "kernel", module, kernel.layers, inputs, outputs, dict(AS_FUSED))
        return replace(part, options=self._options([use]), notes=self._notes([use]))

    def _check_sizes(self, module: Module) -> None:
        """Checks that the inputs of a part give its sizes.

        Errors: I156 for sizes that only the values of the model's inputs give.
        """
        nodes = post_order([module.main], into_functions=True)
        missing = names_in(nodes) - plain_names(p.type for p in module.main.params)
        for spec in self.model.inputs:
            if missing.intersection(spec.value_names):
                raise InputError(
                    "I156",
                    f"the part has sizes that the value of input {spec.name!r} gives",
                    hint="extract layers, or load the model with that value: "
                    f"clew.load(model, constants={{{spec.name!r}: ...}})",
                )

    def _options(self, uses: Sequence[KernelUse]) -> dict[str, Any]:
        """Returns the options to compile the kernels again: no passes, this target, users'
        schedules.
        """
        options: dict[str, Any] = dict(AS_FUSED)
        if self.model.options.target.name != "cpu":
            options["target"] = self.model.options.target.name
        schedules = self.model.options.schedules
        if len(uses) == 1:  # the kernel may have another name in a separate module
            own = [s for s in uses[0].source.by_hand if s in schedules]
            schedules = tuple(replace(s, kernel="") for s in own)
        if any(s in use.source.by_hand for use in uses for s in self.model.options.schedules):
            options["extend"] = schedules
        return options

    def _notes(self, uses: Sequence[KernelUse]) -> tuple[str, ...]:
        """Returns notes on the layers that are only partly in these kernels."""
        own = {u.name for u in uses}
        layers = dict.fromkeys(la for u in uses for la in Kernel(u, self.build).layers)
        notes = []
        for layer in layers:
            others = [n for n in self._kernels_of.get(layer, ()) if n not in own]
            if others:
                shown = ", ".join(others[:3]) + (" ..." if len(others) > 3 else "")
                notes.append(f"layer {layer} is only partly in it: {shown} also serves it")
        if any(s in u.source.by_hand for u in uses for s in self.model.options.schedules):
            notes.append("your own schedule is used, but not saved in files: pass extend=")
        return tuple(notes)

    @cached_property
    def _kernels_of(self) -> Mapping[str, Sequence[str]]:
        """The kernels that serve each layer."""
        found: dict[str, list[str]] = {}
        for use in self.build.uses:
            for layer in Kernel(use, self.build).layers:
                found.setdefault(layer, []).append(use.name)
        return found

    # --- some of the nodes ---

    @cached_property
    def nodes(self) -> list[Node]:
        """The executor's nodes, in the order of `graph.json`. Nodes inside branches and loops are
        part of these.
        """
        return executor_graphs(self.build)[0].nodes

    def range(self, begin: int, end: int) -> Part:
        """Returns the executor's nodes from `begin` to before `end`, with their values.

        Errors: I133 and I134 (the boundary), I143 for invalid positions.
        """
        count = len(self.nodes)
        if not 0 <= begin < end <= count:
            raise InputError(
                "I143",
                f"{begin}:{end} is not a range of the executor's nodes, 0:{count}",
                hint="BEGIN:END, the end not included; positions are those in graph.json",
            )
        return self._of_nodes(f"nodes {begin} to {end}", range(begin, end))

    def named(self, names: Sequence[str]) -> Part:
        """Returns the executor's nodes with these names, or at these positions, with their values.

        Errors: I133 and I134 (the boundary), I143 for names that no node has.
        """
        known = {str(n): n for n in range(len(self.nodes))}
        known |= {node.name: n for n, node in enumerate(self.nodes)}
        for name in names:
            if name not in known:
                raise InputError(
                    "I143",
                    f"no node of the executor is named {name!r}",
                    hint=did_you_mean(name, [node.name for node in self.nodes], "nodes"),
                )
        return self._of_nodes(", ".join(names), [known[name] for name in names])

    def _of_nodes(self, name: str, positions: Sequence[int]) -> Part:
        """Returns a part with the nodes at these positions.

        Errors: I143 if none of them computes anything.
        """
        chosen = [n for n in (self.nodes[p] for p in positions) if n.op not in (INPUT, PARAM)]
        if not chosen:
            raise InputError(
                "I143",
                f"{name}: the executor has only inputs and parameters there",
                hint="graph.json lists the nodes: clew correlate model.onnx -o graph.json",
            )
        members = self._with_tuples({n.expr.id for n in chosen})
        self.graph.check_convex(members)
        cut = self.graph.cut(members)
        values = node_values(
            self.build, self.arrays, [v.id for v in (*cut.inputs, *cut.carried, *cut.outputs)]
        )
        inputs = [values[v.id] for v in (*cut.inputs, *cut.carried)]
        outputs = [values[v.id] for v in cut.outputs]
        module = cut.module
        self._check_sizes(module)
        return Part(
            name,
            "nodes",
            module,
            self._layers_of(cut),
            dict(zip(module.input_names, map(np.asarray, inputs), strict=True)),
            dict(zip(module.output_names, map(np.asarray, outputs), strict=True)),
            self._options(self._uses_in(cut)),
            self._notes(self._uses_in(cut)),
        )

    def _with_tuples(self, chosen: set[int]) -> list[Expr]:
        """Returns the nodes with these ids, with the tuples of their results and the fields of
        these.
        """
        members: set[int] = set()
        found: list[Expr] = []
        for node in self.graph.nodes:
            below = [c.id for c in node.children if not isinstance(c, (Constant, Function))]
            ties = isinstance(node, (Tuple, TupleGetItem, Let)) and below
            if node.id in chosen or (ties and members.issuperset(below)):
                members.add(node.id)
                found.append(node)
        return found

    def _uses_in(self, cut: Cut) -> list[KernelUse]:
        inner = [n for n in cut.graph.nodes if n.id in cut.members]
        reached = self._reached(inner)
        return [u for u in self.build.uses if u.call.id in reached]

    def _reached(self, members: Sequence[Expr]) -> set[int]:
        """Returns the ids of nodes and of nodes inside them, without their operands."""
        found = {n.id for n in members}
        inner = [c for n in members for c in n.children if isinstance(c, Function)]
        return found | {n.id for n in post_order(inner, into_functions=True)}

    def _layers_of(self, cut: Cut) -> tuple[str, ...]:
        order = self.build.layer_order
        layers = {la for n in cut.graph.nodes if n.id in cut.members for la in n.span.layers}
        for use in self._uses_in(cut):
            layers.update(Kernel(use, self.build).layers)
        return tuple(sorted(layers, key=lambda la: order.get(la, len(order))))


def kernel_module(
    call: Call, values: ValueNames, own: Sequence[Var] = ()
) -> tuple[Module, dict[int, str]]:
    """Returns a module that consists of one kernel call, and the names of its inputs by the ids of
    the arguments they stand for. Constants stay in the module. Boundary values are named as in
    other parts. Sizes that no argument has come from inputs of the model, its `own` parameters.
    """
    names = Unique()
    params: dict[int, Var] = {}
    read = [a for a in call.args if not isinstance(a, Constant)]
    inside = post_order(list(inner_functions(call)), into_functions=True)
    more = carriers((*read, call, *inside), read, own)
    for position, argument in enumerate((*call.args, *more)):
        if not isinstance(argument, Constant) and argument.id not in params:
            name = names.of(value_name(argument, values, f"_{position}"))
            span = Span([Source(name, frontend="clew", kind="input")])
            params[argument.id] = Var(name, argument.type, span=span)
    with building(call.span):
        made = Call(call.op, [params.get(a.id, a) for a in call.args], call.attrs)
        count = len(made.type.fields) if isinstance(made.type, TupleType) else 1
        results: list[Expr] = [made]
        if isinstance(made.type, TupleType):
            results = [TupleGetItem(made, n) for n in range(count)]
    name = value_name(call, values) if call.span.layers else "output"
    outputs = tuple(f"{name}:{n}" if n else name for n in range(count))
    body = Tuple(results, span=Span())
    main = Function(list(params.values()), body, {"outputs": outputs}, span=Span())
    return Module({"main": main}), {argument: var.name for argument, var in params.items()}


def _first(seen: dict[str, Ran], ran: Ran) -> None:
    seen.setdefault(ran.use.name, ran)
