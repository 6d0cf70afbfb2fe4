"""Entries of networks that take square images."""

from __future__ import annotations

from typing import Any

from exports.entries import Entry
from zoo.entries import Input, image

ANY_SIZE = "batch height width"


def images(name: str, family: str, size: int, make: Any, free: str = "batch", **more: Any) -> Entry:
    """An entry with square images; `free` names what is free with dynamic axes."""
    sizes = {"batch": 1, "height": size, "width": size}
    order: tuple[str | int, ...] = ("batch", 3, "height", "width")
    shape = tuple(d if isinstance(d, int) or d in free.split() else sizes[d] for d in order)
    dims = {dim: sizes[dim] for dim in free.split()}
    others = {"batch": 2, "height": size, "width": size + 32}
    others = {dim: others[dim] for dim in dims}
    return Entry(name, family, make, (Input("pixel_values", shape, image),), dims, others, **more)
