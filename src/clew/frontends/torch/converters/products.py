"""Matrix products."""

from __future__ import annotations

from clew.frontends.building import call, cast, cast_wide, reshaped
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.registry import Result, converter
from clew.ir.expr import Constant, Expr


def product_of(a: Expr, b: Expr) -> Expr:
    """Returns a matrix product; a constant matrix on the right makes a dense layer."""
    if isinstance(b, Constant) and b.tensor.rank == 2 and a.tensor.rank >= 2:
        return call("nn.dense", a, b, weight_layout="KN")
    return call("nn.matmul", a, b)


@converter("linear")
def linear(layer: Layer) -> Result:
    """`x @ weight.T + bias`."""
    x, weight = layer.tensor("input"), layer.tensor("weight")
    if weight.tensor.rank == 1:
        found: Expr = call("nn.matmul", x, weight)
    elif x.tensor.rank == 1:
        row = call("nn.dense", reshaped(x, (1, *x.tensor.shape)), weight, weight_layout="NK")
        found = reshaped(row, row.tensor.shape[1:])
    else:
        found = call("nn.dense", x, weight, weight_layout="NK")
    bias = layer.optional("bias")
    found = found if bias is None else call("add", cast(found, bias.tensor.dtype), bias)
    return layer.to_result(found)


@converter("mm", "bmm", "matmul", "mv", "dot")
def matmul(layer: Layer) -> Result:
    """The matrix product, with the axes of NumPy."""
    names = list(layer.arguments)
    return layer.to_result(product_of(layer.tensor(names[0]), layer.tensor(names[1])))


@converter("_int_mm")
def product_of_integers(layer: Layer) -> Result:
    """The product of 8-bit integers, in `i32`."""
    a, b = layer.tensor("self"), layer.tensor("mat2")
    return product_of(cast(a, "i32"), cast(b, "i32"))


def _scaled(layer: Layer, x: Expr, name: str) -> Expr:
    value = layer.get(name, 1)
    if isinstance(value, (int, float)) and value == 1:
        return x
    return call("multiply", x, layer.scalar(value, x))


@converter("addmm", "baddbmm", "addbmm", "addmv")
def add_product(layer: Layer) -> Result:
    """`beta * self + alpha * (a @ b)`; the products of a batch are added up for `addbmm`."""
    names = list(layer.arguments)
    factors = [layer.tensor(n) for n in names[1:3]]
    batch = layer.op.startswith("addbmm")
    if batch:
        factors = [*map(cast_wide, factors)]
    found: Expr = product_of(*factors)
    if batch:
        found = call("sum", found, axes=(0,), keepdims=False)
    found = _scaled(layer, cast(found, layer.result().dtype), "alpha")
    beta = layer.get("beta", 1)
    if isinstance(beta, (int, float)) and beta == 0:
        return found
    own = cast(layer.tensor(), found.tensor.dtype)
    return layer.to_result(call("add", found, _scaled(layer, own, "beta")))
