"""A kernel's primitive function as tensor expressions: the stages of its loop nest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from clew.codegen.artifact import IndexCheck
from clew.ir.dims import (
    TYPICAL_SIZES,
    Dim,
    Expected,
    SymDim,
    value_at,
)
from clew.ir.expr import Call, Constant, Function, Tuple, TupleGetItem, Var
from clew.ir.types import TensorType
from clew.ir.visit import post_order
from clew.ops.registry import Op
from clew.passes.fusion.write_in_place import IN_PLACE
from clew.support.dataclass import dataclass
from clew.te.expr import Checked, Imm, Scalar
from clew.te.tensor import Tensor, compute, placeholder, stages
from clew.te.walk import nodes, over
from clew.te.walk import post_order as parts_of

_SIZES_OF_WAYS: Final = (*TYPICAL_SIZES[:1], *(1 << n for n in range(6, -1, -1)))


@dataclass(frozen=True)
class Stages:
    """A function as tensor expressions. `ops` maps the name of a stage to the position of its
    operator. `checks` holds the index checks by number, and `needs` the dimensions that operators
    assume to be at least 0.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    ops: dict[str, int]
    checks: tuple[IndexCheck, ...] = ()
    needs: tuple[SymDim, ...] = ()


def operator_calls(function: Function) -> list[Call]:
    """Returns the operator calls of a primitive function, in the order that positions count."""
    return [n for n in post_order(function) if isinstance(n, Call)]


def where_of_ways(function: Function) -> list[Dim]:
    """Returns a dimension for each way to compute a function: 1 at the sizes where it is used and 0
    at others.
    """
    for call in operator_calls(function):
        if isinstance(call.op, Op) and call.op.ways_rule is not None:
            operands = call.op.placeholders([a.tensor for a in call.args])
            return [where for _, where in call.op.ways_rule(operands, call.attrs)]
    return [1]


def expected_of_way(where: Dim) -> Expected:
    """Returns the sizes for which to schedule a way, all equal: the largest power of two up to 64
    at which the way is used, that is, `where` is 1. Empty if the way is used at the typical size,
    for which kernels are scheduled by default, or at none of these sizes.
    """
    names = sorted(where.symbols) if isinstance(where, SymDim) else []
    for size in _SIZES_OF_WAYS:
        if value_at(where, dict.fromkeys(names, size)):
            return () if size == _SIZES_OF_WAYS[0] else tuple((name, size) for name in names)
    return ()


def to_stages(function: Function, way: int = 0) -> Stages:
    """Returns a primitive function as tensor expressions, with stages named after operators.
    `way` is the number of the way to use for operators that have several.
    """
    taken: dict[str, int] = {}
    values: dict[int, tuple[Tensor, ...]] = {}
    ops: dict[str, int] = {}
    inputs: list[Tensor] = []
    named: set[int] = set()
    for position, param in enumerate(function.params):
        assert isinstance(param.type, TensorType)
        name = _unique(f"in{position}", taken)
        inputs.append(placeholder(param.type.shape, param.type.dtype, name, param.type.layout))
        values[param.id] = (inputs[-1],)
    count = 0
    for node in post_order(function.body):
        match node:
            case Var():
                pass
            case Constant():
                values[node.id] = (_constant(node, _unique("const", taken), count, ops),)
                named.add(id(values[node.id][0]))
            case Call(op=Op() as op):
                args = [values[a.id][0] for a in node.args]
                in_place = node is function.body and IN_PLACE in function.attrs
                made = (
                    (op.scattered(args, node.attrs),) if in_place else _compute(op, node, args, way)
                )
                _name_stages(op, made, taken, ops, named, count)
                values[node.id] = made
                count += 1
            case Tuple():
                values[node.id] = tuple(values[f.id][0] for f in node.fields)
            case TupleGetItem():
                values[node.id] = (values[node.value.id][node.index],)
            case _:
                raise AssertionError(f"{node} in a primitive function")
    outputs = _distinct(values[function.body.id], taken, ops, count)
    return Stages(tuple(inputs), outputs, ops)


def with_checks(made: Stages, bounds: str) -> Stages:
    """Returns the stages with their index checks numbered, or removed."""
    checks: list[IndexCheck] = []
    for stage in stages(made.outputs):
        assert stage.body is not None
        if not any(isinstance(node, Checked) for node in nodes(stage.body)):
            continue
        images: dict[int, Scalar] = {}
        for node in parts_of(stage.body):
            new = over(node, tuple([images[id(c)] for c in node.children]))
            if isinstance(new, Checked):
                if bounds == "clamp":
                    new = new.clamped
                else:
                    new = Checked(new.value, new.places, new.hold, len(checks))
                    checks.append(IndexCheck(new.places, made.ops[stage.name]))
            images[id(node)] = new
        stage.body = images[id(stage.body)]
    return replace(made, checks=tuple(checks))


def _compute(op: Op, node: Call, args: list[Tensor], way: int) -> tuple[Tensor, ...]:
    if way and op.ways_rule is not None:
        return (op.ways_rule(args, node.attrs)[way][0],)
    assert op.compute is not None, f"{op.name} has no tensor form and cannot be in a kernel"
    made = op.compute(*args, **node.attrs)
    return made if isinstance(made, tuple) else (made,)


def _constant(node: Constant, name: str, position: int, ops: dict[str, int]) -> Tensor:
    assert node.is_splat, "constants inside a kernel are single values"
    value = node.splat_value
    ops[name] = position  # the next operator, which reads it
    return compute(node.tensor.shape, lambda *_: Imm(value, node.tensor.dtype), name)


def _name_stages(
    op: Op,
    made: tuple[Tensor, ...],
    taken: dict[str, int],
    ops: dict[str, int],
    named: set[int],
    position: int,
) -> None:
    """Names the stages of an operator after it. The last stage gets the operator's plain name."""
    new = stages(made, named)
    short = op.name.rsplit(".", 1)[-1]
    for stage in new:
        alone = len(new) == 1 or stage is made[0]
        stage.name = _unique(short if alone else f"{short}.{stage.name}", taken)
        ops[stage.name] = position
        named.add(id(stage))


def _distinct(
    tensors: tuple[Tensor, ...], taken: dict[str, int], ops: dict[str, int], count: int
) -> tuple[Tensor, ...]:
    """Returns outputs with a separate stage each: copies those that are inputs or repeated."""
    seen: set[int] = set()
    result: list[Tensor] = []
    for tensor in tensors:
        if tensor.body is None or id(tensor) in seen:
            name = _unique("copy", taken)
            ops[name] = max(count - 1, 0)
            source = tensor
            tensor = compute(source.shape, _reader(source), name)
        seen.add(id(tensor))
        result.append(tensor)
    return tuple(result)


def _reader(source: Tensor) -> Any:
    return lambda *indices: source[indices]


def _unique(name: str, taken: dict[str, int]) -> str:
    count = taken.get(name, 0)
    taken[name] = count + 1
    return name if not count else _unique(f"{name}_{count}", taken)
