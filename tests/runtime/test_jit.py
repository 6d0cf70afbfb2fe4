import ctypes
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from clew.codegen import llvm_locks
from clew.codegen.artifact import ObjectCode
from clew.codegen.worker import emit_object
from clew.runtime.library import Library
from clew.support.errors import CompileError


def object_of(text: str, *symbols: str) -> ObjectCode:
    return ObjectCode("00", emit_object(text, llvm.get_process_triple(), "x86-64", ""), symbols)


def function(name: str, value: int) -> ObjectCode:
    return object_of(f"define i32 @{name}() {{\n ret i32 {value}\n}}", name)


def call(address: int) -> int:
    result: int = ctypes.CFUNCTYPE(ctypes.c_int32)(address)()
    return result


def test_objects_are_linked_together() -> None:
    caller = object_of(
        "declare i32 @one()\ndefine i32 @two() {\n %a = call i32 @one()\n %b = add i32 %a, 1\n"
        " ret i32 %b\n}",
        "two",
    )
    library = Library([caller, function("one", 1)])
    assert call(library.address("two")) == 2
    assert set(library.symbols) == {"one", "two"}
    assert "one" in library
    assert "three" not in library


def test_the_same_names_in_several_libraries() -> None:
    libraries = [Library([function("same.name", value)]) for value in range(5)]
    assert [call(x.address("same.name")) for x in libraries] == [0, 1, 2, 3, 4]
    del libraries[:4]
    assert call(libraries[0].address("same.name")) == 4


def test_imports_by_address() -> None:
    source = Library([function("source", 7)])
    text = (
        "declare i32 @elsewhere()\ndefine i32 @f() {\n %r = call i32 @elsewhere()\n ret i32 %r\n}"
    )
    library = Library([object_of(text, "f")], {"elsewhere": source.address("source")})
    assert call(library.address("f")) == 7


def test_no_objects() -> None:
    assert Library([]).symbols == ()


@pytest.mark.parametrize(
    "objects",
    [
        [ObjectCode("00", b"not an object", ("f",))],
        [ObjectCode("00", function("f", 1).data[:-100], ("f",))],
        [ObjectCode("00", function("f", 1).data, ("g",))],
        [function("f", 1), function("f", 2)],
        [
            object_of(
                "declare void @no_such_thing()\ndefine void @f() {\n call void @no_such_thing()"
                "\n ret void\n}",
                "f",
            )
        ],
    ],
    ids=["foreign", "truncated", "missing", "twice", "undefined"],
)
def test_what_cannot_be_linked_is_one_coded_error(objects: list[ObjectCode]) -> None:
    with pytest.raises(CompileError, match="could not be linked") as caught:
        Library(objects)
    assert caught.value.code == "C003"


FAR = """
import ctypes, sys
from pathlib import Path
from clew.codegen.artifact import ObjectCode
from clew.runtime.library import Library

system = ctypes.CDLL(None)
system.mmap.restype = ctypes.c_void_p
system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
NOTHING, PRIVATE_ANONYMOUS_WITHOUT_MEMORY = 0, 0x4022

def reserve(size):
    return system.mmap(None, size, NOTHING, PRIVATE_ANONYMOUS_WITHOUT_MEMORY, -1, 0)

hole, gigabytes = int(sys.argv[1]), 5 << 30
objects = [
    ObjectCode("00", Path(name).read_bytes(), (Path(name).name,)) for name in sys.argv[2:]
]
Library(objects)  # what LLVM needs for itself is mapped now
wall = reserve(gigabytes)
for size in (1 << 24, 1 << 20, 1 << 16, 1 << 12):
    while reserve(size) > wall:  # the kernel takes the highest gap that is wide enough
        pass
system.munmap(wall + gigabytes - hole, hole)
library = Library(objects)
values = [ctypes.CFUNCTYPE(ctypes.c_double)(library.address(name))() for name in library.symbols]
addresses = [library.address(name) for name in library.symbols]
print(values, max(addresses) - min(addresses) > 1 << 32)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="gaps are filled as Linux does")
@pytest.mark.parametrize("pages", [2, 4, 8, 16])
def test_gaps_in_the_address_space(tmp_path: Path, pages: int) -> None:
    """Neither an object's sections nor the objects of a library need to lie close together."""
    table = ", ".join(f"double {n}.5" for n in range(8192))
    first = object_of(
        f"@table = private constant [8192 x double] [{table}]\n"
        "define double @first() {\n %p = getelementptr double, ptr @table, i64 8191\n"
        " %v = load volatile double, ptr %p\n ret double %v\n}",
        "first",
    )
    second = object_of(
        "declare double @first()\ndefine double @second() {\n %a = call double @first()\n"
        " %b = fadd double %a, 1.25\n ret double %b\n}",
        "second",
    )
    for code in (first, second):
        (tmp_path / code.symbols[0]).write_bytes(code.data)
    files = [str(tmp_path / name) for name in ("first", "second")]
    run = subprocess.run(
        [sys.executable, "-c", FAR, str(pages << 12), *files], capture_output=True, text=True
    )
    assert (run.returncode, run.stdout) == (0, "[8191.5, 8192.75] True\n"), run.stderr


def test_strings_of_llvm_are_freed_once() -> None:
    """llvmlite's own `close` frees a string again if Ctrl-C comes after it has freed it."""
    assert llvm_locks.ffi.OutputString.close is llvm_locks._close
