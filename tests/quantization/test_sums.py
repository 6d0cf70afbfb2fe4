"""Sums of integers: which operands are rounded, and that integers alone compute the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from reference import convolved
from small_models import drawn, model, node, residual

import clew
import zoo
from clew.ir.expr import Call
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.visit import post_order
from clew.quantization import Quantized, Recipe, Rule, Scheme, Where
from clew.quantization.apply import conversions
from clew.support.errors import ClewError
from clew.tap.capture import giving

Array = NDArray[Any]
NET = clew.load(residual())
DATA = drawn(12, 3, 16, 16)
NEW = drawn(1, 3, 16, 16, seed=77)
SHIFTING = Scheme.shifting()
ROUNDINGS: Sequence[Callable[[Array], Array]] = (
    np.rint,
    lambda x: np.floor(x + 0.5),
    lambda x: np.ceil(x - 0.5),
)


@cache
def quantized(**fields: Any) -> Quantized:
    return clew.quantize(NET, DATA, scheme=Scheme.shifting(**fields), threads=1)


def rounded(q: Quantized) -> dict[str, str]:
    """Returns the conversions that additions and pools read, by reader and operand."""
    products = {p.site.call.id for p in q.parameters}
    return {
        f"{c.reader.span.layers[0]}[{[a.id for a in c.reader.args].index(c.value.id)}]": c.name
        for c in conversions(q.original, q.parameters, q.addends)
        if c.reader.id not in products
    }


def run(module: Module, feed: Any) -> list[Array]:
    """Returns the outputs that the interpreter computes."""
    return [np.asarray(v) for v in interpret(module, feed).values()]


def codes(module: Module, feed: Any) -> dict[str, Array]:
    """Returns the integers of each conversion of a value that calls bring, by its layer."""
    calls = [
        c for c in post_order(module.main.body) if isinstance(c, Call) and c.op_name == "quantize"
    ]
    found = run(giving(module, calls), feed)
    return {c.span.layers[0]: np.asarray(v) for c, v in zip(calls, found, strict=True)}


def test_one_operand_of_a_sum_is_rounded() -> None:
    q = quantized()
    assert rounded(q) == {
        "one.sum[1]": "quantize(pool)",
        "two.sum[0]": "quantize(two.b)",
        "pool[0]": "quantize(stem.act)",
        "mean[0]": "quantize(two.out)",
    }
    grids = {p.site.name: p.grid for p in q.parameters}
    addends = {a.sum.name: a for a in q.addends}
    assert addends["one.sum"].grid == grids["one.a"]
    assert {n: a.product.name for n, a in addends.items()} == {
        "one.sum": "one.b",
        "two.sum": "down",
        "mean": "down",
    }
    text = str(q.module)
    assert sum("= quantize(" in line and "(pool)" in line for line in text.splitlines()) == 1
    assert not rounded(quantized(sums="float"))


def test_a_branch_has_the_grid_of_its_own_range() -> None:
    q = clew.quantize(NET, DATA, scheme=Scheme.shifting(range="minmax"), threads=1)
    (branch,) = [a for a in q.addends if a.sum.name == "two.sum"]
    assert branch.grid is not None
    values = [np.asarray(run(giving(NET, [branch_of(NET)]), {"image": x[None]})[0]) for x in DATA]
    largest = max(float(np.abs(v).max()) for v in values)
    assert branch.grid.scale == 2.0 ** np.ceil(np.log2(largest / 127))
    (row,) = [r for r in q.sums if r.layer == "two.sum"]
    assert (row.value, row.dtypes, row.scale, row.zero) == ("two.b", "i8", branch.grid.scale, 0)
    assert max(-float(row.low or 0), float(row.high or 0)) == pytest.approx(largest, rel=1e-5)


def branch_of(module: Module) -> Call:
    """Returns the result of `two.b`, with its bias."""
    calls = [c for c in post_order(module.main.body) if isinstance(c, Call)]
    return [c for c in calls if "two.b" in c.span.layers][-1]


def test_the_error_is_that_of_the_module() -> None:
    q = quantized()
    exact = np.concatenate([run(q.original, {"image": x[None]})[0] for x in DATA])
    found = np.concatenate([run(q.module, {"image": x[None]})[0] for x in DATA])
    error = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    assert q.error == pytest.approx(float(error), rel=1e-3)
    plain = quantized(sums="float").error
    assert plain is not None
    assert q.error != plain
    assert q.error < 2 * plain < 0.2


@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_onnx_runtime_computes_the_same_integers(granularity: str, tmp_path: Path) -> None:
    q = quantized(granularity=granularity)
    path = tmp_path / "int8.onnx"
    q.save(path, source=residual())
    written = onnx.load(path)
    names = [o for n in written.graph.node if n.op_type == "QuantizeLinear" for o in n.output]
    for name in names:
        written.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(written.SerializeToString(), options)
    scores, *integers = session.run(None, {"image": NEW})
    read = clew.load(path)
    own = codes(read, {"image": NEW})
    assert sorted(own) == sorted(names)
    for name, expected in zip(names, integers, strict=True):
        np.testing.assert_array_equal(own[name], expected, err_msg=name)
        assert len(np.unique(expected)) > 8
    for module in (q.module, read):
        np.testing.assert_array_equal(run(module, {"image": NEW})[0], scores)
        (compiled,) = clew.compile(module, threads=1).run({"image": NEW}).values()
        np.testing.assert_array_equal(compiled, scores)


def test_integers_that_are_shifted_give_the_same(tmp_path: Path) -> None:
    """A residual block in integers, as hardware computes it, whatever it does with ties."""
    q = quantized()
    p = {p.site.name: p for p in q.parameters}
    block, following = p["one.b"], p["two.a"]
    addend = next(a for a in q.addends if a.sum.name == "one.sum")
    assert block.grid is not None
    assert following.grid is not None
    assert addend.grid is not None
    assert block.bias_integers is not None
    quarter = block.bias_scales.item()
    shift = np.log2(following.grid.scale / quarter)
    up = np.log2(addend.grid.scale / quarter)
    assert shift == int(shift) > 2
    assert up == int(up) >= 2
    ties = 0
    for seed in range(20):
        own = codes(q.module, {"image": drawn(1, 3, 16, 16, seed=seed)})
        inputs, skip = own["quantize(one.act)"], own["quantize(pool)"].astype(np.int64)
        sums = convolved(inputs.astype(np.int64), block.weight.astype(np.int64), 1, 1, 1)
        sums = np.moveaxis(sums, -1, 1) << 2
        total = sums + block.bias_integers.reshape(-1, 1, 1) + (skip << int(up))
        for rounding in ROUNDINGS:
            found = np.clip(rounding(np.maximum(total, 0) / 2.0**shift), -128, 127)
            np.testing.assert_array_equal(found, own["quantize(one.out)"])
        without = np.maximum(total - 1, 0) / 2.0**shift
        ties += int((np.abs(without % 1) == 0.5).sum())
    assert ties, "without the quarter of a step, there are ties"


def test_recipes_have_sums(tmp_path: Path) -> None:
    q = quantized()
    q.recipe.save(tmp_path / "recipe.json")
    again = clew.quantize(NET, recipe=tmp_path / "recipe.json")
    assert str(again.module) == str(q.module)
    assert again.recipe == q.recipe
    assert [(r.layer, r.value, r.scale, r.error) for r in again.sums] == [
        (r.layer, r.value, r.scale, r.error) for r in q.sums
    ]
    data = json.loads(str(q.recipe))
    data["sums"][1]["scale"] *= 2
    other = clew.quantize(NET, recipe=Recipe.of_json(data))
    assert other.addends[1].grid.scale == 2 * q.addends[1].grid.scale
    kept = clew.quantize(NET, recipe=q.recipe, keep="one.b")
    assert "one.sum[1]" not in rounded(kept)
    assert rounded(kept)["two.sum[0]"] == "quantize(two.b)"


WRONG: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "an unknown addition": ("I399", lambda d: d["sums"][0].update(layer="heat")),
    "an unknown operand": ("I399", lambda d: d["sums"][0].update(value="heat")),
    "an unknown product": ("I399", lambda d: d["sums"][0].update(product="heat")),
    "a sum without numbers": ("I399", lambda d: d["sums"].pop()),
    "a scale of 0": ("I398", lambda d: d["sums"][0].update(scale=0.0)),
    "a dtype of floats": ("I398", lambda d: d["sums"][0].update(dtype="f32")),
    "no product": ("I398", lambda d: d["sums"][0].pop("product")),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_recipes(case: str) -> None:
    code, change = WRONG[case]
    data = json.loads(str(quantized().recipe))
    change(data)
    with pytest.raises(ClewError) as error:
        clew.quantize(NET, recipe=Recipe.of_json(data))
    assert error.value.code == code, error.value


def test_a_layer_in_floats_is_added_as_integers() -> None:
    """If the last convolution of a sum stays in floats, its result is rounded for the other."""
    q = clew.quantize(NET, DATA, scheme=SHIFTING, keep=["down", "one.b"], threads=1)
    assert rounded(q)["two.sum[1]"] == "quantize(down)"
    assert {k for k in rounded(q) if k.startswith("one")} == {"one.sum[0]", "one.sum[1]"}
    every = clew.quantize(NET, DATA, scheme=SHIFTING, keep=["one.*", "two.*", "down"], threads=1)
    assert not rounded(every)


@pytest.mark.parametrize("rule", [{"keep": True}, {"changes": {"sums": "float"}}])
def test_rules_leave_a_sum_in_floats(rule: dict[str, Any]) -> None:
    rules = [Rule(Where(layers=("two.sum",)), **rule)]
    q = clew.quantize(NET, DATA, scheme=SHIFTING, rules=rules, threads=1)
    assert {a.sum.name for a in q.addends} == {"one.sum", "mean"}
    again = clew.quantize(NET, recipe=quantized().recipe, rules=rules)
    assert rounded(again) == rounded(q)
    assert [a.grid for a in again.addends] == [a.grid for a in q.addends]


def test_a_pool_that_floats_read_is_not_rounded() -> None:
    q = clew.quantize(NET, DATA, scheme=SHIFTING, keep="one.a", threads=1)
    assert "pool[0]" not in rounded(q)
    assert rounded(q)["one.sum[1]"] == "quantize(pool)"


@pytest.mark.parametrize("rule", [{"keep": True}, {"changes": {"sums": "float"}}])
def test_rules_leave_an_average_in_floats(rule: dict[str, Any]) -> None:
    rules = [Rule(Where(layers=("mean",)), **rule)]
    q = clew.quantize(NET, DATA, scheme=SHIFTING, rules=rules, threads=1)
    assert [a.sum.name for a in q.addends] == ["one.sum", "two.sum"]
    again = clew.quantize(NET, recipe=quantized().recipe, rules=rules)
    assert rounded(again) == rounded(q)


def averaged(node_: Any, *, others: Sequence[Any] = (), keep: Sequence[str] = ()) -> set[str]:
    """Returns what the average `mean` of a convolution and ReLU reads."""
    nodes = [
        node("Conv", ["x", "a"], ["p"], name="conv"),
        node("Relu", ["p"], ["r"], name="act"),
        node_,
        *others,
        node("Flatten", ["m"], ["f"], name="flat"),
        node("Gemm", ["f", "w"], ["y"], name="head"),
    ]
    sizes = {"AveragePool": 6 * 16}
    weight = drawn(sizes.get(node_.op_type, 6), 5, scale=0.2)
    outputs = {"y": [1, 5], **{o: [1, 6, 8, 8] for n in others for o in n.output}}
    constants = {"a": drawn(6, 3, 1, 1), "w": weight}
    network = model(nodes, {"x": [1, 3, 8, 8]}, outputs, constants)
    q = clew.quantize(network, drawn(4, 3, 8, 8), scheme=SHIFTING, keep=keep, threads=1)
    return {name for reader, name in rounded(q).items() if reader.startswith("mean")}


AVERAGES = [
    node("GlobalAveragePool", ["r"], ["m"], name="mean"),
    node("ReduceMean", ["r"], ["m"], name="mean", axes=[2, 3]),
    node("AveragePool", ["r"], ["m"], name="mean", kernel_shape=[2, 2], strides=[2, 2]),
]


@pytest.mark.parametrize("average", AVERAGES, ids=lambda n: str(n.op_type))
def test_averages_of_quantized_layers_are_rounded(average: Any) -> None:
    assert averaged(average) == {"quantize(act)"}
    assert not averaged(average, keep=["conv"])
    other = node("Sigmoid", ["r"], ["z"], name="other")
    assert not averaged(average, others=[other])  # its result is needed in floats as well


def test_a_largest_value_is_no_average() -> None:
    assert not averaged(node("GlobalMaxPool", ["r"], ["m"], name="mean"), keep=["head"])


def test_searches_round_sums() -> None:
    whole = quantized().error
    assert whole is not None
    q = clew.quantize(NET, DATA, scheme=SHIFTING, max_error=whole / 2, threads=1)
    assert q.floats is not None
    assert q.floats.layers
    assert q.floats.whole == pytest.approx(whole, rel=1e-3)
    exact = np.concatenate([run(q.original, {"image": x[None]})[0] for x in DATA])
    found = np.concatenate([run(q.module, {"image": x[None]})[0] for x in DATA])
    error = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
    assert q.floats.figure == pytest.approx(error, rel=1e-3)
    again = clew.quantize(NET, recipe=q.recipe)
    assert str(again.module) == str(q.module)


def test_free_scales_and_migration() -> None:
    """A value whose channels are divided by numbers is no operand of a sum."""
    q = clew.quantize(NET, DATA, scheme=Scheme(sums="integer"), threads=1)
    by_value = {p.site.data.id: p for p in q.parameters}
    for a in q.addends:
        reader = by_value.get(a.value.id)
        if reader is not None and reader.numbers is None:
            assert a.grid == reader.grid
    assert [a.sum.name for a in q.addends] == ["one.sum", "two.sum", "mean"]
    assert q.error is not None
    assert q.error < 0.1


def test_notes_and_the_table_name_sums() -> None:
    q = quantized()
    assert "two.sum" in str(q)
    assert [r["layer"] for r in q.to_json()["sums"]] == ["one.sum", "two.sum", "mean"]
    notes = [n.text for n in q._notes() if n.layer == "two.sum"]
    assert len(notes) == 1
    assert "its operand two.b is i8 with scale" in notes[0]
    assert "it is added to the sums of down" in notes[0]
    (note,) = [n.text for n in q._notes() if n.layer == "mean"]
    assert "its operand two.out is i8 with scale" in note
    assert "added" not in note


def test_times_count_conversions_of_sums() -> None:
    timed = quantized().timed()
    assert timed.timing is not None
    assert [t.layer for t in timed.timing.layers] == [p.site.name for p in timed.parameters]
    assert all(t.quantized_us > 0 for t in timed.timing.layers)
    assert "two.sum" in str(timed)


def test_concatenations_are_as_they_were() -> None:
    constants = {"a": drawn(4, 3, 3, 3, scale=0.2), "b": drawn(4, 3, 1, 1), "c": drawn(6, 8, 1, 1)}
    nodes = [
        node("Conv", ["x", "a"], ["p"], name="left", pads=[1, 1, 1, 1]),
        node("Conv", ["x", "b"], ["q"], name="right"),
        node("Concat", ["p", "q"], ["j"], name="join", axis=1),
        node("Conv", ["j", "c"], ["y"], name="last"),
    ]
    network = model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 6, 8, 8]}, constants)
    data = drawn(4, 3, 8, 8)
    found = [
        clew.quantize(network, data, scheme=Scheme.shifting(sums=sums), threads=1)
        for sums in ("float", "integer")
    ]
    assert str(found[0].module) == str(found[1].module)
    assert not found[1].sums


def test_sums_of_several_operands_have_no_node(tmp_path: Path) -> None:
    constants = {"a": drawn(3, 3, 1, 1), "b": drawn(3, 3, 1, 1, seed=1)}
    nodes = [
        node("Conv", ["x", "a"], ["p"], name="left"),
        node("Conv", ["x", "b"], ["q"], name="right"),
        node("Sum", ["p", "q", "x"], ["y"], name="all"),
    ]
    network = model(nodes, {"x": [1, 3, 4, 4]}, {"y": [1, 3, 4, 4]}, constants)
    q = clew.quantize(network, drawn(4, 3, 4, 4), scheme=SHIFTING, threads=1)
    assert {a.sum.name for a in q.addends} == {"all#1", "all#2"}
    with pytest.raises(ClewError) as error:
        q.save(tmp_path / "int8.onnx")
    assert (error.value.code, error.value.layer) == ("I396", "all")


@pytest.mark.parametrize(
    "name", ["resnet_tiny", pytest.param("resnet18", marks=pytest.mark.exhaustive)]
)
def test_residual_networks_of_the_zoo(name: str) -> None:
    feeds = [zoo.inputs(name, seed=n) for n in range(2)]
    errors = []
    for sums in ("float", "integer"):
        scheme = Scheme.shifting(sums=sums)
        q = clew.quantize(zoo.path(name), feeds, scheme=scheme, threads=1)
        assert q.error is not None
        errors.append(q.error)
    without, found = errors
    assert 0 < found < 2 * without < 0.1
