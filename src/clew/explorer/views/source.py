"""The model pane: layers as in the model's file, and the edges between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final

from clew.compare.layers import layers_of
from clew.explorer.schema import ModelEdge, Source
from clew.explorer.session import Session
from clew.frontends.listing import Body, Line, Listing, Value
from clew.frontends.names import display

NOWHERE: Final = -1
CODE: Final = "# "
"""The start of a line of the user's code, which belongs to the first layer that it calls."""


def source(session: Session) -> Source:
    """Returns the model as in its file; or as it was imported, if clew does not list its file, or
    the file has changed.

    Each layer has one line, `name = Operator(inputs) attributes → outputs`, with the layers that it
    contains indented below it.
    """
    listing = session.listing
    writer = _Writer(session)
    if listing is not None:
        writer.model(listing)
    else:
        writer.imported()
    return Source("\n".join(writer.lines) + "\n", writer.layers, list(writer.edges))


@dataclass
class _Scope:
    """The producers of the values that a graph's names stand for: places of layers, or `NOWHERE`.

    `inputs` maps names in a loop's body to the model inputs that they stand for.
    """

    makers: dict[str, int]
    outer: _Scope | None = None
    inputs: dict[str, str] = field(default_factory=dict)

    def maker(self, name: str) -> int | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.makers:
                return scope.makers[name]
            scope = scope.outer
        return None

    def called(self, name: str) -> str:
        """Returns the name of the model input that a name stands for, else the name itself."""
        scope: _Scope | None = self
        while scope is not None and name not in scope.makers:
            scope = scope.outer
        return name if scope is None else scope.inputs.get(name, name)


@dataclass
class _Writer:
    """Lines of text with the layers that they are about, and edges between layers."""

    session: Session
    lines: list[str] = field(default_factory=list)
    layers: list[int] = field(default_factory=list)
    edges: dict[ModelEdge, None] = field(default_factory=dict)

    def add(self, depth: int, text: str, layer: int = NOWHERE) -> None:
        """Adds a line."""
        self.lines.append("  " * depth + text)
        self.layers.append(layer)

    def edge(self, source: int | None, target: int, value: str) -> None:
        """Adds an edge between two layers, unless the value is a parameter."""
        if source is not None and not source == target == NOWHERE:
            self.edges.setdefault(ModelEdge(source, target, display(value)))

    # --- a model's file ---

    def model(self, listing: Listing) -> None:
        """Writes a model file's listing."""
        main = listing.main
        self.add(0, f"{display(self.session.model)}: {listing.about}")
        self._values("inputs", main.inputs)
        self.add(0, "layers")
        scope = _Scope(dict.fromkeys((value.name for value in main.inputs), NOWHERE))
        written = len(self.layers)
        self._graph(main.lines, 1, scope, NOWHERE)
        self._values("outputs", main.outputs)
        for value in main.outputs:
            self.edge(scope.maker(value.name), NOWHERE, value.name)
        for other in listing.others:
            self.add(0, f"signature {display(other.title)}")
            scope = _Scope(dict.fromkeys((value.name for value in other.inputs), NOWHERE))
            self._graph(other.lines, 1, scope, NOWHERE)
        self._left_over(set(self.layers[written:]))

    def _values(self, title: str, values: Sequence[Value]) -> None:
        self.add(0, title)
        for value in values:
            type_ = self.session.input_types.get(value.name) or value.type
            self.add(1, f"{display(value.name)}: {type_}" if type_ else display(value.name))

    def _graph(self, lines: Sequence[Line], depth: int, scope: _Scope, holder: int) -> None:
        """Writes layers, grouped under the names of their groups."""
        open_: tuple[str, ...] = ()
        for line in lines:
            group = tuple(self.session.group_of(line.name)) if holder == NOWHERE else ()
            shared = sum(1 for _ in _common(open_, group))
            for level in range(shared, len(group)):
                self.add(depth + level, f"{display(group[level])}:")
            open_ = group
            self._layer(line, depth + len(group), scope, holder)

    def _layer(self, line: Line, depth: int, scope: _Scope, holder: int) -> None:
        """Writes a layer and the graphs that it contains. `holder` is the layer that contains
        it.
        """
        place = self.session.layers.get(line.name, holder)
        self.add(depth, self._text(line), place)
        for name in dict.fromkeys(line.inputs):
            if name:
                self.edge(scope.maker(name), place, scope.called(name))
        for body in line.bodies:
            self._body(body, line, depth + 1, scope, place)
        scope.makers.update(dict.fromkeys(filter(None, line.outputs), place))

    def _body(self, body: Body, line: Line, depth: int, scope: _Scope, place: int) -> None:
        given = ", ".join(_typed(value) for value in body.inputs)
        head = f"{display(body.title)}({given})" if given else display(body.title)
        if not body.imported:
            self.add(depth, f"{head}: never taken", place)
            return
        self.add(depth, f"{head}:", place)
        # A loop's body takes the loop's inputs in this order; so does a function.
        makers = {
            value.name: maker
            for value, name in zip(body.inputs, line.inputs, strict=False)
            if (maker := scope.maker(name)) is not None
        }
        given_inputs = {
            value.name: scope.called(name)
            for value, name in zip(body.inputs, line.inputs, strict=False)
            if makers.get(value.name) == NOWHERE
        }
        inner = _Scope(makers, scope, given_inputs)
        self._graph(body.lines, depth + 1, inner, place)
        results = [value.name for value in body.outputs]
        for name in results:
            maker = inner.maker(name)
            if maker != place:
                self.edge(maker, place, name)
        self.add(depth + 1, f"return {', '.join(map(display, results))}", place)

    def _text(self, line: Line) -> str:
        types = self.session.output_types.get(line.name, {})
        inputs = ", ".join(
            _typed(Value(name, line.parameters.get(name, ""))) if name else "-"
            for name in line.inputs
        )
        outputs = ", ".join(
            _typed(Value(name, types.get(n, ""))) if name else "-"
            for n, name in enumerate(line.outputs)
        )
        attributes = "".join(f" {display(k)}={display(v)}" for k, v in line.attributes)
        text = f"{display(line.name)} = {display(line.op)}({inputs}){attributes} → {outputs}"
        why = self.session.trace.eliminated.get(line.name)
        return f"{text}  # no operator needed: {why}" if why else text

    def _left_over(self, written: set[int]) -> None:
        """Writes layers that the file does not show: those made by the import."""
        rest = [name for name, place in self.session.layers.items() if place not in written]
        if rest:
            self.add(0, "made by the import")
        for name in rest:
            place = self.session.layers[name]
            op = self.session.operator_types.get(name, "")
            self.add(1, f"{display(name)} = {display(op)}", place)

    # --- a model without a file ---

    def imported(self) -> None:
        """Writes the layers of the first stage."""
        session = self.session
        main = session.trace.stages[0].module.main
        changed = (
            ": its file has changed since; this is the imported model" if session.lists else ""
        )
        self.add(0, f"{display(session.model)}{changed}")
        self._values("inputs", [Value(p.name, str(p.type)) for p in main.params])
        self.add(0, "layers")
        open_: tuple[str, ...] = ()
        called = ""
        for layer in layers_of(session.trace).values():
            place = session.layers[layer.name]
            group = tuple(session.group_of(layer.name))
            for level in range(sum(1 for _ in _common(open_, group)), len(group)):
                self.add(1 + level, f"{display(group[level])}:")
            line = _line_of(session, layer.name)
            if line and (line != called or open_ != group):
                self.add(1 + len(group), line, place)
            open_, called = group, line
            reads = ", ".join(display(name) if name else "input" for name in layer.reads)
            types = session.output_types.get(layer.name, {})
            results = ", ".join(types[n] for n in sorted(types))
            made = "" if layer.kinds == (layer.op,) else f" as {', '.join(layer.kinds)}"
            why = session.trace.eliminated.get(layer.name)
            note = f"  # no operator needed: {why}" if why else ""
            name, op = display(layer.name), display(layer.op or "edit")
            text = f"{name} = {op}({reads}){made if layer.kinds else ''}"
            self.add(1 + len(group), f"{text} → {results}{note}" if results else text + note, place)
            for read in dict.fromkeys(layer.reads):
                self.edge(session.layers.get(read, NOWHERE), place, read or "input")
        self._results()

    def _results(self) -> None:
        session = self.session
        main = session.trace.stages[0].module.main
        results = main.body.children
        names = session.compiled.output_names
        self._values(
            "outputs",
            [Value(n, str(r.type)) for n, r in zip(names, results, strict=False)],
        )
        for name, result in zip(names, results, strict=False):
            for layer in result.span.layers:
                if layer in session.layers:
                    self.edge(session.layers[layer], NOWHERE, name)


def _line_of(session: Session, layer: str) -> str:
    """Returns the line of the user's code that calls a layer, with its place; "" if unknown."""
    place = session.trace.places.get(layer)
    if place is None or not place.file:
        return ""
    return (
        f"{CODE}{display(PurePath(place.file).name)}:{place.line}  {display(place.code)}".rstrip()
    )


def _common(a: Iterable[str], b: Iterable[str]) -> Iterable[str]:
    """Yields the common prefix of two paths."""
    for x, y in zip(a, b, strict=False):
        if x != y:
            return
        yield x


def _typed(value: Value) -> str:
    name = display(value.name)
    return f"{name}: {value.type}" if value.type else name
