"""Dot product instructions: a group of neighbours of each operand at a time, in 32 bits a lane."""

from __future__ import annotations

from typing import Final

from clew.codegen.address import Bound, element_bytes
from clew.codegen.builder import Value, llvm_type
from clew.codegen.values import Values
from clew.loop.ir import For, Store
from clew.loop.products import product_of, step_along
from clew.te.expr import Load

# By operands' dtypes: the feature and the instruction's name in LLVM. Unsigned comes first.
_DOTS: Final = {
    ("bf16", "bf16"): ("avx512bf16", "llvm.x86.avx512bf16.dpbf16ps", "bfloat"),
    ("u8", "i8"): ("avx512vnni", "llvm.x86.avx512.vpdpbusd", "i8"),
}
_WIDTHS: Final = {4: "128", 8: "256", 16: "512"}


def emit_dot(v: Values, loop: For, store: Store, old: Value) -> Value | None:
    """Returns `old` with the products of a group added in each lane.

    None where the target has no such instruction, or the operands do not lie as it takes them.
    """
    product = product_of(store)
    if product is None or v.lanes not in _WIDTHS or loop.extent != product.group:
        return None
    a, b = product.a, product.b
    if (a.dtype, b.dtype) == ("i8", "u8"):
        a, b = b, a
    found = _DOTS.get((a.dtype, b.dtype))
    if found is None or not v.b.module.has(found[0]) or not v.b.module.has("avx512vl"):
        return None
    if any(step_along(v.flat(x, x.source, x.indices), loop.index) != 1 for x in (a, b)):
        return None
    v.bound[id(loop.index)] = Bound(const=0)
    operands = [_groups(v, x, product.group) for x in (a, b)]
    del v.bound[id(loop.index)]
    if operands[0] is None or operands[1] is None:
        return None
    _, name, element = found
    many = f"<{v.lanes * product.group} x {element}>"
    wide = llvm_type(old.dtype, v.lanes)
    name = f"{name}.{_WIDTHS[v.lanes]}"
    v.b.module.declare(name, wide, [wide, many, many])
    total = v.broadcast(old, v.lanes)
    cast = [v.b.pointer(f"bitcast {x.typed} to {many}") for x in operands if x is not None]
    text = f"call {wide} @{name}({total.typed}, {many} {cast[0]}, {many} {cast[1]})"
    return v.b.value(text, old.dtype, v.lanes)


def _groups(v: Values, load: Load, group: int) -> Value | None:
    """Returns an operand's groups as `i32` in all lanes; None where they do not lie side by side."""
    place = v.place(load.source, v.flat(load, load.source, load.indices))
    if place.lane_parts or place.step not in (0, group):
        return None
    key = (place.key, place.offset, "dot", v.lanes, id(load.source), v.mask and v.mask.text)
    found = v.loads.get(key)
    if found is None:
        pointer = v.pointer_at(load.source, place)
        align = element_bytes(load.dtype)
        if place.step == 0:
            found = v.b.value(f"load i32, ptr {pointer}, align {align}", "i32")
        elif v.mask is None:
            text = f"load <{v.lanes} x i32>, ptr {pointer}, align {align}"
            found = v.b.value(text, "i32", v.lanes)
        else:
            found = v.masked_load("i32", pointer, align)
        v.loads[key] = found
    return v.broadcast(found, v.lanes)
