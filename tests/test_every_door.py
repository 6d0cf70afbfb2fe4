"""Every way into a model, with every kind of value: each works, or refuses with a code."""

from __future__ import annotations

import io
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
import pytest

import clew
from clew.cli import app
from clew.explorer.actions.table import ACTIONS, act
from clew.explorer.contents import gather
from clew.explorer.session import Session
from clew.predict import dataset
from clew.predict.plan import plan
from clew.support.errors import ClewError, ClewWarning
from clew.trace import export

sys.path.insert(0, str(Path(__file__).parent))

import door_models

# One cell in this many runs each time; the others are exhaustive.
_DRAWN: Final = 30


# Codes of internal errors: "a bug in clew".
INTERNAL: Final = ("C080",)


@contextmanager
def coded() -> Iterator[None]:
    """A refusal with a code is an answer, unless it is the code of an internal error."""
    try:
        yield
    except ClewError as error:
        if error.code in INTERNAL:
            raise


class Visit:
    """One model, in a folder of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.case = door_models.CASES[name]
        self.feeds = self.case.feeds
        self.folder = folder
        made = self.case.model()
        self.path = folder / ("model.tflite" if isinstance(made, bytes) else "model.onnx")
        self.path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())

    def fresh(self, **options: Any) -> clew.CompiledModel:
        """The model, not run yet."""
        return clew.compile(self.path, threads=1, **options)

    @cached_property
    def ran(self) -> clew.CompiledModel:
        """The model after a run on each of the inputs, the first ones last."""
        model = self.fresh()
        for feed in (*self.feeds, self.feeds[0]):
            model.run(feed)
        return model

    @property
    def module(self) -> Any:
        return clew.load(self.path)

    @property
    def layers(self) -> list[str]:
        return list(self.ran.trace.layers)


def _same(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        _same_value(found[name], value)


def _same_value(found: Any, wanted: Any) -> None:
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            _same_value(found[key], value)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            _same_value(one, other)
    elif wanted is None:
        assert found is None
    else:
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


def _saved(visit: Visit) -> None:
    file = visit.folder / "model.clew"
    visit.ran.save(file)
    loaded = clew.load_compiled(file, threads=1)
    for feed in visit.feeds:
        _same(loaded.run(feed), visit.ran.run(feed))
    loaded.profile(visit.feeds[0], repeats=2, warmup=0, sample=False)
    loaded.time_kernels(visit.feeds[0], repeats=2)


def _saved_early(visit: Visit) -> None:
    file = visit.folder / "early.clew"
    visit.fresh().save(file)
    _same(clew.load_compiled(file).run(visit.feeds[0]), visit.ran.run(visit.feeds[0]))


def _stories(visit: Visit) -> None:
    trace = visit.ran.trace
    assert not trace.check()
    for layer in visit.layers:
        assert layer in str(trace.layer(layer))


def _stories_early(visit: Visit) -> None:
    trace = visit.fresh().trace
    for layer in trace.layers:
        str(trace.layer(layer))


def _verify(visit: Visit) -> None:
    for feed in visit.feeds:
        assert visit.ran.trace.verify(feed).ok
    again = visit.fresh()
    for feed in reversed(visit.feeds):
        assert again.trace.verify(feed).ok


def _export(visit: Visit) -> None:
    file = visit.folder / "trace.json"
    export.write_json(visit.ran.trace, file)
    read = export.read_json(file)
    assert list(read.layers) == visit.layers


def _profile(visit: Visit) -> None:
    model = visit.fresh()
    for feed in visit.feeds:
        found = model.profile(feed, repeats=2, warmup=0, sample=False, mode="both", roofline=False)
        str(found), found.to_json(), found._repr_html_()
        found.save(visit.folder / "profile.csv")
        found.save(visit.folder / "profile.json")
        found.save(visit.folder / "profile.trace.json")


def _profile_drawn(visit: Visit) -> None:
    visit.ran.profile(repeats=2, warmup=0, sample=0.01)


def _diff(visit: Visit) -> None:
    for feed in visit.feeds:
        found = clew.diff(visit.fresh(), visit.fresh(opt_level=0), feed, rounds=1)
        str(found), json.dumps(found.to_json())
    str(clew.diff(visit.ran, visit.ran))


def _diff_early(visit: Visit) -> None:
    str(clew.diff(visit.fresh(), visit.fresh(opt_level=0)))


def _bisect(visit: Visit) -> None:
    for feed in visit.feeds:
        found = clew.bisect(visit.path, feed, runs=1, seconds=1, threads=1)
        assert found.kind == "none", found


def _bisect_level(visit: Visit) -> None:
    found = clew.bisect(visit.path, visit.feeds[0], runs=1, reference="opt0", threads=1)
    assert found.kind == "none", found


def _bisect_engine(visit: Visit) -> None:
    # ONNX Runtime draws other random numbers, and gives maps as rows.
    engine = "litert" if visit.path.suffix == ".tflite" else "onnxruntime"
    found = clew.bisect(visit.path, visit.feeds[0], runs=1, reference=engine, threads=1)
    assert found.kind == "none" or visit.name in ("no inputs", "map input"), found


def _extract(visit: Visit) -> None:
    for layer in visit.layers:
        part = clew.extract(visit.path, layers=layer, inputs=visit.feeds[0], threads=1)
        str(part)
        assert part.check().passed
        for suffix in ("txt", "py", "onnx"):
            part.save(visit.folder / f"part.{suffix}")
        clew.load_part(visit.folder / "part.txt").check()


def _extract_nodes(visit: Visit) -> None:
    nodes = visit.ran.graph().document["nodes"]
    for place, node in enumerate(nodes):
        if node["op"] not in ("input", "param"):
            for chosen in ((place, place + 1), node["name"]):
                part = clew.extract(visit.ran, nodes=chosen, inputs=visit.feeds[0])
                assert part.check().passed
                part.save(visit.folder / "nodes.txt")


def _partition(visit: Visit) -> None:
    found = clew.partition(visit.path, at=visit.layers[:1], inputs=visit.feeds[0], threads=1)
    assert found.check().passed
    found.save(visit.folder / "partition")


def _quantize(visit: Visit) -> None:
    for data in ([visit.feeds[0]], visit.feeds, "drawn"):
        found = clew.quantize(visit.path, data, threads=1)
        str(found)
        found.compile(threads=1).run(visit.feeds[0])


def _place(visit: Visit) -> None:
    found = clew.place(visit.path, ["numpy"], visit.feeds[0], threads=1, seconds=0.01, tuned=None)
    str(found), found.to_json()


def _backends(visit: Visit) -> None:
    for feed in visit.feeds:
        assert visit.fresh(backends=["numpy"]).run(feed).keys() == visit.ran.run(feed).keys()


def _tune(visit: Visit) -> None:
    str(clew.tune(visit.path, minutes=0.002, trials=1, database=visit.folder / "t.db", threads=1))


def _predict(visit: Visit) -> None:
    made = plan(visit.module, threads=1)
    list(getattr(made, "rows", ()))
    asked = dataset.Wanted(models=(visit.path,), networks=0, turns=1)
    dataset.collect(visit.folder / "table.parquet", asked)


def _explore(visit: Visit) -> None:
    compiled = visit.fresh()
    compiled.run(visit.feeds[0])
    session = Session(compiled, model=visit.path.name, path=visit.path)
    session.inputs = compiled.checked([visit.feeds[0]])
    answers = gather({"1": session}, None, lambda text: None)
    json.dumps(answers)
    for name in ("errors", "profile"):
        params = {} if name == "errors" else {"seconds": 0.01, "sample": 0.01}
        act(ACTIONS[name], session, params, lambda text, done: None)
    json.dumps(gather({"1": session}, None, lambda text: None))


def _report(visit: Visit) -> None:
    visit.fresh().report(visit.folder / "report.html", profile=False, inputs=visit.feeds[0])
    visit.ran.report(visit.folder / "report.html", profile=False)


def _kernels(visit: Visit) -> None:
    visit.ran.time_kernels(visit.feeds[0], repeats=1)
    _read_kernels(visit.ran)


def _kernels_early(visit: Visit) -> None:
    _read_kernels(visit.fresh())


def _read_kernels(model: clew.CompiledModel) -> None:
    repr(model), repr(model.inputs), repr(model.outputs), repr(model.trace), model._repr_html_()
    for kernel in model.kernels:
        str(kernel), kernel._repr_html_(), str(kernel.schedule)
        _ = kernel.loops, kernel.llvm, kernel.asm


def _graph(visit: Visit) -> None:
    found = visit.ran.graph()
    json.dumps(found.document), str(found)
    found.write(visit.folder / "graph.json")
    str(visit.ran.conversions())


def _graph_early(visit: Visit) -> None:
    visit.fresh().graph()


def _session(visit: Visit) -> None:
    names = visit.ran.output_names
    for given in visit.ran.input_names:
        session = visit.ran.session({given: names[0]})
        rest = {n: v for n, v in visit.feeds[0].items() if n != given}
        session.run(rest)
        session.run(rest)


def _tap(visit: Visit) -> None:
    model = visit.fresh()
    for feed in visit.feeds:
        for layer in visit.layers:
            for options in ({}, {"force": True}, {"iterations": True}):
                with coded():
                    model.tap(layer, feed, **options)
        with coded():
            dict(model.tap("*", feed))


def _text(visit: Visit) -> None:
    module = visit.module
    found = clew.parse(str(module))
    assert str(found) == str(module)
    clew.compile(found, threads=1).run(visit.feeds[0])


def _precision(visit: Visit) -> None:
    str(clew.precision_report(visit.path, visit.feeds[0], threads=1))


def _command_line(visit: Visit) -> None:
    quick = ("--repeats", "2", "--warmup", "0", "--sample", "0", "--no-roofline")
    for command, *options in (
        ("run", "--random"),
        ("run", "--kernels", "--json"),
        ("compile", "-o", str(visit.folder / "m.clew")),
        ("trace", "--verify", "--random"),
        ("profile", "--random", *quick, "-o", str(visit.folder / "p.csv")),
        ("correlate", "--random"),
        ("tap", "--random"),
        ("tap", "--layer", "relu,exp", "--random"),
        ("extract", "--nodes", "0:1"),
        ("bisect", "--random"),
        ("diff", "--opt-level", "0", "3", "--random", "--no-time"),
    ):
        err = io.StringIO()
        with (
            redirect_stdout(io.StringIO()),
            redirect_stderr(err),
            pytest.raises(SystemExit) as left,
        ):
            app.main([command, str(visit.path), *options])
        assert left.value.code in (0, 1), (command, err.getvalue())
        assert "internal error" not in err.getvalue(), (command, err.getvalue())


DOORS: Final[Mapping[str, Callable[[Visit], None]]] = {
    "saved": _saved,
    "saved early": _saved_early,
    "stories": _stories,
    "stories early": _stories_early,
    "verify": _verify,
    "export": _export,
    "profile": _profile,
    "profile drawn": _profile_drawn,
    "diff": _diff,
    "diff early": _diff_early,
    "bisect": _bisect,
    "bisect level 0": _bisect_level,
    "bisect engine": _bisect_engine,
    "extract": _extract,
    "extract nodes": _extract_nodes,
    "partition": _partition,
    "quantize": _quantize,
    "place": _place,
    "backends": _backends,
    "tune": _tune,
    "predict": _predict,
    "explore": _explore,
    "report": _report,
    "kernels": _kernels,
    "kernels early": _kernels_early,
    "graph": _graph,
    "graph early": _graph_early,
    "session": _session,
    "tap": _tap,
    "text": _text,
    "precision": _precision,
    "command line": _command_line,
}


# Doors that work for every kind of value; others may refuse with a code.
ALWAYS: Final = {
    "saved", "stories", "verify", "export", "profile", "diff", "bisect", "bisect level 0",
    "backends", "explore", "report", "kernels", "graph", "tap",
}  # fmt: skip
# Cells that once failed.
_SURE: Final = {
    ("strings", "verify"), ("string labels, maps", "verify"), ("map input", "verify"),
    ("any rank", "verify"), ("inner rank unknown", "verify"), ("inner rank unknown", "diff"),
    ("map input", "diff"), ("deciding", "bisect"), ("optional input", "bisect"),
    ("strings", "extract"), ("deciding axes", "extract"), ("same name twice", "bisect engine"),
    ("tflite images", "verify"), ("tflite images", "extract"), ("tflite codes", "bisect engine"),
    ("tflite rows", "quantize"),
    ("listed twice", "saved"), ("optional output", "command line"),
}  # fmt: skip


def _cells() -> list[Any]:
    cells = []
    for name in door_models.CASES:
        for door in DOORS:
            rare = (name, door) not in _SURE and crc32(f"{name}/{door}".encode()) % _DRAWN
            marks = [pytest.mark.exhaustive] if rare else []
            cells.append(pytest.param(name, door, id=f"{name}-{door}", marks=marks))
    return cells


@pytest.mark.parametrize(("name", "door"), _cells())
def test_every_door(name: str, door: str, tmp_path: Path) -> None:
    visit = Visit(name, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClewWarning)
        with nullcontext() if door in ALWAYS else coded():
            DOORS[door](visit)
