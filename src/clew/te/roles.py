"""Roles: the meanings of axes and stages in a computation.

Operators state roles in their tensor expressions, and image layouts imply them. Schedule rules
match kernels by roles, so that no rule takes a tensor for an image because of its rank.

An axis without a role has the role `""`.
"""

from __future__ import annotations

from typing import Final

BATCH: Final = "batch"
"""Images of a batch."""
CHANNEL: Final = "channel"
"""Channels of an image that is not blocked."""
BLOCK: Final = "block"
"""Blocks of channels of a blocked image."""
LANE: Final = "lane"
"""Channels within a block, contiguous in memory."""
FRAME: Final = "frame"
"""The outermost of three spatial axes."""
LINE: Final = "line"
"""Lines of an image."""
PIXEL: Final = "pixel"
"""Pixels of a line, or of a whole image whose lines were merged."""
HEAD: Final = "head"
"""Heads of an attention operator."""
QUERY: Final = "query"
KEY: Final = "key"
ELEMENT: Final = "element"
"""Elements of a head's values."""

TAP: Final = "tap"
"""A reduction over the positions of a window along one spatial axis."""
DEPTH: Final = "depth"
"""A reduction over the summed axis of a product: input channels, or columns of a matrix."""
TERM: Final = "term"
"""A reduction over pairs of parts of the two operands (bf16x3)."""

TABLE: Final = "table"
"""A stage that is computed before its readers, which read its elements many times."""
ROW_TABLE: Final = "row table"
"""A table that is computed for one index of its first axis at a time, just before it is read."""
SELECTED: Final = "selected"
"""A reduction over steps that data select: all lanes of its last axis agree on them."""

IN_ORDER: Final = "in order"
"""Positions that are visited one after another (`te.sequential`). Loops made of it have this role,
too.
"""

_OF_LETTER: Final = {
    "N": BATCH, "C": CHANNEL, "c": LANE, "D": FRAME, "H": LINE, "W": PIXEL,
}  # fmt: skip


def of_layout(layout: str) -> tuple[str, ...]:
    """Returns the roles of the axes of an image layout in memory order; `()` for other layouts.

    >>> of_layout("NCHW16c")
    ('batch', 'block', 'line', 'pixel', 'lane')
    """
    letters = [c for c in layout if c.isalpha()]
    if not {"N", "C"} <= set(letters) <= _OF_LETTER.keys():
        return ()
    blocked = "c" in letters
    return tuple(BLOCK if c == "C" and blocked else _OF_LETTER[c] for c in letters)


def merged(*roles: str) -> str:
    """Returns the role of an axis fused from adjacent ones; lines and pixels become pixels."""
    if len(set(roles)) == 1:
        return roles[0]
    return PIXEL if set(roles) == {LINE, PIXEL} else ""
