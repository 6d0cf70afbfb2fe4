"""Names of a kernel's own for sizes that its model has as quotients.

The image of a network's last layers is `((height - 1) // 32) + 1` pixels high. A kernel that
computes with this expression handles polynomials of quotients, and cannot tell that the image has
pixels if the expression may be 0. A name of the kernel's own stands for the whole expression.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

from clew.ir.dims import Atom, Dim, SymDim, at_least, dim_max, dim_min, exact_quotient
from clew.ir.expr import Call, Expr, Function, Tuple, TupleGetItem, Var
from clew.ir.rewrite import building_for
from clew.ir.types import TensorType, leaves, map_dims
from clew.ir.visit import post_order
from clew.ops.registry import Op
from clew.support.dataclass import dataclass
from clew.support.errors import ClewError
from clew.te.analysis import Kind


@dataclass(frozen=True)
class KernelSizes:
    """A primitive function with its own names for some sizes. `dims` has their values in the model.
    `needs` are the dimensions of the model that must be at least 0, so that no size is below the
    least that its name says. `typical` has the numbers to schedule for, by name, where they differ
    from the numbers that the names stand for.
    """

    function: Function
    dims: Mapping[str, Dim] = field(default_factory=dict)
    needs: tuple[SymDim, ...] = ()
    typical: Mapping[str, int] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        """The names that stand for numbers, with these numbers."""
        return {name: dim for name, dim in self.dims.items() if isinstance(dim, int)}

    @property
    def meanings(self) -> tuple[tuple[str, Dim], ...]:
        """The meanings of the names for which the function is scheduled."""
        return tuple({**self.dims, **self.typical}.items())

    @staticmethod
    def of(function: Function) -> KernelSizes:
        """Returns a function with a name for each quotient whose names of sizes occur nowhere else
        in it, except in quotients of that quotient.

        Before:
            fn (%x: f32[n, 8, ((h - 1) // 4) + 1]) -> f32[n, 8, ((h - 1) // 8) + 1]
        After (`dims={"s0": ((h - 1) // 4) + 1}`):
            fn (%x: f32[n, 8, s0]) -> f32[n, 8, ((s0 - 1) // 2) + 1]

        The function is returned as it is if operators do not compute the same shapes from names.
        """
        found = _Names(function)
        if not found.dims:
            return KernelSizes(function)
        try:
            renamed = _rewritten(function, found)
        except ClewError:  # an operator relies on what only the expression tells
            return KernelSizes(function)
        if renamed is None:
            return KernelSizes(function)
        return KernelSizes(renamed, found.dims, found.needs)


class _Unnamed(Exception):
    """No axis can have a name for a quotient."""


class _Names:
    """Chooses the names, and rewrites dimensions in them. `dims` is empty if there are none."""

    def __init__(self, function: Function) -> None:
        self.dims: dict[str, SymDim] = {}
        self.needs: tuple[SymDim, ...] = ()
        # The image of each atom, and a number by which it is to be divided.
        self._images: dict[Atom, tuple[Dim, int]] = {}
        # Quotients by the sizes they are made of: the first has the smallest divisor. With its
        # name, which stands for a multiple of it plus a number.
        self._first: dict[frozenset[Atom], tuple[Atom, SymDim, int, int]] = {}
        dims = list(dict.fromkeys(_dims_of(function)))
        quotients = sorted({a for d in dims for a in _quotients(d)}, key=_order)
        if not quotients:
            return
        axes, filled = _axes(function)
        taken = {name for dim in dims for name in dim.symbols}
        names = (name for n in itertools.count() if (name := f"s{n}") not in taken)
        try:
            for atom in quotients:
                if atom.named not in self._first:
                    self._choose(atom, next(names), axes, filled)
            left = {a for d in map(self.image, dims) for a in _named(d)}
        except _Unnamed:
            left = {a for named in self._first for a in named}
        if any(named & left for named in self._first):
            self.dims, self.needs = {}, ()

    def _choose(self, atom: Atom, name: str, axes: set[SymDim], filled: set[SymDim]) -> None:
        """Names the shortest axis that is a quotient, or the least multiple of it, plus a number.
        Errors: _Unnamed.
        """
        quotient = SymDim({((atom, 1),): 1})
        beyond = sorted(
            (times, rest, d)
            for d in axes
            if (times := dict(d.terms).get(((atom, 1),), 0)) > 0
            and isinstance(rest := d - times * quotient, int)
        )
        for times, offset, dim in beyond:
            is_filled = dim in filled or not at_least(dim)
            if not is_filled and not at_least(dim, 1):
                continue
            own = SymDim.symbol(name)
            if not at_least(dim, 1):
                need = dim - 1
                assert isinstance(need, SymDim)
                self.needs = (*self.needs, need)
            self.dims[name] = dim
            self._images[atom] = own - offset, times
            self._first[atom.named] = atom, own, times, offset
            return
        raise _Unnamed

    def image(self, dim: Dim) -> Dim:
        """Returns a dimension in the names.

        Errors: _Unnamed if it is no polynomial in them.
        """
        if isinstance(dim, int):
            return dim
        parts: list[tuple[Dim, int]] = []
        for monomial, coefficient in dim.terms:
            product: Dim = coefficient
            divisor = 1
            for atom, power in monomial:
                value, by = self._image_of(atom)
                for _ in range(power):
                    product, divisor = product * value, divisor * by
            parts.append((product, divisor))
        common = math.lcm(*(divisor for _, divisor in parts))
        total: Dim = 0
        for product, divisor in parts:
            total = total + product * (common // divisor)
        found = exact_quotient(total, common)
        if found is None:
            raise _Unnamed
        return found

    def _image_of(self, atom: Atom) -> tuple[Dim, int]:
        found = self._images.get(atom)
        if found is None:
            found = self._images[atom] = self._made(atom), 1
        return found

    def _made(self, atom: Atom) -> Dim:
        if not atom.op:
            return SymDim({((atom, 1),): 1})
        found = self._first.get(atom.named)
        if found is not None and _is_quotient(atom):
            # a // (n * m) = (a // n) // m, and (a + n * k) // n = (a // n) + k
            first, own, scale, offset = found
            (value, by), (value0, by0) = atom.args, first.args
            times = exact_quotient(by, by0)
            more = exact_quotient(value - value0, by0)
            if isinstance(times, int) and isinstance(more, int):
                return (own - offset + scale * more) // (scale * times)
        left, right = map(self.image, atom.args)
        match atom.op:
            case "//":
                return left // right
            case "%":
                return left % right
            case "min":
                return dim_min(left, right)
        return dim_max(left, right)


def _is_quotient(atom: Atom) -> bool:
    return atom.op == "//" and isinstance(atom.args[1], int) and atom.args[1] > 1


def _order(atom: Atom) -> tuple[int, str]:
    by = atom.args[1]
    assert isinstance(by, int)
    return by, atom.text


def _quotients(dim: Dim) -> Iterator[Atom]:
    """Yields the outermost quotients by a number in a dimension."""
    for atom in (a for m, _ in dim.terms for a, _ in m) if isinstance(dim, SymDim) else ():
        if _is_quotient(atom):
            yield atom
        else:
            for arg in atom.args:
                yield from _quotients(arg)


def _named(dim: Dim) -> frozenset[Atom]:
    return dim.named if isinstance(dim, SymDim) else frozenset()


def _axes(function: Function) -> tuple[set[SymDim], set[SymDim]]:
    """Returns the sizes of the axes of all values, and of those that an operator reads or computes
    which does more than to map elements. It is worth a condition that these are not empty.
    """
    axes: set[SymDim] = set()
    filled: set[SymDim] = set()
    for node in _nodes(function):
        axes |= set(_symbolic(node))
        if _reduces(node):
            filled |= {dim for value in (node, *node.children) for dim in _symbolic(value)}
    return axes, filled


def _reduces(node: Expr) -> bool:
    """Whether a node is an operator that does more than to map elements."""
    if not isinstance(node, Call) or not isinstance(node.op, Op):
        return False
    return node.op.kind([a.tensor for a in node.args], node.attrs) > Kind.INJECTIVE


def _symbolic(node: Expr) -> Iterator[SymDim]:
    for leaf in leaves(node.type):
        if isinstance(leaf, TensorType):
            yield from (dim for dim in leaf.shape if isinstance(dim, SymDim))


def _nodes(function: Function) -> list[Expr]:
    return [*function.params, *post_order(function.body)]


def _dims_of(function: Function) -> Iterator[SymDim]:
    """Yields the dimensions in the types and attributes of a function."""
    for node in _nodes(function):
        yield from _symbolic(node)
        if isinstance(node, Call):
            yield from _among(node.attrs.values())


def _among(values: Iterable[Any]) -> Iterator[SymDim]:
    for value in values:
        if isinstance(value, SymDim):
            yield value
        elif isinstance(value, tuple):
            yield from _among(value)


def _rewritten(function: Function, names: _Names) -> Function | None:
    """Returns the function in the names; None if an operator computes another type from them."""
    made: dict[int, Expr] = {}
    for node in _nodes(function):
        if node.id in made:
            continue
        with building_for(node):
            new = _over(node, made, names)
        if new.type != map_dims(node.type, names.image):
            return None
        made[node.id] = new
    params = [made[p.id] for p in function.params]
    with building_for(function):
        return Function(params, made[function.body.id], function.attrs)  # type: ignore[arg-type]


def _over(node: Expr, made: Mapping[int, Expr], names: _Names) -> Expr:
    match node:
        case Var():
            return Var(node.name, map_dims(node.type, names.image))
        case Call():
            attrs = {k: _image(v, names) for k, v in node.attrs.items()}
            return Call(node.op, [made[a.id] for a in node.args], node.attrs.with_(**attrs))
        case Tuple():
            return Tuple([made[f.id] for f in node.fields])
        case TupleGetItem():
            return TupleGetItem(made[node.value.id], node.index)
    return node


def _image(value: Any, names: _Names) -> Any:
    if isinstance(value, tuple):
        return tuple(_image(v, names) for v in value)
    return names.image(value) if isinstance(value, SymDim) else value
