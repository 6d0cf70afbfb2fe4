"""References for a result: ONNX Runtime, torch, a file of values, level 0, the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from clew.api.compile import compile
from clew.backends.compile_options import CompileOptions
from clew.build.wishes import layers_of
from clew.frontends import run_file
from clew.frontends.format import FileRun, Format
from clew.frontends.formats import all_formats, format_of
from clew.ir.module import Module
from clew.support.archives import Archive
from clew.support.errors import ClewWarning, InputError, warn
from clew.support.files import reason_of
from clew.support.near import did_you_mean

_OF_THE_MACHINE: Final = ("target", "threads", "cache")
OWN: Final = ("opt0", "interpreter")
"""References other than the engines of formats."""
Values = dict[str, Any]


@dataclass
class Reference:
    """The correct outputs of a model, by name, and, if known, the correct values of its layers.

    `text` names the reference. `layers` returns values by layer and output number. `of_import` says
    whether the reference can also judge clew's import of the model.
    """

    text: str
    outputs: Values
    of_import: bool
    layers: Callable[[], Mapping[tuple[str, int], Any]] = dict
    file: FileRun | None = None


def reference_of(
    wanted: Any,
    model: Any,
    module: Module,
    inputs: Mapping[str, Any],
    options: CompileOptions,
    load_options: Mapping[str, Any],
) -> Reference | None:
    """Returns the reference given by a user: one of `names()`, a file, or outputs by name; None for
    the interpreter, whose outputs are those of the first stage.

    Errors: I170 for an unknown reference, I171 for a file that cannot be read or has no output,
    I173 (ONNX Runtime or torch), I174 for a model that the reference does not run.
    """
    if isinstance(wanted, Mapping):
        return _of_values("the given values", dict(wanted), module)
    if wanted == "interpreter":
        return None
    if wanted == "opt0":
        plain = of_the_machine(options).changed(opt_level=0)
        found = compile(module, **plain).run(dict(inputs))
        return Reference("opt level 0", found, of_import=False)
    engine = next((f for f in all_formats() if f.engine and f.engine == wanted), None)
    if engine is not None:
        return _of_engine(engine, model, inputs, load_options)
    path = Path(str(wanted))
    if path.suffix != ".npz":
        raise InputError(
            "I170",
            f"no reference {str(wanted)!r}",
            hint=f"it is one of {', '.join(names())}, or a .npz file of outputs by name",
        )
    return _of_values(path.name, _stored(path), module)


def names() -> tuple[str, ...]:
    """Returns the names of references: the engines of formats, and clew's own."""
    return (*(f.engine for f in all_formats() if f.engine), *OWN)


def of_the_machine(options: CompileOptions) -> CompileOptions:
    """Returns the options of a compilation that describe the machine and do not affect results."""
    kept = {n: v for n, v in options.values().items() if n in _OF_THE_MACHINE}
    return CompileOptions().changed(**kept)


def _stored(path: Path) -> Values:
    try:
        with Archive(path) as stored:
            return dict(stored)
    except (OSError, ValueError) as error:
        raise InputError(
            "I171",
            f"the reference {str(path)!r} cannot be read: {reason_of(error)}",
            hint="numpy.savez(file, **outputs) writes one",
        ) from None


def _check_layers(names: Sequence[str], text: str, module: Module) -> None:
    """Warns about values whose names match no layer, since nothing is compared with them."""
    known = layers_of(module)
    for name in names:
        layer, _, number = name.rpartition(":")
        if name not in known and not (number.isdecimal() and layer in known):
            hint = did_you_mean(name, [*module.output_names, *known], "outputs and layers")
            message = f"{text}: {name!r} is neither an output nor a layer, and is not compared"
            warn(ClewWarning("I314", message, hint=hint))


def _of_values(text: str, values: Values, module: Module) -> Reference:
    outputs = {n: values[n] for n in module.output_names if n in values}
    if not outputs:
        raise InputError(
            "I171",
            f"{text}: no value has the name of an output",
            hint=f"the outputs are {', '.join(module.output_names)}",
        )
    layers = {(n, 0): v for n, v in values.items() if n not in outputs}
    _check_layers([n for n in values if n not in outputs], text, module)
    for name in list(values):
        layer, _, number = name.rpartition(":")
        if layer and number.isdecimal():
            layers[layer, int(number)] = values[name]
    return Reference(text, outputs, of_import=True, layers=lambda: layers)


def _of_engine(
    engine: Format, model: Any, inputs: Mapping[str, Any], load_options: Mapping[str, Any]
) -> Reference:
    path = Path(str(model)) if isinstance(model, (str, Path)) else None
    if path is None or format_of(path) is not engine:
        raise InputError(
            "I174",
            f"{engine.engine_title} runs {engine.suffix} files, but the model is not one",
            hint="give the model as a path, or another reference",
        )
    run = run_file(path, inputs, **load_options)
    return Reference(engine.engine_title, dict(run.outputs), True, run.layers, run)
