"""Functions for rules: building edits of graphs, and changing a model's inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from clew.editing.surgery import Build, Insertion, Piece, Plan
from clew.ir.expr import Call, Constant, Expr, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.rewrite import rebuild
from clew.ir.types import TensorType
from clew.ir.visit import post_order
from clew.ops.registry import get_op
from clew.trace.lineage import building
from clew.trace.span import Source, Span

Array = np.ndarray[Any, Any]


def op_of(node: Expr) -> str:
    """Returns the name of a call's operator; "" for other nodes."""
    return node.op_name if isinstance(node, Call) else ""


def shape_of(node: Expr) -> tuple[int, ...] | None:
    """Returns the shape of a tensor of known sizes, else None."""
    return node.type.concrete if is_static(node) else None  # type: ignore[union-attr]


def is_static(node: Expr) -> bool:
    """Whether a node is a tensor of known sizes."""
    return isinstance(node.type, TensorType) and node.type.is_static


def dtype_of(node: Expr) -> str:
    """Returns the dtype of a tensor; "" for other types."""
    return node.type.dtype if isinstance(node.type, TensorType) else ""


def like(call: Call, *args: Expr, **attrs: Any) -> Expr:
    """Returns the same operator on other arguments, with some attributes changed."""
    return Call(call.op, args, call.attrs.with_(**attrs) if attrs else call.attrs)


def op(name: str, *args: Expr, **attrs: Any) -> Expr:
    """Returns a call of an operator."""
    return get_op(name)(*args, **attrs)


def constant(values: Any, dtype: Any = np.float32) -> Constant:
    """Returns a constant."""
    return Constant(np.ascontiguousarray(np.asarray(values, dtype)))


def source(rule: str, node: Expr) -> Source:
    """Returns the source of the nodes that a rule's edit adds for a node."""
    layers = node.span.layers
    where = layers[0] if layers else f"%{node.id}"
    return Source(f"{rule}({where})", rule, "clew", "edit")


def replacing(
    rule: str, node: Expr, inputs: Sequence[Expr], build: Build
) -> Callable[[Plan], None]:
    """Returns edits that replace a node by `build(*inputs)`."""

    def edits(plan: Plan) -> None:
        insertion = Insertion(source(rule, node), build, node.span)
        plan.pieces[node.id] = Piece(insertion, tuple(inputs))

    return edits


def together(edits: Iterable[Callable[[Plan], None]]) -> Callable[[Plan], None]:
    """Returns edits that make all of the given edits."""
    every = list(edits)

    def all_of_them(plan: Plan) -> None:
        for one in every:
            one(plan)

    return all_of_them


def with_main(
    module: Module,
    new: Mapping[int, Expr],
    params: Sequence[Var] | None = None,
    outputs: Sequence[str] | None = None,
) -> Module:
    """Returns a module in whose main function the nodes `new` replace others, by id, and which has,
    if given, other parameters and only some of the outputs.
    """
    main = module.main
    became: dict[int, Expr] = dict(new)
    body = main.body
    names = module.output_names
    kept = names if outputs is None else tuple(outputs)
    fields: Sequence[Expr] = body.fields if isinstance(body, Tuple) else (body,)
    roots = [f for name, f in zip(names, fields, strict=True) if name in kept]
    for node in post_order(roots):
        if node.id in became:
            continue
        if isinstance(node, (Var, Constant, Function)):
            became[node.id] = node
            continue
        with building(node.span):
            became[node.id] = rebuild(node, [became.get(c.id, c) for c in node.children])
    results = [became[f.id] for f in roots]
    attrs = {**main.attrs.plain, "outputs": kept}
    with building(main.span):
        function = Function(main.params if params is None else tuple(params), Tuple(results), attrs)
    return Module({**module.functions, "main": function})


def without_outputs(module: Module, dropped: Iterable[str]) -> Module:
    """Returns a module without some of its outputs."""
    gone = set(dropped)
    return with_main(module, {}, outputs=[n for n in module.output_names if n not in gone])


def with_input(module: Module, name: str, type_: TensorType, build: Build) -> Module:
    """Returns a module with another type of an input, from which `build` makes the former value."""
    old = next(p for p in module.main.params if p.name == name)
    new = Var(name, type_, span=old.span)
    params = [new if p is old else p for p in module.main.params]
    with building(Span([Source(f"input({name})", "input", "clew", "edit")])):
        value = build(new)
    return with_main(module, {old.id: value}, params)


def with_fixed_input(module: Module, name: str, value: Array) -> Module:
    """Returns a module without an input, whose value is fixed."""
    old = next(p for p in module.main.params if p.name == name)
    with building(Span([Source(f"fixed({name})", "constant", "clew", "edit")])):
        fixed = Constant(np.ascontiguousarray(value))
    params = [p for p in module.main.params if p is not old]
    return with_main(module, {old.id: fixed}, params)
