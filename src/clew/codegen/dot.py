"""Dot product instructions: a group of neighbours of each operand at a time, in 32 bits a lane."""

from __future__ import annotations

from typing import Final

from clew.codegen import arith
from clew.codegen.address import Bound, element_bytes
from clew.codegen.builder import Value, llvm_type
from clew.codegen.lanes import literal
from clew.codegen.values import Values
from clew.loop.ir import For, Store
from clew.loop.products import product_of, step_along
from clew.te.expr import Load

# By operands' dtypes: the instruction's name in LLVM and its elements. Unsigned comes first.
_DOTS: Final = {
    ("bf16", "bf16"): ("llvm.x86.avx512bf16.dpbf16ps", "bfloat"),
    ("u8", "i8"): ("llvm.x86.avx512.vpdpbusd", "i8"),
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
    if (a.dtype, b.dtype) not in _DOTS:
        return None
    fast = _has_instruction(v, a.dtype)
    if not fast and a.dtype != "bf16":
        return None
    if any(step_along(v.flat(x, x.source, x.indices), loop.index) != 1 for x in (a, b)):
        return None
    v.bound[id(loop.index)] = Bound(const=0)
    left, right = (_groups(v, x, product.group) for x in (a, b))
    del v.bound[id(loop.index)]
    if left is None or right is None:
        return None
    total = v.broadcast(old, v.lanes)
    if not fast:
        return _two_steps(v, left, right, total)
    name, element = _DOTS[a.dtype, b.dtype]
    many = f"<{v.lanes * product.group} x {element}>"
    wide = llvm_type(old.dtype, v.lanes)
    name = f"{name}.{_WIDTHS[v.lanes]}"
    v.b.module.declare(name, wide, [wide, many, many])
    cast = [
        v.b.pointer(f"bitcast {v.broadcast(x, v.lanes).typed} to {many}") for x in (left, right)
    ]
    text = f"call {wide} @{name}({total.typed}, {many} {cast[0]}, {many} {cast[1]})"
    return v.b.value(text, old.dtype, v.lanes)


def _has_instruction(v: Values, dtype: str) -> bool:
    """Whether the target has the instruction, and it is quick: Intel's for `bf16`, in CPUs that
    also have `avx512fp16`, takes as long as four fused multiply-adds.
    """
    has = v.b.module.has
    if dtype != "bf16":
        return has("avx512vnni") and has("avx512vl")
    return has("avx512bf16") and has("avx512vl") and not has("avx512fp16")


def _two_steps(v: Values, left: Value, right: Value, total: Value) -> Value:
    """Returns a sum with the products of pairs of `bf16` added one after the other, in f32."""
    halves = [(_half(v, left, high), _half(v, right, high)) for high in (False, True)]
    for x, y in halves:
        x, y = v.widen([x, y], v.lanes)
        total = arith.fma(v.b, x, y, total)
    return total


def _half(v: Values, pairs: Value, high: bool) -> Value:
    """Returns the first or second number of each pair as f32."""
    key = ("half", pairs.text, high, pairs.lanes)
    found = v.loads.get(key)
    if found is None:
        kept = literal(-1 << 16 if high else 16, "i32", pairs.lanes)
        name = "and" if high else "shl"
        bits = v.b.value(f"{name} {pairs.typed}, {kept.text}", "i32", pairs.lanes)
        text = f"bitcast {bits.typed} to {llvm_type('f32', pairs.lanes)}"
        found = v.loads[key] = v.b.value(text, "f32", pairs.lanes)
    return found


def _groups(v: Values, load: Load, group: int) -> Value | None:
    """Returns an operand's groups as `i32`, one where all lanes share it; None where they do not
    lie side by side.
    """
    place = v.place(load.source, v.flat(load, load.source, load.indices))
    if place.lane_parts or place.step not in (0, group):
        return None
    key = (place.key, place.offset, "dot", v.lanes, id(load.source.root), v.mask and v.mask.text)
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
    return found
