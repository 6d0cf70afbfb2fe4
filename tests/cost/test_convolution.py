"""What the cost model of convolutions expects, and that it follows the machine's table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clew.cost.convolution import (
    ConvLayer,
    SplitImage,
    direct_cycles,
    fastest_cycles,
    split_cycles,
    split_terms,
    winograd_cycles,
)
from clew.machine.target import Target, target_of

WIDE = target_of("cpu-avx512")
DIRECT = 0


def best(layer: ConvLayer, target: Target = WIDE) -> int:
    cycles = {tile: winograd_cycles(layer, tile, target) for tile in (2, 4)}
    cycles[DIRECT] = direct_cycles(layer, target)
    return min(cycles, key=lambda tile: cycles[tile])


def with_costs(**figures: float) -> Target:
    return replace(WIDE, costs=replace(WIDE.costs, **figures))


def test_small_images_with_large_weights_get_smaller_tiles() -> None:
    assert best(ConvLayer(1, 64, 64, 56, 56)) == 4
    assert best(ConvLayer(1, 512, 512, 7, 7)) == 2
    assert best(ConvLayer(1, 512, 512, 3, 3)) == DIRECT
    assert best(ConvLayer(16, 512, 512, 7, 7)) == 4


def test_the_choice_follows_the_table() -> None:
    layer = ConvLayer(1, 16, 16, 12, 12)
    assert best(layer) == 4
    assert best(layer, with_costs(weight_bytes=1.0)) == 2  # larger tiles have larger weights
    assert best(layer, with_costs(transform_step=9.0)) == DIRECT


def test_a_machine_that_multiplies_half_as_fast_takes_longer() -> None:
    layer = ConvLayer(1, 256, 256, 28, 28)
    slow = with_costs(multiply_adds=1.0)
    assert 1.6 < direct_cycles(layer, slow) / direct_cycles(layer, WIDE) < 2
    narrow = target_of("cpu-avx2")
    assert 1.6 < direct_cycles(layer, narrow) / direct_cycles(layer, WIDE) < 2.01


def test_doubles_take_twice_the_vectors() -> None:
    layer = ConvLayer(1, 64, 64, 28, 28)
    assert direct_cycles(replace(layer, dtype="f64"), WIDE) == pytest.approx(
        2 * direct_cycles(layer, WIDE), rel=1e-6
    )


def test_a_dilated_window_pays_for_its_batches() -> None:
    layer = ConvLayer(1, 64, 64, 32, 32)
    assert winograd_cycles(layer, 4, WIDE, (2, 2)) > winograd_cycles(layer, 4, WIDE)


def test_the_fastest_is_one_of_those_that_are_possible() -> None:
    layer = ConvLayer(1, 64, 64, 56, 56)
    assert fastest_cycles(layer, WIDE, has_window=False) == direct_cycles(layer, WIDE)
    assert fastest_cycles(layer, WIDE, has_window=True) == winograd_cycles(layer, 3, WIDE)


def test_terms_cost_what_their_products_do() -> None:
    layer, image = ConvLayer(1, 256, 256, 14, 14, 1), SplitImage(14, 196, 1)
    two, three = (split_cycles(layer, image, terms, 32, WIDE) for terms in (2, 3))
    assert 1.3 < three / two < 2


def test_terms_at_a_size_are_the_cycles_at_that_size() -> None:
    layer, image = ConvLayer(1, 256, 256, 32, 32, 1), SplitImage(32, 1024, 1)
    tile, pixel, result, weights = split_terms(layer, 3, 32, WIDE)
    cycles = 1024 // 16 * tile + 1024 * pixel + 1024 * result + weights
    known = split_cycles(layer, image, 3, 32, WIDE)
    assert known < cycles < 1.1 * known  # sums pass through memory


def test_pairs_of_integers_take_half_the_vectors_of_floats() -> None:
    """Transforms of sums do not: these are of 32 bits."""
    narrow = target_of("cpu-avx2")
    layer = ConvLayer(1, 128, 128, 28, 28, dtype="i16")
    floats = replace(layer, dtype="f32")
    assert best(layer, narrow) == 4
    assert 0.5 < winograd_cycles(layer, 4, narrow) / winograd_cycles(floats, 4, narrow) < 0.6
