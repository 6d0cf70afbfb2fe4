"""A part of a model that runs alone: its module, and values that a run of the whole gave it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Final

import numpy as np

from clew.compiled import CompiledModel
from clew.compiler import compile
from clew.extraction import files
from clew.extraction.capture import Unkept
from clew.extraction.stored import StoredPart
from clew.support.difference import relative_error
from clew.support.errors import InputError
from clew.support.shown import Brief, Shown, counted

Array = np.ndarray[Any, Any]
# How far results may lie from those of the imported graph where the part is compiled otherwise.
TOLERANCE: Final = 1e-3
# The options that change no bit of a result.
_HARMLESS: Final = frozenset({"threads", "cache", "trace", "guard", "on_progress", "instruments"})
# How a part of the optimized program is compiled: its kernels are as they were fused.
AS_FUSED: Final[Mapping[str, Any]] = {"passes": ()}


@dataclass(frozen=True)
class OutputCheck:
    """How a result compares with the captured one: `error` is relative to its largest value."""

    name: str
    same_bits: bool
    error: float


@dataclass(frozen=True, repr=False)
class CheckReport(Shown):
    """The results of a part that ran alone against the captured ones.

    `exact` says that every bit had to be the same; else `tolerance` bounds the relative error.
    """

    part: str
    outputs: tuple[OutputCheck, ...]
    exact: bool
    tolerance: float

    def _about(self) -> str:
        return f"{self.part}: {'as captured' if self.passed else 'NOT as captured'}"

    @property
    def passed(self) -> bool:
        """Whether all results are as they should be."""
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


@dataclass(frozen=True, repr=False)
class Part(StoredPart, Shown):
    """A part of a model, as a module of its own, with captured values.

    `kind` is `layers`, `kernel`, `nodes` (of the executor) or `pattern`; `layers` are those it
    works for. `inputs` and `outputs` are the values of one run of the whole model. `options` are
    those that it must be compiled with to reproduce them bit for bit. `notes` say what else one
    should know. `onnx` gives its ONNX form as a part of its own, where it has one.
    """

    onnx: Callable[[], OnnxPart] | None = None

    def _about(self) -> str:
        layers = counted(len(self.layers), "layer")
        return f"{self.name} of {layers}: {len(self.inputs)} in, {len(self.outputs)} out"

    def __str__(self) -> str:
        return str(self.module)

    def compile(self, **options: Any) -> CompiledModel:
        """Returns the part compiled: as captured, but for the options of `clew.compile` given."""
        captured = dict(self.options)
        if "passes" in options:
            captured.pop("required", None)  # it names one of the usual passes
        return compile(self.module, **{**captured, "instruments": [Unkept()], **options})

    def check(self, *, tolerance: float = TOLERANCE, **options: Any) -> CheckReport:
        """Runs the part on the captured inputs and compares its results with the captured ones:
        bit for bit where it is compiled as captured, within `tolerance` with other options.

        Errors: I136 for a part that holds no captured values.
        """
        if not self.outputs:
            raise InputError(
                "I136",
                f"{self.name} holds no captured values",
                hint="they lie in the .npz that was written beside it",
            )
        found = self.compile(**options).run(self.inputs)
        checks = [compared(n, found[n], wanted) for n, wanted in self.outputs.items()]
        return check_of(self.name, checks, options, self.options, tolerance)

    def save(self, path: str | Path) -> list[Path]:
        """Writes the part, and returns the files: clew text (`.txt`), ONNX (`.onnx`) or a script
        that runs by itself (`.py`); captured values, and weights where the form has none, lie in
        an `.npz` beside it.

        Errors: I135 for other suffixes, I137 for what has no ONNX form, I138 for a path that cannot
        be written.
        """
        path = Path(path)
        if path.suffix == ".onnx":
            if self.onnx is None:
                raise InputError(
                    "I137",
                    f"{self.name} has no ONNX form: it was not taken from an ONNX file",
                    hint="save it as text (.txt), or extract from the .onnx file itself",
                )
            return self.onnx().save(path)
        return files.write(self, path)


@dataclass(frozen=True, repr=False)
class OnnxPart(Brief):
    """The ONNX form of a part: a model message's writer, and captured values by its own names."""

    part: Part
    write: Callable[[Path], list[Path]]

    def save(self, path: Path) -> list[Path]:
        """Writes model and values.

        Errors: I138.
        """
        with files.writing(path):
            return [*self.write(path), files.write_values(self.part, path)]


def unknown_options(options: Mapping[str, Any]) -> list[str]:
    """Returns the names that `clew.compile` has no option of."""
    return [name for name in options if name not in signature(compile).parameters]


def check_of(
    name: str,
    outputs: Sequence[OutputCheck],
    options: Mapping[str, Any],
    captured: Mapping[str, Any],
    tolerance: float,
) -> CheckReport:
    """Returns the report of a run with these options, given those that values were captured with:
    it is exact where no option differs that could change a bit.
    """
    exact = all(captured.get(k) == v for k, v in options.items() if k not in _HARMLESS)
    return CheckReport(name, tuple(outputs), exact, tolerance)


def compared(name: str, found: Any, wanted: Array) -> OutputCheck:
    """Returns how a result compares with the captured one."""
    array = np.asarray(found)
    same = array.dtype == wanted.dtype and array.shape == wanted.shape
    bits = same and array.tobytes() == wanted.tobytes()
    return OutputCheck(name, bits, 0.0 if bits else relative_error(array, wanted))
