"""Calls that OpenVINO accepts but computes differently from the graph, or that crash it.

They were found by comparing OpenVINO 2026.4 with the references on the samples of all operators
(`tests/backends/test_engine_samples.py`). Differences that depend on values, such as NaN in
`argmax`, cannot be rejected before a run; `clew.place` compares outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from clew.ir.expr import Call
from clew.ir.types import TensorType, TupleType, is_float

_UNSIGNED: Final = frozenset({"u8", "u16", "u32", "u64"})
_WIDE: Final = frozenset({"i64", "u64", "u32"})


def wrong(call: Call) -> str:
    """Returns why OpenVINO must not get a call; empty if it may."""
    if any(t in _WIDE for t in _results(call)):
        return "it computes i64, u32 and u64 in i32"
    rule = _RULES.get(call.op_name)
    return rule(call) if rule is not None else ""


def _results(call: Call) -> list[str]:
    types = call.type.fields if isinstance(call.type, TupleType) else (call.type,)
    return [t.dtype for t in types if isinstance(t, TensorType)]


def _operand(call: Call) -> str:
    return call.args[0].tensor.dtype


def _unsigned(call: Call) -> str:
    return "it saturates unsigned integers" if _operand(call) in _UNSIGNED else ""


def _float_mod(call: Call) -> str:
    return "its remainders of floats are inexact" if is_float(_operand(call)) else ""


def _whole_shrink(call: Call) -> str:
    return "" if is_float(_operand(call)) else "it shrinks integers as floats"


def _resize(call: Call) -> str:
    attrs = call.attrs
    if attrs.get("antialias") or attrs.get("exclude_outside"):
        return "it weights outer pixels differently"
    return ""


def _average(call: Call) -> str:
    if call.attrs.get("ceil_mode") and call.attrs.get("count_include_pad"):
        return "it counts padding differently in the last window"
    return ""


def _even_lrn(call: Call) -> str:
    return "its windows of even size lie elsewhere" if call.attrs.get("size", 1) % 2 == 0 else ""


def _to_bool(call: Call) -> str:
    if call.attrs.get("dtype") == "bool" and is_float(_operand(call)):
        return "its NaN is false"
    return ""


def _half(call: Call) -> str:
    return "it computes f16 wrong after a division" if _operand(call) == "f16" else ""


def _half_spectrum(call: Call) -> str:
    return "its one-sided spectra have another shape" if call.attrs.get("onesided") else ""


def _guarded(call: Call) -> str:
    return "its fully masked rows are NaN" if call.attrs.get("guard") else ""


_RULES: Final[Mapping[str, Callable[[Call], str]]] = {
    "subtract": _unsigned,
    "left_shift": _unsigned,
    "right_shift": _unsigned,
    "mod": _float_mod,
    "floor_mod": _float_mod,
    "nn.shrink": _whole_shrink,
    "resize": _resize,
    "nn.avg_pool2d": _average,
    "nn.lrn": _even_lrn,
    "cast": _to_bool,
    "nn.elu": _half,
    "nn.max_pool_places": lambda call: "its places count in another order",
    "nn.roi_align": lambda call: "its largest values lie elsewhere",
    "dft": _half_spectrum,
    "nn.attention": _guarded,
    "gather_nd": lambda call: "it crashes",
}
