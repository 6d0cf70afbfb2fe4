"""Placement: which operators become one region, and which never do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
from clew.ir.expr import Call, Expr, Function
from clew.ir.interpret import interpret
from clew.ir.visit import post_order
from clew.partitioning import between, rule_of
from clew.passes.placement.annotate_target import AnnotateTarget
from clew.passes.placement.claims import RegionPattern
from clew.passes.placement.merge_compiler_regions import MergeCompilerRegions
from clew.passes.placement.merge_composite import MergeComposite
from clew.passes.placement.partition_graph import PartitionGraph
from clew.patterns import is_op, wildcard
from clew.pipelines import placement
from clew.support.errors import InputError


class Taker:
    """Takes operators of some names."""

    key = ""

    def __init__(self, *ops: str, name: str = "taker", patterns: Any = ()) -> None:
        self.name, self.ops, self.patterns = name, ops, patterns

    def takes(self, call: Call) -> bool:
        return call.op_name in self.ops

    def cost(self, region: Function, target: Any) -> float | None:
        return None


def regions_of(kit: Any, result: Expr, params: list[Any], *takers: Taker) -> list[list[str]]:
    """Returns the operators of each region, in the order of the graph."""
    module = kit.module(params, result)
    manager = kit.PassManager(placement(takers), target=kit.tiles())
    main = manager.run(module).main
    called = [n.op for n in post_order(main.body) if isinstance(n, Call)]
    regions = [f for f in called if isinstance(f, Function)]
    assert all(f.is_primitive and f.backend for f in regions)
    return [[n.op_name for n in post_order(f.body) if isinstance(n, Call)] for f in regions]


def test_a_region_is_convex(kit: Any) -> None:
    """`exp` lies on a way from one add to the other: they cannot be one region."""
    x = kit.var("x", 8)
    first = kit.layer("add", x, x)
    second = kit.layer("add", first, kit.layer("exp", first))
    assert regions_of(kit, second, [x], Taker("add")) == [["add"], ["add"]]


def test_a_side_way_that_does_not_come_back_is_no_obstacle(kit: Any) -> None:
    """The second add waits for `exp`, which does not depend on the first."""
    x = kit.var("x", 8)
    first = kit.layer("add", x, x)
    side = kit.layer("exp", kit.layer("add", x, kit.layer("exp", x)))
    result = kit.layer("add", first, side)
    found = regions_of(kit, result, [x], Taker("add"))
    assert sorted(map(len, found)) == [1, 2]


def test_regions_of_two_backends_do_not_wait_for_each_other(kit: Any) -> None:
    """Each of the first backend's calls reads one of the second's, crosswise."""
    x = kit.var("x", 8)
    a, b = kit.layer("add", x, x), kit.layer("exp", x)
    c, d = kit.layer("exp", a), kit.layer("add", b, b)
    both = kit.layer("multiply", kit.layer("add", c, d), kit.layer("exp", kit.layer("add", a, d)))
    found = regions_of(kit, both, [x], Taker("add", name="one"), Taker("exp", name="two"))
    assert sorted(op for ops in found for op in ops) == ["add"] * 4 + ["exp"] * 3


def test_a_match_is_in_one_region_whole(kit: Any) -> None:
    """What the match reads besides comes from outside the backend."""
    x = kit.var("x", 8)
    first = kit.layer("add", x, x)
    inner = kit.layer("multiply", first, x)
    outer = kit.layer("maximum", inner, kit.layer("exp", first))
    product = is_op("multiply")(wildcard(), wildcard())
    both = RegionPattern("both", is_op("maximum")(product, wildcard()))
    found = regions_of(kit, outer, [x], Taker("add", patterns=[both]))
    assert ["multiply", "maximum"] in found


@pytest.mark.parametrize("length", [4_000])
def test_deep_chains_pass(kit: Any, length: int) -> None:
    x = kit.var("x", 8)
    y: Expr = x
    for n in range(length):
        y = kit.layer("add", y, x) if n % 2 else kit.layer("nn.relu", y)
    relu = RegionPattern("relu", is_op("nn.relu")(wildcard()))
    alone = regions_of(kit, y, [x], Taker("add"))
    assert len(alone) == length // 2
    (everything,) = regions_of(kit, y, [x], Taker("add", patterns=[relu]))
    assert len(everything) == length


# --- the four steps, one by one ---

RELU = RegionPattern("dense_relu", is_op("nn.relu")(is_op("nn.dense")(wildcard(), wildcard())))


def network(kit: Any) -> Any:
    """Two dense layers with activations, a softmax between them, and a sum at the end."""
    x, w = kit.var("x", 8, 8), kit.var("w", 8, 8)
    first = kit.layer("nn.relu", kit.layer("nn.dense", x, w))
    soft = kit.layer("nn.softmax", first)
    second = kit.layer("nn.relu", kit.layer("nn.dense", soft, w))
    return kit.module([x, w], kit.layer("add", second, first))


def functions_of(module: Any) -> list[Function]:
    called = [n.op for n in post_order(module.main.body) if isinstance(n, Call)]
    return [f for f in called if isinstance(f, Function)]


def after(kit: Any, module: Any, *passes: Any) -> Any:
    return kit.PassManager(list(passes), target=kit.tiles()).run(module)


def test_each_step_does_its_part(kit: Any) -> None:
    taker = Taker("add", "nn.softmax", patterns=[RELU])
    module = network(kit)
    merged = after(kit, module, MergeComposite((taker,)))
    assert [dict(f.attrs) for f in functions_of(merged)] == [
        {"composite": "dense_relu", "name": "dense_relu", "of": "taker"}
    ] * 2
    annotated = after(kit, merged, AnnotateTarget((taker,)))
    assert [f.backend for f in functions_of(annotated)] == ["taker"] * 4
    assert not any(f.is_primitive for f in functions_of(annotated))
    joined = after(kit, annotated, MergeCompilerRegions())
    (region,) = functions_of(joined)
    assert region.backend == "taker"
    inside = [n for n in post_order(region.body) if isinstance(n, Call)]
    assert [c.op_name for c in inside] == ["dense_relu", "nn.softmax", "dense_relu", "add"]
    parted = after(kit, joined, PartitionGraph())
    (region,) = functions_of(parted)
    assert dict(region.attrs) == {
        "primitive": True,
        "name": "dense_relu_softmax_dense_etc",
        "backend": "taker",
    }
    inside = [n for n in post_order(region.body) if isinstance(n, Call)]
    assert [c.op_name for c in inside] == [
        *("nn.dense", "nn.relu", "nn.softmax", "nn.dense", "nn.relu", "add")
    ]


def test_each_step_keeps_the_values(kit: Any) -> None:
    module = network(kit)
    taker = Taker("add", patterns=[RELU])
    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal((8, 8), np.float32) for n in ("x", "w")}
    (expected,) = interpret(module, inputs).values()
    for step in (MergeComposite((taker,)), AnnotateTarget((taker,)), MergeCompilerRegions(),
                 PartitionGraph()):  # fmt: skip
        module = after(kit, module, step)
        (found,) = interpret(module, inputs).values()
        np.testing.assert_array_equal(found, expected)


def test_steps_may_be_left_out(kit: Any) -> None:
    """Without joining, each call is a region of its own; without annotations, there are none."""
    taker = Taker("add", "nn.softmax", patterns=[RELU])
    steps = placement((taker,))
    alone = after(kit, network(kit), *(s for s in steps if s.name != "MergeCompilerRegions"))
    assert len(functions_of(alone)) == 4
    none = after(kit, network(kit), *(s for s in steps if s.name != "AnnotateTarget"))
    assert functions_of(none) == []


def test_a_composite_may_go_to_another_backend_that_takes_its_operators(kit: Any) -> None:
    """The one with the pattern states that it is slow."""

    class Slow(Taker):
        def cost(self, region: Function, target: Any) -> float | None:
            return 1.0

    slow = Slow(patterns=[RELU], name="slow")
    second = Taker("nn.dense", "nn.relu", name="second")
    module = after(kit, network(kit), *placement((slow, second)))
    assert {f.backend for f in functions_of(module)} == {"second"}


# --- rules ---


def placed(kit: Any, module: Any, rule: Any, *takers: Taker) -> dict[str, list[str]]:
    """Returns the operators of each backend."""
    module = after(kit, module, *placement(takers, rule))
    found: dict[str, list[str]] = {}
    for region in functions_of(module):
        calls = [n.op_name for n in post_order(region.body) if isinstance(n, Call)]
        found.setdefault(region.backend, []).extend(calls)
    return found


def everything(name: str) -> Taker:
    return Taker("add", "nn.dense", "nn.relu", "nn.softmax", name=name)


def layer_of(module: Any, op: str) -> str:
    """Returns the layer of the first call of an operator."""
    calls = [n for n in post_order(module.main.body) if isinstance(n, Call)]
    return next(c.layers[0] for c in calls if c.op_name == op)


def test_a_function_of_a_call_decides(kit: Any) -> None:
    names = {"nn.dense": "one", "nn.softmax": "two"}
    rule = rule_of(lambda call: names.get(call.op_name))
    found = placed(kit, network(kit), rule, everything("one"), everything("two"))
    assert found == {"one": ["nn.dense", "nn.dense"], "two": ["nn.softmax"]}


def test_a_rule_keeps_a_pattern_from_matching_across_it(kit: Any) -> None:
    rule = rule_of(lambda call: "one" if call.op_name == "nn.dense" else None)
    assert placed(kit, network(kit), rule, Taker(patterns=[RELU], name="one")) == {}


def test_layers_decide(kit: Any) -> None:
    module = network(kit)
    rule = rule_of({"two": [layer_of(module, "nn.softmax")]})
    found = placed(kit, module, rule, everything("one"), everything("two"))
    assert found == {"two": ["nn.softmax"]}


def test_a_layer_that_its_backend_does_not_take_is_told(kit: Any) -> None:
    module = network(kit)
    rule = rule_of({"taker": [layer_of(module, "nn.softmax")]})
    manager = kit.PassManager(placement((Taker("add"),), rule), target=kit.tiles())
    manager.run(module)
    (unmet,) = manager.unmet
    assert unmet.code == "I354"
    assert "takes nothing of" in unmet.message
    assert "nn.softmax" in unmet.message


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("nn.softmax", "", ["nn.softmax", "nn.dense", "nn.relu", "add"]),
        ("", "nn.softmax", ["nn.dense", "nn.relu", "nn.softmax"]),
        ("nn.softmax", "nn.softmax", ["nn.softmax"]),
    ],
)
def test_between_layers(kit: Any, start: str, end: str, expected: list[str]) -> None:
    module = network(kit)
    ends = [layer_of(module, op) if op else () for op in (start, end)]
    found = placed(kit, module, between("one", *ends), everything("one"))
    assert found == {"one": expected}


@pytest.mark.parametrize(
    "place", [3, "fastest", object(), {1: 2}, {"one": 3}, {"one": [3]}, {2: "x"}, np.ones(2)]
)
def test_what_is_no_rule_is_refused(place: Any) -> None:
    with pytest.raises(InputError) as caught:
        rule_of(place)
    assert caught.value.code == "I357"


def test_a_rule_names_backends_that_there_are(kit: Any) -> None:
    with pytest.raises(InputError) as caught:
        clew.compile(network(kit), backends=["numpy"], place={"nunpy": ["*"]}, cache=False)
    assert caught.value.code == "I357"
    assert "numpy" in caught.value.hint
