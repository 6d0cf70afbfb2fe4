"""What a computation does at least: operations by the unit that takes them, and bytes.

This is the only count: passes, `bench`, `profile`, `predict` and the tuner read it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

from clew.ir.dims import Dim, dim_min, product
from clew.ir.types import memory_bytes
from clew.support.dataclass import dataclass
from clew.te.analysis import extents_of, is_product_sum, without_casts
from clew.te.expr import (
    Binary,
    Checked,
    Imm,
    Index,
    Intrinsic,
    Load,
    Reduce,
    Scalar,
    Select,
    Unary,
)
from clew.te.sequential import Greedy
from clew.te.tensor import Tensor, stages
from clew.te.walk import loads

Peak: TypeAlias = Callable[[str, str], float]
"""Operations per nanosecond (GFLOP/s) on all threads, two per multiply-add, for the dtypes of a
product's factors. That of f32 holds for all other operations.
"""
N = TypeVar("N")
# Approximate cost of a function in floating-point operations.
_FUNCTION_FLOPS: Final = 16


@dataclass(frozen=True)
class Work:
    """The minimum work of a computation whose sizes are known: FLOPs of its expressions, bytes of
    its operands and results, and the part of the FLOPs that are sums of products.
    """

    flops: int
    bytes: int
    products: tuple[ProductWork[int], ...] = ()

    @property
    def product_flops(self) -> int:
        """The FLOPs of sums of products."""
        return sum(p.flops for p in self.products)

    def compute_ns(self, peak: Peak) -> float:
        """Returns the nanoseconds that the operations take at least; 0 if a peak is unknown."""
        others = self.flops - self.product_flops
        parts = [(others, peak("f32", "f32"))]
        parts += [(p.flops, peak(p.data, p.weight)) for p in self.products]
        if any(rate <= 0 for _, rate in parts):
            return 0.0
        return sum(flops / rate for flops, rate in parts)


def work_of(outputs: Sequence[Tensor], number: Callable[[Dim], int]) -> Work:
    """Returns the work of a computation; `number` gives the sizes of free dimensions."""
    products = (ProductWork(p.data, p.weight, number(p.flops)) for p in product_work_of(outputs))
    return Work(number(flops_of(outputs)), number(bytes_of(outputs)), tuple(products))


def flops_of(outputs: Sequence[Tensor]) -> Dim:
    """Returns the number of arithmetic operations of a computation. A multiply-add counts as two, a
    selection by position (padding) as none.
    """
    total: Dim = 0
    for stage in stages(outputs):
        total = total + stage_flops(stage)
    return total


def most_operations(outputs: Sequence[Tensor]) -> Dim:
    """Returns the most arithmetic operations that a computation may take for any data: `flops_of`,
    and the further comparisons of greedy selections.
    """
    total = flops_of(outputs)
    for stage in stages(outputs):
        if isinstance(stage.body, Greedy):
            total = total + _comparisons(stage, stage.body)
    return total


def stage_flops(stage: Tensor) -> Dim:
    """Returns the number of arithmetic operations of one stage; a multiply-add counts as two."""
    assert stage.body is not None
    total: Dim = 0
    body, points = stage.body, product(extents_of(stage))
    if isinstance(body, Reduce):
        total = total + points
        body = body.value
    return total + points * _operations(body)


@dataclass(frozen=True)
class ProductWork(Generic[N]):
    """The operations of sums of products, two per multiply-add, and the dtypes of the factors: as
    stored, where a factor is a stored value, and otherwise as multiplied.
    """

    data: str
    weight: str
    flops: N


def product_work_of(outputs: Sequence[Tensor]) -> list[ProductWork[Dim]]:
    """Returns the work of each sum of products in a computation, producers first."""
    found = []
    for stage in stages(outputs):
        body = stage.body
        if isinstance(body, Reduce) and is_product_sum(body):
            value = without_casts(body.value)
            assert isinstance(value, Binary)
            flops = 2 * product((*stage.shape, *(a.extent for a in body.axes)))
            found.append(ProductWork(_factor_dtype(value.a), _factor_dtype(value.b), flops))
    return found


def product_flops_of(outputs: Sequence[Tensor]) -> Dim:
    """Returns the FLOPs of sums of products only (convolutions, matrix products), two per
    multiply-add, which is the usual measure of a model's size.
    """
    total: Dim = 0
    for each in product_work_of(outputs):
        total = total + each.flops
    return total


@dataclass(frozen=True)
class ProductSize:
    """A sum of products as `batch` matrix products of m by k and k by n numbers.

    The rows are the result axes that only the first factor has, and the columns those that only the
    second has; all others form the batch.
    """

    batch: Dim
    m: Dim
    n: Dim
    k: Dim


def products_of(outputs: Sequence[Tensor]) -> list[ProductSize]:
    """Returns the size of each sum of products in a computation, producers first."""
    found = []
    for stage in stages(outputs):
        body = stage.body
        if not isinstance(body, Reduce) or not is_product_sum(body):
            continue
        value = without_casts(body.value)
        assert isinstance(value, Binary)
        left, right = _indices_in(value.a), _indices_in(value.b)
        sizes: dict[str, Dim] = {"batch": 1, "m": 1, "n": 1}
        for axis in stage.axes:
            sides = id(axis) in left, id(axis) in right
            which = {(True, False): "m", (False, True): "n"}.get(sides, "batch")
            sizes[which] = sizes[which] * axis.extent
        depth = product(tuple(a.extent for a in body.axes))
        found.append(ProductSize(sizes["batch"], sizes["m"], sizes["n"], depth))
    return found


def bytes_of(outputs: Sequence[Tensor]) -> Dim:
    """Returns the minimum bytes moved by a computation: each input that it reads and each output,
    once. If an input is read in part (a slice, rows of a table), at most one
    element counts per read.
    """
    return part_bytes_of(stages(outputs), outputs)


def part_bytes_of(part: Sequence[Tensor], results: Sequence[Tensor]) -> Dim:
    """Returns the minimum bytes moved by some stages as a separate computation, counted as in
    `bytes_of`: the values that they read from other stages, and their stages in `results`.
    """
    reads = read_bytes_of(part)
    total: Dim = 0
    for count in reads.values():
        total = total + count
    for tensor in {id(t): t for t in results}.values():
        total = total + tensor.size * memory_bytes(tensor.dtype)
    return total


def read_bytes_of(part: Sequence[Tensor]) -> dict[Tensor, Dim]:
    """Returns the minimum bytes that some stages read from each tensor that is none of them."""
    own = {id(stage) for stage in part}
    reads: dict[int, tuple[Tensor, Dim]] = {}
    for stage in part:
        body = stage.body
        assert body is not None
        points = product(extents_of(stage))
        for load in loads(body):
            if id(load.source) not in own:
                _, count = reads.get(id(load.source), (load.source, 0))
                reads[id(load.source)] = (load.source, count + points)
    return {
        tensor: dim_min(count, tensor.size) * memory_bytes(tensor.dtype)
        for tensor, count in reads.values()
    }


def _comparisons(stage: Tensor, body: Greedy) -> Dim:
    """Returns the number of operations if every candidate is compared with all that can be kept
    before it.
    """
    rows, most = stage.shape[:-1], stage.shape[-1]
    before = {id(part) for parts in body.parts() for part in parts}
    pairs = body.over[0].extent * most - most * (most + 1) // 2
    return product(rows) * pairs * _operations(body.clash, before)


def _operations(expr: Scalar, without: Collection[int] = ()) -> int:
    """Returns the number of operations of an expression, without its parts with these ids."""
    count, seen, stack = 0, set[int](without), [expr]
    while stack:
        node = stack.pop()
        if id(node) in seen or isinstance(node, (Load, Index)):
            continue
        seen.add(id(node))
        if isinstance(node, Select) and not loads(node.cond):
            # Selections by position, as at the border of a padded image, cost no arithmetic.
            stack += [node.a, node.b]
            continue
        if _unpacks(node):
            stack.append(node.children[0])
            continue
        if isinstance(node, (Binary, Unary, Select, Checked)):
            count += 1
        elif isinstance(node, Intrinsic):
            count += 2 if node.name == "fma" else _FUNCTION_FLOPS
        stack.extend(node.children)
    return count


def _factor_dtype(factor: Scalar) -> str:
    value = without_casts(factor)
    while True:
        if isinstance(value, Select) and isinstance(value.b, Imm):  # padding
            value = without_casts(value.a)
        elif _unpacks(value):
            value = without_casts(value.children[0])
        else:
            break
    return value.source.dtype if isinstance(value, Load) else factor.dtype


def _unpacks(value: Scalar) -> bool:
    """Whether a value is a shift by position, as of codes that share a word. Like a load, it is not
    counted as arithmetic.
    """
    return isinstance(value, Binary) and value.op in ("shl", "shr") and not loads(value.b)


def _indices_in(expr: Scalar) -> set[int]:
    """Returns the ids of the axes that an expression depends on."""
    found, seen, stack = set[int](), set[int](), [expr]
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen.add(id(node))
            if isinstance(node, Index):
                found.add(id(node))
            stack.extend(node.children)
    return found
