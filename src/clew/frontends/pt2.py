"""Files of exported programs, which `torch.export.save` writes (`frontends/torch/`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clew.frontends.format import FileRun, Format
from clew.frontends.objects import class_names
from clew.ir.module import Module
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING
from clew.support.recognize import Head, has_members


class ExportedProgram(Format):
    """A file of an exported program. torch, which is optional and slow to import, is imported for
    the first one.
    """

    name = "pt2"
    title = "PyTorch"
    what = "an exported program of PyTorch"
    suffix = ".pt2"
    engine = engine_title = "torch"
    may_seem = ("folder", "zip")

    def recognizes(self, head: Head) -> bool:
        """Whether it is an archive with the description of a program."""
        return has_members(head, ("archive_format", ".json")) or has_members(
            head, ("serialized_exported_program.json",)
        )

    def source_of(self, model: Any) -> Any:
        """Returns a program."""
        is_program = "torch.export.exported_program.ExportedProgram" in class_names(model)
        return model if is_program else None

    def load(self, source: Any, **options: Any) -> Module:
        """Returns the module of a file, or of a program. Errors: I415 (torch is not installed)."""
        with LOADING, held_interrupts():
            from clew.frontends.torch import load  # noqa: PLC0415 - optional, slow to import

        return load(source, **options)

    def run(self, path: Path, inputs: Mapping[str, Any], /, **options: Any) -> FileRun:
        """Returns a run in torch.

        Errors: I415 (torch is not installed), M050, M052, M053, I173.
        """
        with LOADING, held_interrupts():
            from clew.frontends.torch.reference import ProgramRun  # noqa: PLC0415 - as above

        return ProgramRun(path, inputs)

    def compiled(
        self, path: Path, threads: int, backend: str, narrow: bool
    ) -> Callable[[Mapping[str, Any]], list[Any]]:
        """Returns a function that runs a file through `torch.compile`, from inputs by name to
        outputs in order. With `narrow`, products are in bfloat16.

        Errors: I415 (torch is not installed), M052 and M053 (it cannot be read).
        """
        with LOADING, held_interrupts():
            from clew.frontends.torch.compiled_program import load  # noqa: PLC0415 - as above

        return load(path, threads, backend, narrow)
