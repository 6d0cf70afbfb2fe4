"""All entries of the search: layers, kernels, operators, attributes, types, remarks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from clew.explorer.schema import Entry, Index
from clew.explorer.session import Session
from clew.ir.expr import Call, Constant, Expr
from clew.ir.types import TensorType, TupleType, Type

# The number of places listed for a value that many nodes share, such as a dtype.
_PLACES: Final = 8
_MOST_TEXT: Final = 200


def index(session: Session) -> Index:
    """Returns all entries, those nearest to the user's model first.

    A value that many nodes share is listed with the first few of them, each at the stage where it
    first appears. A layer's `detail` is its operator type, to be matched as well.
    """
    return Index(
        [
            *_layers(session),
            *_kernels(session),
            *_regions(session),
            *_stages(session),
            *_nodes(session),
        ]
    )


def _layers(session: Session) -> Iterator[Entry]:
    ops = session.operator_types
    for name in session.layers:
        yield Entry("layer", name, ops.get(name, ""), f"layer:{name}")


def _kernels(session: Session) -> Iterator[Entry]:
    for place, kernel in enumerate(session.uses):
        yield Entry("kernel", kernel.name, ", ".join(kernel.rules), f"kernel:{place}")


def _regions(session: Session) -> Iterator[Entry]:
    for place, use in enumerate(session.regions):
        yield Entry("region", use.name, use.backend, f"region:{place}")


def _stages(session: Session) -> Iterator[Entry]:
    for place, stage in enumerate(session.trace.stages):
        yield Entry("stage", stage.name, "" if stage.changed else "unchanged", f"stage:{place}")


def _nodes(session: Session) -> Iterator[Entry]:
    places: dict[tuple[str, str], list[str]] = {}
    counts: dict[tuple[str, str], int] = {}

    def note(kind: str, text: str, ref: str) -> None:
        key = kind, text[:_MOST_TEXT]
        counts[key] = counts.get(key, 0) + 1
        if counts[key] <= _PLACES:
            places.setdefault(key, []).append(ref)

    seen: set[int] = set()
    for stage, record in enumerate(session.trace.stages):
        for node in session.trace.nodes(stage).values() if record.changed else ():
            if node.id not in seen:
                seen.add(node.id)
                ref = session.ref(stage, node.id)
                for kind, text in _facts(node):
                    note(kind, text, ref)
        for remark in record.remarks:
            ref = session.remark_ref(stage, remark.node_id)
            note("remark", f"{remark.pass_name}: {remark.text}", ref)
    for (kind, text), refs in places.items():
        count = counts[kind, text]
        for n, ref in enumerate(refs, 1):
            yield Entry(kind, text, f"{n} of {count}" if count > 1 else "", ref)


def _facts(node: Any) -> Iterator[tuple[str, str]]:
    """Yields the searchable facts of a node."""
    assert isinstance(node, Expr)
    match node:
        case Call():
            yield "operator", node.title
            for name, value in node.attrs.items():
                yield "attribute", f"{name}={value}"
        case Constant(name=str() as name) if name:
            yield "parameter", name
    yield from _types(node.type)


def _types(type_: Type) -> Iterator[tuple[str, str]]:
    if isinstance(type_, TensorType):
        yield "dtype", type_.dtype
        yield "shape", str(type_)
    elif isinstance(type_, TupleType):
        for inner in type_.fields:
            yield from _types(inner)
