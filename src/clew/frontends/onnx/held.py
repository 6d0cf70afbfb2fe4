"""Calls whose attributes may come from inputs that are known only during the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clew.frontends.building import call
from clew.frontends.onnx.layer import Layer
from clew.ir.expr import ArgRef, Call, Expr


def held(
    layer: Layer, op: str, x: Sequence[Expr], sources: Mapping[str, int | Expr], **attrs: Any
) -> Call:
    """Returns a call whose attributes may come from expressions or from the layer's inputs.

    A known value becomes the attribute. For an unknown one, the call takes the expression as an
    argument, and the attribute refers to it.
    """
    args = list(x)
    for name, source in sources.items():
        expr = layer.input(source) if isinstance(source, int) else source
        value = layer.builder.known.get(expr)
        if value is None:
            attrs[name] = ArgRef(len(args))
            args.append(expr)
        else:
            attrs[name] = value.item() if value.ndim == 0 else tuple(value.reshape(-1).tolist())
    return call(op, *args, **attrs)
