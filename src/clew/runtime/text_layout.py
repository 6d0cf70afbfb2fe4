"""Finds where CPython keeps the characters of a `str`.

The offsets are those of every CPython with PEP 393; the bits of the state have moved between
versions, so they are found in texts of all forms. What was found is then checked on these texts. On
any doubt there is no layout, and Python alone reads texts.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from typing import Final

from clew.codegen.driver.texts import ASCII_BIT, COMPACT_BIT, TextLayout

_TYPE_AT, _LENGTH_AT, _STATE_AT = 8, 16, 32
_STATE_BITS: Final = 32
_FORM_BITS: Final = 5
_FORM_MASK: Final = (1 << _FORM_BITS) - 1
_CHARACTERS: Final = {"ascii": "az", "latin": "é\xff", "pairs": "語\uffff", "fours": "😀\U0010ffff"}
_KINDS: Final = {"ascii": 1, "latin": 1, "pairs": 2, "fours": 4}
_ENCODINGS: Final = {1: "latin-1", 2: "utf-16", 4: "utf-32"}
_COUNTS: Final = (2, 3, 7, 16, 100)


class _Derived(str):
    """A text that is not compact."""

    __slots__ = ()


def text_layout() -> TextLayout | None:
    """Returns the layout of texts in this process; None if native code must not read them: in
    another implementation, without a GIL, on a machine of other words, or with an unknown layout.
    """
    whole_words = ctypes.sizeof(ctypes.c_void_p) == 8 and object.__basicsize__ == 16
    free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    if sys.implementation.name != "cpython" or free or not whole_words:
        return None
    texts = {form: _texts(characters) for form, characters in _CHARACTERS.items()}
    if min(map(sys.getsizeof, texts["ascii"])) < _STATE_AT + _STATE_BITS // 8:
        return None
    layout = _found(texts)
    if layout is None or not all(
        _reads(layout, text, _KINDS[form], form == "ascii")
        for form, some in texts.items()
        for text in some
    ):
        return None
    return layout


def _texts(characters: str) -> list[str]:
    """Returns new texts of characters, one of which has been a key."""
    made = [(characters * count)[:count] for count in _COUNTS]
    return [*made, sys.intern("".join(made))]


def _found(texts: dict[str, list[str]]) -> TextLayout | None:
    """Returns the layout in which the state of each text says what its form is; None if there is
    not exactly one.
    """
    shifts = [
        shift
        for shift in range(_STATE_BITS - _FORM_BITS + 1)
        if all(
            _state(text) >> shift & _FORM_MASK == _form(form)
            and not _state(_Derived(text)) >> shift & COMPACT_BIT
            for form, some in texts.items()
            for text in some
        )
    ]
    if len(shifts) != 1:
        return None
    # The characters end the object, with one more of zero.
    ascii_text, latin_text = texts["ascii"][0], texts["latin"][0]
    return TextLayout(
        _TYPE_AT,
        _LENGTH_AT,
        _STATE_AT,
        sys.getsizeof(ascii_text) - len(ascii_text) - 1,
        sys.getsizeof(latin_text) - len(latin_text) - 1,
        shifts[0],
    )


def _form(form: str) -> int:
    return _KINDS[form] | COMPACT_BIT | (ASCII_BIT if form == "ascii" else 0)


def _state(text: str) -> int:
    return ctypes.c_uint32.from_address(id(text) + _STATE_AT).value


def _reads(layout: TextLayout, text: str, kind: int, is_ascii: bool) -> bool:
    """Whether a text is read as it is."""
    address = id(text)
    data = address + (layout.ascii_at if is_ascii else layout.wide_at)
    order = {"little": "le", "big": "be"}[sys.byteorder]
    encoding = _ENCODINGS[kind] if kind == 1 else f"{_ENCODINGS[kind]}-{order}"
    return (
        ctypes.c_void_p.from_address(address + layout.type_at).value == id(str)
        and ctypes.c_int64.from_address(address + layout.length_at).value == len(text)
        and ctypes.string_at(data, len(text) * kind) == text.encode(encoding)
    )
