"""Fuses the two innermost reduction loops of a sum of products into one depth.

If an image has few channels, or short blocks of them, the channels alone do not fill the depth of a
tile or of a dot product instruction. Filter columns and channels are adjacent in memory, and
together they do.
"""

from __future__ import annotations

from dataclasses import replace

from clew.loop.affine import Simplifier
from clew.loop.ir import For
from clew.loop.products import offset_of, packed_step, product_of, step_along
from clew.loop.schedule import Schedule
from clew.schedules.stages import StageInfo, stage_infos
from clew.te.expr import INDEX, Imm, Index, binary
from clew.te.walk import substitute


def joined(info: StageInfo) -> StageInfo:
    """Returns a stage with its two innermost reduction loops fused, if one operand is contiguous
    along both and the other is packed in groups along both; otherwise the stage unchanged.
    """
    if len(info.reduction_axes) < 2 or product_of(info.store) is None:
        return info
    outer, inner = (n for n in info.loops if n.name in info.reduction_axes[-2:])
    if info.loops[-2:] != [outer, inner] or 1 in (outer.extent, inner.extent):
        return info
    depth = Index(f"{outer.name}+{inner.name.rsplit('.', 1)[-1]}", outer.extent * inner.extent)
    size, simplifier = Imm(inner.extent, INDEX), Simplifier()
    places = {
        id(outer.index): simplifier.simplify(binary("floordiv", depth, size)),
        id(inner.index): simplifier.simplify(binary("mod", depth, size)),
    }
    store = replace(info.store, value=substitute(info.store.value, places))
    product = product_of(store)
    assert product is not None
    steps = [
        (
            step_along(offset_of(x.source, x.indices, simplifier), depth),
            packed_step(x, depth, product.group, simplifier),
        )
        for x in (product.a, product.b)
    ]
    fits = any(a == 1 and b is not None for (a, _), (_, b) in (steps, reversed(steps)))
    loop = For(depth, "serial", store)
    return replace(info, loops=[*info.loops[:-2], loop], store=store) if fits else info


def join(schedule: Schedule, info: StageInfo) -> StageInfo:
    """Fuses the two innermost reduction loops of a stage; returns the new stage."""
    schedule.fuse(*info.reduction_axes[-2:])
    return stage_infos(schedule)[info.name]
