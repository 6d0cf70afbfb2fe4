"""The trace on whole models: import, the pipeline, and every promise the trace makes."""

import pytest

import zoo
from clew import frontends
from clew.build.tracing import trace_of
from clew.ir.parser import parse_module
from clew.ir.printer import printed
from clew.ir.structural import structural_equal
from clew.machine.target import target_of
from clew.passes.manager import PassManager
from clew.pipelines import pipeline
from clew.trace.export import from_document, to_document
from clew.trace.fates import FateKind
from clew.trace.trace import Trace

MODELS = ["if_branches", "loop_recurrence", "light_squeezenet"]


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> tuple[str, Trace]:
    manager = PassManager(pipeline(3), 3, target=target_of("cpu"))
    manager.run(frontends.load(str(zoo.path(request.param))))
    return request.param, trace_of(manager.stages)


def test_every_stage_prints_and_parses(model: tuple[str, Trace]) -> None:
    for stage in model[1].stages:
        form = printed(stage.module)
        again = parse_module(form.text, form.constants)
        assert printed(again).text == form.text, stage.name
        assert structural_equal(again, stage.module)


def test_nothing_is_unaccounted_for(model: tuple[str, Trace]) -> None:
    _, trace = model
    assert trace.check() == []
    fates = trace.accounted()
    assert set(fates) == set(trace.layers)
    eliminating = {FateKind.DEAD, FateKind.MERGED, FateKind.FOLDED}
    assert all(bool(f.pass_name) == (f.kind in eliminating) for f in fates.values())


def test_every_same_link_holds(model: tuple[str, Trace]) -> None:
    name, trace = model
    report = trace.verify(zoo.inputs(name), rtol=1e-4)
    assert report.ok, str(report)
    assert report.checked > 10


def test_the_export_reads_back(model: tuple[str, Trace]) -> None:
    document = to_document(model[1])
    assert to_document(from_document(document)) == document
