"""Decides whether an import failed because of the file or because of the inputs given for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from clew.frontends.names import display
from clew.ir.deferred import DeclaredInput
from clew.support.errors import ClewError, GraphTypeError, Hint, InputError, locate

# Codes of errors that blame the file.
_INVALID: Final = frozenset({"M012", "M031"})
_DECLARED: Final = Hint(
    "give inputs that this layer accepts: inputs={...} has shapes, constants={...} values",
    cli="give inputs that this layer accepts, as in --shape NAME=1,3,224,224",
    page="give input shapes that this layer accepts",
)
_FEW: Final = 8
_CALLED: Final = "call it with inputs that this layer accepts"


@contextmanager
def at_fault(
    inputs: Callable[[], Iterable[DeclaredInput]],
    shapes: Mapping[str, Any] | None,
    values: Mapping[str, Any] | None,
    alone: Callable[[], object],
) -> Iterator[None]:
    """Names the given inputs in errors of an import; an error blames the file only if the import
    fails without the inputs, too: `alone` runs that import.

    Errors: I304 for errors that do not occur without the inputs.
    """
    if not shapes and not values:
        yield
        return
    given = described(inputs(), shapes or {}, values or {})
    try:
        with locate(inputs=lambda: given):
            yield
    except GraphTypeError as error:
        error.hint = error.hint or _DECLARED
        raise
    except ClewError as error:
        if error.code in _INVALID and not _same(error, alone):
            raise not_fitting(error, _DECLARED) from error
        raise


def not_fitting(error: ClewError, hint: str = _CALLED) -> InputError:
    """Returns the error of an import that fails with the given inputs."""
    found = InputError(
        "I304", f"the given inputs do not fit: {error.message}", hint=hint, layer=error.layer
    )
    found.inputs = error.inputs
    return found


def blames_the_file(error: ClewError) -> bool:
    """Whether an error says that the file is invalid."""
    return error.code in _INVALID


def _same(error: ClewError, alone: Callable[[], object]) -> bool:
    try:
        alone()
    except ClewError as found:
        return (found.code, found.layer) == (error.code, error.layer)
    return False


def described(
    inputs: Iterable[DeclaredInput], shapes: Mapping[str, Any], values: Mapping[str, Any]
) -> str:
    """Returns a description of the given inputs, with the file's declarations."""
    texts = []
    for declared in inputs:
        name = declared.name
        if name not in shapes and name not in values:
            continue
        shape = shapes.get(name, getattr(values.get(name), "shape", None))
        text = display(name) if shape is None else f"{display(name)} {list(shape)}"
        if getattr(values.get(name), "size", _FEW + 1) <= _FEW:
            text += f" = {display(str(values[name].tolist()))}"
        if declared.shape is not None and shape is not None and tuple(shape) != declared.shape:
            text += f" (declared [{', '.join(map(str, declared.shape))}])"
        texts.append(text)
    return ", ".join(texts)
