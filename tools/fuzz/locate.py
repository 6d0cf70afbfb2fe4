"""Which node of a case's graph is the first whose results differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper, numpy_helper

from clew.ir.module import Module
from clew.support.errors import ClewError
from fuzz import engines
from fuzz.case import Case, Plan, model_of
from fuzz.compare import Condition, difference
from fuzz.engines import CannotRun, Results

_OLDEST: Final = 7
"""The oldest opset that ONNX Runtime takes."""


@dataclass(frozen=True)
class Site:
    """A node of the main graph and what it was given: None for operands that are left out."""

    node: NodeProto
    operands: tuple[Any, ...]
    results: Mapping[str, Any]
    opset: int
    what: str

    def attribute(self, name: str, default: Any = None) -> Any:
        """Returns an attribute's value."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                return helper.get_attribute_value(attribute)
        return default

    @property
    def attributes(self) -> set[str]:
        """Names of the attributes that are given."""
        return {a.name for a in self.node.attribute}

    @property
    def dtype(self) -> Any:
        """The first operand's dtype, None if it is not an array."""
        return getattr(self.operands[0], "dtype", None) if self.operands else None

    @property
    def nodes(self) -> Iterator[NodeProto]:
        """The node and all in its bodies."""
        stack = [self.node]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(n for a in node.attribute if a.HasField("g") for n in a.g.node)

    def in_f32(self) -> Site:
        """Returns the same with its tensors of f64 in f32."""
        operands = tuple(map(_narrowed, self.operands))
        return replace(
            self, operands=operands, results={k: _narrowed(v) for k, v in self.results.items()}
        )

    def is_a(self, *ops: str) -> bool:
        """Whether the node is of one of these operators."""
        return self.node.op_type in ops

    def __str__(self) -> str:
        attributes = {
            a.name: helper.get_attribute_value(a)
            for a in self.node.attribute
            if not a.HasField("g")
        }
        operands = ", ".join(_described(v) for v in self.operands)
        return f"{self.node.op_type}({operands}) {attributes}: {self.what}"


class Whole:
    """A case with all values of its main graph as outputs, and what clew's references say of them.

    Made when it is first asked; `condition` is then there for the case's own outputs, too.
    """

    def __init__(self, case: Case, precision: str = "f32", loose: bool = True) -> None:
        self.condition = Condition(self._evaluated, precision, case.seed or 0, loose)
        self._case = case
        self._found: dict[str, Results] = {}

    @cached_property
    def case(self) -> Case:
        """The case with all outputs; the case itself where this cannot be imported."""
        return self._made[0]

    @property
    def module(self) -> Module:
        """That case, imported."""
        return self._made[1]

    @cached_property
    def wanted(self) -> Results:
        """The results of clew's references."""
        return engines.interpreted(self.case, self.module)

    @cached_property
    def _made(self) -> tuple[Case, Module]:
        whole = _with_all_outputs(self._case)
        try:
            module = engines.imported(whole)
            engines.interpreted(whole, module)
            return whole, module
        except (ClewError, AssertionError):
            return self._case, engines.imported(self._case)

    def _evaluated(self, around: Any) -> Results:
        return engines.interpreted(self.case, self.module, around)

    def differs(self, engine: Callable[[Case], Results], few: bool = False) -> Site | None:
        """Returns the first node whose results are not what clew's references say, by an engine's
        own account; None where there is none, or the engine cannot run all of it.
        """
        if self.case is self._case:
            return None
        name = engine.__name__
        try:
            if name not in self._found:
                try:
                    self._found[name] = engine(self.case)
                except CannotRun:  # values of a type that it keeps inside only, for one
                    self._found[name] = engine(self._case)
            return _first(self.case, self._found[name], self.wanted, self.condition, few)
        except (ClewError, CannotRun, AssertionError):
            return None


def compiled(case: Case) -> Results:
    """The engine that is clew, as the case's plan compiles it."""
    return engines.run(engines.compiled(case, engines.imported(case)), case.feeds)


def first_differences(case: Case) -> Iterator[str]:
    """Yields, for each engine that disagrees, the first node whose results do."""
    for engine in (engines.onnx_runtime, engines.reference, compiled):
        ours = engine is compiled
        whole = Whole(case, case.plan.precision if ours else "f32", not ours)
        site = whole.differs(engine)
        if site is not None:
            yield f"{engine.__name__}: {site}"


def _first(
    case: Case, found: Results, wanted: Results, condition: Condition, few: bool
) -> Site | None:
    constants = {t.name: t for t in case.model.graph.initializer}
    opset = next(o.version for o in case.model.opset_import if not o.domain)

    def value(name: str) -> Any:
        if name in constants:
            return numpy_helper.to_array(constants[name])
        return wanted.get(name, case.feeds.get(name))

    for node in case.model.graph.node:
        results = {o: wanted[o] for o in node.output if o in wanted and o in found}
        differs = difference(found, results, condition, few)
        if differs:
            operands = tuple(value(i) for i in node.input)
            return Site(node, operands, results, opset, str(differs))
    return None


def case_at(site: Site) -> Case | None:
    """Returns the case of a node by itself; None where some operand is no tensor of numbers."""
    feeds = {n: v for n, v in zip(site.node.input, site.operands, strict=True) if n}
    if not all(isinstance(v, np.ndarray) and v.dtype.isbuiltin == 1 for v in feeds.values()):
        return None
    inner = any(a.HasField("g") for a in site.node.attribute)
    if inner or site.node.domain or any(v.dtype == object for v in feeds.values()):
        return None
    node = NodeProto()
    node.CopyFrom(site.node)
    for n, name in enumerate(node.output):
        if name not in site.results:
            node.output[n] = ""
    since = onnx.defs.get_schema(node.op_type, site.opset).since_version
    model = model_of([node], feeds, list(site.results), max(since, _OLDEST))
    with suppress(Exception):
        inferred = onnx.shape_inference.infer_shapes(model)
        model.graph.ClearField("output")
        model.graph.output.extend(inferred.graph.output)
    for value in model.graph.output:
        kind = helper.np_dtype_to_tensor_dtype(np.asarray(site.results[value.name]).dtype)
        value.type.tensor_type.elem_type = kind
    return Case(model, feeds, Plan())


def _narrowed(value: Any) -> Any:
    wide = isinstance(value, np.ndarray) and value.dtype == np.float64
    with np.errstate(over="ignore"):
        return value.astype(np.float32) if wide else value


def _described(value: Any) -> str:
    if value is None:
        return "-"
    if getattr(value, "size", 9) <= 4 and hasattr(value, "tolist"):
        return f"{value.dtype}{list(value.shape)} {value.tolist()}"
    return f"{getattr(value, 'dtype', type(value).__name__)}{list(getattr(value, 'shape', ()))}"


def _with_all_outputs(case: Case) -> Case:
    model = ModelProto()
    model.CopyFrom(case.model)
    del model.graph.output[:]
    kept = {v.name: v for v in case.model.graph.output}
    for node in case.model.graph.node:
        for name in node.output:
            if name:
                model.graph.output.append(
                    kept.get(name) or helper.make_empty_tensor_value_info(name)
                )
    with suppress(Exception):  # what cannot be inferred stays without a type
        whole = onnx.shape_inference.infer_shapes(model)
        types = {v.name: v for v in (*whole.graph.value_info, *whole.graph.output)}
        for value in model.graph.output:
            if value.name in types:
                value.CopyFrom(types[value.name])
    return Case(model, case.feeds, case.plan, case.operators, case.seed, case.symbolic)
