"""Operators in a few words, for tables: `conv2d 3x3 /2 3→16 NCHW→NCHW16c f32`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clew.ops.registry import get_op
from clew.support.errors import GraphTypeError

Facts = Mapping[str, Any]
# Attributes that are said in another form.
_SAID = frozenset(("strides", "padding", "dilation", "groups", "kernel", "channels", "units"))
_LONGEST = 24


def summary(facts: Facts) -> str:
    """Returns an operator's name and what tells it from others of the name, on one line."""
    words = [str(facts["op"]).rpartition(".")[2], *_window(facts), *_product(facts)]
    if "kernel" in facts and "m" in facts and "channels_in" in facts:
        words.append(f"{facts['channels_in']}→{facts['channels_out']}")
    return " ".join([*words, *_attributes(facts), *_layouts(facts), *_dtypes(facts)])


def typed(facts: Facts) -> str:
    """Returns a value's type as the text form has it: `f32[1, 64]:NC`."""
    if "shape" not in facts:
        return str(facts.get("type", "tuple"))
    layout = f":{facts['layout']}" if facts.get("layout") else ""
    return f"{facts['dtype']}[{', '.join(map(str, facts['shape']))}]{layout}"


def _window(facts: Facts) -> list[str]:
    if "kernel" not in facts:
        return []
    words = [_by(facts["kernel"])]
    if any(s != 1 for s in facts.get("strides", ())):
        words.append(f"/{_short(facts['strides'])}")
    if any(p != 0 for p in facts.get("padding", ())):
        words.append(f"pad {_short(facts['padding'])}")
    if any(d != 1 for d in facts.get("dilation", ())):
        words.append(f"dilated {_short(facts['dilation'])}")
    if facts.get("groups", 1) != 1:
        words.append(f"in {facts['groups']} groups")
    return words


def _product(facts: Facts) -> list[str]:
    """Returns rows, columns and depth of a product that is no convolution."""
    if "kernel" in facts or "m" not in facts:
        return []
    batch = [f"{facts['batch']} of"] if facts["batch"] != 1 else []
    return [*batch, _by([facts["m"], facts["n"], facts["k"]])]


def _attributes(facts: Facts) -> list[str]:
    """Returns the attributes not said already that differ from the declaration's defaults."""
    try:
        defaults: Mapping[str, Any] = get_op(facts["op"]).defaults
    except GraphTypeError:
        defaults = {}
    words = []
    for name, value in facts.get("attrs", {}).items():
        default = defaults.get(name, ...)
        plain = list(default) if isinstance(default, tuple) else default
        if name in _SAID and ("kernel" in facts or "m" in facts):
            continue
        if value == plain or name.endswith(("layout", "dtype")):
            continue
        shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        text = f"{name}={shown}".replace(" ", "")
        words.append(text if len(text) <= _LONGEST else f"{name}=…")
    return words


def _layouts(facts: Facts) -> list[str]:
    inputs = facts.get("inputs", ())
    before, after = (inputs[0].get("layout", "") if inputs else ""), facts.get("layout", "")
    return [after if before in ("", after) else f"{before}→{after}"] if after else []


def _dtypes(facts: Facts) -> list[str]:
    """Returns the dtype of the result, and that of what it is computed from where it is another."""
    after = facts.get("dtype")
    inputs = [i.get("dtype") for i in facts.get("inputs", ())]
    read = list(dict.fromkeys(d for d in inputs if d))
    if not after:
        return []
    return [after if not read or read == [after] else f"{','.join(read)}→{after}"]


def _short(values: Sequence[Any]) -> str:
    """Returns one number for equal ones, all of them otherwise."""
    return str(values[0]) if len(set(map(str, values))) == 1 else ",".join(map(str, values))


def _by(sizes: Sequence[Any]) -> str:
    return "x".join(map(str, sizes))
