"""Loads the native code on texts, `codegen.driver.texts`; `support.native_texts` uses it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from clew.runtime.cache import default_cache
from clew.runtime.driver import addresses_of, native_object
from clew.runtime.library import Library
from clew.support.addresses import address_of
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING
from clew.support.locks import once
from clew.support.native_texts import (
    FEW_TEXTS,
    GOOD,
    TextCode,
    flat_texts,
    text_code,
)
from clew.support.text_arrays import holds_text, provide

Array = np.ndarray[Any, Any]


@once
def native_code() -> TextCode | None:
    """Returns this process's functions, or None where native code cannot read texts."""
    with LOADING, held_interrupts():  # few models have texts
        from clew.codegen.driver import texts as native  # noqa: PLC0415
        from clew.runtime.text_layout import text_layout  # noqa: PLC0415

    layout = text_layout()
    if layout is None:
        return None
    code = native_object(native.texts_text(layout), native.EXPORTS, default_cache(), "O3")
    imports = {name: _python_function(name) for name in native.PYTHON_IMPORTS}
    library = Library([code], imports | addresses_of(*native.IMPORTS))
    _libraries.append(library)
    pointer, count = ctypes.c_void_p, ctypes.c_int64

    def function(name: str, result: type | None, *arguments: type) -> Callable[..., int]:
        return ctypes.PYFUNCTYPE(result, *arguments)(library.address(name))

    return TextCode(
        check=function("clew_text_check", count, pointer, count, pointer),
        length=function("clew_text_length", count, pointer, count, pointer),
        fill=function("clew_text_fill", count, pointer, count, pointer),
        places=function("clew_text_places", count, pointer, count, pointer, pointer),
        match=function("clew_text_match", count, pointer, count, pointer, pointer),
        concat=function("clew_text_concat", count, *[pointer, count] * 2, count, pointer, pointer),
        split=function("clew_text_split", count, pointer, count, pointer, pointer, count, pointer),
        fill_grams=function("clew_gram_fill", None, pointer, count, count, pointer, pointer),
        count_grams=function(
            "clew_gram_counts", None, pointer, *[count] * 3, pointer, count, count, pointer
        ),
        numbers=function(
            "clew_text_numbers", count, pointer, count, count, pointer, pointer, pointer
        ),
        decimals=function("clew_text_decimals", count, pointer, *[count] * 3, pointer, pointer),
    )


_libraries: list[Library] = []  # keeps the code in memory


def _python_function(name: str) -> int:
    """Returns the address of a function of Python's C interface."""
    address = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
    assert address is not None
    return address


provide(native_code)


def are_texts(array: Array) -> bool:
    """`holds_text` of an array of objects, in native code."""
    if array.size <= FEW_TEXTS:
        return _few_are_texts(array.tolist() if array.ndim == 1 else array.reshape(-1).tolist())
    code = text_code()
    if code is None:
        return holds_text(array)
    flat = flat_texts(array)
    status: int = code.check(address_of(flat), flat.size, id(str))
    return status == GOOD


def _few_are_texts(items: list[Any]) -> bool:
    try:
        for item in items:
            if type(item) is not str or not (item.isascii() or item.encode()):
                return False
    except UnicodeEncodeError:
        return False
    return True
