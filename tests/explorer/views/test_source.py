"""The model pane: a line a layer, whatever names hold, and what layers hand on."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import view_models as models
from onnx import helper

import clew
from clew.explorer.schema import Source
from clew.explorer.session import Session
from clew.explorer.views.source import source

HOSTILE = ["a\nb", "nul\0", "<img src=x onerror=alert(1)>", "x" * 5000, "\u2028\x85 ‮", "//", "/"]


def lines_of(session: Session, made: Source) -> dict[str, list[str]]:
    """Returns the lines about each layer, and checks that there is a layer for each line."""
    texts = made.text.split("\n")[:-1]
    assert len(texts) == len(made.line_layers)
    assert made.text.splitlines() == texts, "nothing in a line breaks it"
    names = list(session.layers)
    found: dict[str, list[str]] = {}
    for text, layer in zip(texts, made.line_layers, strict=True):
        if layer >= 0:
            found.setdefault(names[layer], []).append(text.strip())
    return found


def edges_of(session: Session, made: Source) -> set[tuple[str, str, str]]:
    """Returns the edges by names, `*` for inputs and outputs."""
    names = [*session.layers, "*"]
    return {(names[e.source], names[e.target], e.value) for e in made.edges}


def test_a_line_a_layer_in_groups(block: Session) -> None:
    made = source(block)
    found = lines_of(block, made)
    assert set(found) == set(block.trace.layers)
    assert found["stem/conv"] == [
        "stem/conv = Conv(x, w: f32[16, 3, 3, 3]) pads=[1, 1, 1, 1] → c: f32[1, 16, 8, 8]"
    ]
    assert found["head/size"] == [
        "head/size = Shape(r) → size  # no operator needed: known at import"
    ]
    assert "\n  stem:\n    stem/conv" in made.text
    assert "inputs\n  x: f32[1, 3, 8, 8]\n" in made.text
    assert made.text.endswith("outputs\n  y: f32[1, 16, 8, 8]\n")
    assert edges_of(block, made) == {
        ("*", "stem/conv", "x"),
        ("stem/conv", "stem/bn", "c"),
        ("stem/bn", "stem/relu", "n"),
        ("stem/relu", "head/size", "r"),
        ("stem/relu", "head/shape", "r"),
        ("head/size", "head/shape", "size"),
        ("head/shape", "*", "y"),
    }


def test_branches_loops_and_functions_are_nested(control: Session) -> None:
    made = source(control)
    found = lines_of(control, made)
    assert set(found) == set(control.trace.layers)
    assert found["branch"][1:] == ["then_branch:", "return b", "else_branch:", "return t"]
    assert found["branch/then_branch/Exp_1"] == ["branch/then_branch/Exp_1 = Exp(a) → b: f32[4, 8]"]
    assert found["known"][-1] == "else_branch: never taken"
    assert "abs" not in control.layers
    assert found["call/sum"] == ["call/sum = Add(v, v) → two: f32[4, 8]"]
    edges = edges_of(control, made)
    # What a body is given comes from whoever made it outside; its results go to its layer.
    assert {
        ("known", "repeat", "kept"), ("known", "body/matmul", "state"),
        ("body/sigmoid", "repeat", "next"), ("block/project", "else/tanh", "h"),
        ("else/tanh", "branch", "t"), ("repeat", "call/sum", "v"), ("call/sum", "call", "two"),
    } <= edges  # fmt: skip


def test_hostile_names_stay_on_their_lines(tmp_path: Path) -> None:
    nodes, value = [], "x"
    for n, name in enumerate(HOSTILE):
        nodes.append(helper.make_node("Relu" if n % 2 else "Neg", [value], [f"v{name}"], name=name))
        value = f"v{name}"
    made = models.model(nodes, [models.value("x", [4])], [models.value(value, [4])])
    session = models.session_of(made, tmp_path)
    assert set(session.layers) == set(HOSTILE)
    found = lines_of(session, source(session))
    assert set(found) == set(HOSTILE)
    assert found["a\nb"] == ["a\\nb = Neg(x) → va\\nb: f32[4]"]
    assert max(map(len, source(session).text.split("\n"))) < 400


def test_names_that_repeat_are_the_importers(tmp_path: Path) -> None:
    node = helper.make_node
    branches = [
        helper.make_graph([node(op, ["x"], [out], name="same")], name, [], [models.value(out, [4])])
        for op, out, name in (("Relu", "p", "then"), ("Neg", "q", "else"))
    ]
    made = models.model(
        [
            node("Neg", ["x"], ["a"], name="same"),
            node("ReduceMax", ["a"], ["top"], keepdims=0),
            node("Cast", ["top"], ["yes"], to=9),
            node("If", ["yes"], ["b"], else_branch=branches[1], then_branch=branches[0]),
            node("Neg", ["b"], ["y"], name="same"),
        ],
        [models.value("x", [4])],
        [models.value("y", [4])],
    )
    session = models.session_of(made, tmp_path)
    found = lines_of(session, source(session))
    assert {name: found[name][0].split("(")[0] for name in found if name.startswith("same")} == {
        "same": "same = Neg",
        "same_1": "same_1 = Relu",
        "same_2": "same_2 = Neg",
        "same_3": "same_3 = Neg",
    }


def test_the_branch_that_is_taken_gives_the_layers(tmp_path: Path) -> None:
    node = helper.make_node
    branches = {
        name: helper.make_graph([node(op, ["x"], [out], name="same")], name, [],
                                [models.value(out, [4])])
        for op, out, name in (("Relu", "p", "then_branch"), ("Neg", "q", "else_branch"))
    }  # fmt: skip
    made = models.model(
        [
            node("Size", ["x"], ["size"]),
            node("Cast", ["size"], ["yes"], to=9),
            node("Not", ["yes"], ["no"]),
            node("If", ["no"], ["b"], **branches),
            node("Neg", ["b"], ["y"], name="same"),
        ],
        [models.value("x", [4])],
        [models.value("y", [4])],
    )
    session = models.session_of(made, tmp_path)
    assert session.operator_types["same"] == "Neg"
    found = lines_of(session, source(session))
    assert [t.split("(")[0] for t in found["same"]] == ["same = Neg"]
    assert [t.split("(")[0] for t in found["same_1"]] == ["same_1 = Neg"]
    assert "then_branch: never taken" in source(session).text


def test_a_module_without_a_file_is_told_as_it_was_imported(block: Session) -> None:
    session = Session(clew.compile(block.compiled.module), model="module")
    made = source(session)
    found = lines_of(session, made)
    assert found["stem/bn"] == ["stem/bn = BatchNormalization(stem/conv) as nn.batch_norm → "
                                "f32[1, 16, 8, 8]"]  # fmt: skip
    assert set(found) == set(session.trace.layers)
    assert ("stem/bn", "stem/relu", "stem/bn") in edges_of(session, made)
    assert ("*", "stem/conv", "input") in edges_of(session, made)


def test_exporters_notes_give_the_groups(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["a"], name="node_0"),
             helper.make_node("Neg", ["a"], ["b"], name="node_1"),
             helper.make_node("Neg", ["b"], ["y"], name="node_2")]  # fmt: skip
    noted = {
        "pkg.torch.onnx.name_scopes": "['', 'net', 'net.layer.0', 'net.layer.0.act', 'neg']",
        "namespace": ": Model/net: Net/net.layer.1: Layer/neg_1: aten.neg",
    }
    for node, (key, text) in zip(nodes, noted.items(), strict=False):
        entry = node.metadata_props.add()
        entry.key, entry.value = key, text
    made = models.model(nodes, [models.value("x", [4])], [models.value("y", [4])])
    session = models.session_of(made, tmp_path)
    assert session.group_of("node_0") == ["net", "layer.0", "act"]
    assert session.group_of("node_1") == ["net", "layer.1"]
    assert session.group_of("node_2") == []
    assert "\n  net:\n    layer.0:\n      act:\n        node_0 = Neg" in source(session).text


@pytest.mark.parametrize("now", [None, b"\x08\xff nothing", "another"])
def test_a_file_that_changed_is_not_shown(tmp_path: Path, now: bytes | str | None) -> None:
    session = models.session_of(models.conv_block(), tmp_path)
    path = tmp_path / "model.onnx"
    path.unlink()
    if isinstance(now, bytes):
        path.write_bytes(now)
    elif now:
        onnx.save(models.control_model(), path)
    made = source(session)
    assert made.text.startswith(
        "model.onnx: its file has changed since; this is the imported model\n"
    )
    assert "stem/bn = BatchNormalization(stem/conv) as nn.batch_norm" in made.text
    assert session.group_of("stem/bn") == ["stem"]


def test_external_weights_are_not_read(tmp_path: Path) -> None:
    made = models.conv_block()
    onnx.save(made, tmp_path / "model.onnx", save_as_external_data=True, location="weights.bin",
              size_threshold=0)  # fmt: skip
    session = models.session_of(tmp_path / "model.onnx", tmp_path)
    assert session.trace.layers
    (tmp_path / "weights.bin").unlink()
    assert "Conv(x, w: f32[16, 3, 3, 3])" in source(session).text


def test_a_text_model(tmp_path: Path) -> None:
    path = tmp_path / "model.txt"
    path.write_text(
        'def @main(%x: f32[4]) -> (f32[4],) with outputs=["y"] {\n'
        "  %0: f32[4] = nn.relu(%x)  // act:Relu#0\n"
        "  %1: (f32[4],) = (%0,)\n"
        "  return %1\n"
        "}\n"
    )
    session = models.session_of(path, tmp_path)
    assert list(session.layers) == ["act"]
    assert "act = Relu(input) as nn.relu → f32[4]" in source(session).text
    assert edges_of(session, source(session)) == {("*", "act", "input"), ("act", "*", "y")}
