"""Chooses the integers of weights whose operands stay in floats, by the weights alone or by the
distribution of the operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.quantization.groups import Grouped, compensated, nearest, output_error
from clew.quantization.parameters import Parameters, parameters_in_groups
from clew.quantization.scheme import Scheme
from clew.quantization.sites import Site

Array = NDArray[Any]

_STRENGTHS: Final = np.linspace(0.05, 1.0, 20)
_LEAST_GAIN: Final = 0.95  # of the squared error
_SEARCHED_ROWS: Final = 256  # of a weight, for the search of numbers
_TINY: Final = 1e-4


def why_not(site: Site, scheme: Scheme) -> str:
    """Returns why a layer cannot have this scheme, or ""."""
    if scheme.is_weight_only and scheme.group and not site.is_matrix:
        return "weights of convolutions have no groups: group=0"
    return ""


class Gram:
    """The products of a value's channels with each other, `[K, K]`, and their mean magnitudes,
    summed over calls.
    """

    def __init__(self, count: int) -> None:
        self.products = np.zeros((count, count), np.float32)
        self._magnitudes, self._rows = np.zeros(count), 0

    def add(self, value: Array) -> None:
        """Takes in a sample, whose last axis is that of the channels."""
        rows = value.reshape(-1, value.shape[-1]).astype(np.float32, copy=False)
        self.products += rows.T @ rows
        self._magnitudes += np.abs(rows).sum(axis=0, dtype=np.float64)
        self._rows += len(rows)

    @property
    def magnitudes(self) -> Array:
        """The mean magnitude of each channel."""
        found: Array = self._magnitudes / max(self._rows, 1)
        return found


def group_of(scheme: Scheme, depth: int) -> int:
    """Returns the number of input channels in a group, of `depth` in all."""
    return min(scheme.group, depth) or depth


def needs_gram(site: Site, scheme: Scheme) -> bool:
    """Whether the integers of a site depend on products of its operand's channels."""
    wanted = scheme.migration or scheme.rounding == "gptq" or scheme.weight_range == "mse"
    return scheme.is_weight_only and site.is_matrix and wanted


def by_weights(site: Site, scheme: Scheme, numbers: Array | None = None) -> Parameters:
    """Returns the parameters of a site by its weight, times `numbers` per input channel if given,
    rounded to nearest.
    """
    rows = _rows(site)
    found = _nearest(rows if numbers is None else rows * numbers, scheme)
    return parameters_in_groups(site, scheme, found, numbers)


def by_operand(
    sites: Sequence[Site], scheme: Scheme, gram: Gram, say: Callable[[str], None]
) -> list[Parameters]:
    """Returns the parameters of sites that read one value, by the products of its channels."""
    numbers = activation_aware(gram, sites, scheme) if scheme.migration else None
    products = gram.products
    if numbers is not None:
        products = products / np.outer(numbers, numbers)
    made = []
    for site in sites:
        rows = _rows(site) if numbers is None else _rows(site) * numbers
        if scheme.rounding == "nearest":
            found = _nearest(rows, scheme, np.diag(products))
        else:

            def about(text: str, name: str = site.name) -> None:
                say(f"rounding {name}: {text}")

            found = compensated(rows, _nearest(rows, scheme), scheme.weight_limits, products, about)
        made.append(parameters_in_groups(site, scheme, found, numbers, decided=True))
    return made


def activation_aware(gram: Gram, sites: Sequence[Site], scheme: Scheme) -> Array | None:
    """Returns the numbers by which the channels of a value that these sites read are divided, or
    None if it gains little: a power of the channels' mean magnitudes, which keeps more digits of
    the weights of large channels. The power with the least error of the results is taken, with
    scales from the extremes of groups, as they are found quickly.

    Source: Lin et al., AWQ, 2024.
    """
    quick = replace(scheme, weight_range="minmax")
    weights = [_some(_rows(s)) for s in sites]
    sizes = np.maximum(gram.magnitudes, _TINY)

    def error(numbers: Array | None) -> float:
        total = 0.0
        for rows in weights:
            scaled = rows if numbers is None else rows * numbers
            values = _nearest(scaled, quick).values
            found = values if numbers is None else values / numbers
            total += output_error(rows, found, gram.products)
        return total

    best: Array | None = None
    least = _LEAST_GAIN * error(None)
    for strength in _STRENGTHS:
        numbers = sizes**strength
        numbers = (numbers / np.sqrt(numbers.max() * numbers.min())).astype(np.float32)
        value = error(numbers)
        if value < least:
            best, least = numbers, value
    return best


def _nearest(rows: Array, scheme: Scheme, importance: Array | None = None) -> Grouped:
    return nearest(
        rows,
        group_of(scheme, rows.shape[1]),
        scheme.weight_limits,
        scheme.weight_range,
        symmetric=scheme.is_symmetric,
        importance=importance,
    )


def _rows(site: Site) -> Array:
    """Returns a weight as a row for each output channel."""
    weight = site.weight.data
    assert site.channel == 0
    found: Array = weight.reshape(len(weight), -1)
    return found


def _some(rows: Array) -> Array:
    return rows[:: max(1, len(rows) // _SEARCHED_ROWS)][:_SEARCHED_ROWS]
