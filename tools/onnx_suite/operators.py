"""Facts about each ONNX operator: versions, element types, implementation, tests, and rejections.

They come from `onnx.defs`, the converters' own source, and the ratchet file.
`tools/onnx_operators.py` writes them to where `clew ops --onnx` and the documentation read them.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import onnx
from onnx import TensorProto

import clew
from clew.frontends.onnx.contrib.schemas import (
    MICROSOFT,
    UNSUPPORTED,
    ContribSchema,
    contrib_schemas,
)
from clew.frontends.onnx.file.survey import function_body
from clew.frontends.onnx.file.tensors import dtype_of
from clew.frontends.onnx.registry import find
from onnx_suite.cases import Case, all_cases
from onnx_suite.ratchet import EXPLAINED
from onnx_suite.table import NO_TENSOR_FORM

Facts = dict[str, Any]
Operator = tuple[str, str]

_ORDER: Final = ("f32", "f64", "f16", "bf16")
# Auxiliary operators in a case, beside the operator under test.
_BESIDE: Final = frozenset({("", "Constant"), ("", "Identity")})


def facts_of_all(ratchet: Mapping[str, str]) -> list[Facts]:
    """Returns the facts of every operator of every domain, by domain and name."""
    versions: dict[Operator, list[Any]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        versions.setdefault((schema.domain, schema.name), []).append(schema)
    for own in contrib_schemas():
        versions[own.domain, own.name] = [own]
    cases = _cases_of(ratchet)
    found = [
        _facts(key, sorted(schemas, key=lambda s: s.since_version), cases.get(key, []), ratchet)
        for key, schemas in versions.items()
    ]
    found += [_unsupported(name) for name in UNSUPPORTED]
    return sorted(found, key=lambda facts: (facts["domain"], facts["name"]))


def _unsupported(name: str) -> Facts:
    """Returns the facts of an operator of ONNX Runtime's that nothing imports."""
    return {
        "name": name,
        "domain": MICROSOFT,
        "versions": [1],
        "deprecated": False,
        "support": "none",
        "by": "none",
        "why": "",
        "dtypes": [],
        "tested": [],
        "cases": 0,
        "passed": 0,
        "native": 0,
        "refuses": [],
        "failing": {},
    }


def _cases_of(ratchet: Mapping[str, str]) -> dict[Operator, list[Case]]:
    found: dict[Operator, list[Case]] = {}
    for key, case in all_cases().items():
        if key in ratchet and not case.is_expansion:
            for operator in case.operators:
                found.setdefault(operator, []).append(case)
    return found


def _facts(
    key: Operator, schemas: list[Any], cases: list[Case], ratchet: Mapping[str, str]
) -> Facts:
    domain, name = key
    newest = schemas[-1]
    full = f"{domain}.{name}" if domain else name
    how = _how(domain, newest)
    passed = [c for c in cases if ratchet[c.key].startswith("passed")]
    native = sum(ratchet[c.key] == "passed native" for c in passed)
    return {
        "name": name,
        "domain": domain,
        "versions": [s.since_version for s in schemas],
        "deprecated": bool(newest.deprecated),
        "support": "none"
        if how == "none" or _all_refused(cases, ratchet)
        else _form(key, newest, passed, ratchet),
        "by": how,
        "why": NO_TENSOR_FORM.get(full, ""),
        "dtypes": _dtypes(newest),
        "tested": _tested(passed, key),
        "cases": len(cases),
        "passed": len(passed),
        "native": native,
        "refuses": [] if how != "converter" else _refusals(domain, newest),
        "failing": {
            c.name: ratchet[c.key].removeprefix("excluded ") for c in cases if c not in passed
        },
    }


def _all_refused(cases: list[Case], ratchet: Mapping[str, str]) -> bool:
    """Whether no case of some passes, for other reasons than that what they expect is no result."""
    words = [ratchet[c.key].partition(" ") for c in cases]
    return bool(words) and all(
        w == "excluded" and why not in EXPLAINED.values() for w, _, why in words
    )


def _how(domain: str, schema: Any) -> str:
    """Returns how an operator is imported."""
    if find(domain, schema.name, schema.since_version) is not None:
        return "converter"
    if schema.deprecated:
        older = [v for v in range(schema.since_version) if find(domain, schema.name, v)]
        return "converter" if older else "none"
    if not _has_definition(schema):
        return "none"
    return "definition"


def _has_definition(schema: Any) -> bool:
    if schema.has_context_dependent_function:
        return True
    body = function_body(schema)
    if body is None:
        return False
    return all(
        _how(n.domain, onnx.defs.get_schema(n.op_type, n.domain)) != "none" for n in body.node
    )


# --- how it runs ----------------------------------------------------------------------------------


def _form(key: Operator, schema: Any, passed: list[Case], ratchet: Mapping[str, str]) -> str:
    """Returns `native`, `host` or `native and host`: of the cases that are about it, else of what
    its converter makes.
    """
    own = [c for c in passed if c.operators - _BESIDE == {key} or c.operators == {key}]
    ways = {ratchet[c.key].removeprefix("passed ") for c in own or passed}
    if not ways:
        return "host" if _makes_host_operators(key[0], schema) else "native"
    return " and ".join(sorted(ways, reverse=True))


def _makes_host_operators(domain: str, schema: Any) -> bool:
    function = find(domain, schema.name, schema.since_version)
    if function is None:
        return False
    hosts = {op.name for op in clew.all_ops() if op.host}
    return any(text in hosts for part in reachable(function) for text in _texts(part))


def reachable(function: Any) -> Iterator[Any]:
    """Yields a converter and the frontend's functions that it calls, directly or not."""
    seen: set[int] = set()
    stack = [function]
    while stack:
        found = stack.pop()
        if inspect.isclass(found):
            stack += [getattr(v, "__func__", v) for v in vars(found).values()]
            continue
        code = getattr(found, "__code__", None)
        if code is None or id(code) in seen or not _is_converters(found):
            continue
        seen.add(id(code))
        yield found
        stack += [found.__globals__[n] for n in _names(code) if n in found.__globals__]
        stack += [cell.cell_contents for cell in found.__closure__ or ()]


def _is_converters(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("clew.frontends.onnx.converters")


def _names(code: Any) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _names(constant)


def _texts(function: Any) -> Iterator[str]:
    stack = [function.__code__]
    stack_cells = [c.cell_contents for c in function.__closure__ or ()]
    yield from (c for c in stack_cells if isinstance(c, str))
    while stack:
        for constant in stack.pop().co_consts:
            if isinstance(constant, str):
                yield constant
            elif inspect.iscode(constant):
                stack.append(constant)


# --- what is refused ------------------------------------------------------------------------------


def _refusals(domain: str, schema: Any) -> list[str]:
    """Returns the forms that an operator's converter refuses as not supported."""
    function = find(domain, schema.name, schema.since_version)
    found: dict[str, None] = {}
    for part in reachable(function):
        found.update(dict.fromkeys(_refused_in(part)))
    return sorted(found)


@cache
def _refused_in(function: Any) -> tuple[str, ...]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return ()
    return tuple(
        _template(call.args[0])
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "unsupported"
        and call.args
    )


def _template(node: ast.expr) -> str:
    """Returns a message with … in place of its arguments."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values)
    return "…"


# --- element types --------------------------------------------------------------------------------


def _dtypes(schema: Any) -> list[str]:
    """Returns the types that the newest version allows its first input (else output)."""
    if isinstance(schema, ContribSchema):
        return []
    values = list(schema.inputs) or list(schema.outputs)
    return _sorted(_short(text) for text in values[0].types) if values else []


def _short(text: str) -> str:
    kind, _, inner = text.removesuffix(")").partition("(")
    if kind != "tensor":
        return {"seq": "sequences", "optional": "optionals", "map": "maps"}.get(kind, kind)
    return dtype_of(TensorProto.DataType.Value(inner.upper()), text)


def _sorted(names: Iterator[str]) -> list[str]:
    def place(name: str) -> tuple[int, int, str]:
        first = _ORDER.index(name) if name in _ORDER else len(_ORDER)
        width = re.search(r"\d+", name)
        return first, int(width[0]) if width else 0, name

    return sorted(set(names), key=place)


def _tested(passed: list[Case], key: Operator) -> list[str]:
    """Returns the element types of first inputs (else outputs) of passing cases."""
    counted: Counter[str] = Counter()
    for case in passed:
        if case.operators - _BESIDE != {key} and case.operators != {key}:
            continue
        graph = case.model.graph
        values = list(graph.input) or list(graph.output)
        type_ = values[0].type.tensor_type
        if type_.elem_type:
            counted[dtype_of(type_.elem_type, case.name)] += 1
    return _sorted(iter(counted))
