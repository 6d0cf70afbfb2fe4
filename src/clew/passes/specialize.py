"""Specialize: substitutes values for symbolic sizes and for inputs that decide shapes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeGuard

from clew.cost.policy.folding import SHAPE_ELEMENTS
from clew.ir.deciding import decided_by
from clew.ir.dims import Dim, SymDim, substitute
from clew.ir.expr import Call, Constant, Expr, Function, If, Tuple, Var, While
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter, building_for, replaces
from clew.ir.types import (
    TensorType,
    TupleType,
    Type,
    empty_array,
    is_empty,
    leaves,
    substitute_type,
)
from clew.ir.values import KnownValues
from clew.ir.visit import post_order
from clew.ops.registry import Op
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass
from clew.support.errors import Hint, InputError, locate


@dataclass(frozen=True)
class Specialize(Pass):
    """Makes a module concrete for the sizes of one run and the values of inputs that decide shapes.

    It is the first pass of a build for given sizes: of a model whose inputs decide shapes, and of
    sizes that the build for all sizes does not serve.

    Before (`sizes={"batch": 2}`):
        %1: f32[batch, 4] = nn.relu(%x); %2: i64[2] = shape_of(%1)
    After:
        %1: f32[2, 4] = nn.relu(%x); %2: i64[2] = const [2, 4]

    Operators whose meaning depends on ranks (`onnx.layer`) are resolved where the ranks follow.
    Attributes bound at run time are settled if their argument is known now; a remark names each
    input whose value was used and the attribute it decides. A branch with a settled condition is
    replaced by its results, and bodies of loops that never run are removed. Before this pass, two
    sizes that broadcast are assumed to be equal; if one turns out to be 1 and attributes were
    derived from it, those may be wrong (I042). `names` gives sizes other names, or expressions of
    these: in a kernel for all sizes, one that the data decide is a size as any other. `shapes`
    gives whole shapes of parameters whose sizes need not be plain names (`min(40, ?3)`).

    Preconditions: `sizes` and `shapes` fit the inputs. Non-goals: data-dependent sizes.
    """

    opt_level: ClassVar[int] = 0
    exactness: ClassVar[Exactness] = EXACT

    sizes: tuple[tuple[str, int], ...] = ()
    values: tuple[tuple[str, Any], ...] = ()
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    names: tuple[tuple[str, SymDim], ...] = ()

    def run(self, module: Module, ctx: PassContext) -> Module:
        values = dict(self.values)
        for param in module.main.params if values else ():
            if param.name in values:
                ctx.remark(param, _decision(module.main, param))
        sizes: dict[str, Dim] = {**dict(self.sizes), **dict(self.names)}
        return Specializer(sizes, values, dict(self.shapes)).rewrite_module(module)


def with_sizes(module: Module, sizes: Mapping[str, int]) -> Module:
    """Returns a module with some of its symbolic sizes replaced by numbers, before any build.

    Errors: I042 if sizes that were assumed to be equal differ, and those of operators that are not
    defined for these sizes.
    """
    with locate(pass_name=Specialize.__name__):
        return Specializer(sizes, {}, {}).rewrite_module(module)


def with_sizes_from_zero(module: Module, names: Collection[str]) -> Module:
    """Returns a module in which some of its symbolic sizes may be 0, before any build.

    Errors: those of operators.
    """
    with locate(pass_name=Specialize.__name__):
        sizes = {name: SymDim.symbol(name, least=0) for name in names}
        return Specializer(sizes, {}, {}).rewrite_module(module)


def with_input(module: Module, name: str, value: Any) -> Module:
    """Returns a module in which an input has a known value, before any build; it remains as an
    unused parameter.

    Errors: those of operators.
    """
    with locate(pass_name=Specialize.__name__):
        return Specializer({}, {name: value}, {}).rewrite_module(module)


class Specializer(Rewriter):
    """Rewrites a module with known sizes and values substituted."""

    enter_primitive = True

    def __init__(
        self,
        sizes: Mapping[str, Dim],
        values: Mapping[str, Any],
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        super().__init__()
        self.sizes.update(sizes)
        self.values = values
        self.shapes = shapes
        self.known = KnownValues()
        # Names of sizes in attributes; names whose value contradicts a computed type.
        self._used: set[str] = set()
        self._wrong: dict[str, tuple[Call, Type]] = {}

    def rewrite_module(self, module: Module) -> Module:
        for param in module.main.params:
            with building_for(param):
                if param.name in self.values:
                    self.memo[param.id] = Constant(self.values[param.name])
                elif param.name in self.shapes:
                    type_ = replace(param.tensor, shape=self.shapes[param.name])
                    self.memo[param.id] = param if type_ == param.type else Var(param.name, type_)
        new = super().rewrite_module(module)
        for name in sorted(self._wrong.keys() & self._used):
            call, found = self._wrong[name]
            with building_for(call):
                raise InputError(
                    "I042",
                    f"{call.op_name} returns {found} for these inputs instead of {call.type}: "
                    "sizes that broadcast are assumed to be equal",
                    hint=Hint(
                        "compile it with the shapes of its inputs (inputs={...})",
                        cli="compile it with the shapes of its inputs (--shape NAME=1,3,224,224)",
                        page="compile it with the shapes of its inputs",
                    ),
                )
        return new

    def leave(self, function: Function, new: Function) -> Function:
        return new

    def rewrite_function(self, function: Function) -> Function:
        held = {p.id for p in function.params if isinstance(self.memo.get(p.id), Constant)}
        if not held:
            return super().rewrite_function(function)
        # An input with a known value remains as an unused parameter.
        inner = Function(
            [p for p in function.params if p.id not in held], function.body, function.attrs
        )
        new = super().rewrite_function(inner)
        kept = iter(new.params)
        params = [p if p.id in held else next(kept) for p in function.params]
        with building_for(function):
            return Function(params, new.body, new.attrs)

    def order(self, function: Function) -> Sequence[Expr]:
        # Branches and bodies are visited from their If or While, once it is known whether they run.
        return [n for n in super().order(function) if not isinstance(n, Function)]

    def _visit(self, node: Expr) -> Expr:
        if node.id in self.memo:
            return self.memo[node.id]
        if isinstance(node, If):
            new = self._taken(node)
            if new is not None:
                replaces(node, new)
                self.memo[node.id] = new
                return new
        elif isinstance(node, While):
            trips = None if node.trips is None else substitute(node.trips, self.sizes)
            new = self.without_loop(node, trips)
            if new is not None:
                replaces(node, new)
                self.memo[node.id] = new
                return new
        return super()._visit(node)

    def _taken(self, node: If) -> Expr | None:
        """Returns the results of the branch that is taken, if that is known. The other branch may
        be invalid for these sizes.
        """
        cond = self._visited(node.cond)
        if not isinstance(cond, Constant):
            return None
        taken = node.then if bool(cond.data.reshape(-1)[0]) else node.orelse
        args = [self._visited(arg) for arg in node.args]
        with building_for(node):
            return self.inlined(taken, args)

    def inlined(self, function: Function, args: Sequence[Expr]) -> Expr:
        """Returns the body of a function over visited arguments."""
        nodes = [n for n in post_order(function.body) if not isinstance(n, Function)]
        own = [n.id for n in (*function.params, *nodes)]
        before = {n: self.memo.pop(n) for n in own if n in self.memo}
        self.memo.update(zip((p.id for p in function.params), args, strict=True))
        for node in nodes:
            self._visit(node)
        result = self.memo[function.body.id]
        for n in own:  # another call of the function has other arguments
            self.memo.pop(n, None)
        self.memo.update(before)
        return result

    def without_loop(self, node: While, trips: Dim | None) -> Expr | None:
        """Returns the value of a loop that never runs, whose body may be invalid for these sizes.
        None if the loop may run, or if only the body determines the sizes of its stacks.
        """
        assert isinstance(node.type, TupleType)
        stacks = [substitute_type(t, self.sizes) for t in node.type.fields[len(node.init) :]]
        if trips != 0 or not all(map(is_empty, stacks)):
            return None
        init = [self._visited(i) for i in node.init]
        with building_for(node):
            empty = [Constant(empty_array(t)) for t in stacks]
            return Tuple([*init, *empty])

    def rewrite_var(self, old: Var) -> Expr:
        type_ = substitute_type(old.type, self.sizes)
        return old if type_ == old.type else Var(old.name, type_)

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if not isinstance(new.op, Op):
            return new
        if new.op.known_rule is not None:
            return self._once_known(new, new.op.known_rule)
        resolved = new.op.resolve(new)
        type_ = resolved.type
        self._compare(old, type_)
        if not isinstance(type_, TensorType) or not type_.is_static:
            return resolved
        size = type_.size
        assert isinstance(size, int)
        if size <= SHAPE_ELEMENTS and _decides_shapes(type_):
            value = self.known.get(resolved)
            if value is not None and value.dtype != object:
                return Constant(value)
        return resolved

    def _once_known(self, call: Call, rule: Callable[..., Function | None]) -> Expr:
        """Resolves a call whose meaning depends on types if the types are known by now."""
        types = [arg.type for arg in call.args]
        if not all(isinstance(t, TensorType) and t.is_static for t in types):
            return call
        values = [arg.data if _is_small(arg) else None for arg in call.args]
        function = rule(types, values, **call.attrs)
        if function is None:
            return call
        return self.inlined(function, call.args)

    def _compare(self, old: Call, found: Type) -> None:
        """Records names of sizes in the attributes, and those in the type that differ from
        `found`.
        """
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


def _decision(main: Function, param: Var) -> str:
    """Returns a description, for users, of the attributes that a parameter's value decides."""
    found = [
        f"{attribute} of {call.op_name} ({', '.join(call.layers) or 'no layer'})"
        for call, attribute, params in decided_by(main)
        if param in params
    ]
    what = "; ".join(found) or "which graph the model is"
    return f"the value of {param.name} decides {what}: each new value costs a build"


def _is_small(arg: Expr) -> TypeGuard[Constant]:
    return isinstance(arg, Constant) and arg.data.size <= SHAPE_ELEMENTS


def _names_in(value: object) -> frozenset[str]:
    """Returns the names of sizes in an attribute."""
    if isinstance(value, SymDim):
        return value.symbols
    if isinstance(value, tuple):
        return frozenset().union(*map(_names_in, value))
    return frozenset()


def _decides_shapes(type_: TensorType) -> bool:
    return type_.dtype in ("i64", "i32", "bool") and type_.rank <= 1
