"""Evaluates tensor expressions with NumPy: the reference of operators that declare none."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final, TypeAlias

import numpy as np

from clew.ir.types import bits, is_float, is_integer, to_numpy
from clew.support.bounds import clamping
from clew.support.text_arrays import as_tensor, zeros
from clew.support.walk import post_order as post_order_of
from clew.te.convert import convert
from clew.te.expr import (
    Binary,
    Bitcast,
    Cast,
    Checked,
    Imm,
    Index,
    Inlined,
    Intrinsic,
    Load,
    Reduce,
    Scalar,
    Select,
    Sequential,
    Unary,
    select,
)
from clew.te.sequential import Collect, Follow, Greedy, Scan, Scatter, Sort
from clew.te.tensor import Tensor, stages
from clew.te.walk import post_order

Array = np.ndarray[Any, Any]
_Span: TypeAlias = tuple[int, int]
_BLOCK_ELEMS: Final = 1 << 17
"""The most elements of a block, so that its intermediate values stay in a core's caches."""
_SPREAD: Final = 4
"""A stage this many times larger than its inputs is not stored."""


def _power(x: Any, y: Any) -> Any:
    """Returns powers as C's `pow`: NumPy takes square roots for a single exponent of 0.5, and that
    of -0 is -0, and that of minus infinity NaN.
    """
    result = np.power(x, y)
    if result.dtype.kind not in "biu":
        root = np.equal(y, 0.5)
        if np.any(root):
            result = np.where(root & np.equal(x, 0), np.zeros_like(result), result)
            endless = root & np.equal(x, -np.inf)
            result = np.where(endless, np.full_like(result, np.inf), result)
    return result


def _extreme(op: str, x: Any, y: Any, *, first: bool = False) -> Any:
    """Returns the larger or smaller of two numbers; of two zeros, the second one, or the first."""
    result = (np.maximum if op == "max" else np.minimum)(x, y)
    if result.dtype.kind in "biu":
        return result
    zeros = np.equal(x, 0) & np.equal(y, 0)
    return np.where(zeros, x if first else y, result) if np.any(zeros) else result


_BINARY: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": np.floor_divide,
    "mod": np.mod, "pow": _power, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
    "ne": np.not_equal, "shl": np.left_shift, "shr": np.right_shift,
}  # fmt: skip
_LOGIC: Final[dict[str, tuple[Any, Any]]] = {
    "and": (np.logical_and, np.bitwise_and),
    "or": (np.logical_or, np.bitwise_or),
    "xor": (np.logical_xor, np.bitwise_xor),
}


def _erf(x: Any) -> Array:
    """Returns the error function in float64."""
    wide = np.asarray(x, np.float64)
    found = map(math.erf, wide.reshape(-1).tolist())
    return np.fromiter(found, np.float64, wide.size).reshape(wide.shape)


def _normal_cdf(x: Any) -> Array:
    """Returns the standard normal distribution function in float64."""
    wide = np.asarray(x, np.float64) * -math.sqrt(0.5)
    found = map(math.erfc, wide.reshape(-1).tolist())
    return np.fromiter(found, np.float64, wide.size).reshape(wide.shape) / 2


def _fma(a: Array, b: Array, c: Array) -> Array:
    """Returns `a * b + c`, of `f32` and narrower operands rounded once from `f64`."""
    if np.result_type(a, b, c).itemsize > 4:
        return np.asarray(a * b + c)
    wide = np.asarray(a, np.float64) * b + c
    return wide.astype(np.result_type(a, b, c))


def _exp_normal(x: Any) -> Any:
    """Returns `exp(x)`, or 0 where that is denormal in the type of the computation, at least f32.

    Compiled code returns 0 up to the square root of 2 times the least normal number.
    """
    power = np.exp(x)
    least = np.finfo(np.result_type(power, np.float32)).tiny
    return np.where(power < least, np.zeros_like(power), power)


def _sigmoid(x: Any) -> Any:
    """Uses the sign for which `exp` cannot overflow; in f16 it overflows from 11 up."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, np.ones_like(small), small) / (1 + small)


INTRINSICS: Final[dict[str, Callable[..., Any]]] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2,
    "log1p": np.log1p, "tanh": np.tanh, "erf": _erf, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sigmoid": _sigmoid,
    "floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc, "isnan": np.isnan,
    "isinf": np.isinf, "fma": _fma, "copysign": np.copysign,
    "fmod": np.fmod, "normal_cdf": _normal_cdf, "exp_normal": _exp_normal,
}  # fmt: skip
COMBINE: Final[dict[str, Any]] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    "and": np.logical_and, "or": np.logical_or,
}  # fmt: skip


def identity_of(combiner: str, dtype: str) -> Any:
    """Returns the result of a reduction over no elements."""
    if combiner in ("and", "or"):
        return combiner == "and"
    if combiner in ("sum", "prod"):
        return int(combiner == "prod")
    if is_float(dtype):
        return float("-inf") if combiner == "max" else float("inf")
    if dtype == "bool":
        return combiner == "min"
    unsigned, width = dtype[0] == "u", bits(dtype)
    if combiner == "max":
        return 0 if unsigned else -(1 << (width - 1))
    return (1 << (width if unsigned else width - 1)) - 1


def evaluate(outputs: Sequence[Tensor], inputs: Mapping[Tensor, Array]) -> list[Array]:
    """Returns the values of `outputs`.

    Each stage is evaluated over NumPy index grids, block by block, and freed after its last use. A
    stage without a reduction that is far larger than its inputs (an image padded to many times its
    size) is not stored: its elements are computed where they are read.
    """
    order = stages(outputs)
    kept = {id(t) for t in (*outputs, *inputs)}
    spread = {id(t) for t in order if id(t) not in kept and _is_spread(t)}
    last = {id(source): stage for stage in order for source in _read_by(stage, spread)}
    run = _Evaluation({id(t): np.asarray(a) for t, a in inputs.items()})
    with np.errstate(all="ignore"):
        for stage in order:
            if id(stage) in spread:
                continue
            run.values[id(stage)] = run.stage(stage)
            for source in _read_by(stage, spread):
                if last[id(source)] is stage and id(source) not in kept:
                    run.values.pop(id(source), None)
    return [run.values[id(t)] for t in outputs]


def _is_spread(stage: Tensor) -> bool:
    """Whether a stage is inexpensive to compute where it is read, and expensive to store.

    Indices are checked wherever a stage is computed, and a reader may compute more elements than it
    needs. Stages that check indices are therefore stored.
    """
    assert stage.body is not None
    size = math.prod(stage.type.concrete)
    read = sum(math.prod(source.type.concrete) for source in stage.inputs)
    if isinstance(stage.body, (Reduce, Sequential)) or size <= max(_SPREAD * read, _BLOCK_ELEMS):
        return False
    return not any(isinstance(node, Checked) for node in post_order(stage.body))


def _read_by(stage: Tensor, spread: Container[int]) -> list[Tensor]:
    """Returns the tensors that a stage reads, directly or through stages computed in place."""
    return post_order_of(stage.inputs, lambda t: t.inputs if id(t) in spread else ())


class _Evaluation:
    """Values of tensors, by id; a stage without one is computed where it is read."""

    def __init__(self, values: dict[int, Array]) -> None:
        self.values = values
        self._orders: dict[int, tuple[list[Scalar], list[list[int]]]] = {}

    def stage(self, stage: Tensor) -> Array:
        """Returns a stage's value, computed block by block."""
        body, rank = stage.body, len(stage.shape)
        assert body is not None
        if isinstance(body, Sequential):
            return self._sequential(stage, body)
        axes = [*stage.axes, *(body.axes if isinstance(body, Reduce) else ())]
        extents = [_extent(a) for a in axes]
        steps = _steps(extents)
        result = np.empty(extents[:rank], to_numpy(stage.dtype))
        if 0 in extents:  # the other axes may be of any length
            if isinstance(body, Reduce):
                result.fill(identity_of(body.combiner, stage.dtype))
            return result
        for here in _boxes(extents[:rank], steps[:rank]):
            place = tuple(slice(*span) for span in here)
            if not isinstance(body, Reduce):
                result[place] = self._block(body, axes, here)
                continue
            combine = COMBINE[body.combiner]
            start = identity_of(body.combiner, stage.dtype)
            total = None
            for along in _boxes(extents[rank:], steps[rank:]):
                part = self._block(body.value, axes, (*here, *along))
                wide = part.astype(np.float64) if is_float(stage.dtype) else part
                summed = combine.reduce(wide, axis=tuple(range(rank, len(axes))), initial=start)
                total = summed if total is None else combine(total, summed)
            result[place] = total
        return result

    def _sequential(self, stage: Tensor, body: Sequential) -> Array:
        """Returns the value of a sequential stage."""
        if isinstance(body, Greedy):
            return self._greedy(stage, body)
        axes = body.visits(stage.axes)
        spans = [(0, _extent(a)) for a in axes]
        match body:
            case Collect():
                where = self._block(body.where, axes, spans)
                found = self._block(body.value, axes, spans)[where]
                result = np.zeros(_extent(stage.axes[0]), to_numpy(stage.dtype))
                result[: len(found)] = found[: len(result)]
                return result
            case Scatter():
                result = self._block(body.start, stage.axes, [(0, _extent(a)) for a in stage.axes])
                result = np.array(result)
                where = self._block(body.where, axes, spans)
                place = []
                for index, size in zip(body.places, result.shape, strict=True):
                    at = self._block(select(body.where, index, 0), axes, spans)[where]
                    place.append(np.clip(at, 0, max(size - 1, 0)))
                put(
                    result, tuple(place), self._block(body.value, axes, spans)[where], body.combiner
                )
                return result
            case Scan():
                return self._scan(stage, body, self._block(body.value, axes, spans))
            case Sort():
                where = self._block(body.where, axes, spans)
                keys = self._block(select(body.where, body.key, 0), axes, spans)
                rows = [_extent(a) for a in stage.axes[:-1]]
                row = math.prod(_extent(a) for a in body.over)
                # Those that take no part come last.
                order = np.lexsort((keys.reshape(*rows, row), ~where.reshape(*rows, row)), -1)
                return order[..., : _extent(stage.axes[-1])]
            case Follow():
                return self._follow(stage, body)
        raise AssertionError(body)

    def _scan(self, stage: Tensor, body: Scan, values: Array) -> Array:
        """Returns running combinations of values."""
        axis = next(n for n, a in enumerate(stage.axes) if a is body.over[0])
        values = np.flip(values, axis) if body.reverse else values
        wide = values.astype(np.float64) if is_float(stage.dtype) else values
        total: Array = COMBINE[body.combiner].accumulate(wide, axis)
        if body.exclusive and total.size:
            start = identity_of(body.combiner, stage.dtype)
            first = np.full_like(np.take(total, [0], axis), start)
            total = np.concatenate([first, np.delete(total, -1, axis)], axis)
        total = np.flip(total, axis) if body.reverse else total
        return total.astype(to_numpy(stage.dtype))

    def _follow(self, stage: Tensor, body: Follow) -> Array:
        """Returns the values of the places at which chains end."""
        spans = [(0, _extent(a)) for a in stage.axes]
        every = np.ix_(*map(np.arange, stage.type.concrete))
        grid = dict(zip(map(id, stage.axes), every, strict=True))
        place = np.array(self._block(body.start, stage.axes, spans))
        for _ in range(_extent(body.over[0])):
            if (place < 0).all():
                break
            following = self._value(body.following, {**grid, id(body.over[1]): place}, {})
            place = np.where(place < 0, place, following)
        return self._value(body.found, {**grid, id(body.over[1]): place}, {})

    def _greedy(self, stage: Tensor, body: Greedy) -> Array:
        """Returns the values of the candidates that a greedy selection keeps, row by row."""
        *rows, last = (_extent(a) for a in stage.axes)
        candidate, other = body.over
        result = np.full((*rows, last), -1, to_numpy(stage.dtype))
        for row in np.ndindex(*rows):
            at = {id(a): np.asarray(n) for a, n in zip(stage.axes, row, strict=False)}
            count = min(int(self._value(body.count, at, {})), _extent(candidate))
            most = min(int(self._value(body.most, at, {})), last)
            kept: list[int] = []
            for place in range(count):
                if len(kept) >= most:
                    break
                pair = {**at, id(candidate): np.asarray(place), id(other): np.array(kept, np.int64)}
                if not (kept and np.any(self._value(body.clash, pair, {}))):
                    kept.append(place)
            values = self._value(body.value, {**at, id(candidate): np.array(kept, np.int64)}, {})
            result[row][: len(kept)] = values
        return result

    def _block(self, root: Scalar, axes: Sequence[Index], spans: Sequence[_Span]) -> Array:
        """Returns the value of an expression with the axes in these ranges."""
        grid: dict[int, Array] = {}
        for position, (axis, span) in enumerate(zip(axes, spans, strict=True)):
            at = [1] * len(axes)
            at[position] = -1
            grid[id(axis)] = np.arange(*span).reshape(at)
        places = {
            id(axis): (n, span) for n, (axis, span) in enumerate(zip(axes, spans, strict=True))
        }
        value = self._value(root, grid, places)
        return np.broadcast_to(value, [stop - start for start, stop in spans])

    def _value(
        self, root: Scalar, grid: Mapping[int, Array], places: Mapping[int, tuple[int, _Span]]
    ) -> Array:
        memo: dict[int, Any] = dict(grid)
        order, done = self._order(root, grid)
        for node, unread in zip(order, done, strict=True):
            args = [memo[id(c)] for c in node.children]
            memo[id(node)] = (
                self._load(node, args, places) if isinstance(node, Load) else apply(node, args)
            )
            for key in unread:
                del memo[key]
        if not clamping() and any(isinstance(node, Checked) for node in order):
            _check(order, memo)
        return np.asarray(memo[id(root)])

    def _order(self, root: Scalar, known: Container[int]) -> tuple[list[Scalar], list[list[int]]]:
        """Returns an expression's parts in order, and for each part the values that it is the last
        to read. The check of indices reads all of them once more.
        """
        if id(root) not in self._orders:
            order = post_order(root, known)
            done: list[list[int]] = [[] for _ in order]
            if not any(isinstance(node, Checked) for node in order):
                last = {id(c): n for n, node in enumerate(order) for c in node.children}
                for key, n in last.items():
                    done[n].append(key)
            self._orders[id(root)] = order, done
        return self._orders[id(root)]

    def _load(
        self, load: Load, at: Sequence[Array], places: Mapping[int, tuple[int, _Span]]
    ) -> Array:
        source: Tensor = load.source
        if id(source) not in self.values:
            assert source.body is not None
            inside = [np.clip(i, 0, n - 1) for i, n in zip(at, source.type.concrete, strict=True)]
            grid = {id(axis): i for axis, i in zip(source.axes, inside, strict=True)}
            return self._value(source.body, grid, {})
        array = self.values[id(source)]
        view = _view(array, load.indices, places)
        return apply(load, list(at), self.values) if view is None else view


def _view(
    array: Array, indices: Sequence[Scalar], places: Mapping[int, tuple[int, _Span]]
) -> Array | None:
    """Returns, without a copy, the elements that a load indexed only by axes reads; None for other
    loads.

    Axes keep their positions in the block; axes that the load does not use have size 1.
    """
    pieces: list[slice] = []
    positions: list[int] = []
    for index, size in zip(indices, array.shape, strict=True):
        position, span = places.get(id(index), (-1, (0, 0)))
        if position in (-1, *positions) or span[1] > size:
            return None
        pieces.append(slice(*span))
        positions.append(position)
    order = sorted(range(len(positions)), key=positions.__getitem__)
    whole: tuple[Any, ...] = (*pieces, ...)  # without the dots, NumPy gives a text alone
    shown: Array = array[whole].transpose(order)
    return shown[tuple(slice(None) if n in positions else None for n in range(len(places)))]


def put(target: Array, place: tuple[Array, ...], values: Array, combiner: str) -> None:
    """Writes or combines values at positions of an array, one after another."""
    if combiner:
        COMBINE[combiner].at(target, place, values)
    else:
        target[place] = values


def _extent(axis: Index) -> int:
    assert isinstance(axis.extent, int), f"axis {axis.name} has no number of elements yet"
    return axis.extent


def _steps(extents: Sequence[int]) -> list[int]:
    """Returns the extent of a block along each axis: inner axes whole, as far as they fit."""
    steps, elems = [1] * len(extents), 1
    for n in reversed(range(len(extents))):
        steps[n] = max(min(extents[n], _BLOCK_ELEMS // elems), 1)
        elems *= steps[n]
    return steps


def _boxes(extents: Sequence[int], steps: Sequence[int]) -> Iterator[tuple[_Span, ...]]:
    """Yields the blocks of some axes, each as one part of every axis."""
    parts = [
        [(start, min(start + step, extent)) for start in range(0, extent, step)]
        for extent, step in zip(extents, steps, strict=True)
    ]
    return product(*parts)


def _check(order: Sequence[Scalar], memo: Mapping[int, Any]) -> None:
    """Checks all indices except those in branches of selects that are not taken.

    Errors: I320.
    """
    wanted: dict[int, Any] = {id(order[-1]): np.asarray(True)}
    for node in reversed(order):
        here = wanted[id(node)]
        if isinstance(node, Checked):
            wrapped, outside = _wrapped(node, memo[id(node.value)])
            found = np.extract(*np.broadcast_arrays(outside & here, wrapped))
            if found.size:
                raise node.places.error(node.places.unwrapped(int(found[0])))
        each = [here] * len(node.children)
        if isinstance(node, Select):
            taken = np.asarray(memo[id(node.cond)], bool)
            each[1:] = [here & taken, here & ~taken]
        for child, more in zip(node.children, each, strict=True):
            known = wanted.get(id(child))
            wanted[id(child)] = more if known is None else known | more


def _wrapped(node: Checked, index: Any) -> tuple[Array, Array]:
    """Returns an index counted from the front, and whether it is out of range."""
    count, index = int(node.places.count), np.asarray(index, np.int64)
    if node.places.from_end:
        index = np.where(index < 0, index + count, index)
    return index, (index < 0) | (index >= count)


def apply(node: Scalar, args: list[Any], values: Mapping[int, Array] | None = None) -> Any:
    """Returns a node's value from its children's. `values` are the arrays that loads read, by
    tensor.
    """
    match node:
        case Imm():
            return np.asarray(node.value, to_numpy(node.dtype))
        case Load():
            assert values is not None
            array = values[id(node.source)]
            # A load in a branch not taken may be out of range: some element is read and dropped.
            if array.size == 0:
                return zeros(np.broadcast_shapes(*(np.shape(i) for i in args)), array.dtype)
            inside = [np.clip(i, 0, n - 1) for i, n in zip(args, array.shape, strict=True)]
            return as_tensor(array[tuple(inside)])
        case Binary():
            return _binary(node, *args)
        case Unary(op="not"):
            return np.logical_not(args[0]) if node.dtype == "bool" else np.invert(args[0])
        case Unary():
            return np.negative(args[0]) if node.op == "neg" else np.abs(args[0])
        case Intrinsic():
            result = INTRINSICS[node.name](*args)
            return result if node.dtype == "bool" else np.asarray(result, to_numpy(node.dtype))
        case Select():
            return np.where(args[0], args[1], args[2])
        case Cast():
            return convert(args[0], node.dtype)
        case Bitcast():
            return (
                np.ascontiguousarray(args[0]).view(to_numpy(node.dtype)).reshape(np.shape(args[0]))
            )
        case Inlined():
            return args[0]
        case Checked():
            index, _ = _wrapped(node, args[0])
            return np.clip(index, 0, max(int(node.places.count) - 1, 0)) if node.hold else args[0]
        case Index():
            raise AssertionError(f"axis {node.name} is not bound")
    raise AssertionError(type(node))


def _binary(node: Binary, a: Any, b: Any) -> Any:
    if node.op in _LOGIC:
        return _LOGIC[node.op][node.a.dtype != "bool"](a, b)
    if node.op == "div":
        if is_integer(node.dtype):
            by = np.where(np.equal(b, 0), 1, b)
            # With the sign of `a`: removing the rest leaves an exact multiple.
            rest = np.fmod(a, by)
            return np.floor_divide(np.subtract(a, rest), by).astype(to_numpy(node.dtype))
        return np.divide(a, b)
    if node.op in ("min", "max"):  # literals, as bounds, leave the number
        return _extreme(node.op, a, b, first=isinstance(node.b, Imm))
    return _BINARY[node.op](a, b)
