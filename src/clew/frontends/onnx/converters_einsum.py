"""Einsum as transposes, one batched matrix product a pair of operands, and sums."""

from __future__ import annotations

from collections.abc import Sequence

from clew.frontends.onnx.build import reshaped
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, call, converter
from clew.ir.dims import Dim, product
from clew.ir.expr import Expr

_DOTS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@converter("Einsum")
def einsum(layer: Layer) -> Result:
    """Operands are contracted from the left; a label is summed once nothing later needs it."""
    terms, result = _parse(layer)
    for term in terms:
        if len(set(term)) != len(term):
            raise layer.unsupported(f"a repeated label in {term!r}")
    operands = list(zip(layer.present(), terms, strict=True))
    value, labels = operands[0]
    for n, (other, more) in enumerate(operands[1:], 1):
        later = {label for _, term in operands[n + 1 :] for label in term}
        value, labels = _contract(value, labels, other, more, later | set(result))
    summed = tuple(n for n, label in enumerate(labels) if label not in result)
    if summed:
        value = call("sum", value, axes=summed, keepdims=False)
        labels = "".join(label for label in labels if label in result)
    return _in_order(value, labels, result)


def _parse(layer: Layer) -> tuple[list[str], str]:
    """Returns a string of one-letter labels for each operand, and for the result."""
    text = layer.text("equation").replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(layer.inputs):
        raise layer.wrong(f"has {len(terms)} terms for {len(layer.inputs)} inputs")
    letters = set(text) - set("->,.")
    if not all(c.isalpha() and c.isascii() for c in letters):
        raise layer.wrong(f"has the equation {text!r}")
    free = [c for c in _DOTS + _DOTS.lower() if c not in letters]
    most = 0
    for n, term in enumerate(terms):
        if "..." in term:
            most = max(most, layer.rank(n) - len(term) + 3)
    dots = "".join(free[:most])
    full = []
    for n, term in enumerate(terms):
        covered = layer.rank(n) - len(term) + 3 if "..." in term else 0
        full.append(term.replace("...", dots[most - covered :] if covered else ""))
        if len(full[-1]) != layer.rank(n):
            raise layer.wrong(f"has the term {term!r} for {layer.type(n)}")
    if arrow:
        result = right.replace("...", dots)
    else:
        joined = "".join(full)
        once = sorted(c for c in set(joined) - set(dots) if joined.count(c) == 1)
        result = dots + "".join(once)
    if len(set(result)) != len(result) or not set(result) <= set("".join(full)):
        raise layer.wrong(f"has the equation {text!r}")
    return full, result


def _contract(a: Expr, a_labels: str, b: Expr, b_labels: str, needed: set[str]) -> tuple[Expr, str]:
    """Returns the product of two operands, summed over labels that both have and nothing needs."""
    batch = [c for c in a_labels if c in b_labels and c in needed]
    inner = [c for c in a_labels if c in b_labels and c not in needed]
    rows = [c for c in a_labels if c not in b_labels]
    columns = [c for c in b_labels if c not in a_labels]
    left = _in_order(a, a_labels, "".join(batch + rows + inner))
    right = _in_order(b, b_labels, "".join(batch + inner + columns))
    sizes = _sizes(a, a_labels) | {
        c: d for c, d in _sizes(b, b_labels).items() if c not in a_labels
    }
    both = _joint(a, a_labels, b, b_labels, batch)

    def size(labels: Sequence[str]) -> Dim:
        return product(tuple(sizes[c] for c in labels))

    left = reshaped(left, (*_shape(left, len(batch)), size(rows), size(inner)))
    right = reshaped(right, (*_shape(right, len(batch)), size(inner), size(columns)))
    out = call("nn.matmul", left, right)
    shape = [*both, *(sizes[c] for c in rows), *(sizes[c] for c in columns)]
    return reshaped(out, shape), "".join([*batch, *rows, *columns])


def _shape(x: Expr, count: int) -> tuple[Dim, ...]:
    return x.tensor.shape[:count]


def _sizes(x: Expr, labels: str) -> dict[str, Dim]:
    return dict(zip(labels, x.tensor.shape, strict=True))


def _joint(a: Expr, a_labels: str, b: Expr, b_labels: str, batch: Sequence[str]) -> list[Dim]:
    """Returns the sizes of shared labels: those under `...` may be 1 in one of the operands."""
    left, right = _sizes(a, a_labels), _sizes(b, b_labels)
    return [right[c] if left[c] == 1 else left[c] for c in batch]


def _in_order(x: Expr, labels: str, wanted: str) -> Expr:
    if labels == wanted:
        return x
    return call("transpose", x, axes=tuple(labels.index(c) for c in wanted))
