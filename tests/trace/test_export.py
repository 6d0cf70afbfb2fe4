import json
from pathlib import Path
from typing import Any

import pytest
from toys import swish_trace

from clew.support.errors import InputError
from clew.trace.export import from_document, read_json, to_document, write_json
from clew.trace.refs import AsmRef, LayerRef, NodeRef

TEXT, NUMBER, FLAG = "text", "number", "flag"
LAYER = {"name": TEXT, "fate": TEXT, "pass": TEXT, "into": [TEXT]}
NODE = {
    "id": NUMBER, "line": NUMBER, "kind": TEXT, "title": TEXT, "type": TEXT, "sources": [NUMBER],
    "memory": [TEXT],
}  # fmt: skip
STAGE = {
    "name": TEXT, "changed": FLAG, "traced": FLAG, "remarks": [(NUMBER, TEXT, TEXT)],
    "text?": TEXT, "nodes?": [NODE], "links?": [(NUMBER, NUMBER, TEXT)], "seconds?": NUMBER,
}  # fmt: skip
KERNEL = {
    "name": TEXT, "call": NUMBER, "ops": [NUMBER], "layers": [TEXT], "loops": [TEXT],
    "loop_stages": [(NUMBER, TEXT)], "stage_ops": {"*": NUMBER}, "llvm": [TEXT],
    "llvm_lines": [(NUMBER, NUMBER)], "asm": [(NUMBER, TEXT, NUMBER)],
}  # fmt: skip
SCHEMA = {
    "format": TEXT, "version": NUMBER, "layers": [LAYER], "stages": [STAGE], "kernels": [KERNEL],
    "sources": [(TEXT, TEXT, TEXT, TEXT, "number or null")],
}  # fmt: skip


def check(value: Any, schema: Any, path: str = "$") -> None:
    """Asserts that a document has the shape that docs/trace-format.md gives."""
    if isinstance(schema, dict):
        assert isinstance(value, dict), path
        if "*" in schema:
            for key, item in value.items():
                check(item, schema["*"], f"{path}.{key}")
            return
        names = {k.rstrip("?"): v for k, v in schema.items()}
        assert set(value) <= set(names), f"{path}: {set(value) - set(names)} not documented"
        missing = {k for k in schema if not k.endswith("?")} - set(value)
        assert not missing, f"{path}: {missing} missing"
        for key, item in value.items():
            check(item, names[key], f"{path}.{key}")
    elif isinstance(schema, tuple):
        assert isinstance(value, list), path
        assert len(value) == len(schema), path
        for n, (item, part) in enumerate(zip(value, schema, strict=True)):
            check(item, part, f"{path}[{n}]")
    elif isinstance(schema, list):
        assert isinstance(value, list), path
        for n, item in enumerate(value):
            check(item, schema[0], f"{path}[{n}]")
    elif schema == "number or null":
        assert value is None or isinstance(value, int), path
    else:
        wanted = {TEXT: str, NUMBER: (int, float), FLAG: bool}[schema]
        assert isinstance(value, wanted), path


def document(**options: bool) -> dict[str, Any]:
    return json.loads(json.dumps(to_document(swish_trace(), **options)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("timings", [False, True])
def test_the_document_has_the_documented_shape(timings: bool) -> None:
    exported = document(timings=timings)
    check(exported, SCHEMA)
    assert (exported["format"], exported["version"]) == ("clew-trace", 1)
    assert ("seconds" in exported["stages"][0]) is timings


def test_the_documentation_names_every_field() -> None:
    text = Path(__file__).parents[2].joinpath("docs/trace-format.md").read_text()
    for part in (SCHEMA, LAYER, NODE, STAGE, KERNEL):
        for name in part:
            assert f"`{name.rstrip('?')}`" in text, name


def test_equal_compilations_give_equal_documents() -> None:
    assert json.dumps(document()) == json.dumps(document())


def test_ids_are_dense_and_lines_hold_their_nodes() -> None:
    exported = document()
    ids = {n["id"] for s in exported["stages"] for n in s.get("nodes", [])}
    assert ids == set(range(len(ids)))
    for stage in exported["stages"]:
        lines = stage["text"].splitlines()
        for node in stage["nodes"]:
            assert node["type"] in lines[node["line"] - 1] or node["kind"] in ("Function", "Tuple")


def test_an_export_reads_back_and_answers_the_same(tmp_path: Path) -> None:
    write_json(swish_trace(), tmp_path / "trace.json")
    trace, read = swish_trace(), read_json(tmp_path / "trace.json")
    assert to_document(read) == document()
    with pytest.raises(InputError, match="I075"):
        read.verify({})
    assert {k: str(f) for k, f in read.accounted().items()} == {
        k: str(f) for k, f in trace.accounted().items()
    }
    assert read.check() == []
    for layer in trace.layers:
        old, new = trace.forward(LayerRef(layer)), read.forward(LayerRef(layer))
        assert [r.line for r in old.asm] == [r.line for r in new.asm]
        assert str(trace.layer(layer)) == str(read.layer(layer))
    call = read.kernels[0].call
    assert read.backward(AsmRef(call, 3)).layers == (LayerRef("act"),)
    assert read.backward(AsmRef(call, 3)).at(0) == (NodeRef(0, read.layer_nodes(0)["act"][0]),)


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 2},
        {"format": "other"},
        {"sources": []},
        {"stages": [{"name": "import"}]},
        {"kernels": [{}]},
    ],
)
def test_other_documents_are_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="I074"):
        from_document({**document(), **damage})


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(InputError, match="I074"):
        read_json(tmp_path / "trace.json")
