"""A part of a model that runs alone: its module, and values captured in a run of the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import numpy as np

from clew.api.compile import compile
from clew.api.compiled_model import CompiledModel
from clew.backends.compile_options import PLACES, CompileOptions
from clew.exporters.files import SAVES
from clew.extraction import files
from clew.extraction.stored import StoredPart
from clew.frontends.format import Format
from clew.frontends.formats import by_suffix
from clew.ir.size_names import sizes_in
from clew.passes.specialize import with_sizes
from clew.support.difference import relative_error
from clew.support.errors import InputError
from clew.support.near import fitting
from clew.support.shown import Brief, Shown, counted
from clew.support.text_arrays import content
from clew.tap.capture import Unkept

Array = np.ndarray[Any, Any]
T = TypeVar("T")
# The largest error of a part compiled with other options, against the imported graph.
TOLERANCE: Final = 1e-3
# The options that do not change any bit of a result.
_HARMLESS: Final = frozenset({"threads", "cache", "trace", "guard", "on_progress", "instruments"})
# The kinds of parts whose operators are those of the import.
_IMPORTED: Final = ("layers", "pattern")
# The options of a part of the optimized program: its kernels stay as they were fused.
AS_FUSED: Final[Mapping[str, Any]] = {"passes": ()}


@dataclass(frozen=True)
class OutputCheck:
    """The comparison of a result with the captured one: `error` is relative to its largest
    value.
    """

    name: str
    same_bits: bool
    error: float


@dataclass(frozen=True, repr=False)
class CheckReport(Shown):
    """The results of a part that ran alone, compared with the captured ones.

    With `exact`, every bit must be equal; otherwise `tolerance` bounds the relative error.
    """

    part: str
    outputs: tuple[OutputCheck, ...]
    exact: bool
    tolerance: float

    def _about(self) -> str:
        return f"{self.part}: {'as captured' if self.passed else 'NOT as captured'}"

    @property
    def passed(self) -> bool:
        """Whether all results match."""
        return all(self._fits(o) for o in self.outputs)

    def _fits(self, output: OutputCheck) -> bool:
        return output.same_bits or (not self.exact and output.error <= self.tolerance)

    def __str__(self) -> str:
        bound = "bit for bit" if self.exact else f"within {self.tolerance:.2g}"
        lines = [f"{self.part}: {'as captured' if self.passed else 'NOT as captured'}, {bound}"]
        for output in self.outputs:
            found = "same bits" if output.same_bits else f"relative error {output.error:.2g}"
            mark = "" if self._fits(output) else "  <-"
            lines.append(f"  {output.name}: {found}{mark}")
        return "\n".join(lines)


@dataclass(frozen=True)
class InFile(Generic[T]):
    """A form in the format of a model's file, and a function that makes it."""

    format: Format
    make: Callable[[], T]


@dataclass(frozen=True, repr=False)
class Part(StoredPart, Shown):
    """A part of a model, as a separate module, with captured values.

    `kind` is `layers`, `kernel`, `nodes` (of the executor) or `pattern`; `layers` are the layers it
    serves. `inputs` and `outputs` are the values of one run of the whole model. `options` are those
    that reproduce the outputs bit for bit. `notes` have further information. `in_file` is
    the part's form in the format of the file that it was taken from, if it has one.
    """

    in_file: InFile[FilePart] | None = None

    def _about(self) -> str:
        layers = counted(len(self.layers), "layer")
        return f"{self.name} of {layers}: {len(self.inputs)} in, {len(self.outputs)} out"

    def __str__(self) -> str:
        return str(self.module)

    def compile(self, **options: Any) -> CompiledModel:
        """Returns the part compiled with the captured options, except for the given ones.

        These may be those of the whole model: layers that `place` and `keep_f32` name and that the
        part lacks are left out.
        """
        return self.compiled(CompileOptions.named(options))

    def compiled(self, given: Mapping[str, Any]) -> CompiledModel:
        """Returns the part compiled as by `compile`, with options by their own names, those in
        groups included.
        """
        captured = dict(self.options)
        if "passes" in given:
            captured.pop("required", None)  # it names one of the default passes
        chosen = {**captured, "instruments": [Unkept()], **given, **self._named(given)}
        return compile(self.module, **CompileOptions().changed(**chosen))

    def _named(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the options that name layers, with the names of the part's layers only."""
        found: dict[str, Any] = {}
        if options.get("keep_f32"):
            found["keep_f32"] = self._own(options["keep_f32"])
        place = options.get("place")
        if isinstance(place, Mapping):
            named = {b: self._own([n] if isinstance(n, str) else n) for b, n in place.items()}
            found["place"] = {b: names for b, names in named.items() if names} or None
            if found["place"] is None:
                found["backends"] = ()
        return found

    def _own(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if fitting(name, self.layers)]

    def check(self, *, tolerance: float = TOLERANCE, **options: Any) -> CheckReport:
        """Runs the part on the captured inputs and compares its results with the captured ones: bit
        for bit if it is compiled with the captured options, else within `tolerance`.

        Errors: I136 for a part without captured values.
        """
        if not self.outputs:
            raise InputError(
                "I136",
                f"{self.name} has no captured values",
                hint="they are in the .npz file next to it",
            )
        given = CompileOptions.named(options)
        found = self.compiled(given).run(self.inputs)
        checks = [compared(n, found[n], wanted) for n, wanted in self.outputs.items()]
        return check_of(self.name, checks, given, self.options, tolerance)

    def save(self, path: str | Path) -> list[Path]:
        """Writes the part, and returns the files: clew text (`.txt`), ONNX (`.onnx`), another
        format of the model's file, or a stand-alone script (`.py`). Captured values, and weights if
        the form does not include them, are in an `.npz` file next to it.

        A part of a file of the same format has the file's own layers; otherwise, an exporter writes
        its operators.

        Errors: I135 for other suffixes, I137 for a part that has no such form, I138 for a path that
        cannot be written, U070 for an operator that the format lacks.
        """
        path = Path(path)
        wanted = by_suffix(path)
        if wanted is None or not wanted.cuts:
            return files.write(self, path)
        if self.in_file is not None and self.in_file.format is wanted:
            return self.in_file.make().save(path)
        return self._exported(wanted).save(path)

    def _exported(self, wanted: Format) -> FilePart:
        """Returns the form that an exporter of a format writes. Errors: I137."""
        save = SAVES.get(wanted.name)
        if save is None or self.kind not in _IMPORTED:
            of = "a kernel's operators" if save else f"not taken from {wanted.file}"
            raise InputError(
                "I137",
                f"{self.name} has no {wanted.title} form: it is {of}",
                hint="save it as text (.txt), or extract layers"
                if save
                else f"save it as text (.txt), or extract from the {wanted.suffix} file itself",
            )

        def write(path: Path) -> list[Path]:
            sizes = sizes_in(self.module.main.params, self.inputs)
            save(with_sizes(self.module, sizes), path, notes_of(self))
            return [path]

        return FilePart(self, write)


@dataclass(frozen=True, repr=False)
class FilePart(Brief):
    """A part in the format of its model's file: a function that writes it, and captured values by
    their names in the file.
    """

    part: Part
    write: Callable[[Path], list[Path]]

    def save(self, path: Path) -> list[Path]:
        """Writes model and values.

        Errors: I138.
        """
        with files.writing(path):
            return [*self.write(path), files.write_values(self.part, path)]


def notes_of(part: StoredPart) -> dict[str, str]:
    """Returns what the file of a part says about it."""
    return {"clew.part": part.name, "clew.layers": "\n".join(part.layers)}


def unknown_options(options: Mapping[str, Any]) -> list[str]:
    """Returns the names that are not options of `clew.compile`."""
    return [name for name in options if name not in PLACES]


def check_of(
    name: str,
    outputs: Sequence[OutputCheck],
    options: Mapping[str, Any],
    captured: Mapping[str, Any],
    tolerance: float,
) -> CheckReport:
    """Returns the report of a run with these options, given those of the captured run. The check is
    exact if no option differs that could change a bit.
    """
    exact = all(captured.get(k) == v for k, v in options.items() if k not in _HARMLESS)
    return CheckReport(name, tuple(outputs), exact, tolerance)


def compared(name: str, found: Any, wanted: Array) -> OutputCheck:
    """Returns the comparison of a result with the captured one."""
    array = np.asarray(found)
    same = array.dtype == wanted.dtype and array.shape == wanted.shape
    bits = same and content(array) == content(wanted)
    return OutputCheck(name, bits, 0.0 if bits else relative_error(array, wanted))
