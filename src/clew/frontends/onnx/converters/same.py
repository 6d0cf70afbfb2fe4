"""Operators that equal one of clew's."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, Final

from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Converter, Result, converter
from clew.ops.registry import get_op
from clew.vocabularies.onnx import ONNX
from clew.vocabularies.same import Same, read

_READERS: Final[dict[Any, Callable[[Layer, str], Any]]] = {
    bool: Layer.flag,
    float: Layer.real,
    int: Layer.integer,
    str: Layer.text,
    tuple[int, ...]: Layer.integers,
}
"""How an attribute is read, by the type that clew's operator declares."""


def _converter_of(pair: Same) -> Converter:
    op = get_op(pair.op)

    def convert(layer: Layer) -> Result:
        count, declared = len(op.signature.inputs), op.signature.attributes
        attrs = {
            own: layer.axis() if of == "axis" else _READERS[declared[own].annotation](layer, of)
            for own, of in pair.mapped.items()
            if of in layer.schema.attributes
        }
        if layer.schema.max_input > count:
            return reduce(lambda *two: op(*two, **attrs), layer.present())
        return op(*map(layer.input, range(count)), **attrs)

    return convert


for _pair in read(ONNX):
    converter(_pair.foreign)(_converter_of(_pair))
