"""Checks a whole model before import: recursion, budgets, unsupported operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import cache
from typing import TypeAlias

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from clew.frontends.limits import over
from clew.frontends.names import display, listing
from clew.frontends.onnx.contrib.schemas import (
    MICROSOFT,
    NCHWC,
    UNSUPPORTED,
    contrib_schema,
)
from clew.frontends.onnx.file.loader import opsets
from clew.frontends.onnx.registry import find
from clew.frontends.onnx.schemas import CustomSchema, Schema
from clew.support.budgets import Budgets
from clew.support.caches import bounded_cache
from clew.support.dataclass import dataclass
from clew.support.errors import ClewError, ModelError, UnsupportedError

FunctionKey: TypeAlias = "tuple[str, str, str]"
Functions: TypeAlias = "Mapping[FunctionKey, FunctionProto]"


def own_domain(domain: str) -> str:
    """Returns a domain's name, `""` for ONNX's own."""
    return "" if domain == "ai.onnx" else domain


def function_key(node: NodeProto) -> FunctionKey:
    """Returns the key of the function that a node would call."""
    return own_domain(node.domain), node.op_type, node.overload


def functions_of(model: ModelProto) -> dict[FunctionKey, FunctionProto]:
    """Returns a model's functions.

    Errors: M010 if two have the same name.
    """
    found: dict[FunctionKey, FunctionProto] = {}
    for function in model.functions:
        key = (own_domain(function.domain), function.name, function.overload)
        if key in found:
            raise ModelError("M010", f"two functions are named {display(function.name)!r}")
        found[key] = function
    return found


def subgraphs(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """Yields a node's subgraphs, by attribute."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for n, graph in enumerate(attribute.graphs):
            yield f"{attribute.name}[{n}]", graph


def with_inner(nodes: Iterable[NodeProto]) -> list[NodeProto]:
    """Returns nodes together with those of their subgraphs."""
    found: list[NodeProto] = []
    pending = list(nodes)
    while pending:
        node = pending.pop()
        found.append(node)
        for _, graph in subgraphs(node):
            pending.extend(graph.node)
    return found


def schema_of(domain: str, op_type: str, version: int) -> Schema | None:
    """Returns the schema of an operator at an opset version, None if it has none: ONNX's schema,
    ONNX Runtime's, or an empty one for an operator with a user's converter.
    """
    schema = _standard_schema(domain, op_type, version)
    if schema is None and version > 0:
        schema = contrib_schema(domain, op_type)
    if schema is None and find(domain, op_type, version) is not None:
        return CustomSchema(domain, version)
    return schema


@bounded_cache(1 << 20)
def _standard_schema(domain: str, op_type: str, version: int) -> Schema | None:
    if not 0 < version < 1 << 31:  # larger than onnx can store a version
        return None
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


def function_body(
    schema: Schema,
) -> FunctionProto | None:
    """Returns the function body of an operator, if it does not depend on the operator's inputs."""
    if not schema.has_function:
        return None
    body: FunctionProto = FunctionProto.FromString(schema.function_body.SerializeToString())
    return body


@dataclass(frozen=True)
class Extent:
    """The size of a body after expansion: nodes, and levels of graphs and calls below it."""

    nodes: int
    levels: int


@dataclass
class Survey:
    """One pass over a model. `check` raises; a model that passes can be expanded within budget."""

    functions: Functions
    budgets: Budgets
    _extents: dict[FunctionKey, Extent] = field(default_factory=dict)
    _open: dict[FunctionKey, None] = field(default_factory=dict)
    _missing: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    _seen_bodies: set[tuple[str, str, int]] = field(default_factory=set)

    def check(self, model: ModelProto, versions: Mapping[str, int]) -> None:
        """Checks a model before import.

        Errors: M003 for functions that call themselves, M007 for nesting too deep, M009 for too
        many nodes after expansion; then one U001 for all unsupported operators, or U003 if only
        unknown domains are missing.
        """
        self._body(model.graph.node, versions, 0)
        if self._missing:
            raise self._unsupported()

    def _body(self, nodes: Iterable[NodeProto], versions: Mapping[str, int], level: int) -> Extent:
        if level > self.budgets.nesting:
            raise self._too_deep()
        count, deepest = 0, 0
        for index, node in enumerate(nodes):
            count += 1
            for _, graph in subgraphs(node):
                inner = self._body(graph.node, versions, level + 1)
                count += inner.nodes
                deepest = max(deepest, inner.levels + 1)
            key = function_key(node)
            if key in self.functions:
                inner = self._function(key, level + 1)
                count += inner.nodes
                deepest = max(deepest, inner.levels + 1)
            else:
                self._operator(node, versions, index)
            self._within_budget(count, level + deepest)
        return Extent(count, deepest)

    def _function(self, key: FunctionKey, level: int) -> Extent:
        if key in self._open:
            chain = " -> ".join(display(k[1]) for k in (*self._open, key))
            raise ModelError("M003", f"functions call each other recursively: {chain}")
        if key not in self._extents:
            self._open[key] = None
            function = self.functions[key]
            versions = opsets(function.opset_import, f"function {display(function.name)!r}")
            self._extents[key] = self._body(function.node, versions, level)
            del self._open[key]
        extent = self._extents[key]
        self._within_budget(extent.nodes, level + extent.levels)
        return extent

    def _within_budget(self, nodes: int, levels: int) -> None:
        if nodes > self.budgets.nodes:
            what = "nodes of the model once functions are expanded"
            raise over("M009", what, nodes, "nodes", self.budgets.nodes)
        if levels > self.budgets.nesting:
            raise self._too_deep()

    def _too_deep(self) -> ClewError:
        most = self.budgets.nesting
        what = "levels of nested graphs and functions"
        return over("M007", what, f"more than {most}", "nesting", most)

    # --- unsupported operators ---

    def _operator(self, node: NodeProto, versions: Mapping[str, int], index: int) -> None:
        domain = own_domain(node.domain)
        if not self._can_convert(domain, node.op_type, versions):
            layers = self._missing.setdefault((domain, node.op_type), [])
            layers.append(node.name or f"{node.op_type}_{index}")

    def _can_convert(self, domain: str, op_type: str, versions: Mapping[str, int]) -> bool:
        version = versions.get(domain)
        schema = None if version is None else schema_of(domain, op_type, version)
        if schema is None or version is None:
            return False
        if find(domain, op_type, schema.since_version) is not None:
            return True
        if schema.has_context_dependent_function:
            return True
        key = (domain, op_type, schema.since_version)
        body = function_body(schema)
        if body is None or key in self._seen_bodies:
            return body is not None
        self._seen_bodies.add(key)
        inner = {**versions, **opsets(body.opset_import, op_type)}
        return all(self._can_convert(own_domain(n.domain), n.op_type, inner) for n in body.node)

    def _unsupported(self) -> UnsupportedError:
        lines = []
        unknown = []
        for (domain, op_type), layers in sorted(self._missing.items()):
            name = display(f"{domain}.{op_type}" if domain else op_type)
            lines.append(f"{name}: {listing(layers)}")
            if domain not in _domains():
                unknown.append(domain)
        details = "\n  ".join(lines)
        if len(unknown) == len(lines):
            return UnsupportedError(
                "U003",
                f"operators of unknown domains ({listing(sorted(set(unknown)))}):\n  {details}",
                hint="supported are operators of ONNX and ONNX Runtime, and the model's functions; "
                'register_op(..., onnx="DOMAIN::NAME") adds others',
            )
        theirs = [op for domain, op in sorted(self._missing) if domain in (MICROSOFT, NCHWC)]
        known = next((op for op in theirs if op in UNSUPPORTED), None)
        if known is not None:
            return UnsupportedError(
                "U001",
                f"{len(lines)} operators are not supported:\n  {details}",
                hint=f"ONNX Runtime's tools write {known}: use the model from before that step, "
                f'or declare the operator: register_op(..., onnx="{MICROSOFT}::{known}")',
            )
        if theirs:
            return UnsupportedError(
                "U001",
                f"{len(lines)} operators are not supported:\n  {details}",
                hint=f"ONNX Runtime 1.32 has no {display(theirs[0])} either: the name is wrong, or "
                "the operator is newer",
            )
        return UnsupportedError(
            "U001",
            f"{len(lines)} operators are not supported:\n  {details}",
            hint="`clew ops --onnx` lists the supported operators",
        )


@cache
def _domains() -> frozenset[str]:
    """Returns the domains of known operators."""
    return frozenset({s.domain for s in onnx.defs.get_all_schemas()} | {MICROSOFT, NCHWC})
