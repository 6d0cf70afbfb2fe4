import ctypes

import llvmlite.binding as llvm
import pytest

from clew.codegen.artifact import ObjectCode
from clew.codegen.worker import emit_object
from clew.runtime.jit import Library
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
