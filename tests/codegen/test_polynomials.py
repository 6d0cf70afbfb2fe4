from __future__ import annotations

import pytest

from clew.codegen.math import polynomials
from fit_polynomials import fits, solve

FITS = {fit.name: fit for fit in fits()}


def test_every_polynomial_has_a_fit() -> None:
    assert set(FITS) == {name for name in vars(polynomials) if name.isupper()}


@pytest.mark.parametrize("name", ["EXP_F32", "TANH_F32"])
def test_fitting_again_gives_the_same(name: str) -> None:
    coefficients, right_bits = solve(FITS[name])
    assert tuple(coefficients) == getattr(polynomials, name)
    assert right_bits > FITS[name].target_bits
