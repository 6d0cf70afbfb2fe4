"""Class probabilities from pairwise ones: an iterative host operator."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from clew.ir.types import TensorType, Type
from clew.ops.common import differ, f32, f64, tensor_type
from clew.ops.registry import Sample, register_op
from clew.support.budgets import check_run_operations
from clew.support.errors import GraphTypeError

Array = np.ndarray[Any, Any]

# Operations of a round, per pair of classes.
_PAIR_OPERATIONS: Final = 6
# The most elements of matrices over pairs of classes in memory at once.
_MOST_RATES: Final = 1 << 22


@register_op(
    "svm.coupled",
    host=True,
    samples=(
        Sample(f32(5, 3), classes=3, low=0.1, high=0.9),
        Sample(f64(4, 1), classes=2, low=0.1, high=0.9),
        Sample(f32(0, 6), classes=4),
        Sample(f32(5, 4), classes=3, error="T108"),
    ),
)
def coupled(pairs: Array, *, classes: int) -> Array:
    """Probabilities `[N, classes]` that best fit `pairs[N, P]`, the probabilities of the first of
    two classes, for the pairs (0, 1), (0, 2), ..., (1, 2), ...

    Errors: T108, I269. Source: Wu, Lin and Weng, "Probability estimates for multi-class
    classification by pairwise coupling", 2004, the second method; it stops where libsvm does.
    """
    step = max(1, _MOST_RATES // classes**2)
    parts, work = [np.zeros((0, classes), pairs.dtype)], 0
    for n in range(0, len(pairs), step):
        part, done = _coupled(pairs[n : n + step], classes, work)
        parts.append(part)
        work += done
    return np.concatenate(parts)


def _coupled(pairs: Array, classes: int, before: int) -> tuple[Array, int]:
    """Returns probabilities, and the number of operations so far, starting from `before`."""
    count, work = len(pairs), 0
    rates = np.zeros((count, classes, classes))
    first, second = np.triu_indices(classes, 1)
    rates[:, first, second] = pairs
    rates[:, second, first] = 1 - pairs.astype(np.float64)
    q = -rates.transpose(0, 2, 1) * rates
    own = np.arange(classes)
    q[:, own, own] = (rates**2).sum(1)
    p = np.full((count, classes), 1 / classes)
    left = np.arange(count)
    for _ in range(max(100, classes)):
        work += _PAIR_OPERATIONS * left.size * classes**2
        check_run_operations("svm.coupled", before + work)
        qp = np.einsum("nij,nj->ni", q[left], p[left])
        pqp = (p[left] * qp).sum(1)
        wrong = np.abs(qp - pqp[:, None]).max(1, initial=0) >= 0.005 / classes
        left, qp, pqp = left[wrong], qp[wrong], pqp[wrong]
        if not left.size:
            break
        part, matrix = p[left], q[left]
        for t in range(classes):
            diagonal = matrix[:, t, t]
            step = (pqp - qp[:, t]) / diagonal
            part[:, t] += step
            pqp = (pqp + step * (step * diagonal + 2 * qp[:, t])) / (1 + step) ** 2
            part /= (1 + step)[:, None]
            qp = (qp + step[:, None] * matrix[:, t]) / (1 + step)[:, None]
        p[left] = part
    return p.astype(pairs.dtype), work


@coupled.types
def _coupled_types(pairs: Type, *, classes: int) -> Type:
    source = tensor_type("svm.coupled", pairs)
    if classes < 2 or source.rank != 2 or differ(source.shape[1], classes * (classes - 1) // 2):
        raise GraphTypeError("T108", f"svm.coupled: {source} does not fit {classes} classes")
    return TensorType((source.shape[0], classes), source.dtype)
