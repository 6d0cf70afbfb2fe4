"""Vectors in memory: loads and stores of lanes that are contiguous, two apart, near each other or
arbitrary, under masks.

Pointers are LLVM text; sizes are an element's size in bytes. Masked lanes are neither read nor
written; a load gives zeros for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clew.codegen.builder import Builder, Value, llvm_type
from clew.codegen.lanes import literal
from clew.codegen.math import arith

# A load and its shuffle cost about as much as gathering this many elements.
_LEAST_LANES_OF_LOAD: Final = 4
# Masks are ordered as integers of this dtype, by the most lanes: a vector of it fits a register.
_MASK_INTEGERS: Final = ((16, "i32"), (32, "i16"), (64, "i8"))
# The width of a load under a mask in a vector register.
_MASKED_BYTES: Final = 32


def literal_mask(lanes: Sequence[bool]) -> Value:
    """Returns a mask of known lanes."""
    text = ", ".join(f"i1 {str(lane).lower()}" for lane in lanes)
    return Value(f"<{text}>", "bool", len(lanes))


def mask_lanes(mask: Value) -> list[bool] | None:
    """Returns the lanes of a mask made by `literal_mask`; None for a mask computed at run time."""
    if not mask.text.startswith("<"):
        return None
    return [lane.endswith("true") for lane in mask.text[1:-1].split(",")]


def active_lanes(mask: Value | None, lanes: int) -> list[bool] | None:
    """Returns the active lanes (all without a mask); None if only a run determines them."""
    return [True] * lanes if mask is None else mask_lanes(mask)


def load_vector(
    b: Builder, stored: str, pointer: str, size: int, lanes: int, mask: Value | None
) -> Value:
    """Returns contiguous lanes."""
    type_ = llvm_type(stored, lanes)
    if mask is None:
        return b.value(f"load {type_}, ptr {pointer}, align {size}", stored, lanes)
    masked = b.module.instructions.masked_load(8 * size)
    if masked and mask_lanes(mask) is None:
        return _load_registers(b, masked, stored, pointer, size, lanes, mask)
    name = f"llvm.masked.load.{_mangled(stored, lanes)}.p0"
    b.module.declare(name, type_, ["ptr", mask.type, type_])
    return b.value(
        f"call {type_} @{name}(ptr align {size} {pointer}, {mask.typed}, {type_} zeroinitializer)",
        stored,
        lanes,
    )


def _load_registers(
    b: Builder, masked: str, stored: str, pointer: str, size: int, lanes: int, mask: Value
) -> Value:
    """Returns contiguous lanes, one register after the other, by a machine's function. For
    `llvm.masked.load`, LLVM 22 reads all lanes of a part in which it finds none to be active.
    """
    width = _MASKED_BYTES // size
    bits, floats = f"i{8 * size}", f"f{8 * size}"
    type_ = llvm_type(floats, width)
    b.module.declare(masked, type_, ["ptr", llvm_type(bits, width)])
    found: list[Value] = []
    for start in range(0, lanes, width):
        part = mask
        if lanes != width:
            part = masks_in_order(b, mask, [[min(start + n, lanes) for n in range(width)]])
        wide = b.value(f"sext {part.typed} to {llvm_type(bits, width)}", bits, width)
        at = _at(b, stored, pointer, start) if start else pointer
        found.append(b.value(f"call {type_} @{masked}(ptr {at}, {wide.typed})", floats, width))
    while len(found) > 1:
        if len(found) % 2:
            found.append(literal(0, floats, found[0].lanes))
        halves = zip(found[::2], found[1::2], strict=True)
        found = [in_order(b, x, y, range(2 * x.lanes)) for x, y in halves]
    (value,) = found
    if value.lanes != lanes:
        value = in_order(b, value, value, range(lanes))
    if stored == floats:
        return value
    return b.value(f"bitcast {value.typed} to {llvm_type(stored, lanes)}", stored, lanes)


def load_every_other(
    b: Builder, stored: str, pointer: str, size: int, lanes: int, mask: Value | None
) -> Value:
    """Returns lanes that are two elements apart, from two adjacent vectors; reads nothing beyond
    the last of them.
    """
    active = active_lanes(mask, lanes)
    # Lane n is element 2n of the first vector, or 2n - (lanes - 1) of one that starts there.
    half = lanes // 2
    places = [2 * n if n < half else lanes + 2 * n - (lanes - 1) for n in range(lanes)]
    parts: list[Value] = []
    for number, start in enumerate((0, lanes - 1)):
        at = _at(b, stored, pointer, start) if start else pointer
        lane_of = {p - number * lanes: lane for lane, p in enumerate(places)}
        part = mask
        if mask is not None and active is not None:
            wanted = {p for p, lane in lane_of.items() if active[lane]}
            part = literal_mask([n in wanted for n in range(lanes)])
        elif mask is not None:
            part = masks_in_order(b, mask, [[lane_of.get(n, lanes) for n in range(lanes)]])
        parts.append(load_vector(b, stored, at, size, lanes, part))
    return in_order(b, parts[0], parts[1], places)


def load_near(
    b: Builder, stored: str, pointer: str, size: int, lanes: int, offsets: Sequence[int | None]
) -> Value | None:
    """Returns lanes at known offsets (None: a lane that is not read) within a few vectors' length:
    loads of neighbors and shuffles. Reads nothing before the first or beyond the last offset. None
    if the lanes are too far apart for this to be profitable.
    """
    starts = near_starts(offsets, lanes)
    if not starts:
        return None
    used = [offset for offset in offsets if offset is not None]
    first, count = min(used), max(used) - min(used) + 1
    mask = None if count >= lanes else literal_mask([n < count for n in range(lanes)])
    places = [None if offset is None else offset - first for offset in offsets]
    found = literal(0, stored, lanes)
    for turn, start in enumerate(starts):
        loaded = load_vector(b, stored, _at(b, stored, pointer, first + start), size, lanes, mask)
        here = [p is not None and start <= p < start + lanes for p in places]
        # Lanes found before stay; at first, lanes that are not read are zero.
        order = [
            p - start if p is not None and inside else lanes + lane
            for lane, (p, inside) in enumerate(zip(places, here, strict=True))
        ]
        found = (
            loaded if turn == 0 and order == [*range(lanes)] else in_order(b, loaded, found, order)
        )
    return found


def near_starts(offsets: Sequence[int | None], lanes: int) -> list[int]:
    """Returns the offsets, from the first one, of the vectors that `load_near` loads; [] if the
    lanes are too far apart.
    """
    used = [offset for offset in offsets if offset is not None]
    if not used:
        return []
    first, count = min(used), max(used) - min(used) + 1
    last = max(count - lanes, 0)
    whole = {(offset - first) // lanes * lanes for offset in used}
    starts = [*sorted(n for n in whole if n < last), last]
    return starts if len(starts) <= max(1, lanes // _LEAST_LANES_OF_LOAD) else []


def gather(
    b: Builder, stored: str, pointers: str, size: int, lanes: int, mask: Value | None
) -> Value:
    """Returns lanes from arbitrary addresses."""
    type_ = llvm_type(stored, lanes)
    name = f"llvm.masked.gather.{_mangled(stored, lanes)}.v{lanes}p0"
    mask = mask or literal(True, "bool", lanes)
    b.module.declare(name, type_, [f"<{lanes} x ptr>", mask.type, type_])
    return b.value(
        f"call {type_} @{name}(<{lanes} x ptr> align {size} {pointers}, {mask.typed}, "
        f"{type_} zeroinitializer)",
        stored,
        lanes,
    )


def store_masked(b: Builder, value: Value, pointer: str, size: int, mask: Value) -> None:
    """Writes contiguous lanes where the mask holds."""
    known = mask_lanes(mask)
    if known is not None and known.count(True) == 1:
        # LLVM would also make this a scalar store, but of a narrowed value in its old width.
        lane = known.index(True)
        one = b.value(f"extractelement {value.typed}, i64 {lane}", value.dtype)
        at = _at(b, value.dtype, pointer, lane) if lane else pointer
        b.emit(f"store {one.typed}, ptr {at}, align {size}")
        return
    name = f"llvm.masked.store.{_mangled(value.dtype, value.lanes)}.p0"
    b.module.declare(name, "void", [value.type, "ptr", mask.type])
    b.emit(f"call void @{name}({value.typed}, ptr align {size} {pointer}, {mask.typed})")


def scatter(b: Builder, value: Value, pointers: str, size: int, mask: Value | None) -> None:
    """Writes lanes to arbitrary addresses."""
    many = f"<{value.lanes} x ptr>"
    name = f"llvm.masked.scatter.{_mangled(value.dtype, value.lanes)}.v{value.lanes}p0"
    mask = mask or literal(True, "bool", value.lanes)
    b.module.declare(name, "void", [value.type, many, mask.type])
    b.emit(f"call void @{name}({value.typed}, {many} align {size} {pointers}, {mask.typed})")


def _at(b: Builder, dtype: str, pointer: str, offset: int) -> str:
    return b.pointer(f"getelementptr {llvm_type(dtype)}, ptr {pointer}, i64 {offset}")


def in_order(b: Builder, first: Value, second: Value, order: Sequence[int]) -> Value:
    """Returns elements of two vectors by position in their concatenation."""
    places = ", ".join(f"i32 {n}" for n in order)
    text = f"shufflevector {first.typed}, {second.typed}, <{len(order)} x i32> <{places}>"
    return b.value(text, first.dtype, len(order))


def masks_in_order(b: Builder, mask: Value, orders: Sequence[Sequence[int]]) -> Value:
    """Returns the lanes in which any of several orders of a mask holds; `mask.lanes` stands for a
    lane that does not hold. LLVM moves lanes of masks in mask registers one by one, so they are
    moved as integers.
    """
    dtype = next((name for most, name in _MASK_INTEGERS if mask.lanes <= most), "i8")
    wide = b.value(f"sext {mask.typed} to {llvm_type(dtype, mask.lanes)}", dtype, mask.lanes)
    nothing = literal(0, dtype, mask.lanes)
    found = in_order(b, wide, nothing, orders[0])
    for order in orders[1:]:
        found = arith.binary(b, "or", found, in_order(b, wide, nothing, order))
    return arith.binary(b, "lt", found, literal(0, dtype, found.lanes))


def _mangled(dtype: str, lanes: int) -> str:
    names = {"f16": "f16", "bf16": "i16", "f32": "f32", "f64": "f64", "bool": "i1"}
    return f"v{lanes}{names.get(dtype) or llvm_type(dtype)}"
