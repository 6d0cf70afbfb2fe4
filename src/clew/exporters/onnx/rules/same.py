"""Operators that one of ONNX equals."""

from __future__ import annotations

from typing import Any

from clew.exporters.onnx.registry import Rule, Writing, writes
from clew.ops.registry import get_op
from clew.vocabularies.onnx import ONNX
from clew.vocabularies.same import Same, written


def _rule_of(pair: Same) -> Rule:
    declared = get_op(pair.op).signature.attributes
    fixed = {name: a.default for name, a in declared.items() if name not in pair.attributes}

    def rule(w: Writing) -> str:
        for name, default in fixed.items():
            if w.attrs[name] != default:
                w.refuse(f"{pair.foreign} has no {name}, which is {w.attrs[name]!r}")
        attrs = {foreign: _value(w, own) for own, foreign in pair.mapped.items()}
        return w.emit(pair.foreign, *w.inputs, **attrs)

    return rule


def _value(w: Writing, name: str) -> Any:
    value = w.attrs[name]
    return w.real(name) if isinstance(value, float) else value


for _pair in written(ONNX):
    writes(_pair.op)(_rule_of(_pair))
