from __future__ import annotations

from dataclasses import replace

from clew.cost.products import fastest_float, multiply_adds_per_cycle
from clew.machine.target import Target, target_of


def with_features(name: str, *features: str) -> Target:
    target = target_of(name)
    return replace(target, features=",".join([target.features, *(f"+{f}" for f in features)]))


def test_rates_are_those_of_the_units() -> None:
    wide = target_of("cpu-avx512")
    assert multiply_adds_per_cycle(wide, "f32", "f32") == 32
    assert multiply_adds_per_cycle(wide, "bf16", "bf16") == 0
    pairs = with_features("cpu-avx512", "avx512bf16")
    assert multiply_adds_per_cycle(pairs, "bf16", "bf16") == 64
    tiles = with_features("cpu-avx512", "amx-tile", "amx-bf16")
    assert multiply_adds_per_cycle(tiles, "bf16", "bf16") == 512
    fours = with_features("cpu-avx2", "avxvnni")
    assert multiply_adds_per_cycle(fours, "u8", "i8") == 64


def test_bf16_is_chosen_where_it_is_faster() -> None:
    assert fastest_float(target_of("cpu-avx2")) == "f32"
    assert fastest_float(target_of("cpu-avx512")) == "f32"
    assert fastest_float(with_features("cpu-avx512", "avx512bf16")) == "bf16"
    # Intel's cores with bf16 pairs take four times as long for them: tiles decide there.
    assert fastest_float(with_features("cpu-avx512", "avx512bf16", "avx512fp16")) == "f32"
    tiles = with_features("cpu-avx512", "amx-tile", "amx-bf16")
    assert fastest_float(tiles) == "bf16"
    slow = replace(tiles, costs=replace(tiles.costs, tile_step=1e4))
    assert fastest_float(slow) == "f32"
