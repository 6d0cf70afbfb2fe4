"""Names that a file gives its layers, values and sizes: they end up in texts, symbols and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import clew
from clew.support.errors import ClewError
from hostile.catalog import X, case, compiled, each, load, model, node, value

NAMES = {
    "newlines": "a\nb\r\nc",
    "null": "a\0b",
    "quotes": "a\"b'c`d",
    "backslash": "a\\b\\",
    "percent": "%s%n%0 @main",
    "llvm": '"} define void @evil() { ret void }\n@x = global i32 0 ; !dbg',
    "path": "../../../../tmp/evil",
    "absolute": "/tmp/evil",
    "html": "<script>alert(1)</script>",
    "unicode": "é漢字🙂\u202e\u200b",
    "surrogate_like": "\ufffd\ufffe",
    "empty": "",
    "blank": " ",
    "long": "n" * 60_000,
    "comment": "; comment // # /* */",
    "terminal": "\x1b[2J\x1b]0;evil\x07",
    "keyword": "main",
    "semicolon": "a;b,c:d{e}[f](g)",
}


def named(name: str) -> object:
    """Returns a model that uses one strange name wherever possible."""
    other = f"{name}2"
    weight = numpy_helper.from_array(np.ones((3, 4), np.float32), f"{name}w")
    nodes = [
        node("MatMul", [name or "x", f"{name}w"], [other], name=name),
        node("Softmax", [other], [f"{name}3"], name=name),
    ]
    made = model(nodes, [weight], inputs=[value(name or "x", [2, 3])],
                 outputs=[value(f"{name}3", None)])  # fmt: skip
    for entry in made.graph.node:
        entry.doc_string = name
        entry.metadata_props.add(key=name, value=name)
    made.graph.name = name
    made.producer_name = name
    return made


@each("names", NAMES, "ok", "M030")
def everything(folder: Path, given: str) -> None:
    """Compiles, runs, prints, traces, saves, loads and writes a model down."""
    built = compiled(named(given))
    result = built(X)
    assert np.allclose(result.sum(axis=-1), 1)
    assert str(built.module)
    for kernel in built.kernels:
        assert kernel.asm
        assert kernel.llvm
        assert kernel.loops
    for layer in built.module.main.span.layers:
        built.trace.layer(layer)
    built.graph()
    saved = folder / "m.clew"
    built.save(saved)
    assert (clew.load_compiled(saved, 1)(X) == result).all()
    assert len(list(folder.iterdir())) == 1


@case("M030", slow=True)
def a_name_of_a_hundred_megabytes(folder: Path) -> None:
    load(named("n" * (20 << 20)))


@case("M004", slow=True)
def names_of_a_hundred_megabytes_together(folder: Path) -> None:
    load(model([node("Neg", [f"{n:0>30000}"], [f"{n + 1:0>30000}"]) for n in range(3000)]))


@case("M001")
def a_name_that_is_no_text(folder: Path) -> None:
    data = model([node("Relu", ["x"], ["y"], name="QQQQ")]).SerializeToString()
    load(data.replace(b"QQQQ", b"\xff\xfe\xc0\x80"))


@case()
def sizes_with_strange_names(folder: Path) -> None:
    for text in NAMES.values():
        made = model([node("Neg", ["x"], ["y"])], inputs=[value("x", [text or "n", 3])])
        try:
            built = compiled(made)
            assert (built(X) == -X).all()
        except ClewError as error:
            assert error.code == "M030", error


@case()
def operators_with_strange_names(folder: Path) -> None:
    for text in NAMES.values():
        try:
            load(model([helper.make_node(text, ["x"], ["y"], domain=text)]))
        except ClewError as error:
            assert "\n\n" not in str(error)
            assert len(str(error)) < 2000
            continue
        raise AssertionError(text)


@case()
def branches_with_strange_names(folder: Path) -> None:
    for text in NAMES.values():
        out = [value(f"{text}o", None)]
        one = helper.make_graph([node("Neg", ["x"], [f"{text}o"], name=text)], text, [], out)
        two = helper.make_graph([node("Abs", ["x"], [f"{text}o"], name=text)], text, [], out)
        made = model(
            [node("If", ["c"], ["y"], then_branch=one, else_branch=two, name=text)],
            inputs=[value("x", [2, 3]), value("c", [], TensorProto.BOOL)],
        )
        try:
            built = compiled(made, opt_level=1)
            assert (built(X, np.bool_(True)) == -X).all()
        except ClewError as error:
            assert error.code == "M030", error
