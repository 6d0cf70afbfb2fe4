"""The other views on models whose right answers are known, and on models of odd kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import view_models as models
from onnx import TensorProto, helper
from page_walk import get

import clew
from clew.explorer.routes import ROUTES, answer
from clew.explorer.session import Session
from clew.explorer.views.diff import diff_view
from clew.explorer.views.index import index
from clew.explorer.views.schedule import SIMPLIFIED, schedule
from clew.loop.schedule import Schedule
from clew.support.errors import ClewError, InputError

# Routes that show figures refuse until somebody measured.
NOT_MEASURED = ("I230", "I231")


def test_overview_and_totals_agree_with_the_trace(block: Session) -> None:
    overview, totals = get(block, "overview"), get(block, "totals")
    assert [la["group"] for la in overview["layers"]] == [["stem"]] * 3 + [["head"]] * 2
    assert [la["op"] for la in overview["layers"]] == [
        "Conv", "BatchNormalization", "Relu", "Reshape", "Shape",
    ]  # fmt: skip
    assert [k["name"] for k in overview["kernels"]] == [k.name for k in block.trace.kernels]
    assert totals["instructions_of"] == [len(k.asm) for k in block.trace.kernels]
    assert totals["loop_lines"] == sum(len(k.loops) for k in block.trace.kernels)
    assert overview["stages"][0]["nodes"] == len(block.trace.nodes(0))
    assert {p for p, ran in overview["passes"].items() if ran} >= {"FuseOps", "FoldConstant"}


def test_equal_kernels_share_their_instructions(tmp_path: Path) -> None:
    node = helper.make_node
    made = models.model(
        [node("MatMul", ["x", "w"], ["a"]), node("Softmax", ["a"], ["b"]),
         node("MatMul", ["b", "w"], ["c"]), node("Softmax", ["c"], ["y"])],
        [models.value("x", [4, 16])],
        [models.value("y", [4, 16])],
        [models.weight("w", 16, 16)],
    )  # fmt: skip
    session = models.session_of(made, tmp_path)
    kernels = [k for k in session.kernels if "dense" in k.name]
    assert len(kernels) == 2
    assert kernels[0].asm is kernels[1].asm
    distinct = [k["distinct"] for k in get(session, "overview")["kernels"]]
    assert len(set(distinct)) == get(session, "totals")["kernels"] < len(distinct)


def test_rules_from_the_cache_are_those_that_were_chosen(block: Session) -> None:
    again = clew.compile(block.path or "")
    assert again.from_cache
    assert [k.rules for k in again.kernels] == [k.schedule and k.rules for k in block.uses]
    assert [k.rules for k in again.kernels] == [k._use.source.rules for k in block.uses]


def test_the_schedule_steps_replay_to_the_code(block: Session) -> None:
    for place, kernel in enumerate(block.uses):
        view, code = schedule(block, place), get(block, f"code/{place}")
        assert view.steps[0].text == view.steps[0].primitive == ""
        steps = [s for s in view.steps[1:] if s.primitive]
        assert [s.text for s in steps] == [str(s) for s in kernel.schedule.steps]
        source = kernel._use.source
        replayed = Schedule.replay(source.nest, [s.text for s in steps])
        assert str(replayed).splitlines() == steps[-1].loops if steps else True
        assert view.steps[-1].loops == code["loops"]
        assert view.steps[-1].loop_op == code["loop_op"]
        assert view.steps[-1].text in (SIMPLIFIED, steps[-1].text if steps else "")
        assert {s.primitive for s in steps} <= set(view.primitives)
    assert view.primitives["split"].startswith(
        "split(loop: str, factor: int, tail: str = 'peel', inside: int = 0, rest: int = 0)\n"
    )


def test_the_index_finds_things_where_they_are(block: Session) -> None:
    entries = index(block).entries
    layers = {e.text: (e.detail, e.ref) for e in entries if e.kind == "layer"}
    assert layers["stem/bn"] == ("BatchNormalization", "layer:stem/bn")
    assert set(layers) == set(block.trace.layers)
    assert [e.text for e in entries if e.kind == "kernel"] == [k.name for k in block.kernels]
    assert [e.text for e in entries if e.kind == "stage"] == [s.name for s in block.trace.stages]
    found = {(e.kind, e.text) for e in entries}
    assert {
        ("operator", "nn.batch_norm"), ("attribute", "padding=(1, 1, 1, 1)"),
        ("parameter", "w"), ("dtype", "f32"), ("shape", "f32[1, 3, 8, 8]"),
    } <= found  # fmt: skip
    for entry in entries:
        assert answer(block, f"story/{entry.ref}").sections, entry


def test_a_diff_has_all_layers_of_both(block: Session) -> None:
    plain = clew.compile(block.path or "", opt_level=0)
    other = Session(plain, model="plain")
    made = diff_view(clew.diff(block.compiled, plain, names=("fused", "plain")), block, other)
    assert [c.a for c in made.layers] == [c.b for c in made.layers] == list(range(5))
    conv = made.layers[0]
    assert "layout" in made.kinds
    assert any(s.startswith("layout: ") for la in made.layers for s in la.sentences)
    assert conv.kinds == [s.split(":")[0] for s in conv.sentences]
    assert made.a_wall_ns is None
    assert made.summary[0].startswith("5 layers in both")


@pytest.mark.parametrize(
    "path", ["nothing", "stage/x", "story/", "code/99999999999", "schedule/-1"]
)
def test_unknown_routes_are_refused(block: Session, path: str) -> None:
    with pytest.raises(InputError) as caught:
        answer(block, path)
    assert caught.value.code == "I201"


def test_symbolic_models_need_a_build() -> None:
    import zoo  # noqa: PLC0415

    path = Path(zoo.path("bert_tiny_dynamic"))
    compiled = clew.compile(path)
    for route in ("overview", "source", "index", "links"):
        with pytest.raises(InputError) as caught:
            answer(Session(compiled, model=path.name, path=path), route)
        assert caught.value.code == "I044"
    compiled.run(zoo.inputs("bert_tiny_dynamic"))
    session = Session(compiled, model=path.name, path=path)
    assert get(session, "overview")["kernels"]
    assert set(get(session, "source")["line_layers"]) >= set(range(len(session.layers)))


def all_routes(session: Session) -> None:
    """Asks all that can be asked without measuring."""
    for route in ROUTES:
        if "{" not in route.path:
            try:
                get(session, route.path)
            except InputError as error:
                assert error.code in NOT_MEASURED, route  # noqa: PT017
    for n in range(len(session.kernels)):
        get(session, f"code/{n}")
        get(session, f"schedule/{n}")
        get(session, f"story/kernel:{n}")
        get(session, f"story/asm:{n}:1")
    for n in range(len(session.trace.stages)):
        get(session, f"stage/{n}")
        get(session, f"story/stage:{n}")
    for name in session.layers:
        assert get(session, f"story/layer:{name}")["title"] == name


def test_a_model_without_kernels(tmp_path: Path) -> None:
    made = models.model(
        [helper.make_node("Reshape", ["x", "to"], ["y"], name="view")],
        [models.value("x", [4, 2])],
        [models.value("y", [8])],
        [helper.make_tensor("to", TensorProto.INT64, [1], [8])],
    )
    session = models.session_of(made, tmp_path)
    assert not session.kernels
    all_routes(session)
    told = get(session, "story/layer:view")
    assert "view" in told["sections"][0]["sentences"][0]["parts"][0]["text"]


def test_a_model_of_host_operators(tmp_path: Path) -> None:
    made = models.model(
        [helper.make_node("SequenceConstruct", ["x"], ["y"], name="list")],
        [models.value("x", [4, 2])],
        [helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)],
    )
    session = models.session_of(made, tmp_path)
    assert not session.kernels
    all_routes(session)


def test_a_model_of_one_kernel(tmp_path: Path) -> None:
    made = models.model(
        [helper.make_node("Relu", ["x"], ["y"], name="relu")],
        [models.value("x", [64])],
        [models.value("y", [64])],
    )
    session = models.session_of(made, tmp_path)
    assert len(session.kernels) == 1
    all_routes(session)


def test_hostile_names_get_through_every_route(tmp_path: Path) -> None:
    names = ["a\nb", "nul\0", "<img src=x onerror=alert(1)>", "layer:x", "x" * 3000, "é/ü"]
    nodes, value = [], "x"
    for n, name in enumerate(names):
        nodes.append(helper.make_node("Softmax", [value], [f"v{n}"], name=name))
        value = f"v{n}"
    made = models.model(nodes, [models.value("x", [4, 8])], [models.value(value, [4, 8])])
    all_routes(models.session_of(made, tmp_path))


def test_control_flow_gets_through_every_route(control: Session) -> None:
    all_routes(control)


def test_bad_refs_have_codes(block: Session) -> None:
    for ref, code in {
        "nonsense": "I240", "loop:0": "I240", "kernel:x": "I240", "node:0:1:2": "I240",
        "layer:nobody": "I070", "kernel:999": "I200", "loop:0:9999": "I072", "asm:0:0": "I072",
        "stage:999": "I071", "node:0:99999": "I241", "source:0": "I242", "source:999": "I242",
        "kernel:²": "I240",
    }.items():  # fmt: skip
        with pytest.raises(ClewError) as caught:
            answer(block, f"story/{ref}")
        assert caught.value.code == code, ref


def test_what_a_pass_added_for_no_layer_of_the_model(block: Session) -> None:
    @clew.graph_pass
    def brighten(module: clew.Module, ctx: Any) -> clew.Editor:
        return clew.edit(module).insert_after("stem/relu", clew.get_op("tanh"))

    compiled = clew.compile(block.path or "", extend=[brighten])
    session = Session(compiled, model="added", path=block.path)
    added = {la for n in session.trace.nodes(session.trace.last).values() for la in n.span.layers}
    assert added - set(session.layers)
    all_routes(session)
