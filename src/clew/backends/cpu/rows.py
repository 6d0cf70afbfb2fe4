"""Data-dependent sizes along which the rows of a kernel are independent.

A kernel for 12 boxes can then also compute 11: the last box is repeated, and the result of the copy
is dropped. This also works if the kernel reads rows by index and no index refers to the copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from clew.cost.policy.sizes import (
    COUNT_STEP_BITS,
    FEW_COUNT_BITS,
    LEAST_COUNT,
    LEAST_LONG_COUNT,
    REPEATED_ELEMENTS,
    SUMS_PER_ELEMENT,
)
from clew.ir.dims import Dim, SymDim, product
from clew.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from clew.ir.types import TensorType, Type, leaves
from clew.ir.visit import post_order
from clew.ops.registry import Op
from clew.support.dataclass import dataclass
from clew.support.errors import ClewError
from clew.te.expr import Cast, Checked, Index, Load, Reduce, Sequential, Size
from clew.te.tensor import Tensor, stages
from clew.te.walk import nodes

Array = np.ndarray[Any, Any]
_Place: TypeAlias = tuple[slice, ...]
_PLAIN: Final = (Var, Constant, Call, Tuple, TupleGetItem)


@dataclass(frozen=True)
class Rows:
    """The independent rows of a function along one size.

    `params` and `results` hold the numbers of parameters and results that have such rows, with the
    axis. `size` is the index of their count among the size arguments, if it is one. Rows that are
    only read by index are in no result; `indices` are the parameters that hold these indices.
    `elements` is the size of the largest row of any value in the kernel (16 multiply-adds count as
    one element); 0 if unknown.
    """

    params: tuple[tuple[int, int], ...]
    results: tuple[tuple[int, int], ...]
    size: int | None = None
    indices: tuple[int, ...] = ()
    elements: int = 0

    def count(self, shapes: Sequence[Sequence[int]], sizes: Sequence[int]) -> int:
        """Returns the number of rows in arguments of these shapes and sizes."""
        if self.size is not None:
            return sizes[self.size]
        number, axis = self.params[0]
        return shapes[number][axis]

    def rounded(
        self, arrays: Sequence[Array], shapes: Sequence[Sequence[int]], sizes: Sequence[int]
    ) -> int:
        """Returns the number of rows of the kernel for these arguments."""
        count = self.count(shapes, sizes)
        if not all(_are_below(arrays[n], count) for n in self.indices):
            return count  # an index counts from the end, or is an error
        if not count:
            return 0
        coarse = LEAST_COUNT
        while coarse < count:
            coarse <<= COUNT_STEP_BITS
        if 0 < coarse * self.elements <= REPEATED_ELEMENTS:
            return coarse
        if self.indices:  # these rows cost only a copy
            return max(LEAST_COUNT, 1 << (count - 1).bit_length())
        some = 0 < LEAST_LONG_COUNT * self.elements <= REPEATED_ELEMENTS
        return max(rounded_up(count), LEAST_LONG_COUNT if some else 0)


@dataclass(frozen=True)
class Fitting:
    """Converts arguments to those of a kernel with rounded counts of rows, and its results back.

    `pads` holds, for a parameter: its number, the padded shape, the place of the argument, the
    place of copies of its last row, and the place of that row. `cuts` holds the number of a result
    and the part to keep. `indices` holds the numbers of parameters that are row indices, with the
    count that they must be below.
    """

    pads: tuple[tuple[int, tuple[int, ...], _Place, _Place, _Place], ...]
    cuts: tuple[tuple[int, _Place], ...]
    indices: tuple[tuple[int, int], ...]

    @staticmethod
    def of(
        rows: Sequence[Rows],
        rounded: Sequence[int],
        shapes: Sequence[tuple[int, ...]],
        sizes: Sequence[int],
    ) -> Fitting:
        """Returns the fitting for arguments of `shapes` and `sizes`."""
        now, pads, cuts, indices = list(shapes), [], [], []
        for each, wanted in zip(rows, rounded, strict=True):
            count = each.count(shapes, sizes)
            indices += [(number, count) for number in each.indices]
            if wanted == count:
                continue
            for number, axis in each.params:
                whole = now[number]
                now[number] = (*whole[:axis], wanted, *whole[axis + 1 :])
                before = (slice(None),) * axis
                places = (slice(count), slice(count, None), slice(count - 1, count))
                pads.append((number, now[number], *((*before, place) for place in places)))
            for number, axis in each.results:
                cuts.append((number, (*(slice(None),) * axis, slice(count))))
        return Fitting(tuple(pads), tuple(cuts), tuple(indices))  # type: ignore[arg-type]

    @property
    def is_exact(self) -> bool:
        """Whether it changes and checks nothing."""
        return not (self.pads or self.cuts or self.indices)

    def takes(self, arrays: Sequence[Array]) -> bool:
        """Whether all row indices in the arguments are below the count of rows."""
        return all(_are_below(arrays[number], count) for number, count in self.indices)

    def widened(self, arrays: Sequence[Array]) -> list[Array]:
        """Returns the arguments with the last rows repeated."""
        result = list(arrays)
        for number, shape, at, rest, last in self.pads:
            given = result[number]
            made = result[number] = np.empty(shape, given.dtype)
            made[at] = given
            made[rest] = given[last]
        return result

    def cut(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the results without those of repeated rows."""
        if not self.cuts:
            return values
        result = list(values)
        for number, place in self.cuts:
            result[number] = result[number][place]
        return tuple(result)


def _are_below(numbers: Array, count: int) -> bool:
    """Whether all integers are at least 0 and below `count`."""
    if not numbers.size:
        return True
    if numbers.dtype.kind == "i":  # as unsigned numbers, negative ones are large
        numbers = numbers.view(f"u{numbers.dtype.itemsize}")
    return bool(numbers.max() < count)


def rounded_up(count: int) -> int:
    """Returns a count of rows rounded up to one that kernels have: 1, 4, 8, 12, 16, 24, 32, ..."""
    if count <= 1:
        return count
    bits = max((count - 1).bit_length(), FEW_COUNT_BITS)
    step = 1 << max(bits - 2, FEW_COUNT_BITS)
    return -(-count // step) * step


def rows_of(function: Function, sizes: Sequence[str], deciding: Sequence[int]) -> tuple[Rows, ...]:
    """Returns the independent rows of a function, for each size that has any. `sizes` names the
    size arguments. `deciding` are the numbers of parameters whose values determine sizes.
    """
    body = list(post_order(function.body))
    if not all(isinstance(n, _PLAIN) for n in body):
        return ()
    found: dict[SymDim, None] = {}
    for value in (*function.params, function.body):
        for type_ in _tensors(value.type):
            found.update((d, None) for d in type_.shape if isinstance(d, SymDim))
    made = (_rows_along(d, function, body, sizes, deciding) for d in found)
    return tuple(rows for rows in made if rows is not None)


def _rows_along(
    dim: SymDim,
    function: Function,
    body: Sequence[Expr],
    sizes: Sequence[str],
    deciding: Sequence[int],
) -> Rows | None:
    params = [_axes(dim, list(_tensors(p.type))) for p in function.params]
    results = _axes(dim, list(_tensors(function.body.type)))
    related = [name for name in sizes if name in dim.symbols]
    if results is None or None in params or not (any(params) or str(dim) in related):
        return None
    if related not in ([], [str(dim)]) or any(params[n] for n in deciding):
        return None
    at = [(n, axes[0][1]) for n, axes in enumerate(params) if axes]
    size = sizes.index(related[0]) if related else None
    numbers = {p.id: n for n, p in enumerate(function.params)}
    indices: dict[int, None] = {}
    for node in body:
        axes = [_axes(dim, list(_tensors(n.type))) for n in (*node.children, node)]
        if None in axes:
            return None
        if not isinstance(node, Call) or not any(axes) or _keeps_rows(node, dim):
            continue
        read_by = [] if results or axes[-1] else _indices_of(node, dim)
        if not read_by or any(a.id not in numbers for a in read_by):
            return None
        indices.update((numbers[a.id], None) for a in read_by)
    return Rows(tuple(at), tuple(results), size, tuple(indices), _row_elements(dim, body))


def _row_elements(dim: SymDim, body: Sequence[Expr]) -> int:
    """Returns the size of the largest row, including multiply-adds; 0 if unknown."""
    most = 1
    for node in body:
        types = [*_tensors(node.type)]
        stages_made: Sequence[TensorType | Tensor] = types
        if isinstance(node, Call) and not (isinstance(node.op, Op) and node.op.name == "reshape"):
            stages_made = [*types, *_stages_of(node)]
            if len(stages_made) == len(types):
                return 0
        for made in stages_made:
            count = _elements_of_row(made, dim)
            if count is None:
                return 0
            most = max(most, count)
    return most


def _elements_of_row(made: TensorType | Tensor, dim: SymDim) -> int | None:
    """Returns the elements in a row of a value, or the equivalent of its sums; None if unknown."""
    if dim not in made.shape:
        return 0
    count = product(tuple(d for d in made.shape if d != dim))
    if isinstance(made, Tensor) and isinstance(made.body, Reduce):
        count = count * product(tuple(axis.extent for axis in made.body.axes)) // SUMS_PER_ELEMENT
    return count if isinstance(count, int) else None


def _tensors(type_: Type) -> Iterator[TensorType]:
    return (t for t in leaves(type_) if isinstance(t, TensorType))


def _axes(dim: SymDim, types: Sequence[TensorType | Tensor]) -> list[tuple[int, int]] | None:
    """Returns the tensors (by number) that have an axis of this size, with the axis; None if a size
    depends on it in another way.
    """
    found: list[tuple[int, int]] = []
    for number, type_ in enumerate(types):
        at = [n for n, d in enumerate(type_.shape) if d == dim]
        if len(at) > 1 or any(_depends(d, dim) for d in type_.shape if d != dim):
            return None
        found += [(number, n) for n in at]
    return found


def _depends(size: Dim, dim: SymDim) -> bool:
    return isinstance(size, SymDim) and bool(size.symbols & dim.symbols)


def _keeps_rows(call: Call, dim: SymDim) -> bool:
    """Whether an operator computes each row of its results from the same row of its arguments."""
    if isinstance(call.op, Op) and call.op.name == "reshape":
        return _around(call.args[0].tensor, dim) == _around(call.tensor, dim)
    made = _stages_of(call)
    return bool(made) and all(_stage_keeps_rows(s, dim) for s in made)


def _stages_of(call: Call) -> list[Tensor]:
    """Returns the te stages of an operator in order; none if te does not define it completely."""
    op = call.op
    if not isinstance(op, Op) or not op.is_computed(call.attrs):
        return []
    try:
        return stages(op.computed([a.tensor for a in call.args], call.attrs))
    except ClewError:
        return []


def _indices_of(call: Call, dim: SymDim) -> list[Expr]:
    """Returns the arguments whose elements are indices of the rows that an operator reads; [] if
    the operator uses the rows in any other way.
    """
    found: list[Expr] = []
    made = _stages_of(call)
    inputs = [t for s in made for t in s.inputs if t.body is None]
    if len({t.name for t in inputs}) != len(call.args):
        return []
    assert isinstance(call.op, Op)
    names = list(call.op.signature.inputs)
    for stage in made:
        assert stage.body is not None
        for node in nodes(stage.body):
            source = _axes(dim, [node.source]) if isinstance(node, Load) else []
            if source is None or (isinstance(node, Size) and _depends(node.dim, dim)):
                return []
            if not source:
                continue
            assert isinstance(node, Load)
            number = node.indices[source[0][1]]
            while isinstance(number, (Checked, Cast)):
                number = number.children[0]
            if not isinstance(number, Load) or number.source.name not in names:
                return []
            found.append(call.args[names.index(number.source.name)])
    return found


def _around(type_: TensorType, dim: SymDim) -> tuple[Dim, Dim] | None:
    """Returns the number of elements outside an axis, and the number inside."""
    if dim not in type_.shape:
        return None
    at = type_.shape.index(dim)
    return product(type_.shape[:at]), product(type_.shape[at + 1 :])


def _stage_keeps_rows(stage: Tensor, dim: SymDim) -> bool:
    assert stage.body is not None
    own = _axes(dim, [stage])
    if own is None or isinstance(stage.body, Sequential):
        return False
    row = stage.axes[own[0][1]] if own else _same_if_repeated(stage, dim)
    for node in nodes(stage.body):
        match node:
            case Size():
                fits = not _depends(node.dim, dim)
            case Checked():
                fits = not any(_depends(n, dim) for n in (node.places.count, node.places.size))
            case Index():
                fits = node is row or not _depends(node.extent, dim)
            case Load():
                fits = _reads_row(node, row, dim)
            case _:
                fits = row is None or all(child is not row for child in node.children)
        if not fits:
            return False
    return True


def _same_if_repeated(stage: Tensor, dim: SymDim) -> Index | None:
    """Returns the axis of rows that a stage reduces, if repeated rows do not change the result, as
    in a maximum, minimum, `and` or `or`.
    """
    body = stage.body
    if not isinstance(body, Reduce) or body.combiner not in ("max", "min", "and", "or"):
        return None
    rows = [axis for axis in body.axes if axis.extent == dim]
    return rows[0] if len(rows) == 1 else None


def _reads_row(load: Load, row: Index | None, dim: SymDim) -> bool:
    """Whether a load reads only the row being computed, or a tensor without rows."""
    source = _axes(dim, [load.source])
    if source is None:
        return False
    own = source[0][1] if source else None
    return all(
        (index is row and row is not None) if n == own else index is not row
        for n, index in enumerate(load.indices)
    )
