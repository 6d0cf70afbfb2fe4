"""The cost table: records, files that keep it, and that no other room holds such figures."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

import clew
from clew.machine.costs import DEFAULTS, Costs
from clew.machine.figures import figures_of
from clew.machine.kept import costs_file, forget, is_kept, keep, kept_costs
from clew.machine.measure import measured_costs
from clew.machine.target import Target, describe_host, host, target_of
from clew.support.errors import ClewWarning, InputError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with monkeypatch.context() as patched:
        patched.setenv("CLEW_CACHE_DIR", str(tmp_path / "cache"))
        host.cache_clear()
        yield tmp_path / "cache"
    host.cache_clear()  # with the variable as it was: no other thread may fill it in between


@pytest.mark.parametrize("name", [f.name for f in fields(Costs)])
def test_each_figure_is_part_of_the_key(name: str) -> None:
    target = target_of("cpu-avx512")
    other = replace(target, costs=replace(DEFAULTS, **{name: 3.25}))
    assert other.key != target.key
    assert other.identity == target.identity  # it is the same machine all the same
    assert Target.of_record(json.loads(json.dumps(other.to_record()))) == other


def test_figures_say_what_they_are() -> None:
    assert [f.name for f in figures_of(Costs)] == [f.name for f in fields(Costs)]
    assert all(f.unit and f.meaning and f.default > 0 for f in figures_of(Costs))


@pytest.mark.parametrize(
    "record", [{"speed": 1.0}, {"ghz": 0}, {"ghz": -1.0}, {"ghz": "4"}, {"ghz": float("nan")},
               {"ghz": True}, {"move": float("inf")}]
)  # fmt: skip
def test_what_is_no_cost_is_refused(record: dict[str, object]) -> None:
    with pytest.raises(InputError) as raised:
        Costs.of_record(record)
    assert raised.value.code == "I290"


def test_measured_costs_are_those_of_this_machine(folder: Path) -> None:
    here = describe_host()
    assert not is_kept(here.identity)
    assert host() == here
    costs = replace(DEFAULTS, ghz=2.5)
    assert keep(here.identity, costs) == folder / "machine.json"
    keep("another", replace(DEFAULTS, ghz=1.0))
    host.cache_clear()
    assert host() == replace(here, costs=costs)
    assert target_of("cpu-avx2").costs == DEFAULTS
    assert forget(here.identity)
    assert not forget(here.identity)
    assert kept_costs("another").ghz == 1.0
    host.cache_clear()
    assert host() == here


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"%s": [1]}', '{"%s": {"ghz": -1}}', "\x00"])
def test_a_damaged_file_is_a_warning(folder: Path, text: str) -> None:
    folder.mkdir()
    identity = describe_host().identity
    costs_file().write_text(text.replace("%s", identity))
    with pytest.warns(ClewWarning, match="I292"):
        assert kept_costs(identity) == DEFAULTS


def test_a_folder_that_cannot_be_written_is_an_error(folder: Path) -> None:
    folder.write_text("a file")
    with pytest.raises(InputError) as raised:
        keep("x", DEFAULTS)
    assert raised.value.code == "I291"


def test_what_is_measured_is_plausible() -> None:
    found = measured_costs()
    assert 0.5 < found.ghz < 10
    assert 0.4 < found.multiply_adds < 5
    assert 1.5 < found.multiply_add_latency < 20
    assert 0.3 < found.division < 60
    assert 0.1 < found.move < 100
    assert 0.1 < found.weight_bytes < 200
    unprobed = [f.name for f in figures_of(Costs) if not f.probed]
    assert all(getattr(found, name) == getattr(DEFAULTS, name) for name in unprobed)


_FIGURE = re.compile(r"CYCLES?\b|_CYCLE_|A_CYCLE|LATENCY|GHZ|_NS_PER|PER_BYTE|PER_CYCLE")


def test_what_work_costs_is_written_in_one_room() -> None:
    source = Path(clew.__file__).parent
    found = []
    for file in sorted(source.rglob("*.py")):
        if source / "machine" in file.parents:
            continue
        for node in ast.parse(file.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else ()
            targets = (node.target,) if isinstance(node, ast.AnnAssign) else targets
            names = [t.id for t in targets if isinstance(t, ast.Name)]
            if any(_FIGURE.search(name) for name in names):
                found.append(f"{file.relative_to(source)}:{node.lineno}: {names}")
    assert not found
