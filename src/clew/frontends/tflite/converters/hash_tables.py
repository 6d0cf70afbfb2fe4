"""Hash tables, each filled once with keys and values."""

from __future__ import annotations

from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from clew.frontends.builder import GraphBuilder
from clew.frontends.building import call, constant, reshaped, scalar
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Result, converter
from clew.ir.expr import Expr

_FILLED: Final[WeakKeyDictionary[GraphBuilder, dict[int, tuple[Expr, Expr]]]] = WeakKeyDictionary()
"""The keys and values of the tables of each model that is being read, by number."""


@converter("HASHTABLE")
def hashtable(layer: TfliteLayer) -> Result:
    """The handle of a table: its number."""
    return scalar(layer.integer("table_id", 0), "i32")


@converter("HASHTABLE_IMPORT")
def fill(layer: TfliteLayer) -> Result:
    """Fills a table; later fills have no effect."""
    tables = _FILLED.setdefault(layer.builder, {})
    tables.setdefault(layer.one_int(0, "the table"), (layer.input(1), layer.input(2)))
    return []


def _of_table(layer: TfliteLayer) -> tuple[Expr, Expr]:
    number = layer.one_int(0, "the table")
    found = _FILLED.get(layer.builder, {}).get(number)
    if found is None:
        raise layer.unsupported(f"table {number}, which nothing fills before")
    return found


@converter("HASHTABLE_FIND")
def find(layer: TfliteLayer) -> Result:
    """The value of each key, or a default if the table lacks the key."""
    keys, values = (reshaped(x, (x.tensor.size,)) for x in _of_table(layer))
    return call("text.lookup", layer.input(1), keys, values, reshaped(layer.input(2), ()))


@converter("HASHTABLE_SIZE")
def size(layer: TfliteLayer) -> Result:
    """The number of keys in a table."""
    keys, _ = _of_table(layer)
    known = layer.known_value(keys)
    if known is None:
        raise layer.unknown("the table")
    return constant(np.asarray([len(set(known.reshape(-1).tolist()))], np.int64))
