"""ONNX Runtime's mixtures of experts: each token passes through the layers of the experts that its
router selected, and their results are summed with its weights.

Letters: T tokens, E experts, K features, F hidden features, R pairs of a token and one of its
experts.
"""

from __future__ import annotations

from collections.abc import Callable

from clew.frontends.building import call, cast, fields, reshaped, scalar
from clew.frontends.lowering.attention import part
from clew.frontends.onnx.contrib.blocks import scaled_blocks, unpacked
from clew.frontends.onnx.contrib.schemas import MICROSOFT
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.dims import Dim, product
from clew.ir.expr import Expr
from clew.ops.common import differ
from clew.ops.math.ranking import selects_by_rank
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class _Weights:
    """Matrices [E, outputs, inputs] of all experts, and biases [E, outputs]. `of` returns float
    matrices, given a function that selects from a parameter.
    """

    of: Callable[[Callable[[Expr], Expr]], Expr]
    bias: Expr | None


@dataclass(frozen=True)
class _Experts:
    """The layers of all experts; `gate` is a third layer, whose results are multiplied with those
    of the first.
    """

    inner: _Weights
    outer: _Weights
    gate: _Weights | None


@converter("MoE", domain=MICROSOFT)
def mixture(layer: Layer) -> Result:
    """Experts with float weights."""

    def weights(index: int) -> _Weights:
        matrix = layer.input(index)
        if matrix.tensor.rank != 3:
            raise layer.wrong(f"has experts of type {matrix.type}")
        return _Weights(lambda pick: pick(matrix), layer.optional(index + 1))

    gate = None if layer.optional(6) is None else weights(6)
    return _mixed(layer, _Experts(weights(2), weights(4), gate), None)


@converter("QMoE", domain=MICROSOFT)
def quantized_mixture(layer: Layer) -> Result:
    """Experts with weights of 2, 4 or 8 bits, packed along the inputs."""
    if layer.text("quant_type") != "int":
        raise layer.unsupported(f"with weights of {layer.text('quant_type')!r}")
    if layer.integer("weights_prepacked") == 1:
        raise layer.unsupported("with weights in the order of one GPU")
    block = layer.integer("block_size", 0)

    def weights(number: int) -> _Weights:
        first = 3 * number - 1
        codes, scales, zeros = (
            layer.input(first),
            layer.input(first + 1),
            layer.optional(10 + number),
        )
        bits = layer.integer(f"fc{number}_expert_weight_bits", layer.integer("expert_weight_bits"))
        if codes.tensor.rank != 3 or scales.tensor.rank not in (2, 3):
            raise layer.wrong(f"has experts of type {codes.type}, scaled by {scales.type}")
        outputs = codes.tensor.shape[1]
        if zeros is not None:
            known = scales.tensor.shape[2] if scales.tensor.rank == 3 else outputs
            zeros = unpacked(layer, zeros, bits)
            zeros = part(zeros, zeros.tensor.rank - 1, 0, known)
        whole = unpacked(layer, codes, bits)
        width = whole.tensor.shape[2]
        if not isinstance(width, int):
            raise layer.unsupported(f"with experts of type {codes.type}")
        parameters = [
            x if x is None or x.tensor.rank == 3 else reshaped(x, (*x.tensor.shape, 1))
            for x in (scales, zeros)
        ]
        size = block if scales.tensor.rank == 3 and block else width

        def of(pick: Callable[[Expr], Expr]) -> Expr:
            taken = [None if x is None else pick(x) for x in parameters]
            assert taken[0] is not None
            middle = 1 << (bits - 1)
            return scaled_blocks(
                layer, pick(whole), taken[0], taken[1], axis=2, block=size, middle=middle
            )

        return _Weights(of, layer.optional(first + 2))

    gate = None if layer.optional(8) is None else weights(3)
    mixing = layer.optional(14)
    # ONNX Runtime for CPUs always normalizes the router's weights, whatever the model says.
    return _mixed(layer, _Experts(weights(1), weights(2), gate), mixing, normal=mixing is None)


def _mixed(layer: Layer, experts: _Experts, mixing: Expr | None, *, normal: bool = False) -> Expr:
    """Returns the sum over the selected experts. `mixing` holds weights other than the router's;
    with `normal` they add up to 1.
    """
    if layer.flag("use_sparse_mixer"):
        raise layer.unsupported("with a sparse mixer")
    if layer.flag("swiglu_limit_after_activation"):
        raise layer.unsupported("with a limit after the activation")
    x, router = layer.input(0), layer.input(1)
    shape = x.tensor.shape
    if len(shape) not in (2, 3) or router.tensor.rank != 2:
        raise layer.wrong(f"routes {x.type} by {router.type}")
    count, chosen = router.tensor.shape[1], layer.integer("k")
    if not isinstance(count, int) or not 1 <= chosen <= count:
        raise layer.wrong(f"chooses {chosen} of {count} experts")
    tokens: Dim = product(shape[:-1])
    if differ(tokens, router.tensor.shape[0]):
        raise layer.wrong(f"routes {x.type} by {router.type}")
    rows = reshaped(x, (tokens, shape[-1]))
    places, shares = _chosen(router, mixing, count, chosen)
    if normal or layer.flag("normalize_routing_weights"):
        shares = call("divide", shares, call("sum", shares, axes=(1,), keepdims=True))
    shares = cast(shares, x.tensor.dtype)
    if isinstance(tokens, int) and tokens * chosen < count:
        result = _picked(layer, experts, rows, places, shares)
    else:
        result = _all(layer, experts, rows, _spread(places, shares, count))
    return reshaped(result, shape)


def _chosen(router: Expr, mixing: Expr | None, count: int, chosen: int) -> tuple[Expr, Expr]:
    """Returns the experts of each token, and the weights of their results, [T, k]."""
    wide = cast(router, "f32")
    odds = call("nn.softmax", wide, axis=1) if mixing is None else wide
    op = "top_k_ranked" if selects_by_rank(count, chosen) else "top_k"
    shares, places = fields(call(op, odds, k=chosen, axis=1, largest=True), 2)
    if mixing is not None:
        shares = call("gather_elements", cast(mixing, "f32"), places, axis=1)
    return places, shares


def _spread(places: Expr, shares: Expr, count: int) -> Expr:
    """Returns the weights of all experts, [T, E]: 0 for experts that a token does not use."""
    expert = call("arange", start=0, stop=count, step=1, dtype="i64")
    tokens, chosen = places.tensor.shape
    here = call("equal", reshaped(places, (tokens, chosen, 1)), expert)
    dtype = shares.tensor.dtype
    weighted = call("where", here, reshaped(shares, (tokens, chosen, 1)), scalar(0.0, dtype))
    return call("sum", weighted, axes=(1,), keepdims=False)


def _all(layer: Layer, experts: _Experts, x: Expr, shares: Expr) -> Expr:
    """Returns the result of all experts on all tokens, [T, K], with two products in total: the
    results of the first layers side by side, times their weights, are the rows of the second
    product.
    """
    tokens, count = shares.tensor.shape

    def inner(weights: _Weights) -> Expr:
        matrix = weights.of(lambda p: p)
        _, outputs, inputs = matrix.tensor.shape
        flat = reshaped(matrix, (count * outputs, inputs))
        found = reshaped(call("nn.dense", x, flat, weight_layout="NK"), (tokens, count, outputs))
        return found if weights.bias is None else call("add", found, weights.bias)

    hidden = _activated(layer, experts, inner)
    hidden = call("multiply", hidden, reshaped(shares, (tokens, count, 1)))
    matrix = experts.outer.of(lambda p: p)
    _, outputs, inputs = matrix.tensor.shape
    matrix = reshaped(call("transpose", matrix, axes=(1, 0, 2)), (outputs, count * inputs))
    result = call(
        "nn.dense", reshaped(hidden, (tokens, count * inputs)), matrix, weight_layout="NK"
    )
    bias = experts.outer.bias
    return result if bias is None else call("add", result, call("nn.matmul", shares, bias))


def _picked(layer: Layer, experts: _Experts, x: Expr, places: Expr, shares: Expr) -> Expr:
    """Returns the result of the selected experts alone, [T, K]: their weights are gathered for each
    token, which is profitable if there are fewer pairs than experts.
    """
    tokens, chosen = places.tensor.shape
    pairs, width = tokens * chosen, x.tensor.shape[1]
    which = reshaped(places, (pairs,))

    def pick(parameter: Expr) -> Expr:
        return call("gather", parameter, which, axis=0)

    def times(rows: Expr, weights: _Weights) -> Expr:
        matrix = call("transpose", weights.of(pick), axes=(0, 2, 1))
        found = call("nn.matmul", rows, matrix)
        if weights.bias is None:
            return found
        bias = pick(weights.bias)
        return call("add", found, reshaped(bias, (pairs, 1, bias.tensor.shape[1])))

    rows: Expr = call(
        "broadcast_to", reshaped(x, (tokens, 1, width)), shape=(tokens, chosen, width)
    )
    rows = reshaped(rows, (pairs, 1, width))
    hidden = _activated(layer, experts, lambda weights: times(rows, weights))
    found = times(hidden, experts.outer)
    found = call("multiply", found, reshaped(shares, (pairs, 1, 1)))
    found = reshaped(found, (tokens, chosen, found.tensor.shape[2]))
    return call("sum", found, axes=(1,), keepdims=False)


# --- activations ----------------------------------------------------------------------------------


def _activated(layer: Layer, experts: _Experts, inner: Callable[[_Weights], Expr]) -> Expr:
    """Returns the activation between an expert's layers, features along the last axis."""
    name = layer.text("activation_type")
    first = inner(experts.inner)
    second = None if experts.gate is None else inner(experts.gate)
    if name in ("swiglu", "geglu"):
        if second is None:
            first, second = _halves(layer, first)
        if name == "geglu":
            return call("multiply", call("nn.gelu", first, approximate="tanh"), second)
        return _swiglu(layer, first, second)
    plain = {"relu": "nn.relu", "silu": "nn.silu"}
    if name in plain:
        first = call(plain[name], first)
    elif name == "gelu":
        first = call("nn.gelu", first, approximate="tanh")
    elif name == "relu2":
        positive = call("nn.relu", first)
        first = call("multiply", positive, positive)
    elif name != "identity":
        raise layer.wrong(f"has the activation {name!r}")
    return first if second is None else call("multiply", first, second)


def _halves(layer: Layer, x: Expr) -> tuple[Expr, Expr]:
    """Returns a gate and its operand, which are interleaved, or one after the other."""
    way, axis = layer.integer("swiglu_fusion"), x.tensor.rank - 1
    shape = x.tensor.shape
    size = shape[axis]
    if way not in (1, 2) or not isinstance(size, int) or size % 2:
        raise layer.wrong(f"has swiglu_fusion={way} for {size} features")
    if way == 2:
        return part(x, axis, 0, size // 2), part(x, axis, size // 2, size)
    pairs = reshaped(x, (*shape[:-1], size // 2, 2))
    half = (*shape[:-1], size // 2)
    return (
        reshaped(part(pairs, axis + 1, 0, 1), half),
        reshaped(part(pairs, axis + 1, 1, 2), half),
    )


def _swiglu(layer: Layer, gate: Expr, x: Expr) -> Expr:
    """Returns `gate * sigmoid(alpha * gate) * (x + beta)`; both are clamped before."""
    alpha, beta = layer.real("activation_alpha"), layer.real("activation_beta")
    if layer.has("swiglu_limit"):
        limit = layer.real("swiglu_limit")
        gate = call("clip", gate, max=limit)
        x = call("clip", x, min=-limit, max=limit)
    if beta:
        x = call("add", x, scalar(beta, x.tensor.dtype))
    return call("multiply", call("nn.swish", gate, alpha=alpha), x)
