"""TFLite as a format of model files."""

from __future__ import annotations

from typing import Any

from clew.frontends.format import Format
from clew.ir.module import Module
from clew.support.recognize import Head


class Tflite(Format):
    """A TFLite file, or its bytes."""

    name = "tflite"
    title = "TFLite"
    what = "a TFLite model"
    suffix = ".tflite"
    reads_bytes = uploads = has_signatures = True

    def recognizes(self, head: Head) -> bool:
        """Whether its FlatBuffer has the identifier of the schema."""
        return head.start[4:8] == b"TFL3"

    def load(self, source: Any, **options: Any) -> Module:
        """Returns the module. Errors: see `clew.frontends.tflite.load`."""
        from clew.frontends.tflite import load  # noqa: PLC0415 - few models need it

        return load(source, **options)
