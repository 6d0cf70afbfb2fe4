"""Imports an FX graph of `torch.compile` into modules of the graph IR.

The graph's inputs are tensors, integers and weights. Sizes have the names of torch's symbols.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

from clew.frontends.builder import GraphBuilder
from clew.frontends.building import call, scalar
from clew.frontends.torch.assembling import assembled, count, weight
from clew.frontends.torch.complex_parts import in_parts, whole
from clew.frontends.torch.dtypes import check_tensor, given_dtype
from clew.frontends.torch.graph import FRONTEND, GraphImporter
from clew.frontends.torch.omitted import Undecomposed
from clew.frontends.torch.registry import name_of
from clew.frontends.torch.result_views import ResultViews
from clew.frontends.torch.sizes import Sizes
from clew.frontends.torch.values import Value
from clew.ir.dims import SymDim
from clew.ir.expr import Expr, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.support.errors import ClewError, UnsupportedError

_MANY: Final = 2**20


@dataclass(frozen=True)
class TracedOutput:
    """A result: a tensor of `dtype`, or a number if that is None. `order` is the order in which
    torch counts the axes of the stored tensor, if it is another one. A result with `fixed` is not
    an output of the program: its value is known, or torch makes it as a view.
    """

    dtype: torch.dtype | None = None
    order: tuple[int, ...] = ()
    fixed: bool = False
    value: Any = None


@dataclass(frozen=True)
class TracedInput:
    """An argument that programs take, by its position: a tensor of `dtype`, or an integer. One that
    is never negative may be a size (`is_size`): the program takes a tensor of that many elements,
    of which it reads none.
    """

    position: int
    dtype: torch.dtype | None
    is_size: bool = False


class Traced:
    """A traced graph: `inputs` are the arguments of programs, `outputs` their results.

    `names` are the names of arguments in the user's code, and `frozen` the positions of weights.
    `earlier` has the graph that torch traced, before its decomposition, if known.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        names: Sequence[str],
        frozen: Collection[int],
        earlier: Undecomposed | None = None,
    ) -> None:
        self._graph = graph
        self._earlier = earlier
        self._nodes = list(graph.graph.find_nodes(op="placeholder"))
        self._names = names
        self._frozen = set(frozen)
        shown, needed = _shown(graph), hidden_symbols(graph)
        self.inputs: list[TracedInput] = []
        for position, node in enumerate(self._nodes):
            fake = node.meta.get("val")
            unread = not node.users and not (is_size(fake) and fake.node.expr in needed)
            if position in self._frozen or unread or _is_given_token(node):
                continue
            if isinstance(fake, torch.Tensor):
                self.inputs.append(TracedInput(position, fake.dtype))
            elif is_size(fake) and fake.node.expr not in shown:
                self.inputs.append(TracedInput(position, None, is_size=_least(fake) is not None))
        (ending,) = graph.graph.find_nodes(op="output")
        results = ending.args[0]
        several = isinstance(results, (list, tuple))
        self.views = ResultViews(graph)
        self.outputs = [
            TracedOutput(fixed=True) if n in self.views.calls else _output(r)
            for n, r in enumerate(results if several else [results])
        ]

    def module(self, args: Sequence[Any]) -> Module:
        """Returns the module with the weights among the graph's arguments.

        Errors: those of importing.
        """
        importer, values = self._start(args)
        importer.viewed = self.views.nodes
        found = importer.run(values)
        outputs = [
            _stored(importer, value, output)
            for value, output in zip(found, self.outputs, strict=True)
            if not output.fixed
        ]
        names = [f"output{n}" for n in range(len(outputs))]
        return assembled(importer, outputs, names, {})

    def refused(self, args: Sequence[Any]) -> dict[fx.Node, ClewError]:
        """Returns the calls that cannot be imported, and why."""
        importer, values = self._start(args, probing=True)
        importer.run(values)
        return importer.refused

    def _start(
        self, args: Sequence[Any], *, probing: bool = False
    ) -> tuple[GraphImporter, Mapping[fx.Node, Value]]:
        """Returns an importer, and the values of the graph's inputs."""
        builder = GraphBuilder(FRONTEND)
        sizes = Sizes(builder.carriers)
        importer = GraphImporter(
            self._graph, builder, sizes, [], earlier=self._earlier, probing=probing
        )
        for node in self._nodes:
            fake = node.meta.get("val")
            for size in fake.shape if isinstance(fake, torch.Tensor) else ():
                if is_size(size) and size.node.expr.is_Symbol:
                    sizes.name(size.node.expr, str(size.node.expr), _least(size) or 0)
        taken = {given.position: given for given in self.inputs}
        for given in self.inputs:
            if given.is_size:  # before shapes that depend on it
                fake = self._nodes[given.position].meta["val"]
                sizes.name(fake.node.expr, self._names[given.position], _least(fake) or 0)
        values: dict[fx.Node, Value] = {}
        for position, node in enumerate(self._nodes):
            fake, name = node.meta.get("val"), self._names[position]
            if position in self._frozen:
                with importer.located(node):
                    values[node] = weight(builder, name, args[position])
            elif position in taken:
                if taken[position].is_size:
                    values[node] = sizes.dim(fake)
                with importer.located(node):
                    made = _parameter(importer, name, fake, taken[position])
                if is_size(fake) and not taken[position].is_size:
                    sizes.number(fake, made, may_be_negative=True)
                values.setdefault(node, in_parts(made))
            elif is_size(fake):
                values[node] = sizes.dim(fake) if node.users else None
            else:
                values[node] = None
        return importer, values


def hidden_symbols(graph: fx.GraphModule) -> set[Any]:
    """Returns the symbols that shapes and numbers in a graph depend on, but that are not sizes of
    its inputs.
    """
    used: set[Any] = set()
    for node in graph.graph.nodes:
        fakes = node.meta.get("val")
        for fake in fakes if isinstance(fakes, (list, tuple)) else [fakes]:
            sizes = fake.shape if isinstance(fake, torch.Tensor) else [fake]
            for size in filter(is_size, sizes):
                used |= size.node.expr.free_symbols
    return used - _shown(graph)


def _shown(graph: fx.GraphModule) -> set[Any]:
    """Returns the sizes of a graph's inputs that are not fixed; weights have none."""
    fakes = [node.meta.get("val") for node in graph.graph.find_nodes(op="placeholder")]
    tensors = [fake for fake in fakes if isinstance(fake, torch.Tensor)]
    return {size.node.expr for tensor in tensors for size in filter(is_size, tensor.shape)}


def is_size(value: Any) -> bool:
    """Whether a value is a symbolic integer, whose value each call gives. The integers that stand
    for the lengths of a nested tensor are not: nothing is computed from them.
    """
    return isinstance(value, torch.SymInt) and not value.node.is_nested_int()


def _least(size: torch.SymInt) -> int | None:
    """Returns the least value of a size, 0 or 1; None for an integer that may be negative."""
    lower = size.node.shape_env.bound_sympy(size.node.expr).lower
    return 1 if lower >= 1 else 0 if lower >= 0 else None


def _parameter(importer: GraphImporter, name: str, fake: Any, given: TracedInput) -> Var:
    if isinstance(fake, torch.Tensor):
        check_tensor(fake, f"input {name!r}")
        type_ = TensorType(importer.sizes.shape(fake.shape), given_dtype(fake.dtype))
        return importer.builder.input(name, type_)
    if given.is_size:
        return count(importer.builder, name, importer.sizes.dim(fake))
    return importer.builder.input(name, TensorType((), "i64"))


def _output(result: Any) -> TracedOutput:
    if not isinstance(result, fx.Node):
        return TracedOutput(fixed=True, value=result)
    fake = result.meta.get("val")
    if _is_token(result):
        return TracedOutput(fixed=True)
    if isinstance(fake, torch.Tensor):
        return TracedOutput(fake.dtype, _order(fake))
    if isinstance(fake, (torch.SymInt, torch.SymFloat, torch.SymBool)) or fake is None:
        return TracedOutput(None)
    return TracedOutput(fixed=True, value=fake)


def _is_given_token(node: fx.Node) -> bool:
    """Whether an input of a graph is an effect token, for which torch passes None."""
    return bool(node.users) and all(
        user.op == "call_function"
        and name_of(user.target) == "with_effects"
        and node is user.args[0]
        and node not in user.args[1:]
        for user in node.users
    )


def _is_token(node: fx.Node) -> bool:
    """Whether a node is the effect token that a call with effects, such as a check, returns for the
    next one.
    """
    if node.target is not operator.getitem or node.args[1] != 0:
        return False
    source = node.args[0]
    return isinstance(source, fx.Node) and name_of(source.target) == "with_effects"


def _order(fake: torch.Tensor) -> tuple[int, ...]:
    """Returns where each axis of a tensor is stored, () if axes are stored as they are counted."""
    # torch does not compare sizes that the data decide.
    if not has_free_unbacked_symbols(fake) and fake.is_contiguous():
        return ()
    strides = [(_hint(fake.stride(a)), a) for a in range(fake.dim())]
    stored = [a for _, a in sorted(strides, key=lambda s: (-s[0], s[1]))]
    if stored == list(range(fake.dim())):
        return ()
    return tuple(stored.index(a) for a in range(fake.dim()))


def _hint(size: Any) -> int:
    """Returns the example's size; `_MANY` for one that the data decide."""
    if isinstance(size, torch.SymInt):
        found = size.node.hint
        return int(found) if found is not None else _MANY
    return int(size)


def _stored(importer: GraphImporter, value: Value, output: TracedOutput) -> Expr:
    """Returns a result as it is stored."""
    if isinstance(value, Expr):
        if output.order:
            stored = sorted(range(len(output.order)), key=lambda a: output.order[a])
            parts = range(len(stored), value.tensor.rank)  # of complex numbers
            value = call("transpose", value, axes=(*stored, *parts))
        return whole(value, output.dtype)
    if isinstance(value, SymDim):
        return importer.scalar_of(value, "i64")
    if isinstance(value, (bool, int, float)):
        return scalar(value, {bool: "bool", int: "i64"}.get(type(value), "f64"))
    raise UnsupportedError("U065", f"a result of type {type(value).__name__}")
