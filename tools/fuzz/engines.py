"""The engines that a case runs on: ONNX Runtime, ONNX's reference, clew's interpreter, clew."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, TensorProto
from onnx.reference import ReferenceEvaluator

import clew
from clew.frontends.onnx import load
from clew.ir.interpret import Around, interpret
from clew.ir.module import Module
from clew.runtime.guard import GuardSide
from clew.support.errors import UnsupportedError
from fuzz.case import Case, Plan
from fuzz.dtypes import Array
from fuzz.extensions import FUSIONS

Results = dict[str, Any]
Engine = Callable[[Case], Results]


class CannotRun(Exception):
    """An engine lacks a kernel, or fails by itself."""


def runs(case: Case) -> bool:
    """Whether ONNX Runtime runs a case."""
    try:
        onnx_runtime(case)
    except CannotRun:
        return False
    return True


_LATE = ("U002", "U010", "U102")
_EXOTIC = (TensorProto.BFLOAT16, *range(17, 27))


def onnx_runtime(case: Case) -> Results:
    """Returns ONNX Runtime's results, without its optimizer.

    Errors: CannotRun.
    """
    model = case.for_others()
    ends = [v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)]
    if any(t in _EXOTIC for t in ends):
        raise CannotRun("element type at its boundary")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False
    try:
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        found = session.run(None, case.feeds)
    except Exception as error:
        raise CannotRun(str(error)) from None
    return _named(model, found)


def reference(case: Case) -> Results:
    """Returns the results of ONNX's reference evaluator.

    Errors: CannotRun.
    """
    model = case.for_others()
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = ReferenceEvaluator(model).run(None, dict(case.feeds))
    except Exception as error:
        raise CannotRun(f"{type(error).__name__}: {error}") from None
    return _named(model, found)


def imported(case: Case) -> Module:
    """Returns the case's module. Where values of inputs decide shapes, with these as constants."""
    try:
        return load(case.model)
    except UnsupportedError as error:
        deciding = {n: a for n, a in case.feeds.items() if a.dtype.kind in "iu" and a.ndim <= 1}
        if error.code not in _LATE or not deciding:
            raise
        return load(case.model, constants=deciding)


def interpreted(case: Case, module: Module, around: Around | None = None) -> Results:
    """Returns the results of clew's references."""
    feeds = {name: case.feeds[name] for name in module.input_names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return interpret(module, feeds, around)


def compiled(case: Case, module: Module, **changes: Any) -> clew.CompiledModel:
    """Returns the module compiled as the case's plan says, but for `changes`. Where it could not be
    imported without values of its inputs, the model is.
    """
    options: dict[str, Any] = {**options_of(case.plan), **changes}
    whole = len(module.input_names) == len(case.feeds)
    return clew.compile(module if whole else case.model, **options)


def options_of(plan: Plan) -> dict[str, Any]:
    """Returns `clew.compile`'s arguments for a plan."""
    return {
        "opt_level": plan.opt_level,
        "threads": plan.threads,
        "precision": plan.precision,
        "diagnostics": clew.Diagnostics(guard=GuardSide(plan.guard) if plan.guard else False),
        "extend": FUSIONS if plan.fusions else (),
    }


def run(model: Any, feeds: Mapping[str, Array]) -> Results:
    """Returns a compiled model's results by name."""
    found: Results = model.run(feeds)
    return found


def _named(model: ModelProto, found: Any) -> Results:
    return dict(zip((v.name for v in model.graph.output), found, strict=True))


def quiet() -> None:
    """Keeps engines from writing to the terminal."""
    with suppress(Exception):
        ort.set_default_logger_severity(4)
    warnings.simplefilter("ignore")
