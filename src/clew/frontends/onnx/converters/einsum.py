"""Einsum as transposes, one batched matrix product per pair of operands, and sums."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from clew.frontends.building import call, cast, reshaped
from clew.frontends.names import display
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.dims import Dim, product
from clew.ir.expr import Expr
from clew.ops.common import differ

_DOTS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MOST_LABELS: Final = 1000
_TERM: Final = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")


@converter("Einsum")
def einsum(layer: Layer) -> Result:
    """Operands are contracted from the left; a label is summed once no later operand needs it. Axes
    with the same label are reduced to their diagonal.
    """
    terms, result = _parse(layer)
    if sum(map(len, terms)) > _MOST_LABELS:
        raise layer.unsupported(f"with {sum(map(len, terms))} labels")
    operands = [_diagonal(layer, x, t) for x, t in zip(layer.present(), terms, strict=True)]
    _check_sizes(layer, operands)
    value, labels = operands[0]
    for n, (other, more) in enumerate(operands[1:], 1):
        later = {label for _, term in operands[n + 1 :] for label in term}
        value, labels = _contract(value, labels, other, more, later | set(result))
    return _in_order(*_summed(value, labels, set(result)), result)


def _diagonal(layer: Layer, x: Expr, labels: str) -> tuple[Expr, str]:
    """Returns an operand in which each label occurs once."""
    for n in range(len(labels) - 1, -1, -1):
        first = labels.index(labels[n])
        if first == n:
            continue
        shape = x.tensor.shape
        if differ(shape[first], shape[n]):
            raise layer.wrong(
                f"has the same label for axes of {shape[first]} and {shape[n]} elements"
            )
        x = call("diagonal", x, first=first, second=n)
        labels = labels[:n] + labels[n + 1 :]
    return x, labels


def _check_sizes(layer: Layer, operands: Sequence[tuple[Expr, str]]) -> None:
    """Checks that axes with the same label have the same size, or one element.

    Errors: M012.
    """
    known: dict[str, Dim] = {}
    for x, labels in operands:
        for label, size in _sizes(x, labels).items():
            before = known.get(label, 1)
            if before == 1:
                known[label] = size
            elif size != 1 and differ(size, before):
                raise layer.wrong(f"has the same label for axes of {before} and {size} elements")


def _parse(layer: Layer) -> tuple[list[str], str]:
    """Returns a string of one-letter labels for each operand, and for the result."""
    text = layer.text("equation").replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(layer.inputs):
        raise layer.wrong(f"has {len(terms)} terms for {len(layer.inputs)} inputs")
    if not all(_TERM.fullmatch(term) for term in (*terms, right)):
        raise layer.wrong(f"has the equation {display(text)!r}")
    letters = set(text) - set("->,.")
    free = [c for c in _DOTS + _DOTS.lower() if c not in letters]
    most = 0
    for n, term in enumerate(terms):
        if "..." in term:
            most = max(most, layer.rank(n) - len(term) + 3)
    if most > len(free):
        raise layer.unsupported(f"with {len(letters) + most} labels")
    dots = "".join(free[:most])
    full = []
    for n, term in enumerate(terms):
        covered = layer.rank(n) - len(term) + 3 if "..." in term else 0
        full.append(term.replace("...", dots[most - covered :] if covered else ""))
        if len(full[-1]) != layer.rank(n):
            raise layer.wrong(f"has the term {display(term)!r} for {layer.type(n)}")
    if arrow:
        result = right.replace("...", dots)
    else:
        joined = "".join(full)
        once = sorted(c for c in set(joined) - set(dots) if joined.count(c) == 1)
        result = dots + "".join(once)
    if len(set(result)) != len(result) or not set(result) <= set("".join(full)):
        raise layer.wrong(f"has the equation {display(text)!r}")
    return full, result


def _contract(a: Expr, a_labels: str, b: Expr, b_labels: str, needed: set[str]) -> tuple[Expr, str]:
    """Returns the product of two operands, summed over labels that no later operand needs."""
    a, a_labels = _without(a, a_labels, _stretched(b, b_labels, a, a_labels))
    b, b_labels = _without(b, b_labels, _stretched(a, a_labels, b, b_labels))
    a, a_labels = _summed(a, a_labels, needed | set(b_labels))
    b, b_labels = _summed(b, b_labels, needed | set(a_labels))
    batch = [c for c in a_labels if c in b_labels and c in needed]
    inner = [c for c in a_labels if c in b_labels and c not in needed]
    rows = [c for c in a_labels if c not in b_labels]
    columns = [c for c in b_labels if c not in a_labels]
    left = _in_order(a, a_labels, "".join(batch + rows + inner))
    right = _in_order(b, b_labels, "".join(batch + inner + columns))
    sizes = _sizes(b, b_labels) | _sizes(a, a_labels)

    def size(labels: Sequence[str]) -> Dim:
        return product(tuple(sizes[c] for c in labels))

    outer = [sizes[c] for c in batch]
    left = reshaped(left, (*outer, size(rows), size(inner)))
    right = reshaped(right, (*outer, size(inner), size(columns)))
    out = cast(call("nn.matmul", left, right), a.tensor.dtype)  # of narrow integers it is wide
    shape = [*outer, *(sizes[c] for c in rows), *(sizes[c] for c in columns)]
    return reshaped(out, shape), "".join([*batch, *rows, *columns])


def _sizes(x: Expr, labels: str) -> dict[str, Dim]:
    return dict(zip(labels, x.tensor.shape, strict=True))


def _stretched(a: Expr, a_labels: str, b: Expr, b_labels: str) -> set[str]:
    """Returns the labels with one element in `b` and more in `a`: they are broadcast."""
    sizes = _sizes(a, a_labels)
    return {c for c, d in _sizes(b, b_labels).items() if d == 1 and sizes.get(c, 1) != 1}


def _without(x: Expr, labels: str, dropped: set[str]) -> tuple[Expr, str]:
    """Returns an operand without axes of one element."""
    shape = [d for c, d in zip(labels, x.tensor.shape, strict=True) if c not in dropped]
    return reshaped(x, shape), "".join(c for c in labels if c not in dropped)


def _summed(x: Expr, labels: str, needed: set[str]) -> tuple[Expr, str]:
    axes = tuple(n for n, c in enumerate(labels) if c not in needed)
    if not axes:
        return x, labels
    total = call("sum", x, axes=axes, keepdims=False)
    return total, "".join(c for c in labels if c in needed)


def _in_order(x: Expr, labels: str, wanted: str) -> Expr:
    if labels == wanted:
        return x
    return call("transpose", x, axes=tuple(labels.index(c) for c in wanted))
