"""The order of the searches, from the outside in: outputs, import, stages, program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clew.backends.compile_options import CompileOptions
from clew.bisection.checks import quietly, worst
from clew.bisection.import_search import search_import
from clew.bisection.program_search import search_program
from clew.bisection.references import Reference, of_the_machine, reference_of
from clew.bisection.session import Session
from clew.bisection.stage_search import search_stage
from clew.bisection.stages import first_wrong
from clew.bisection.verdict import Verdict
from clew.build.inputs import Inputs, module_for
from clew.compiling.extensions import extensions_of
from clew.compiling.loading import loaded_or_deferred
from clew.ir.module import Module
from clew.support.exhausted import coded_exhaustion


@coded_exhaustion
def bisect(
    model: Module | str | Path,
    inputs: Any,
    *,
    reference: Any = "interpreter",
    tolerance: float | None = None,
    runs: int = 3,
    reduce: bool = True,
    seconds: float = 60.0,
    shapes: Mapping[str, Sequence[int]] | None = None,
    on_progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Verdict:
    """Returns the cause of a model's wrong result.

    `inputs` are given by name, or in order as a tuple or list. `reference` gives the correct
    result: `onnxruntime` or `torch` (the model is then a path), `opt0` (the same model at level 0),
    `interpreter` (NumPy references on the imported graph), or a `.npz` file or dictionary of
    outputs by name, optionally with values of layers by layer name. An output is wrong if it is off
    by more than `tolerance`, relative to its largest magnitude; the default depends on the
    narrowest float in the program. The program is run `runs` times, since some defects are
    intermittent. With `reduce`, the part at fault is made as small as possible in about `seconds`.
    `shapes` are the `inputs` of `clew.load`; `options` are those of `clew.compile`. A model whose
    graph depends on its inputs is that for these inputs.

    Errors: I040 and I041 (the inputs), I170, I171, I173, I174 (the reference), I176 (files of
    extensions), and those of loading, compiling and running.
    """
    how = CompileOptions.of(options)
    how = how.changed(inputs=shapes or how.inputs, extend=extensions_of(how.extend))
    load_options = how.loading
    found, how = loaded_or_deferred(model, how)
    module = module_for(found, inputs)
    inputs = Inputs(module).named_inputs(inputs)
    if not isinstance(found, Module):  # references import the file, too
        load_options["constants"] = {name: inputs[name] for name in found.deciding}
    if not isinstance(model, Module):
        load_options["inputs"] = {n: v.shape for n, v in inputs.items() if hasattr(v, "shape")}
    session = Session(module, inputs, tolerance, runs, seconds if reduce else 0.0, on_progress, how)
    with quietly():
        known = reference_of(reference, model, module, inputs, how, load_options)
        return _search(session, known)


def _search(session: Session, reference: Reference | None) -> Verdict:
    """Returns the verdict; the default reference is the interpreter."""
    if reference is None:
        reference = Reference("the interpreter", session.stages.outputs(0), of_import=False)
    wanted = reference.outputs
    session.base = replace(session.base, reference=reference.text, **_symptom(session, wanted))
    if not session.base.failed_runs:
        return session.verdict("none", "the outputs are correct")
    read = worst(wanted, session.stages.outputs(0))
    session.evidence.append(f"the graph as imported is {read:.2g} off {reference.text}")
    if read > session.tolerance:
        if reference.of_import:
            return search_import(session, reference)
        return _search_level_0(session)

    def wrong(stage: int) -> bool:
        error = worst(wanted, session.stages.outputs(stage))
        name = session.build.stages[stage].name
        session.evidence.append(f"stage {stage}, {name}, is {error:.2g} off")
        return error > session.tolerance

    parts = first_wrong(session.stages, wrong)
    if parts is not None:
        return search_stage(session, *parts)
    return search_program(session, wanted)


def _symptom(session: Session, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the largest error of the outputs and the number of wrong runs, by the names of a
    verdict's fields.
    """
    session.say("running the program")
    errors = [worst(wanted, session.first_outputs)]
    while len(errors) < session.runs:
        errors.append(worst(wanted, session.compiled.run(session.inputs)))
    failed = sum(error > session.tolerance for error in errors)
    return {"error": max(errors), "failed_runs": failed, "runs": len(errors)}


def _search_level_0(session: Session) -> Verdict:
    """Returns the fault at level 0, if level 0 is the reference."""
    session.say("bisecting level 0, which is wrong itself")
    other = Session(
        session.module,
        session.inputs,
        session.tolerance,
        session.runs,
        session.seconds,
        session.say,
        of_the_machine(session.given).changed(opt_level=0),
    )
    found = _search(other, None)
    text = f"level 0, which this is compared with, is wrong itself: {found.summary}"
    return replace(found, summary=text, evidence=(*session.evidence, *found.evidence))
