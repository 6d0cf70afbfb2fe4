"""Dot product instructions: products of groups of neighbors, summed in 32 bits per lane."""

from __future__ import annotations

from typing import Final

from clew.codegen.address import Bound, Place, element_bytes
from clew.codegen.builder import Value, llvm_type
from clew.codegen.lanes import literal
from clew.codegen.math import arith
from clew.codegen.values import Values
from clew.ir.types import bits
from clew.loop.ir import For, Store
from clew.loop.products import GROUP_BITS, product_of, step_along
from clew.te.expr import Binary, Inlined, Load, Scalar

_LANES: Final = (4, 8, 16)
_BYTES: Final = 4  # of a lane


def emit_dot(v: Values, loop: For, store: Store, old: Value) -> Value | None:
    """Returns `old` plus the products of a group in each lane.

    None if the target has no such instruction, or if the operands are not laid out for it.
    """
    product = product_of(store)
    if product is None or v.lanes not in _LANES or loop.extent != product.group:
        return None
    (a, b), numbers = (product.a, product.b), product.numbers
    if (a.dtype, b.dtype) in (("i8", "u8"), ("i8", "i16")):
        (a, b), numbers = (b, a), (numbers[1], numbers[0])
    instructions = v.b.module.instructions
    found = instructions.dot(a.dtype, b.dtype, v.lanes, pairs_fit=product.pairs_fit)
    if found is None and (a.dtype, b.dtype) != ("bf16", "bf16"):
        return None
    if any(step_along(v.flat(x, x.source, x.indices), loop.index) != 1 for x in (a, b)):
        return None
    v.bound[id(loop.index)] = Bound(const=0)
    left, right = (
        _unpacked(v, number, x, product.group) for x, number in zip((a, b), numbers, strict=True)
    )
    del v.bound[id(loop.index)]
    if left is None or right is None:
        return None
    total = v.broadcast(old, v.lanes)
    if found is None:
        return _two_steps(v, left, right, total)
    many = f"<{v.lanes * product.group} x {found.element}>"
    wide = llvm_type(old.dtype, v.lanes)
    cast = [
        v.b.pointer(f"bitcast {v.broadcast(x, v.lanes).typed} to {many}") for x in (left, right)
    ]
    if found.is_signed:
        return _shifted(v, found.function, many, cast, total)
    pair = f"{many} {cast[0]}, {many} {cast[1]}"
    if found.pairs:
        ones = literal(1, "i16", 2 * v.lanes)
        short = llvm_type(ones.dtype, ones.lanes)
        v.b.module.declare(found.pairs, short, [many, many])
        sums = v.b.value(f"call {short} @{found.pairs}({pair})", ones.dtype, ones.lanes)
        many, pair = short, f"{sums.typed}, {ones.typed}"
    takes = [wide, many, many] if found.accumulates else [many, many]
    v.b.module.declare(found.function, wide, takes)
    if not found.accumulates:
        sums = v.b.value(f"call {wide} @{found.function}({pair})", old.dtype, v.lanes)
        return v.b.value(f"add {total.typed}, {sums.text}", old.dtype, v.lanes)
    return v.b.value(f"call {wide} @{found.function}({total.typed}, {pair})", old.dtype, v.lanes)


def _shifted(v: Values, function: str, many: str, cast: list[str], total: Value) -> Value:
    """Returns a sum plus products of unsigned and signed bytes, by an instruction for signed bytes:
    `a * b` is `(a - 128) * b + 64 * b + 64 * b`.
    """
    count = _BYTES * v.lanes
    shift, half = (literal(n, "i8", count).text for n in (-128, 64))
    wide = llvm_type(total.dtype, v.lanes)
    v.b.module.declare(function, wide, [wide, many, many])
    signed = v.b.pointer(f"xor {many} {cast[0]}, {shift}")
    for factor in (signed, half, half):
        call = f"call {wide} @{function}({total.typed}, {many} {factor}, {many} {cast[1]})"
        total = v.b.value(call, total.dtype, v.lanes)
    return total


def _two_steps(v: Values, left: Value, right: Value, total: Value) -> Value:
    """Returns a sum plus the products of pairs of `bf16`, added one after the other in f32."""
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


def _unpacked(v: Values, number: Scalar, load: Load, group: int) -> Value | None:
    """Returns the groups of an operand as `_groups` does: the loaded value, with its bits shifted
    and masked as `number` says.
    """
    while isinstance(number, Inlined):
        number = number.value
    if not isinstance(number, Binary):
        return _groups(v, load, group)
    integers = _unpacked(v, number.a, load, group)
    by = v.value(number.b)
    if integers is None or by.lanes > 1:
        return None
    lanes, whole = integers.lanes * group, integers.dtype
    text = f"bitcast {integers.typed} to {llvm_type(load.dtype, lanes)}"
    each = v.b.value(text, load.dtype, lanes)
    each = arith.binary(v.b, number.op, each, v.broadcast(by, lanes))
    text = f"bitcast {each.typed} to {llvm_type(whole, integers.lanes)}"
    return v.b.value(text, whole, integers.lanes)


def _groups(v: Values, load: Load, group: int) -> Value | None:
    """Returns an operand's groups as `i32`, one if all lanes share it; None if they are not
    contiguous.
    """
    place = v.place(load.source, v.flat(load, load.source, load.indices))
    if place.lane_parts or place.step not in (0, group):
        return None
    key = (place.key, place.offset, "dot", v.lanes, id(load.source.root), v.mask and v.mask.text)
    found = v.loads.get(key)
    if group * bits(load.dtype) < GROUP_BITS and v.mask is not None:
        return None
    if found is None and group * bits(load.dtype) < GROUP_BITS:
        found = v.loads[key] = _widened(v, load, place, group)
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


def _widened(v: Values, load: Load, place: Place, group: int) -> Value:
    """Returns pairs of `i8` as `i32` of two `i16`."""
    lanes = v.lanes if place.step else 1
    count, pointer = lanes * group, v.pointer_at(load.source, place)
    text = f"load {llvm_type(load.dtype, count)}, ptr {pointer}, align 1"
    narrow = v.b.value(text, load.dtype, count)
    wide = v.b.value(f"sext {narrow.typed} to {llvm_type('i16', count)}", "i16", count)
    return v.b.value(f"bitcast {wide.typed} to {llvm_type('i32', lanes)}", "i32", lanes)
