"""Imports an FX graph into graph IR, one call at a time, each with its own source."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

import torch
from torch import fx

from clew.frontends.builder import KNOWN, UNUSED, Fault, GraphBuilder, Results, coded
from clew.frontends.torch.dtypes import check_tensor, to_numpy
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.numbers import arithmetic, is_arithmetic
from clew.frontends.torch.omitted import VIEWED, Undecomposed
from clew.frontends.torch.places import (
    is_check,
    is_layer,
    layer_names,
    line_of,
    op_name,
    place_of,
    shown_line,
)
from clew.frontends.torch.registry import find, name_of
from clew.frontends.torch.sizes import Sizes
from clew.frontends.torch.tensors import memory_of
from clew.frontends.torch.values import Value, Values
from clew.ir.dims import unknown_dim
from clew.ir.expr import Expr, Var
from clew.ir.size_rules import Comparison, SizeRule, size_rule
from clew.ir.types import TensorType
from clew.support.errors import ClewError, CompileError, UnsupportedError, locate
from clew.trace.places import CodePlace
from clew.trace.span import Source

FRONTEND: Final = "torch"


class GraphImporter(Values):
    """Imports the graph of one FX module, and of modules inside it, which share `builder`, `sizes`
    and `places`.

    With `probing`, calls that cannot be imported are collected in `refused`, and the import
    continues with values of the types that torch gives them. `earlier` has the graph before
    decomposition: calls that decomposition omitted are layers, too.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        builder: GraphBuilder,
        sizes: Sizes,
        places: list[CodePlace],
        *,
        prefix: str = "",
        earlier: Undecomposed | None = None,
        probing: bool = False,
    ) -> None:
        super().__init__(builder, sizes)
        self.module = module
        self.values: dict[fx.Node, Value] = {}
        self.places = places
        self.rules: list[SizeRule] = []
        self.refused: dict[fx.Node, ClewError] = {}
        self.viewed: set[fx.Node] = set()  # calls whose views torch makes, as results
        self._probing = probing
        self._checked = _only_checked(module.graph)
        self._names = layer_names(filter(is_layer, module.graph.nodes), prefix)
        self._earlier = earlier
        if earlier is not None:
            for omitted in earlier.omitted(prefix, self._names.values()):
                builder.omit(omitted.name, omitted.op, omitted.reason)
                places.append(omitted.place)
        if not probing:
            self._check_supported()

    def _check_supported(self) -> None:
        """Errors: U064 for all operators without a converter."""
        unknown: dict[str, fx.Node] = {}
        for node in self.module.graph.nodes:
            known = not is_layer(node)
            known = known or any(find(node.target, of_complex) for of_complex in (False, True))
            if not known:
                self._check_tensors(node)
                unknown.setdefault(name_of(node.target), node)
        if unknown:
            listed = "; ".join(
                f"{name} ({self._names[node]}{_behind(node)})" for name, node in unknown.items()
            )
            what = "operators of torch are" if len(unknown) > 1 else "operator of torch is"
            raise UnsupportedError(
                "U064",
                f"{len(unknown)} {what} not supported: {listed}",
                hint="register_op(..., torch='NAMESPACE::NAME') adds operators",
            )

    def _check_tensors(self, node: fx.Node) -> None:
        """Checks that a converter could take the tensors of a node. Errors: U061, U062."""
        with self.located(node):
            for given in node.all_input_nodes:
                for fake in _tensors(given.meta.get("val")):
                    check_tensor(fake, f"an argument of {name_of(node.target)}")
            for fake in _tensors(node.meta.get("val")):
                check_tensor(fake, f"a result of {name_of(node.target)}")

    # --- the graph ---

    def run(self, inputs: Mapping[fx.Node, Value]) -> list[Value]:
        """Returns the results for values of the placeholders."""
        self.values.update(inputs)
        for node in self.module.graph.nodes:
            if node.op == "call_function":
                try:
                    self._call(node)
                except ClewError as error:
                    if not self._probing:
                        raise
                    self.refused[node] = error
                    self.values[node] = self._unknown(node.meta.get("val"))
            elif node.op == "get_attr":
                self.values[node] = self._attribute(node)
            elif node.op == "output":
                found = self._mapped(node.args[0])
                return found if isinstance(found, list) else [found]
        return []

    def _unknown(self, fake: Any) -> Value:
        """Returns a value of the type that torch knows, in place of one that was refused."""
        if isinstance(fake, (list, tuple)):
            return [self._unknown(f) for f in fake]
        if isinstance(fake, torch.Tensor):
            for size in fake.shape:
                self.sizes.learn(size, unknown_dim())
            try:
                return Var("unknown", self.type_of(fake))
            except UnsupportedError:
                return None
        return fake

    def _attribute(self, node: fx.Node) -> Value:
        found: Any = self.module
        for part in str(node.target).split("."):
            found = getattr(found, part)
        if isinstance(found, torch.Tensor):
            name = str(node.target)
            return self.builder.constant(name, lambda: to_numpy(found))
        return found

    def _mapped(self, args: Any) -> Any:
        """Returns arguments with nodes replaced by their values."""
        if isinstance(args, fx.Node):
            return self.values[args]
        if isinstance(args, (list, tuple)):
            return [self._mapped(a) for a in args]
        if isinstance(args, slice):
            return slice(*map(self._mapped, (args.start, args.stop, args.step)))
        if isinstance(args, dict):
            return {k: self._mapped(v) for k, v in args.items()}
        return args

    def _call(self, node: fx.Node) -> None:
        target: Any = node.target
        if target is operator.getitem:
            source, index = node.args
            self.values[node] = self.values[source][index]
        elif is_check(node) or node in self._checked:
            self.values[node] = None
        elif is_arithmetic(target):
            with self.located(node):
                self.values[node] = arithmetic(self, node, self._mapped(node.args))
        elif not is_layer(node):
            with self.located(node):
                raise UnsupportedError(
                    "U064",
                    f"{op_name(node)} of numbers is not supported",
                    hint="compute sizes with +, -, *, //, %, min and max",
                )
        else:
            with self.located(node), coded(name_of(target), _FAULTS):
                self._layer(node, self._names[node])

    @contextmanager
    def located(self, node: Any) -> Iterator[None]:
        """Adds the layer and the user's line to errors about a node. For an input of the graph,
        they are those of the first layer that reads it. Values other than nodes have none.
        """
        if not isinstance(node, fx.Node):
            yield
            return
        if node.op == "placeholder":
            node = next((user for user in node.users if is_layer(user)), node)
        with locate(layer=self._names.get(node, "")), _with_line(node):
            yield

    def _layer(self, node: fx.Node, name: str) -> None:
        source = Source(name, op_name(node), FRONTEND)
        self.places.append(place_of(node, name))
        names, positional = _arguments(node)
        fakes = {n: _faked(a) for n, a in zip(names, positional, strict=True)}
        arguments = {n: self._mapped(a) for n, a in zip(names, positional, strict=True)}
        of_complex = _has_complex((list(fakes.values()), node.meta.get("val")))
        convert = find(node.target, of_complex)
        if convert is None and of_complex:
            raise UnsupportedError(
                "U061",
                f"{name_of(node.target)} of complex numbers is not supported",
                hint="compute with torch.view_as_real(x)",
            )
        if convert is None:
            raise UnsupportedError("U064", f"{name_of(node.target)} is not supported")
        layer = Layer(node, name, name_of(node.target), arguments, fakes, self)
        with self.builder.layer(source) as results:
            found = convert(layer)
            several = isinstance(node.meta.get("val"), (list, tuple))
            values = list(found) if several else [found]
            for index, value in enumerate(values):
                values[index] = self._result(layer, results, index, value)
        exprs = [v for v in values if isinstance(v, Expr)]
        unused = VIEWED if node in self.viewed else UNUSED
        self.builder.account(source, exprs, unused if exprs else KNOWN)
        self.values[node] = values if several else values[0]

    def _result(self, layer: Layer, results: Results, index: int, value: Value) -> Value:
        """Returns a result, checked against torch's type and marked as the layer's."""
        if not isinstance(value, Expr) or not isinstance(value.type, TensorType):
            return value
        fake = layer.fakes[index]
        if isinstance(fake, torch.Tensor):
            for size, dim in zip(fake.shape, value.tensor.shape, strict=False):
                self.sizes.learn(size, dim)
            _check_type(layer, value.tensor, self.type_of(fake))
        return results.bind(index, value)

    def first_in_memory(self, node: fx.Node) -> tuple[Expr, Any]:
        """Returns the first tensor of the graph in the memory of a node's tensor."""
        first, index, fake = self._first_in_memory[memory_of(node.meta["val"])]
        value = self.values[first]
        return (value if index is None else value[index]), fake

    @cached_property
    def _first_in_memory(self) -> Mapping[int, tuple[fx.Node, int | None, torch.Tensor]]:
        """By memory, the first node with a tensor in it, and the tensor's place in its results."""
        found: dict[int, tuple[fx.Node, int | None, torch.Tensor]] = {}
        for node in self.module.graph.nodes:
            fake = node.meta.get("val")
            several = isinstance(fake, (list, tuple))
            for index, tensor in enumerate(fake if several else [fake]):
                if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                    found.setdefault(memory_of(tensor), (node, index if several else None, tensor))
        return found

    def require(self, node: fx.Node, layer: str, compared: Comparison) -> None:
        """Adds a rule for a layer. Those of graphs inside are dropped: they may never run."""
        file, line, code = line_of(node)
        rule = size_rule([compared], layer, shown_line(file, line, code) if file else "")
        if rule is not None:
            self.rules.append(rule)

    def inner(self, module: fx.GraphModule, inputs: Sequence[Value], prefix: str) -> list[Value]:
        """Returns the results of a module inside this one for values of its inputs."""
        earlier = None
        if self._earlier is not None:
            name = next((n for n, c in self.module.named_children() if c is module), "")
            earlier = self._earlier.inner(name)
        importer = GraphImporter(
            module, self.builder, self.sizes, self.places, prefix=f"{prefix}/", earlier=earlier
        )
        given = [n for n in module.graph.nodes if n.op == "placeholder"]
        return importer.run(dict(zip(given, inputs, strict=True)))


def _arguments(node: fx.Node) -> tuple[list[str], list[Any]]:
    """Returns the names and the values of a call's arguments, with those left out."""
    target: Any = node.target
    schema = getattr(target, "_schema", None)
    if schema is None:
        names = [f"arg{n}" for n in range(len(node.args))]
        return [*names, *node.kwargs], [*node.args, *node.kwargs.values()]
    found: dict[str, Any] = {}
    for position, argument in enumerate(schema.arguments):
        if position < len(node.args):
            found[argument.name] = node.args[position]
        elif argument.name in node.kwargs:
            found[argument.name] = node.kwargs[argument.name]
        elif argument.has_default_value():
            found[argument.name] = argument.default_value
    return list(found), list(found.values())


def _faked(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return value.meta.get("val")
    if isinstance(value, (list, tuple)):
        return [_faked(v) for v in value]
    return value


def _only_checked(graph: fx.Graph) -> set[fx.Node]:
    """Returns the arithmetic that only checks read. It may use sizes that clew does not know, such
    as the storage offset of a slice.
    """
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        users = node.users
        if is_arithmetic(node.target) and users and all(is_check(u) or u in found for u in users):
            found.add(node)
    return found


def _tensors(fakes: Any) -> list[torch.Tensor]:
    parts = fakes if isinstance(fakes, (list, tuple)) else [fakes]
    return [fake for fake in parts if isinstance(fake, torch.Tensor)]


def _has_complex(fakes: Any) -> bool:
    if isinstance(fakes, (list, tuple)):
        return any(map(_has_complex, fakes))
    return isinstance(fakes, torch.Tensor) and fakes.dtype.is_complex


def _check_type(layer: Layer, found: TensorType, wanted: TensorType) -> None:
    """Errors: C083 if a converter's result is not of the type that torch gives it."""
    if found.dtype != wanted.dtype or found.rank != wanted.rank:
        differs = True
    else:
        pairs = zip(found.shape, wanted.shape, strict=True)
        differs = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
    if differs:
        raise CompileError(
            "C083", f"{layer.op} became {found}, torch says {wanted}", hint="this is a bug in clew"
        )


def _behind(node: fx.Node) -> str:
    file, line, _ = line_of(node)
    return f", {file}:{line}" if file else ""


@contextmanager
def _with_line(node: fx.Node) -> Iterator[None]:
    """Adds the user's line to errors of a layer."""
    try:
        yield
    except ClewError as error:
        file, line, code = line_of(node)
        if file and not error.position:
            error.position = shown_line(file, line, code)
        raise


def _unforeseen(op: str, error: Exception) -> ClewError:
    """Code: C083."""
    return CompileError(
        "C083",
        f"{op} could not be imported: {type(error).__name__}: {error}",
        hint="this is a bug in clew",
    )


_FAULTS: Final = (
    Fault(
        (
            ArithmeticError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            AssertionError,
            RuntimeError,  # torch's, of sizes that the data decide
        ),
        _unforeseen,
    ),
)
