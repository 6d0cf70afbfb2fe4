"""Which node of a case's graph is the first whose results differ."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import ModelProto, helper

from clew.support.errors import ClewError
from fuzz import engines
from fuzz.case import Case
from fuzz.compare import Condition, difference
from fuzz.engines import CannotRun


def first_differences(case: Case) -> Iterator[str]:
    """Yields, for each pair of engines that disagree, the first node whose results do."""
    whole = _with_all_outputs(case)
    try:
        module = engines.imported(whole)
        wanted = engines.interpreted(whole, module)
    except (ClewError, Exception) as error:
        yield f"with all values as outputs: {error}"
        return
    condition = Condition(lambda a: engines.interpreted(whole, module, a), case.plan.precision, 0)
    for name, engine in (("onnxruntime", engines.onnx_runtime), ("reference", engines.reference)):
        try:
            found = engine(whole)
        except CannotRun as error:
            yield f"{name} cannot run it: {str(error)[:200]}"
            continue
        yield from _first(name, whole, found, wanted, condition)
    try:
        found = engines.run(engines.compiled(whole, module), case.feeds)
    except ClewError as error:
        yield f"compiled: {error}"
        return
    yield from _first("compiled", whole, found, wanted, condition)


def _first(
    name: str, case: Case, found: engines.Results, wanted: engines.Results, condition: Condition
) -> Iterator[str]:
    for node in case.model.graph.node:
        results = {o: wanted[o] for o in node.output if o in wanted}
        differs = difference(found, results, condition)
        if differs:
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute if not a.HasField("g")}
            operands = [_described(i, case, wanted) for i in node.input]
            yield f"{name}: {node.op_type}({', '.join(operands)}) {attributes}: {differs}"
            return


def _described(name: str, case: Case, values: engines.Results) -> str:
    value = values.get(name, case.feeds.get(name))
    if value is None:
        constants = {t.name: t for t in case.model.graph.initializer}
        return f"const {constants[name].data_type}{list(constants[name].dims)}" if name in constants else name or "-"
    return f"{getattr(value, 'dtype', type(value).__name__)}{list(getattr(value, 'shape', ()))}"


def _with_all_outputs(case: Case) -> Case:
    model = ModelProto()
    model.CopyFrom(case.model)
    del model.graph.output[:]
    kept = {v.name: v for v in case.model.graph.output}
    for node in case.model.graph.node:
        for name in node.output:
            if name:
                model.graph.output.append(kept.get(name) or helper.make_empty_tensor_value_info(name))
    try:
        import onnx  # noqa: PLC0415

        whole = onnx.shape_inference.infer_shapes(model)
        types = {v.name: v for v in (*whole.graph.value_info, *whole.graph.output)}
        for value in model.graph.output:
            if value.name in types:
                value.CopyFrom(types[value.name])
    except Exception:
        pass
    return Case(model, case.feeds, case.plan, case.operators, case.seed, case.symbolic)
