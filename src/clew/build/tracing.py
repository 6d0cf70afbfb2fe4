"""Creates traces. The trace is below the graph IR, so this file passes it the functions it
needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from clew.build.inputs import Inputs
from clew.build.relayout import relayout
from clew.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem
from clew.ir.interpret import Results, interpret_values
from clew.ir.module import Module
from clew.ir.reading import ModuleReader
from clew.ir.types import Type
from clew.ir.visit import inner_functions, post_order
from clew.ir.wide_floats import has_narrow, widened
from clew.passes.fusion.views import part_offsets, view_offsets
from clew.support.errors import InputError
from clew.trace.queries import Kernels, Stages
from clew.trace.trace import Trace, Verifier
from clew.trace.verify import VerifyReport, verify_links

VERIFY_OPTIONS: Final = ("rtol", "atol")


def trace_of(stages: Stages, kernels: Kernels = (), verifier: Verifier | None = None) -> Trace:
    """Returns the trace of a compilation. `stages` and `kernels` may be callables that return them;
    `verifier` verifies the links of a model that has several builds.
    """
    return Trace(stages, _Reader(), kernels, verifier or _verify_alone)


class _Reader(ModuleReader):
    """A reader that also knows the nodes outside kernels whose memory other nodes write."""

    def memory(self, node: Any) -> tuple[str, ...]:
        """Returns `view` and what the node shows, `joined` and what is written into it, or `region`
        and where a backend runs it.
        """
        if not isinstance(node, Call):
            return ()
        if isinstance(node.op, Function) and node.op.backend:
            return ("region", f"{node.title} on {node.op.backend}")
        if view_offsets(node) is not None:
            return ("view", _name(node.args[0]))
        if part_offsets(node) is not None:
            return ("joined", *map(_name, node.args))
        return ()


def _name(node: Expr) -> str:
    """Returns the layer or input whose result a node is, if there is exactly one."""
    sources = [s for s in node.span.sources if s.output is not None] or list(node.span.sources)
    return sources[0].layer if sources else type(node).__name__.lower()


def _verify_alone(
    trace: Trace, given: Sequence[Any], named: Mapping[str, Any], rtol: float, atol: float
) -> VerifyReport:
    inputs = Inputs(trace.stages[0].module)
    found = inputs.checked(given, named, options=VERIFY_OPTIONS)
    return verify(trace, dict(zip(inputs.input_names, found, strict=True)), {}, rtol, atol)


def verify(
    trace: Trace,
    inputs: Mapping[str, Any],
    sizes: Mapping[str, int],
    rtol: float,
    atol: float,
) -> VerifyReport:
    """Returns the result of evaluating the links of a trace on checked inputs. `sizes` has values
    of the named sizes that the shapes of inputs do not give.
    """
    evaluator = _Evaluator(sizes)
    return verify_links(trace, widened(dict(inputs)), evaluator, rtol, atol)


class _Evaluator:
    """Evaluates stages on narrow floats in f32, so that the errors of links are not roundings."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._results = Results()

    def values(
        self, module: Module, inputs: Mapping[str, Any], known: Mapping[int, Any]
    ) -> dict[int, Any]:
        """Returns the values of a module's nodes, of which some are known."""
        return evaluate(module, inputs, known, self._results, self._sizes, wide=True)

    def folded(self, nodes: Sequence[Expr]) -> dict[int, Any]:
        """Returns the values, in their own dtypes, of those nodes that depend on constants only."""
        fixed: dict[int, Expr] = {}
        for node in post_order(nodes):
            constant = isinstance(node, (Call, Tuple, TupleGetItem)) and node.children
            if isinstance(node, Constant) or (
                constant and all(child.id in fixed for child in node.children)
            ):
                fixed[node.id] = node
        wanted = [fixed[node.id] for node in nodes if node.id in fixed]
        return interpret_values(Function((), Tuple(wanted)), (), {node.id for node in wanted})

    def has_narrow(self, node: Expr) -> bool:
        """Whether a node has narrow floats."""
        return has_narrow(node.type)

    def relayout(self, value: Any, source: Type, target: Type, like: Any) -> Any:
        """Returns a value of type `source` in the layout of type `target`."""
        return relayout(value, source, target, like)


def evaluate(
    module: Module,
    inputs: Mapping[str, Any],
    known: Mapping[int, Any],
    results: Results,
    sizes: Mapping[str, int],
    *,
    wide: bool = False,
) -> dict[int, Any]:
    """Returns the values of the nodes that ran; in loops, those of the last iteration.

    `results` are those of operators in the stages before; `sizes` has values of the named sizes
    that the shapes of inputs do not give. With `wide`, narrow floats are computed in f32.

    Errors: I022 for inputs that are not those of the module.
    """
    missing = set(module.input_names) ^ set(inputs)
    if missing:
        raise InputError(
            "I022",
            f"inputs missing or unknown: {', '.join(sorted(missing))}",
            hint=f"the inputs are {', '.join(module.input_names)}",
        )
    wanted = _used_once(module)
    args = [inputs[name] for name in module.input_names]
    own = {n: v for n, v in known.items() if n in wanted}
    results.next_run()
    found = interpret_values(
        module.main, args, wanted, module, own, results, sizes=sizes, wide=wide
    )
    return own | found


def _used_once(module: Module) -> set[int]:
    """Returns the ids of the nodes of `main` and of functions that are used once: kernels, branches
    and the parts of loops.
    """
    uses: dict[int, int] = {}
    for node in post_order(module.main, into_functions=True):
        for function in inner_functions(node):
            uses[function.id] = uses.get(function.id, 0) + 1
    found: set[int] = set()
    pending: list[Function] = [module.main]
    while pending:
        for node in post_order(pending.pop()):
            if not isinstance(node, Function):
                found.add(node.id)
            pending += [f for f in inner_functions(node) if uses[f.id] == 1]
    return found
