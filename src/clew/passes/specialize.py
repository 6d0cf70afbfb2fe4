"""Specialize: gives symbolic sizes, and inputs that decide shapes, their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clew.ir.dims import SymDim
from clew.ir.expr import Call, Constant, Expr, Function, Var
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter, building_for
from clew.ir.types import TensorType, Type, leaves, substitute_type
from clew.ir.values import KnownValues
from clew.ops.registry import Op
from clew.passes.base import Pass, PassContext
from clew.support.errors import InputError

_MAX_FOLDED_ELEMENTS = 4096


@dataclass(frozen=True)
class Specialize(Pass):
    """Makes a module concrete for one run's sizes, and for the inputs' values that decide shapes.

    Kernels are generated for concrete shapes; a model with symbolic sizes is specialised to those
    it meets, and the result kept.

    Before (`sizes={"batch": 2}`):
        %1: f32[batch, 4] = nn.relu(%x); %2: i64[2] = shape_of(%1)
    After:
        %1: f32[2, 4] = nn.relu(%x); %2: i64[2] = const [2, 4]

    Attributes bound at run time are settled where their argument is known now. Two sizes that
    broadcast are taken to be equal before: where one turns out to be 1, and attributes were made of
    it, they may be wrong (I042). Preconditions: `sizes` fits the inputs. Non-goals: sizes that
    depend on data.
    """

    opt_level = 0

    sizes: tuple[tuple[str, int], ...] = ()
    values: tuple[tuple[str, Any], ...] = ()

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Specializer(dict(self.sizes), dict(self.values)).rewrite_module(module)


class _Specializer(Rewriter):
    enter_primitive = True

    def __init__(self, sizes: Mapping[str, int], values: Mapping[str, Any]) -> None:
        super().__init__()
        self.sizes.update(sizes)
        self.values = values
        self.known = KnownValues()
        # Names of sizes in attributes; those of which types said something else than is so.
        self._used: set[str] = set()
        self._wrong: dict[str, tuple[Call, Type]] = {}

    def rewrite_module(self, module: Module) -> Module:
        for param in module.main.params:
            if param.name in self.values:
                with building_for(param):
                    self.memo[param.id] = Constant(self.values[param.name])
        new = super().rewrite_module(module)
        for name in sorted(self._wrong.keys() & self._used):
            call, found = self._wrong[name]
            with building_for(call):
                raise InputError(
                    "I042",
                    f"{call.op_name} gives {found} for these inputs, and {call.type} was expected: "
                    "sizes that broadcast are taken to be equal",
                    hint="compile it with the shapes of its inputs (inputs={...})",
                )
        return new

    def leave(self, function: Function, new: Function) -> Function:
        return new

    def rewrite_function(self, function: Function) -> Function:
        held = {p.id: self.memo[p.id] for p in function.params if p.id in self.memo}
        if not any(isinstance(v, Constant) for v in held.values()):
            return super().rewrite_function(function)
        # An input whose value is known stays a parameter that nothing reads.
        inner = Function(
            [p for p in function.params if p.id not in held], function.body, function.attrs
        )
        new = super().rewrite_function(inner)
        kept = iter(new.params)
        params = [p if p.id in held else next(kept) for p in function.params]
        with building_for(function):
            return Function(params, new.body, new.attrs)

    def rewrite_var(self, old: Var) -> Expr:
        type_ = substitute_type(old.type, self.sizes)
        return old if type_ == old.type else Var(old.name, type_)

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if not isinstance(new.op, Op):
            return new
        resolved = new.op.resolve(new)
        type_ = resolved.type
        self._compare(old, type_)
        if not isinstance(type_, TensorType) or not type_.is_static:
            return resolved
        size = type_.size
        assert isinstance(size, int)
        if size <= _MAX_FOLDED_ELEMENTS and _decides_shapes(type_):
            value = self.known.get(resolved)
            if value is not None and value.dtype != object:
                return Constant(value)
        return resolved

    def _compare(self, old: Call, found: Type) -> None:
        """Notes the names of sizes in a call's attributes, and in its type where it was another."""
        for value in old.attrs.values():
            self._used |= _names_in(value)
        for was, is_ in zip(leaves(old.type), leaves(found), strict=False):
            if not (isinstance(was, TensorType) and isinstance(is_, TensorType)):
                continue
            for dim, size in zip(was.shape, is_.shape, strict=False):
                if not isinstance(dim, SymDim) or not isinstance(size, int):
                    continue
                told = dim.substitute(self.sizes)
                if isinstance(told, int) and told != size:
                    self._wrong |= dict.fromkeys(dim.symbols, (old, found))


def _names_in(value: object) -> frozenset[str]:
    """Returns the names of sizes in an attribute."""
    if isinstance(value, SymDim):
        return value.symbols
    if isinstance(value, tuple):
        return frozenset().union(*map(_names_in, value))
    return frozenset()


def _decides_shapes(type_: TensorType) -> bool:
    return type_.dtype in ("i64", "i32", "bool") and type_.rank <= 1
