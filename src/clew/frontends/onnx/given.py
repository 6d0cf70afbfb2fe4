"""Whether an import failed because of the file or because of the inputs given for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from clew.frontends.onnx.names import display
from clew.ir.deferred import DeclaredInput
from clew.support.errors import ClewError, GraphTypeError, Hint, InputError, locate

# Errors that say that the file is invalid.
_INVALID: Final = frozenset({"M012", "M031"})
_DECLARED: Final = Hint(
    "give inputs that this layer can take: inputs={...} has shapes, constants={...} values",
    cli="give inputs that this layer can take, as in --shape NAME=1,3,224,224",
    page="give input shapes that this layer can take",
)
_FEW: Final = 8
_CALLED: Final = "call it with inputs that this layer can take"


@contextmanager
def at_fault(
    inputs: Callable[[], Iterable[DeclaredInput]],
    shapes: Mapping[str, Any] | None,
    values: Mapping[str, Any] | None,
    alone: Callable[[], object],
) -> Iterator[None]:
    """Names the inputs that were given in errors of an import, and says that the file is invalid
    only where it is so without them, too: `alone` imports it.

    Errors: I304 for what the file does not say of itself.
    """
    if not shapes and not values:
        yield
        return
    given = described(inputs(), shapes or {}, values or {})
    try:
        with locate(inputs=given):
            yield
    except GraphTypeError as error:
        error.hint = error.hint or _DECLARED
        raise
    except ClewError as error:
        if error.code in _INVALID and not _same(error, alone):
            raise not_fitting(error, _DECLARED) from error
        raise


def not_fitting(error: ClewError, hint: str = _CALLED) -> InputError:
    """Returns the error of an import that fails with the inputs given."""
    found = InputError(
        "I304", f"the inputs given do not fit: {error.message}", hint=hint, layer=error.layer
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
    """Returns inputs that were given, and how the file declares them."""
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
