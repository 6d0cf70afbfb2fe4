"""A case: a model, values for its inputs, and how it is to be compiled and checked."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, TypeProto, helper

from fuzz.choices import Choices, Drawn, Seeded
from fuzz.coverage import converted
from fuzz.dtypes import Array
from fuzz.graph import IR_VERSION, USER_DOMAIN, Grower, Unfit, Value
from fuzz.operators import (
    ENTRIES,
    Entry,
    control,
    elementwise,
    products,
    quantized,
    reductions,
    schema_of,
    shapes,
    user,
    values,
)  # fmt: skip

assert all((control, elementwise, products, quantized, reductions, shapes, user, values))
quantized.with_storage()

NEWEST: Final = 26
"""The newest opset that ONNX Runtime takes; the very newest are drawn too, now and then."""
_OPSETS: Final = (NEWEST,) * 6 + (onnx.defs.onnx_opset_version(), 24, 22, 21, 18, 17, 13, 11, 9, 7)
CHECKS: Final = (
    "none", "none", "none", "free", "rewritten", "rewritten", "trace", "cache", "saved",
    "concurrent", "threads", "outlined",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """How a case is compiled, and the additional checks on it."""

    opt_level: int = 3
    threads: int = 1
    precision: str = "f32"
    guard: str = ""
    fusions: bool = False
    check: str = "none"
    salt: int = 0


@dataclass
class Case:
    """A model and its inputs. `operators` are the names of those drawn."""

    model: ModelProto
    feeds: dict[str, Array]
    plan: Plan
    operators: tuple[str, ...] = ()
    seed: int | None = None
    symbolic: bool = False
    hostile: bool = False
    made: list[int] = field(default_factory=list, repr=False)

    @property
    def uses_user_operators(self) -> bool:
        """Whether some operator is a user's."""
        return any(o.startswith(USER_DOMAIN) for o in self.operators)

    def for_others(self) -> ModelProto:
        """Returns the model for engines that do not know the user's operators: with functions."""
        if not self.uses_user_operators:
            return self.model
        model = ModelProto()
        model.CopyFrom(self.model)
        (opset,) = [o.version for o in model.opset_import if not o.domain]
        model.functions.extend(user.meanings(opset))
        return model

    def save(self, folder: Path) -> None:
        """Writes the case to a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(self.model, folder / "model.onnx")
        named: dict[str, Any] = {f"a{n}": _plain(a) for n, a in enumerate(self.feeds.values())}
        np.savez(
            folder / "inputs.npz",
            **named,
        )
        about = {
            "inputs": {k: (str(a.dtype), a.shape) for k, a in self.feeds.items()},
            "plan": asdict(self.plan), "operators": self.operators, "seed": self.seed,
            "symbolic": self.symbolic, "hostile": self.hostile,
        }  # fmt: skip
        (folder / "case.json").write_text(json.dumps(about, indent=1))

    @classmethod
    def load(cls, folder: Path) -> Case:
        """Returns the case that a folder holds."""
        about = json.loads((folder / "case.json").read_text())
        with np.load(folder / "inputs.npz", allow_pickle=False) as arrays:
            feeds = {
                name: _typed(arrays[f"a{n}"], dtype).reshape(shape)
                for n, (name, (dtype, shape)) in enumerate(about["inputs"].items())
            }
        return cls(
            onnx.load(folder / "model.onnx"), feeds, Plan(**about["plan"]),
            tuple(about["operators"]), about["seed"], about["symbolic"], about["hostile"],
        )  # fmt: skip


def case_of(seed: int) -> Case:
    """Returns the case of a seed: always the same."""
    choices = Seeded(seed)
    case = draw_case(choices)
    case.seed, case.made = seed, choices.made
    return case


@st.composite
def cases(draw: Any) -> Case:
    """Hypothesis' strategy for cases."""
    return draw_case(Drawn(draw))


def draw_plan(choices: Choices) -> Plan:
    """Returns a plan."""
    return Plan(
        opt_level=choices.pick((3, 3, 2, 1, 0)),
        threads=choices.pick((1, 2)),
        precision=choices.pick(("f32",) * 8 + ("bf16", "f16")),
        guard=choices.pick(("end", "start", "end", "start", "")),
        fusions=choices.one_in(8),
        check=choices.pick(CHECKS),
        salt=choices.integer(0, 1000),
    )


def draw_case(choices: Choices) -> Case:
    """Returns a case."""
    plan = draw_plan(choices)
    opset = choices.pick(_OPSETS)
    hostile = choices.one_in(60)
    g = Grower(choices, opset)
    table = entries(opset)
    drawn: list[str] = []
    for _ in range(12):
        if drawn and choices.integer(0, 5) == 0:
            break
        entry = choices.pick(table)
        mark = g.mark()
        try:
            grow(g, entry)
            drawn.append(entry.name)
        except Unfit:
            g.back_to(mark)
    outputs = _outputs(g, choices)
    symbolic = choices.one_in(8)
    symbols = {s: f"n{s}" for v in g.inputs for s in v.sizes if s > 1} if symbolic else {}
    model = g.model(outputs, symbols)
    if hostile:
        spoil(model, choices)
    return Case(model, g.feeds, plan, tuple(drawn), symbolic=symbolic, hostile=hostile)


def grow(g: Grower, entry: Entry) -> None:
    """Adds an operator.

    Errors: Unfit if the operator does not suit.
    """
    version = g.version(entry.domain)
    if entry.domain != USER_DOMAIN:
        schema = schema_of(entry, version)
        if schema is None:
            raise Unfit
        g.schema = schema
    scope = g.scope
    try:
        entry.make(g)
    finally:
        g.scope = scope


_tables: dict[int, list[Entry]] = {}


def entries(opset: int) -> list[Entry]:
    """Returns the entries of operators that an opset has and clew converts, each repeated by its
    weight.
    """
    if opset not in _tables:
        known = set(converted())
        _tables[opset] = [
            e for e in ENTRIES.values() for _ in range(e.weight)
            if _has(e, opset, known)
        ]  # fmt: skip
    return _tables[opset]


def _has(entry: Entry, opset: int, known: set[str]) -> bool:
    if entry.domain == USER_DOMAIN:
        return opset >= 18
    return entry.name in known and (bool(entry.domain) or schema_of(entry, opset) is not None)


def _outputs(g: Grower, choices: Choices) -> list[Value]:
    """Returns the model's outputs: mostly the values that no node reads, and some others."""
    read = {n for node in g.top.nodes for n in _reads(node)}
    made = {
        o for node in g.top.nodes if node.op_type != "Constant" or node.name for o in node.output
    }
    results = [v for v in g.top.values if v.name in made]
    ends = [v for v in results if v.name not in read and not choices.one_in(12)]
    inner = [v for v in results if v.name in read and choices.one_in(6)]
    found = [*ends, *inner] or results[-1:]
    if choices.one_in(20):
        found += [v for v in g.inputs[:1] if v.dtype != TensorProto.STRING]
    if not found:
        found = g.emit("Identity", [g.leaf(TensorProto.FLOAT, (2,))])
    if choices.one_in(4):
        found.reverse()
    return found


def _reads(node: onnx.NodeProto) -> set[str]:
    names = set(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            names |= {n for inner in graph.node for n in _reads(inner)}
    return names


def spoil(model: ModelProto, choices: Choices) -> None:
    """Makes a node wrong: an attribute or an operand that does not fit."""
    node = choices.pick(list(model.graph.node))
    way = choices.integer(0, 3)
    numbers = [a for a in node.attribute if a.type in (a.INT, a.INTS, a.FLOAT)]
    if way == 0 and numbers:
        attribute = choices.pick(numbers)
        odd = choices.pick((-1, 0, 2**62, -(2**63), 7, 10**6))
        if attribute.type == attribute.FLOAT:
            attribute.f = float(odd)
        elif attribute.type == attribute.INT:
            attribute.i = odd
        else:
            del attribute.ints[1:]
            attribute.ints[:] = [odd] * choices.integer(0, 5)
    elif way == 1 and node.input:
        node.input[choices.integer(0, len(node.input) - 1)] = choices.pick(("", "nowhere"))
    elif way == 2 and node.input:
        del node.input[-1]
    elif model.graph.initializer:
        tensor = choices.pick(list(model.graph.initializer))
        if tensor.data_type == TensorProto.INT64 and tensor.raw_data:
            odd = choices.pick((-1, 2**62, -(2**63), 0, 99))
            tensor.raw_data = np.full(len(tensor.raw_data) // 8, odd, np.int64).tobytes()
        else:
            tensor.dims.append(choices.pick((3, 0, 2**40)))


def _plain(array: Array) -> Array:
    """Returns an array as `npz` keeps it: of bytes, where numpy itself has no such type."""
    if array.dtype == object:
        return array.astype(str)
    return array if array.dtype.isbuiltin == 1 else array.reshape(-1).view(np.uint8)


def _typed(array: Array, dtype: str) -> Array:
    if dtype == "object":
        return array.astype(object)
    found = next(
        (helper.tensor_dtype_to_np_dtype(n) for n in TensorProto.DataType.values()
         if n and str(helper.tensor_dtype_to_np_dtype(n)) == dtype),
        np.dtype(dtype),
    )  # fmt: skip
    return array if array.dtype == found else array.view(found)


def model_of(
    nodes: list[Any], inputs: dict[str, Array], outputs: list[str], opset: int = NEWEST, **more: Any
) -> ModelProto:
    """Returns a model by hand, for regressions: nodes, inputs with example values, outputs."""
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
    ]
    results = [
        helper.make_value_info(n, TypeProto(tensor_type=TypeProto.Tensor(elem_type=1)))
        for n in outputs
    ]
    graph = helper.make_graph(nodes, "g", infos, results, **more)
    made: ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION
    )
    return made
