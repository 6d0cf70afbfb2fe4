"""Operators on single elements that equal one of clew's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION

from clew.frontends.building import call
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.registry import Converter, Result, converter
from clew.ir.expr import Expr
from clew.ir.types import is_float
from clew.ops.registry import get_op
from clew.vocabularies.same import read
from clew.vocabularies.torch import ATEN, Operands, SameInTorch

_OPERANDS: Final = ("self", "other")
_KINDS: Final = {
    "numbers": PROMOTION.DEFAULT,
    "floats": PROMOTION.INT_TO_FLOAT,
    "compared": PROMOTION.ALWAYS_BOOL,
}
_READERS: Final[dict[Any, Callable[[Layer, str, Any], Any]]] = {
    float: lambda layer, name, default: float(layer.number(name, default)),
    str: Layer.get,
}
"""How an argument is read, by the type that clew's operator declares."""


def _converter_of(pair: SameInTorch) -> Converter:
    signature = get_op(pair.op).signature
    names = _OPERANDS[: len(signature.inputs)]

    def convert(layer: Layer) -> Result:
        operands = _operands(layer, names, pair.operands)
        if operands is None:
            return layer.filled(False) if pair.operands == "tested" else layer.tensor()
        declared = {own: signature.attributes[own] for own in pair.mapped}
        attrs = {
            own: _READERS[a.annotation](layer, pair.mapped[own], a.default)
            for own, a in declared.items()
        }
        truths = pair.of_truths and operands[0].tensor.dtype == "bool"
        return layer.to_result(call(pair.of_truths if truths else pair.op, *operands, **attrs))

    return convert


def _operands(layer: Layer, names: tuple[str, ...], kind: Operands) -> list[Expr] | None:
    """Returns the operands as torch computes with them; None for integers that need no operator."""
    if kind == "truths":
        return [layer.truth(name) for name in names]
    if kind in ("rounded", "tested"):
        x = layer.tensor()
        return [x] if is_float(x.tensor.dtype) else None
    return layer.promoted(*names, kind=_KINDS[kind])


for _pair in read(ATEN):
    converter(_pair.foreign)(_converter_of(_pair))
