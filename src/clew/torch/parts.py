"""Partitions an FX graph into parts that clew runs and calls between them that stay in eager."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from clew.api.compile import compile
from clew.frontends.torch.omitted import Undecomposed
from clew.frontends.torch.places import is_layer
from clew.frontends.torch.traced import Traced, hidden_symbols, is_size
from clew.support.errors import ClewError, CompileError
from clew.torch.programs import Programs, TorchProgram
from clew.torch.report import left_of

Function = Callable[..., Any]


@dataclass(frozen=True)
class Given:
    """The arguments of a graph: examples, their names in the user's code, and the positions of
    weights, which the programs hold. `earlier` has the graph before decomposition.
    """

    args: Sequence[Any]
    names: Sequence[str]
    frozen: Collection[int]
    earlier: Undecomposed | None = None

    def picked(
        self, positions: Sequence[int | None], names: Sequence[str], *, is_first: bool
    ) -> Given:
        """Returns the arguments of a part of the graph: arguments of the graph by position, or
        values from other parts (None), which have `names`. The first part accounts for the calls
        that decomposition omitted.
        """
        return Given(
            [None if p is None else self.args[p] for p in positions],
            [n if p is None else self.names[p] for p, n in zip(positions, names, strict=True)],
            {n for n, p in enumerate(positions) if p in self.frozen},
            self.earlier if is_first else None,
        )


def run_by_parts(
    graph: fx.GraphModule, given: Given, options: Mapping[str, Any], programs: Programs
) -> Function:
    """Returns a graph as a function of its inputs: one program if clew runs all of it, else the
    graph with programs in place of its parts.
    """
    try:
        return _program(graph, given, options, programs)
    except ClewError as error:
        try:
            with _coded():
                refused = Traced(graph, given.names, given.frozen).refused(given.args)
        except ClewError:  # of an input of the graph, which is no call
            refused = {}
        if not refused:  # no call is the cause: an input is, or it imports and does not compile
            programs.left += [left_of(n, error) for n in graph.graph.nodes if is_layer(n)]
            run: Function = graph.forward
            return run
    programs.left += [left_of(node, why) for node, why in refused.items()]
    return _divided(graph, given, options, programs, refused)


def _program(
    graph: fx.GraphModule, given: Given, options: Mapping[str, Any], programs: Programs
) -> TorchProgram:
    """Returns a graph as one program.

    Errors: those of importing and compiling it; C083 for a bug in clew, so that the user's program
    continues in eager, and the report mentions it.
    """
    with _coded():
        traced = Traced(graph, given.names, given.frozen, given.earlier)

    def build(args: Sequence[Any]) -> Any:
        with _coded():
            return compile(traced.module(args), **options)

    program = TorchProgram(
        build, traced.inputs, traced.outputs, sorted(given.frozen), given.args, traced.views
    )
    programs.programs.append(program)
    return program


@contextmanager
def _coded() -> Iterator[None]:
    """Gives a code to Python errors of clew, and to torch's about sizes that the data decide.

    Errors: C083.
    """
    try:
        yield
    except (AssertionError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        if isinstance(error, ClewError):
            raise
        raise CompileError(
            "C083",
            f"the graph could not be compiled: {type(error).__name__}: {error}",
            hint="this is a bug in clew",
        ) from error


class _Supported(OperatorSupportBase):  # type: ignore[misc]
    """Calls that clew runs: not those that it refuses."""

    def __init__(self, refused: Collection[fx.Node]) -> None:
        self._refused = refused

    def is_node_supported(self, submodules: Any, node: fx.Node) -> bool:
        """Whether clew runs a call."""
        return node.op == "call_function" and node not in self._refused


class _Part(torch.nn.Module):  # type: ignore[misc]
    """A program in place of a part of a graph."""

    def __init__(self, program: TorchProgram, alone: bool) -> None:
        super().__init__()
        self.program = program
        self.alone = alone

    def forward(self, *args: Any) -> Any:
        """Returns the part's results: a single one is not a tuple."""
        found = self.program(*args)
        return found[0] if self.alone else tuple(found)


def _divided(
    graph: fx.GraphModule,
    given: Given,
    options: Mapping[str, Any],
    programs: Programs,
    refused: Mapping[fx.Node, ClewError],
) -> Function:
    """Returns a graph with programs for its largest convex parts without refused calls."""
    partitioner = CapabilityBasedPartitioner(
        graph, _Supported(refused), allows_single_node_partition=True
    )
    parts = [p for p in partitioner.propose_partitions() if any(map(_computes, p.nodes))]
    fused = partitioner.fuse_partitions(parts)  # a copy of the graph
    places = {node: n for n, node in enumerate(fused.graph.find_nodes(op="placeholder"))}
    for number, node in enumerate(list(fused.graph.find_nodes(op="call_module"))):
        part = fused.get_submodule(node.target)
        _give_sizes(part, node, list(places))
        positions = [places.get(a) for a in node.args]
        own = given.picked(positions, [a.name for a in node.args], is_first=not number)
        (ending,) = part.graph.find_nodes(op="output")
        alone = not isinstance(ending.args[0], (list, tuple))
        try:
            program = _program(part, own, options, programs)
        except ClewError as error:
            programs.left += [left_of(n, error) for n in part.graph.nodes if is_layer(n)]
            continue
        setattr(fused, node.target, _Part(program, alone))
    fused.recompile()
    run: Function = fused.forward
    return run


def _give_sizes(part: fx.GraphModule, caller: fx.Node, inputs: Sequence[fx.Node]) -> None:
    """Passes to a part the sizes that its shapes depend on and that none of its inputs has."""
    own = {
        node.meta["val"].node.expr
        for node in part.graph.find_nodes(op="placeholder")
        if is_size(node.meta.get("val"))
    }
    needed = hidden_symbols(part) - own
    for given in inputs:
        size = given.meta.get("val")
        if is_size(size) and size.node.expr in needed:
            last = part.graph.find_nodes(op="placeholder")[-1]
            with part.graph.inserting_after(last):
                made = part.graph.placeholder(given.name)
            made.meta.update(given.meta)
            caller.args = (*caller.args, given)


def _computes(node: fx.Node) -> bool:
    """Whether a call computes new values: a view of a tensor, and reading a size, do not."""
    if not is_layer(node):
        return False
    schema = getattr(node.target, "_schema", None)
    return schema is None or not any(r.alias_info for r in schema.returns)
