"""Lanes that are not evenly spaced in an operand, but in a pattern that repeats, such as those of
an image that is resampled by 3/2.

If the vectors of a pattern are unrolled, the distances of all lanes are known, so that shuffles of
loaded vectors replace gathers.
"""

from __future__ import annotations

from clew.cost.policy.elementwise import (
    FEW_PATTERNS,
    LEAST_LANES,
    MOST_PATTERN_OPERATIONS,
    MOST_PATTERN_VECTORS,
)
from clew.loop.affine import Simplifier, contains, is_clamp
from clew.loop.ir import buffer_loads, reads
from clew.loop.products import offset_of
from clew.schedules.stages import StageInfo, lane_stride
from clew.te.expr import INDEX, Binary, Imm, Index, Load, Scalar, binary
from clew.te.walk import over, post_order


def regular_lanes(info: StageInfo, axis: str, most: int) -> int:
    """Returns the number of neighbors along a loop that are evenly spaced in all operands, such as
    the length of an operand's channel blocks; `most` if there is no such number, or if they are the
    same element and whole vectors can be shuffled.
    """
    simplifier = Simplifier()
    index = next(n.index for n in info.loops if n.name == axis)
    lanes = most
    loads = [load for _, load in reads(info.store)]
    while lanes > LEAST_LANES and any(
        lane_stride(x, index, lanes, simplifier) is None for x in loads
    ):
        lanes //= 2
    apart = [x for x in loads if lane_stride(x, index, most, simplifier) is None]
    steps = [lane_stride(x, index, lanes, simplifier) for x in apart]
    if any(lane_stride(x, index, lanes, simplifier) is None for x in loads):
        return most
    repeats = bool(steps) and all(step == 0 for step in steps)
    return most if repeats and unrolled_vectors(info, axis, most) else lanes


def unrolled_vectors(info: StageInfo, axis: str, lanes: int) -> int:
    """Returns the number of vectors along an axis of static size to unroll. It is 1 if the lanes of
    all operands are evenly spaced except where positions are clamped, and 0 if the distances of
    lanes would remain unknown.
    """
    loop = next(n for n in info.loops if n.name == axis)
    if not isinstance(loop.size, int):
        return 0
    whole = -(-loop.size // lanes)
    simplifier = Simplifier()
    irregular = [
        load
        for _, load in reads(info.store)
        if lane_stride(load, loop.index, lanes, simplifier) is None
    ]
    most = max(1, min(MOST_PATTERN_VECTORS, MOST_PATTERN_OPERATIONS // max(info.operations, 1)))

    def known(vectors: int) -> bool:
        return all(_repeats(load, loop.index, vectors * lanes, simplifier) for load in irregular)

    vectors = next((n for n in range(1, most + 1) if n == whole or known(n)), 0)
    if vectors > 1 and whole <= min(most, FEW_PATTERNS * vectors):
        vectors = whole
    return vectors if vectors and known(vectors) else 0


def _repeats(load: Load, index: Index, elements: int, simplifier: Simplifier) -> bool:
    """Whether the distances between lanes are the same again after some elements along a loop, and
    depend on nothing but the position among these elements.
    """
    if any(simplifier.uses(inner, index) for i in load.indices for inner in buffer_loads(i)):
        return False  # a gather: the address is itself loaded
    extent = index.extent
    assert isinstance(extent, int)
    turn, inside = Index("turn", -(-extent // elements)), Index("inside", elements)
    at: Scalar = inside
    if elements < extent:
        at = binary("add", binary("mul", turn, Imm(elements, INDEX)), inside)
    indices = tuple(_without_clamps(i, index, at) for i in load.indices)
    form = offset_of(load.source, indices, simplifier)
    for atom, _ in form.terms:
        if atom is not turn and contains(atom, turn):
            return False
        if contains(atom, inside) and atom.variables != {inside}:
            return False
    return True


def _without_clamps(position: Scalar, index: Index, at: Scalar) -> Scalar:
    """Returns a position at another value of a loop variable, where no clamp has an effect."""
    images: dict[int, Scalar] = {id(index): at}
    for node in post_order(position, images):
        new = over(node, tuple([images[id(c)] for c in node.children]))
        if isinstance(node, Binary) and is_clamp(node) and contains(node, index):
            new = new.children[0 if contains(node.a, index) else 1]
        images[id(node)] = new
    return images[id(position)]
