"""Planted differences between two builds are found and named, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.compare.report import DiffReport
from clew.machine.target import host
from clew.support.errors import ClewError

from .conftest import Array, Network, Write

Feed = dict[str, Array]


def compiled(path: Path, **options: Any) -> clew.CompiledModel:
    return clew.compile(clew.load(path), **{"threads": 1, **options})


def compared(a: clew.CompiledModel, b: clew.CompiledModel, feed: Feed | None) -> DiffReport:
    return clew.diff(a, b, feed, time=False)


def with_kind(report: DiffReport, kind: str) -> list[str]:
    return [layer.name for layer in report.layers if kind in layer.differs]


def test_a_model_does_not_differ_from_itself(write: Write, feed: Feed) -> None:
    path = write(Network())
    one, other = compiled(path), compiled(path)
    for a, b in ((one, one), (one, other)):
        report = compared(a, b, feed)
        assert report.changed == ()
        assert report.summary.first_rise is None
        assert [x.name for x in report.layers] == [name for name, *_ in Network().nodes]
        assert {(x.how, x.confidence) for x in report.layers} == {("name", 1.0)}
        assert all(x.numerics is not None and x.numerics.between.worst == 0 for x in report.layers)
        assert "no layer differs" in str(report)


def test_a_changed_weight_shows_from_its_layer_on(write: Write, feed: Feed) -> None:
    retrained = Network()
    retrained.weights["conv2.w"] = retrained.weights["conv2.w"] * np.float32(1.01)
    a, b = (compiled(write(n), passes=clew.Passes(fuse=False)) for n in (Network(), retrained))
    report = compared(a, b, feed)
    assert with_kind(report, "weights") == ["conv2"]
    assert report.layer("conv2").differs["weights"] == "conv2.w"
    assert report.summary.first_rise == "conv2"
    assert with_kind(report, "values") == [
        "conv2",
        "relu2",
        "add",
        "conv3",
        "relu3",
        "pool",
        "flat",
        "fc",
    ]
    assert report.layer("relu1").numerics.between.worst == 0  # type: ignore[union-attr]
    # Each is compared with its own model in f32, and neither is off.
    found = report.layer("conv2").numerics
    assert found is not None
    assert found.rises
    assert found.between.worst == pytest.approx(0.01, rel=0.01)
    assert found.a is not None
    assert found.b is not None
    assert max(found.a.worst, found.b.worst) < 1e-5


def test_where_a_value_is_not_in_memory_its_follower_stands_for_it(
    write: Write, feed: Feed
) -> None:
    retrained = Network()
    retrained.weights["conv2.w"] = retrained.weights["conv2.w"] * np.float32(1.01)
    a, b = (compiled(write(n)) for n in (Network(), retrained))
    report = compared(a, b, feed)
    conv2 = report.layer("conv2")
    assert conv2.state_a is not None
    assert not conv2.state_a.in_memory
    assert conv2.numerics is not None
    assert conv2.numerics.at != "conv2"
    assert "values" not in conv2.differs  # its follower has them
    assert report.summary.first_rise == conv2.numerics.at
    assert "~" in str(report)


def test_a_renamed_layer_is_found_again(write: Write, feed: Feed) -> None:
    renamed = Network()
    renamed.rename({"conv2": "block.conv", "relu2": "block.relu"})
    report = compared(compiled(write(Network())), compiled(write(renamed)), feed)
    assert with_kind(report, "name") == ["conv2 = block.conv", "relu2 = block.relu"]
    assert report.layer("block.conv").how == "weights"
    assert report.layer("relu2").how == "structure"
    assert {k for x in report.changed for k in x.differs} == {"name"}
    assert report.summary.first_rise is None


def test_an_inserted_layer_is_named(write: Write, feed: Feed) -> None:
    longer = Network()
    longer.insert("conv2", "norm", "Sigmoid")
    report = compared(
        *(compiled(write(n), passes=clew.Passes(fuse=False)) for n in (Network(), longer)), feed
    )
    assert report.summary.only_b == ("norm",)
    assert report.summary.only_a == ()
    names = [layer.name for layer in report.layers]
    assert names[names.index("conv2") + 1] == "norm"
    assert with_kind(report, "added") == ["norm"]
    assert with_kind(report, "inputs") == ["relu2"]
    assert report.summary.first_rise == "relu2"
    back = compared(
        *(compiled(write(n), passes=clew.Passes(fuse=False)) for n in (longer, Network())), feed
    )
    assert with_kind(back, "removed") == ["norm"]


def test_a_changed_operator_and_changed_attributes(write: Write) -> None:
    changed = Network()
    name, _, reads, attrs = changed.nodes[1]
    changed.nodes[1] = (name, "Sigmoid", reads, attrs)
    changed.weights["conv3.w"] = np.ones((24, 16, 1, 1), np.float32)
    changed.weights["fc.w"] = np.ones((10, 24), np.float32)
    report = clew.diff(compiled(write(Network())), compiled(write(changed)))
    assert with_kind(report, "operator") == ["relu1"]
    assert "Relu" in report.layer("relu1").differs["operator"]
    assert "Sigmoid" in report.layer("relu1").differs["operator"]
    assert with_kind(report, "attributes") == ["conv3", "flat", "fc"]
    assert "f32[16, 16, 1, 1]" in report.layer("conv3").differs["attributes"]
    assert report.summary.time is None
    assert all(x.numerics is None for x in report.layers)


def test_a_layout_forced_by_disabling_a_pass(write: Write, feed: Feed) -> None:
    path = write(Network())
    report = compared(
        compiled(path), compiled(path, passes=clew.Passes(disabled=["AlterLayout"])), feed
    )
    layouts = with_kind(report, "layout")
    assert "relu1" in layouts
    assert report.layer("relu1").differs["layout"].endswith("→ plain")
    ran = {p.name: (p.a, p.b) for p in report.summary.passes}
    assert ran["AlterLayout"][0] is not None
    assert ran["AlterLayout"][1] is None
    assert "AlterLayout" in report.layer("conv1").differs["passes"]
    assert report.summary.a.options["disabled"] == ""
    assert report.summary.b.options["disabled"] == "AlterLayout"
    assert report.summary.first_rise is None  # another order of summation is no defect


def test_a_schedule_by_hand(write: Write, feed: Feed) -> None:
    @clew.schedule_for(op="nn.global_avg_pool2d")
    def plainly(schedule: Any, target: Any) -> None:
        """Leaves the loops as they are."""

    path = write(Network())
    report = compared(compiled(path), compiled(path, extend=[plainly]), feed)
    assert with_kind(report, "schedule") == ["pool"]
    assert report.layer("pool").differs["schedule"].endswith("→ plainly")
    assert report.summary.b.options["schedules"] == "plainly"
    assert "values" not in report.layer("pool").differs


def test_a_layer_kept_in_f32(write: Write, feed: Feed) -> None:
    if not (host().has("avx512bf16") or host().tile_shape("bf16", "bf16")):
        pytest.skip("this machine does not multiply bf16, so layers in it are not packed")
    path = write(Network())
    unfused = clew.Passes(fuse=False)
    report = compared(
        compiled(path, precision="bf16", passes=unfused),
        compiled(path, precision=clew.Precision("bf16", keep_f32=["conv2"]), passes=unfused),
        feed,
    )
    assert "conv2" in with_kind(report, "packing")
    assert "bf16" in report.layer("conv2").differs["packing"]
    assert "conv3" not in with_kind(report, "packing")
    assert report.summary.first_rise in ("relu1", "conv2", "relu2")
    errors = report.layer("conv2").numerics
    assert errors is not None
    assert errors.a is not None
    assert errors.b is not None
    assert errors.a.worst > errors.b.worst  # A is the side that is worse


def test_a_moved_fusion_boundary(write: Write, feed: Feed) -> None:
    path = write(Network())
    report = compared(compiled(path), compiled(path, passes=clew.Passes(fuse=False)), feed)
    fusion = with_kind(report, "fusion")
    assert {"conv1", "relu1", "conv3", "relu3"} <= set(fusion)
    assert "fc" not in fusion
    assert "relu1 in A only" in report.layer("conv1").differs["fusion"]
    assert report.summary.b.kernels > report.summary.a.kernels
    (group,) = [g for g in report.groups if "conv1" in g.layers]
    assert {"conv1", "relu1"} <= set(group.layers)
    assert len(group.kernels_b) > len(group.kernels_a)


def test_every_kernel_is_in_one_group(write: Write) -> None:
    path = write(Network())
    a, b = compiled(path), compiled(path, opt_level=0)
    report = clew.diff(a, b)
    for model, kernels in ((a, "kernels_a"), (b, "kernels_b")):
        grouped = [k for g in report.groups for k in getattr(g, kernels)]
        assert sorted(grouped) == sorted(k.name for k in model.kernels)
    layers = [la for g in report.groups for la in g.layers]
    assert len(layers) == len(set(layers))


def test_times_are_of_both_builds_in_turns(write: Write, feed: Feed) -> None:
    path = write(Network())
    report = clew.diff(compiled(path), compiled(path, opt_level=0), feed, numerics=False, rounds=3)
    assert report.summary.rounds == 3
    assert report.summary.time is not None
    assert min(report.summary.time.a, report.summary.time.b) > 0
    conv = report.layer("conv1").time
    assert conv is not None
    assert min(conv.a, conv.b) > 0
    assert "B / A" in str(report)


def _outer(change: Callable[[Network], None]) -> Network:
    network = Network()
    change(network)
    return network


def _other_input(network: Network) -> None:
    network.input = ("x", [1, 3, 16, 20])


def _other_output(network: Network) -> None:
    network.weights["fc.w"] = np.ones((7, 16), np.float32)
    network.output = ("fc", [1, 7])


def _two_outputs_named(network: Network) -> None:
    network.nodes[-1] = ("y", *network.nodes[-1][1:])
    network.output = ("y", [1, 10])


def test_models_that_do_not_compare(write: Write, feed: Feed, tmp_path: Path) -> None:
    a = compiled(write(Network()))
    for change, code in ((_other_input, "I160"), (_other_output, "I161")):
        b = compiled(write(_outer(change)))
        with pytest.raises(ClewError) as caught:
            clew.diff(a, b, feed, time=False)
        assert caught.value.code == code
        assert clew.diff(a, b).layers  # as far as nothing has to run
    with pytest.raises(ClewError) as caught:
        clew.diff(a, a, {"y": feed["x"]})
    assert caught.value.code == "I041"
    a.save(tmp_path / "saved.clew")
    with pytest.raises(ClewError) as caught:
        clew.diff(a, clew.load_compiled(tmp_path / "saved.clew"))  # type: ignore[arg-type]
    assert caught.value.code == "I162"
    with pytest.raises(ClewError) as caught:
        clew.diff(a, compiled(write(Network()), diagnostics=clew.Diagnostics(trace=False)))
    assert caught.value.code == "I045"
    with pytest.raises(ClewError) as caught:
        clew.diff(a, a).layer("nowhere")
    assert caught.value.code == "I164"


def test_outputs_of_other_names_compare_by_place(write: Write, feed: Feed) -> None:
    report = compared(compiled(write(Network())), compiled(write(_outer(_two_outputs_named))), feed)
    assert report.summary.error is not None
    assert report.summary.error.worst == 0


def test_sizes_that_only_the_inputs_tell(write: Write, feed: Feed) -> None:
    network = Network()
    network.input = ("x", ["n", 3, 16, 16])  # type: ignore[list-item]
    network.output = ("fc", ["n", 10])  # type: ignore[list-item]
    path = write(network)
    report = compared(compiled(path), compiled(path, opt_level=0), feed)
    assert report.summary.first_rise is None
    known = [x for x in report.layers if x.numerics is not None]
    assert len(known) == len(report.layers)


def test_the_report_as_data(write: Write, feed: Feed) -> None:
    path = write(Network())
    report = compared(compiled(path), compiled(path, precision="bf16"), feed)
    assert json.dumps(report.to_json())
    frame = report.to_pandas()
    assert list(frame["a"]) == [x.a for x in report.layers]
    assert replace(report, layers=()).to_pandas().empty
