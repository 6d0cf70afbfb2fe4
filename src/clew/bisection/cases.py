"""Parts of graphs that run alone: modules cut out of others, with their inputs and expected
outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from clew.ir.dims import SymDim
from clew.ir.expr import (
    Attrs,
    Call,
    Constant,
    Expr,
    Function,
    If,
    Let,
    Tuple,
    TupleGetItem,
    Var,
    While,
)
from clew.ir.interpret import interpret_values
from clew.ir.module import Module
from clew.ir.rewrite import rebuild
from clew.ir.size_names import names_in, plain_names, sizes_in
from clew.ir.types import TensorType, TupleType, Type
from clew.ir.visit import inner_functions, post_order
from clew.ops.movement.layouts import parse_layout
from clew.support.errors import ClewError
from clew.trace.lineage import building

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A module, its inputs and the outputs it should give."""

    module: Module
    inputs: dict[str, Any]
    expected: dict[str, Any]

    @property
    def sizes(self) -> dict[str, int]:
        """The values of the named sizes in the module: the shapes of its inputs give all of
        them.
        """
        return sizes_in(self.module.main.params, self.inputs)

    @property
    def operators(self) -> int:
        """The number of operator calls in the module, including those inside functions."""
        functions = [f for _, f in self.module]
        return sum(map(is_operator_call, post_order(functions, into_functions=True)))


def is_operator_call(node: Expr) -> bool:
    """Whether a node is a call of an operator, not of a function."""
    return isinstance(node, Call) and not inner_functions(node)


def is_unit(node: Expr) -> bool:
    """Whether a node computes something, unlike tuples and projections."""
    return isinstance(node, (Call, If, While))


def units(function: Function) -> list[Expr]:
    """Returns the nodes of a function's body that compute something, in order."""
    return [n for n in post_order(function.body) if is_unit(n)]


def cut(
    function: Function,
    members: Collection[int],
    values: Mapping[int, Any],
    wrap: Callable[[Function], Function] | None = None,
    results: Collection[int] = (),
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> Case:
    """Returns the nodes `members` of a function's body as a separate module.

    Values read from outside become inputs, with their `values` (by id of the node); constants stay.
    The module's outputs are the values used outside the members, or unused; if `results` is given,
    only those among them. `wrap` makes a function of the members into another (a kernel), which the
    module then calls. Named sizes stay; `sizes` has the values of those that the function's own
    parameters do not give.
    """
    own = [p for p in function.params if p.id in values]
    known = {**sizes, **sizes_in(own, [values[p.id] for p in own])}
    cutter = _Cutter(function, frozenset(members), values, known.keys())
    outputs = [n for n in cutter.outputs() if not results or n.id in results]
    fields = [(n, cutter.of(n)) for n in outputs]
    made = {f"y{k}": values[n.id] for k, (n, _) in enumerate(fields)}
    params, inputs = cutter.params, cutter.inputs
    body: Expr = Tuple([e for _, e in fields])
    if wrap is not None:
        inner = Function(params, fields[0][1] if len(fields) == 1 else body)
        call = Call(wrap(inner), fresh := [Var(p.name, p.type, span=p.span) for p in params])
        params = fresh
        parts = [call] if len(fields) == 1 else [TupleGetItem(call, k) for k in range(len(fields))]
        body = Tuple(parts)
    return completed(params, body, inputs, made, known)


def completed(
    params: Sequence[Var],
    body: Expr,
    inputs: Mapping[str, Any],
    expected: Mapping[str, Any],
    sizes: Mapping[str, int],
) -> Case:
    """Returns a case with these parameters and results. For each size whose name no parameter
    gives, it has an input that is read only for its size.
    """
    nodes = post_order([*params, body], into_functions=True)
    missing = names_in(nodes) - plain_names(p.type for p in params)
    params, inputs = list(params), dict(inputs)
    for name in sorted(missing & sizes.keys()):
        var = Var(f"size_{name}", TensorType((SymDim.symbol(name),), "bool"))
        params.append(var)
        inputs[var.name] = np.zeros(sizes[name], np.bool_)
    main = Function(params, body, {"outputs": tuple(expected)})
    return Case(Module({"main": main}), inputs, dict(expected))


class _Cutter:
    def __init__(
        self,
        function: Function,
        members: frozenset[int],
        values: Mapping[int, Any],
        sizes: Collection[str],
    ) -> None:
        self._sizes = sizes
        self._function = function
        self._members = members
        self._values = values
        self._bound = {n.var.id: n.value for n in post_order(function.body) if isinstance(n, Let)}
        self._made: dict[int, Expr] = {}
        self.params: list[Var] = []
        self.inputs: dict[str, Any] = {}

    def outputs(self) -> list[Expr]:
        """Returns the members whose values are used outside, by the result, or not at all, in
        order; for tuples, their fields.
        """
        inside: set[int] = set()
        outside: set[int] = set()
        fields: dict[int, Expr] = {}
        nodes = post_order(self._function.body)
        for node in nodes:
            if isinstance(node, TupleGetItem):
                fields[node.id] = node
            reader = inside if node.id in self._members else outside
            if not isinstance(node, (TupleGetItem, Tuple, Function)):
                reader.update(p.id for c in node.children for p in self._parts(c))
        outside.update(p.id for p in self._parts(self._function.body))
        found: list[Expr] = []
        for node in nodes:
            whole = node.id in self._members and not isinstance(node.type, TupleType)
            part = isinstance(node, TupleGetItem) and node.value.id in self._members
            if (whole or part) and (node.id in outside or node.id not in inside):
                found.append(node)
        return found

    def _parts(self, node: Expr) -> Iterable[Expr]:
        """Returns the nodes that a value consists of."""
        stack = [node]
        while stack:
            current = stack.pop()
            if isinstance(current, Tuple):
                stack.extend(current.fields)
            elif isinstance(current, Let):
                stack.append(current.body)
            elif isinstance(current, Var) and current.id in self._bound:
                stack.append(self._bound[current.id])
            else:
                yield current

    def of(self, node: Expr) -> Expr:
        """Returns the node of the new module for a node of the old one."""
        order: list[tuple[Expr, bool]] = [(node, False)]
        while order:
            current, ready = order.pop()
            if current.id in self._made:
                continue
            needs = self._needs(current)
            if not ready and needs:
                order.append((current, True))
                order.extend((n, False) for n in reversed(needs) if n.id not in self._made)
                continue
            self._made[current.id] = self._make(current)
        return self._made[node.id]

    def _needs(self, node: Expr) -> Sequence[Expr]:
        match node:
            case Var() if node.id in self._bound:
                return (self._bound[node.id],)
            case Let():
                return (node.body,)
            case Tuple():
                return node.fields
            case TupleGetItem() if self._inside(node.value):
                return (node.value,)
            case Call() | If() | While() if node.id in self._members:
                return [c for c in node.children if not isinstance(c, Function)]
        return ()

    def _inside(self, node: Expr) -> bool:
        return node.id in self._members or isinstance(node, (Tuple, TupleGetItem, Let))

    def _make(self, node: Expr) -> Expr:
        match node:
            case Constant():
                return node
            case Var() if node.id in self._bound:
                return self._made[self._bound[node.id].id]
            case Let():
                return self._made[node.body.id]
            case Tuple():
                return Tuple([self._made[f.id] for f in node.fields])
            case TupleGetItem() if self._inside(node.value):
                whole = self._made[node.value.id]
                if isinstance(whole, Tuple):
                    return whole.fields[node.index]
                with building(node.span, (node.id,)):
                    return TupleGetItem(whole, node.index)
            case Call() | If() | While() if node.id in self._members:
                made = [self._made.get(c.id, c) for c in node.children]
                with building(node.span, (node.id,)):
                    return rebuild(node, made)
        return self._input(node)

    def _input(self, node: Expr) -> Var:
        value = self._values[node.id]
        name = f"x{len(self.params)}"
        var = Var(name, _static(node.type, value, self._sizes), span=node.span.unmarked())
        self.params.append(var)
        self.inputs[name] = value
        return var


def _static(type_: Type, value: Any, sizes: Collection[str] = ()) -> Type:
    """Returns a tensor's type with the sizes of its value, unless all have known names."""
    if not isinstance(type_, TensorType) or type_.is_static:
        return type_
    if all(isinstance(d, int) or d.symbols <= set(sizes) for d in type_.shape):
        return type_
    return TensorType(tuple(np.shape(value)), type_.dtype, type_.layout)


# --- smaller shapes -------------------------------------------------------------------------------


def resized(case: Case, old: int, new: int, *, constants: bool) -> Case | None:
    """Returns the case with every axis of `old` elements cut to the first `new`, in inputs and, if
    requested, in constants and in shapes given by attributes; without expected outputs.

    None if the operators do not allow it.
    """
    kinds = {p.name: p.type for p in case.module.main.params}
    inputs = {n: _resized(v, kinds[n], old, new) for n, v in case.inputs.items()}
    types = {n: np.shape(v) for n, v in inputs.items()}
    params: list[Var] = []
    for param in case.module.main.params:
        assert isinstance(param.type, TensorType)
        type_ = TensorType(types[param.name], param.type.dtype, param.type.layout)
        params.append(Var(param.name, type_, span=param.span))

    def attrs_of(attrs: Attrs) -> Attrs:
        return (
            Attrs({n: _resized_attr(v, old, new) for n, v in attrs.items()}) if constants else attrs
        )

    def constant_of(node: Constant) -> Expr:
        if not constants or old not in node.tensor.shape:
            return node
        if node.is_splat:
            shape = tuple(new if d == old else d for d in node.tensor.concrete)
            type_ = TensorType(shape, node.tensor.dtype, node.tensor.layout)
            return Constant.splat(node.splat_value, type_)
        data = _resized(node.data, node.type, old, new)
        return Constant(data, name=node.name, layout=node.tensor.layout, span=node.span)

    try:
        main = _retyped(case.module.main, params, attrs_of, constant_of)
    except Exception:  # any error of an operator whose shapes do not match
        return None
    return Case(Module({"main": main}), inputs, {})


def _resized(value: Any, type_: Type, old: int, new: int) -> Any:
    """Returns an array with axes cut, except those that its layout splits into blocks."""
    array = np.asarray(value)
    layout = type_.layout if isinstance(type_, TensorType) else ""
    axes = parse_layout(layout).axes if layout else ("",) * array.ndim
    blocked = {a.upper() for a in axes if a.islower()}
    cuts = [
        slice(new) if size == old and axis.upper() not in blocked else slice(None)
        for size, axis in zip(array.shape, axes, strict=True)
    ]
    return np.ascontiguousarray(array[tuple(cuts)])


def _resized_attr(value: Any, old: int, new: int) -> Any:
    if isinstance(value, tuple) and len(value) > 1 and all(isinstance(v, int) for v in value):
        return tuple(new if v == old else v for v in value)
    return value


def _retyped(
    function: Function,
    params: Sequence[Var],
    attrs_of: Callable[[Attrs], Attrs],
    constant_of: Callable[[Constant], Expr],
) -> Function:
    """Returns a function with other parameters; all types are inferred again."""
    made: dict[int, Expr] = {p.id: n for p, n in zip(function.params, params, strict=True)}
    for node in post_order(function.body):
        if node.id in made or isinstance(node, Function):
            continue
        children = [made.get(c.id, c) for c in node.children]
        with building(node.span, (node.id,)):
            match node:
                case Constant():
                    made[node.id] = constant_of(node)
                case Call(op=Function() as inner):
                    fresh = [
                        Var(p.name, a.type, span=p.span)
                        for p, a in zip(inner.params, children[1:], strict=True)
                    ]
                    made[node.id] = Call(
                        _retyped(inner, fresh, attrs_of, constant_of), children[1:], node.attrs
                    )
                case Call():
                    made[node.id] = Call(node.op, children, attrs_of(node.attrs))
                case If() | While():
                    raise ValueError("branches and loops cannot change their shapes")
                case _:
                    made[node.id] = rebuild(node, children)
    return Function(params, made[function.body.id], function.attrs, span=function.span)


def lengths(case: Case) -> list[int]:
    """Returns the sizes of the inputs' axes; those that most elements depend on come first."""
    weight: dict[int, float] = {}
    for value in case.inputs.values():
        shape = np.shape(value)
        for size in set(shape):
            if size > 1:
                weight[size] = weight.get(size, 0.0) + math.prod(shape)
    return sorted(weight, key=lambda size: (-weight[size], size))


# --- fewer operators in kernels -------------------------------------------------------------------


def without_inner(case: Case) -> Iterator[Case]:
    """Yields the case with one operator removed from one of its kernels: its value is replaced by
    one of its operands or a new input, or the kernel returns the operand; without expected outputs.
    """
    main = case.module.main
    calls = [n for n in post_order(main.body) if isinstance(n, Call) and isinstance(n.op, Function)]
    wanted = {n.id for c in calls for n in post_order(c.op.body)}  # type: ignore[union-attr]
    values = interpret_values(main, [case.inputs[p.name] for p in main.params], wanted, case.module)
    for call in calls:
        inner = call.op
        assert isinstance(inner, Function)
        if call in main.body.children:
            for node in inner.body.children:
                if is_operator_call(node) and isinstance(node.type, TensorType):
                    less = Function(inner.params, node, inner.attrs, span=inner.span)
                    try:
                        yield _with_call(case, call, less, call.args)
                    except ClewError:  # others also use the result
                        continue
        for node in post_order(inner.body):
            if node is inner.body or not is_operator_call(node):
                continue
            like = [c for c in node.children if c.type == node.type]
            if isinstance(node.type, TensorType) and node.id in values:
                yield _with_input(case, call, inner, node, values[node.id])
            for operand in like[:1]:
                yield _with_call(case, call, _substituted(inner, node, operand), call.args)


def _with_input(case: Case, call: Call, inner: Function, node: Expr, value: Any) -> Case:
    name = f"x{len(case.module.main.params)}"
    type_ = _static(node.type, value, case.sizes)
    outer, own = (Var(name, type_, span=node.span.unmarked()) for _ in "ab")
    changed = _substituted(inner, node, own)
    changed = Function((*inner.params, own), changed.body, inner.attrs, span=inner.span)
    made = _with_call(case, call, changed, (*call.args, outer), (outer,))
    return Case(made.module, {**made.inputs, name: value}, {})


def _substituted(inner: Function, node: Expr, replacement: Expr) -> Function:
    made: dict[int, Expr] = {node.id: replacement}
    for current in post_order(inner.body):
        if current.id not in made and current.children:
            with building(current.span, (current.id,)):
                made[current.id] = rebuild(current, [made.get(c.id, c) for c in current.children])
    return Function(inner.params, made[inner.body.id], inner.attrs, span=inner.span)


def _with_call(
    case: Case, call: Call, inner: Function, args: Sequence[Expr], more: Sequence[Var] = ()
) -> Case:
    """Returns the case with another function called, without unused parameters."""
    read = {n.id for n in post_order(inner.body)}
    pairs = [(p, a) for p, a in zip(inner.params, args, strict=True) if p.id in read]
    function = Function([p for p, _ in pairs], inner.body, inner.attrs, span=inner.span)
    main = case.module.main
    with building(call.span, (call.id,)):
        made: dict[int, Expr] = {call.id: Call(function, [a for _, a in pairs])}
    body = _rebuilt(main.body, made)
    used = {n.id for n in post_order(body)}
    params = [p for p in (*main.params, *more) if p.id in used]
    inputs = {p.name: case.inputs[p.name] for p in params if p.name in case.inputs}
    names = dict.fromkeys(case.module.output_names)
    return replace(completed(params, body, inputs, names, case.sizes), expected={})


def _rebuilt(body: Expr, made: dict[int, Expr]) -> Expr:
    for node in post_order(body):
        if node.id not in made and node.children and not isinstance(node, Function):
            with building(node.span, (node.id,)):
                made[node.id] = rebuild(node, [made.get(c.id, c) for c in node.children])
    return made.get(body.id, body)
