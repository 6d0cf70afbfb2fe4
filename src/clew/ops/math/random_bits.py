"""Random bits of counter-based generators: the state is a key and a counter.

Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011).
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from clew.ir.types import TensorType, TupleType, Type, bits, to_numpy
from clew.ops.common import f32, tensor_type
from clew.ops.registry import Sample, register_op
from clew.support.budgets import check_run_bytes
from clew.support.errors import GraphTypeError

Array = np.ndarray[Any, Any]

_WORD: Final = 32
_TURNS: Final = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY: Final = 0x1BD11BDA
_FACTORS: Final = (0xD2511F53, 0xCD9E8D57)
_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
_ROUNDS: Final = {"threefry": 5, "philox": 10}
_STATE = np.array([7, (1 << 32) - 2], "u8")


@register_op(
    "random_bits",
    host=True,
    samples=(
        Sample(_STATE, shape=(3, 5), dtype="u32", algorithm="philox"),
        Sample(_STATE, shape=(7,), dtype="i64", algorithm="threefry"),
        Sample(np.array([7, 8, 9], "u8"), shape=(), dtype="i32", algorithm="philox"),
        Sample(_STATE, shape=(0,), dtype="u64", algorithm="threefry"),
        Sample(np.array([7, 8, 9], "u8"), shape=(2,), dtype="u32", algorithm="threefry",
               error="T108"),
        Sample(f32(2), shape=(2,), dtype="u32", algorithm="philox", error="T105"),
        Sample(_STATE, shape=(2,), dtype="f32", algorithm="philox", error="T106"),
        Sample(_STATE, shape=(2,), dtype="u32", algorithm="dice", error="T107"),
    ),
)  # fmt: skip
def random_bits(
    state: Array, *, shape: tuple[int, ...], dtype: str, algorithm: str
) -> tuple[Array, Array]:
    """The state after this draw, and random integers of 32 or 64 bits.

    The state is `u64[2]`, the key and the counter, or for `philox` also `u64[3]`, whose last
    element is the upper half of the counter; otherwise that is the key. `threefry` has 20 rounds
    and `philox` 10.

    Errors: T105, T106, T107, T108. Source: StableHLO rng_bit_generator, as in LiteRT.
    """
    words = math.prod(shape) * (bits(dtype) // _WORD)
    each = 2 if algorithm == "threefry" else 4
    blocks = -(-words // each)
    check_run_bytes("the result of random_bits", blocks * each * 8)
    with np.errstate(over="ignore"):
        counter = state[1] + np.arange(blocks, dtype=np.uint64)
        key = [_word(state[0], n) for n in range(2)]
        parts = [_word(counter, n) for n in range(2)]
        if algorithm == "threefry":
            found = _threefry(key, parts)
        else:
            upper = state[2] if len(state) > 2 else state[0]
            found = _philox(key, [*parts, *(_word(upper, n) + 0 * parts[0] for n in range(2))])
        after = state.copy()
        after[1] += np.uint64(blocks)
    drawn = np.stack(found, axis=-1).astype("<u4").reshape(-1)[:words]
    return after, drawn.view(to_numpy(dtype)).reshape(shape)


def _word(value: Any, number: int) -> Any:
    """Returns the lower or upper 32 bits, held in 64."""
    return (value >> np.uint64(_WORD * number)) & np.uint64((1 << _WORD) - 1)


def _threefry(key: list[Any], counter: list[Any]) -> list[Any]:
    keys = [*key, key[0] ^ key[1] ^ np.uint64(_PARITY)]
    a, b = (_word(counter[n] + key[n], 0) for n in range(2))
    for number in range(_ROUNDS["threefry"]):
        for turn in _TURNS[number % 2]:
            a = _word(a + b, 0)
            b = _word(b << np.uint64(turn), 0) | (b >> np.uint64(_WORD - turn))
            b = a ^ b
        a = _word(a + keys[(number + 1) % 3], 0)
        b = _word(b + keys[(number + 2) % 3] + np.uint64(number + 1), 0)
    return [a, b]


def _philox(key: list[Any], counter: list[Any]) -> list[Any]:
    for _ in range(_ROUNDS["philox"]):
        first, second = (counter[2 * n] * np.uint64(_FACTORS[n]) for n in range(2))
        counter = [
            _word(second, 1) ^ counter[1] ^ key[0],
            _word(second, 0),
            _word(first, 1) ^ counter[3] ^ key[1],
            _word(first, 0),
        ]
        key = [_word(key[n] + np.uint64(_STEPS[n]), 0) for n in range(2)]
    return counter


@random_bits.types
def _random_bits_types(state: Type, *, shape: tuple[int, ...], dtype: str, algorithm: str) -> Type:
    name, given = "random_bits", tensor_type("random_bits", state)
    if given.dtype != "u64":
        raise GraphTypeError("T105", f"{name}: the state is {given}, expected u64")
    if dtype not in ("i32", "u32", "i64", "u64"):
        raise GraphTypeError("T106", f"{name}: unsupported dtype {dtype!r}")
    if algorithm not in _ROUNDS:
        raise GraphTypeError("T107", f"{name}: algorithm={algorithm!r}")
    sizes = (2,) if algorithm == "threefry" else (2, 3)
    if given.rank != 1 or given.shape[0] not in sizes:
        raise GraphTypeError("T108", f"{name}: the state of {algorithm} is {given}")
    return TupleType((given, TensorType(shape, dtype)))
