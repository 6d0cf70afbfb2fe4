"""Loads of lanes at ascending offsets: a resized line reads its source from left to right.

Neighboring lanes then lie within a few vectors, which are loaded and permuted. Whether they do is
known only to a run; lanes that are farther apart, or in another order, are gathered.
"""

from __future__ import annotations

from clew.codegen.builder import Builder, Value, llvm_type
from clew.codegen.lanes import literal
from clew.codegen.math import arith
from clew.codegen.vectors import gather, load_vector
from clew.te.expr import INDEX, Load, Scalar
from clew.te.roles import TABLE
from clew.te.walk import nodes

_BYTES = 4


def follows_table(place: Scalar) -> bool:
    """Whether a position comes from a table of positions, which mostly ascend."""
    return any(
        isinstance(x, Load) and x.dtype == INDEX and x.source.role == TABLE for x in nodes(place)
    )


def load_ascending(
    b: Builder,
    stored: str,
    pointer: str,
    size: int,
    offsets: Value,
    mask: Value | None,
    pointers: str,
) -> Value | None:
    """Returns the elements at `offsets` (i64) from a pointer, each of which is also in `pointers`:
    those of two adjacent vectors if the offsets are within these, else gathers. Reads nothing
    before the first or beyond the last lane. None if the target has no such permutation.
    """
    lanes = offsets.lanes
    function = b.module.instructions.permutation_of_words(lanes)
    if not function or size != _BYTES:
        return None
    first = _lane(b, offsets, 0)
    beyond = arith.binary(b, "sub", offsets, b.splat(first, lanes))
    # Distances of 32 bits, as the permutation takes them; longer ones become the largest.
    most = literal((1 << 32) - 1, INDEX, lanes)
    beyond = b.call(f"llvm.umin.v{lanes}i64", [beyond, most], INDEX, lanes)
    beyond = b.value(f"trunc {beyond.typed} to {llvm_type('i32', lanes)}", "i32", lanes)
    if mask is None:
        last = _lane(b, beyond, lanes - 1)
        ends = b.splat(last, lanes)
        inside = b.value(f"icmp ule {beyond.typed}, {ends.text}", "bool", lanes)
        inside = b.call(f"llvm.vector.reduce.and.v{lanes}i1", [inside], "bool")
    else:
        beyond = arith.select(b, mask, beyond, literal(0, "i32", lanes))
        last = b.call(f"llvm.vector.reduce.umax.v{lanes}i32", [beyond], "i32")
        ends = b.splat(last, lanes)
        inside = _lane(b, mask, 0)
    fits = b.value(f"icmp ult {last.typed}, {2 * lanes}", "bool")
    near = b.value(f"and {fits.typed}, {inside.text}", "bool")
    then, orelse, join = b.label("near"), b.label("far"), b.label("join")
    b.branch_if(near, then, orelse)
    b.start(then)
    halves: list[Value] = []
    for start in (0, lanes):
        steps = ", ".join(f"i32 {start + n}" for n in range(lanes))
        used = b.value(f"icmp uge {ends.typed}, <{steps}>", "bool", lanes)
        moved = arith.binary(b, "add", first, literal(start, INDEX))
        at = b.pointer(f"getelementptr {llvm_type(stored)}, ptr {pointer}, {moved.typed}")
        half = load_vector(b, stored, at, size, lanes, used)
        halves.append(_as(b, half, "f32"))
    found = _as(b, b.call(function, [halves[0], beyond, halves[1]], "f32", lanes), stored)
    if mask is not None:
        found = arith.select(b, mask, found, literal(0, stored, lanes))
    done = b.block
    b.branch(join)
    b.start(orelse)
    other = gather(b, stored, pointers, size, lanes, mask)
    apart = b.block
    b.branch(join)
    b.start(join)
    text = f"phi {found.type} [ {found.text}, %{done} ], [ {other.text}, %{apart} ]"
    return b.value(text, stored, lanes)


def _lane(b: Builder, vector: Value, lane: int) -> Value:
    return b.value(f"extractelement {vector.typed}, i64 {lane}", vector.dtype)


def _as(b: Builder, value: Value, dtype: str) -> Value:
    """Returns the bits of a vector as another dtype of the same width."""
    if value.dtype == dtype:
        return value
    return b.value(f"bitcast {value.typed} to {llvm_type(dtype, value.lanes)}", dtype, value.lanes)
