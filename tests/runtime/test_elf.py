"""Objects linked without LLVM."""

from __future__ import annotations

import contextlib
import ctypes
import struct
from typing import Any

import numpy as np
import pytest

from clew.codegen.artifact import ObjectCode
from clew.codegen.worker import emit_object
from clew.machine.needs import process_triple
from clew.runtime import library
from clew.runtime.elf import Code, Unlinkable
from clew.runtime.library import Library
from clew.support.errors import CompileError

pytestmark = pytest.mark.skipif(
    not process_triple().startswith("x86_64-unknown-linux"), reason="it links x86-64"
)


def compiled(name: str, body: str, *, before: str = "") -> ObjectCode:
    text = f"{before}\ndefine double @{name}(double %x) nounwind {{\n{body}\n}}\n"
    return ObjectCode(name, emit_object(text, process_triple(), "x86-64", ""), (name,))


def call(linked: Any, name: str, x: float) -> float:
    function = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)
    return float(function(linked.addresses[name])(x))


TABLE = compiled(
    "look_up",
    "%i = fptosi double %x to i64\n%p = getelementptr double, ptr @t, i64 %i\n"
    "%v = load double, ptr %p\nret double %v",
    before="@t = private constant [3 x double] [double 1.5, double 2.5, double 3.5]",
)
OUTSIDE = compiled(
    "cosine",
    "%y = call double @cos(double %x)\nret double %y",
    before="declare double @cos(double)",
)
GIVEN = compiled(
    "twice", "%y = call double @given(double %x)\n%z = fadd double %y, %y\nret double %z",
    before="declare double @given(double)",
)  # fmt: skip
DEFINES = compiled("given", "%y = fadd double %x, 1.0\nret double %y")


def test_constants_and_functions_of_the_process() -> None:
    linked = Code([TABLE, OUTSIDE], {})
    assert [call(linked, "look_up", i) for i in range(3)] == [1.5, 2.5, 3.5]
    assert call(linked, "cosine", 0.5) == pytest.approx(np.cos(0.5))


def test_functions_that_are_given_or_in_another_object() -> None:
    other = Code([DEFINES], {})
    assert call(Code([GIVEN], {"given": other.addresses["given"]}), "twice", 2.0) == 6.0
    assert call(Code([GIVEN, DEFINES], {}), "twice", 2.0) == 6.0


def test_code_cannot_be_written() -> None:
    linked = Code([TABLE], {})
    address = linked.addresses["look_up"]
    with open("/proc/self/maps") as maps:
        fields = [line.split() for line in maps]
    ranges = [(*(int(end, 16) for end in f[0].split("-")), f[1]) for f in fields]
    (mode,) = (mode for low, high, mode in ranges if low <= address < high)
    assert mode.startswith("r-x")


def test_what_it_does_not_know_is_left_to_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    writes = compiled(
        "count", "%v = load double, ptr @n\n%w = fadd double %v, %x\n"
        "store double %w, ptr @n\nret double %w", before="@n = internal global double 0.0",
    )  # fmt: skip
    with pytest.raises(Unlinkable):
        Code([writes], {})
    linked = Library([writes])
    assert call(linked._code, "count", 2.0) == 2.0
    assert call(linked._code, "count", 2.0) == 4.0
    monkeypatch.setattr(library, "_LINKS_ITSELF", False)
    assert call(Library([TABLE])._code, "look_up", 1) == 2.5


@pytest.mark.parametrize("objects", [[DEFINES, DEFINES], [GIVEN]])
def test_errors_are_those_of_llvm(objects: list[ObjectCode]) -> None:
    with pytest.raises(CompileError, match="C003"):
        Library(objects)


def test_no_damage_reaches_beyond_the_objects() -> None:
    """Any byte of an object may be wrong: it links, or not, and is never run."""
    rng = np.random.default_rng(0)
    for code in (TABLE, OUTSIDE):
        for at in range(0, len(code.data), 1):
            data = bytearray(code.data)
            data[at] ^= 1 << int(rng.integers(8))
            with contextlib.suppress(Unlinkable):
                Code([ObjectCode("a", bytes(data), code.symbols)], {})
        for size in range(0, len(code.data), 7):
            with pytest.raises(Unlinkable):
                Code([ObjectCode("a", code.data[:size], code.symbols)], {})


def test_objects_of_other_machines() -> None:
    data = bytearray(TABLE.data)
    struct.pack_into("<H", data, 18, 183)
    with pytest.raises(Unlinkable):
        Code([ObjectCode("a", bytes(data), TABLE.symbols)], {})
