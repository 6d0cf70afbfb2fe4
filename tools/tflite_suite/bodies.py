"""How operators that run graphs are drawn, and those on bits and text."""

from __future__ import annotations

import numpy as np

from clew.ir.types import to_numpy
from tflite_suite.cases import PLAIN, Body, Case, Draw, Operand, constant, family

_WORDS = ("a", "fox", "jumps", "über", "the", "9")
_COMBINERS = ("STABLEHLO_ADD", "STABLEHLO_MULTIPLY", "STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM")


@family("STABLEHLO_CASE")
def case(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype, shape, count = draw.one("f32", "i32", "i64"), draw.shape(1, 4), draw.whole(1, 4)
    kinds = ("ADD", "MUL", "") if dtype == "f32" else ("STABLEHLO_ADD", "STABLEHLO_MULTIPLY", "")
    bodies = [Body(draw.one(*kinds), 2, dtype, shape) for _ in range(count)]
    index = Operand(np.asarray(draw.whole(-1, count + 1), np.int32), constant=draw.flag())
    operands = [index, *(Operand(draw.values(shape, dtype)) for _ in range(2))]
    options = ("StablehloCaseOptions", {"branch_subgraph_indices": list(range(1, count + 1))})
    return Case(op, operands, [(dtype, PLAIN)], options, shape=shape, bodies=bodies)


@family("STABLEHLO_SCATTER")
def scatter(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype, shape = draw.one("f32", "i32", "i64", "i8"), draw.shape(1, 4, 5)
    rank, outer = len(shape), draw.shape(1, 2, 4)
    mapped = [int(n) for n in draw.rng.permutation(rank)[: draw.whole(1, rank)]]
    inserted = sorted(n for n in mapped if draw.flag())
    windows = [draw.whole(1, n) for axis, n in enumerate(shape) if axis not in inserted]
    count = len(outer) + len(windows)
    places = sorted(int(n) for n in draw.rng.permutation(count)[: len(windows)])
    own, rest = iter(windows), iter(outer)
    updates = tuple(next(own) if n in places else next(rest) for n in range(count))
    vector = draw.whole(0, len(outer))
    starts = draw.values(
        (*outer[:vector], len(mapped), *outer[vector:]), draw.one("i32", "i64"), 0, 5
    )
    given = {
        "update_window_dims": places, "inserted_window_dims": inserted,
        "scatter_dims_to_operand_dims": mapped, "index_vector_dim": vector,
        "update_computation_subgraph_index": 1,
    }  # fmt: skip
    operands = [Operand(draw.values(shape, dtype)), Operand(starts),
                Operand(draw.values(updates, dtype))]  # fmt: skip
    body = Body(draw.one("", *_COMBINERS), 2, dtype)
    return Case(op, operands, [(dtype, PLAIN)], ("StablehloScatterOptions", given), bodies=[body])


@family("STABLEHLO_REDUCE_WINDOW")
def reduce_window(draw: Draw, op: str) -> Case:
    """Draws a case."""
    shape = draw.shape(1, 4, 6)
    dtype, body = draw.one("f32", "i32", "i64", "i8"), draw.one(*_COMBINERS)
    if draw.whole(0, 4) == 0:
        dtype, body = "bool", draw.one("LOGICAL_AND", "LOGICAL_OR")
    given = {
        "window_dimensions": [draw.whole(1, 3) for _ in shape],
        "window_strides": [draw.whole(1, 2) for _ in shape],
        "base_dilations": [draw.whole(1, 3) for _ in shape],
        "window_dilations": [draw.whole(1, 2) for _ in shape],
        "padding": [draw.whole(-1, 1) if n > 5 else draw.whole(2, 3) for n in shape for _ in "lh"],
        "body_subgraph_index": 1,
    }  # fmt: skip
    operands = [Operand(draw.values(shape, dtype)), constant(draw.whole(0, 1), dtype)]
    options = ("StablehloReduceWindowOptions", given)
    return Case(op, operands, [(dtype, PLAIN)], options, bodies=[Body(body, 2, dtype)])


@family("STABLEHLO_RNG_BIT_GENERATOR")
def random_bits(draw: Draw, op: str) -> Case:
    """Draws a case."""
    algorithm = draw.whole(0, 2)
    size = 2 if algorithm == 2 else draw.whole(2, 3)
    state = draw.rng.integers(0, 1 << 64, size, np.uint64)
    if draw.flag():
        state[1] = (1 << 64) - draw.whole(1, 4)  # the counter overflows
    dtype = draw.one("i32", "u32", "i64", "u64")
    results = [("u64", PLAIN), (dtype, PLAIN)]
    options = ("StablehloRngBitGeneratorOptions", {"algorithm": algorithm})
    shapes = ((size,), draw.shape(1, 4, 5))
    return Case(op, [Operand(state)], results, options, shapes=shapes)


@family("LSH_PROJECTION")
def projection(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype, count = draw.one("f32", "i8", "u8", "i16", "i32", "i64"), draw.whole(1, 5)
    shape = (count, *draw.shape(0, 2, draw.one(3, 20)))
    seeds = Operand(draw.values((draw.whole(1, 4), draw.whole(1, 32)), "f32"), constant=True)
    operands = [seeds, Operand(draw.values(shape, dtype, -99, 99))]
    if draw.flag():
        operands.append(Operand(draw.values((count,), "f32")))
    options = ("LSHProjectionOptions", {"type": draw.whole(1, 2)})
    return Case(op, operands, [("i32", PLAIN)], options)


@family("SKIP_GRAM")
def skip_gram(draw: Draw, op: str) -> Case:
    """Draws a case."""
    pieces = [draw.one(*_WORDS) + draw.one(" ", " ", "  ", "\t") for _ in range(draw.whole(0, 7))]
    text = np.empty(1, to_numpy("str"))
    text[:] = [draw.one("", "", " ") + "".join(pieces).rstrip() + draw.one("", " ")]
    given = {
        "ngram_size": draw.whole(1, 3), "max_skip_size": draw.whole(0, 2),
        "include_all_ngrams": draw.flag(),
    }  # fmt: skip
    return Case(op, [Operand(text)], [("str", PLAIN)], ("SkipGramOptions", given))
