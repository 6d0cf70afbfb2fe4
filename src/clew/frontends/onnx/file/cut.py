"""Cuts a model: the same nodes, parameters, functions and opsets, between given values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final

import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from clew.frontends.cutting import CutLayer, Cutter
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


class OnnxCutter(Cutter):
    """A model whose nodes are numbered.

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
        module = self._importer.run()
        graph = self._graph
        self._dense = {t.name: n for n, t in enumerate(graph.initializer)}
        self._sparse = {t.values.name: n for n, t in enumerate(graph.sparse_initializer)}
        held = self._dense.keys() | self._sparse.keys()
        inputs = {i.name for i in graph.input} - held
        ordered = in_order(graph.node, held | inputs)
        self._nodes: list[NodeProto] = [node for _, node in ordered]
        super().__init__(
            module,
            [_layer(self._importer.layer_name(index), node) for index, node in ordered],
            held,
            [o.name for o in graph.output],
            self._importer.inner_layers(),
        )

    @property
    def _graph(self) -> GraphProto:
        return self._loaded.model.graph

    def is_settled(self, name: str) -> bool:
        """Whether the import knows a value."""
        return self._settled(name) is not None

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

        Parameters are stored inside, or in a file next to it if they exceed 2 GiB in total. Returns
        the files. Raises `OSError`.
        """
        model = self._bare_model(notes or {})
        graph = model.graph
        for kind, arrays in ((graph.input, inputs), (graph.output, outputs)):
            for name, array in arrays.items():
                number = number_of(from_numpy(array.dtype))
                kind.append(onnx.helper.make_tensor_value_info(name, number, array.shape))
        own = self.with_fixed(numbers)
        graph.node.extend(self._nodes[n] for n in sorted(own))
        self._keep_functions(model, graph.node)
        made = {o for n in own for o in self._nodes[n].output}
        inner = made | set(inputs)
        graph.value_info.extend(
            v for v in self._graph.value_info if v.name in made and v.name not in outputs
        )
        graph.quantization_annotation.extend(
            q for q in self._graph.quantization_annotation if q.tensor_name in inner
        )
        missing = self.used_by(own) - inner
        return self._save(path, model, [n for n in self._ordered(missing) if n not in inner])

    def _ordered(self, names: Collection[str]) -> list[str]:
        """Returns parameters in the order of the model, other names after them."""
        place = {**self._dense}
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
        position = self._dense.get(name)
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


def _layer(name: str, node: NodeProto) -> CutLayer:
    """Returns a node as a layer: it uses its inputs, then outside values of its subgraphs."""
    own = [name for name in node.input if name]
    uses = dict.fromkeys([*own, *sorted(set(uses_of(node)) - set(own))])
    random = any(_is_chance(n) for n in with_inner([node]))
    return CutLayer(name, tuple(uses), tuple(o for o in node.output if o), random)
