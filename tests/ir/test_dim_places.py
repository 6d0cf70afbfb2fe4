"""Axes that tell named sizes."""

from __future__ import annotations

from dataclasses import astuple

from clew.ir.dim_places import size_places
from clew.ir.dims import SymDim


def test_plain_axes_come_first_and_linear_ones_tell_the_rest() -> None:
    n, m, k = (SymDim.symbol(name) for name in "nmk")
    found = size_places([(2 * n, 3), (n, 2 * m + 1), (m * k, m - 4, k * k, m // 2)])
    assert [astuple(place) for place in found] == [
        ("n", 1, 0, 1, 0),
        ("m", 1, 1, 2, 1),
        ("m", 2, 1, 1, -4),
    ]
    assert [found[1].size(9), found[1].size(8), found[2].size(3)] == [4, 3, 7]
