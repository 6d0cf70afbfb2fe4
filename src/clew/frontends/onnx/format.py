"""ONNX as a format of model files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from onnx import ModelProto

from clew.frontends.cutting import Cutter
from clew.frontends.format import FileRun, Format, Peer
from clew.frontends.listing import Listing
from clew.frontends.objects import class_names
from clew.frontends.onnx import load, load_or_defer
from clew.frontends.onnx.file.cut import OnnxCutter
from clew.frontends.onnx.file.listing import list_model
from clew.frontends.onnx.file.sources import NodeView
from clew.frontends.onnx.runtime import OnnxPeer, OnnxRun
from clew.frontends.quantized import Operand, Product
from clew.ir.deferred import DeferredModule
from clew.ir.module import Module
from clew.support.kinds import Kind
from clew.support.recognize import Head
from clew.trace.span import Source

# The fields of a ModelProto, as numbers and wire types. Source: the .proto file of ONNX.
_FIELDS: Final = frozenset(
    ((1, 0), (2, 2), (3, 2), (4, 2), (5, 0), (6, 2), (7, 2), (8, 2), (14, 2), (20, 2), (25, 2),
     (26, 2))
)  # fmt: skip
_GRAPH, _VERSION, _OPSETS = (7, 2), (1, 0), (8, 2)


class Onnx(Format):
    """An ONNX file, or a message (`ModelProto`), its bytes, or an object that holds one."""

    name = "onnx"
    title = "ONNX"
    what = "an ONNX model"
    suffix = ".onnx"
    engine = "onnxruntime"
    engine_title = "ONNX Runtime"
    reads_bytes = uploads = True
    may_seem = ("folder",)
    folder = Kind("a folder with ONNX files", "give one of the files in it")

    def recognizes(self, head: Head) -> bool:
        """Whether it is a message with the fields of a ModelProto."""
        fields = head.fields
        some = _VERSION in fields or _OPSETS in fields
        return some and _GRAPH in fields and _FIELDS.issuperset(fields)

    def source_of(self, model: Any) -> ModelProto | None:
        """Returns a message: the object itself, or the one in an object of torch, onnx_ir or
        onnxscript.
        """
        if isinstance(model, ModelProto):
            return model
        names = class_names(model)
        held: ModelProto | None = None
        if "torch.onnx._internal.exporter._onnx_program.ONNXProgram" in names:
            held = model.model_proto
        elif names & {"onnx_ir._core.Model", "onnxscript.ir._core.Model"}:
            from onnx_ir import to_proto  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415

            held = to_proto(model)
        elif "onnxscript.values.OnnxFunction" in names:
            held = model.to_model_proto()
        return held

    def load(self, source: Any, **options: Any) -> Module:
        """Returns the module. Errors: see `clew.frontends.onnx.load`."""
        return load(source, **options)

    def load_or_defer(self, source: Any, **options: Any) -> Module | DeferredModule:
        """Returns the module, or a `DeferredModel`. Errors: as `load`."""
        return load_or_defer(source, **options)

    def listing(
        self, path: str | os.PathLike[str], layers: Mapping[str, str] | None = None
    ) -> Listing:
        """Returns the nodes of a file. Errors: M..."""
        return list_model(path, layers)

    def cutter(
        self, path: str | os.PathLike[str], shapes: Mapping[str, Sequence[int | str]]
    ) -> Cutter:
        """Returns a file to cut. Errors: those of `load`."""
        return OnnxCutter(path, shapes)

    def run(self, path: Path, inputs: Mapping[str, Any], /, **options: Any) -> FileRun:
        """Returns a run in ONNX Runtime. Errors: I173, and those of `load`."""
        names: dict[str, tuple[str, ...]] = {}

        def note(source: Source, node: NodeView) -> Source:
            names[source.layer] = node.outputs
            return source

        load(path, annotate=note, **options)
        return OnnxRun(path, inputs, names)

    def peer(self, path: Path, threads: int | None = None) -> Peer:
        """Returns a file in ONNX Runtime. Errors: I062."""
        return OnnxPeer(path)

    def write_quantized(
        self,
        source: Any,
        path: Path,
        products: Sequence[Product],
        operands: Sequence[Operand],
        notes: Mapping[str, str],
        form: str,
    ) -> None:
        """Writes the file with QuantizeLinear and DequantizeLinear, or MatMulNBits."""
        # It imports the converter of opsets.
        from clew.frontends.onnx.file.qdq import write_quantized  # noqa: PLC0415

        write_quantized(source, path, products, operands, notes, form)
