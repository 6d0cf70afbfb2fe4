"""Formats of model files: what every reader offers to the rest of clew.

A format is a subclass of `Format`, listed in `formats.py` or by the entry point group
`clew.formats`. `docs/adding-a-format.md` writes one.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

from clew.frontends.cutting import Cutter
from clew.frontends.listing import Listing
from clew.frontends.quantized import Operand, Product
from clew.frontends.texts import ModelTexts
from clew.ir.deferred import DeferredModule
from clew.ir.module import Module
from clew.support.dataclass import dataclass
from clew.support.kinds import Kind
from clew.support.recognize import Head

Source: TypeAlias = Any
"""A file's name, bytes, or an object of the format's library."""


@dataclass(frozen=True)
class LoneLayer:
    """A model of one layer: the bytes of a file, its suffix, and values by name that include the
    model's inputs and outputs.
    """

    data: bytes
    suffix: str
    values: Mapping[str, Any]


class FileRun(ABC):
    """A run of a model's file by the reference engine of its format, with its `outputs` by name."""

    def __init__(self, outputs: Mapping[str, Any]) -> None:
        self.outputs = outputs

    @abstractmethod
    def layers(self) -> Mapping[tuple[str, int], Any]:
        """Returns the values of layers, by layer and number of the result."""

    def alone(self, layer: str) -> LoneLayer | None:
        """Returns a model of one layer; None if it cannot be cut out of the file."""
        return None


class Peer(Protocol):
    """A model in another engine, which compares with it."""

    def outputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns its outputs by name."""
        ...


class Format(ABC):
    """A format of model files. All but `recognizes` and `load` are optional.

    `name` identifies it, `title` is for messages, and `what` completes "it is ...". `engine` is the
    name of its reference engine, "" if there is none. Bytes are given to the format that
    `reads_bytes`, unless they are of another. The explorer takes uploads of a format that
    `uploads`. Of a format that `has_signatures`, `load` takes a `signature`.

    The suffix decides for files that no format recognizes, if their bytes tell nothing, or one of
    the kinds in `may_seem`. `folder` is the kind of a folder with files of the suffix.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    what: ClassVar[str]
    suffix: ClassVar[str]
    engine: ClassVar[str] = ""
    engine_title: ClassVar[str] = ""
    reads_bytes: ClassVar[bool] = False
    uploads: ClassVar[bool] = False
    has_signatures: ClassVar[bool] = False
    may_seem: ClassVar[tuple[str, ...]] = ()
    folder: ClassVar[Kind | None] = None

    @property
    def lists(self) -> bool:
        """Whether it has `listing`."""
        return type(self).listing is not Format.listing

    @property
    def cuts(self) -> bool:
        """Whether it has `cutter`."""
        return type(self).cutter is not Format.cutter

    @property
    def compares(self) -> bool:
        """Whether it has `peer`."""
        return type(self).peer is not Format.peer

    @property
    def quantizes(self) -> bool:
        """Whether it has `write_quantized`."""
        return type(self).write_quantized is not Format.write_quantized

    @property
    def file(self) -> str:
        """What messages call a file of the format: "an ONNX file"."""
        return f"{'an' if self.title[:1].lower() in 'aeiou' else 'a'} {self.title} file"

    @abstractmethod
    def recognizes(self, head: Head) -> bool:
        """Whether a file is of this format, by its bytes."""

    def recognizes_folder(self, names: Sequence[str]) -> bool:
        """Whether a folder with files of these names is a model of this format."""
        return False

    def texts(self, path: Path) -> ModelTexts | None:
        """Returns what a language model's file says about texts; None if files of this format say
        nothing, as the model's folder has them.
        """
        return None

    def source_of(self, model: Any) -> Source | None:
        """Returns an object that holds a model as a source that `load` takes; None for others. No
        library is imported.
        """
        return None

    @abstractmethod
    def load(self, source: Source, **options: Any) -> Module:
        """Returns the module of a source. `options` are `inputs` (shapes by name), `budgets`, and
        the format's own.
        """

    def load_or_defer(self, source: Source, **options: Any) -> Module | DeferredModule:
        """Returns the module; if it depends on inputs that are unknown before a run, an object that
        imports it then.
        """
        return self.load(source, **options)

    def listing(
        self, path: str | os.PathLike[str], layers: Mapping[str, str] | None = None
    ) -> Listing:
        """Returns what is in a file. `layers` are the imported layers with their operators."""
        raise NotImplementedError

    def cutter(
        self, path: str | os.PathLike[str], shapes: Mapping[str, Sequence[int | str]]
    ) -> Cutter:
        """Returns a file to cut, imported for shapes of its inputs."""
        raise NotImplementedError

    def run(self, path: Path, inputs: Mapping[str, Any], /, **options: Any) -> FileRun:
        """Returns a run of a file in the reference engine. `options` are those of `load`.

        Errors: I173 if the engine is not installed or does not run the model.
        """
        raise NotImplementedError

    def peer(self, path: Path, threads: int | None = None) -> Peer | None:
        """Returns a file in the reference engine, on some threads if it counts them; None if it
        reads files only for `run`.

        Errors: I062 if the engine is not installed or rejects the model.
        """
        return None

    def write_quantized(
        self,
        source: Source,
        path: Path,
        products: Sequence[Product],
        operands: Sequence[Operand],
        notes: Mapping[str, str],
        form: str,
    ) -> None:
        """Writes a file with the quantized form of some products."""
        raise NotImplementedError
