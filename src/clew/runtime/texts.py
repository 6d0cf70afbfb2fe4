"""Loads the native code on texts, `codegen.driver.texts`; `support.native_texts` uses it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from clew.runtime.cache import default_cache
from clew.runtime.driver import addresses_of, native_object
from clew.runtime.library import Library
from clew.runtime.native_call import Method, new_function
from clew.support.addresses import HAS_LAYOUT
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING
from clew.support.locks import once
from clew.support.native_texts import (
    GOOD,
    TextCode,
    flat_texts,
)
from clew.support.text_arrays import holds_text, provide

Array = np.ndarray[Any, Any]
_FAST_CALL: Final = 128  # METH_FASTCALL


@once
def native_code() -> TextCode | None:
    """Returns this process's functions, or None where native code cannot read texts."""
    with LOADING, held_interrupts():  # few models have texts
        from clew.codegen.driver import texts as native  # noqa: PLC0415
        from clew.runtime.text_layout import text_layout  # noqa: PLC0415

    layout = text_layout()
    if layout is None or not HAS_LAYOUT:
        return None
    code = native_object(native.texts_text(layout), native.EXPORTS, default_cache(), "O3")
    imports = {name: _python_function(name) for name in native.PYTHON_IMPORTS}
    library = Library([code], imports | addresses_of(*native.IMPORTS))
    _libraries.append(library)

    def function(name: str, arguments: int) -> Callable[..., int]:
        words = (library.address(name), arguments, id(np.ndarray))
        record = (ctypes.c_int64 * (native.CALL_BYTES // 8))(*words)
        method = Method(name.encode(), library.address("clew_text_call"), _FAST_CALL, None)
        made: Callable[..., int] = new_function(method, (ctypes.addressof(record), record, method))
        return made

    return TextCode(
        check=function("clew_text_check", 3),
        length=function("clew_text_length", 3),
        fill=function("clew_text_fill", 3),
        places=function("clew_text_places", 4),
        match=function("clew_text_match", 4),
        concat=function("clew_text_concat", 7),
        split=function("clew_text_split", 6),
        fill_grams=function("clew_gram_fill", 5),
        count_grams=function("clew_gram_counts", 8),
        numbers=function("clew_text_numbers", 6),
        decimals=function("clew_text_decimals", 6),
        integers=function("clew_text_integers", 7),
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
    code = native_code()
    if code is None:
        return holds_text(array)
    flat = flat_texts(array)
    status: int = code.check(flat, flat.size, id(str))
    return status == GOOD
