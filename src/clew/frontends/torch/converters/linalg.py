"""Linear algebra other than products, and distances."""

from __future__ import annotations

import math

import torch

from clew.frontends.building import call, cast, cast_wide, constant, reshaped, scalar, turned
from clew.frontends.lowering.reduction import reduced
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.registry import Result, converter, name_of
from clew.ir.dims import product
from clew.ir.expr import Expr


def _first_of(layer: Layer, first: Expr, *more: Expr) -> list[Expr]:
    """Returns the results, zeros for those of an algorithm that clew does not run.

    Errors: U063 if one of these is used.
    """
    found = [first, *more]
    for n in range(len(found), len(layer.fakes)):
        # The last integers tell of failures.
        last = n == len(layer.fakes) - 1 and layer.op.partition(".")[0].endswith("_ex")
        if layer.is_used(n) and not last:
            raise layer.unsupported("the factors of the matrix")
        found.append(layer.filled(0, n))
    return found


@converter("_linalg_det")
def det(layer: Layer) -> Result:
    """Determinants."""
    return _first_of(layer, call("det", layer.tensor("A")))


@converter("_linalg_slogdet")
def slogdet(layer: Layer) -> Result:
    """The signs of determinants, and the logarithms of their sizes."""
    found = call("det", layer.tensor("A"))
    return _first_of(layer, call("sign", found), call("log", call("abs", found)))


@converter("linalg_inv_ex", "inverse")
def inverse(layer: Layer) -> Result:
    """Inverses; NaN for singular matrices."""
    x = layer.tensor("A" if "A" in layer.arguments else "self")
    found = call("inverse", x)
    return _first_of(layer, found) if len(layer.fakes) > 1 else found


@converter("_linalg_solve_ex")
def solve(layer: Layer) -> Result:
    """Solutions of `A X = B`, or `X A = B`, by the inverse."""
    a, b = layer.tensor("A"), layer.tensor("B")
    vector = b.tensor.rank == 1 or b.tensor.shape == a.tensor.shape[:-1]
    b = reshaped(b, (*b.tensor.shape, 1)) if vector else b
    left = layer.flag("left", True)
    if not left and vector:
        b = turned(b)
    factors = (call("inverse", a), b) if left else (b, call("inverse", a))
    return _first_of(layer, layer.shaped(call("nn.matmul", *factors)))


@converter("linalg_solve_triangular")
def solve_triangular(layer: Layer) -> Result:
    """Solutions by the inverse of the triangle."""
    a, b = layer.tensor(), layer.tensor("B")
    a = call("trilu", a, k=0, upper=layer.flag("upper"))
    if layer.flag("unitriangular"):
        size = a.tensor.shape[-1]
        steps = call("arange", start=0, stop=size, step=1, dtype="i64")
        diagonal = call("equal", reshaped(steps, (size, 1)), steps)
        a = call("where", diagonal, scalar(1, a.tensor.dtype), a)
    factors = (call("inverse", a), b) if layer.flag("left", True) else (b, call("inverse", a))
    return layer.shaped(call("nn.matmul", *factors))


@converter("linalg_cholesky_ex", "cholesky")
def cholesky(layer: Layer) -> Result:
    """The triangular factor of positive definite matrices."""
    found: Expr = call("cholesky", layer.tensor())
    found = turned(found) if layer.flag("upper") else found
    return _first_of(layer, found) if len(layer.fakes) > 1 else found


def _squared(layer: Layer, factor: Expr) -> Expr:
    """Returns the matrix of which a triangle is the factor."""
    upper = layer.flag("upper")
    factor = call("trilu", factor, k=0, upper=upper)
    other = turned(factor)
    return call("nn.matmul", *((other, factor) if upper else (factor, other)))


@converter("cholesky_inverse")
def cholesky_inverse(layer: Layer) -> Result:
    """The inverse of the matrix of which a triangle is the factor."""
    return call("inverse", _squared(layer, layer.tensor()))


@converter("cholesky_solve", "_cholesky_solve_helper")
def cholesky_solve(layer: Layer) -> Result:
    """Solutions for the matrix of which a triangle is the factor."""
    names = list(layer.arguments)
    inverse = call("inverse", _squared(layer, layer.tensor(names[1])))
    return layer.shaped(call("nn.matmul", inverse, layer.tensor()))


@converter("with_effects")
def with_effects(layer: Layer) -> Result:
    """Calls in a fixed order. Those that only check have no effect here: what torch would refuse
    gives NaN.
    """
    target = layer["arg1"]
    if isinstance(target, torch._ops.OpOverload) and name_of(target).startswith("_linalg_check"):
        return [None] * len(layer.fakes)
    raise layer.unsupported(f"the effects of {name_of(target)}")


@converter("_trilinear")
def trilinear(layer: Layer) -> Result:
    """Products of three tensors, each with new axes, summed over axes: first over the axes that the
    third one lacks, as a matrix product.
    """
    operands = [layer.tensor(f"i{n}") for n in (1, 2, 3)]
    news = [set(layer.integers(f"expand{n}")) for n in (1, 2, 3)]
    rank = operands[0].tensor.rank + len(news[0])
    first, second, third = ([a for a in range(rank) if a not in new] for new in news)
    summed = layer.integers("sumdim")
    inner = [a for a in summed if a in first and a in second and a not in third]
    shared = [a for a in first if a in second and a not in inner]
    rows = [a for a in first if a not in second]
    columns = [a for a in second if a not in first]
    products = call(
        "nn.matmul",
        _grouped(operands[0], first, shared, rows, inner),
        _grouped(operands[1], second, shared, inner, columns),
    )
    shapes = [x.tensor.shape for x in operands]
    sizes = dict(zip((*first, *second), (*shapes[0], *shapes[1]), strict=True))
    order = [*shared, *rows, *columns]
    split = reshaped(products, [sizes[a] for a in order])
    ordered = call("transpose", split, axes=tuple(order.index(a) for a in sorted(order)))
    both = reshaped(ordered, [sizes[a] if a in order else 1 for a in range(rank)])
    last = dict(zip(third, shapes[2], strict=True))
    other = reshaped(operands[2], [last.get(a, 1) for a in range(rank)])
    return layer.shaped(call("sum", call("multiply", both, other), axes=summed, keepdims=False))


def _grouped(x: Expr, axes: list[int], shared: list[int], a: list[int], b: list[int]) -> Expr:
    """Returns an operand of a matrix product: its axes, numbered `axes`, as shared ones and two
    groups, each of which is one axis.
    """
    sizes = dict(zip(axes, x.tensor.shape, strict=True))
    ordered = call("transpose", x, axes=tuple(axes.index(n) for n in (*shared, *a, *b)))
    groups = [product(tuple(sizes[n] for n in group)) for group in (a, b)]
    return reshaped(ordered, [*(sizes[n] for n in shared), *groups])


# --- norms and distances --------------------------------------------------------------------------


def norm_of(x: Expr, order: float, axes: tuple[int, ...], keep: bool) -> Expr:
    """Returns norms of vectors over axes."""
    dtype = x.tensor.dtype
    size = call("abs", x)
    if order in (math.inf, -math.inf):
        return reduced("max" if order > 0 else "min", size, axes, keep)
    if order == 0:
        return reduced("sum", cast(call("not_equal", x, scalar(0, dtype)), dtype), axes, keep)
    if order == 1:
        return reduced("sum", size, axes, keep)
    if order == 2:
        return call("sqrt", reduced("sum", call("multiply", x, x), axes, keep))
    total = reduced("sum", call("power", size, scalar(order, dtype)), axes, keep)
    return call("power", total, scalar(1 / order, dtype))


@converter("linalg_vector_norm")
def vector_norm(layer: Layer) -> Result:
    """Norms over axes, summed in the requested dtype."""
    wanted = layer.result().dtype
    x = cast(layer.tensor(), wanted)
    x = cast_wide(x)
    order = float(layer.number("ord", 2))
    return layer.shaped(norm_of(x, order, layer.axes(), layer.flag("keepdim")))


@converter("dist")
def dist(layer: Layer) -> Result:
    """The norm of a difference."""
    a, b = layer.promoted("self", "other")
    x = call("subtract", a, b)
    found = norm_of(x, float(layer.number("p", 2)), tuple(range(x.tensor.rank)), False)
    return layer.shaped(found)


@converter("_cdist_forward")
def cdist(layer: Layer) -> Result:
    """Distances between all rows of two matrices."""
    a, b = layer.tensor("x1"), layer.tensor("x2")
    *_, rows, width = a.tensor.shape
    columns = b.tensor.shape[-2]
    if width == 0 or 0 in layer.result().shape:
        return layer.filled(0)
    a = reshaped(a, (*a.tensor.shape[:-2], rows, 1, width))
    b = reshaped(b, (*b.tensor.shape[:-2], 1, columns, width))
    x = call("subtract", a, b)
    return layer.shaped(norm_of(x, float(layer.number("p")), (x.tensor.rank - 1,), False))


@converter("_pdist_forward")
def pdist(layer: Layer) -> Result:
    """Distances between the rows of a matrix, each pair once."""
    x = layer.tensor()
    rows, _ = x.tensor.shape
    if not isinstance(rows, int):
        raise layer.unsupported("a free number of rows")
    if 0 in layer.result().shape:
        return layer.filled(0)
    first, second = torch.triu_indices(rows, rows, 1).numpy()
    pair = [call("gather", x, constant(n), axis=0) for n in (first, second)]
    difference = call("subtract", *pair)
    return layer.shaped(norm_of(difference, float(layer.number("p", 2)), (1,), False))
