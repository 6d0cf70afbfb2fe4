"""Files of parts: text or script with an `.npz` file next to it, read by `load_part`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from clew import frontends
from clew.extraction.script import script_text
from clew.extraction.stored import StoredPart
from clew.frontends.formats import by_suffix, cut_formats
from clew.ir.module import Module
from clew.ir.parser import parse_module
from clew.ir.printer import printed
from clew.ir.textfile import load_arrays, load_module, save_arrays, save_module
from clew.support.errors import InputError, TextError
from clew.support.files import json_of, reason_of, text_of
from clew.support.writing import write_text
from clew.version import VERSION

Array = np.ndarray[Any, Any]
FORMAT: Final = 1
_OWN: Final = (".txt", ".py")
# The names of arrays: `in0` ... and `out0` ... in the order of the description, then the
# description and, for scripts, the text as bytes.
_ABOUT, _TEXT = "part", "text"


def data_file(path: Path) -> Path:
    """Returns the data file of a part's file: `x.npz` for text, as for any module, `x.py.npz` and
    `x.onnx.npz`, for example, for the others.
    """
    return path.with_suffix(".npz") if path.suffix == ".txt" else path.with_name(f"{path.name}.npz")


def check_suffix(path: Path) -> None:
    """Checks that a part can be written to a file, by its suffix.

    Errors: I135.
    """
    if path.suffix in _OWN or _is_cut(path):
        return
    cut = "".join(f"{each.suffix} for {each.title}, " for each in cut_formats())
    raise InputError(
        "I135",
        f"{path.name!r} does not have the suffix of a part",
        hint=f".txt for clew text, {cut}.py for a stand-alone script",
    )


def _is_cut(path: Path) -> bool:
    """Whether a file has the suffix of a format in which parts are written."""
    found = by_suffix(path)
    return found is not None and found.cuts


def write(part: StoredPart, path: Path) -> list[Path]:
    """Writes a part as text or script with its data; returns the files.

    Errors: I135, I138.
    """
    check_suffix(path)
    beside = data_file(path)
    with writing(path):
        if path.suffix == ".txt":
            save_module(part.module, path, _values(part))
        else:
            form = printed(part.module)
            save_arrays(beside, {**form.constants, **_values(part), _TEXT: _bytes(form.text)})
            write_text(path, script_text(part, path.name), mode=0o777)
    return [path, beside]


def write_values(part: StoredPart, path: Path) -> Path:
    """Writes the captured values of a part next to its file; returns the file."""
    beside = data_file(path)
    save_arrays(beside, _values(part))
    return beside


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Creates the folder of a file, and converts a failure to write it to a coded error.

    Errors: I138 if the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = reason_of(error)
        raise InputError("I138", f"cannot write {str(path)!r}: {reason}") from None


def read(path: Path) -> dict[str, Any]:
    """Returns the fields of a part by name.

    Errors: P011 for files that are missing or damaged, I139 for files that do not contain a part.
    """
    beside = data_file(path)
    module: Module | None = None
    if path.suffix == ".txt":
        module = load_module(path)
    elif _is_cut(path):
        module = frontends.load(path)
    try:
        with load_arrays(beside, hint=f"{beside.name} holds the part's values") as arrays:
            about = json_of(arrays[_ABOUT].tobytes())
            if about["format"] != FORMAT:
                raise ValueError(f"format {about['format']}")
            if module is None:
                module = parse_module(text_of(arrays[_TEXT].tobytes()), arrays)
            inputs = {n: arrays[f"in{k}"] for k, n in enumerate(about["inputs"])}
            outputs = {n: arrays[f"out{k}"] for k, n in enumerate(about["outputs"])}
        texts = {key: tuple(about[key]) for key in ("layers", "notes")}
        named = {key: str(about[key]) for key in ("name", "kind")}
        options = {k: tuple(v) if isinstance(v, list) else v for k, v in about["options"].items()}
    except (KeyError, ValueError, TypeError, AttributeError, TextError) as error:
        if isinstance(error, TextError) and error.code == "P011":
            raise
        raise InputError(
            "I139",
            f"{str(path)!r} is not an extracted part: {error}",
            hint="clew extract writes parts, with an .npz of the same name next to each",
        ) from error
    if len(inputs) == len(module.input_names) and len(outputs) == len(module.output_names):
        inputs = dict(zip(module.input_names, inputs.values(), strict=True))
        outputs = dict(zip(module.output_names, outputs.values(), strict=True))
    return {
        **named,
        **texts,
        "module": module,
        "inputs": inputs,
        "outputs": outputs,
        "options": options,
    }


def _values(part: StoredPart) -> Mapping[str, Array]:
    about = {
        "format": FORMAT,
        "clew": VERSION,
        "name": part.name,
        "kind": part.kind,
        "layers": part.layers,
        "inputs": list(part.inputs),
        "outputs": list(part.outputs),
        "options": {k: v for k, v in part.options.items() if k != "extend"},  # extensions are code
        "notes": part.notes,
    }
    return {
        **{f"in{n}": np.asarray(a) for n, a in enumerate(part.inputs.values())},
        **{f"out{n}": np.asarray(a) for n, a in enumerate(part.outputs.values())},
        _ABOUT: _bytes(json.dumps(about)),
    }


def _bytes(text: str) -> Array:
    return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
