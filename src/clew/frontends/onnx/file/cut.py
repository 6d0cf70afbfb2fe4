"""Cuts a model: the same nodes, parameters, functions and opsets, between given values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Final

import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from clew.frontends.onnx.file.loader import Loaded, read
from clew.frontends.onnx.file.order import in_order, uses_of
from clew.frontends.onnx.file.survey import function_key, functions_of, with_inner
from clew.frontends.onnx.file.tensors import number_of, packed, to_array
from clew.frontends.onnx.importer import Importer
from clew.ir.module import Module
from clew.ir.types import bits, from_numpy
from clew.support.budgets import current
from clew.support.writing import replacing, write_bytes

# protobuf messages are limited to 2 GiB; from this size on, parameters are written to a separate
# file.
_MOST_INSIDE_BYTES: Final = 1 << 30
_IR_VERSION_OF_BARE_INITIALIZERS: Final = 4


class Cutter:
    """A model whose nodes are numbered in an order with definitions before uses.

    `shapes` gives the inputs' concrete shapes: values that follow from them are known, and constant
    in the part that is cut out.
    """

    def __init__(
        self,
        source: str | PathLike[str] | bytes | ModelProto,
        shapes: Mapping[str, Sequence[int | str]] | None = None,
        *,
        most_inside_bytes: int = _MOST_INSIDE_BYTES,
    ) -> None:
        self._budgets = current()
        self._loaded = read(source, self._budgets)
        self._shapes = dict(shapes or {})
        self._most_inside_bytes = most_inside_bytes
        self._importer = Importer(self._loaded, self._budgets, inputs=self._shapes)
        self.module = self._importer.run()
        graph = self._graph
        self._parameters = {t.name: n for n, t in enumerate(graph.initializer)}
        self._sparse = {t.values.name: n for n, t in enumerate(graph.sparse_initializer)}
        held = self._parameters.keys() | self._sparse.keys()
        inputs = {i.name for i in graph.input} - held
        ordered = in_order(graph.node, held | inputs)
        self.nodes: list[NodeProto] = [node for _, node in ordered]
        self.names: list[str] = [self._importer.layer_name(index) for index, _ in ordered]
        self._producer = {o: n for n, node in enumerate(self.nodes) for o in node.output if o}
        self._uses = [uses_of(node) for node in self.nodes]

    @property
    def _graph(self) -> GraphProto:
        return self._loaded.model.graph

    @property
    def reads(self) -> list[frozenset[int]]:
        """For each node, the nodes whose values it or its subgraphs use."""
        return [
            frozenset(self._producer[u] for u in uses if u in self._producer) for uses in self._uses
        ]

    @cached_property
    def fixed(self) -> frozenset[int]:
        """The nodes whose values depend only on parameters."""
        constant = set(self._parameters) | set(self._sparse)
        found: set[int] = set()
        for number, node in enumerate(self.nodes):
            chance = any(_is_chance(n) for n in with_inner([node]))
            if not chance and self._uses[number] <= constant:
                found.add(number)
                constant.update(node.output)
        return frozenset(found)

    @property
    def inside(self) -> dict[str, str]:
        """Maps the name of a layer in a branch, loop or function to that of the node it is
        part of.
        """
        return self._importer.inner_layers()

    def outputs_of(self, numbers: Iterable[int]) -> list[str]:
        """Returns the values that nodes define and other nodes use; for a node without such values,
        its first.
        """
        used = self._used_by(range(len(self.nodes))) | self._results
        found: list[str] = []
        for number in sorted(numbers):
            own = [o for o in self.nodes[number].output if o]
            found += [o for o in own if o in used] or own[:1]
        return found

    @property
    def output_names(self) -> list[str]:
        """Names of the model's outputs in order."""
        return [o.name for o in self._graph.output]

    @property
    def _results(self) -> set[str]:
        return set(self.output_names)

    def _used_by(self, numbers: Iterable[int]) -> set[str]:
        return {use for number in numbers for use in self._uses[number]}

    def boundary(
        self, numbers: Collection[int], ends: Collection[str] = ()
    ) -> tuple[list[str], list[str]]:
        """Returns the outside values that nodes use, except known ones and parameters; and the
        values of theirs that are used outside (or are among `ends`), in order.
        """
        own = set(numbers) - self.fixed
        made = {o for n in own for o in self.nodes[n].output if o}
        fixed = {o for n in self.fixed for o in self.nodes[n].output}
        constant = fixed | self._parameters.keys() | self._sparse.keys()
        inputs: dict[str, None] = {}
        outputs: list[str] = []
        wanted = self._used_by(set(range(len(self.nodes))) - own) | self._results | set(ends)
        for number in sorted(own):
            node = self.nodes[number]
            known = [u for u in _in_order_of_use(node, self._uses[number]) if u not in made]
            inputs.update(
                dict.fromkeys(u for u in known if u not in constant and self._settled(u) is None)
            )
            outputs += [o for o in node.output if o and o in wanted]
        return list(inputs), outputs

    def _settled(self, name: str) -> NDArray[Any] | None:
        return self._importer.settled(name)

    def giving(self, names: Sequence[str]) -> Module:
        """Returns the whole model as a module with these values, in this order, as its outputs."""
        model = ModelProto()
        model.CopyFrom(self._loaded.model)
        del model.graph.output[:]
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        loaded = Loaded(model, self._loaded.external, self._loaded.raw)
        return Importer(loaded, self._budgets, inputs=self._shapes).run()

    # --- the part ---

    def write(
        self,
        path: Path,
        numbers: Collection[int],
        inputs: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, NDArray[Any]],
        notes: Mapping[str, str] | None = None,
    ) -> list[Path]:
        """Writes the nodes as a model with these inputs and outputs; the arrays determine their
        types.

        Parameters are stored inside, or in a file beside it if they exceed 2 GiB in total. Returns
        the files. Raises `OSError`.
        """
        model = self._bare_model(notes or {})
        graph = model.graph
        for kind, arrays in ((graph.input, inputs), (graph.output, outputs)):
            for name, array in arrays.items():
                number = number_of(from_numpy(array.dtype))
                kind.append(onnx.helper.make_tensor_value_info(name, number, array.shape))
        own = self._with_fixed(numbers)
        graph.node.extend(self.nodes[n] for n in sorted(own))
        self._keep_functions(model, graph.node)
        made = {o for n in own for o in self.nodes[n].output}
        inner = made | set(inputs)
        graph.value_info.extend(
            v for v in self._graph.value_info if v.name in made and v.name not in outputs
        )
        graph.quantization_annotation.extend(
            q for q in self._graph.quantization_annotation if q.tensor_name in inner
        )
        missing = self._used_by(own) - inner
        return self._save(path, model, [n for n in self._ordered(missing) if n not in inner])

    def _with_fixed(self, numbers: Collection[int]) -> set[int]:
        """Returns nodes together with the fixed nodes that they use."""
        found = set(numbers) - self.fixed
        pending = sorted(found) + sorted(set(numbers) & self.fixed)
        found |= set(pending)
        while pending:
            for use in self._uses[pending.pop()]:
                producer = self._producer.get(use)
                if producer in self.fixed and producer not in found:
                    found.add(producer)
                    pending.append(producer)
        return found

    def _ordered(self, names: Collection[str]) -> list[str]:
        """Returns parameters in the order of the model, other names after them."""
        place = {**self._parameters}
        return sorted(names, key=lambda n: (place.get(n, len(place)), n))

    def _bare_model(self, notes: Mapping[str, str]) -> ModelProto:
        model = ModelProto()
        whole = self._loaded.model
        for name in ("ir_version", "producer_name", "producer_version", "domain", "model_version"):
            setattr(model, name, getattr(whole, name))
        # In older versions, a parameter was an input as well.
        model.ir_version = max(model.ir_version, _IR_VERSION_OF_BARE_INITIALIZERS)
        model.opset_import.extend(whole.opset_import)
        model.graph.name = self._graph.name or "part"
        for key, note in notes.items():
            model.metadata_props.add(key=key, value=note)
        return model

    def _keep_functions(self, model: ModelProto, nodes: Iterable[NodeProto]) -> None:
        """Gives a model the functions that its nodes call, directly or through other functions."""
        known = functions_of(self._loaded.model)
        found: set[Any] = set()
        pending = list(nodes)
        while pending:
            for node in with_inner([pending.pop()]):
                key = function_key(node)
                if key in known and key not in found:
                    found.add(key)
                    pending.extend(known[key].node)
        model.functions.extend(f for key, f in known.items() if key in found)

    def _save(self, path: Path, model: ModelProto, missing: Sequence[str]) -> list[Path]:
        tensors: list[tuple[str, NDArray[Any]]] = []
        for name in missing:
            if name in self._sparse:
                model.graph.sparse_initializer.append(
                    self._graph.sparse_initializer[self._sparse[name]]
                )
            else:
                value = self._parameter(name)
                if value is not None:
                    tensors.append((name, value))
        size_bytes = sum(a.size * bits(from_numpy(a.dtype)) // 8 for _, a in tensors)
        if size_bytes <= self._most_inside_bytes:
            for name, array in tensors:
                model.graph.initializer.append(_tensor(name, array))
            write_bytes(path, model.SerializeToString())
            return [path]
        beside = path.with_name(f"{path.name}.data")
        with replacing(beside) as data:
            for name, array in tensors:
                tensor = _tensor(name, array)
                raw = tensor.raw_data
                tensor.ClearField("raw_data")
                tensor.data_location = TensorProto.EXTERNAL
                data.write(b"\0" * (-data.tell() % 4096))
                place = {"location": beside.name, "offset": data.tell(), "length": len(raw)}
                for key, entry in place.items():
                    tensor.external_data.add(key=key, value=str(entry))
                data.write(raw)
                model.graph.initializer.append(tensor)
        write_bytes(path, model.SerializeToString())
        return [path, beside]

    def _parameter(self, name: str) -> NDArray[Any] | None:
        """Returns a parameter's elements, or the known value of that name."""
        position = self._parameters.get(name)
        if position is None:
            return self._settled(name)
        part = self._loaded.raw.get(position)
        tensor = self._graph.initializer[position]
        return to_array(tensor, self._loaded.external, self._budgets, part)


def _tensor(name: str, array: NDArray[Any]) -> TensorProto:
    """Returns a tensor of these elements as raw bytes."""
    dtype = from_numpy(array.dtype)
    tensor = TensorProto(name=name, data_type=number_of(dtype), dims=array.shape)
    tensor.raw_data = packed(array)
    return tensor


def _is_chance(node: NodeProto) -> bool:
    return node.op_type.startswith("Random") or node.op_type in ("Multinomial", "Bernoulli")


def _in_order_of_use(node: NodeProto, uses: Collection[str]) -> list[str]:
    """Returns the values that a node uses: its inputs in order, then outside values of its
    subgraphs.
    """
    own = [name for name in node.input if name]
    return list(dict.fromkeys([*own, *sorted(set(uses) - set(own))]))
