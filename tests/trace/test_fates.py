import numpy as np
import pytest
from toys import (
    Decompose,
    Drop,
    Fold,
    Unify,
    ZeroOut,
    applied,
    f32,
    layer,
    module_of,
    parameter,
    run,
    source_input,
    swish_trace,
    traced,
)

from clew.build.tracing import trace_of
from clew.ir.expr import Call, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops.registry import get_op
from clew.trace.export import from_document, to_document
from clew.trace.fates import FateKind
from clew.trace.kernels import KernelRecord
from clew.trace.lineage import Lineage
from clew.trace.stages import StageRecord


def test_every_layer_is_accounted_for() -> None:
    fates = swish_trace().accounted()
    assert {name: (f.kind.value, f.pass_name) for name, f in fates.items()} == {
        "fold_me": ("folded", "Fold"),
        "scale": ("kernel", ""),
        "noop": ("merged", "Drop"),
        "act": ("kernel", ""),
    }
    assert fates["noop"].into == ("scale",)
    assert str(fates["act"]) == "runs in k"


def test_a_merged_layer_names_what_it_went_into() -> None:
    x = source_input("x", 3)
    a, b = layer("a", "exp", x), layer("b", "exp", x)
    trace = traced(module_of([x], layer("sum", "add", a, b)), Unify)
    fate = trace.accounted()["b"]
    assert (fate.kind, fate.pass_name, fate.into) == (FateKind.MERGED, "Unify", ("a",))
    assert str(fate) == "merged into a by Unify"


def test_an_identity_of_an_input_merges_into_the_input() -> None:
    x = source_input("x", 3)
    trace = traced(module_of([x], layer("same", "identity", x)), Drop)
    assert trace.accounted()["same"].into == ("x",)


def test_a_dead_layer_names_the_pass() -> None:
    x = source_input("x", 3)
    dead = layer("dead", "exp", x)
    zero = layer("zero", "multiply", dead, parameter("none", np.zeros(1)))
    trace = traced(module_of([x], layer("sum", "add", x, zero)), Drop, ZeroOut, Drop)
    fates = trace.accounted()
    assert (fates["dead"].kind, fates["dead"].pass_name) == (FateKind.DEAD, "ZeroOut")
    assert (fates["zero"].kind, fates["zero"].pass_name) == (FateKind.FOLDED, "ZeroOut")
    assert fates["sum"].kind is FateKind.KEPT
    assert not trace.check()


def test_folding_in_several_steps_names_the_last() -> None:
    x = source_input("x", 3)
    weight = layer("prep", "nn.swish", parameter("w", [1.0, 2.0, 3.0]))
    trace = traced(module_of([x], layer("sum", "add", x, weight)), Decompose, Fold, Drop)
    fate = trace.accounted()["prep"]
    assert (fate.kind, fate.pass_name) == (FateKind.FOLDED, "Fold")


def test_sound_pipelines_have_no_gaps() -> None:
    assert swish_trace().check() == []


def test_a_node_without_source_is_a_gap() -> None:
    x = source_input("x", 3)
    trace = traced(module_of([x], get_op("exp")(x)), Drop)
    (gap,) = trace.check()
    assert str(gap) == "import, line 5: exp has no source"


def test_a_node_from_nothing_is_a_gap() -> None:
    x = source_input("x", 3)
    before = module_of([x], layer("a", "exp", x))
    stray = module_of([x], get_op("abs")(x))
    first = StageRecord("import", before, None, 0.0, ())
    second = StageRecord("Stray", stray, Lineage(), 0.0, (), first)
    gaps = [g.text for g in trace_of([first, second]).check()]
    assert "abs came from nothing in Stray" in gaps
    unrecorded = StageRecord("Off", stray, None, 0.0, (), first)
    assert [g.text for g in trace_of([first, unrecorded]).check()] == [
        "its lineage was not recorded"
    ]


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"ops": (-7,)}, "names nodes [-7]"), ({"stage_ops": {"s": 3}}, "stages ['s'] of no op")],
)
def test_a_kernel_that_leads_nowhere_is_a_gap(fields: dict, words: str) -> None:  # type: ignore[type-arg]
    p = Var("p", f32(3))
    x = source_input("x", 3)
    call = layer("a", "exp", x)
    kernel = Call(Function([p], get_op("exp")(p), span=call.span), [x], span=call.span)
    module = Module({"main": Function([x], Tuple([kernel]))})
    record = KernelRecord("k", kernel.id, **fields)
    gaps = trace_of(run(module, **applied(Drop)), [record]).check()
    assert any(words in g.text for g in gaps)


def test_layers_that_the_import_settles_are_accounted_for():
    """They have no node, and are layers of the model all the same."""
    gone = [["shape_0", "Shape", "known at import"]]
    x = Var("x", TensorType((2,), "f32"))
    module = Module({"main": Function([x], Tuple([x]), {"outputs": ["y"], "eliminated": gone})})
    trace = trace_of([StageRecord("import", module, None, 0.0, ())])
    assert trace.layers == ("shape_0",)
    assert trace.accounted()["shape_0"].kind is FateKind.IMPORTED
    assert "known at import" in str(trace.layer("shape_0"))
    again = from_document(to_document(trace))
    assert again.accounted() == trace.accounted()
