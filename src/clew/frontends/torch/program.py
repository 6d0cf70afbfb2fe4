"""Imports an exported program as a graph IR module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import sympy
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    SymIntArgument,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from clew.frontends.builder import GraphBuilder
from clew.frontends.building import scalar
from clew.frontends.torch.assembling import assembled, count, weight
from clew.frontends.torch.complex_parts import in_parts, whole
from clew.frontends.torch.dtypes import check_tensor, given_dtype, to_numpy
from clew.frontends.torch.exporting import Exported
from clew.frontends.torch.forms import form_of, leaf_paths, plain
from clew.frontends.torch.graph import FRONTEND, GraphImporter
from clew.frontends.torch.guards import GuardReader
from clew.frontends.torch.omitted import Undecomposed
from clew.frontends.torch.sizes import Sizes
from clew.frontends.torch.values import Value
from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Constant, Expr, Var
from clew.ir.module import Module
from clew.ir.own_sizes import (
    OWN_SIZES,
    SIZE_RULES,
    Range,
    own_sizes_attribute,
    size_rules_attribute,
)
from clew.ir.size_rules import SizeRule
from clew.ir.state import STATE, State, state_attribute
from clew.ir.types import TensorType
from clew.support.call_form import FORM, Tree
from clew.support.errors import ModelError, UnsupportedError

_BY_USER: Final = (InputKind.USER_INPUT,)
_RESULTS: Final = (
    OutputKind.USER_OUTPUT,
    OutputKind.BUFFER_MUTATION,
    OutputKind.USER_INPUT_MUTATION,
    OutputKind.TOKEN,
)
_ASSUMED: Final = 2  # the least size that torch assumes


class ProgramImporter:
    """Imports one exported program; `exported` is the program before decomposition, if known."""

    def __init__(self, program: ExportedProgram, exported: Exported | None = None) -> None:
        self.program = program
        self._exported = exported
        self.builder = GraphBuilder(FRONTEND)
        self.sizes = Sizes(self.builder.carriers)
        earlier = None
        if exported is not None:
            earlier = Undecomposed(exported.program.graph_module, program.graph_module)
        self.importer = GraphImporter(
            program.graph_module, self.builder, self.sizes, [], earlier=earlier
        )
        self._states: dict[str, tuple[Var, torch.Tensor]] = {}
        self._ranges: dict[str, Range] = {}
        self._symbols: dict[str, sympy.Symbol] = {}
        self.places_of_outputs: dict[str, int] = {}

    def run(self) -> Module:
        """Returns the module."""
        nodes = {n.name: n for n in self.program.graph.nodes if n.op == "placeholder"}
        specs = self.program.graph_signature.input_specs
        self._name_sizes(nodes.values())
        values: dict[fx.Node, Value] = {}
        for spec in specs:
            node = nodes[spec.arg.name]
            with self.importer.located(node):
                values[node] = self._input(spec, node)
        numbers = {var.name: number for number, var in enumerate(self.builder.params)}
        given = [_leaf(s, numbers) for s in specs if s.kind in _BY_USER]
        found = self.importer.run(values)
        names, outputs, results = self._outputs(found)
        form = form_of(self.program, given, results)
        self.builder.params.extend(var for var, _ in self._states.values())
        attrs = self._state_attribute(names)
        if self._ranges:
            attrs[OWN_SIZES] = own_sizes_attribute(self._ranges)
        rules = size_rules_attribute([*self.importer.rules, *self._guards(specs, nodes)])
        if rules:
            attrs[SIZE_RULES] = rules
        if form is not None:
            attrs[FORM] = form.plain
        return assembled(self.importer, outputs, names, attrs)

    # --- sizes ---

    def _name_sizes(self, nodes: Iterable[fx.Node]) -> None:
        """Names the symbols of inputs: as the user named them, else after input and axis. The size
        of an axis may also be an expression of a symbol that is not itself a size (`2 * Dim("n")`).
        """
        fakes = [(node.name, node.meta.get("val")) for node in nodes]
        sizes = [
            (f"{name}.{axis}", size)
            for name, fake in fakes
            for axis, size in enumerate(fake.shape if isinstance(fake, torch.Tensor) else ())
            if isinstance(size, torch.SymInt)
        ]
        sizes += [(name, fake) for name, fake in fakes if isinstance(fake, torch.SymInt)]
        for name, size in sizes:
            if size.node.expr.is_Symbol:
                self._name(size, size.node.expr, name)
        for name, size in sizes:
            for symbol in size.node.expr.free_symbols:
                self._name(size, symbol, name)

    def _name(self, size: torch.SymInt, symbol: sympy.Symbol, otherwise: str) -> None:
        if self.sizes.has(symbol):
            return
        exported = self._exported or Exported(self.program)
        given, is_size = _given_name(size, symbol, exported.names)
        found = self.program.range_constraints.get(symbol)
        low = 1 if found is None else max(0, int(max(found.lower, 0)))
        high = int(found.upper) if found is not None and found.upper.is_Integer else None
        name = given or otherwise
        self._symbols[name] = symbol
        self.sizes.name(symbol, name, low if given else max(low, 1))  # 0 is compiled on its own
        # Where the user gives no bounds, torch assumes that sizes are at least 2, but the exported
        # program serves 0 and 1, too, as far as its rules hold.
        if low <= _ASSUMED:
            low = exported.least.get(given, low) if given and is_size else 0
        if low or high is not None:
            self._ranges[name] = low, high

    def _guards(
        self, specs: Iterable[InputSpec], nodes: Mapping[str, fx.Node]
    ) -> Iterable[SizeRule]:
        """Returns the rules that torch's guards give."""
        fakes = [nodes[s.arg.name].meta.get("val") for s in specs if s.kind in _BY_USER]
        inputs = dict(zip(leaf_paths(self.program), map(self._sizes_of, fakes), strict=False))
        exported = self._exported or Exported(self.program)
        reader = GuardReader(inputs, whole=exported.whole)
        found = reader.rules(exported.program, self.program)
        return found if exported.small is None else exported.small.needed(found, self._symbols)

    def _sizes_of(self, fake: Any) -> tuple[Dim, ...] | Dim | None:
        """Returns the shape of a tensor, or an integer; None for other arguments."""
        if isinstance(fake, torch.Tensor):
            return self.sizes.shape(fake.shape)
        return self.sizes.dim(fake) if isinstance(fake, torch.SymInt) else None

    # --- inputs ---

    def _input(self, spec: InputSpec, node: fx.Node) -> Value:
        if isinstance(spec.arg, ConstantArgument):
            return spec.arg.value
        fake = node.meta["val"]
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            changed = self.program.graph_signature.buffers_to_mutate.values()
            return self._state(spec, fake) if spec.target in changed else self._weight(spec)
        if spec.kind is InputKind.CUSTOM_OBJ:
            raise UnsupportedError(
                "U065",
                f"{spec.target} is an object of C++, no tensor",
                hint="compute with tensors only",
            )
        if spec.kind is InputKind.TOKEN:
            return None
        if isinstance(spec.arg, SymIntArgument):
            return self._integer(node.name, fake)
        check_tensor(fake, f"input {node.name!r}")
        type_ = TensorType(self.sizes.shape(fake.shape), given_dtype(fake.dtype))
        return in_parts(self.builder.input(node.name, type_))

    def _integer(self, name: str, fake: torch.SymInt) -> Value:
        """Returns an integer input as a size. torch assumes that it is at least 0."""
        if fake.node.hint is not None and fake.node.hint < 0:
            raise UnsupportedError(
                "U065",
                f"input {name!r} is an integer that may change, and torch exports these for values "
                f"of at least 0, but the example is {fake.node.hint}",
                hint="give it as a tensor, or fix it",
            )
        size = self.sizes.dim(fake)
        count(self.builder, name, size)
        return size

    def _weight(self, spec: InputSpec) -> Constant:
        name = str(spec.target)
        return weight(self.builder, name, self._tensor(name, spec.kind))

    def _state(self, spec: InputSpec, fake: torch.Tensor) -> Value:
        """Returns the parameter for a buffer that the module changes."""
        name = str(spec.target)
        tensor = self._tensor(name, spec.kind)
        check_tensor(tensor, f"the tensor {name!r}")
        if tensor.is_complex():
            raise UnsupportedError(
                "U065",
                f"the buffer {name!r}, which changes, is complex",
                hint="keep it as pairs of real numbers: torch.view_as_real(x)",
            )
        type_ = TensorType(self.sizes.shape(fake.shape), given_dtype(fake.dtype))
        var = self.builder.variable(name, type_)
        self._states[name] = var, tensor
        return var

    def _state_attribute(self, outputs: list[str]) -> dict[str, Any]:
        states = [
            State(name, f"{name}_new", to_numpy(tensor))
            for name, (_, tensor) in self._states.items()
            if f"{name}_new" in outputs
        ]
        return {STATE: state_attribute(states)} if states else {}

    def _tensor(self, name: str, kind: InputKind) -> torch.Tensor:
        tensors: Mapping[str, Any] = self.program.state_dict
        if name not in tensors or kind is InputKind.CONSTANT_TENSOR:
            tensors = self.program.constants
        found = tensors.get(name)
        if not isinstance(found, torch.Tensor):
            raise ModelError("M051", f"the program lacks the tensor {name!r}")
        return found

    # --- outputs ---

    def _outputs(self, found: list[Value]) -> tuple[list[str], list[Expr], list[Tree]]:
        """Returns names and values of the outputs, and the leaves of the call's result."""
        specs = self.program.graph_signature.output_specs
        paths = iter(_paths(plain(self.program.call_spec.out_spec)))
        names: list[str] = []
        outputs: list[Expr] = []
        changed: list[tuple[str, Expr]] = []
        leaves: list[Tree] = []
        (ending,) = self.program.graph.find_nodes(op="output")
        places: dict[str, int] = {}
        for place, (spec, value, node) in enumerate(zip(specs, found, ending.args[0], strict=True)):
            fake = node.meta.get("val") if isinstance(node, fx.Node) else None
            dtype = getattr(fake, "dtype", None)
            if spec.kind not in _RESULTS:
                what = spec.kind.name.lower().replace("_", " ")
                of = f" of {spec.target!r}" if spec.target else ""
                with self.importer.located(node):
                    raise UnsupportedError(
                        "U066",
                        f"the program returns the {what}{of}",
                        hint="export a module in evaluation mode, under torch.no_grad()",
                    )
            if spec.kind is OutputKind.USER_OUTPUT:
                name = next(paths)
                if isinstance(spec.arg, ConstantArgument):
                    leaves.append(("=", value))
                    continue
                tensor = isinstance(spec.arg, TensorArgument)
                leaves.append(len(outputs) if tensor else ("number", len(outputs)))
            elif spec.kind is not OutputKind.TOKEN:
                made = whole(_as_output(self.importer, value), dtype)
                changed.append((f"{spec.target}_new", made))
                places[f"{spec.target}_new"] = place
                continue
            else:
                continue
            names.append(name)
            places[name] = place
            with self.importer.located(node):
                outputs.append(whole(_as_output(self.importer, value), dtype))
        self.places_of_outputs = places
        names += [name for name, _ in changed]
        outputs += [value for _, value in changed]
        return names, outputs, leaves


def _leaf(spec: InputSpec, numbers: Mapping[str, int]) -> Tree:
    """Returns an argument as a leaf of the call's form. `numbers` has inputs' numbers by name."""
    if isinstance(spec.arg, ConstantArgument):
        return ("=", spec.arg.value)
    number = numbers[spec.arg.name]
    return ("count", number) if isinstance(spec.arg, SymIntArgument) else number


def _as_output(importer: GraphImporter, value: Value) -> Expr:
    if isinstance(value, Expr):
        return value
    if isinstance(value, SymDim):
        return importer.scalar_of(value, "i64")
    if isinstance(value, (bool, int, float)):
        dtype = {bool: "bool", int: "i64"}.get(type(value), "f64")
        return scalar(value, dtype)
    raise UnsupportedError("U065", f"a result of type {type(value).__name__}")


def _given_name(
    size: torch.SymInt, symbol: sympy.Symbol, names: Mapping[str, str]
) -> tuple[str, bool]:
    """Returns the name that the user gave a symbol of a size (`Dim("batch")`), "" if none, and
    whether the symbol is the size of an axis. A symbol that occurs only in expressions is not.
    """
    env = size.node.shape_env
    for source in env.var_to_sources.get(symbol, ()):
        name = str(names.get(source.name, env.source_name_to_debug_name.get(source.name, "")))
        if name.isidentifier():  # not an expression of another symbol, such as `2*n`
            return name, True
        if source.name.isidentifier():
            return source.name, False
    return "", True


def _paths(spec: pytree.TreeSpec) -> Iterator[str]:
    """Yields names for the leaves of a call's results: the path of keys and positions."""
    tree = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    for path, _ in pytree.tree_flatten_with_path(tree)[0]:
        parts = [str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path]
        if not parts:
            yield "output"
        elif parts[0].isdigit():
            yield ".".join([f"output{parts[0]}", *parts[1:]])
        else:
            yield ".".join(parts)
