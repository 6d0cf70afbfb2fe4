"""The sequences of a batch in the states of sessions, which join, leave and change places."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np

from clew.runtime.held import Caches, HeldForm, Row, put_rows, take_rows
from clew.runtime.memory import round_up

Array: TypeAlias = "np.ndarray[Any, Any]"
_PADDING: Final = 64
"""Positions before the longest sequence that a change of sequences may leave in the states, or a
quarter of its length: without room there, each new longest sequence would move all others.
"""


def common_end(lengths: Collection[int], end: int) -> int:
    """Returns the position at which sequences of these lengths end together: `end`, where some of
    them already end, if that leaves little padding.
    """
    most = max(lengths)
    if most <= end <= most + max(_PADDING, most // 4):
        return end
    return round_up(most, _PADDING) if len(set(lengths)) > 1 else most


def buffers_of(
    rows: Sequence[Row],
    batch: Mapping[str, int],
    end: int,
    form: HeldForm | None,
    own: Caches | None,
    owner: object,
) -> Caches | None:
    """Returns buffers that hold the rows: those of the session, `own`, if they have room; None if
    no state is in a buffer.
    """
    if form is None:
        return None
    count = len(rows)
    if own is not None and own.takes_rows(owner, batch, count, end):
        return take_rows(own, rows, batch, end, 0)
    before = 0 if own is None else own.rows(batch)
    room = max(count, 2 * before if count > before else min(before, 2 * count))
    room = room if all(batch[name] == 0 for name in form.states) else count
    moved = [replace(row, stays=False) for row in rows]
    return take_rows(Caches(form, {}, owner), moved, batch, end, room)


def plain_rows(rows: Sequence[Row], name: str, batch: int, axis: int, end: int) -> Array:
    """Returns a state that is in no buffer, made of rows. `batch` is its axis of sequences, and
    `axis` the axis along which it grows (-1: none).
    """
    moved, like = [replace(row, stays=False) for row in rows], rows[0].arrays[name]
    shape = list(like.shape)
    shape[batch] = len(rows)
    if axis >= 0:
        shape[axis] = end
    made = np.empty(shape, like.dtype)
    put_rows(made, moved, name, batch, axis, end)
    return made
