"""A model's imported layers, which the alignment of two models uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from clew.ir.expr import Call, Constant, Expr, If, Var, While
from clew.ir.module import Module
from clew.ir.structural import array_digest
from clew.ir.visit import post_order
from clew.trace.trace import Trace

_MOVEMENTS: Final = frozenset({"transpose", "reshape", "cast", "identity"})


class Spelled(NamedTuple):
    """A call as text: its operator, attributes, and the types of its parameters."""

    op: str
    attrs: tuple[tuple[str, str], ...]
    parameters: tuple[str, ...]


@dataclass(eq=False)
class Layer:
    """A layer: `op` is its operator type in the user's model, `position` its position in the
    import.

    `reads` lists the names of the layers it reads, in order, with `""` for each input of the model;
    `feeds` lists the layers that read it. `calls` are its operators.
    """

    name: str
    op: str
    position: int
    calls: tuple[Spelled, ...] = ()
    reads: tuple[str, ...] = ()
    feeds: list[str] = field(default_factory=list)
    parameters: tuple[Constant, ...] = ()

    @cached_property
    def weights(self) -> str:
        """A digest of its parameters' elements; empty if it has none."""
        return " ".join(map(digest_of, self.parameters))

    @property
    def essence(self) -> str:
        """The first of its operators that does not only move elements; else its first one. Formats
        call operators by different names, and have some in one layer that others have in two.
        """
        computing = (kind for kind in self.kinds if kind not in _MOVEMENTS)
        return next(computing, next(iter(self.kinds), ""))

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the operators that the import made for it."""
        return tuple(call.op for call in self.calls)


def of_two_formats(a: Mapping[str, Layer], b: Mapping[str, Layer]) -> bool:
    """Whether two models call their operators differently, as models of two formats do."""
    ours, theirs = ({layer.op for layer in layers.values() if layer.op} for layers in (a, b))
    return bool(ours and theirs) and ours.isdisjoint(theirs)


def layers_of(trace: Trace) -> dict[str, Layer]:
    """Returns a model's layers by name, in the order of the import."""
    module = trace.stages[0].module
    found: dict[str, Layer] = {}
    parts: dict[str, list[Call | If | While]] = {}
    for node in _nodes(module):
        name = _owner(node)
        if name not in found and name:
            found[name] = Layer(name, _op(node, name), len(found))
            parts[name] = []
        if name and isinstance(node, (Call, If, While)):
            parts[name].append(node)
    for name, calls in parts.items():
        _fill(found[name], calls)
    for layer in found.values():
        for name in dict.fromkeys(layer.reads):
            if name:
                found[name].feeds.append(layer.name)
    for name, op, _ in module.main.attrs.get("eliminated", ()):
        found.setdefault(name, Layer(name, op, len(found)))
    return found


def _nodes(module: Module) -> Iterator[Expr]:
    """Yields the nodes in the order in which the frontend created them: the model's own order."""
    roots = [function for _, function in module]
    yield from sorted(post_order(roots, into_functions=True), key=lambda n: n.id)


def _owner(node: Expr) -> str:
    """Returns the layer that a node was imported for; empty for nodes of the model itself."""
    for source in node.span.sources:
        if source.kind in ("layer", "edit"):
            return source.layer
    return ""


def _op(node: Expr, layer: str) -> str:
    return next((s.op for s in node.span.sources if s.layer == layer and s.op), "")


def _fill(layer: Layer, parts: list[Call | If | While]) -> None:
    """Sets a layer's operators, weights and operands."""
    spelled: list[Spelled] = []
    reads: list[str] = []
    parameters: dict[int, Constant] = {}
    for part in parts:
        constants = []
        for operand in _operands(part):
            if isinstance(operand, Constant):
                parameters[operand.id] = operand
                constants.append(str(operand.type))
            else:
                reads += [n for n in _behind(operand) if n != layer.name]
        called = part.op_name if isinstance(part, Call) else type(part).__name__.lower()
        attrs = part.attrs.plain.items() if isinstance(part, Call) else ()
        named = tuple(sorted((k, str(v)) for k, v in attrs))
        spelled.append(Spelled(called, named, tuple(constants)))
    layer.calls = tuple(spelled)
    layer.reads = tuple(reads)
    layer.parameters = tuple(parameters.values())


def _operands(node: Call | If | While) -> tuple[Expr, ...]:
    match node:
        case Call():
            return node.args
        case If():
            return (node.cond, *node.args)
    return node.init


def _behind(node: Expr) -> Iterator[str]:
    """Yields the layers that a value comes from; an empty name for an input of the model."""
    stack = [node]
    while stack:
        node = stack.pop()
        if isinstance(node, Var):
            yield ""
        elif owner := _owner(node):
            yield owner
        else:
            stack += reversed(node.children)


def digest_of(constant: Constant) -> str:
    """Returns a digest of a constant's elements."""
    return constant.token or array_digest(constant.data)
