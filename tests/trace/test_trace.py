import time

import numpy as np
import pytest
from toys import (
    Block,
    CombineExps,
    Decompose,
    Drop,
    ZeroOut,
    applied,
    layer,
    module_of,
    run,
    source_input,
    swish_trace,
    traced,
)

from clew.build.tracing import trace_of
from clew.ir.expr import Expr
from clew.ir.rewrite import Rewriter
from clew.support.errors import InputError
from clew.trace.links import LinkKind
from clew.trace.refs import AsmRef, KernelRef, LayerRef, LlvmRef, LoopRef, NodeRef
from clew.trace.trace import Trace


def call_of(trace: Trace) -> int:
    return trace.kernels[0].call


def titles(trace: Trace, refs: tuple[NodeRef, ...]) -> list[str]:
    return [trace.reader.title(trace.nodes(r.stage)[r.node]) for r in refs]


def test_a_layer_leads_down_to_its_instructions() -> None:
    trace = swish_trace()
    call = call_of(trace)
    act = trace.forward(LayerRef("act"))
    assert act.kernels == (KernelRef(call),)
    assert [r.line for r in act.loops] == [1, 3, 4]
    assert [r.line for r in act.llvm] == [3, 4]
    assert [trace.kernels[0].asm[r.line - 1].text for r in act.asm] == [
        "xor eax, eax", "vexpps", "vdivps", "vmulps",
    ]  # fmt: skip
    assert titles(trace, act.at(0)) == ["nn.swish"]
    assert sorted(titles(trace, act.at(1))) == ["multiply", "sigmoid"]


def test_an_instruction_leads_up_to_its_layer() -> None:
    trace = swish_trace()
    call = call_of(trace)
    origin = trace.backward(AsmRef(call, 3))
    assert origin.layers == (LayerRef("act"),)
    assert origin.loops == (LoopRef(call, 3),)
    assert origin.llvm == (LlvmRef(call, 3),)
    assert titles(trace, origin.at(trace.last)) == ["sigmoid"]
    assert titles(trace, origin.at(0)) == ["nn.swish"]
    assert trace.backward(AsmRef(call, 2)).layers == (LayerRef("scale"), LayerRef("noop"))
    assert trace.backward(AsmRef(call, 6)).layers == ()
    head = trace.backward(AsmRef(call, 1))
    assert {r.layer for r in head.layers} == {"scale", "noop", "act"}


def test_forward_and_backward_agree_between_any_two_levels() -> None:
    trace = swish_trace()
    call = call_of(trace)
    for name in trace.layers:
        for ref in trace.forward(LayerRef(name)).asm:
            assert LayerRef(name) in trace.backward(ref).layers
    for line in range(1, 7):
        up = trace.backward(AsmRef(call, line))
        for loop in up.loops:
            assert AsmRef(call, line) in trace.forward(loop).asm
        for llvm in up.llvm:
            assert AsmRef(call, line) in trace.forward(llvm).asm
        for refs in up.nodes.values():
            for ref in refs:
                assert AsmRef(call, line) in trace.forward(ref).asm
                assert ref in trace.forward(trace.backward(ref).at(0)[0]).at(ref.stage)
    assert trace.forward(KernelRef(call)).asm == tuple(AsmRef(call, n) for n in range(1, 6))


def test_places() -> None:
    trace = swish_trace()
    line = trace.printed(1).text.splitlines().index(trace.printed(1).text.splitlines()[6]) + 1
    ref = trace.node("Decompose", line)
    assert trace.line(ref) == line
    assert trace.text(ref) == trace.printed(1).text.splitlines()[line - 1].strip()
    assert trace.node(-1, trace.line(NodeRef(trace.last, call_of(trace)))).node == call_of(trace)


def test_layers_of_nodes() -> None:
    trace = swish_trace()
    kernel = trace.kernels[0]
    assert trace.kernel_layers(kernel) == ("scale", "act")
    assert trace.layers_of(NodeRef(trace.last, kernel.ops[1])) == ("act",)


def test_kept_same_and_derived_links() -> None:
    trace = traced(swish_model_only(), Decompose)
    links = trace.links(1)
    old = trace.layer_nodes(0)["act"][0]
    new = {trace.reader.title(trace.nodes(1)[x.new]): x.kind for x in links.forward(old)}
    assert new == {"multiply": LinkKind.SAME, "sigmoid": LinkKind.DERIVED}
    x = trace.stages[0].module.main.params[0].id
    assert [link.kind for link in links.forward(x)] == [LinkKind.KEPT]


def swish_model_only():  # type: ignore[no-untyped-def]
    x = source_input("x", 2, 4)
    return module_of([x], layer("act", "nn.swish", x))


def test_links_are_n_to_n() -> None:
    x, y = source_input("x", 2, 3), source_input("y", 4, 3)
    trace = traced(module_of([x, y], layer("a", "exp", x), layer("b", "exp", y)), CombineExps)
    whole = next(n for n in trace.nodes(1).values() if trace.reader.title(n) == "exp")
    assert trace.layers_of(NodeRef(1, whole.id)) == ("a", "b")
    behind = trace.backward(NodeRef(1, whole.id)).at(0)
    assert titles(trace, behind) == ["exp", "exp"]
    for name, index in (("a", 0), ("b", 1)):
        (old,) = trace.layer_nodes(0)[name]
        same = [x.new for x in trace.links(1).forward(old) if x.kind is LinkKind.SAME]
        assert [trace.nodes(1)[n].index for n in same] == [index]  # type: ignore[attr-defined]
    assert trace.verify({"x": np.ones((2, 3), "f4"), "y": np.zeros((4, 3), "f4")}).ok


def test_links_lead_through_nodes_that_did_not_last() -> None:
    class TwoSteps(Rewriter):
        def rewrite_module(self, module):  # type: ignore[no-untyped-def]
            return Decompose().rewrite_module(Swishify().rewrite_module(module))

    class Swishify(Rewriter):
        def rewrite_call(self, old, new):  # type: ignore[no-untyped-def]
            return clew_op("nn.swish")(new.args[0]) if old.op_name == "nn.silu" else new

    x = source_input("x", 2)
    trace = traced(module_of([x], layer("act", "nn.silu", x)), TwoSteps)
    (old,) = trace.layer_nodes(0)["act"]
    links = trace.links(1).forward(old)
    kinds = {trace.reader.title(trace.nodes(1)[x.new]): x.kind.value for x in links}
    assert kinds == {"multiply": "same", "sigmoid": "derived"}


def clew_op(name: str):  # type: ignore[no-untyped-def]
    from clew.ops.registry import get_op  # noqa: PLC0415

    return get_op(name)


def test_stages_that_change_nothing_are_passed_over() -> None:
    trace = traced(swish_model_only(), Drop, Decompose, Block, ZeroOut)
    assert [s.changed for s in trace.stages] == [True, False, True, False, False]
    assert len(trace.forward(LayerRef("act")).at(4)) == 2


def test_unknown_names_give_hints() -> None:
    trace = swish_trace()
    for code, act in {
        "I070": lambda: trace.layer("atc"),
        "I071": lambda: trace.node("Decomposed", 1),
        "I072": lambda: trace.node(0, 1),
        "I073": lambda: trace.forward(KernelRef(-1)),
    }.items():
        with pytest.raises(InputError) as caught:
            act()
        assert caught.value.code == code
        assert caught.value.hint or code == "I073"
    with pytest.raises(InputError, match="did you mean act"):
        trace.layer("atc")
    with pytest.raises(InputError, match="I072"):
        trace.backward(AsmRef(call_of(trace), 99))


def test_nothing_is_computed_before_it_is_asked() -> None:
    def no_kernels() -> list:  # type: ignore[type-arg]
        raise AssertionError("kernels were asked for")

    class NoReader:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"{name} was asked for")

    records = run(swish_model_only(), **applied(Decompose))
    trace = Trace(records, NoReader(), no_kernels)  # type: ignore[arg-type]
    assert trace.last == 1


def test_queries_are_linear_in_the_graph() -> None:
    def seconds(count: int) -> float:
        x = source_input("x", 4)
        node: Expr = x
        for n in range(count):
            node = layer(f"act{n}", "nn.swish", node)
        records = run(module_of([x], node), **applied(Decompose))
        start = time.process_time()
        trace = trace_of(records)
        assert len(trace.accounted()) == count
        assert not trace.check()
        return time.process_time() - start

    assert seconds(4000) < 40 * max(seconds(400), 0.01)
