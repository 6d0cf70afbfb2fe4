"""The search of tiles in the timing model."""

from __future__ import annotations

import pytest
from vta_networks import Network, check, module_of, operand, regions_of

from clew.backends.vta import Config, Convolution, Epilogue, Tile, choose_tile, time
from clew.backends.vta.search import convolution_program, search_tile
from clew.backends.vta.tiles import estimate, fits, likely_tiles

CONFIG = Config.default()
LAYERS = [
    Convolution(128, 256, 28, 28, kernel=1, stride=2),
    Convolution(64, 48, 15, 17, kernel=3, padding=1),
    Convolution(32, 64, 20, 20, kernel=3, stride=2, padding=1),
]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("conv", LAYERS)
def test_a_search_is_never_slower_than_the_estimate(
    conv: Convolution, skips: bool, parts: int
) -> None:
    epilogue = Epilogue(8, skip_shift=2 if skips else 0)

    def cycles(tile: Tile) -> int:
        return time(convolution_program(conv, CONFIG, tile, epilogue, skips=skips), CONFIG).cycles

    found = search_tile(conv, epilogue, CONFIG, parts, skips=skips, candidates=6)
    likely = likely_tiles(conv, CONFIG, parts, 6)
    assert likely[0] == choose_tile(conv, CONFIG, parts)
    assert cycles(found) == min(map(cycles, likely))


def test_likely_tiles_are_the_first_by_estimate() -> None:
    tiles = likely_tiles(LAYERS[1], CONFIG, 2, 12)
    times = [estimate(LAYERS[1], t, CONFIG) for t in tiles]
    assert len(set(tiles)) == 12
    assert times == sorted(times)
    assert all(fits(LAYERS[1], t, CONFIG) for t in tiles)


def test_the_search_saves_cycles_where_the_estimate_errs() -> None:
    net, x = Network(10), operand(1, 128, 28, 28)
    module = module_of(x, net.conv(x, 256, kernel=1, stride=2))
    cycles = {
        search: regions_of(check(module, seeds=1, search=search))[0].timing.cycles
        for search in (False, True)
    }
    assert cycles[True] < 0.98 * cycles[False]
