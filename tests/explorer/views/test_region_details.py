"""The inside of regions: what a backend tells, joined to bounded numbers, with layers by number."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import clew
from clew.backends.backend import CompiledRegion
from clew.backends.details import DetailSlice
from clew.backends.vta.backend import Vta
from clew.backends.vta.names import Engine
from clew.explorer import schema
from clew.explorer.contents import gather, paths
from clew.explorer.routes import answer
from clew.explorer.session import Session
from clew.explorer.views.region_details import joined
from clew.ir.expr import Function
from clew.machine.target import Target
from clew.support.errors import InputError, RunError

sys.path.insert(0, str(Path(__file__).parents[2] / "backends" / "vta"))

from vta_networks import Network, module_of, operand, regions_of


def _two_convolutions() -> Any:
    net = Network(0)
    x = operand(1, 16, 8, 8)
    a = net.conv(x, 16)
    net.scale = 2.0**-3
    return module_of(x, net.conv(a, 16))


@pytest.fixture(scope="module")
def session() -> Session:
    compiled = clew.compile(_two_convolutions(), backends=[Vta()], cache=False)
    return Session(compiled, model="net", path=None)


def test_a_region_of_vta_shows_its_engines_layers_and_instructions(session: Session) -> None:
    found: schema.RegionDetails = answer(session, "details/0")
    timing = _compiled(session).timing
    assert [t.name for t in found.tracks] == ["load", "compute", "store"]
    assert sum(t.total for t in found.tracks) == len(timing.slices) == found.total_lines
    assert sum(map(sum, (t.busy for t in found.tracks))) == sum(s.cycles for s in timing.slices)
    assert f"{timing.cycles:,} cycles" in found.summary
    assert [t.title for t in found.tables] == ["Engines", "Bytes moved", "Cycles of layers"]
    gemms = [n for n, line in enumerate(found.lines) if ": gemm" in line]
    names = {tuple(found.line_layers[n]) for n in gemms}
    one, two = session.layers["layer1"], session.layers["layer2"]
    assert (one,) in names
    assert any(two in layers for layers in names)
    assert sum(found.tracks[1].waited) == timing.waits(Engine.COMPUTE).total()


def test_reports_hold_the_inside_of_described_regions(session: Session) -> None:
    assert "details/0" in list(paths(session))
    held = gather({"a": session}, None, lambda _: None)
    assert "a/details/0" in held["answers"]


def test_regions_of_the_cache_name_the_layers_of_the_build(session: Session) -> None:
    backend, region = Vta(), _compiled(session)
    record = backend.to_record(region)
    assert record is not None
    again: Any = backend.of_record(record)
    own = region.describe(region.function)
    other = again.describe(region.function)
    assert [line.layers for line in other.lines] == [line.layers for line in own.lines]
    assert ("layer1",) in {line.layers for line in other.lines}


class _Silent(Vta):
    """Its regions tell nothing."""

    def compile(self, region: Function, target: Target) -> CompiledRegion:
        compiled: Any = super().compile(region, target)
        return lambda *arrays: compiled(*arrays)

    def to_record(self, region: CompiledRegion) -> None:
        return None


def test_a_backend_that_tells_nothing_is_refused() -> None:
    compiled = clew.compile(_two_convolutions(), backends=[_Silent()], cache=False)
    other = Session(compiled, model="net", path=None)
    assert not answer(other, "overview").regions[0].described
    assert "details/0" not in list(paths(other))
    with pytest.raises(InputError) as caught:
        answer(other, "details/0")
    assert caught.value.code == "I244"
    told = str(answer(other, "story/region:0"))
    assert "provides no details of its regions" in told


def test_an_exception_of_a_backend_is_a_coded_error(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(region: Function) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(_compiled(session), "describe", fails)
    with pytest.raises(RunError, match="KeyError: 'lost'") as caught:
        answer(session, "details/0")
    assert caught.value.code == "I361"


def test_too_many_slices_are_joined_within_layers() -> None:
    slices = [
        DetailSlice(3 * n, 3 * n + 2, str(n), ("a" if n < 600 else "b",), 1, "room")
        for n in range(1000)
    ]
    pieces = joined(slices, 50)
    assert len(pieces) <= 50
    assert sum(p.count for p in pieces) == 1000
    assert sum(p.busy for p in pieces) == 2000
    assert sum(p.waits.total() for p in pieces) == 1000
    assert {p.layers for p in pieces} == {("a",), ("b",)}
    assert [p.count for p in joined(slices, 1000)] == [1] * 1000


def test_slices_of_alternating_layers_are_bounded_as_well() -> None:
    slices = [DetailSlice(n, n + 1, str(n), (f"layer{n % 2}",)) for n in range(500)]
    pieces = joined(slices, 20)
    assert len(pieces) <= 20
    assert sum(p.count for p in pieces) == 500
    assert pieces[0].layers == ("layer0", "layer1")


def _compiled(session: Session) -> Any:
    (region,) = regions_of(session.compiled)
    return region
