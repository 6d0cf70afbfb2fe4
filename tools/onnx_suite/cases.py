"""The cases: those that `onnx` generates when it is imported, and those on its disk."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, numpy_helper

KINDS: Final = ("node", "simple", "light", "pytorch-converted", "pytorch-operator")
DATA: Final = Path(onnx.__file__).parent / "backend" / "test" / "data"
# Tolerances of the cases in `light`, as onnx/backend/test/case/model has them.
_LIGHT_RTOL: Final = {"densenet121": 2e-3}


@dataclass
class Case:
    """A model with inputs and what it must give for them."""

    kind: str
    name: str
    rtol: float
    atol: float
    folder: Path | None = None
    made: Any = field(default=None, repr=False)
    light: Path | None = None

    @property
    def key(self) -> str:
        """`kind/name`, unique."""
        return f"{self.kind}/{self.name}"

    @cached_property
    def model(self) -> ModelProto:
        """The model's message."""
        if self.made is not None and self.made.model is not None:
            made: ModelProto = self.made.model
            return made
        path = self.light or (self.folder or Path()) / "model.onnx"
        return onnx.load(str(path))

    @property
    def source(self) -> ModelProto | Path:
        """The argument for `clew.compile`: a file if the case is one."""
        if self.light is not None:
            return self.light
        return self.model if self.folder is None else self.folder / "model.onnx"

    def data_sets(self) -> Iterator[tuple[dict[str, Any], list[Any]]]:
        """Yields inputs by name, and outputs in order: arrays, lists, None."""
        if self.light is not None:
            yield self._light_data()
        elif self.made is not None and self.made.data_sets is not None:
            for inputs, outputs in self.made.data_sets:
                yield self._named([_plain(v) for v in inputs]), [_plain(v) for v in outputs]
        else:
            assert self.folder is not None
            for folder in sorted(self.folder.glob("test_data_set*")):
                graph = self.model.graph
                inputs = _read(folder, "input", [v.type for v in graph.input])
                yield self._named(inputs), _read(folder, "output", [v.type for v in graph.output])

    def _named(self, inputs: Sequence[Any]) -> dict[str, Any]:
        return dict(zip((v.name for v in self.model.graph.input), inputs, strict=False))

    def _light_data(self) -> tuple[dict[str, Any], list[Any]]:
        """The runner's made-up inputs, and the outputs stored beside the model."""
        assert self.light is not None
        graph = self.model.graph
        constants = {t.name for t in graph.initializer}
        feeds = {}
        for value in graph.input:
            if value.name in constants:
                continue
            shape = [d.dim_value or 1 for d in value.type.tensor_type.shape.dim]
            count = int(np.prod(shape))
            feeds[value.name] = (np.arange(count).reshape(shape) / count).astype(np.float32)
        stem = self.light.with_suffix("")
        wanted = [
            _tensor(Path(f"{stem}_output_{n}.pb").read_bytes()) for n in range(len(graph.output))
        ]
        return feeds, wanted

    @cached_property
    def operators(self) -> frozenset[tuple[str, str]]:
        """Domains and types of all operators in its graph and the graphs within."""
        return frozenset(_operators(self.model.graph))

    @property
    def is_expansion(self) -> bool:
        """Whether it is the definition of an operator that has its own case."""
        return "_expanded" in self.name

    @property
    def label(self) -> str:
        """The operators that it is about, for people."""
        names = {f"{d}.{t}" if d else t for d, t in self.operators}
        return "+".join(sorted(names)) or "(none)"


def _operators(graph: GraphProto) -> Iterator[tuple[str, str]]:
    for node in graph.node:
        yield "" if node.domain == "ai.onnx" else node.domain, node.op_type
        for inner in _graphs(node):
            yield from _operators(inner)


def _graphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


@cache
def all_cases() -> dict[str, Case]:
    """Returns every case by key. The first call takes seconds: `onnx` generates most of them."""
    found = [case for kind in KINDS for case in _of_kind(kind)]
    return {case.key: case for case in found}


def chosen(patterns: Iterable[str]) -> dict[str, Case]:
    """Returns the cases whose key or name starts with one of `patterns`; all without any."""
    starts = tuple(patterns)
    return {
        key: case
        for key, case in all_cases().items()
        if not starts or key.startswith(starts) or case.name.startswith(starts)
    }


def _of_kind(kind: str) -> Iterator[Case]:
    if kind == "light":
        for path in sorted((DATA / "light").glob("light_*.onnx")):
            name = path.stem.removeprefix("light_")
            yield Case(kind, f"test_{name}", _LIGHT_RTOL.get(name, 1e-3), 1e-7, light=path)
        return
    with warnings.catch_warnings(), _scratch_home():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests  # noqa: PLC0415 - makes the cases

        for made in load_model_tests(kind=kind):
            folder = None if made.model_dir is None else Path(made.model_dir)
            yield Case(kind, made.name, made.rtol, made.atol, folder, made)


class _scratch_home:
    """`onnx` writes below $ONNX_HOME: a folder of this process's own meanwhile."""

    def __enter__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="clew-onnx-home-")
        self._before = os.environ.get("ONNX_HOME")
        os.environ["ONNX_HOME"] = self._folder.name

    def __exit__(self, *_: object) -> None:
        if self._before is None:
            del os.environ["ONNX_HOME"]
        else:
            os.environ["ONNX_HOME"] = self._before
        self._folder.cleanup()


def _read(folder: Path, prefix: str, types: Sequence[TypeProto]) -> list[Any]:
    files = [folder / f"{prefix}_{n}.pb" for n in range(len(types))]
    return [_value(f.read_bytes(), t) for f, t in zip(files, types, strict=True) if f.exists()]


def _value(data: bytes, type_: TypeProto) -> Any:
    if type_.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if type_.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return _tensor(data)


def _tensor(data: bytes) -> Any:
    return numpy_helper.to_array(TensorProto.FromString(data))


def _plain(value: Any) -> Any:
    """Returns a case's value as arrays, lists of them, or None."""
    if value is None:
        return None
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return np.asarray(value)
