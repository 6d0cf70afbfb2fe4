"""Kernels in a form that another process can lower; also the program of a process that does."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from clew.backends.cpu.lowering import KernelSource, operator_calls
from clew.codegen.worker import emit_object, serve
from clew.ir.dims import Expected
from clew.ir.expr import Attrs, Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from clew.ir.types import TensorType
from clew.ir.visit import post_order
from clew.machine.target import Target
from clew.ops.registry import Op
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class Portable:
    """A primitive function without what belongs to a process: its nodes in the order of their use,
    each with the positions of its operands. `key` is that of its kernel.
    """

    nodes: list[tuple[Any, ...]]
    params: list[int]
    body: int
    attrs: dict[str, Any]
    target: Target
    bounds: str
    expected: Expected
    key: str

    @staticmethod
    def of(source: KernelSource) -> Portable | None:
        """Returns the portable form of a kernel. None if it has code of the user."""
        function = source.function
        ops = [call.op for call in operator_calls(function)]
        if source.by_hand or not all(isinstance(op, Op) and op.is_builtin for op in ops):
            return None
        places: dict[int, int] = {}
        nodes: list[tuple[Any, ...]] = []
        for node in (*function.params, *post_order(function.body)):
            if node.id not in places:
                places[node.id] = len(nodes)
                nodes.append(_record(node, places))
        return Portable(
            nodes,
            [places[param.id] for param in function.params],
            places[function.body.id],
            dict(function.attrs),
            source.target,
            source.bounds,
            source.expected,
            source.key,
        )

    def packed(self) -> bytes:
        """Returns the form as bytes."""
        return pickle.dumps(self)

    def source(self) -> KernelSource:
        """Returns the kernel."""
        made: list[Expr] = []
        for record in self.nodes:
            made.append(_node(record, made))
        params = [made[place] for place in self.params]
        function = Function(params, made[self.body], self.attrs)  # type: ignore[arg-type]
        source = KernelSource(function, self.target, (), self.bounds, expected=self.expected)
        assert source.key == self.key, "another kernel"
        return source


def _record(node: Expr, places: dict[int, int]) -> tuple[Any, ...]:
    match node:
        case Var():
            return "var", node.name, node.type
        case Constant():
            assert node.is_splat, "constants inside a kernel are single values"
            return "constant", node.splat_value, node.type
        case Call():
            args = [places[arg.id] for arg in node.args]
            return "call", node.op, args, dict(node.attrs)
        case Tuple():
            return "tuple", [places[field.id] for field in node.fields]
        case TupleGetItem():
            return "field", places[node.value.id], node.index
    raise AssertionError(f"{node} in a primitive function")


def _node(record: tuple[Any, ...], made: Sequence[Expr]) -> Expr:
    match record:
        case "var", name, type_:
            return Var(name, type_)
        case "constant", value, TensorType() as type_:
            return Constant.splat(value, type_)
        case "call", op, args, attrs:
            return Call(op, [made[arg] for arg in args], Attrs(attrs))
        case "tuple", fields:
            return Tuple([made[field] for field in fields])
        case "field", value, index:
            return TupleGetItem(made[value], index)
    raise AssertionError(f"no node {record[0]}")


def run() -> None:
    """Is the program of a worker."""
    serve(_answer)


def _answer(request: bytes) -> bytes:
    portable: Portable = pickle.loads(request)
    source = portable.source()
    text, target = source.emitted.llvm, source.target
    return source.binary(emit_object(text, target.triple, target.cpu, target.features)).to_bytes()
