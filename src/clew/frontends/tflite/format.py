"""TFLite as a format of model files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clew.frontends.format import FileRun, Format, Peer
from clew.frontends.listing import Listing
from clew.ir.deferred import DeferredModule
from clew.ir.module import Module
from clew.support.errors import InputError
from clew.support.recognize import Head


class Tflite(Format):
    """A TFLite file, or its bytes. The reader is imported with the first file, because few models
    need it.
    """

    name = "tflite"
    title = "TFLite"
    what = "a TFLite model"
    suffix = ".tflite"
    engine = "litert"
    engine_title = "LiteRT"
    reads_bytes = uploads = has_signatures = True

    def recognizes(self, head: Head) -> bool:
        """Whether the FlatBuffer has the identifier of the schema."""
        return head.start[4:8] == b"TFL3"

    def load(self, source: Any, **options: Any) -> Module:
        """Returns the module. Errors: see `clew.frontends.tflite.load`."""
        from clew.frontends.tflite.loader import load  # noqa: PLC0415 - see above

        return load(source, **options)

    def load_or_defer(self, source: Any, **options: Any) -> Module | DeferredModule:
        """Returns the module, or an object that imports the file in a run.

        Errors: see `clew.frontends.tflite.load`.
        """
        from clew.frontends.tflite.loader import load_or_defer  # noqa: PLC0415 - see above

        return load_or_defer(source, **options)

    def listing(
        self, path: str | os.PathLike[str], layers: Mapping[str, str] | None = None
    ) -> Listing:
        """Returns the operators, with subgraphs. Errors: M..., U004."""
        from clew.frontends.tflite.file.listing import list_model  # noqa: PLC0415 - see above

        return list_model(path, layers)

    def run(self, path: Path, inputs: Mapping[str, Any], /, **options: Any) -> FileRun:
        """Returns a run of a file in LiteRT.

        Errors: I173, and those of `load`.
        """
        from clew.frontends.tflite.reference import LiteRun  # noqa: PLC0415 - see above

        if options.get("signature") is not None:
            raise InputError(
                "I173",
                "LiteRT's layers are those of the main graph",
                hint="leave out the signature",
            )
        module = self.load(path, **options)
        return LiteRun(path, inputs, module.input_names, module.output_names)

    def peer(self, path: Path, threads: int | None = None) -> Peer:
        """Returns a file in LiteRT, to compare with. Errors: I062."""
        from clew.frontends.tflite.reference import LitePeer  # noqa: PLC0415 - see above

        return LitePeer(path, threads)
